"""Values in structured text: what a key or a tag says that they are.

`{"last_name": "hill"}`, `<name>mark wood</name>`, `user=grace`.
"""

import re
from collections.abc import Iterator

from dptune.detection import words as w
from dptune.detection.patterns.chats import chat_values
from dptune.detection.patterns.field_kinds import (
    IN_WORDS,
    MAYBE,
    MOST_WORDS,
    Found,
    Value,
    kind_of,
    looks_like_name,
    settle,
)
from dptune.detection.patterns.tables import table_values

_KEY = re.compile(r"[^\W\d_][\w.-]*(?: [^\W\d_(][\w.)'’-]*){0,3}\Z")
_LONGEST_KEY, _MOST_AROUND = 56, 6
_SEPARATOR = re.compile(
    r"(?P<sign>=>|:=|->|:(?!//)|=(?!=)|\t|(?<=\w) - (?=\w))\*{0,2}[ \t]{0,6}(?:\r?\n[ "
    r"\t]{1,8})?"
)
_AROUND_KEY = " \t\"'`])*\\"
_QUOTED = re.compile(r"\\?([\"'`“])(?P<value>(?:\\.|(?!\\?\1|”)[^\n\\]){1,300})")
_ITEM = re.compile(r"[\"'](?P<value>[^\"'\n]{1,100})[\"']")
_BARE = re.compile(r"[^\n;|<>{}\[\]\"&\t,=:()]{1,80}")
_BARE_ADDRESS = re.compile(r"[^\n;|<>{}\[\]\"&\t=:]{1,120}")
_TOKEN = re.compile(
    r"[^\s,;|<>{}\"'&()]{1,128}(?: (?:[\d./()+-]{1,16}"
    r"|[A-Za-z]{0,3}\d[\dA-Za-z/-]{0,8})(?![\w:=])){0,24}"
)
_IN_QUERY = re.compile(r"[^\n&#\"'<>=]{1,60}(?=&)|[^\s&#\"'<>]{1,120}")
_ELEMENT = re.compile(
    r"<(?P<key>[A-Za-z][\w:.-]{0,40})(?P<more>\s[^<>]{0,200})?>\s{0,4}(?P<"
    r"value>[^<>]{1,200}?)\s{0,4}</"
)
_SIGNS = (":", "=", "\t", "->", " - ", "\n")
_SAYS_FIELD = re.compile(r"(?:class|id|itemprop|name|data-\w+)=[\"']?(?P<key>[\w-]+)")


def field_values(text: str) -> Iterator[Value]:
    """Yield the values of fields, tables and chats; they may overlap.

    Args:
        text: the plain form of a text, with its capitals.
    """
    if any(sign in text for sign in _SIGNS):
        yield from _pairs(text)
    if "</" in text:
        yield from _elements(text)
    yield from table_values(text)
    yield from chat_values(text)


def _pairs(text: str) -> Iterator[Value]:
    """Read `key: value` and `key=value` in all their spellings."""
    found: list[Found] = []
    for match in _SEPARATOR.finditer(text):
        low = max(0, match.start() - _LONGEST_KEY)
        high = low + len(text[low : match.start()].rstrip(_AROUND_KEY))
        if match.start() - high > _MOST_AROUND or high == low:
            continue
        key = _KEY.search(text, low, high)
        if key is None:
            continue
        kind = kind_of(key.group())
        if kind is None:
            continue
        if match["sign"] == " - " and not _opens_line(text, key.start()):
            continue
        for start, end in _values_at(text, match, kind, key.start()):
            found.append(Found(start=start, end=end, kind=kind))
    yield from settle([*found, *_below(text)], text)


def _opens_line(text: str, position: int) -> bool:
    """Tell whether only blanks and bullets stand before a position in its line."""
    return not text[text.rfind("\n", 0, position) + 1 : position].strip(" \t*•-")


