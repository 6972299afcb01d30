"""What a field holds, by its name, and whether a value may be the name of a person.

Names of fields are read by their last words, so that `customer_billing_city` is a city.
Where a field may hold something else (`name`, `from`), the value must look like a name,
or stand among fields that are personal.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from dptune.detection import words as w

Value = tuple[int, int, str]
"""Start, end, entity type."""

_TABLE = json.loads(
    (resources.files("dptune.detection.patterns") / "field_names.json").read_text(
        "utf8"
    )
)
_TYPES: dict[str, str] = {
    name: kind for kind, names in _TABLE["types"].items() for name in names.split()
}
_MAYBE_PERSON = frozenset(_TABLE["names_if_it_looks_so"].split())
_MAYBE_PLACE = frozenset(_TABLE["places_if_it_looks_so"].split())
_BEFORE_NAME = frozenset(_TABLE["before_name"].split())
_ENDS = frozenset(
    name[first:]
    for name in ("name", "names", *_TYPES, *_MAYBE_PERSON, *_MAYBE_PLACE)
    for first in range(len(name))
)
"""How the name of a field that tells something may end."""
NO_VALUE = frozenset(_TABLE["no_value"].split())
_PARTS = frozenset(_TABLE["parts_of_name"].split())
SERVICE = frozenset(_TABLE["service_accounts"].split())
NO_SPEAKER = frozenset(_TABLE["speakers"].split())
MAYBE = {"PERSON?": "PERSON", "part": "PERSON", "GPE?": "GPE"}
IN_WORDS = frozenset(
    [
        "PERSON",
        "GPE",
        "NORP",
        "ORG",
        "OCCUPATION",
        "MARITAL_STATUS",
        "ADDRESS",
        "USERNAME",
    ]
)
_ANY = frozenset(["SECRET", "USERNAME", "DATE", "AGE", "EMAIL", "ADDRESS"])

_CAMEL = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")
WORD = re.compile(r"[^\W\d_][\w'’.-]*")
NAME_LIKE = re.compile(
    r"[^\W\d_][^\W\d_'’.-]*(?:['’.-]{1,2}[^\W\d_]+)*\.?(?:,? [^\W"
    r"\d_][^\W\d_'’.-]*(?:['’.-]{1,2}[^\W\d_]+)*\.?){0,4}"
)
_TEMPLATE = re.compile(r"[${<%#*]|\.\.\.|x{3,}")
MOST_WORDS = 4


def kind_of(key: str) -> str | None:
    """Return the type of a field by its name; `?` if it holds other things too.

    >>> kind_of("billingCity"), kind_of("file_name"), kind_of("name")
    ('GPE', None, 'PERSON?')
    """
    words = [part.lower() for part in _CAMEL.findall(key) if not part.isdigit()][-6:]
    if not words or not (words[-1] in _ENDS or words[-1].removesuffix("s") in _ENDS):
        return None
    return _kind_of_words(tuple(words))


@lru_cache(maxsize=65_536)
def _kind_of_words(words: tuple[str, ...]) -> str | None:
    for first in range(len(words)):
        name = "".join(words[first:])
        if name in _TYPES:
            return _TYPES[name]
        if name in {"name", "names"}:
            before = words[first - 1] if first else ""
            if before in _BEFORE_NAME - {"the", "other"}:
                return (
                    "PERSON"
                    if before not in {"my", "your", "his", "her", "their"}
                    else "PERSON?"
                )
            return None if before else "PERSON?"
    last = words[-1] if words[-1] in _MAYBE_PERSON else words[-1].removesuffix("s")
    if "".join(words) in _MAYBE_PERSON or (last in _MAYBE_PERSON and len(words) <= 2):
        return "part" if last in _PARTS else "PERSON?"
    return "GPE?" if words[-1] in _MAYBE_PLACE and len(words) <= 2 else None


@dataclass(frozen=True, kw_only=True)
class Found:
    """A value and what its field says it is."""

    start: int
    end: int
    kind: str


def settle(found: Sequence[Found], text: str) -> Iterator[Value]:
    """Yield the values that are personal; sure fields beside one vouch for it."""
    sure = {f.kind for f in found if f.kind in _TYPES.values()}
    has_company = (
        len(sure - {"USERNAME", "SECRET", "ADDRESS", "LOC"}) > 0
        or len(sure) > 1
        or sum(f.kind == "part" for f in found) > 1
    )
    has_name = any(
        f.kind == "PERSON?" and looks_like_name(text[f.start : f.end]) for f in found
    )
    for value in found:
        kind = MAYBE.get(value.kind, value.kind)
        piece = text[value.start : value.end]
        is_sure = value.kind == kind or has_company
        is_sure |= has_name and _may_be_full_name(piece)
        if _holds(piece, kind, is_sure=is_sure):
            yield value.start, value.end, kind


def _holds(piece: str, kind: str, *, is_sure: bool) -> bool:
    """Tell whether a value may be of a type."""
    lowered = piece.strip().lower()
    if not lowered or lowered in NO_VALUE or _TEMPLATE.match(piece):
        return False
    if kind == "PERSON":
        return may_be_words(piece) if is_sure else looks_like_name(piece)
    if kind == "GPE" and not is_sure:
        return any(w.reading_of(x.lower()) & w.PLACE for x in WORD.findall(piece))
    if kind in IN_WORDS or kind in _ANY:
        return any(map(str.isalnum, piece)) and not (
            kind == "USERNAME" and len(piece) > 64
        )
    return any(map(str.isdigit, piece))


def _may_be_full_name(piece: str) -> bool:
    """Tell whether a value is two or three words that are no grammar."""
    words = piece.lower().split()
    is_name = NAME_LIKE.fullmatch(piece) is not None and 1 < len(words) < MOST_WORDS
    return is_name and not any(map(_is_grammar, words))


def may_be_words(piece: str) -> bool:
    """Tell whether a value consists of words."""
    return (
        len(piece) <= 80
        and any(map(str.isalpha, piece))
        and "/" not in piece.strip("/")
    )


NAMES = w.GIVEN_NAME | w.PERSONAL
NEVER = w.CLOSED | w.AUXILIARY


def _is_grammar(word: str) -> bool:
    """Tell whether a lower-case word is none of a name."""
    return bool(w.reading_of(word) & NEVER) and word not in w.NAMES_TOO


def looks_like_name(piece: str) -> bool:
    """Tell whether a value looks like the name of a person, in any case.

    >>> looks_like_name("rose young"), looks_like_name("build and test")
    (True, False)
    """
    if not NAME_LIKE.fullmatch(piece):
        return False
    words = WORD.findall(piece)
    lowered = [word.lower().rstrip(".") for word in words]
    readings = [w.reading_of(word) for word in lowered]
    if any(
        _is_grammar(word) and not r & (NAMES | w.CONNECTOR)
        for word, r in zip(lowered, readings, strict=True)
    ):
        return False
    if len(words) > 1 and all(word[0].isupper() for word in words):
        return True
    has_name = any(r & NAMES for r in readings) or lowered[0] in w.NAMES_TOO
    if len(words) == 1:
        return has_name
    unknown = sum(not r & w.LEXICAL for r in readings)
    return has_name or unknown > 1 or (unknown == 1 and len(words) == 2)
