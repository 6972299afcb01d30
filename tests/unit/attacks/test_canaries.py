"""Drawing, planting, counting canaries; the settings."""

import random
import unicodedata

import pytest
from datasets import Dataset, List, Value
from pydantic import ValidationError

from dptune.attacks.canaries import (
    CanarySet,
    CanarySpec,
    canary_ids,
    draw_canaries,
)
from dptune.attacks.planting import (
    apply_setting,
    canary_rows,
    plant,
    plant_assumes,
    planted_count,
)
from dptune.errors import ConfigError, DataError
from dptune.redaction.engine import redact_dataset
from dptune.redaction.operators import Operator


def spec_of(**changes):
    return CanarySpec(**{"num_planted": 4, "num_held_out": 3, **changes})


def corpus(**columns):
    base = {
        "id": ["a", "b"],
        "text": ["first", "my access code is unknown"],
        "unit_id": ["u", "v"],
        "split": ["train", "test"],
    }
    return Dataset.from_dict({**base, **columns})


def test_draw_canaries_are_distinct_and_of_the_law():
    canaries = draw_canaries(spec_of(length=1, num_planted=7, num_held_out=3))
    drawn = canaries.planted + canaries.held_out
    assert sorted(drawn) == [str(digit) for digit in range(10)]
    large = draw_canaries(spec_of(alphabet="alphanumeric", length=32))
    assert all(len(secret) == 32 for secret in large.planted)


def test_draw_canaries_seeded_is_repeatable_and_secure_is_not():
    spec = spec_of(length=12)
    assert draw_canaries(spec, seed=1) == draw_canaries(spec, seed=1)
    assert draw_canaries(spec, seed=1) != draw_canaries(spec, seed=2)
    assert draw_canaries(spec) != draw_canaries(spec)


def test_draw_canaries_unseeded_uses_the_secure_source(monkeypatch):
    class Refused(random.SystemRandom):
        def __init__(self):
            raise RuntimeError("secure source was asked")

    monkeypatch.setattr("dptune.attacks.canaries.secrets.SystemRandom", Refused)
    with pytest.raises(RuntimeError, match="secure source"):
        draw_canaries(spec_of())


def test_canary_set_shows_no_secret():
    canaries = draw_canaries(spec_of())
    secrets = canaries.planted + canaries.held_out
    for shown in (repr(canaries), str(canaries), canaries.digest):
        assert not any(secret in shown for secret in secrets)
    assert CanarySet.restricted
    with pytest.raises(ValidationError) as caught:
        CanarySet(spec=spec_of(), planted=secrets, held_out=(), nonce="")
    assert not any(secret in str(caught.value) for secret in secrets)


def test_canary_set_survives_json():
    canaries = draw_canaries(spec_of(), seed=0)
    again = CanarySet.model_validate_json(canaries.model_dump_json())
    assert again == canaries
    assert again.digest == canaries.digest


def test_canary_digest_commits_to_secrets_and_nonce():
    canaries = draw_canaries(spec_of(), seed=0)
    other = canaries.model_copy(update={"nonce": "0"})
    swapped = canaries.model_copy(update={"planted": canaries.planted[::-1]})
    assert len({canaries.digest, other.digest, swapped.digest}) == 3


@pytest.mark.parametrize(
    "changes",
    [
        {"template": "no place"},
        {"template": "{secret} {secret}"},
        {"length": 0},
        {"insertions": 0},
        {"length": 1, "num_planted": 8},
        {"setting": "sometimes"},
        {"setting": "partly_missed"},
        {"setting": "missed", "recall": 0.4},
        {"setting": "partly_missed", "recall": 1.1},
        {"unknown": 1},
    ],
)
def test_canary_spec_refuses(changes):
    with pytest.raises(ValidationError):
        spec_of(**changes)


def test_canary_index_and_secret_are_inverse():
    spec = spec_of(length=3, alphabet="alphanumeric")
    for index in (0, 1, 35, 36, spec.space_size - 1):
        assert spec.index_of(spec.secret_at(index)) == index
    with pytest.raises(ConfigError):
        spec.index_of("12")


def test_plant_appends_each_copy_as_a_unit_of_its_own():
    canaries = draw_canaries(spec_of(insertions=2), seed=0)
    planted = plant(corpus(), canaries)
    assert len(planted) == 2 + 8
    new = planted.select(range(2, 10))
    assert list(new["id"])[:3] == ["canary-0-0", "canary-0-1", "canary-1-0"]
    assert list(new["unit_id"]) == list(new["id"]) == list(canary_ids(canaries))
    assert set(new["split"]) == {"train"}
    assert new["text"][0] == new["text"][1] != new["text"][2]
    assert planted_count(planted["text"], canaries) == canaries.num_expected == 8


def test_plant_fills_other_columns_with_none():
    planted = plant(corpus(label=[1, 2]), draw_canaries(spec_of(), seed=0))
    assert list(planted["label"])[:3] == [1, 2, None]


