"""The policy file: all errors at once, no default for a claim."""

import hashlib
import json
import math

import pytest

from dptune.configfile import validate
from dptune.errors import ConfigError
from dptune.gates.policy import GatePolicy
from dptune.privacy import NeighboringRelation

CLAIM = {"notion": "record", "max_epsilon": 8.0, "max_delta": 1e-5}


def test_policy_has_no_default_claim_and_reports_all_problems_at_once():
    with pytest.raises(ConfigError) as caught:
        validate(GatePolicy, {"min_canaries": 0, "thresold": 1})
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"notion", "max_epsilon", "max_delta", "min_canaries", "thresold"}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_epsilon": 0.0},
        {"max_epsilon": math.inf},
        {"max_epsilon": math.nan},
        {"max_delta": 1.0},
        {"accepted_statuses": ["none"]},
        {"accepted_statuses": ["certified", "empirical"]},
        {"accepted_statuses": []},
        {"notion": "selective", "relation": "add_or_remove_one"},
        {"schema_version": 2},
    ],
)
def test_policy_refuses(changes):
    with pytest.raises(ConfigError):
        validate(GatePolicy, {**CLAIM, **changes})


@pytest.mark.parametrize(
    ("notion", "relation"),
    [
        ("record", NeighboringRelation.ADD_OR_REMOVE_ONE),
        ("selective", NeighboringRelation.REPLACE_ONE),
        ("local", NeighboringRelation.REPLACE_ONE),
    ],
)
def test_policy_relation_is_the_notions_own(notion, relation):
    policy = validate(GatePolicy, {**CLAIM, "notion": notion})
    assert policy.neighboring_relation is relation


def test_policy_digest_changes_with_any_threshold():
    policy = validate(GatePolicy, CLAIM)
    other = validate(GatePolicy, {**CLAIM, "control_level": 0.02})
    assert policy.digest != other.digest
    assert policy.digest == validate(GatePolicy, CLAIM).digest
    assert policy.max_nll_increase == pytest.approx(math.log(1.02))


def test_policy_thresholds_are_those_that_were_simulated():
    """Who changes one measures again (benchmarks/gate_errors.py) and says so."""
    policy = validate(GatePolicy, CLAIM).model_dump(mode="json")
    assert {k: v for k, v in policy.items() if k not in CLAIM} == {
        "schema_version": 1,
        "name": "default",
        "version": 1,
        "privacy_unit": "record",
        "relation": None,
        "accepted_statuses": ["certified"],
        "max_missing_rate": 0.01,
        "accept_declared_missing_rate": False,
        "max_language_missing_rate": None,
        "max_language_masked_share": None,
        "min_language_share": 0.01,
        "accepted_assumptions": [],
        "require_dataset_budget": True,
        "require_canaries": True,
        "min_canaries": 100,
        "min_held_out": 20,
        "min_space_size": 10_000,
        "memorization_level": 0.001,
        "effect_size_bits": 2.5,
        "single_canary_share": 1e-4,
        "assurance_bound_bits": 2.5,
        "assurance_level": 0.005,
        "control_level": 0.0005,
        "base_level": 0.0005,
        "contradiction_level": 0.001,
        "min_audit_capacity": None,
        "require_step_audit": True,
        "max_evidence_age_days": 180,
        "max_evaluations": None,
        "max_membership_tpr": 0.10,
        "membership_level": 0.05,
        "min_shadow_models": 4,
        "min_membership_records": 500,
        "blind_level": 0.0005,
        "max_nll_increase": math.log(1.02),
        "utility_confidence": 0.95,
    }


LEVEL = ((1e-9, 0.499), (0.0, 0.5))


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("version", (1, 2), (0, 1.0, "1", True)),
        ("name", ("a", "0-._" + "x" * 60), ("", "A", "-a", "a b", "x" * 65, "é")),
        ("max_epsilon", (1e-9, 1e9), (0.0, -1.0)),
        ("max_delta", (1e-30, 0.999), (0.0, 1.0)),
        ("max_missing_rate", (0.0, 1.0), (-1e-9, 1.001)),
        ("max_language_missing_rate", (None, 0.0, 1.0), (-1e-9, 1.001)),
        ("max_language_masked_share", (None, 0.0, 1.0), (-1e-9, 1.001)),
        ("min_language_share", (0.0, 1.0), (-1e-9, 1.001)),
        ("min_canaries", (1,), (0,)),
        ("min_held_out", (2,), (1,)),
        ("min_space_size", (2,), (1,)),
        ("memorization_level", *LEVEL),
        ("effect_size_bits", (0.0,), (-1e-9,)),
        ("single_canary_share", (1e-9, 0.999), (0.0, 1.0)),
        ("assurance_bound_bits", (1e-9,), (0.0,)),
        ("assurance_level", *LEVEL),
        ("control_level", *LEVEL),
        ("base_level", *LEVEL),
        ("contradiction_level", *LEVEL),
        ("min_audit_capacity", (None, 1e-9), (0.0,)),
        ("max_evidence_age_days", (1e-9,), (0.0,)),
        ("max_evaluations", (None, 1), (0,)),
        ("max_membership_tpr", (1e-9, 1.0), (0.0, 1.001)),
        ("membership_level", *LEVEL),
        ("min_shadow_models", (0,), (-1,)),
        ("min_membership_records", (100,), (99,)),
        ("blind_level", *LEVEL),
        ("max_nll_increase", (0.0,), (-1e-9,)),
        ("utility_confidence", (0.501, 0.999), (0.5, 1.0)),
        ("notion", ("local",), (None, "all")),
        ("privacy_unit", ("user",), (None, "token")),
        ("require_canaries", (True, False), (None,)),
        ("accepted_assumptions", ((),), (None, ["the_moon_is_public"])),
    ],
)
def test_policy_takes_the_ends_of_a_range_and_nothing_beyond(name, allowed, refused):
    for value in allowed:
        assert getattr(validate(GatePolicy, {**CLAIM, name: value}), name) == value
    for value in refused:
        with pytest.raises(ConfigError) as caught:
            validate(GatePolicy, {**CLAIM, name: value})
        (problem,) = caught.value.problems
        assert problem.path.partition(".")[0] == name


def test_digest_is_of_every_field_in_the_order_of_their_names(make):
    """Anybody can compute it: SHA-256 of the sorted JSON."""
    policy = make.policy()
    fields = json.dumps(policy.model_dump(mode="json"), sort_keys=True).encode()
    assert list(json.loads(fields)) == sorted(json.loads(fields))
    assert policy.digest == f"sha256:{hashlib.sha256(fields).hexdigest()}"
    assert policy.reference.digest == policy.digest
    assert policy.reference.title == f"default, version 1, {policy.digest}"
