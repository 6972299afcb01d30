"""Words of each language: one data file per language, read when it is first needed."""

import hashlib
import json
import re
import unicodedata
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from importlib.metadata import version
from typing import Any

CASED = ("de", "fr", "es", "it", "nl", "pt", "pl", "tr")
SPACED = ("ar", "hi")
UNSPACED = ("zh", "ja")
LANGUAGES = (*CASED, *SPACED, *UNSPACED)
"""Languages with rules of their own. English has the rest of the detector."""

GROUPS = {"cased": CASED, "spaced": SPACED, "unspaced": UNSPACED}
"""By writing: capitals; blanks between words, but no capitals; neither."""

_DATA = resources.files("dptune.detection.languages").joinpath("data")
_TEXTS = frozenset(
    (
        *("age", "address", "postcode", "day_after", "cues_text", "plate", "era"),
        *("age_words", "numeral", "ordinal"),
        *("field_address", "field_org", "field_name"),
        *(
            "function_chars",
            "given_chars",
            "foreign_chars",
            "verbs",
            "long_places",
            "sources",
        ),
    )
)
"""Entries of a file that are no lists of words."""


@dataclass(frozen=True, kw_only=True)
class Language:
    """What is known of one language.

    Args:
        code: ISO 639-1.
        sets: word lists by name; a list that the file lacks is empty.
        texts: everything else in the file: patterns and phrases.
    """

    code: str
    sets: dict[str, frozenset[str]] = field(repr=False)
    texts: dict[str, str] = field(repr=False)

    def words(self, name: str) -> frozenset[str]:
        """Return a word list."""
        return self.sets.get(name, frozenset())

    def phrases(self, name: str) -> list[str]:
        """Return phrases that bars part, the longest first."""
        found = filter(None, self.texts.get(name, "").split("|"))
        return sorted(found, key=lambda phrase: (-len(phrase), phrase))


@lru_cache
def load(code: str) -> Language:
    """Read the table of a language, one of `LANGUAGES`."""
    raw: dict[str, Any] = json.loads(_DATA.joinpath(f"{code}.json").read_bytes())
    texts = {name: plain(text, code)[0] for name, text in raw.items()}
    return Language(
        code=code,
        sets={n: frozenset(texts[n].split()) for n in texts.keys() - _TEXTS},
        texts=texts,
    )


@lru_cache
def read_data(name: str) -> dict[str, Any]:
    """Read another data file of this room."""
    table: dict[str, Any] = json.loads(_DATA.joinpath(f"{name}.json").read_bytes())
    return table


def read_bytes(name: str) -> bytes:
    """Read a data file of this room as it is."""
    return _DATA.joinpath(name).read_bytes()


def data_bytes() -> list[str]:
    """Return the text of all data files, and the library's version, for a digest."""
    paths = sorted(_DATA.iterdir(), key=lambda path: path.name)
    texts = [
        path.read_text("utf8")
        for path in paths
        if path.name.endswith((".json", ".toml"))
    ]
    packed = [
        path.read_bytes()
        for path in paths
        if path.name.endswith((".gz", ".safetensors"))
    ]
    digests = [hashlib.sha256(content).hexdigest() for content in packed]
    return [version("py3langid"), *texts, *digests]


def lower(text: str, code: str) -> str:
    """Lower-case a text of a language without moving a character (Turkish I, İ)."""
    if code == "tr":
        text = text.translate(_TURKISH)
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)


_TURKISH = {ord("I"): "ı", ord("İ"): "i"}
_NO_WIDTH = "\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
_VANISH = re.compile(f"[{_NO_WIDTH}]")
_VANISH_IN = {
    "ar": re.compile(f"[{_NO_WIDTH}\u0640\u064b-\u065f\u0670]"),
    "hi": re.compile(f"[{_NO_WIDTH}\u093c]"),
}
_SPELT_ALIKE = {
    "ar": str.maketrans("أإآٱؤئ", "ااااوي"),
    "hi": str.maketrans("\u0901", "\u0902"),
}


@lru_cache
def _spelt_alike(code: str) -> dict[int, int]:
    """Return letters that count as one: in Chinese, traditional and simplified ones."""
    if code != "zh":
        return _SPELT_ALIKE.get(code, {})
    table = read_data("traditional")
    return str.maketrans(table["traditional"], table["simplified"])


def plain(text: str, code: str = "") -> tuple[str, list[int] | None]:
    r"""Return a text in composed characters, and where each came from.

    Characters without width go; so do, in Arabic, vowel signs and the stroke that
    only lengthens a word, and its letters with a hamza become plain ones. In Hindi the
    dot below goes, and both signs of a nasal vowel become one, as writers leave the
    first out and mix the others.

    >>> plain("Jose\u0301")
    ('José', [0, 1, 2, 3, 5])

    Args:
        text: any text.
        code: its language, if it is known.

    Returns:
        the text, and for each of its positions, and one past the last, the position in
        `text`; None where positions are the same.
    """
    vanishing = _VANISH_IN.get(code, _VANISH)
    alike = _spelt_alike(code)
    if unicodedata.is_normalized("NFC", text) and not vanishing.search(text):
        return text.translate(alike), None
    pieces: list[str] = []
    origin: list[int] = []
    start = 0
    while start < len(text):
        end = start + 1
        while end < len(text) and _joins(text[end]):
            end += 1
        composed = vanishing.sub("", unicodedata.normalize("NFC", text[start:end]))
        pieces.append(composed)
        origin += [start] * len(composed)
        start = end
    whole = "".join(pieces)
    return whole.translate(alike), [*origin, len(text)]


def _joins(character: str) -> bool:
    """Tell whether a character goes with the one before it."""
    return character > "\u00ac" and (
        unicodedata.combining(character) != 0
        or unicodedata.category(character) in {"Mn", "Mc", "Me", "Cf"}
        or "\u1160" <= character <= "\u11ff"
    )
