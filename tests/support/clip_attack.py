"""Units that are made to break the clip, and a step that measures what they add.

A probe is a model of one module whose inputs and output gradients an attacker chooses
freely, row by row: nobody who writes records has more. What a step of the engine leaves
in `grad` is measured in float64.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.pytorch_utils import Conv1D

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.step import gradient_source

WIDTH, NUM_IDS = 160, 200
PATHS = {
    "few_entries": ("linear", 8, 16),
    "gram": ("linear", 8, WIDTH),
    "dense": ("linear", 96, WIDTH),  # one unit at a time where terms stream
    "conv1d": ("conv1d", 8, WIDTH),
    "embedding": ("embedding", 16, WIDTH),
    "lora_embedding": ("lora_embedding", 16, WIDTH),
    "tied": ("tied", 8, WIDTH),
    "tied_dense": ("tied", 96, WIDTH),
    "norm": ("norm", 16, WIDTH),
}
KINDS = (
    "cancelling",
    "huge",
    "subnormal",
    "not_finite",
    "repeated",
    "stagnating",
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """What the hooks will see of the rows of one unit.

    Args:
        ids: rows of an embedding, `(rows, time)`.
        inputs: of a linear layer, `(rows, time, width)`.
        grads: of its output, `(rows, time, width)` or `(rows, time, ids)`.
        others: of the output of the embedding, `(rows, time, width)`.
    """

    ids: Tensor
    inputs: Tensor
    grads: Tensor
    others: Tensor


class _Probe(GradientCheckpointingLayer):  # type: ignore[no-untyped-call]
    """One module, or two that share a weight."""

    def __init__(self, module: str, width: int) -> None:
        super().__init__()
        self.kind = module
        if module in {"embedding", "lora_embedding", "tied"}:
            self.table = nn.Embedding(NUM_IDS, width)
        if module == "conv1d":
            self.inner: nn.Module = Conv1D(width, width)  # type: ignore[no-untyped-call]
        elif module == "norm":
            self.inner = nn.LayerNorm(width)
        elif module == "tied":
            self.inner = nn.Linear(width, NUM_IDS, bias=False)
            self.inner.weight = self.table.weight
        elif module == "linear":
            self.inner = nn.Linear(width, width)

    def forward(self, inputs: Tensor, ids: Tensor) -> list[Tensor | None]:
        """Return what the linear layer and the embedding make of them."""
        inner = self.inner(inputs) if hasattr(self, "inner") else None
        # a product, for what is saved by it is what starts the recomputation
        one = torch.ones(1, requires_grad=True)
        table = self.table(ids) * one if hasattr(self, "table") else None
        return [inner, table]


class _Chosen(torch.autograd.Function):
    """A loss of 0 whose gradient is what was chosen, NaN and infinity included."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, grads: Tensor) -> Tensor:
        ctx.save_for_backward(grads.to(output.dtype))
        return torch.zeros(len(output))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (grads,) = ctx.saved_tensors
        return torch.where(grad[:, None, None] == 0, 0, grads), None


def _chosen(output: Tensor, grads: Tensor) -> Tensor:
    """Return a loss for every row whose gradient by `output` is `grads`."""
    losses: Tensor = _Chosen.apply(output, grads)  # type: ignore[no-untyped-call]
    return losses


class _Model(nn.Module):
    """A probe within a model, as checkpointing wants it."""

    def __init__(self, probe: _Probe) -> None:
        super().__init__()
        self.probe = probe


class _ChosenLoss:
    """Looks up, by the first token of a row, what its hooks shall see."""

    def __init__(self) -> None:
        self.units: list[Unit] = []

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Return losses, `(rows,)`."""
        rows = batch.input_ids[:, 0] - 1
        fields = ("ids", "inputs", "grads", "others")
        found = Unit(
            **{f: torch.cat([getattr(u, f) for u in self.units])[rows] for f in fields}
        )
        base: Any = getattr(model, "base_model", model)
        probe = getattr(base, "model", base).probe
        outputs = probe(found.inputs.requires_grad_(), found.ids)
        losses = torch.zeros(len(rows))
        for output, grads in zip(outputs, (found.grads, found.others), strict=True):
            if output is not None:
                losses = losses + _chosen(output, grads)
        return losses * (batch.loss_weights.sum(1) > 0)

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Return nothing of interest."""
        return 0.0, 1.0