def test_plant_nothing_changes_nothing():
    canaries = draw_canaries(spec_of(num_planted=0), seed=0)
    assert plant(corpus(), canaries).to_dict() == corpus().to_dict()


def test_plant_twice_raises():
    canaries = draw_canaries(spec_of(), seed=0)
    with pytest.raises(DataError, match="canary ids"):
        plant(plant(corpus(), canaries), canaries)


def test_plant_without_a_column_raises():
    with pytest.raises(DataError, match="unit_id"):
        plant(corpus().remove_columns("unit_id"), draw_canaries(spec_of(), seed=0))


def test_planted_count_sees_lost_redacted_and_repeated_records():
    canaries = draw_canaries(spec_of(), seed=0)
    texts = [canaries.spec.record(secret) for secret in canaries.planted]
    assert planted_count(texts, canaries) == 4
    assert planted_count(texts[1:], canaries) == 3
    assert planted_count(["my access code is <mask>", *texts[:1]], canaries) == 1
    assert planted_count([" ".join(texts + texts)], canaries) == 8
    assert planted_count([text + "9" for text in texts], canaries) == 0
    held_out = [canaries.spec.record(secret) for secret in canaries.held_out]
    assert planted_count(held_out, canaries) == 0


def span(start, end):
    return {
        "start": start,
        "end": end,
        "entity_type": "ID",
        "recognizer": "r",
        "confidence": 0.5,
    }


def labelled(canaries, spans):
    planted = plant(corpus(), canaries)
    rows = [[span(0, 2)], []] + [spans] * (len(planted) - 2)
    return planted.add_column("spans", rows)


@pytest.mark.parametrize("setting", ["as_detected", "missed", "not_missed"])
def test_apply_setting_edits_canary_rows_only(setting):
    canaries = draw_canaries(spec_of(setting=setting, length=3), seed=0)
    start = len(canaries.spec.prefix)
    before = labelled(canaries, [span(3, 9), span(start - 4, start + 1)])
    after = apply_setting(before, canaries)
    assert after.features == before.features
    assert list(after["spans"])[:2] == list(before["spans"])[:2]
    ranges = [[(s["start"], s["end"]) for s in row] for row in after["spans"]]
    expected = {
        "as_detected": [(3, 9), (start - 4, start + 1)],
        "missed": [(3, 9), (start - 4, start)],
        "not_missed": [(3, 9), (start - 4, start), (start, start + 3)],
    }
    assert ranges[2:] == [expected[setting]] * 4


@pytest.mark.parametrize(("recall", "left"), [(0.0, 10), (0.4, 6), (0.6, 4), (1.0, 0)])
def test_redaction_leaves_what_a_detector_of_some_recall_misses(recall, left):
    spec = spec_of(num_planted=10, setting="partly_missed", recall=recall)
    canaries = draw_canaries(spec, seed=0)
    start, end = len(spec.prefix), len(spec.prefix) + spec.length
    marked = apply_setting(labelled(canaries, [span(start, end)]), canaries)
    redacted = redact_dataset(marked, operator=Operator.MASK)
    assert planted_count(redacted["text"], canaries) == left
    first = canaries.model_copy(update={"planted": canaries.planted[: 10 - left]})
    assert planted_count(redacted["text"], first) == 0


def test_apply_setting_missed_cuts_a_span_that_holds_the_secret():
    spec = spec_of(setting="missed", length=3, template="code {secret} it is")
    canaries = draw_canaries(spec, seed=0)
    after = apply_setting(labelled(canaries, [span(0, 12)]), canaries)
    ranges = [(s["start"], s["end"]) for s in after["spans"][2]]
    assert ranges == [(0, 5), (8, 12)]


def test_apply_setting_without_the_canary_rows_raises():
    canaries = draw_canaries(spec_of(setting="missed"), seed=0)
    rows = corpus().add_column("spans", [[span(0, 1)], []])
    with pytest.raises(DataError, match="4 of 4 absent"):
        apply_setting(rows, canaries)
    with pytest.raises(DataError, match="spans"):
        apply_setting(corpus(), canaries)


def host_corpus(num_units=6):
    ids = [f"r{i}" for i in range(2 * num_units)]
    return Dataset.from_dict(
        {
            "id": ids,
            "text": [f"profile {i}" for i in ids],
            "unit_id": [f"u{i // 2}" for i in range(2 * num_units)],
            "split": ["train"] * (2 * num_units - 2) + ["test"] * 2,
        }
    )


