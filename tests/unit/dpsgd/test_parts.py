"""Units in parts: what is claimed is never less than the law that it is claimed of."""

import math
from dataclasses import replace

import dp_accounting
import numpy as np
import pytest
import torch
from scipy import stats

from dptune.accounting.accountants import epsilon
from dptune.accounting.events import is_non_private
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.parts import part_multipliers, public_batch
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.step import gradient_source
from dptune.errors import ConfigError, PrivacyError
from dptune.privacy import NeighboringRelation
from tests.support import models, oracles

REPLACE = NeighboringRelation.REPLACE_ONE
SHARES = (1.0, 2 / 3)
Q, M = 0.2, 1.1
PLAN = GradientPlan(
    noise_multiplier=M,
    sample_rate=Q,
    max_grad_norm=0.3,
    expected_batch_size=4.0,
    part_shares=SHARES,
)
GRID = np.linspace(-40, 60, 50_001)


def law(atoms, *, stddev=M):
    """Density on a line, of chances and places."""
    return sum(p * stats.norm.pdf(GRID, x, stddev) for p, x in atoms)


def delta_between(first, second, eps):
    """Hockey-stick divergence of two densities, the larger of both directions."""
    step = GRID[1] - GRID[0]
    both = ((first, second), (second, first))
    return max(np.maximum(p - math.exp(eps) * q, 0).sum() * step for p, q in both)


def own_coins(low, high):
    """One step of one unit, with C = 1: each part has a coin of its own."""
    coins = [(1 - Q, Q)[c] for c in (0, 1)]
    return law(
        [(coins[a] * coins[b], a * low + b * high) for a in (0, 1) for b in (0, 1)]
    )


def claimed(event, *, delta):
    return epsilon(event, delta=delta, relation=REPLACE)


@pytest.mark.parametrize("delta", [1e-2, 1e-4])
def test_claims_cover_the_law_of_a_step(delta):
    w = SHARES[1]
    both = claimed(PLAN.dp_event(1), delta=delta)
    found = delta_between(own_coins(1, w), own_coins(-1, -w), both)
    assert found <= delta
    for kind, pair in enumerate([((1, w), (-1, w)), ((1, w), (1, -w))]):
        alone = claimed(PLAN.part_event(kind, 1), delta=delta)
        assert alone < both
        assert delta_between(*(own_coins(*x) for x in pair), alone) <= delta


def test_claims_are_not_far_above_the_law():
    delta = 1e-4
    alone = claimed(PLAN.part_event(0, 1), delta=delta)
    assert delta_between(own_coins(1, 0), own_coins(-1, 0), 0.98 * alone) > delta


@pytest.mark.parametrize("planted", ["one coin", "rest in the batch", "quadrature"])
def test_other_readings_of_the_mechanism_cost_more_than_is_claimed(planted):
    delta, w = 1e-4, SHARES[1]
    alone = claimed(PLAN.part_event(0, 1), delta=delta)
    if planted == "one coin":  # the other tier tells who was drawn
        pair = [law([(1 - Q, 0), (Q, x + 3 * w)]) for x in (1, -1)]
    elif planted == "rest in the batch":  # so does what is not clipped
        pair = [law([(1 - Q, 0), (Q, x + 30)]) for x in (1, -1)]
    else:  # shares that were added up as if tiers moved different weights
        multiplier = M / math.hypot(*SHARES)
        event = dp_accounting.PoissonSampledDpEvent(
            1.0, dp_accounting.GaussianDpEvent(multiplier)
        )
        alone = claimed(event, delta=delta)
        pair = [law([(1, x * (1 + w))]) for x in (1, -1)]
    assert delta_between(*pair, alone) > 1.5 * delta


def test_multipliers_add_up_as_bounds_do():
    total = sum(m**-2 for m in part_multipliers(M, SHARES))
    assert total == pytest.approx((sum(SHARES) / M) ** 2)
    assert part_multipliers(M, (1.0,)) == (M,)


def test_without_amplification_the_split_of_noise_loses_nothing():
    whole = dp_accounting.GaussianDpEvent(M / sum(SHARES))
    full = replace(PLAN, sample_rate=1.0)
    assert claimed(full.dp_event(1), delta=1e-4) == pytest.approx(
        claimed(whole, delta=1e-4), rel=1e-3
    )