@dataclass(frozen=True, kw_only=True)
class Arena:
    """A place for units: one norm path in one mode.

    Args:
        path: of `PATHS`.
        autocast: compute in bfloat16.
        checkpointed: stream terms, in two passes.
        rows: of a unit.
        alone: one row a pass, where autograd does it all, and no rule and no path.
        plan: clips and sums; its noise must be 0.
    """

    path: str
    autocast: bool = False
    checkpointed: bool = False
    rows: int = 1
    alone: bool = False
    plan: GradientPlan

    def natural(self, generator: torch.Generator) -> Unit:
        """Draw a unit that nobody made for anything."""
        module, time, width = PATHS[self.path]
        normal = partial(torch.randn, generator=generator)
        outputs = NUM_IDS if module == "tied" else width
        return Unit(
            ids=torch.randint(NUM_IDS, (self.rows, time), generator=generator),
            inputs=normal(self.rows, time, width),
            grads=normal(self.rows, time, outputs),
            others=normal(self.rows, time, width),
        )

    @contextmanager
    def opened(self, *, num_units: int = 1) -> Iterator[Callable[..., Tensor]]:
        """Yield a function from units to their clipped sum over C, flat, in float64."""
        loss = _ChosenLoss()
        model = self._model()
        feed = Feed(
            data=self._data(num_units),
            record_loss=loss,
            physical_batch_size=1 if self.alone else max(2, num_units * self.rows),
            pad_token_id=1,
            device=torch.device("cpu"),
            autocast=self.autocast,
        )
        with gradient_source(
            model, plan=self.plan, feed=feed, seed=0, attempt=0
        ) as source:

            def added(*units: Unit) -> Tensor:
                loss.units = list(units)
                source.compute(np.arange(len(units), dtype=np.int64), step=0)
                grads = [p.grad for p in model.parameters() if p.grad is not None]
                flat = torch.cat([grad.flatten() for grad in grads]).double()
                return flat / self.plan.max_grad_norm

            yield added

    def _model(self) -> nn.Module:
        """Build the probe; the same weights every time."""
        module, _, width = PATHS[self.path]
        with torch.random.fork_rng():
            torch.default_generator.manual_seed(0)
            probe = _Probe(module, width)
            model: nn.Module = _Model(probe)
            if module == "lora_embedding":
                config = LoraConfig(r=8, target_modules=["table"])
                model = get_peft_model(model, config)
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        nn.init.normal_(parameter)
        if self.checkpointed:
            probe.gradient_checkpointing = True
            probe._gradient_checkpointing_func = partial(  # type: ignore[assignment]
                checkpoint, use_reentrant=False
            )
        return model.train()

    def _data(self, num_units: int) -> UnitDataset:
        """Return rows that are known by their first token, from 1."""
        num_rows = num_units * self.rows
        return UnitDataset(
            sequences=Ragged.of(
                [np.array([row + 1, 1]) for row in range(num_rows)], np.int64
            ),
            loss_weights=Ragged.of((np.ones(2, np.float32),) * num_rows, np.float32),
            units=Ragged.of(np.split(np.arange(num_rows), num_units), np.int64),
            max_sequences_per_unit=self.rows,
        )


def make_unit(kind: str, unit: Unit, generator: torch.Generator) -> Unit:
    """Turn a natural unit into one that is made to break the clip.

    Args:
        kind: of `KINDS`.
        unit: to start from.
        generator: chooses how far to go.
    """
    draw = float(torch.rand((), generator=generator))
    coin = float(torch.rand((), generator=generator)) < 0.5
    size = 10.0 ** (4 * float(torch.rand((), generator=generator)))
    match kind:
        case "cancelling":
            return _cancelling(scaled(unit, size, size), 10.0 ** (-8 * draw), coin)
        case "huge":
            large = 10.0 ** (5 + 33 * draw)
            return scaled(unit, large, 1.0 if coin else 1e-3 / large)
        case "subnormal":
            small = 10.0 ** (-34 - 11 * draw)
            return scaled(unit, small, size / small**0.9 if coin else 1.0)
        case "not_finite":
            spoilt = unit.grads.clone(), unit.others.clone()
            value = torch.nan if coin else torch.inf
            for tensor in spoilt:
                tensor[0, int(draw * tensor.shape[1]), 0] = value
            return replace(unit, grads=spoilt[0], others=spoilt[1])
        case "repeated":
            first = scaled(unit, size, 1.0)
            return Unit(
                ids=first.ids[:, :1].expand_as(first.ids).clone(),
                inputs=first.inputs[:, :1].expand_as(first.inputs).clone(),
                grads=first.grads[:, :1].expand_as(first.grads).clone(),
                others=first.others[:, :1].expand_as(first.others).clone(),
            )
        case _:
            return _stagnating(unit, 2.0 ** (-11 - 15 * draw), in_time=coin)


def scaled(unit: Unit, inputs: float, grads: float) -> Unit:
    """Multiply inputs, and gradients of outputs."""
    return replace(
        unit,
        inputs=unit.inputs * inputs,
        grads=unit.grads * grads,
        others=unit.others * grads,
    )


def mutated(unit: Unit, generator: torch.Generator) -> Unit:
    """Change some entries of a unit a little, for a search that climbs."""
    size = 10.0 ** (-7 * float(torch.rand((), generator=generator)))

    def nudged(values: Tensor) -> Tensor:
        noise = torch.randn(values.shape, generator=generator)
        rare = torch.rand(values.shape, generator=generator) < 0.1
        result: Tensor = values * (1 + size * noise * rare)
        return result

    return replace(
        unit,
        inputs=nudged(unit.inputs),
        grads=nudged(unit.grads),
        others=nudged(unit.others),
    )


def _cancelling(unit: Unit, rest: float, by_input: bool) -> Unit:
    """Make every second time step take back the one before, up to a rest."""

    def paired(values: Tensor, sign: float, rest: float) -> Tensor:
        even = values[:, 0::2]
        odd = sign * even * (1 + rest * values[:, 1::2].sign())
        return torch.stack([even, odd], dim=2).flatten(1, 2)

    return Unit(
        ids=unit.ids[:, 0::2].repeat_interleave(2, dim=1),
        inputs=paired(unit.inputs, 1.0, rest if by_input else 0.0),
        grads=paired(unit.grads, -1.0, 0.0 if by_input else rest),
        others=paired(unit.others, -1.0, rest),
    )


def _stagnating(unit: Unit, small: float, *, in_time: bool) -> Unit:
    """Make sums begin large and go on with what is lost beside it."""

    def faded(values: Tensor) -> Tensor:
        faded = torch.full_like(values, small)
        if in_time:
            faded[:, 0] = 1.0
        else:
            faded[:, :, 0] = 1.0
        return faded

    return Unit(
        ids=torch.zeros_like(unit.ids),
        inputs=faded(unit.inputs),
        grads=faded(unit.grads),
        others=faded(unit.others),
    )
