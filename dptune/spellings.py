"""Known values in the ways that people write them: case, accents, order, separators.

A text is folded to its letters and digits in canonical form, each of which remembers
where it stands. Values are folded likewise, in every variant, and all of them are
looked for at once (Aho and Corasick 1975, by the library `ahocorasick_rs`): the time
grows with the text, not with the number of values. What is found counts only if it
begins and ends where words do, and is broken only where words may be.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from ahocorasick_rs import AhoCorasick

from dptune.letters import is_accent, is_unspaced
from dptune.value_ways import ways_of_value

Offsets = npt.NDArray[np.int64]
_Layout = tuple[tuple[int, str], ...]

MAX_CHARACTERS: Final = 300
"""Longest value; a longer one is a text, not a name or a number."""

_LONGEST_GAP: Final = 3
_LEAST_GLUED: Final = 6
_LEAST_DIGITS: Final = 4
_NAMES: Final = frozenset(["PERSON", "ENTITY"])


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class KnownValue:
    """A value that is personal data, hidden from `repr`, and its type."""

    value: str = field(repr=False)
    entity_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """Where a value stands.

    Args:
        start, end: half-open range of code points.
        entity_type: of the value.
        is_whole: the whole value stands there, not a part of a name.
        is_exact: it is written there as it was given.
    """

    start: int
    end: int
    entity_type: str
    is_whole: bool
    is_exact: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class _Spelling:
    """One way to write a value.

    Args:
        breaks: places of the folded form where a separator may stand; None for any.
        layouts: separators as they were given, whatever their signs.
        capital: counts only where it is written with a capital letter.
    """

    folded: str
    breaks: frozenset[int] | None
    layouts: frozenset[_Layout]
    entity_type: str
    is_whole: bool
    capital: bool
    written: str


@lru_cache(maxsize=1)
def _data() -> Mapping[str, Any]:
    """Read letters that no decomposition takes apart, umlauts, titles, particles."""
    return dict(json.loads(_source("spellings.json")))


def _source(name: str) -> str:
    return resources.files("dptune").joinpath(name).read_text("utf8")


@lru_cache(maxsize=1)
def source_digest() -> str:
    """Digest the code and the data of this module, so that a changed rule shows."""
    names = "spellings.py", "letters.py", "value_ways.py", "spellings.json"
    written = unicodedata.unidata_version + "".join(map(_source, names))
    return hashlib.sha256(written.encode()).hexdigest()


def is_title(word: str) -> bool:
    """Tell words of address (`Mrs`, `Jr`), which name nobody by themselves."""
    return word.casefold() in _data()["titles"]


def is_particle(word: str) -> bool:
    """Tell words in family names (`van`, `de`), which name nobody by themselves."""
    return word.casefold() in _data()["particles"]


class _Folds(dict[str, str]):
    """Canonical form of each character, computed once: empty for what is left out."""

    def __missing__(self, character: str) -> str:
        made = "".join(_fold(part) for part in unicodedata.normalize("NFKD", character))
        self[character] = made
        return made


def _fold(character: str) -> str:
    """Fold one decomposed character."""
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if character.isalnum():
        low = character.casefold()
        return "".join(_data()["odd_letters"].get(c, c) for c in low if c.isalnum())
    is_mark = unicodedata.category(character) in {"Mn", "Mc"}
    return character if is_mark and not is_accent(character) else ""


_FOLDS: Final = _Folds()


def folded(text: str) -> tuple[str, Offsets]:
    """Return letters and digits in canonical form, and the place of each in the text.

    >>> form, places = folded("É-1")
    >>> form, places.tolist()
    ('e1', [0, 2])
    """
    pieces = [_FOLDS[character] for character in text]
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    return "".join(pieces), np.repeat(np.arange(len(pieces)), lengths)


def one_form(value: str) -> str:
    """Return one form for all spellings of a value that are taken for equal.

    Case, separators, invisible signs, Latin accents and Hebrew and Arabic vowel points
    fall; umlauts are two letters. Vowels of other scripts stay. A value of nothing else
    is its own form.

    >>> one_form("O'Brien "), one_form("Zoë"), one_form("Müller"), one_form("-")
    ('obrien', 'zoe', 'mueller', '-')
    """
    written = unicodedata.normalize("NFC", value)
    return folded(_without_umlauts(written))[0] or written


def _never(_word: str) -> bool:
    return False


class Spellings:
    """Finds known values in texts, however they are written.

    Values of one CJK letter, of one letter, and of fewer than four digits are passed
    over: they stand in any text by chance.

    >>> found = Spellings([KnownValue(value="Ann Lee", entity_type="PERSON")])
    >>> [(f.start, f.end) for f in found.find("LEE, ANN and a.lee; Annabel")]
    [(0, 8), (0, 3), (5, 8), (13, 18), (15, 18)]

    Args:
        values: in any order.
        is_ordinary: tells whether a lower-case word is one of the language too; as part
            of a name such a word counts only where it has a capital.
        parts: look for the parts of names too.
    """

    def __init__(
        self,
        values: Iterable[KnownValue],
        *,
        is_ordinary: Callable[[str], bool] = _never,
        parts: bool = True,
    ) -> None:
        known: dict[tuple[str, str], _Spelling] = {}
        for value in sorted(set(values)):
            for made in spellings_of(value, is_ordinary=is_ordinary, parts=parts):
                key = made.folded, made.entity_type
                known[key] = _wider(known[key], made) if key in known else made
        self._known = tuple(known.values())
        self._automaton: Any = None

    def __len__(self) -> int:
        """Return how many spellings are looked for."""
        return len(self._known)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the automaton behind when a worker process gets a copy."""
        return {**self.__dict__, "_automaton": None}

    def find(self, text: str, *, covered: bytes | bytearray = b"") -> list[Found]:
        """Return what stands in a text, in order; hits may overlap.

        Args:
            text: where it is looked for.
            covered: 1 for each character that does not count, else 0: what stands
                among such characters alone is left out.
        """
        if not self._known:
            return []
        if self._automaton is None:
            self._automaton = AhoCorasick([s.folded for s in self._known])
        form, places = folded(text)
        hits = self._automaton.find_matches_as_indexes(form, overlapping=True)
        found = (
            _placed(text, self._known[index], places[low:high])
            for index, low, high in hits
            if not covered
            or covered.find(0, int(places[low]), int(places[high - 1]) + 1) >= 0
        )
        real = {(f.start, f.end, f.entity_type): f for f in found if f is not None}
        return sorted(real.values(), key=lambda f: (f.start, -f.end, f.entity_type))


