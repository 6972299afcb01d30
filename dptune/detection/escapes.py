r"""Reads texts that hold escapes (`\u00e9`, `&eacute;`, `%C3%A9`) a second time.

JSON, HTML, URLs and mail write letters as escapes, and a name in them is no name to
rules and lists. So recognizers are given such a text as it is, and once more with its
escapes turned into what they stand for. What they find there is marked in the text as
it is, and no mark halves an escape.

One level is read and nothing grows, so no text can make work for more than two.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from html import unescape

from dptune.detection.recognizer import Recognizer, code_digest, fingerprint_of
from dptune.text import Span

Escape = tuple[int, int, str]
"""Start and end in the text, and what stands there."""

_SIGNS = "\\%&="
_H = "[0-9A-Fa-f]"
_NEXT = "[89ABab][0-9A-Fa-f]"


def _bytes(sign: str) -> str:
    """Return the expression of a character of several bytes in UTF-8."""
    return (
        rf"{sign}[C-Dc-d]{_H}{sign}{_NEXT}|{sign}[Ee]{_H}(?:{sign}{_NEXT}){{2}}"
        rf"|{sign}[Ff][0-4](?:{sign}{_NEXT}){{3}}"
    )


_UTF8 = "|".join(map(_bytes, ("%", "=", r"\\x")))
_OCTAL = (
    r"\\3[0-3][0-7]\\2[0-7]{2}|\\3[45][0-7](?:\\2[0-7]{2}){2}"
    r"|\\36[0-7](?:\\2[0-7]{2}){3}"
)
# Commands of TeX that begin as a line end or a tab does.
_TEX = (
    "n(?:abla|eq?|u|ot(?:in)?|ew[a-z]{4,12}|oindent|ode|olimits|i|ormal[a-z]{4,5})"
    "|t(?:au|heta|imes|ext[a-z]{0,6}|itle|able[a-z]{0,12}|ilde|o|op|riangle|iny|an)"
    "|r(?:ho|ight[a-z]{0,10}|angle|ceil|floor|ef|enewcommand|m)"
)
_ESCAPE = re.compile(
    r"(?P<path>\b[A-Za-z]:\\(?:[^\\\s\"'<>|*?:]{1,60}\\){1,20}[^\\\s\"'<>|*?:]{0,60})"
    rf"|(?P<pair>\\{{1,4}}u[dD][89ABab]{_H}{{2}}\\{{1,4}}u[dD][C-Fc-f]{_H}{{2}})"
    rf"|(?P<code>\\{{1,4}}u(?![dD][89A-Fa-f]){_H}{{4}}|\\{{1,4}}u\{{{_H}{{1,6}}\}}"
    rf"|\\{{1,4}}U00[01]{_H}{{5}})"
    rf"|(?P<octal>{_OCTAL})"
    rf"|(?P<bytes>{_UTF8}|%[2-7]{_H}|%0[9AaDd]"
    r"|=(?:20|22|27|2C|2E|3D|40|5F)|\\x[2-7][0-9A-Fa-f])"
    rf"|(?P<latin>\\x[A-Fa-f]{_H})"
    rf"|(?P<sign>\\\\|\\[\"'/]|\\(?!(?:{_TEX})(?![A-Za-z]))[nrt])"
    rf"|(?P<html>&(?:amp;)?(?:#(?:[0-9]{{1,7}}|[xX]{_H}{{1,6}});?"
    r"|[A-Za-z][A-Za-z0-9]{1,30};))"
    r"|(?P<word>=\?(?i:utf-8|us-ascii|iso-8859-\d{1,2}|windows-125\d)\?[QqBb]\?"
    r"[!->@-~]{1,200}\?=)"
    r"|(?P<soft>=\r?\n)|(?P<plus>(?<=[^\W_])\+(?=[^\W_]|%))"
)
_STANDS_FOR = {"n": "\n", "r": "\r", "t": "\t"}
_BLANK = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f]")
_STRESS = re.compile(
    r"(?<![\w*_~])(?P<sign>\*\*?|_|~~?)(?=[^\s*_~])[^*~\n]{1,120}?(?<=[^\s*_~])(?P=sign)"
    r"(?![\w*_~])"
)  # CommonMark, 6.2, emphasis; what chats write for it
# Lines that were cut at a width, with the marks of quotes before them.
_MAY_WRAP = re.compile(r"[^\n]{40}\r?\n[ \t>|]{0,12}[^\W_(+]")
_LINE = re.compile(
    r"(?m)^(?P<mark>[ \t]{0,12}(?:[>|][>| ]{0,8})?)(?P<said>[^\r\n]*)\r?$"
)
_GOES_ON = re.compile(r"[^\W_]|[(+]\d")
_OPENS = re.compile(
    r"(?:\d{1,3}[.)]|[a-z][.)]) |[\w.'’ -]{1,24}(?::(?!\d)|\s?=)|\d{1,2}:\d\d"
    r"|\d{4}-\d\d-\d\d|\d{1,2}/\w{1,3}/\d|\d{1,3}(?:\.\d{1,3}){3}"
    r"|[^,;|\t\n]{0,60}[,;|\t]\S[^,;|\t\n]{0,60}[,;|\t]\S"
)  # items, fields, times, addresses of logs, and rows of tables
_OPEN_END = re.compile(r"(?:[A-ZÀ-Þ][\w'’-]{0,24}\.?|\d[\w-]{0,8}),?\Z")
_NARROWEST, _COMMON, _WIDEST = 40, 60, 120
_COLOR = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")  # ECMA-48, 5.4: of terminals
# Controls but for those that end lines or part words, halves of surrogate pairs, and
# what Unicode 16 calls Default_Ignorable_Code_Point, but for joiners and directions.
_UNSEEN = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\ud800-\udfff\u034f\u115f\u1160\u17b4\u17b5"
    "\u180b-\u180f\u2061-\u2065\u206a-\u206f\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_RETURN = re.compile(r"\r(?=\n)")


def as_read(text: str) -> str:
    r"""Write blanks of all widths as one, and colors of a terminal as blanks.

    >>> as_read("Ann\u00a0Lee")
    'Ann Lee'
    """
    text = _BLANK.sub(" ", text)
    if "\x1b" in text:
        text = _COLOR.sub(lambda color: " " * len(color.group()), text)
    return text


def seen_alone(text: str) -> "Unescaped | None":
    r"""Leave out signs that nobody sees; None if there are none.

    They are controls and the like, carriage returns before line ends, and signs around
    words that are bold, slanted or struck out.

    >>> seen_alone("**A\x00nn**\r\n").text
    'Ann\n'
    """
    unseen = [
        *_UNSEEN.finditer(text),
        *(_RETURN.finditer(text) if "\r" in text else ()),
    ]
    found: list[Escape] = [(*match.span(), "") for match in unseen]
    may_stress = any(sign in text for sign in "*_~")
    for match in _STRESS.finditer(text) if may_stress else ():
        start, end = match.span()
        size = match.end("sign") - start
        found += [(start, start + size, ""), (end - size, end, "")]
    if _MAY_WRAP.search(text):
        found += wraps_of(text)
    return _view(text, sorted(found)) if found else None


def wraps_of(text: str) -> Iterator[Escape]:
    r"""Find line ends that only a width made, with the marks of quotes behind them.

    A line was cut where the next word had no room: it would make the line longer than
    all others around. Where one alone is cut, or one and another not, the longest must
    have 60 signs, and what goes on no capital.

    >>> long = "please ring me in the evening, not before six, on the number 0161"
    >>> [(end - start) for start, end, _ in wraps_of(f"> {long}\n> 496 0772, thanks")]
    [3]
    """
    block: list[re.Match[str]] = []
    for line in (*_LINE.finditer(text), None):
        is_more = line is not None and line["said"].strip() != ""
        if is_more and line and (not block or line["mark"] == block[-1]["mark"]):
            block.append(line)
            continue
        yield from _wraps_in(block)
        block = [line] if is_more and line else []


def _wraps_in(block: Sequence[re.Match[str]]) -> Iterator[Escape]:
    """Find the line ends that a width made among lines of one indent."""
    said = [line["said"].rstrip() for line in block]
    width = max(map(len, said), default=0)
    words = [text.split(maxsplit=1)[0] for text in said]
    is_cut = [
        len(text) >= _NARROWEST and width < len(text) + 1 + len(word)
        for text, word in zip(said, words[1:], strict=False)
    ]
    is_prose = len(is_cut) > 1 and all(is_cut)
    for place in [n for n, cut in enumerate(is_cut) if cut and width <= _WIDEST]:
        line, following = block[place : place + 2]
        word = words[place + 1]
        if _GOES_ON.match(word) is None or _OPENS.match(following["said"]):
            continue
        is_told = _OPEN_END.search(said[place]) if word[0].isupper() else True
        if is_told and (is_prose or (width >= _COMMON and not word[0].isupper())):
            end = line.start("said") + len(said[place])
            yield end, following.start("said"), " "


def escapes_of(text: str) -> list[Escape]:
    r"""Find the escapes of a text that stand for something, in order.

    >>> escapes_of(r"Ren\u00e9e &amp; Zo%C3%AB")
    [(3, 9, 'é'), (11, 16, '&'), (19, 25, 'ë')]
    """
    if not any(sign in text for sign in _SIGNS):
        return []
    found = [
        (*match.span(), meaning)
        for match in _ESCAPE.finditer(text)
        if (meaning := _meaning(match)) is not None
    ]
    if all(text[start] in "+\\&=" for start, _, _ in found):
        return [escape for escape in found if text[escape[0]] != "+"]
    return found


def _meaning(match: re.Match[str]) -> str | None:  # noqa: PLR0911  # one for each kind
    """Return what an escape stands for; None if it is none.

    A plus is a blank where others are written with `%`.
    """
    kind, written = match.lastgroup, match.group()
    digits = "".join(filter(str.isalnum, written.replace("\\x", "\\")))
    try:
        if kind == "pair":
            high, low = (int(part[:4], 16) for part in written.split("u")[1:])
            return chr(0x10000 + ((high & 0x3FF) << 10) + (low & 0x3FF))
        if kind == "code":
            return _shown(chr(int(digits[1:], 16)))
        if kind == "octal":
            octets = (int(part, 8) for part in written[1:].split("\\"))
            return bytes(octets).decode()
        if kind == "bytes":
            return bytes.fromhex(digits).decode()
        if kind == "latin":
            return chr(int(digits, 16))
        if kind == "sign":
            return _STANDS_FOR.get(written[1], written[1])
        if kind == "html":
            meaning = unescape(written.replace("&amp;", "&", len(written) > 5))
            return _shown(meaning) if len(meaning) == 1 else None
        if kind == "word":
            meaning = str(make_header(decode_header(written)))
            return (
                "".join(map(_shown, meaning)) if len(meaning) < len(written) else None
            )
    except (ValueError, LookupError, HeaderParseError):
        return None
    return {"soft": "", "plus": " "}.get(str(kind))


def _shown(character: str) -> str:
    """Return a character, or a blank for what no text should hold."""
    return (
        " "
        if unicodedata.category(character) in {"Cc", "Cs", "Cn"}
        and (character not in "\t\n\r")
        else character
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Unescaped:
    """A text with its escapes turned into what they stand for.

    Args:
        text: never longer than the original.
        starts: where each of its characters begins in the original.
        ends: where each ends.
    """

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def original(self, span: Span) -> Span:
        """Return the place of a span in the text as it is."""
        start, end = self.starts[span.start], self.ends[span.end - 1]
        return replace(span, start=start, end=end)


def unescaped(text: str) -> Unescaped | None:
    """Read the escapes of a text; None if it has none."""
    escapes = escapes_of(text)
    return _view(text, escapes) if escapes else None


def _view(text: str, escapes: Sequence[Escape]) -> Unescaped:
    """Put what escapes stand for in their place."""
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    last = 0
    for start, end, meaning in (*escapes, (len(text), len(text), "")):
        parts += [text[last:start], meaning]
        starts += [*range(last, start), *([start] * len(meaning))]
        ends += [*range(last + 1, start + 1), *([end] * len(meaning))]
        last = end
    return Unescaped(text="".join(parts), starts=starts, ends=ends)


def in_place(text: str, escapes: Sequence[Escape]) -> str:
    """Write over each escape what it stands for, as often as it is long.

    A soft line end becomes hyphens that nobody sees, a word of several characters one
    letter of it, and before a line end there are blanks, for there is but one.
    """
    parts: list[str] = []
    last = 0
    for start, end, meaning in escapes:
        letter = next(filter(str.isalnum, meaning), meaning[:1]) or "\u00ad"
        fill = " " if letter.isspace() else letter
        parts += [text[last:start], fill * (end - start - 1), letter]
        last = end
    return "".join([*parts, text[last:]])


def whole_escapes(spans: Iterable[Span], escapes: Sequence[Escape]) -> Iterator[Span]:
    """Extend spans over the rest of the escapes that they cut."""
    starts = [start for start, _, _ in escapes]
    for span in spans:
        first = escapes[bisect_right(starts, span.start) - 1]
        last = escapes[bisect_left(starts, span.end) - 1]
        start = first[0] if first[0] < span.start < first[1] else span.start
        end = last[1] if last[0] < span.end < last[1] else span.end
        yield replace(span, start=start, end=end)


class EscapeReader:
    """Gives a recognizer what of a text is seen, and that again with escapes read.

    Args:
        inner: finds spans.
    """

    def __init__(self, inner: Recognizer) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """Name of the recognizer that reads."""
        return self.inner.name

    @property
    def fingerprint(self) -> str:
        """Digest of the recognizer and of what is an escape."""
        return fingerprint_of((self.inner.fingerprint, code_digest("escapes")))

    @property
    def may_be_unavailable(self) -> bool:
        """Whether the recognizer may leave a text unjudged."""
        return bool(getattr(self.inner, "may_be_unavailable", False))

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return what is found in either reading, at its place in the text as it is."""
        texts = list(map(as_read, texts))
        seen = {i: view for i, t in enumerate(texts) if (view := seen_alone(t))}
        texts = [seen[i].text if i in seen else t for i, t in enumerate(texts)]
        views = {i: view for i, t in enumerate(texts) if (view := unescaped(t))}
        again = [view.text for view in views.values()]
        found = self.inner.recognize([*texts, *again])
        for (place, view), spans in zip(
            views.items(), found[len(texts) :], strict=True
        ):
            found[place] = [*found[place], *map(view.original, spans)]
        for place, view in seen.items():
            found[place] = list(map(view.original, found[place]))
        return found[: len(texts)]
