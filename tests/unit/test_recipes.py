"""Plans: every noisy stage's noise from one target, checked before anything trains."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.accounting.accountants import epsilon
from dptune.configfile import read_yaml, validate
from dptune.errors import ConfigError, InfeasibleBudgetError
from dptune.privacy import NeighboringRelation, Notion
from dptune.recipes import Recipe, RunPlan, plan_run

RECIPES = Path(__file__).resolve().parents[2] / "configs" / "recipes"
ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def stage(name="s", **changes):
    return {
        "name": name,
        "view": "original",
        "epochs": 2,
        "expected_batch_size": 50,
        "optimizer": {"learning_rate": 0.1},
        "clipping": {"max_grad_norm": 1.0},
        "noise": {},
    } | changes


PLAIN = {"clipping": None, "noise": None}


def recipe(*stages):
    return Recipe.model_validate({"name": "r", "title": "R", "stages": stages})


def plan(*stages, **changes):
    values = {
        "num_units": 1000,
        "notion": Notion.RECORD,
        "relation": ADD,
        "target_epsilon": 3.0,
        "target_delta": 1e-4,
    } | changes
    return plan_run(recipe(*stages), **values)


def test_calibrated_noise_meets_the_target_and_wastes_nothing():
    made = plan(stage())
    assert made.epsilon <= 3.0
    assert made.epsilon == pytest.approx(3.0, rel=0.02)
    (only,) = made.stages
    assert (only.sample_rate, only.num_steps) == (0.05, 40)


def test_a_little_less_noise_misses_the_target():
    (only,) = plan(stage()).stages
    event = only.with_noise(0.97 * only.noise_multiplier).dp_event(only.num_steps)
    assert epsilon(event, delta=1e-4, relation=ADD) > 3.0


def test_noisy_stages_share_one_target():
    two = plan(stage("a"), stage("b"))
    (alone,) = plan(stage()).stages
    multipliers = {s.noise_multiplier for s in two.stages}
    assert len(multipliers) == 1
    assert multipliers.pop() > alone.noise_multiplier
    assert two.epsilon <= 3.0


def test_given_noise_is_kept_and_the_rest_is_calibrated_around_it():
    made = plan(stage("a", noise={"noise_multiplier": 2.0}), stage("b"))
    assert made.stages[0].noise_multiplier == 2.0
    assert made.epsilon <= 3.0
    assert made.epsilon == pytest.approx(3.0, rel=0.02)


def test_given_noise_alone_needs_no_target():
    made = plan(stage(noise={"noise_multiplier": 1.0}), target_epsilon=None)
    assert made.target_epsilon is None
    assert math.isfinite(made.epsilon)


def test_plain_recipe_promises_nothing():
    made = plan(stage(**PLAIN), target_epsilon=None)
    assert made.epsilon == math.inf
    assert made.stages[0].noise_multiplier is None


def test_replacement_costs_more_noise_than_adding():
    (add,), (replace,) = (plan(stage(), relation=r).stages for r in (ADD, REPLACE))
    assert replace.noise_multiplier > add.noise_multiplier


@settings(max_examples=12, deadline=None, derandomize=True)
@given(target=st.floats(0.5, 20), more=st.floats(1.05, 3))
def test_larger_target_needs_less_noise(target, more):
    (tight,) = plan(stage(), target_epsilon=target).stages
    (loose,) = plan(stage(), target_epsilon=target * more).stages
    assert loose.noise_multiplier < tight.noise_multiplier


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"epochs": 0.001}, (0.05, 1)),
        ({"epochs": 1}, (0.05, 20)),
        ({"expected_batch_size": 1000, "epochs": 3}, (1.0, 3)),
        ({"expected_batch_size": 1, "epochs": 0.5}, (0.001, 500)),
    ],
)
def test_rate_and_steps_follow_from_batch_and_epochs(changes, expected):
    (only,) = plan(stage(**changes)).stages
    assert (only.sample_rate, only.num_steps) == expected


def test_plan_divides_by_the_public_expected_batch():
    (only,) = plan(stage()).stages
    made = only.training_plan()
    assert made.expected_batch_size == pytest.approx(50)
    assert made.noise_multiplier == only.noise_multiplier
    assert made.max_grad_norm == 1.0


def test_all_contradictions_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        plan(stage(expected_batch_size=5000), target_epsilon=None, target_delta=0.01)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == [
        "privacy.target_delta",
        "privacy.target_epsilon",
        "stages.s.expected_batch_size",
    ]


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.5, 1.0, math.nan])
def test_delta_that_protects_nobody_is_refused(delta):
    with pytest.raises(ConfigError, match="1 / number of privacy units"):
        plan(stage(), target_delta=delta)


def test_impossible_target_tells_the_best_that_is_possible():
    spent = stage("a", noise={"noise_multiplier": 0.5})
    with pytest.raises(InfeasibleBudgetError, match=r"\d"):
        plan(spent, stage("b"), target_epsilon=0.01)


def test_private_plan_of_a_plain_stage_is_refused():
    made = plan(stage(**PLAIN), target_epsilon=None)
    with pytest.raises(ConfigError, match="no clipping"):
        made.stages[0].with_noise(1.0)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_recipe_in_the_repository_can_be_planned(path):
    chosen = validate(Recipe, read_yaml(path))
    made = plan_run(
        chosen,
        num_units=2000,
        notion=chosen.notion or Notion.RECORD,
        relation=REPLACE,
        target_epsilon=8.0 if chosen.private else None,
        target_delta=1e-5,
    )
    assert (made.epsilon <= 8.0) is chosen.private
    assert RunPlan.model_validate_json(made.model_dump_json()) == made