def _wider(one: _Spelling, other: _Spelling) -> _Spelling:
    """Unite two ways that fold to one form."""
    breaks = None
    if one.breaks is not None and other.breaks is not None:
        breaks = one.breaks | other.breaks
    best = one if one.is_whole or not other.is_whole else other
    return _Spelling(
        folded=one.folded,
        breaks=breaks,
        layouts=one.layouts | other.layouts,
        entity_type=one.entity_type,
        is_whole=best.is_whole,
        capital=one.capital and other.capital,
        written=best.written,
    )


def _placed(text: str, known: _Spelling, places: Offsets) -> Found | None:
    """Return where a hit stands, if it is whole words broken where they may be."""
    start, end = int(places[0]), int(places[-1]) + 1
    while end < len(text) and _is_part(text[end]):
        end += 1
    if not (_begins(text, start, known.folded) and _ends(text, end, known.folded)):
        return None
    gaps = _gaps(text, places)
    open_gaps = {at for at, gap in gaps.items() if not all(map(_is_part, gap))}
    if not (
        _is_well_broken(text[start:end], gaps, open_gaps, known)
        or _layout(gaps) in known.layouts
    ):
        return None
    written = text[start:end]
    glued = known.breaks and not open_gaps  # `jsmith`: nobody takes it for two words
    as_name = any(map(str.isupper, written)) or set("._") & {*written}
    if known.capital and not as_name and not glued:
        return None
    return Found(
        start=start,
        end=end,
        entity_type=known.entity_type,
        is_whole=known.is_whole,
        is_exact=written == known.written,
    )


