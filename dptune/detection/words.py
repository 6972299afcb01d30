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
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
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

_BITS_OF_LIST = {
    "pronoun": CLOSED | KNOWN | PRONOUN,
    "auxiliary": CLOSED | KNOWN,
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
    "label": LABEL,
    "month_or_day": MONTH_OR_DAY,
    "acronym": ACRONYM,
    "main_verb": MAIN_VERB,
}
_BITS_OF_CLASS = {
    "noun": KNOWN | NOUN,
    "verb": KNOWN | VERB,
    "adj": KNOWN,
    "adv": KNOWN,
    "aux": KNOWN,
}


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
    proper: set[str] = set()
    for line in gzip.decompress(table).decode().splitlines():
        form, word_class, _ = line.split(",", 2)
        if form[0].isupper():
            proper.add(form.lower())
        else:
            readings[form] = readings.get(form, 0) | _BITS_OF_CLASS[word_class]
    for name, words in json.loads(lists)["lists"].items():
        for word in words:
            readings[word] = readings.get(word, 0) | _BITS_OF_LIST[name]
    for word in proper:
        reading = readings.get(word, 0)
        is_also_common = reading & LEXICAL
        readings[word] = (
            reading | NOUN | (PROPER_TOO if is_also_common else PROPER_ONLY)
        )
    return Lexicon(readings=readings, digest=hashlib.sha256(table + lists).hexdigest())


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
