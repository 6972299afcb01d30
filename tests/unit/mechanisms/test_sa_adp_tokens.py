"""Algorithm 2 of SA-ADP, token by token, beside the groups that are trained."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.step import gradient_source
from dptune.mechanisms.sa_adp import PROTECTED, Tier, group_view
from tests.support import models, oracles

LOSS = CausalLoss(loss_normalizer=8.0)
SIGMA = {Tier.NONE: 0.0, Tier.LOW: 2.0, Tier.HIGH: 3.0}
LENGTH, NUM_RECORDS = 7, 4
ONE_EACH = (0, 0, 1, 0, 2, 0, 0)
SEVERAL = (0, 1, 1, 2, 2, 2, 0)


def records(tiers, *, seed=0):
    """Tokens of some records, and the tier of each token."""
    draws = np.random.default_rng(seed)
    return [
        (draws.integers(2, 29, LENGTH), np.array(tiers)) for _ in range(NUM_RECORDS)
    ]


def rows(pairs):
    """A data set of given tokens and weights, a unit each."""
    return UnitDataset(
        sequences=Ragged.of([tokens for tokens, _ in pairs], np.int64),
        loss_weights=Ragged.of(
            [weights.astype(np.float32) for _, weights in pairs], np.float32
        ),
        units=Ragged.of([np.array([i]) for i in range(len(pairs))], np.int64),
    )


def token_wise(found, *, max_norm):
    """Clip the gradient of every single token; return sums and noise of algorithm 2.

    Returns:
        Sum over tokens by tier, and the variance of the noise that the algorithm adds.
    """
    sums, variance = {}, 0.0
    for tokens, tiers in found:
        for place in range(1, LENGTH):
            tier = Tier(tiers[place])
            alone = rows([(tokens, np.eye(LENGTH)[place])])
            (gradient,) = oracles.naive_unit_gradients(
                models.tiny_gpt2().eval(), LOSS, alone, pad_token_id=0
            )
            clipped = oracles.naive_clipped_sum([gradient], max_grad_norm=max_norm)
            total = sums.setdefault(tier, dict.fromkeys(clipped, 0))
            sums[tier] = {n: total[n] + v for n, v in clipped.items()}
            variance += (SIGMA[tier] * max_norm) ** 2
    return sums, variance


def grouped(found, *, max_norm):
    """Return what the engine releases of the groups, without noise."""
    ones = np.ones(LENGTH, np.float32)
    views = [
        (kind, group_view(tokens, ones, tiers, group=tier, mask=None))
        for kind, tier in enumerate(PROTECTED)
        for tokens, tiers in found
    ]
    data = replace(
        rows([view for _, view in views]), kinds=np.array([kind for kind, _ in views])
    )
    plan = GradientPlan(
        noise_multiplier=0.0,
        sample_rate=1.0,
        max_grad_norm=max_norm,
        expected_batch_size=1.0,
        part_shares=(1.0, 1.0),
        mixed_parts=True,
    )
    feed = Feed(
        data=data,
        record_loss=LOSS,
        physical_batch_size=100,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )
    model = models.tiny_gpt2().eval()
    with gradient_source(model, plan=plan, feed=feed, seed=0, attempt=0) as source:
        source.compute(np.arange(len(views)), step=0)
        return {n: p.grad.double() for n, p in model.named_parameters()}


def apart(found, *, max_norm):
    """Relative distance of both forms, over all tiers that get noise."""
    sums, _ = token_wise(found, max_norm=max_norm)
    low, high = (sums[tier] for tier in PROTECTED)
    exact = {name: low[name] + high[name] for name in low}
    distance = oracles.distance(grouped(found, max_norm=max_norm), exact)
    return distance / oracles.norm(exact)


def test_groups_of_one_token_are_the_paper():
    assert apart(records(ONE_EACH), max_norm=0.05) < 1e-5


@pytest.mark.parametrize(("max_norm", "equal"), [(1e6, True), (0.05, False)])
def test_groups_of_several_tokens_differ_by_the_clip_alone(max_norm, equal):
    assert (apart(records(SEVERAL), max_norm=max_norm) < 1e-5) is equal


def test_noise_of_the_paper_tells_how_many_secrets_there_are():
    """Which is why its form is not certified, and not copied into the sound one."""
    one, several = (
        token_wise(records(tiers)[:1], max_norm=1.0)[1] for tiers in (ONE_EACH, SEVERAL)
    )
    assert one == 2.0**2 + 3.0**2
    assert several == 2 * 2.0**2 + 3 * 3.0**2


def test_losses_without_noise_name_the_secret_in_the_papers_form():
    """Rows of the embedding move that only a protected token can move."""
    (tokens, tiers), ones = records(ONE_EACH)[0], np.ones(LENGTH, np.float32)
    secret = int(tokens[4])
    moved = {}
    for mask in (None, 0):
        view = group_view(tokens, ones, tiers, group=Tier.NONE, mask=mask)
        model = models.tiny_gpt2(tied=False).eval()
        (gradient,) = oracles.naive_unit_gradients(
            model, LOSS, rows([view]), pad_token_id=0
        )
        (name,) = [n for n in gradient if n.endswith("wte.weight")]
        others = {int(t) for i, t in enumerate(tokens) if i != 4}
        assert secret not in others
        moved[mask] = float(gradient[name][secret].norm())
    assert moved[None] > 0
    assert moved[0] == 0
