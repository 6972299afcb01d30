"""No number of the evidence may be NaN or nonsense and still let a model pass."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.gates.decision import decide
from dptune.gates.evidence import Evidence
from dptune.results import Interval, LanguageShare


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
        detection=make.detection(languages=(ENGLISH,)),
    )


ENGLISH = LanguageShare(
    language="en",
    num_records=1000,
    masked_character_share=0.1,
    missing_rate=0.001,
    missing_rate_interval=Interval(low=0.0, high=0.002, confidence=0.95),
    missing_rate_texts=1000,
)


def selective_policy(make):
    return make.policy(
        notion="selective",
        accepted_statuses=("certified", "conditional"),
        max_language_missing_rate=0.01,
        max_language_masked_share=0.5,
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
    [
        {"rank": 0},
        {"rank": 10**6 + 1},
        {"exposure": 1.0},
        {"insertions": 0},
        {"method": "uniform_sample"},
    ],
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


# every field: dropped, or about something else

HARMLESS = {
    "accountant": "a name",
    "assumptions": "names of what the status says",
    "nominal_epsilon": "the paper's figure decides nothing",
    "tier": "a name",
    "role_tiers": "names",
    "taken_back": "words",
    "roc_fpr": "a picture",
    "roc_tpr": "a picture",
    "rates": "further points of the curve",
    "num_spans": "counts for a page",
    "PERSON": "a count for a page",
    "recognizers": "names",
    "low_fpr": "absent, it is the 1 % that the policy asks for",
    "schema_version": "absent, it is the only one",
    "missing_rate": "stated twice, by the claim and by detection",
    "missing_rate_upper": "stated twice, by the claim and by detection",
    "missing_rate_interval": "stated twice, by the claim and by detection",
    "missing_rate_source": "words of the card",
    "missing_rate_refusal": "words of a refusal",
    "review": "a name",
    "language": "a name",
    "num_canaries_detected": "what it decides is in the audits",
    "assumes_independent_canaries": "words of the card",
    "assumption_violated": "only chooses the words of a refusal",
    "detail": "words of the card",
    "method": "its report says whether all ranks are exact",
    "trained": "one canary fewer that counts; too few are inconclusive",
    "appended": "what it decides is in the audits",
    "scored": "words; any statistic of a canary that nobody saw has a uniform rank",
    "ties": "words; the tests of controls see ties that are no uniform law",
    "marked": "tells canaries apart on a page; the setting of all of them decides",
    "exposure_interval": "absent where the rank is exact, and else not decisive",
    "certified_exposure": "a figure of the card",
    "extrapolated_exposure": "a figure of the card",
    "not_measurable": "words; what is absent is missing with or without them",
    "fault": "words; weights that cannot be read have no digest to compare",
    "failed": "names; the number that passed decides",
    "accuracy": "a figure of the card, the losses decide",
    "accuracy_interval": "a figure of the card, the losses decide",
    "base_accuracy": "a figure of the card, the losses decide",
    "token_accuracy": "a figure of the card, the losses decide",
    "base_token_accuracy": "a figure of the card, the losses decide",
    "majority_accuracy": "a figure of the card, the losses decide",
    "base_record_nll": "the base stands in only where there is no champion",
    "record_units": "empty where each record is a unit, and in reports from before",
    "remarks": "words of the decision",
    "run": "a name",
}
REPEATED = (
    ("audits", 0),
    ("membership", "signals", 0),
    ("detection", "recognizers", 0),
    ("champion_utility", "measured_at"),
    ("membership", "blind", "hits"),
)
"""A second audit, attack, name or date; counts of a baseline that has none."""


def fields(value, path=()):
    """Paths of all keys and list items, at most three of a list."""
    if isinstance(value, dict):
        keys = list(value)
    else:
        keys = list(range(min(3, len(value)))) if isinstance(value, list) else []
    for key in keys:
        yield (*path, key)
        yield from fields(value[key], (*path, key))


def dropped(value, path):
    copy = json.loads(json.dumps(value))
    target = copy
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    return copy


def outcome(values, policy):
    try:
        evidence = Evidence.model_validate(values)
    except ValueError:
        return "refused"
    return decide(evidence, policy).outcome


def test_dropping_any_field_never_passes(make):
    policy = selective_policy(make)
    values = json.loads(full(make).model_dump_json())
    paths = [p for p in fields(values) if p[-1] not in HARMLESS and p not in REPEATED]
    assert len(paths) > 150
    assert {p[-1] for p in fields(values)} >= HARMLESS.keys()
    passed = [p for p in paths if outcome(dropped(values, p), policy) == "PASS"]
    assert passed == []


def test_emptying_any_report_or_list_never_passes(make):
    policy = selective_policy(make)
    values = json.loads(full(make).model_dump_json())
    passed = []
    for path in fields(values):
        target = values
        for key in path:
            target = target[key]
        if isinstance(target, dict | list) and path[-1] not in HARMLESS:
            for empty in (None, [], {}):
                if path in REPEATED or empty == target:
                    continue
                if outcome(replaced(values, path, empty), policy) == "PASS":
                    passed.append((path, empty))
    assert passed == []


def test_any_other_digest_or_date_or_policy_version_never_passes(make):
    policy = selective_policy(make)
    values = json.loads(
        full(make)
        .model_copy(update={"planned_for": policy.reference})
        .model_dump_json()
    )
    assert outcome(values, policy) == "PASS"
    named = {
        "model_digest",
        "base_model_digest",
        "champion_digest",
        "corpus_fingerprint",
        "registry_digest",
        "registry_manifest",
        "sha256",
    }
    paths = [p for p in fields(values) if p[-1] in named]
    assert len(paths) == 23
    twins = [replaced(values, p, "another") for p in paths]
    twins += [
        replaced(values, ("planned_for", "version"), 2),
        replaced(values, ("planned_for", "digest"), "another"),
        replaced(values, ("measured_at",), "2025-01-01T00:00:00Z"),
        replaced(values, ("measured_at",), "2027-01-01T00:00:00Z"),
        replaced(values, ("decided_at",), "2027-01-01T00:00:00Z"),
        replaced(values, ("decided_at",), "2025-01-01T00:00:00Z"),
        replaced(values, ("measured_at",), "2026-05-03T00:00:00"),
    ]
    assert [t for t in twins if outcome(t, policy) == "PASS"] == []
