"""What-if tables: asked of the plan that would train, honest about banded noise."""

import math

import numpy as np
import pytest
from scipy import signal

from dptune.accounting.accountants import epsilon
from dptune.accounting.ledger import PrivacyLedger
from dptune.dpsgd.factorization import INDEPENDENT, prefix_sum_error, step_error
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, UnitsFrom
from dptune.recipes import Recipe
from dptune.workflow.charging import planned_ledger
from dptune.workflow.what_if import calibration, changed, noise_cost
from tests.support.events import poisson_gaussian_event
from tests.unit.reports.samples import corpus_report

ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE
DELTA = 1e-4
PLAIN = {"clipping": None, "noise": None}
BANDED = {"noise": {"correlation": "banded", "num_bands": 4}}
CAPPED = {"sampling": {"kind": "truncated_poisson", "max_batch_size": 80}}


def stage(name="s", **changes):
    return {
        "name": name,
        "view": "original",
        "epochs": 3,
        "expected_batch_size": 50,
        "optimizer": {"learning_rate": 0.1},
        "clipping": {"max_grad_norm": 0.5},
        "noise": {},
    } | changes


def plan(*stages, **changes):
    made = Recipe.model_validate({"name": "r", "title": "R", "stages": stages})
    values = {
        "num_units": 1000,
        "notion": Notion.RECORD,
        "relation": ADD,
        "target_epsilon": 3.0,
        "target_delta": DELTA,
    } | changes
    return plan_run(made, **values)


def ask(*stages, seed=None, corpus=None, **changes):
    made = plan(*stages, **changes)
    ledger = planned_ledger(
        made,
        corpus or corpus_report(deduplicated=False),
        redaction="mask",
        fixed_seed=seed is not None,
    )
    return calibration(made, config="c", ledger=ledger)


@pytest.mark.parametrize("changes", [{}, BANDED, CAPPED], ids=["one", "bands", "cap"])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_planned_cells_are_the_epsilon_of_the_plan(changes, relation):
    found = ask(stage(**changes), relation=relation)
    for grid in (found.what_if.by_batch, found.what_if.by_noise):
        row, column = grid.planned
        assert grid.epsilon[row][column] == found.epsilon
        assert grid.num_steps[row][column] == 60


def test_grid_of_poisson_sampling_is_that_of_the_accounting_room():
    grid = ask(stage()).what_if.by_batch
    noise = ask(stage()).stages[0].noise.noise_multiplier
    for size, epsilons, steps in zip(
        grid.rows, grid.epsilon, grid.num_steps, strict=True
    ):
        events = [
            poisson_gaussian_event(
                sample_rate=size / 1000, noise_multiplier=noise, num_steps=count
            )
            for count in steps
        ]
        expected = [epsilon(event, delta=DELTA, relation=ADD) for event in events]
        assert epsilons == pytest.approx(expected)


@pytest.mark.parametrize("changes", [{}, BANDED, CAPPED], ids=["one", "bands", "cap"])
def test_epsilon_rises_with_batch_and_epochs_and_falls_with_noise(changes):
    found = ask(stage(**changes)).what_if
    by_batch, by_noise = np.array(found.by_batch.epsilon), found.by_noise.epsilon
    assert (np.diff(by_batch, axis=1) > 0).all()
    assert (np.diff(np.array(by_noise), axis=0) < 0).all()
    if not changes:
        assert (np.diff(by_batch, axis=0) > 0).all()


def test_targets_are_met_under_both_relations():
    for choice in ask(stage()).what_if.targets:
        for noise, relation in ((choice.add_or_remove, ADD), (choice.replace, REPLACE)):
            event = plan(stage()).stages[0].with_noise(noise.noise_multiplier)
            spent = epsilon(event.dp_event(60), delta=DELTA, relation=relation)
            assert 0.98 * choice.target_epsilon < spent <= choice.target_epsilon
        assert choice.replace.run_noise > choice.add_or_remove.run_noise


def test_other_batches_meet_the_planned_target():
    choices = ask(stage(**CAPPED)).what_if.batches
    assert [c.expected_batch_size for c in choices] == [12, 25, 50, 100, 200]
    assert [c.num_steps for c in choices] == [250, 120, 60, 30, 15]
    for choice in choices:
        other = changed(
            plan(stage(**CAPPED)).stages[0], batch_size=choice.expected_batch_size
        )
        event = other.with_noise(choice.noise.noise_multiplier)
        spent = epsilon(event.dp_event(other.num_steps), delta=DELTA, relation=ADD)
        assert spent <= 3.0
        assert event.max_batch_size == math.ceil(80 * choice.expected_batch_size / 50)


# noise in the mean


def test_independent_noise_in_the_mean_is_the_multiplier_over_the_batch():
    (only,) = plan(stage()).stages
    cost = noise_cost(only)
    expected = pytest.approx(only.noise_multiplier / 50)
    assert (cost.step_noise, cost.run_noise) == (expected, expected)
    assert cost.signal_to_noise == pytest.approx(math.sqrt(60) / cost.run_noise)


def test_banded_noise_is_larger_in_a_step_and_smaller_over_the_run():
    (only,) = plan(stage(**BANDED)).stages
    cost, alone = noise_cost(only), only.noise_multiplier / 50
    assert cost.run_noise < alone < cost.step_noise


def test_banded_noise_in_a_step_is_what_simulation_shows():
    (only,) = plan(stage(**BANDED)).stages
    draws = np.random.default_rng(0).standard_normal((20_000, 60))
    noise = signal.lfilter([1.0], only.noise_coefficients, draws, axis=1)
    bands = only.noise_coefficients
    step = math.sqrt((noise**2).mean())
    run = math.sqrt((noise.cumsum(axis=1) ** 2).mean())
    assert step_error(bands, num_steps=60) == pytest.approx(step, rel=0.02)
    assert prefix_sum_error(bands, num_steps=60) == pytest.approx(run, rel=0.02)
    assert step_error(INDEPENDENT, num_steps=60) == pytest.approx(1)


