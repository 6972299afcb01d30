"""An adaptive stage is charged once, to journal and store, and resumes for nothing."""

from dataclasses import replace

import pytest

from dptune.accounting.adaptive import Card, DeckTerms
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.privacy import Notion
from dptune.stages import StagePlan
from dptune.workflow.budget import budget_cost, planned_costs
from dptune.workflow.train_stage import run_stage

from .conftest import PERFORMANCE, run_plan, stage


class Killed(BaseException):
    pass


class Restless:
    def wish(self, step):
        return 1.0 + step % 2

    def observe(self, released, *, step):
        assert released


def deck_of(rate):
    cards = [
        (Card(sample_rate=rate, noise_multiplier=noise), 4) for noise in (1.0, 2.0)
    ]
    return DeckTerms(cards=tuple(cards))


@pytest.fixture
def adaptive(monkeypatch):
    """Every private stage gets a deck of eight cards."""
    fixed = StagePlan.training_plan

    def with_deck(self):
        plan = fixed(self)
        return replace(plan, adaptive=deck_of(plan.sample_rate))

    monkeypatch.setattr(StagePlan, "training_plan", with_deck)


def run(inputs, folder, spend, **changes):
    return run_stage(
        inputs,
        PrivacyLedger(),
        folder=folder,
        performance=PERFORMANCE,
        spend=spend,
        controller=Restless(),
        **changes,
    )


@pytest.mark.usefixtures("adaptive")
def test_adaptive_stage_is_charged_once_whatever_is_killed(
    make_inputs, corpus, tmp_path
):
    inputs, spent = make_inputs(), []

    def kill(progress):
        if progress.step == 3:
            raise Killed

    with pytest.raises(Killed):
        run(inputs, tmp_path, spent.append, on_step=kill)
    outcome = run(inputs, tmp_path, spent.append)
    assert outcome.report.num_steps == 5
    assert outcome.report.resumed_from_step == 2
    assert len(spent) == 1
    journal = LedgerJournal(tmp_path / inputs.key() / "ledger.jsonl")
    assert journal.read().entries == tuple(spent) == outcome.ledger.entries
    assert spent[0].dp_event == deck_of(inputs.plan.sample_rate).event
    whole, spare = planned_costs(
        run_plan(stage(), num_units=inputs.plan.num_units),
        corpus.report,
        redaction="mask",
        block_size=PERFORMANCE.block_size,
        seeded=False,
    )
    assert whole == budget_cost(spent[0])
    assert not spare.count(Notion.RECORD)
