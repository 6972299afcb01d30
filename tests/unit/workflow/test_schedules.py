"""A noise that moves is drawn, charged and reserved as it moves."""

import dp_accounting
import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.events import merge_events
from dptune.dpsgd.noise import IndependentNoise
from dptune.privacy import NeighboringRelation, Notion
from dptune.workflow.budget import planned_costs
from dptune.workflow.train_stage import run_stage

from .conftest import PERFORMANCE, run_plan, stage
from .test_training import EMPTY

RISING = {
    "noise_multiplier": 1.0,
    "schedule": "rise_reset",
    "rise_reset": {"growth": 2.0, "ceiling": 3.0},
}
WEIGHTS = {"sensitive_share": 0.17}
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


def rising(num_units, **changes):
    changes = {"epochs": 3, "noise": RISING} | changes
    return run_plan(stage(**changes), num_units=num_units).stages[0]


def test_levels_are_drawn_once_for_an_epoch_each(corpus):
    plan = rising(32)
    assert len(plan.noise_levels) == 3
    assert plan.num_steps == 12
    runs = plan.noise_runs(0, 12)
    assert [count for _, count in runs] == [4, 4, 4]
    assert plan == rising(32)


def test_every_step_has_the_noise_that_it_paid_for(make_inputs, tmp_path, monkeypatch):
    inputs = make_inputs(epochs=3, noise=RISING)
    drawn = {}
    honest = IndependentNoise.add

    def watch(self, sums, *, step):
        drawn[step] = self._noise_stddev(step) / 0.5
        honest(self, sums, step=step)

    monkeypatch.setattr(IndependentNoise, "add", watch)
    outcome = run_stage(inputs, EMPTY, folder=tmp_path, performance=PERFORMANCE)
    spent = merge_events([entry.dp_event for entry in outcome.ledger.entries])
    realized = dp_accounting.ComposedDpEvent(
        [
            dp_accounting.PoissonSampledDpEvent(
                inputs.plan.sample_rate, dp_accounting.GaussianDpEvent(sigma)
            )
            for _, sigma in sorted(drawn.items())
        ]
    )
    assert len(set(drawn.values())) == 3
    values = [epsilon(e, delta=1e-3, relation=ADD) for e in (spent, realized)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_reservation_holds_the_sum_of_the_blocks(corpus):
    plan = run_plan(stage(epochs=3, noise=RISING), num_units=32)
    costs = planned_costs(
        plan, corpus.report, redaction="mask", block_size=3, seeded=False
    )
    whole, spare = (c.event(Notion.RECORD) for c in costs)
    expected = plan.stages[0].dp_event()
    assert epsilon(whole, delta=1e-3, relation=ADD) == pytest.approx(
        epsilon(expected, delta=1e-3, relation=ADD), rel=1e-9
    )
    least = min(sigma for sigma, _ in plan.stages[0].noise_runs(0, 12))
    worst = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(
            8 / 32, dp_accounting.GaussianDpEvent(least)
        ),
        3,
    )
    assert epsilon(spare, delta=1e-3, relation=ADD) == pytest.approx(
        epsilon(worst, delta=1e-3, relation=ADD), rel=1e-9
    )


def test_nominal_figure_is_kept_beside_the_certificate(corpus):
    nominal = {"formula": "rdp", "reference": "a paper"}
    plan = rising(32, nominal=nominal)
    sound = epsilon(plan.dp_event(), delta=1e-3, relation=ADD)
    assert plan.nominal_epsilon > sound


def test_weights_follow_the_spans(make_inputs, corpus, tmp_path):
    spans = [[] for _ in corpus.dataset]
    labelled = corpus.with_dataset(corpus.dataset.add_column("spans", spans))
    found = []
    for text in labelled.dataset["text"]:
        found.append([{"start": 0, "end": len(text), "entity_type": "PERSON"}])
    marked = corpus.with_dataset(corpus.dataset.add_column("spans", found))
    outcomes = {}
    for name, seen in {"none": labelled, "all": marked}.items():
        inputs = make_inputs(token_weights=WEIGHTS, seed=1, corpus=seen)
        outcome = run_stage(
            inputs, EMPTY, folder=tmp_path / name, performance=PERFORMANCE
        )
        outcomes[name] = (inputs.key(), outcome.bundle.digest)
    assert outcomes["none"][0] != outcomes["all"][0]
    assert outcomes["none"][1] != outcomes["all"][1]