def test_appended_canaries_end_records_of_distinct_training_units():
    spec = CanarySpec(
        template="secret_id={secret}",
        alphabet="alphanumeric",
        length=10,
        num_planted=2,
        num_held_out=2,
        insertions=2,
        placement="appended",
    )
    canaries = draw_canaries(spec, seed=0)
    before = host_corpus()
    after = plant(before, canaries)
    rows = canary_rows(before, canaries)
    assert rows == canary_rows(after, canaries)
    assert sorted(rows.values()) == sorted(canaries.planted * 2)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {old["id"] for old, _ in changed} == set(rows)
    assert len({old["unit_id"] for old, _ in changed}) == 4
    assert all(old["split"] == "train" for old, _ in changed)
    for old, new in changed:
        assert new["text"] == f"{old['text']}\nsecret_id={rows[old['id']]}"
    assert spec.num_new_units == 0
    assert planted_count(after["text"], canaries) == canaries.num_expected == 4
    assert not any(s in text for s in canaries.held_out for text in after["text"])
    other = canary_rows(before, draw_canaries(spec, seed=1))
    assert set(other) != set(rows)


def test_hosts_of_canaries_move_with_one_unit_and_say_so():
    """A unit that is put in takes a canary, and with it moves those of others."""
    spec = CanarySpec(num_planted=2, num_held_out=0, insertions=2, placement="appended")
    canaries = draw_canaries(spec, seed=0)
    whole = host_corpus()
    texts = dict(zip(whole["id"], plant(whole, canaries)["text"], strict=True))
    moved = 0
    for unit in sorted(set(whole["unit_id"])):
        rest = whole.select([i for i, u in enumerate(whole["unit_id"]) if u != unit])
        planted = plant(rest, canaries)
        pairs = zip(planted["id"], planted["text"], strict=True)
        moved = max(moved, sum(texts[row_id] != text for row_id, text in pairs))
    assert moved > 1
    assert plant_assumes(canaries.spec) == ("canary_hosts_are_fixed",)
    own = spec.model_copy(update={"placement": "own_record"})
    assert plant_assumes(own) == ()


def test_appended_canaries_without_enough_units_raise():
    spec = CanarySpec(num_planted=6, num_held_out=0, placement="appended")
    with pytest.raises(DataError, match="5 units for 6 copies"):
        plant(host_corpus(), draw_canaries(spec, seed=0))


def test_appended_canary_spans_are_forced_at_the_end():
    spec = CanarySpec(
        num_planted=1, num_held_out=0, placement="appended", setting="not_missed"
    )
    canaries = draw_canaries(spec, seed=0)
    labelled = plant(host_corpus(), canaries)
    kind = {
        "start": Value("int64"),
        "end": Value("int64"),
        "entity_type": Value("string"),
        "recognizer": Value("string"),
        "confidence": Value("float64"),
    }
    labelled = labelled.add_column(
        "spans", [[] for _ in range(len(labelled))], feature=List(kind)
    )
    marked = apply_setting(labelled, canaries)
    found = [
        row["text"][span["start"] : span["end"]]
        for row in marked
        for span in row["spans"]
    ]
    assert found == list(canaries.planted)


def test_fixed_canaries_are_planted_and_controls_are_drawn():
    spec = CanarySpec(num_planted=1, num_held_out=5, fixed=("341752",))
    canaries = draw_canaries(spec)
    assert canaries.planted == ("341752",)
    assert len(set(canaries.held_out)) == 5
    assert "341752" not in canaries.held_out
    with pytest.raises(ValidationError, match="num_planted distinct"):
        CanarySpec(num_planted=2, num_held_out=0, fixed=("341752",))
    with pytest.raises(ValidationError, match="candidates"):
        CanarySpec(num_planted=1, num_held_out=0, fixed=("34175x",))


def test_new_token_canaries_are_private_use_characters():
    spec = CanarySpec(
        alphabet="new_tokens", num_symbols=50, length=1, num_planted=5, num_held_out=5
    )
    assert spec.space_size == 50
    canaries = draw_canaries(spec, seed=0)
    for secret in canaries.planted + canaries.held_out:
        assert unicodedata.category(secret) == "Co"
    for broken in ({"num_symbols": None}, {"alphabet": "digits"}):
        with pytest.raises(ValidationError, match="num_symbols"):
            CanarySpec.model_validate(spec.model_dump() | broken)


def test_presets_are_the_canaries_of_the_papers():
    jft = CanarySpec.model_validate({"preset": "jft", "num_held_out": 9})
    assert jft.record(jft.fixed[0]) == "My ID is 341752"
    assert (jft.insertions, jft.space_size) == (10, 10**6)
    rldp = CanarySpec.model_validate({"preset": "rldp", "num_held_out": 10})
    assert rldp.record("A" * 10) == "secret_id=AAAAAAAAAA"
    assert (rldp.placement, rldp.space_size) == ("appended", 36**10)
    more = CanarySpec.model_validate(
        {"preset": "jft_ten", "num_held_out": 5, "insertions": 3}
    )
    assert (more.num_planted, more.insertions) == (10, 3)
    with pytest.raises(ValidationError, match="preset must be one of"):
        CanarySpec.model_validate({"preset": "none", "num_held_out": 1})
