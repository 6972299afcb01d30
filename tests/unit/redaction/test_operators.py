"""Operators by entity type: what each writes, and what it reads off the secret."""

import re

import datasets
import pytest
from pydantic import ValidationError

from dptune.errors import ConfigError
from dptune.redaction import pseudonyms
from dptune.redaction.engine import redact_dataset, redact_text, replacement
from dptune.redaction.operators import (
    Operator,
    OperatorSettings,
    RedactionSettings,
    operators_name,
)
from dptune.redaction.pseudonyms import Pseudonyms, Scope, decrypt_text
from dptune.text import Span

KEYS = Pseudonyms(key=b"0123456789abcdef", encryption_key=b"e" * 32)
TEXT = "Ann Lee paid 4111 1111 1111 1234 on 2020-01-10 to Acme, ann@b.org."
TYPES = {"PERSON": (0, 7), "CREDIT_CARD": (13, 32), "DATE": (36, 46), "ORG": (50, 54)}
SPANS = [Span(start=a, end=b, entity_type=k) for k, (a, b) in TYPES.items()]


def rules(**by_type):
    return RedactionSettings.model_validate({"operators": by_type}).operators


def test_operators_by_type_write_what_each_says():
    by_type = rules(
        PERSON="typed", CREDIT_CARD="partial", ORG="keep", DATE={"operator": "delete"}
    )
    made = redact_text(TEXT, SPANS, Operator.MASK, by_type=by_type).text
    assert made == "<PERSON> paid **** **** **** 1234 on  to Acme, ann@b.org."
    email = Span(start=56, end=65, entity_type="EMAIL")
    assert redact_text(TEXT, [email], Operator.MASK, by_type=by_type).text.endswith(
        ", <mask>."
    )


PARTIAL = [
    ("4111 1111 1111 1234", {}, "**** **** **** 1234"),
    ("4111-1111-1111-1234", {"keep_first": 4}, "4111-****-****-1234"),
    ("1234", {}, "**34"),
    ("123", {}, "**3"),
    ("12", {}, "*2"),
    ("1", {}, "*"),
    ("abc", {"keep_last": 0, "keep_first": 1}, "a**"),
    ("+44 20 7946 0958", {"character": "#"}, "+## ## #### 0958"),
    ("ann.lee@b.org", {"keep_first": 1, "keep_last": 0}, "a**.***@*.***"),
    ("José", {"keep_last": 0}, "****"),
    ("Jose\u0301", {"keep_last": 1}, "****\u0301"),
    ("--", {}, "--"),
    ("e\u0301e\u0301", {"keep_last": 4}, "**e\u0301"),
]


@pytest.mark.parametrize(("value", "how", "wanted"), PARTIAL)
def test_partial_keeps_the_ends_and_never_more_than_half(value, how, wanted):
    rule = replacement(OperatorSettings(operator="partial", **how))
    assert rule(Span(start=0, end=1, entity_type="ID"), value) == wanted


def write(operator, value, *, kind="ID", unit="u", keys=KEYS):
    span = Span(start=0, end=len(value), entity_type=kind)
    return keys.replacement(unit, operator=operator)(span, value)


@pytest.mark.parametrize("operator", [Operator.HASH, Operator.ENCRYPT])
def test_hash_and_cipher_are_equal_for_equal_values_of_a_unit_and_type(operator):
    one = write(operator, "4471")
    assert one == write(operator, "4471")
    assert one.startswith("<ID:")
    assert "4471" not in one
    others = [
        write(operator, "4472"),
        write(operator, "4471", kind="SSN"),
        write(operator, "4471", unit="v"),
        write(
            operator,
            "4471",
            keys=Pseudonyms(key=b"f" * 16, encryption_key=b"g" * 16),
        ),
    ]
    assert len({one, *others}) == 5
    everywhere = Pseudonyms(key=KEYS.key, scope=Scope.CORPUS, encryption_key=b"e" * 32)
    assert write(operator, "4471", keys=everywhere, unit="a") == write(
        operator, "4471", keys=everywhere, unit=None
    )


def test_hash_folds_spelling_and_has_64_bits():
    assert write(Operator.HASH, "Ann  Lee") == write(Operator.HASH, "ann lee")
    assert len(write(Operator.HASH, "x")) == len("<ID:>") + 16


@pytest.mark.parametrize(
    "value", ["Ann Lee", "é", "王小明", "😀 ", "a" * 300, "\u0301", "<mask>", "\ud800"]
)
def test_encrypted_values_come_back_exactly(value):
    made = write(Operator.ENCRYPT, value.strip() or value)
    text = f"to {made}, and {made}!"
    back = decrypt_text(text, b"e" * 32)
    assert back.text == f"to {value.strip() or value}, and {value.strip() or value}!"
    assert (back.num_read, back.num_failed) == (2, 0)
    assert repr(back) == "Decrypted(num_read=2, num_failed=0)"


def test_cipher_of_another_key_or_altered_stays_and_is_counted():
    made = write(Operator.ENCRYPT, "Ann Lee", kind="PERSON")
    flipped = made[:20] + ("A" if made[20] != "A" else "B") + made[21:]
    moved = made.replace("PERSON", "ORG")
    for text, key in ((made, b"f" * 32), (flipped, b"e" * 32), (moved, b"e" * 32)):
        back = decrypt_text(text, key)
        assert (back.text, back.num_read, back.num_failed) == (text, 0, 1)
    broken = (f"{made[:30]}{sign}{made[30:]}" for sign in "\n!é=")
    for text in (
        made[:-1],
        made[:30],
        *broken,
        "<ID:enc:>",
        "<ID:enc:!!> <x>",
        "<ID:enc:é>",
    ):
        back = decrypt_text(text, b"e" * 32)
        assert (back.text, back.num_read, back.num_failed) == (text, 0, 1)
    assert decrypt_text("<x> enc: <enc> :enc:", b"e" * 32).num_failed == 0


