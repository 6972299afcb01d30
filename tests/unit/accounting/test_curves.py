"""Epsilon so far is that of everything so far, composed, and never falls."""

import math

import pytest

from dptune.accounting.accountants import epsilon
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.accounting.progress import USUAL_TERMS, ledger_curves
from dptune.privacy import NeighboringRelation, Notion
from tests.support.events import poisson_gaussian_event

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


def entry(stage="private", steps=10, **changes):
    values = {
        "stage": stage,
        "recipe": "dp_sgd",
        "data_fingerprint": "abc",
        "privacy_unit": "record",
        "view": "original",
        "dp_event": poisson_gaussian_event(
            sample_rate=0.05, noise_multiplier=1.1, num_steps=steps
        ),
        "num_steps": steps,
    }
    return LedgerEntry(**values | changes)


def curves(*entries, notion=Notion.RECORD):
    found = ledger_curves(PrivacyLedger(entries=entries), delta=1e-5)
    return [curve for curve in found if curve.notion == notion]


def exact(steps):
    event = poisson_gaussian_event(
        sample_rate=0.05, noise_multiplier=1.1, num_steps=steps
    )
    return epsilon(event, delta=1e-5, relation=ADD)


def test_no_entries_have_no_curves():
    assert ledger_curves(PrivacyLedger(), delta=1e-5) == ()


def test_curve_ends_at_the_epsilon_of_the_ledger():
    (curve,) = curves(*[entry()] * 20)
    assert curve.steps[-1] == 200
    assert curve.epsilon[-1] == pytest.approx(exact(200))
    assert len(curve.steps) <= 9
    for steps, spent in zip(curve.steps[1:], curve.epsilon[1:], strict=True):
        assert spent == pytest.approx(exact(steps))


def test_second_stage_goes_on_where_the_first_ended():
    first, second = curves(entry("a"), entry("b"), entry("b"))
    assert (first.stage, second.stage) == ("a", "b")
    assert second.steps[0] == first.steps[-1] == 10
    assert second.epsilon[0] == first.epsilon[-1] > 0
    assert second.epsilon[-1] == pytest.approx(exact(30))


def test_twin_that_adds_epsilons_would_be_larger():
    (curve,) = curves(entry(), entry())
    assert curve.epsilon[-1] < 2 * exact(10) * 0.95


def test_known_seed_costs_everything():
    (curve,) = curves(entry(), entry(fixed_seed=True))
    assert math.isfinite(curve.epsilon[1])
    assert math.isinf(curve.epsilon[-1])


def test_every_usual_notion_has_a_curve():
    found = ledger_curves(PrivacyLedger(entries=(entry(),)), delta=1e-5)
    assert [(c.notion, c.relation) for c in found] == list(USUAL_TERMS)
