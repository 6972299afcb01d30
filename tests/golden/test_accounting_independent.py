"""Random histories: what the ledger claims against a quadrature it never looks at.

The quadrature evaluates characteristic functions of the dominating pair on a contour;
it shares the pair with the ledger's accountant and nothing else, and was itself checked
against closed forms and direct integration in `tests/unit/accounting`. Bar: never
smaller (beyond the quadrature's own error of 5e-4 in delta), at most 0.5 % larger.
`benchmarks/accounting.py schedules` does the same with thousands of histories.
"""

import math

import numpy as np
import pytest

from dptune.accounting.accountants import Accountant, epsilon
from dptune.accounting.events import merge_events
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.accounting.quadrature import quadrature_delta
from dptune.privacy import NeighboringRelation, Notion
from tests.support.events import poisson_gaussian_event

RELATIONS = list(NeighboringRelation)


def random_ledger(seed):
    """A history of one to four blocks, heterogeneous over orders of magnitude."""
    rng = np.random.default_rng(seed)
    ledger, realised = PrivacyLedger(), []
    for block in range(int(rng.integers(1, 5))):
        numbers = {
            "sample_rate": float(10 ** rng.uniform(-2.5, -0.7)),
            "noise_multiplier": float(10 ** rng.uniform(-0.1, 1)),
            "num_steps": int(10 ** rng.uniform(1, 3)),
        }
        event = poisson_gaussian_event(**numbers)
        realised.append(event)
        ledger = ledger.append(
            LedgerEntry(
                stage=f"block_{block}",
                recipe="random",
                data_fingerprint="none",
                privacy_unit="record",
                view="original",
                dp_event=event,
                **numbers,
            )
        )
    return ledger, merge_events(realised)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("seed", range(12))
def test_ledger_is_never_smaller_and_at_most_half_a_percent_larger(seed, relation):
    ledger, realised = random_ledger(seed)
    delta = [1e-4, 1e-6, 1e-8][seed % 3]
    exact = epsilon(
        realised, delta=delta, relation=relation, accountant=Accountant.QUADRATURE
    )
    claimed = ledger.certificate(Notion.RECORD, delta=delta, relation=relation).epsilon
    assert exact * (1 - 2e-4) - 1e-6 <= claimed <= exact * 1.005 + 1e-6
    spent = quadrature_delta(realised, epsilon=claimed, relation=relation)
    assert spent <= delta * 1.001


@pytest.mark.parametrize("relation", RELATIONS)
def test_ledger_twin_without_its_costliest_block_is_caught(relation):
    ledger, realised = random_ledger(1)
    costs = [
        epsilon(entry.dp_event, delta=1e-6, relation=relation)
        for entry in ledger.entries
    ]
    kept = [
        e for e, cost in zip(ledger.entries, costs, strict=True) if cost < max(costs)
    ]
    twin = PrivacyLedger(entries=tuple(kept))
    exact = epsilon(
        realised, delta=1e-6, relation=relation, accountant=Accountant.QUADRATURE
    )
    claimed = twin.certificate(Notion.RECORD, delta=1e-6, relation=relation).epsilon
    assert claimed < exact * (1 - 1e-3)


def test_selective_twin_accounted_as_add_or_remove_is_caught():
    ledger, realised = random_ledger(2)
    exact = epsilon(
        realised,
        delta=1e-6,
        relation=NeighboringRelation.REPLACE_ONE,
        accountant=Accountant.QUADRATURE,
    )
    twin = epsilon(realised, delta=1e-6, relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    sound = ledger.certificate(Notion.SELECTIVE, delta=1e-6).epsilon
    assert twin < exact * 0.95 < sound
    assert math.isclose(sound, exact, rel_tol=0.01)
