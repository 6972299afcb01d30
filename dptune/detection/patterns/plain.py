"""One spelling of a text, so that no rule has to know the others.

Full-width and mathematical letters, digits of any script, typographic dashes, dots and
blanks become ASCII; characters without width and combining marks vanish; digits in
disguise (circled, raised, Chinese numerals) become digits where several stand together.
"""

import re
import unicodedata

_NO_WIDTH = re.compile(
    "[\u00ad\u0300-\u036f\u061c\u115f\u1160\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u2064\u2066-\u206f\u20d0-\u20f0\u3164\ufe00-\ufe0f\ufe20-\ufe2f\ufeff"
    "\uffa0\U000e0000-\U000e007f\U000e0100-\U000e01ef]"
)
_SIGNS = dict.fromkeys("\u2028\u2029\u0085", "\n")
_SIGNS |= dict.fromkeys("\u2044\u2215", "/") | dict.fromkeys(
    "\u00b7\u2024\u2027\u3002\u30fb\uff0e\uff61\uff65", "."
)
_KEPT = frozenset("£€¥₹°‘’“”«»…•")
_CHINESE_DIGITS = dict(
    zip("〇零一二三四五六七八九壹贰叁肆伍陆柒捌玖", "00123456789123456789", strict=True)
)
# scripts that write words without blanks between them
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_UNPARTED = f"[{_UNSPACED}\uac00-\ud7a3]"
_BEFORE_NUMBER = re.compile(
    rf"{_UNPARTED}(?=[0-9A-Za-z+(])|(?<=[0-9A-Za-z]){_UNPARTED}"
    rf"|(?<={_UNPARTED})\.(?=[0-9A-Za-z+(@])"
)
# Signs that touch a value and are no part of it: emphasis and names of files (`_1_`),
# dashes of sentences and ranges, commas of tables, stops without a blank. The sign
# stands first, and what is around it later: only so does `re` skip the rest of a text.
_GLUE = re.compile(
    r"[_–—―,;.·-](?:(?<=[\d)]_)_*+|(?<=_)(?<!__)_*+(?=[\d(+])"
    r"|(?<=_)(?<!\w_)_*+(?=\w)|(?<=[^\W_]_)_*+(?!\w)"
    r"|(?<=[:-][0-9a-f]{2}_)_*+|(?<=-[0-9a-f]{12}_)_*+"
    r"|(?<=_)(?<!__)_*+(?=[0-9a-f]{2,8}[:-])"
    r"|(?<=[\d)][–—―])|(?<=[\d)]-)-++"
    r"|(?<=[–—―])(?=[\d(+])|(?<=-)(?<!--)-++(?=[\d(+])"
    r"|(?<=[./]\d\d-)(?=\d{1,2}[./]\d)"
    r"|(?<=[^\W\d_][,;])(?=[(+]|0\d|\d{1,6} )"
    r"|(?<=[^\W\d_]\.)(?=\d{1,4}[./-]\d{1,2}[./-]\d)"
    r"|(?<=·)(?<!\d·)(?=[\d(+])|(?<=[\d)]·)(?!\d))",
    re.IGNORECASE,
)
_FEWEST_IN_DISGUISE = 5


class _Table(dict[int, str]):
    """Maps one code point to one character, computed once for each."""

    def __missing__(self, code: int) -> str:
        """Compute and keep the plain form of a code point."""
        self[code] = plain = _plain(chr(code))
        return plain


def _plain(character: str) -> str:
    """Return the ASCII character that one character stands for, else itself."""
    if character.isascii() or character in _KEPT:
        return character
    kind = unicodedata.category(character)
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    if kind == "Pd" or character == "\u2212":
        return "-"
    if kind == "Zs" or character == "\u2800":
        return " "
    if character in _SIGNS:
        return _SIGNS[character]
    form = unicodedata.normalize("NFKC", character)
    return form if len(form) == 1 and form.isascii() and kind != "No" else character


def _disguised() -> dict[str, str]:
    """Return every character that is a digit by its looks, and the digit.

    What stands for ten or more becomes 0: a rule needs a digit, not its value.
    """
    digits = dict(_CHINESE_DIGITS)
    for code in (
        *(0xB2, 0xB3, 0xB9),
        *range(0x2070, 0x208A),
        *range(0x2460, 0x249C),
        *range(0x24EA, 0x2500),
        *range(0x2776, 0x2794),
        *range(0x1F100, 0x1F10D),
    ):
        value = unicodedata.numeric(chr(code), -1)
        if value >= 0:
            digits[chr(code)] = str(int(value)) if value < 10 else "0"
    return digits


_DISGUISED = _disguised()
_IN_DISGUISE = "".join(_DISGUISED)
_MASKERADE = re.compile(
    rf"(?:[{_IN_DISGUISE}0-9][ .()/+-]{{0,2}}){{{_FEWEST_IN_DISGUISE},60}}"
)
_HAS_DISGUISE = re.compile(f"[{_IN_DISGUISE}]")
_TABLE = _Table()


def canonical(text: str) -> tuple[str, list[int] | None]:
    """Return a text in plain characters, and where each came from.

    Args:
        text: any text.

    Returns:
        the plain text, and for each of its positions, and one past the last, the
        position in `text`; None where positions are the same.
    """
    if text.isascii():
        return text, None
    plain = text.translate(_TABLE)
    origin: list[int] | None = None
    if _NO_WIDTH.search(plain) is not None:
        kept = [i for i, mark in enumerate(plain) if not _NO_WIDTH.match(mark)]
        plain, origin = "".join(plain[i] for i in kept), [*kept, len(text)]
    if _HAS_DISGUISE.search(plain) is not None:
        plain = _MASKERADE.sub(_undisguised, plain)
    return plain, origin


