"""Pseudonyms: equal for equal values, different for other keys, never a real number."""

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.errors import ConfigError
from dptune.redaction.engine import redact_dataset, redact_text
from dptune.redaction.operators import _MAKERS, Operator, Pseudonyms, Scope, normalized
from dptune.text import Span

pytest.importorskip("faker", reason="needs the extra pseudonyms")

KEY = b"0123456789abcdef"


def invent(value, kind="PERSON", *, key=KEY, unit="u", scope=Scope.UNIT):
    replace = Pseudonyms(key=key, scope=scope).replacement(unit)
    return replace(Span(start=0, end=len(value), entity_type=kind), value)


def test_pseudonym_is_equal_for_equal_values_of_a_unit():
    assert invent("Ann Lee") == invent("Ann Lee")
    assert normalized(invent("ann  lee")) == normalized(invent("Ann Lee"))
    assert invent("Ann Lee") != invent("Bo Diaz")


def test_pseudonym_depends_on_key_and_unit():
    other = invent("Ann Lee", key=KEY[::-1])
    assert len({invent("Ann Lee"), other, invent("Ann Lee", unit="v")}) == 3
    everywhere = {
        invent("Ann Lee", unit=u, scope=Scope.CORPUS) for u in ("u", "v", None)
    }
    assert len(everywhere) == 1


@pytest.mark.parametrize("kind", [*_MAKERS, "PHONE", "ID", "ZIP"])
@pytest.mark.parametrize("value", ["Ann Lee", "4111 1111 1111 1111", "2001-04-05"])
def test_pseudonym_is_never_the_value(kind, value):
    assert normalized(invent(value, kind)) != normalized(value)


def test_pseudonym_shapes():
    assert invent("ann").islower()
    assert invent("ANN LEE").isupper()
    assert " " not in invent("Ann")
    assert invent("(977) 625-2661", "PHONE")[0] == "("
    assert invent("x@y.org", "EMAIL").endswith("@mail.invalid")
    assert invent("10.0.0.1", "IP").startswith("203.0.113.")
    assert invent("123-45-6789", "SSN").startswith("000-")
    assert invent("GB29 NWBK 6016", "IBAN").startswith("XX")
    assert invent(" Ann ")[0] == invent(" Ann ")[-1] == " "


@given(st.integers(0, 10**16 - 1))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_pseudonym_card_never_has_a_valid_checksum(number):
    made = invent(f"{number:016d}", "CREDIT_CARD")
    doubled = [int(d) * (1 + i % 2) for i, d in enumerate(reversed(made))]
    assert sum(d - 9 * (d > 9) for d in doubled) % 10


def test_pseudonyms_short_key_and_missing_unit_are_refused():
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        Pseudonyms(key=b"short")
    with pytest.raises(ConfigError, match="unit_id must be given"):
        invent("Ann", unit=None)
    with pytest.raises(ConfigError, match="pseudonyms must be given"):
        redact_text("Ann", [], Operator.PSEUDONYM)
    assert "0123" not in repr(Pseudonyms(key=KEY))


def test_redact_dataset_is_consistent_within_a_unit():
    span = {"start": 0, "end": 7, "entity_type": "PERSON"}
    corpus = datasets.Dataset.from_dict(
        {
            "text": ["Ann Lee ran", "Ann Lee sat", "Ann Lee hid"],
            "unit_id": ["a", "a", "b"],
            "spans": [[span]] * 3,
        }
    )
    made = redact_dataset(
        corpus, operator=Operator.PSEUDONYM, pseudonyms=Pseudonyms(key=KEY)
    )["text"]
    one, two, three = (text[:-4] for text in made)
    assert one == two != three
    assert "Ann Lee" not in (one, three)
