"""What the gate will be able to decide, known before training."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from dptune.attacks.canaries import CanarySpec
from dptune.attacks.settings import AttackSettings
from dptune.gates.null_law import (
    fisher_p_value,
    mean_exposure_bounds,
    skewed_mean_upper,
    uniform_p_value,
)
from dptune.gates.policy import GatePolicy
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit, UnitsFrom
from dptune.settings import StepAuditSettings
from dptune.statistics import clopper_pearson
from dptune.workflow.charging import planned_ledger
from dptune.workflow.power import (
    clean_pass_probability,
    enough_sampled,
    leak_block_probability,
    planned_power,
)
from tests.unit.reports import samples

POLICY = GatePolicy(notion="record", max_epsilon=8.0, max_delta=1e-5)
SPACE = CanarySpec(num_planted=1, num_held_out=1).space_size
BITS = 1 / np.log(2)
KNOWN = tuple(f"{number:06}" for number in range(100))


class Config:
    """The parts of a configuration that power is computed from."""

    def __init__(self, **changes):
        spec = {"num_planted": 120, "num_held_out": 120} | changes
        self.canaries = CanarySpec(**spec)
        self.gate = POLICY.model_copy(update={"min_audit_capacity": 3.0})
        self.attack = AttackSettings(num_members=1000)
        self.recipe, self.audit = samples.recipe(), StepAuditSettings()
        self.privacy = SimpleNamespace(target_delta=1e-5)
        self.data = SimpleNamespace(privacy_unit=PrivacyUnit.RECORD)

    def with_policy(self, **changes):
        """Ask for something else."""
        self.gate = self.gate.model_copy(update=changes)
        return self


PLAN = plan_run(
    samples.recipe(),
    num_units=900,
    units_from=UnitsFrom.DECLARED,
    notion=Notion.RECORD,
    relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    target_epsilon=None,
    target_delta=1e-5,
)
CORPUS = samples.corpus_report(deduplicated=False)
LEDGER = planned_ledger(PLAN, CORPUS, redaction="mask", fixed_seed=False)


def lines(config, *, lacks_grant="", **units):
    by_split = {"train": 900, "test": 600} | units
    found = planned_power(
        config, PLAN, LEDGER, units_by_split=by_split, lacks_grant=lacks_grant
    )
    return found, {line.name: line for line in found.lines}


def chance(num, **changes):
    spec = {"num_planted": num, "num_held_out": num} | changes.pop("spec", {})
    return clean_pass_probability(POLICY, CanarySpec(**spec), AttackSettings(**changes))


@pytest.mark.parametrize(
    ("num", "share"), [(60, 0.0), (78, 0.0), (80, 0.983), (100, 0.996)]
)
def test_chance_that_a_clean_model_passes_is_that_of_the_bound(num, share):
    """Shares of 200,000 runs of the policy's default level and bound."""
    assert chance(num) == pytest.approx(share, abs=0.015)
    assert chance(0) == 0.0


def ends(generator, num, sampled):
    """Draw ranks of one clean model, as the intervals that they are known by."""
    near, drawn = generator.random(num), generator.random(sampled)
    far = near.copy()
    confidence = 1 - 1e-4 / (2 * 2 * num)
    for place, rank in enumerate(near):
        before = int((drawn < rank).sum())
        if before > 8:
            near[place], far[place] = clopper_pearson(
                before, sampled, confidence=confidence
            )
    return [np.ceil(side * SPACE).clip(1).astype(int) for side in (near, far)]


def passes(generator, num, sampled):
    """Draw one clean run whose ranks are intervals, and judge it as the gate does."""
    (near, far), (held, last), (base, _) = (
        ends(generator, num, sampled) for _ in range(3)
    )
    exposures, level = np.log2(SPACE / near).tolist(), POLICY.assurance_level - 1e-4
    exponential = mean_exposure_bounds(np.mean(exposures), num, level=level)[1]
    skewed = skewed_mean_upper(exposures, level=level)
    known = sum(num * 2**-bits <= 0.002 for bits in exposures)
    share = stats.beta.isf(2 * level, known + 1, num - known)
    few = BITS + share * (np.log2(SPACE) - BITS)
    bound = max(exponential, skewed, few)
    late = SPACE + 1 - far
    return (
        bound <= POLICY.assurance_bound_bits
        and fisher_p_value(base.tolist(), SPACE) > POLICY.base_level
        and uniform_p_value(held.tolist(), SPACE, late=last.tolist())
        > POLICY.control_level
        and np.log2(SPACE / late).mean() < POLICY.effect_size_bits
    )


