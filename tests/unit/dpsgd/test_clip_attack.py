"""Units that are made to break the clip, through whole steps, and the twins they break.

`benchmarks/clip_attack.py` is the large version.
"""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dptune.dpsgd import feed as feeding
from dptune.dpsgd.clipping import FlatClip
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.rounding import norm_bound
from dptune.dpsgd.step import gradient_source
from dptune.dpsgd.terms import Outer, Scatter
from dptune.errors import PrivacyError
from tests.support import models, oracles
from tests.support.clip_attack import KINDS, PATHS, Arena, make_unit

# peft 0.21 asks transformers 5.23 by a name that is on its way out.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)

PLAN = GradientPlan(
    noise_multiplier=0.0, sample_rate=1.0, max_grad_norm=1.0, expected_batch_size=1.0
)
BOUND = 1 + 1e-6


def arena(path, **options):
    return Arena(path=path, plan=PLAN, **options)


def worst(path, *, kinds=KINDS, num=2, **options):
    """The largest norm that a unit added, over C."""
    generator = torch.Generator().manual_seed(1)
    place = arena(path, **options)
    with place.opened() as added:
        return max(
            float(added(make_unit(kind, place.natural(generator), generator)).norm())
            for kind in kinds
            for _ in range(num)
        )


@pytest.mark.parametrize(
    "mode",
    [
        {},
        {"autocast": True, "checkpointed": True},
        {"alone": True},
        {"alone": True, "autocast": True, "checkpointed": True},
    ],
)
@pytest.mark.parametrize("path", PATHS)
def test_unit_made_to_break_the_clip_adds_no_more_than_the_bound(path, mode):
    assert 0.5 < worst(path, **mode) <= BOUND


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("path", ["gram", "tied", "dense"])
def test_unit_of_several_rows_adds_no_more_than_the_bound(path, alone):
    assert worst(path, rows=3, num=1, alone=alone) <= BOUND


def test_norm_without_the_bound_on_rounding_is_caught(monkeypatch):
    """The twin takes the computed norm for the norm."""

    def computed(sizes, *, cross=None):
        square = sum(size.square for size in sizes)
        return (square if cross is None else square + cross).clamp(min=0).sqrt()

    monkeypatch.setattr("dptune.dpsgd.terms.norm_bound", computed)
    assert worst("gram", kinds=("cancelling",), num=20) > 1.01


def norm_of_grams(terms):
    """Multiply Gram matrices in float32, as autocast lets it: a twin."""
    if not isinstance(terms[0], Outer):
        return terms[0].size().square.sqrt()
    factors = terms[0].left.float(), terms[0].right.float()
    grams = [torch.bmm(x, x.transpose(1, 2)).float() for x in factors]
    return (grams[0] * grams[1]).sum((1, 2)).clamp(min=0).sqrt().double()


def test_norm_clamped_to_zero_is_caught(monkeypatch):
    """The twin adds up Gram matrices in float32, where a small norm may become 0."""
    monkeypatch.setattr("dptune.dpsgd.tape.norm_of_sum", norm_of_grams)
    assert worst("gram", kinds=("cancelling",), num=20) > 2


def test_autocast_left_on_in_recomputation_is_caught(monkeypatch):
    """The same norms are right without autocast, and off by bfloat16 with it."""
    generator = torch.Generator().manual_seed(1)
    place = arena("gram", autocast=True, checkpointed=True)
    units = [place.natural(generator) for _ in range(20)]

    def largest():
        with place.opened() as added:
            return max(float(added(unit).norm()) for unit in units)

    monkeypatch.setattr("dptune.dpsgd.tape.norm_of_sum", norm_of_grams)
    assert largest() <= BOUND
    for room in ("tape", "gradients"):
        monkeypatch.setattr(
            f"dptune.dpsgd.{room}.full_precision", lambda _: nullcontext()
        )
    assert largest() > 1.0005


def test_second_pass_that_is_larger_than_the_first_is_scaled_down(monkeypatch):
    """Kernels that add in any order round two passes differently; here by a half."""

    class Unsteady(nn.Module):
        def forward(self, x):
            return Steps.apply(x)

    class Steps(torch.autograd.Function):
        count = 0

        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            Steps.count += 1
            return grad * (1.5 if Steps.count == 2 else 1.0)

    def added():
        Steps.count = 0
        generator = torch.Generator().manual_seed(0)
        model = models.tiny_gpt2(tied=False).train()
        model.lm_head.weight.data.normal_(generator=generator)
        model.lm_head = nn.Sequential(model.lm_head, Unsteady())
        model.activation_checkpointing_enable({"use_reentrant": False})
        batch = oracles.random_data(rows_per_unit=(1,)).collate([0], 1)
        with PerUnitGradients(model) as engine:
            sums = engine.zeros()
            with engine.record(batch.rows_of_unit) as tape:
                losses = CausalLoss(loss_normalizer=0.1)(model, batch)
                tape.backward(losses.sum(), FlatClip(1.0).factors, sums)
        return oracles.norm(sums)

    assert added() <= BOUND
    monkeypatch.setattr(
        "dptune.dpsgd.tape.Tape._add_again",
        lambda tape, name, term, factors, sums: tape._add_weighted(
            name, [term], factors, sums
        ),
    )
    assert added() > 1.1  # the twin takes the first pass at its word


