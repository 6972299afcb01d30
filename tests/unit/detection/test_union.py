"""The union covers what its parts cover, and of other words only the rest of runs."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection.union import unite
from dptune.text import Span
from tests.support.growth import grows_in_proportion

TEXT = "Ann Lee, 12 Elm St. - ann@example.org (555) 01-02!" * 2


@st.composite
def spans(draw):
    start = draw(st.integers(0, len(TEXT) - 1))
    return Span(
        start=start,
        end=draw(st.integers(start + 1, min(len(TEXT), start + 25))),
        entity_type=draw(st.sampled_from(["PERSON", "EMAIL", "ADDRESS", "GPE"])),
        confidence=draw(st.sampled_from([0.5, 0.9, 1.0])),
    )


def covered(found):
    return {i for span in found for i in range(span.start, span.end)}


def keeps_law(function, parts):
    united = function(parts, TEXT)
    ordered = all(a.end <= b.start for a, b in pairwise(united))
    added = covered(united) - covered(parts)
    return (
        ordered
        and covered(united) >= covered(parts)
        and all(goes_on_from(i, covered(parts)) for i in added if TEXT[i].isalnum())
        and not cuts(covered(united))
    )


def goes_on_from(position, marked):
    """Tell whether the run of letters and digits around a position holds a mark."""
    run = next(m for m in re.finditer(r"[A-Za-z0-9]+", TEXT) if position < m.end())
    return not marked.isdisjoint(range(*run.span()))


def cuts(marked):
    """Tell whether a run of letters and digits is marked by half."""
    runs = [set(range(*m.span())) for m in re.finditer(r"[A-Za-z0-9]+", TEXT)]
    return any(run & marked and not run <= marked for run in runs)


@given(st.lists(spans(), max_size=12))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_unite_keeps_coverage_and_is_disjoint_and_sorted(parts):
    assert keeps_law(unite, parts)
    assert unite(parts, TEXT) == unite(list(reversed(parts)), TEXT)


def drop_the_weaker(parts, _text):
    """A broken twin: the usual conflict rule, which loses what sticks out."""
    kept = []
    for span in sorted(parts, key=lambda s: (-s.confidence, s.start)):
        if all(span.end <= k.start or k.end <= span.start for k in kept):
            kept.append(span)
    return tuple(sorted(kept))


def test_unite_law_catches_a_union_that_drops():
    parts = [
        Span(start=0, end=7, entity_type="PERSON", confidence=0.9),
        Span(start=4, end=11, entity_type="ID", confidence=0.5),
    ]
    assert keeps_law(unite, parts)
    assert not keeps_law(drop_the_weaker, parts)


def leave_halves(parts, text):
    """A broken twin: the union as it was, which covers `Lind` of `Linda`."""
    found = sorted({(s.start, s.end) for s in parts})
    return tuple(Span(start=a, end=b, entity_type="ID") for a, b in found)


def test_unite_law_catches_a_union_that_leaves_halves():
    half = [Span(start=0, end=2, entity_type="PERSON")]
    assert keeps_law(unite, half)
    assert not keeps_law(leave_halves, half)


@pytest.mark.parametrize(
    ("text", "start", "end", "whole"),
    [
        ("by Linda1962 x", 3, 8, "Linda1962"),
        ("by Linda\u200bMay x", 3, 8, "Linda\u200bMay"),
        ("by Jose\u0301 x", 3, 6, "Jose\u0301"),
        ("by first_last x", 3, 8, "first_last"),
        ("by d'Arc x", 5, 8, "Arc"),
        ("met van der Berg", 12, 16, "van der Berg"),
        ("avant Dijk", 6, 10, "Dijk"),
        ("ok 王小明说", 3, 5, "王小"),
        ("नमस्ते राम", 7, 8, "राम"),
        ("號13800138000號", 1, 8, "13800138000"),
    ],
)
def test_unite_span_takes_the_whole_run(text, start, end, whole):
    part = Span(start=start, end=end, entity_type="PERSON", confidence=0.5)
    (span,) = unite([part], text)
    assert text[span.start : span.end] == whole


def test_unite_one_long_run_takes_time_in_proportion():
    def merge(count):
        text = "ab" * count
        spans = [
            Span(start=i, end=i + 1, entity_type="ID") for i in range(0, 2 * count, 4)
        ]
        unite(spans, text)

    assert grows_in_proportion(merge, 4_000, slack=6)


def test_unite_overlap_gives_the_range_to_the_more_certain():
    text = "ann@example.org now"
    weak = Span(start=0, end=19, entity_type="ENTITY", confidence=0.5)
    sure = Span(start=0, end=15, entity_type="EMAIL", confidence=1.0)
    assert [(s.start, s.end, s.entity_type) for s in unite([weak, sure], text)] == [
        (0, 15, "EMAIL"),
        (15, 19, "ENTITY"),
    ]


def test_unite_address_that_touches_another_span_stays_apart():
    """Nothing lies between them that could be closed."""
    text = "12 Elm St 94110"
    street = Span(start=0, end=9, entity_type="ADDRESS")
    for start, parts in ((9, 2), (10, 1)):
        code = Span(start=start, end=15, entity_type="ZIP")
        assert len(unite([street, code], text)) == parts


def test_unite_neighbors_stay_apart():
    a = Span(start=0, end=3, entity_type="PERSON")
    b = Span(start=3, end=7, entity_type="ID")
    assert unite([b, a], TEXT) == (a, b)


def test_unite_joins_the_lines_of_an_address():
    text = "12 Elm St.\n Boston, 02134 - Ann"
    parts = [
        Span(start=0, end=10, entity_type="ADDRESS"),
        Span(start=12, end=18, entity_type="GPE"),
        Span(start=20, end=25, entity_type="ZIP"),
        Span(start=28, end=31, entity_type="PERSON"),
    ]
    united = [(text[s.start : s.end], s.entity_type) for s in unite(parts, text)]
    assert united == [("12 Elm St.\n Boston, 02134", "ADDRESS"), ("Ann", "PERSON")]


def test_unite_leaves_known_people_behind_an_address_apart():
    text = "12 Elm St., Ann"
    parts = [
        Span(start=0, end=10, entity_type="ADDRESS", confidence=0.85),
        Span(start=12, end=15, entity_type="PERSON", confidence=0.8),
    ]
    assert unite(parts, text) == tuple(parts)
