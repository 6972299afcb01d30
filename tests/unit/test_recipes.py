"""Plans: every noisy stage's noise from one target, checked before anything trains."""

import math
from pathlib import Path

import pytest
from dp_accounting import dp_event as dpe
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from dptune.accounting.accountants import epsilon
from dptune.configfile import read_yaml, validate
from dptune.dpsgd.factorization import prefix_sum_error
from dptune.errors import ConfigError, InfeasibleBudgetError
from dptune.mechanisms.transforms import AdaClip, GeoClip
from dptune.planning import RunPlan, plan_run
from dptune.privacy import Mode, NeighboringRelation, Notion
from dptune.recipes import Recipe

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


SGD = {"name": "sgd", "learning_rate": 0.1}
CAP = {"kind": "truncated_poisson", "max_batch_size": 80}
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


SPACE = {
    "rule": "adaclip",
    "mean_decay": 0.9,
    "spread_decay": 0.8,
    "floor": 0.5,
    "ceiling": 2.0,
}


def in_space(**changes):
    clipping = {"max_grad_norm": 0.5, "transform": SPACE | changes}
    return {"clipping": clipping}


def test_transform_of_a_recipe_reaches_its_plan_and_changes_no_epsilon():
    without = plan(stage(clipping={"max_grad_norm": 0.5}))
    numbers = {"initial_norm": 0.5, "mean_decay": 0.9, "floor": 0.5, "ceiling": 2.0}
    for changes, expected in (
        ({}, AdaClip(variance_decay=0.8, **numbers)),
        (
            {"rule": "geoclip", "rank": 3},
            GeoClip(rank=3, covariance_decay=0.8, **numbers),
        ),
    ):
        made = plan(stage(**in_space(**changes)))
        assert made.stages[0].training_plan().transform == expected
        assert made.epsilon == without.epsilon


@pytest.mark.parametrize(
    "changes",
    [
        in_space(rank=3),
        in_space(rule="geoclip"),
        in_space() | {"noise": {"correlation": "auto"}},
        {"clipping": in_space()["clipping"] | {"kind": "per_layer"}},
        {"clipping": in_space()["clipping"] | {"moving": {"rule": "quantile"}}},
    ],
)
def test_transform_beside_what_it_excludes_is_refused(changes):
    with pytest.raises(ValidationError, match=r"transform|rank"):
        recipe(stage(**changes))


RELATIVE = {"expected_batch_size": None}


@pytest.mark.parametrize(
    ("num_units", "expected"),
    [(1000, (100, 0.1, 20)), (4, (1, 0.25, 8)), (10_000, (400, 0.04, 50))],
)
def test_relative_batch_follows_the_corpus_up_to_its_limit(num_units, expected):
    batch = RELATIVE | {"relative_batch": {"share": 0.1, "at_most": 400}}
    (only,) = plan(stage(**batch), num_units=num_units, target_delta=1e-5).stages
    numbers = (only.expected_batch_size, only.sample_rate, only.num_steps)
    assert numbers == expected
    assert only.training_plan().expected_batch_size == pytest.approx(expected[0])


@pytest.mark.parametrize(
    "changes",
    [
        {"relative_batch": {"share": 0.1, "at_most": 400}},
        RELATIVE,
        RELATIVE | {"relative_batch": {"share": 1.1, "at_most": 400}},
        RELATIVE | {"relative_batch": {"share": 0.1}},
        RELATIVE | {"relative_batch": {"share": 0.1, "at_most": 81}, "sampling": CAP},
    ],
    ids=["both", "neither", "more than all", "no limit", "above the cap"],
)
def test_batch_is_given_in_exactly_one_way(changes):
    with pytest.raises(ValidationError):
        recipe(stage(**changes))


@pytest.mark.parametrize("num_units", [500, 2_000, 10_000, 50_000, 200_000, 1_000_000])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_default_recipe_plans_any_corpus(num_units, relation):
    chosen = validate(Recipe, read_yaml(RECIPES / "dp_default.yaml"))
    made = plan_run(
        chosen,
        num_units=num_units,
        notion=Notion.RECORD,
        relation=relation,
        target_epsilon=3.0,
        target_delta=0.1 / num_units,
    )
    (only,) = made.stages
    assert only.settings.view == "original"
    assert 0.98 * 3 < made.epsilon <= 3
    assert 50 <= only.expected_batch_size <= 4096
    assert 100 <= only.num_steps <= 2500
    assert only.noise_multiplier / only.expected_batch_size < 0.1


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