def _gaps(written: str, places: Offsets) -> dict[int, str]:
    """Return what stands between letters, by its place in the folded form."""
    return {
        int(at) + 1: written[int(places[at]) + 1 : int(places[at + 1])]
        for at in np.flatnonzero(np.diff(places) > 1)
    }


def _layout(gaps: Mapping[int, str]) -> _Layout:
    """Return separators so that a value and a copy of it have the same."""
    return tuple((at, signs) for at, gap in gaps.items() if (signs := _signs(gap)))


@lru_cache(maxsize=4096)
def _signs(gap: str) -> str:
    """Return a separator in canonical form, a few blanks as one."""
    plain = unicodedata.normalize("NFKC", gap)
    visible = "".join(c for c in plain if not _is_part(c))
    return re.sub(rf"\s{{1,{_LONGEST_GAP}}}", " ", visible)


def _is_well_broken(
    written: str, gaps: Mapping[int, str], open_gaps: set[int], known: _Spelling
) -> bool:
    """Whether a value is broken where it may be, by signs that may stand there."""
    for at, gap in gaps.items():
        if not _may_part(gap, known):
            own = at, _signs(gap)
            if not any(own in layout for layout in known.layouts):
                return False
    if known.breaks is None:
        return not open_gaps or len(known.folded) >= _LEAST_GLUED
    if open_gaps or not known.breaks:
        return open_gaps <= known.breaks
    return _is_glued(written, known.folded)


def _is_glued(written: str, form: str) -> bool:
    """Whether words without a separator are still a name: `annlee`, `AlEx`."""
    return (
        len(form) >= _LEAST_GLUED
        or any(map(str.isupper, written[1:]))
        or is_unspaced(form[0])
    )


def _may_part(gap: str, known: _Spelling) -> bool:
    """Whether the characters between two letters of a value may stand there."""
    signs = [c for c in gap if not _is_part(c)]
    if known.breaks is None:  # numbers: "1, 2" is a list
        return len(signs) <= _LONGEST_GAP and not set(signs) & set(",;!?<>{}[]")
    return len(signs) <= _LONGEST_GAP and not set(signs) & set("!?;<>{}[]")


def _is_part(character: str) -> bool:
    """Whether a character belongs to the letter before: accents, invisible signs."""
    is_mark = unicodedata.category(character) in {"Mn", "Mc", "Me", "Cf"}
    return is_mark and not _FOLDS[character]


def _begins(text: str, start: int, form: str) -> bool:
    before = text[start - 1] if start else " "
    return is_border(before, text[start]) or _turns(before, text[start], form)


def _ends(text: str, end: int, form: str) -> bool:
    after = text[end] if end < len(text) else " "
    return is_border(text[end - 1], after) or _turns(text[end - 1], after, form)


def is_border(one: str, other: str) -> bool:
    """Whether a word may begin between two characters.

    Scripts without blanks have a border everywhere.
    """
    if not _FOLDS[one] or not _FOLDS[other]:
        return True
    return is_unspaced(one) or is_unspaced(other)


def _turns(one: str, other: str, form: str) -> bool:
    """Whether a long name ends where digits begin, as in user names."""
    turns = one.isdecimal() != other.isdecimal()
    return turns and len(form) >= _LEAST_GLUED and not any(map(str.isdecimal, form))


@lru_cache(maxsize=16_384)
def spellings_of(
    known: KnownValue, *, is_ordinary: Callable[[str], bool], parts: bool
) -> tuple[_Spelling, ...]:
    """Return every way to write a value that is looked for.

    They are kept, since many records hold the same values.

    Args:
        known: a value; that of a name gives orders, initials and parts.
        is_ordinary: see `Spellings`.
        parts: see `Spellings`.
    """
    value = " ".join(known.value.split())
    is_number = sum(map(str.isdecimal, value)) >= _LEAST_DIGITS
    if known.entity_type in _NAMES and not is_number:
        ways = _ways_of_name(value, is_ordinary=is_ordinary, parts=parts)
    else:
        ways = ((way, True, False) for way in ways_of_value(value, known.entity_type))
    made: list[_Spelling] = []
    for way, is_whole, capital in ways:
        for written in dict.fromkeys((way, _without_umlauts(way))):
            form, places = folded(written)
            if _says_something(form):
                gaps = _gaps(written, places)
                layouts = {_layout(gaps)}
                if way == value != known.value and written == way:  # its own blanks
                    layouts.add(_layout(_gaps(known.value, folded(known.value)[1])))
                spelling = _Spelling(
                    folded=form,
                    breaks=_breaks(form, gaps, is_number=is_number),
                    layouts=frozenset(layouts),
                    entity_type=known.entity_type,
                    is_whole=is_whole,
                    capital=capital,
                    written=known.value if is_whole else written,
                )
                made.append(spelling)
    return tuple(made)


