"""No number of the evidence may be NaN or nonsense and still let a model pass."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.gates.decision import decide
from dptune.gates.evidence import Evidence


def numbers(value, path=()):
    """Paths of all floats that may decide."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from numbers(child, (*path, key))
    elif isinstance(value, list):
        for position, child in enumerate(value[:3]):
            yield from numbers(child, (*path, position))
    elif isinstance(value, float):
        yield path


def replaced(value, path, new):
    copy = json.loads(json.dumps(value))
    target = copy
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = new
    return copy


def full(make):
    claim = make.claim(
        notion="selective",
        relation="replace_one",
        status="conditional",
        missing_rate=0.001,
        missing_rate_upper=0.002,
    )
    return make.evidence(
        claims=(claim,),
        dataset_budget=make.budget(notion="selective"),
        champion_digest="old",
        champion_utility=make.utility(model_digest="old"),
    )


def selective_policy(make):
    return make.policy(
        notion="selective", accepted_statuses=("certified", "conditional")
    )


def test_nan_twin_of_every_number_never_passes(make):
    policy = selective_policy(make)
    values = json.loads(full(make).model_dump_json())
    assert decide(Evidence.model_validate(values), policy).outcome == "PASS"
    paths = [p for p in numbers(values) if p[-1] != "confidence"]
    assert len(paths) > 40
    passed = []
    for path in paths:
        twin = Evidence.model_validate(replaced(values, path, "NaN"))
        if decide(twin, policy).outcome == "PASS":
            passed.append(path)
    assert passed == []


@pytest.mark.parametrize(
    "changes",
    [{"rank": 0}, {"rank": 10**6 + 1}, {"exposure": 1.0}, {"insertions": 0}],
)
def test_exposure_that_contradicts_itself_is_invalid(changes, make):
    report = make.exposure()
    first = report.canaries[0].model_copy(update=changes)
    report = report.model_copy(update={"canaries": (first, *report.canaries[1:])})
    decision = decide(make.evidence(exposure=report), make.policy())
    assert decision.outcome == "INVALID"


def test_base_of_other_canaries_is_invalid(make):
    report = make.exposure()
    report = report.model_copy(update={"base_canaries": report.base_canaries[1:]})
    decision = decide(make.evidence(exposure=report), make.policy())
    assert decision.outcome == "INVALID"


@pytest.mark.parametrize(
    "changes",
    [
        {"record_nll": (1.0,)},
        {"num_tokens": 0},
        {"nll_per_token": 1.0},
        {"perplexity": math.inf},
        {"record_nll": (-math.inf, *(1.0,) * 99)},
    ],
)
def test_utility_that_contradicts_itself_is_invalid(changes, make):
    report = make.utility(**changes)
    decision = decide(make.evidence(utility=report), make.policy())
    assert decision.outcome == "INVALID"


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_decide_never_crashes_on_nonsense(data, make):
    values = json.loads(full(make).model_dump_json())
    paths = list(numbers(values))
    for _ in range(3):
        path = data.draw(st.sampled_from(paths))
        new = data.draw(st.sampled_from(["NaN", "Infinity", "-Infinity", -1.0, 1e300]))
        values = replaced(values, path, new)
    try:
        twin = Evidence.model_validate(values)
    except ValueError:
        return
    decision = decide(twin, selective_policy(make))
    assert decision.decision_hash