def test_twin_that_takes_bands_for_independent_noise_is_caught():
    (only,) = plan(stage(**BANDED)).stages
    cost, twin = noise_cost(only), only.noise_multiplier / 50
    assert abs(twin / cost.run_noise - 1) > 0.1
    assert abs(twin / cost.step_noise - 1) > 0.02


# promises


@pytest.mark.parametrize(
    ("stages", "statuses"),
    [
        ((stage(),), ["conditional", "certified", "certified"]),
        ((stage("a", view="redacted", **PLAIN), stage()), [*2 * ["none"], "condi"]),
        ((stage("a", **PLAIN), stage()), ["none"] * 3),
    ],
    ids=["noisy", "redacted first", "original first"],
)
def test_promises_follow_from_the_stages_without_noise(stages, statuses):
    found = ask(*stages).promises
    assert [p.status[:5] for p in found] == [s[:5] for s in statuses]
    for promise in found:
        assert math.isinf(promise.epsilon) is (promise.status == "none")
    assert found[0].noisy_epsilon < found[1].noisy_epsilon == found[2].noisy_epsilon
    assert [p.is_target for p in found] == [True, False, False]


@pytest.mark.parametrize("origin", [UnitsFrom.DECLARED, UnitsFrom.RELEASED])
def test_public_number_of_units_makes_a_promise_about_presence_certified(origin):
    assert {p.status for p in ask(stage(), units_from=origin).promises} == {"certified"}


@pytest.mark.parametrize(
    ("reported", "changes"),
    [
        ({"deduplicated": True}, {}),
        ({"sampled": True}, {}),
        ({"assumes": ("canary_hosts_are_fixed",)}, {}),
        ({"marks_assume": ("private_review_lists",)}, {"view": "redacted"}),
        ({"marks_assume": ("marks_follow_one_text",)}, {"view": "redacted"}),
    ],
)
def test_promise_names_what_will_weaken_the_claim(reported, changes):
    corpus = corpus_report(**{"deduplicated": False} | reported)
    found = ask(stage(**changes), corpus=corpus, units_from=UnitsFrom.DECLARED)
    for promise in found.promises:
        assert promise.status == "conditional"
        assert promise.assumptions


def test_marks_weaken_no_promise_of_a_stage_that_sees_none():
    lists = ("private_review_lists",)
    corpus = corpus_report(deduplicated=False, marks_assume=lists)
    found = ask(stage(), corpus=corpus, units_from=UnitsFrom.DECLARED)
    assert {p.status for p in found.promises} == {"certified"}


def test_promise_under_a_known_seed_is_none():
    assert {p.status for p in ask(stage(), seed=3).promises} == {"none"}


def test_twin_that_knows_the_number_of_units_only_is_caught():
    """The promise that was made before: it follows from views and counted units."""
    corpus = corpus_report(deduplicated=True)
    found = ask(stage(), corpus=corpus, units_from=UnitsFrom.DECLARED).promises
    old = ask(stage(), units_from=UnitsFrom.DECLARED).promises
    assert {p.status for p in old} == {"certified"} != {p.status for p in found}


def test_redacted_text_alone_promises_nothing_about_records():
    found = ask(stage(view="redacted", **PLAIN), target_epsilon=None)
    assert [p.epsilon for p in found.promises] == [math.inf, math.inf, 0.0]
    assert found.what_if is None


# which stage, which noise


def test_other_noisy_stages_stay_in_the_account():
    first = stage("a", epochs=1, noise={"noise_multiplier": 2.0})
    found = ask(first, stage("b"))
    assert found.what_if.stage == "b"
    row, column = found.what_if.by_noise.planned
    assert found.what_if.by_noise.epsilon[row][column] == found.epsilon
    assert (
        min(found.what_if.by_noise.epsilon[-1])
        > 0.5 * plan(first, target_epsilon=None).epsilon
    )


def test_given_noise_has_targets_but_no_target_to_keep():
    found = ask(stage(noise={"noise_multiplier": 1.0}), target_epsilon=None)
    assert found.what_if.batches == ()
    assert found.what_if.hint == ""
    assert all(t.add_or_remove for t in found.what_if.targets)
    assert not any(t.is_planned for t in found.what_if.targets)


def test_target_below_what_is_spent_elsewhere_is_impossible_not_an_error():
    first = stage("a", noise={"noise_multiplier": 1.0})
    found = ask(first, stage("b"), target_epsilon=8.0)
    assert found.what_if.targets[0].add_or_remove is None
    assert found.what_if.targets[-1].add_or_remove is not None


def test_bands_that_do_not_fit_another_batch_are_cut():
    (only,) = plan(stage(**BANDED)).stages
    assert changed(only, batch_size=200).num_bands == 4
    assert changed(only, batch_size=400).num_bands == 2
    assert changed(only, batch_size=1000).num_bands == 1
    assert changed(only, epochs=0.1).num_bands == 2


# the hint


def test_hint_speaks_for_a_larger_batch_only_where_it_pays():
    small = ask(stage(expected_batch_size=2, epochs=1), target_epsilon=8.0)
    assert "would raise the signal-to-noise" in small.what_if.hint
    large = ask(stage(expected_batch_size=200, epochs=10), target_epsilon=0.5)
    assert "would raise" not in large.what_if.hint


def test_progress_is_told():
    told = []
    ledger = PrivacyLedger()
    calibration(plan(stage()), config="c", ledger=ledger, on_progress=told.append)
    assert len(told) >= 3