_TWO_LINES = re.compile(
    r"(?m)^[ \t]{0,8}(?P<key>[^\W\d_][\w '’/-]{1,30}):?[ \t]{0,4}\n"
    r"[ \t]{0,8}(?P<value>[^\s:][^\n:]{0,60})$"
)


def _below(text: str) -> Iterator[Found]:
    """Read forms that put the value into the line below its field."""
    position = 0
    while match := _TWO_LINES.search(text, position):
        kind = kind_of(match["key"])
        position = match.end("key" if kind is None else "value")
        if kind is not None and kind_of(match["value"]) is None:
            start, end = match.span("value")
            yield Found(start=start, end=end, kind=kind)


def _values_at(
    text: str, separator: re.Match[str], kind: str, key: int
) -> Iterator[tuple[int, int]]:
    """Yield the range of the value behind a separator, or those of a list."""
    start = separator.end()
    if quoted := _QUOTED.match(text, start):
        yield quoted.span("value")
        return
    if text.startswith("[", start):
        end = text.find("]", start, start + 500)
        if end > 0:
            yield from (item.span("value") for item in _ITEM.finditer(text, start, end))
        return
    is_query = text[key - 1 : key] in ("?", "&") and "=" in separator["sign"]
    bare = _IN_QUERY if is_query else _pattern_of(MAYBE.get(kind, kind))
    value = bare.match(text, start)
    if value is None:
        return
    end = value.end()
    if not is_query and bare is not _TOKEN:
        end = _cut(text, start, end, separator["sign"], MAYBE.get(kind, kind))
    if end > start:
        yield start, end


def _pattern_of(kind: str) -> re.Pattern[str]:
    if kind == "ADDRESS":
        return _BARE_ADDRESS
    return _BARE if kind in IN_WORDS else _TOKEN


_NEXT_KEY = re.compile(r"[ ,]+[\w.'’-]+\Z")
_SENTENCE = re.compile(
    r"(?<=[^\W\d_]{3})\. |[!?] | {2,}| - |\\n| (?:and|but|so|who"
    r"|which|where|is|was|has|had|for|with|at|on|in|from|logged"
    r"|said|says) "
)


def _cut(text: str, start: int, end: int, separator: str, kind: str) -> int:
    """Return where a bare value ends: before the next key, or the next sentence."""
    if text[end : end + 1] in (":", "="):
        end = _before_key(text, start, end)
    if kind != "ADDRESS" and (stop := _SENTENCE.search(text, start, end)):
        end = stop.start()
    words = list(re.finditer(r"\S+", text[start:end]))
    is_login = kind == "USERNAME" and not looks_like_name(text[start:end].strip())
    most = 1 if is_login else MOST_WORDS
    if len(words) > most and (is_login or kind == "PERSON" or "=" in separator):
        end = start + words[0].end()
    while end > start and text[end - 1] in " \t\r.'!?-":
        end -= 1
    return end


def _before_key(text: str, start: int, end: int) -> int:
    """Return where a value ends that the name of the next field follows."""
    name = _NEXT_KEY.search(text, start, end)
    if name is None:
        return start
    first = _NEXT_KEY.search(text, start, name.start())
    if first is not None and first.group().strip(" ,").lower() in _OPENS_KEY:
        return first.start()
    return name.start()


_OPENS_KEY = w.word_set(
    "phone email e-mail zip postal date home work cell mobile first last full middle "
    "birth street job marital account card social passport medical order"
)


def _elements(text: str) -> Iterator[Value]:
    """Read `<key>value</`."""
    found = []
    for match in _ELEMENT.finditer(text):
        key = match["key"].rpartition(":")[2]
        said = _SAYS_FIELD.search(match["more"] or "")
        kind = kind_of(said["key"] if said else key)
        if kind is not None:
            start, end = match.span("value")
            found.append(Found(start=start, end=end, kind=kind))
    yield from settle(found, text)
