"""The union covers what its parts cover, and nothing more that could be read."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection.union import unite
from dptune.text import Span

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
        and not any(TEXT[i].isalnum() for i in added)
    )


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
        Span(start=0, end=5, entity_type="PERSON", confidence=0.9),
        Span(start=3, end=9, entity_type="ID", confidence=0.5),
    ]
    assert keeps_law(unite, parts)
    assert not keeps_law(drop_the_weaker, parts)


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
    b = Span(start=3, end=5, entity_type="ID")
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