def _undisguised(match: re.Match[str]) -> str:
    """Write a run of disguised digits plainly."""
    return "".join(_DISGUISED.get(mark, mark) for mark in match.group())


def apart(plain: str) -> str:
    """Part numbers and Latin words from the letters of scripts without blanks.

    The letter that touches one becomes a blank, so that positions stay and a rule that
    asks for the edge of a word finds one; so does the stop of a sentence between them.

    >>> apart("电话13800138000号")
    '电 13800138000 '
    """
    return plain if plain.isascii() else _BEFORE_NUMBER.sub(" ", plain)


def without_glue(text: str) -> str:
    """Return a text with blanks for signs that may be no part of the value they touch.

    They may be one as well, so that a text must be read both ways.

    >>> without_glue("scan_123-45-6789_v2, born 14/02/1979—in Hull")
    'scan 123-45-6789 v2, born 14/02/1979 in Hull'
    """
    return _GLUE.sub(lambda match: " " * len(match.group()), text)


# Letters that scanners read for digits, and signs that people put between groups.
# `re` looks for the digit first: only so does it skip the rest of a text. Every group
# of a scanned number has a digit, except noughts alone, and a letter stands before one
# somewhere: `ISO 9001`, `100l 200l` and `S20 2021` are no numbers.
_PICTURES = (*range(0x2190, 0x2C00), *range(0x1F300, 0x1FB00))
_SIGN = r"[•~^*=\\`:\u2190-\u2bff\U0001f300-\U0001faff]"
_MAYBE_ODD = re.compile(
    r"[0-9](?:(?<=[OolISB].)(?<![AC-HJ-NP-RT-Za-kmnp-z][OolISB].)"
    rf"|(?={_SIGN}[0-9]{{1,6}}{_SIGN}[0-9]))"
)
_GROUP = r"[OolI]{0,4}\d[\dOolISB]{0,20}(?![^\W_])"
_MISREAD = re.compile(
    r"(?:(?<![^\W_])|(?<=\b[A-Z]{2})(?=[\dOlI]{2} [\dOlISB]{4}(?![^\W_])))"
    rf"{_GROUP}(?:[ ./()-]{{1,2}}(?:{_GROUP}|O{{1,4}}(?![^\W_]))){{0,15}}"
)
_LETTER = re.compile("[OolISB]")
_LETTER_BEFORE = re.compile(r"[OolISB]\d")
_PARTED = re.compile(
    r"(?<![\w.,:/\\-])(?!\d\d:\d\d:\d\d)(?:[A-Z]{2})?\(?\+?\d{1,6}\)?"
    rf"(?P<sign>{_SIGN})\d{{1,6}}(?:(?P=sign)\d{{1,6}}){{1,9}}(?!\w)"
)
_USUAL = str.maketrans("OolISB•~^*=\\`:", "001158--------")
_USUAL |= dict.fromkeys(_PICTURES, ord("-"))
_FEWEST_MISREAD, _FEWEST_PARTED = 6, 9


def odd_numbers(text: str) -> list[tuple[int, int]]:
    """Return where numbers are written as no rule expects them.

    Scanned ones have letters among their digits; others have a sign of their own.

    >>> odd_numbers("tel O161 496 O772 or 531~22~0984, ISO 9001")
    [(4, 17), (21, 32)]
    """
    if _MAYBE_ODD.search(text) is None:
        return []
    kinds = (_MISREAD, _is_misread), (_PARTED, _is_parted)
    return sorted(
        match.span()
        for pattern, is_odd in kinds
        for match in pattern.finditer(text)
        if is_odd(match.group())
    )


def _num_digits(run: str) -> int:
    return sum(map(str.isdigit, run))


def _is_misread(run: str) -> bool:
    """Tell whether most of a run are digits, and a letter stands before one."""
    letters, digits = len(_LETTER.findall(run)), _num_digits(run)
    is_long = letters + digits >= _FEWEST_MISREAD
    return is_long and letters <= digits and _LETTER_BEFORE.search(run) is not None


def _is_parted(run: str) -> bool:
    """Tell whether a run is long, and begins or ends like numbers of people."""
    is_like = run[0] not in "123456789" or run[-4:].isdecimal()
    return is_like and _num_digits(run) >= _FEWEST_PARTED


def usual(text: str, runs: list[tuple[int, int]]) -> str:
    """Return a text whose odd numbers have digits alone, and dashes between them."""
    characters = list(text)
    for low, high in runs:
        characters[low:high] = text[low:high].translate(_USUAL)
    return "".join(characters)


# Two blanks where lines are justified; more, or a line of several numbers, are columns.
_WIDE = re.compile(r"(?<=[\w,.)+-])  (?=[\w(+])")
_NUMERIC = re.compile(r"\d  [\w(+]|[\w,.)+-]  \d")


def narrowed(plain: str, origin: list[int] | None) -> tuple[str, list[int]] | None:
    """Read justified lines: one blank for two beside a digit; None where none are.

    >>> narrowed("tel  0161  496", None)[0]
    'tel 0161 496'
    """
    if "  " not in plain or _NUMERIC.search(plain) is None:
        return None
    dropped = set[int]()
    first = 0
    for line in plain.splitlines(keepends=True):
        if "   " not in line and _NUMERIC.search(line):
            dropped |= {first + m.start() for m in _WIDE.finditer(line)}
        first += len(line)
    if not dropped:
        return None
    kept = [i for i in range(len(plain)) if i not in dropped]
    text = "".join(plain[i] for i in kept)
    places = [*kept, len(plain)]
    return text, places if origin is None else [origin[i] for i in places]