def banded(**changes):
    return {"noise": {"correlation": "banded"} | changes}


LONG = {"epochs": 3, "expected_batch_size": 20, "optimizer": SGD}
"""150 steps at sample rate .02."""


def error_of(stage_plan):
    return stage_plan.noise_multiplier * prefix_sum_error(
        stage_plan.noise_coefficients, num_steps=stage_plan.num_steps
    )


def test_auto_takes_bands_where_they_are_clearly_better():
    (auto,) = plan(
        stage(**LONG, noise={"correlation": "auto"}), target_epsilon=8
    ).stages
    (alone,) = plan(stage(**LONG), target_epsilon=8).stages
    assert auto.num_bands > 1
    assert auto.num_bands * auto.sample_rate <= 1
    assert error_of(auto) < 0.95 * error_of(alone)
    event = auto.dp_event()
    assert 0.98 * 8 < epsilon(event, delta=1e-4, relation=ADD) <= 8


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    target=st.floats(0.3, 20),
    batch=st.sampled_from([5, 20, 100, 400]),
    epochs=st.sampled_from([0.5, 2, 10]),
    relation=st.sampled_from([ADD, REPLACE]),
)
def test_auto_is_never_worse_by_its_own_measure(target, batch, epochs, relation):
    numbers = {"epochs": epochs, "expected_batch_size": batch}
    auto, alone = (
        plan(stage(**numbers, noise=noise), target_epsilon=target, relation=relation)
        for noise in ({"correlation": "auto"}, {})
    )
    assert auto.epsilon <= target
    assert error_of(auto.stages[0]) <= error_of(alone.stages[0])


def test_auto_stays_independent_at_a_small_epsilon():
    numbers = {"epochs": 10, "expected_batch_size": 100, "optimizer": SGD}
    auto = plan(
        stage(**numbers, noise={"correlation": "auto"}), target_epsilon=0.3
    ).stages
    assert auto[0].num_bands == 1


@pytest.mark.parametrize(
    "stages",
    [
        (stage(**LONG, noise={"correlation": "auto", "noise_multiplier": 1.0}),),
        (
            stage("a", **LONG, noise={"correlation": "auto"}),
            stage("b", **LONG, noise={"correlation": "auto"}),
        ),
        (
            stage(
                **LONG,
                noise={"correlation": "auto"},
                sampling={"kind": "truncated_poisson", "max_batch_size": 40},
            ),
        ),
    ],
    ids=["noise is given", "two stages share a target", "batches are cut"],
)
def test_auto_stays_independent_where_it_does_not_choose(stages):
    given_noise = stages[0]["noise"].get("noise_multiplier")
    made = plan(*stages, target_epsilon=None if given_noise else 8.0)
    assert {s.num_bands for s in made.stages} == {1}


def test_bands_can_be_given_or_found():
    (given_bands,) = plan(stage(**LONG, **banded(num_bands=3))).stages
    assert given_bands.num_bands == 3
    (found,) = plan(stage(**LONG, **banded()), target_epsilon=0.5).stages
    assert found.num_bands >= 2
    (all_given,) = plan(
        stage(**LONG, **banded(num_bands=4, noise_multiplier=1.0)), target_epsilon=None
    ).stages
    assert all_given.training_plan().sampling == "cyclic_poisson"
    assert all_given.dp_event() == all_given.training_plan().dp_event(150)


def test_truncated_stage_is_planned_for_its_cap():
    cut = stage(
        **LONG | {"noise": {}},
        sampling={"kind": "truncated_poisson", "max_batch_size": 25},
    )
    made, whole = plan(cut), plan(stage(**LONG))
    assert made.epsilon <= 3.0
    assert made.stages[0].noise_multiplier > whole.stages[0].noise_multiplier
    trained = made.stages[0].training_plan()
    assert (trained.max_batch_size, trained.num_units) == (25, 1000)


def test_stored_plan_makes_the_same_noise():
    made = plan(stage(**LONG, **banded(num_bands=5)))
    back = RunPlan.model_validate_json(made.model_dump_json())
    assert back == made
    assert back.stages[0].training_plan() == made.stages[0].training_plan()