def test_weight_used_twice_while_terms_stream_is_bounded_by_both():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4, bias=False)

        def forward(self, x):
            return self.inner(x) + self.inner(2 * x)

    model = Twice()
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    with PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(torch.arange(2)[:, None]) as tape:
            tape.streams = True
            loss = model(x).square().sum()
            norms = tape.backward(loss, torch.ones_like, sums)
    assert float(norms.sum()) >= oracles.norm(sums)


@pytest.mark.parametrize("path", ["gram", "tied", "embedding", "norm"])
def test_natural_unit_loses_less_than_a_thousandth(path):
    generator = torch.Generator().manual_seed(2)
    place = arena(path)
    with place.opened() as added:
        shares = [float(added(place.natural(generator)).norm()) for _ in range(5)]
    assert 1 - 1e-3 < min(shares) <= max(shares) <= 1


def test_bound_is_not_below_the_norm_and_what_is_added():
    """Every form, cancelling to nothing in float32: by hand, in float64."""
    generator = torch.Generator().manual_seed(3)
    half = [torch.randn(2, 4, 200, generator=generator) for _ in range(2)]
    left = torch.cat([half[0], -half[0]], dim=1)
    right = torch.cat([half[1], half[1] * (1 + 1e-6)], dim=1)
    ids = torch.randint(200, (2, 8), generator=generator)
    for term in (
        Outer(left, right),
        Outer(left, right).dense(),
        Scatter(ids, left, 200),
        Outer(left[..., :20], right[..., :20]),
    ):
        bound = norm_bound([term.size()])
        for unit in range(2):
            total = torch.zeros(term.shape[1:])
            term.add_weighted_sum(torch.eye(2)[unit], total)
            assert float(total.double().norm()) <= float(bound[unit])


def test_size_of_one_unit_knows_nothing_of_the_others():
    """A long or loud neighbor changes the form that is measured, not what is found."""
    generator = torch.Generator().manual_seed(4)
    left, right = (torch.randn(1, 6, 200, generator=generator) for _ in range(2))

    def bound(term):
        return float(norm_bound([term.size()])[0])

    alone = bound(Outer(left, right))
    for time in (6, 40, 130):
        padded = [torch.zeros(30, time, 200) for _ in range(2)]
        for tensor, own in zip(padded, (left, right), strict=True):
            tensor[0, :6] = own[0]
            tensor[1:] = 1e3
        term = Outer(*padded)
        assert bound(term) == pytest.approx(alone, rel=1e-6)
        assert bound(term.dense()) == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("is_large", [False, True])
def test_private_steps_in_bfloat16_and_of_large_models_have_fixed_shapes(
    autocast, is_large, monkeypatch
):
    """In the twin, whose shapes are its own, the longest unit shows in all others."""
    shapes = []
    monkeypatch.setattr(feeding, "_LARGE", 100 if is_large else 50_000_000)

    class Watching(CausalLoss):
        def __call__(self, model, batch):
            shapes.append(tuple(batch.input_ids.shape))
            return super().__call__(model, batch)

    data = oracles.random_data(rows_per_unit=(1,) * 5, seed=3)
    feed = Feed(
        data=data,
        record_loss=Watching(loss_normalizer=8.0),
        physical_batch_size=2,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=autocast,
        max_tokens=14,
    )
    model = models.tiny_gpt2()
    with gradient_source(model, plan=PLAN, feed=feed, seed=0, attempt=0) as source:
        source.compute(np.arange(5), step=0)
    assert (set(shapes) == {(2, 14)}) is (autocast or is_large)


@pytest.mark.parametrize("backend", ["cuda", "mkldnn"])
def test_products_below_float32_are_refused(backend):
    model = models.tiny_gpt2()
    matmul = getattr(torch.backends, backend).matmul
    before = matmul.fp32_precision
    with PerUnitGradients(model) as engine:
        try:
            matmul.fp32_precision = "tf32" if backend == "cuda" else "bf16"
            with (
                pytest.raises(PrivacyError, match=rf"{backend}.*ieee"),
                engine.record(torch.zeros(1, 1, dtype=torch.long)),
            ):
                pass
        finally:
            matmul.fp32_precision = before


def test_attack_that_never_reaches_the_clip_would_prove_nothing():
    place = arena("gram")
    generator = torch.Generator().manual_seed(0)
    natural = place.natural(generator)
    silent = replace(natural, grads=torch.zeros_like(natural.grads))
    with place.opened() as added:
        assert float(added(silent).norm()) == 0
        assert float(added(natural).norm()) > 0.99
