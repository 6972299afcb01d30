"""The policy file: all errors at once, no default for a claim."""

import math

import pytest

from dptune.errors import ConfigError
from dptune.gates.policy import GatePolicy
from dptune.privacy import NeighboringRelation

CLAIM = {"notion": "record", "max_epsilon": 8.0, "max_delta": 1e-5}


def test_policy_has_no_default_claim_and_reports_all_problems_at_once():
    with pytest.raises(ConfigError) as caught:
        GatePolicy.from_mapping({"min_canaries": 0, "thresold": 1})
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
        GatePolicy.from_mapping({**CLAIM, **changes})


@pytest.mark.parametrize(
    ("notion", "relation"),
    [
        ("record", NeighboringRelation.ADD_OR_REMOVE_ONE),
        ("selective", NeighboringRelation.REPLACE_ONE),
        ("local", NeighboringRelation.REPLACE_ONE),
    ],
)
def test_policy_relation_is_the_notions_own(notion, relation):
    policy = GatePolicy.from_mapping({**CLAIM, "notion": notion})
    assert policy.neighboring_relation is relation


def test_policy_digest_changes_with_any_threshold():
    policy = GatePolicy.from_mapping(CLAIM)
    other = GatePolicy.from_mapping({**CLAIM, "control_level": 0.02})
    assert policy.digest != other.digest
    assert policy.digest == GatePolicy.from_mapping(CLAIM).digest
    assert policy.max_nll_increase == pytest.approx(math.log(1.02))
