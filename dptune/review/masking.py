"""Sentences with placeholders in place of what was marked, and the way back."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dptune.review.sample import Excerpt, Mark

Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Masked:
    """A sentence in which every mark is a placeholder such as `[PERSON_1]`.

    Args:
        text: hidden from `repr`; no code point of a mark is in it.
        placeholders: range in `text` and the range that it stands for.
    """

    text: str = field(repr=False)
    placeholders: tuple[tuple[Range, Range], ...]


def masked(excerpt: Excerpt) -> Masked:
    """Replace the marks of a sentence."""
    text = excerpt.text
    pieces: list[str] = []
    places: list[tuple[Range, Range]] = []
    position = length = 0
    for number, mark in enumerate(excerpt.sentence.marks, 1):
        pieces.append(text[position : mark.start])
        length += mark.start - position
        placeholder = _placeholder(mark, number)
        pieces.append(placeholder)
        new = (length, length + len(placeholder))
        places.append((new, (mark.start, mark.end)))
        length += len(placeholder)
        position = mark.end
    pieces.append(text[position:])
    return Masked(text="".join(pieces), placeholders=tuple(places))


def placeholders_of(marks: Sequence[Mark]) -> tuple[tuple[Range, Range], ...]:
    """Say where placeholders stand, from the marks alone."""
    places = []
    shift = 0
    for number, mark in enumerate(marks, 1):
        size = len(_placeholder(mark, number))
        start = mark.start + shift
        places.append(((start, start + size), (mark.start, mark.end)))
        shift += size - (mark.end - mark.start)
    return tuple(places)


def to_original(place: Range, marks: Sequence[Mark]) -> Range:
    """Carry a range of the masked sentence back to the original one.

    An end inside a placeholder moves to that end of the mark.
    """
    start, end = place
    shift_start = shift_end = 0
    for (low, high), (old_low, old_high) in placeholders_of(marks):
        if low < start < high:
            return to_original((low, max(end, high)), marks)
        if low < end < high:
            return to_original((start, high), marks)
        growth = (high - low) - (old_high - old_low)
        shift_start += growth if high <= start else 0
        shift_end += growth if high <= end else 0
    return start - shift_start, end - shift_end


def _placeholder(mark: Mark, number: int) -> str:
    return f"[{mark.entity_type}_{number}]"
