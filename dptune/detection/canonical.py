"""One spelling for characters that people and programs write in many ways.

Full-width and mathematical letters, digits of any script, typographic dashes, dots and
blanks become ASCII, and characters without width vanish, so that no rule has to know
them.
"""

import re
import unicodedata

_NO_WIDTH = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]"
)
_SIGNS = dict.fromkeys("\u2028\u2029\u0085", "\n") | dict.fromkeys(
    "\u00b7\u2024\u2027\u3002\u30fb\uff0e\uff61\uff65", "."
)
_KEPT = frozenset("£€¥₹°‘’“”«»…•")


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
    if kind == "Zs":
        return " "
    if character in _SIGNS:
        return _SIGNS[character]
    form = unicodedata.normalize("NFKC", character)
    return form if len(form) == 1 and form.isascii() and kind != "No" else character


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
    if _NO_WIDTH.search(plain) is None:
        return plain, None
    kept = [i for i, character in enumerate(plain) if not _NO_WIDTH.match(character)]
    return "".join(plain[i] for i in kept), [*kept, len(text)]