@pytest.mark.parametrize(
    ("bands", "batch", "epochs"),
    [(60, 20, 3), (160, 5, 0.7), (None, 600, 3), (None, 20, 0.02)],
    ids=["more than batches", "more than steps", "one batch", "one step"],
)
def test_bands_that_do_not_fit_are_refused(bands, batch, epochs):
    numbers = {"epochs": epochs, "expected_batch_size": batch}
    with pytest.raises(ConfigError, match=r"stages.s.noise.num_bands"):
        plan(stage(**numbers, **banded(num_bands=bands)))


def test_bands_must_be_given_where_nothing_can_choose_them():
    with pytest.raises(ConfigError, match="the only one whose noise is calibrated"):
        plan(stage("a", **LONG, **banded()), stage("b", **LONG))
    with pytest.raises(ConfigError, match="the only one whose noise is calibrated"):
        plan(stage(**LONG, **banded(noise_multiplier=1.0)), target_epsilon=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"noise": {"num_bands": 4}}, "only when correlation is 'banded'"),
        ({"sampling": {"kind": "truncated_poisson"}}, "exactly when kind"),
        ({"sampling": {"max_batch_size": 80}}, "exactly when kind"),
        ({"sampling": CAP, **PLAIN}, "without noise"),
        ({"sampling": CAP, **banded()}, "truncated batches with correlated noise"),
        ({"sampling": CAP | {"max_batch_size": 49}}, "at least expected_batch_size"),
    ],
)
def test_sampling_that_contradicts_the_noise_is_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        recipe(stage(**changes))


NOMINAL = {"nominal": {"formula": "rdp", "reference": "a paper"}}


def test_paper_mode_meets_the_papers_figure_and_shows_what_it_costs():
    asked = {"relation": REPLACE, "target_epsilon": 1.0}
    sound = plan(stage(**NOMINAL), **asked)
    paper = plan(stage(**NOMINAL), **asked, mode=Mode.PAPER)
    assert 0.99 <= paper.stages[0].nominal_epsilon <= 1
    assert paper.stages[0].noise_multiplier < sound.stages[0].noise_multiplier
    assert paper.epsilon > 1 >= sound.epsilon


def test_paper_mode_adds_nominal_figures_over_stages():
    light = NOMINAL["nominal"] | {"rate_factor": 0.01}
    stages = [stage(**NOMINAL), stage(name="second", nominal=light)]
    made = plan(*stages, target_epsilon=3, mode=Mode.PAPER)
    figures = [s.nominal_epsilon for s in made.stages]
    assert 2.97 <= sum(figures) <= 3
    assert figures[1] < figures[0]


def test_paper_mode_makes_room_for_released_counts():
    asked = {"relation": REPLACE, "target_epsilon": 3.0, "mode": Mode.PAPER}
    alone = plan(stage(**NOMINAL), **asked)
    shared = plan(stage(**NOMINAL), **asked, counts_noise_multiplier=10.0)
    assert shared.counts_nominal_epsilon == pytest.approx(
        epsilon(dpe.GaussianDpEvent(10.0), delta=1e-4, relation=REPLACE)
    )
    assert 2.97 <= shared.nominal_epsilon <= 3
    assert shared.nominal_epsilon == pytest.approx(
        shared.stages[0].nominal_epsilon + shared.counts_nominal_epsilon
    )
    assert shared.stages[0].noise_multiplier > alone.stages[0].noise_multiplier
    # the twin: noise that was found without the release
    forgets = alone.stages[0].nominal_epsilon + shared.counts_nominal_epsilon
    assert forgets > 1.05 * 3


def test_paper_mode_counts_that_cost_more_than_the_target_are_refused():
    with pytest.raises(InfeasibleBudgetError):
        plan(
            stage(**NOMINAL),
            target_epsilon=0.5,
            mode=Mode.PAPER,
            counts_noise_multiplier=1.0,
        )


def test_released_counts_have_a_nominal_part_only_beside_a_paper_figure():
    made = plan(stage(), target_epsilon=3, counts_noise_multiplier=10.0)
    assert made.counts_nominal_epsilon is None
    assert made.nominal_epsilon is None