TYPES_READ = ["A", "A" + "_9" * 20, "badge", "BADGE-X", "X" * 99, "Über", "a:enc:b", ""]


@pytest.mark.parametrize("kind", TYPES_READ)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 5_970, 6_000, 20_000])
def test_encrypted_values_of_any_length_and_type_come_back(kind, length):
    value = ("Ann Lee é王😀\ud800<" * length)[:length].strip()
    made = write(Operator.ENCRYPT, value, kind=kind)
    back = decrypt_text(f"{made}, {made}", b"e" * 32)
    assert (back.text, back.num_read, back.num_failed) == (f"{value}, {value}", 2, 0)


def test_encrypted_values_twin_that_reads_short_ones_only_is_caught(monkeypatch):
    """The twin is the pattern of before: a long cipher was not even seen."""
    pattern = re.compile(r"<([A-Z][A-Z0-9_]{0,40}):enc:([A-Za-z0-9_-]{32,8000})(>)")
    monkeypatch.setattr(pseudonyms, "_ENCRYPTED", pattern)
    for kind, length in (("A", 6_000), ("badge", 1)):
        with pytest.raises(AssertionError):
            test_encrypted_values_of_any_length_and_type_come_back(kind, length)


@pytest.mark.parametrize("kind", ["A<B", "A>"])
def test_encrypted_type_that_could_not_be_read_is_refused(kind):
    with pytest.raises(ConfigError, match="entity_type must have no <"):
        write(Operator.ENCRYPT, "Ann", kind=kind)


def test_length_of_a_cipher_tells_the_length_roughly_only():
    lengths = {len(write(Operator.ENCRYPT, "a" * n)) for n in range(1, 17)}
    assert len(lengths) == 1
    assert len(write(Operator.ENCRYPT, "a" * 17)) not in lengths


def test_operator_without_its_key_is_refused():
    with pytest.raises(ConfigError, match="encryption_key must be given"):
        Pseudonyms(key=bytes(16)).replacement("u", operator=Operator.ENCRYPT)
    for operator in (Operator.HASH, Operator.SHIFT_DATES):
        with pytest.raises(ConfigError, match="pseudonyms must be given"):
            replacement(operator)
        with pytest.raises(ConfigError, match="unit_id must be given"):
            KEYS.replacement(None, operator=operator)
    with pytest.raises(ConfigError, match="encryption_key must have at least 16"):
        Pseudonyms(key=bytes(16), encryption_key=b"short")
    assert "eeee" not in repr(KEYS)


WRONG = [
    {"PERSON": "burn"},
    {"person": "mask"},
    {"PERSON": {"keep_last": 4}},
    {"PERSON": {"operator": "mask", "keep_last": 3}},
    {"PERSON": {"operator": "partial", "keep_last": 99}},
    {"PERSON": {"operator": "partial", "character": "ab"}},
    {"PERSON": {"operator": "partial", "character": "1"}},
    {"PERSON": {"operator": "shift_dates", "max_days": 0}},
    {"PERSON": {"operator": "hash", "max_days": 3}},
]


@pytest.mark.parametrize("by_type", WRONG)
def test_operators_that_say_nothing_usable_are_refused(by_type):
    with pytest.raises(ValidationError):
        rules(**by_type)


def test_operators_by_type_survive_being_written_out():
    """A run is handed its configuration as plain values, with every default in it."""
    written = {
        "PERSON": "pseudonym",
        "ORG": "keep",
        "DATE": {"operator": "shift_dates", "max_days": 9},
        "ID": {"operator": "partial", "keep_last": 2},
    }
    one = RedactionSettings.model_validate({"operators": written})
    assert RedactionSettings.model_validate(one.model_dump(mode="json")) == one


def test_name_of_a_redaction_lists_every_operator():
    assert operators_name(Operator.MASK, rules(PERSON="mask")) == "mask"
    assert operators_name(Operator.MASK, rules(PERSON="delete")) == "delete+mask"
    both = RedactionSettings.model_validate(
        {"operators": {"ORG": "keep", "PERSON": "hash"}}
    )
    assert both.name == "hash+keep+mask"
    assert both.kept == {"ORG"}


def test_masks_join_masks_and_nothing_else():
    text = "Ann Lee 2020"
    spans = [
        Span(start=0, end=3, entity_type="PERSON"),
        Span(start=4, end=7, entity_type="PERSON"),
        Span(start=8, end=12, entity_type="DATE"),
    ]
    typed = redact_text(text, spans, Operator.MASK, by_type=rules(DATE="typed")).text
    assert typed == "<mask> <DATE>"
    first = redact_text(text, spans, Operator.MASK, by_type=rules(PERSON="typed")).text
    assert first == "<PERSON> <PERSON> <mask>"


def test_redact_dataset_shifts_every_unit_by_its_own_days():
    row = [{"start": 0, "end": 10, "entity_type": "DATE"}]
    corpus = datasets.Dataset.from_dict(
        {
            "text": ["2020-01-10 a", "2020-01-10 b", "2020-01-10 c"],
            "unit_id": ["u", "u", "v"],
            "spans": [row] * 3,
        }
    )
    made = redact_dataset(
        corpus,
        operator=Operator.MASK,
        by_type=rules(DATE="shift_dates"),
        pseudonyms=KEYS,
    )["text"]
    one, two, three = (text[:10] for text in made)
    assert one == two != three