def test_chance_counts_the_ends_of_intervals_that_suit_nobody():
    """At 100 canaries 28 % of clean runs fail for what assurance does not see."""
    generator = np.random.default_rng(5)
    passed = np.mean([passes(generator, 100, 1000) for _ in range(200)])
    found = chance(100, sampled_candidates=1000)
    assert found == pytest.approx(passed, abs=0.12)
    assert found < 0.6 < chance(100)
    assert found < chance(100, sampled_candidates=4000)


def test_a_number_of_candidates_that_would_do_is_told():
    config = Config(num_planted=100, num_held_out=100)
    config.attack = AttackSettings(num_members=1000, sampled_candidates=4000)
    told = lines(config)[1]["chance that a clean model passes"]
    assert not told.enough
    assert "attack.sampled_candidates: 8000 would do" in told.meaning
    few = AttackSettings(sampled_candidates=1000)
    thirty = CanarySpec(num_planted=30, num_held_out=30)
    assert enough_sampled(POLICY, thirty, few) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"scoring": "mean"},
        {"max_candidates": 1000},
        {"spec": {"fixed": KNOWN}},
    ],
)
def test_no_clean_model_passes_where_ranks_show_nothing(changes):
    assert chance(100, **changes) == 0.0


def test_secrets_that_nobody_drew_can_show_no_leak_and_refute_nothing():
    _, told = lines(Config(num_planted=100, fixed=KNOWN))
    assert not told["chance that a leak of 4 bits blocks"].enough
    assert told["audit capacity (epsilon)"].planned == 0.0


def test_leak_of_four_bits_is_blocked_more_often_with_more_canaries():
    chances = [leak_block_probability(POLICY, num) for num in (0, 5, 20, 50)]
    assert chances == sorted(chances)
    assert (chances[0], chances[-1] > 0.97) == (0.0, True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"notion": Notion.SELECTIVE}, "selective claim under replace_one"),
        ({"privacy_unit": PrivacyUnit.USER}, "about a record"),
        ({"max_epsilon": 0.5}, "accepts at most 0.5"),
        ({"max_delta": 1e-6}, "at delta 1e-05"),
        ({"notion": Notion.LOCAL}, "will be none"),
    ],
)
def test_claim_that_the_policy_cannot_accept_is_too_little(changes, says):
    _, told = lines(Config().with_policy(**{"max_epsilon": 5.0} | changes))
    assert not told["predicted epsilon"].enough
    assert says in told["predicted epsilon"].meaning


def test_audit_and_budget_that_the_policy_asks_for_are_told():
    config = Config()
    config.audit = StepAuditSettings(num_steps=0)
    found, told = lines(config, lacks_grant="none was granted")
    assert not found.enough
    assert not told["steps trained again"].enough
    assert not told["budget of the data set"].enough
    config.with_policy(require_step_audit=False, require_dataset_budget=False)
    assert not {"steps trained again", "budget of the data set"} & {*lines(config)[1]}


def test_members_are_at_most_as_many_as_units():
    config = Config()
    _, told = lines(config, train=700)
    assert (told["members"].planned, told["non-members"].planned) == (700, 600)
    assert "one of each unit" in told["members"].meaning
    _, told = lines(config, train=100_000)
    assert told["members"].planned == config.attack.num_members


def test_power_names_what_is_too_little_before_training():
    found, told = lines(Config())
    assert {name for name, line in told.items() if not line.enough} == set()
    assert found.enough
    assert 3.0 < told["audit capacity (epsilon)"].planned < 8.0
    assert "3000 steps of 8 records" in told["shadow models"].meaning
    config = Config(num_planted=10)
    config.attack = AttackSettings(shadows=None)
    found, told = lines(config, test=300)
    assert not found.enough
    assert {name for name, line in told.items() if not line.enough} >= {
        "planted canaries",
        "chance that a clean model passes",
        "non-members",
        "shadow models",
    }