def test_parts_that_depend_on_one_another_promise_nothing():
    mixed = replace(PLAN, mixed_parts=True)
    assert is_non_private(mixed.dp_event(3))
    assert is_non_private(mixed.part_event(0, 3))


@pytest.mark.parametrize(
    "changes",
    [
        {"part_shares": (0.0, 1.0)},
        {"part_shares": (1.5,)},
        {"part_shares": (), "mixed_parts": True},
        {"sampling": "truncated_poisson", "max_batch_size": 9, "num_units": 20},
    ],
)
def test_shares_that_mean_nothing_are_refused(changes):
    with pytest.raises(ConfigError):
        replace(PLAN, **changes)


def in_parts(*, seed=3):
    """Six units of two parts each, and what joins without noise."""
    data = oracles.random_data(rows_per_unit=(1,) * 12, seed=seed)
    beside = oracles.random_data(rows_per_unit=(1,) * 6, seed=9)
    return replace(data, kinds=np.arange(12) % 2, unnoised=beside)


def feed_of(data):
    return Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=8.0),
        physical_batch_size=100,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )


def released(plan, data, indices, *, step=0, seed=0):
    model = models.tiny_gpt2().eval()
    with gradient_source(
        model, plan=plan, feed=feed_of(data), seed=seed, attempt=0
    ) as source:
        source.compute(np.asarray(indices), step=step)
        return {n: p.grad.clone() for n, p in model.named_parameters()}


def naive(data):
    loss = CausalLoss(loss_normalizer=8.0)
    model = models.tiny_gpt2().eval()
    return oracles.naive_unit_gradients(model, loss, data, pad_token_id=0)


def test_step_is_clipped_parts_and_the_unnoised_mean():
    data, plan = in_parts(), replace(PLAN, noise_multiplier=0.0)
    found = released(plan, data, range(6), step=1)
    expected = {}
    for kind, share in enumerate(SHARES):
        own = [g for i, g in enumerate(naive(data)[:6]) if i % 2 == kind]
        clipped = oracles.naive_clipped_sum(own, max_grad_norm=0.3 * share)
        for name, value in clipped.items():
            expected[name] = expected.get(name, 0) + value / 4.0
    chosen = public_batch(1, num_units=6, batch_size=4)
    gradients = naive(data.unnoised)
    for name in expected:
        expected[name] += sum(gradients[i][name] for i in chosen) / 4.0
    assert oracles.distance(found, expected) < 1e-5 * oracles.norm(expected)


def test_unnoised_batches_visit_everything_in_a_public_order():
    epoch = [public_batch(step, num_units=10, batch_size=4) for step in range(3)]
    assert sorted(np.concatenate(epoch)) == list(range(10))
    assert np.array_equal(epoch[1], public_batch(1, num_units=10, batch_size=4))
    later = [public_batch(step, num_units=10, batch_size=4) for step in (3, 4, 5)]
    assert not all(np.array_equal(a, b) for a, b in zip(epoch, later, strict=True))


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        (PLAN, {"kinds": None}),
        (replace(PLAN, part_shares=()), {}),
        (replace(PLAN, part_shares=(1.0,)), {}),
        (replace(PLAN, part_shares=()), {"kinds": None}),
        (PlainPlan(batch_size=2), {}),
    ],
    ids=["no kinds", "no shares", "unknown kind", "no noise for the rest", "no clip"],
)
def test_data_that_the_plan_does_not_speak_of_are_refused(plan, changes):
    with pytest.raises(PrivacyError, match="part_shares"):
        released(plan, replace(in_parts(), **changes), [0])


def test_kinds_and_what_joins_without_noise_tell_data_apart():
    data = in_parts()
    twins = (
        replace(data, kinds=np.arange(12)[::-1] % 2),
        replace(data, unnoised=None),
        replace(data, kinds=None),
    )
    assert len({data.digest(), *(twin.digest() for twin in twins)}) == 4


def test_columns_are_grouped_into_parts():
    data = UnitDataset.from_columns(
        [[1, 2], [3, 4], [5, 6]],
        [[0.0, 1.0]] * 3,
        ["0 a", "1 a", "0 a"],
        max_sequences_per_unit=2,
        kinds=[0, 1, 0],
    )
    assert data.kinds.tolist() == [0, 1]
    assert data.collate([1, 0], 0).kinds.tolist() == [1, 0]
    filled = data.collate([1], 0).filled(num_rows=3, num_tokens=2, pad_token_id=0)
    assert filled.kinds.tolist() == [1, 0, 0]