def _without_umlauts(written: str) -> str:
    """Write umlauts with two letters, as passports do."""
    umlauts: Mapping[str, str] = _data()["umlauts"]
    return "".join(umlauts.get(character, character) for character in written)


def _breaks(
    form: str, steps: Iterable[int], *, is_number: bool
) -> frozenset[int] | None:
    """Return where a separator may stand; anywhere in scripts that have no blanks."""
    if is_number:
        return None
    if is_unspaced(form[0]):
        return frozenset(range(len(form)))
    return frozenset(steps)


def _says_something(form: str) -> bool:
    digits = sum(map(str.isdecimal, form))
    if digits == len(form):
        return digits >= _LEAST_DIGITS
    return len(form) >= 2


def _ways_of_name(
    value: str, *, is_ordinary: Callable[[str], bool], parts: bool
) -> Iterator[tuple[str, bool, bool]]:
    """Yield ways to write a name: whether it is whole, and needs a capital."""
    yield value, True, False
    words = _words_of_name(value)
    if not words:
        return
    given, family = words[:1], words[1:]
    while len(family) > 1 and not is_particle(family[0]):
        given.append(family.pop(0))
    for way in _orders(given, family):
        yield way, True, False
    if given and family:
        first, last = given[0], " ".join(family)
        initials = " ".join(word[0] for word in given)
        for short in dict.fromkeys((first[0], initials)):
            yield f"{short} {last}", False, True
            yield f"{last} {short}", False, True
        if len(given) > 1:
            middle = " ".join(word[0] for word in given[1:])
            yield f"{first} {middle} {last}", True, False
    if parts:
        if len(family) > 1:  # with its particles
            yield " ".join(family), False, False
        yield from _parts_of_name([*given, *family], is_ordinary)


def _orders(given: list[str], family: list[str]) -> Iterator[str]:
    """Yield whole names: as called, as listed, without names in the middle."""
    if family:
        last = " ".join(family)
        for first in dict.fromkeys((" ".join(given), given[0])):
            yield f"{first} {last}"
            yield f"{last} {first}"
        if len(family) > 1:  # without particles
            yield f"{given[0]} {family[-1]}"
    else:
        yield " ".join(given)


def _parts_of_name(
    words: Iterable[str], is_ordinary: Callable[[str], bool]
) -> Iterator[tuple[str, bool, bool]]:
    """Yield the parts of a name that name somebody by themselves."""
    for index, word in enumerate(words):
        if (index and is_particle(word)) or is_title(word):
            continue
        pieces = [p for p in word.replace("’", "-").replace("'", "-").split("-") if p]
        for part in dict.fromkeys((word, *(p for p in pieces if len(p) >= 3))):
            short = len(part) < 3 and part.isascii()
            if not (short and is_ordinary(part.casefold())):
                yield part, False, short or is_ordinary(part.casefold())


@lru_cache(maxsize=4096)
def _clean(word: str) -> str:
    return word.strip('.,;:()"“”')


def _words_of_name(value: str) -> list[str]:
    """Return the words of a name as it is called, without titles."""
    family, comma, given = value.partition(",")
    is_listed = bool(comma) and not is_title(given.strip(" ."))
    called = f"{given} {family}" if is_listed else value
    words = [_clean(word) for word in called.split()]
    return [word for word in words if word and not is_title(word)]