def test_paper_mode_without_a_formula_is_refused():
    with pytest.raises(ConfigError, match="nominal: must be set"):
        plan(stage(), target_epsilon=3, mode=Mode.PAPER)


def test_light_noise_claims_a_fraction_of_what_it_costs():
    light = {
        "epochs": 20,
        "expected_batch_size": 20,
        "noise": {"noise_multiplier": 0.6},
        "nominal": {"formula": "rdp", "reference": "JFT", "rate_factor": 0.005},
    }
    made = plan(stage(**light), target_epsilon=None, num_units=1000)
    assert made.epsilon > 5 * made.stages[0].nominal_epsilon


def test_record_target_is_refused_where_a_stage_has_no_noise():
    jft = validate(Recipe, read_yaml(RECIPES / "jft.yaml"))
    asked = {
        "num_units": 5000,
        "relation": REPLACE,
        "target_epsilon": 3.0,
        "target_delta": 1e-5,
    }
    assert plan_run(jft, notion=Notion.SELECTIVE, **asked).epsilon <= 3
    with pytest.raises(ConfigError, match="redacted_finetune trains without noise"):
        plan_run(jft, notion=Notion.RECORD, **asked)


STEERED = {
    "trains": "lora",
    "lora": {"rank": 4, "alpha": 8},
    "clipping": {"kind": "per_lora_pair", "max_grad_norm": 1.0},
    "controller": {},
}


def test_controller_acts_as_often_as_it_must_and_the_deck_is_what_is_charged():
    """40 steps: warm-up 4, then 36 actions; the pace of the paper from 3,600 on."""
    (made,) = plan(stage(**STEERED)).stages
    assert (made.warmup_steps, made.interval, made.num_actions) == (4, 1, 36)
    (long,) = plan(stage(**STEERED, epochs=180)).stages
    assert (long.warmup_steps, long.interval, long.num_actions) == (50, 112, 32)
    cards = made.training_plan().adaptive.cards
    assert sum(count for _, count in cards) == made.num_steps
    (flat,) = plan(stage()).stages
    assert 1.0 < made.noise_multiplier / flat.noise_multiplier < 1.03


def test_twin_whose_deck_is_charged_as_its_middle_is_caught():
    """The bug: the calibrated multiplier stands for all cards."""
    (made,) = plan(stage(**STEERED)).stages
    real = epsilon(made.dp_event(), delta=1e-4, relation=ADD)
    charged = plan(
        stage(noise={"noise_multiplier": made.noise_multiplier}), target_epsilon=None
    ).epsilon
    assert real > charged


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"interval": 3}, "controller.interval to at most 1, or to null"),
        ({"min_actions": 50}, "Raise stages.s.epochs"),
        ({"warmup_steps": 39}, "warmup_steps: there are 40 steps"),
    ],
)
def test_controller_that_hardly_acts_is_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        plan(stage(**STEERED | {"controller": changes}))


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"clipping": {"kind": "per_layer", "max_grad_norm": 1.0}}, "per_lora_pair"),
        ({"noise": {"correlation": "banded"}}, "independent"),
        ({"sampling": CAP}, "poisson"),
        (PLAIN, "without noise"),
        ({"controller": {"min_actions": 5}}, "min_actions"),
    ],
)
def test_controller_beside_what_it_cannot_steer_is_refused(changes, match):
    with pytest.raises(ValidationError, match=match):
        recipe(stage(**STEERED | changes))


def test_raw_controller_meets_the_papers_figure_and_certifies_nothing():
    raw = {"controller": {"count_share": 0.0, "clip_span": None}}
    gdp = {"nominal": {"formula": "gdp", "reference": "RLDP"}}
    made = plan(stage(**STEERED | raw | gdp), mode=Mode.PAPER)
    assert made.nominal_epsilon == pytest.approx(3.0, rel=0.02)
    assert made.epsilon == math.inf
    with pytest.raises(InfeasibleBudgetError):
        plan(stage(**STEERED | raw | gdp))


def test_sound_controller_in_the_papers_mode_costs_more_than_it_says():
    gdp = {"nominal": {"formula": "gdp", "reference": "RLDP"}}
    made = plan(stage(**STEERED | gdp), mode=Mode.PAPER)
    assert made.nominal_epsilon == pytest.approx(3.0, rel=0.02)
    assert 3.1 < made.epsilon < math.inf
