"""What English says of a word: closed class, readings in the lexicon, proper noun.

The lexicon is the inflection table of `lemminflect` (70,000 forms, from the NIH
SPECIALIST lexicon). The table is read as a file: importing the package would load
spaCy. A form listed with a capital only (`Paris`, `Smithson`) is a proper noun.

A reading is a sum of the bits below. Plain integers, since enumerations are ten times
slower and every word of a corpus passes here.
"""

import gzip
import hashlib
import importlib.util
import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from itertools import groupby
from pathlib import Path

from dptune.errors import DependencyError

# Lexical: English knows the word.
CLOSED = 1
KNOWN = 2
NOUN = 4
VERB = 8
PROPER_ONLY = 16
PROPER_TOO = 32
PRONOUN = 64
COMMON = 128
LEXICAL = 255
# Roles: what a word does in names and forms.
PLACE = 1 << 8
STATE = 1 << 9
TITLE = 1 << 10
GIVEN_NAME = 1 << 11
SPEAKER = 1 << 12
CONNECTOR = 1 << 13
ORGANIZATION = 1 << 14
HEAD = 1 << 15
LABEL = 1 << 16
MONTH_OR_DAY = 1 << 17
ACRONYM = 1 << 18
MAIN_VERB = 1 << 19
ADJECTIVE = 1 << 20
ADVERB = 1 << 21
AUXILIARY = 1 << 22
PEOPLE = 1 << 23
PERSONAL = 1 << 24

_BITS_OF_LIST = {
    "pronoun": CLOSED | KNOWN | PRONOUN,
    "auxiliary": CLOSED | KNOWN | AUXILIARY,
    "function": CLOSED | KNOWN,
    "common": KNOWN | NOUN | COMMON,
    "title": KNOWN | TITLE,
    "place": PLACE,
    "state": STATE,
    "given_name": GIVEN_NAME,
    "speaker": SPEAKER,
    "connector": CONNECTOR,
    "organization": ORGANIZATION,
    "head": HEAD,
    "label": KNOWN | NOUN | LABEL,
    "month_or_day": MONTH_OR_DAY,
    "acronym": ACRONYM,
    "main_verb": MAIN_VERB,
}
_BITS_OF_CLASS = {
    "noun": KNOWN | NOUN,
    "verb": KNOWN | VERB,
    "adj": KNOWN | ADJECTIVE,
    "adv": KNOWN | ADVERB,
    "aux": KNOWN,
}


def _ranges(categories: frozenset[str]) -> Iterator[str]:
    """Yield the code points of some categories as ranges of a character class."""
    category = unicodedata.category
    points = (p for p in range(0x300, 0x20000) if category(chr(p)) in categories)
    for _, run in groupby(enumerate(points), lambda pair: pair[1] - pair[0]):
        members = [point for _, point in run]
        yield f"\\U{members[0]:08x}-\\U{members[-1]:08x}"


JOINING = "".join(
    (*_ranges(frozenset(["Mn", "Mc", "Me"])), "\u00ad\u200b-\u200d\u2060\ufeff")
)
"""Inside of a character class: marks that sit on a letter, and what has no width."""
_NO_WIDTH = dict.fromkeys(map(ord, "\u00ad\u200b\u200c\u200d\u2060\ufeff"))


def plain(word: str) -> str:
    r"""Return a word composed and without characters that have no width.

    >>> plain("Jose\u0301") == "Jos\u00e9"
    True
    """
    if word.isascii():
        return word
    return unicodedata.normalize("NFC", word.translate(_NO_WIDTH))


def word_set(words: str) -> frozenset[str]:
    """Return the words of a text that lists them."""
    return frozenset(words.split())


NAMES_TOO = word_set("will may")
"""Auxiliaries that are given names as well, where a capital or the text says so."""


@dataclass(frozen=True, kw_only=True)
class Lexicon:
    """Readings of lower-cased forms, and a digest of the tables."""

    readings: dict[str, int]
    digest: str


@lru_cache(maxsize=1)
def load_lexicon() -> Lexicon:
    """Read the tables once per process (0.1 s).

    Raises:
        DependencyError: `lemminflect` is not installed.
    """
    table = _table_path().read_bytes()
    lists = resources.files("dptune.detection").joinpath("word_lists.json").read_bytes()
    readings: dict[str, int] = {}
    proper: dict[str, int] = {}
    for line in gzip.decompress(table).decode().splitlines():
        form, word_class, lemma = line.split(",", 2)
        if form[0].isupper():
            _add_proper(proper, form.lower(), word_class, lemma.lower())
        else:
            readings[form] = readings.get(form, 0) | _BITS_OF_CLASS[word_class]
    for name, words in json.loads(lists)["lists"].items():
        for word in words:
            readings[word] = readings.get(word, 0) | _BITS_OF_LIST[name]
    for word, role in proper.items():
        reading = readings.get(word, 0) | role
        is_also_common = reading & LEXICAL
        readings[word] = (
            reading | NOUN | (PROPER_TOO if is_also_common else PROPER_ONLY)
        )
    return Lexicon(readings=readings, digest=hashlib.sha256(table + lists).hexdigest())


def _add_proper(proper: dict[str, int], form: str, word_class: str, lemma: str) -> None:
    """Note a proper noun, and whether it is a person's or a people's name.

    The lexicon lists `Aarons` but no plural of `Abidjan`, and `Finnish` as an
    adjective.
    """
    proper[form] = proper.get(form, 0) | (PEOPLE if word_class == "adj" else 0)
    for name in lemma.split("/") if lemma != form else ():
        proper[name] = proper.get(name, 0) | PERSONAL


def _table_path() -> Path:
    """Find the inflection table without importing its package."""
    spec = importlib.util.find_spec("lemminflect")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "resources" / "lemma_lu.csv.gz"
        if path.is_file():
            return path
    raise DependencyError(
        "the English lexicon needs the package lemminflect, which is not installed. "
        "Run `pip install lemminflect==0.2.3`, or leave out the recognizer `lexicon`."
    )


@lru_cache(maxsize=1)
def public_words() -> frozenset[str]:
    """Return terms that the lexicon does not know and that are nobody's name.

    Words of medicine, computing, and WordNet, in lower case.
    """
    file = resources.files("dptune.detection").joinpath("public_words.txt.gz")
    return frozenset(gzip.decompress(file.read_bytes()).decode().split())


@lru_cache(maxsize=262_144)
def reading_of(word: str) -> int:
    """Return what a lower-cased word may be; no bit of `LEXICAL` if unknown."""
    reading = load_lexicon().readings.get(word, 0)
    if not reading and "-" in word:
        return _compound_reading(word)
    return reading


def _compound_reading(word: str) -> int:
    """Read `well-known` by its parts; one unknown part makes it unknown."""
    parts = [reading_of(part) for part in word.split("-") if part]
    if not parts or not all(part & KNOWN for part in parts):
        return 0
    content = KNOWN
    for part in parts:
        content |= part & (NOUN | VERB | PROPER_TOO)
    return content
