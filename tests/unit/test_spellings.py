"""Known values are found however they are written, and nothing else is."""

import dataclasses
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune import spellings
from dptune.spellings import KnownValue, Spellings, folded

TABLE = json.loads(
    (Path(__file__).parents[1] / "tables" / "spellings.json").read_text("utf8")
)


def cases(key):
    return [(row["value"], row["type"], text) for row in TABLE for text in row[key]]


def found(value, kind, text, **how):
    return Spellings([KnownValue(value=value, entity_type=kind)], **how).find(text)


def letters(text, spans):
    """Return the letters and digits that spans cover."""
    inside = {i for span in spans for i in range(span.start, span.end)}
    return [i for i, c in enumerate(text) if c.isalnum() and i not in inside]


@pytest.mark.parametrize(("value", "kind", "text"), cases("finds"))
def test_known_value_is_found_in_other_spellings(value, kind, text):
    assert found(value, kind, text)
    assert found(value, kind, f"to {text}, then")


@pytest.mark.parametrize(("value", "kind", "text"), cases("leaves"))
def test_near_miss_of_a_known_value_stays(value, kind, text):
    assert found(value, kind, text) == []


def test_table_of_spellings_is_large_enough():
    assert len(cases("finds")) >= 60
    assert len(cases("leaves")) >= 60


def test_ordinary_words_need_a_capital_as_parts_of_a_name():
    def ordinary(word):
        return word in {"will", "young"}

    how = {"is_ordinary": ordinary}
    assert found("Will Young", "PERSON", "will young", **how)
    assert not found("Will Young", "PERSON", "it will, they are young", **how)
    assert len(found("Will Young", "PERSON", "Will came; YOUNG too", **how)) == 2
    assert not found("Will Young", "PERSON", "Will", parts=False)


def test_known_values_hide_in_repr_and_survive_a_copy_for_another_process():
    value = KnownValue(value="Ann Lee", entity_type="PERSON")
    assert "Ann" not in repr(value)
    finder = Spellings([value])
    before = finder.find("ann lee")
    assert pickle.loads(pickle.dumps(finder)).find("ann lee") == before  # noqa: S301


@given(st.text(max_size=60), st.text("aé \u03011-.Åß王 ", min_size=1, max_size=12))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_hits_lie_inside_of_any_text_and_values_find_themselves(text, value):
    for kind in ("PERSON", "ID"):
        finder = Spellings([KnownValue(value=value, entity_type=kind)])
        for hit in finder.find(f"{text} {value} {text}"):
            assert 0 <= hit.start < hit.end <= 2 * len(text) + len(value) + 2
    form, places = folded(text)
    assert len(form) == len(places)
    assert np.all(np.diff(places) >= 0)


def test_twin_without_word_borders_marks_halves_of_words(monkeypatch):
    monkeypatch.setattr(spellings, "is_border", lambda _one, _other: True)
    wrong = [text for value, kind, text in cases("leaves") if found(value, kind, text)]
    assert len(wrong) > 20


def test_twin_that_folds_nothing_misses_other_spellings(monkeypatch):
    monkeypatch.setattr(spellings, "folded", lambda text: (text, np.arange(len(text))))
    missed = [1 for value, kind, text in cases("finds") if not found(value, kind, text)]
    assert len(missed) > 30


def test_time_grows_with_the_text_not_with_its_square():
    finder = Spellings(
        [KnownValue(value=f"Na{i:04x} Fa", entity_type="X") for i in range(2000)]
    )
    hostile = ("na00" * 3000, "a" * 12_000, "\u0301" * 12_000, "na 0000 fa " * 1000)
    for text in hostile:
        assert all(hit.end <= len(text) for hit in finder.find(text))


@pytest.mark.parametrize("size", range(8))
def test_find_leaves_out_only_what_is_covered_whole(size):
    finder = Spellings([KnownValue(value="Ann Lee", entity_type="PERSON")])
    text = "Ann Lee, Ann Lee"
    hits = finder.find(text)
    covered = b"\1" * size + bytes(len(text) - size)
    left = [hit for hit in hits if hit.end > size]
    assert finder.find(text, covered=covered) == left
    assert len(left) == len(hits) - (size >= 3) - 2 * (size >= 7)


AS_GIVEN = (
    *(("ACCOUNT_ID", v) for v in ("11,345,678", "12-34", "4711;22", "1.2.3.4")),
    *(("ID", v) for v in ("KX;4711;QB", "[4711-22]/Q", "ref<90210>z", "QZ....1234")),
    ("ADDRESS", "742 Evergreen Terrace, Springfield, IL 62704"),
    ("ADDRESS", "Flat 3 - - 1204 Rowan"),
    ("ADDRESS", "Unit 7        Rowan Court"),
    ("DATE", "March 3, 1985"),
    *(("ENTITY", v) for v in ("Yahoo! Holdings", "Guess? Inc", "Müller! Söhne")),
    *(("PERSON", v) for v in ("P!nk", "Ann {Annie} Lee", "Lee; Ann", "Moore ??? Ann")),
    *(("PASSWORD", v) for v in ("correct horse, battery 2024", "hunter2!Zq;7")),
)


@pytest.mark.parametrize(("kind", "value"), AS_GIVEN)
def test_value_is_found_as_it_was_given_whatever_its_signs(kind, value):
    finder = Spellings([KnownValue(value=value, entity_type=kind)])
    for text in (value, value.upper(), value.lower(), value.replace(" ", "\n")):
        whole = f"We write about {text} as agreed."
        covering = [h for h in finder.find(whole) if h.is_whole]
        assert letters(text, [_moved(h, -15) for h in covering]) == []
    if value[0].isalnum():
        assert any(h.is_exact for h in finder.find(f"({value})"))


def _moved(hit, by):
    return dataclasses.replace(hit, start=hit.start + by, end=hit.end + by)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("ACCOUNT_ID", "11,345,678", "11, 345, 678"),  # a list
        ("ACCOUNT_ID", "11,345,678", "11;345;678"),
        ("ACCOUNT_ID", "11 345 678", "11,345,678"),
        ("ACCOUNT_ID", "12-34", "12.34"),
        ("ACCOUNT_ID", "12-34", "112-34"),
        ("ORG", "Guess? Inc", "Guess! Inc"),
        ("ORG", "Blue Harbor", "blue? Harbor"),
        ("ORG", "Blue Harbor", "blue     Harbor"),
        ("PERSON", "P!nk", "pnk"),
    ],
)
def test_signs_of_one_value_do_not_count_for_another(kind, value, text):
    assert found(value, kind, text) == []


def test_values_of_one_form_keep_the_signs_of_each():
    values = ("11,345,678", "11;345;678")
    finder = Spellings([KnownValue(value=v, entity_type="ID") for v in values])
    assert all(finder.find(f"it is {value} here") for value in values)
    assert finder.find("it is 11!345!678 here") == []


def test_twin_without_own_separators_misses_what_stands_there_verbatim(monkeypatch):
    ways = spellings.spellings_of

    def without(known, **how):
        none = frozenset()
        return [dataclasses.replace(w, layouts=none) for w in ways(known, **how)]

    monkeypatch.setattr(spellings, "spellings_of", without)
    missed = [value for kind, value in AS_GIVEN if not found(value, kind, value)]
    assert len(missed) >= 12
