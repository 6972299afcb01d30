"""Drawing, planting, counting canaries; the three settings."""

import random

import pytest
from datasets import Dataset
from pydantic import ValidationError

from dptune.attacks.canaries import (
    CanarySet,
    CanarySpec,
    apply_setting,
    canary_ids,
    draw_canaries,
    held_out_count,
    plant,
    planted_count,
)
from dptune.errors import ConfigError, DataError


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
    assert held_out_count(texts + held_out, canaries) == 3


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
        "not_missed": [(3, 9), (start - 4, start + 1), (start, start + 3)],
    }
    assert ranges[2:] == [expected[setting]] * 4


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
