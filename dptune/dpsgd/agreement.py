"""Are the engine's gradients those of autograd?"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import ONE_ROW, PerUnitGradients
from dptune.dpsgd.isolation import COMPARED, Probe, make_probe
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.refusals import without_gradient
from dptune.dpsgd.untouched import LOW_PRECISION, scaled
from dptune.errors import ModelError
from dptune.precision import computing

_LENGTHS = (5, 4, 3)
_UNITS = ((0,), (1, 2))
_UNITS_ALONE = ((0,), (1,), (2,))
_FACTORS = (0.75, 0.25, 0.5)
_TOLERANCE = 1e-3
_LOW_PRECISION_TOLERANCE = 5e-2
_NEGLIGIBLE = 1e-5


def is_low(model: nn.Module, feed: Feed) -> bool:
    """Whether weights or the computation are below float32."""
    return feed.autocast or any(v.dtype in LOW_PRECISION for v in computing(model))


def check_gradients(model: nn.Module, engine: PerUnitGradients, feed: Feed) -> None:
    """Compare recorded gradients with one autograd pass per unit, on one graph."""
    probe = make_probe(model, replace(feed, fixed_shapes=False))
    data = _small_data(probe, _UNITS_ALONE if engine.alone else _UNITS)
    units = range(data.num_units)
    together = [[unit] for unit in units] if engine.alone else [units]
    batches = [data.collate(taken, feed.pad_token_id) for taken in together]
    batches = [batch.to(probe.feed.device) for batch in batches]
    with scaled(model, 0):
        _compare_with_autograd(model, engine, replace(probe.feed, data=data), batches)


def check_long_gradient(
    model: nn.Module, engine: PerUnitGradients, probe: Probe
) -> None:
    """Compare on the longest row: short ones may miss experts that a rule misses."""
    feed = replace(probe.feed, fixed_shapes=False)
    batch = feed.data.collate([COMPARED[0]], feed.pad_token_id).to(feed.device)
    with scaled(model, 0):
        _compare_with_autograd(model, engine, feed, [batch])


def _small_data(probe: Probe, units: tuple[tuple[int, ...], ...]) -> UnitDataset:
    """Return units of one or two short rows: no dimension passes for another."""
    made_up = probe.feed.data
    source = made_up.sequences[-1] if made_up.longest_sequence else made_up.sequences[0]
    draws = np.random.default_rng(0)  # public constants
    tokens = np.unique(np.concatenate([*made_up.sequences, source]))
    tokens = tokens[tokens != probe.feed.pad_token_id]
    classes = 1 + int(made_up.labels.max()) if made_up.labels is not None else 1
    return UnitDataset(
        sequences=Ragged.of([draws.choice(tokens, n) for n in _LENGTHS], np.int64),
        loss_weights=Ragged.of([np.linspace(0.5, 1, n) for n in _LENGTHS], np.float32),
        units=Ragged.of(units, np.int64),
        labels=np.arange(len(_LENGTHS), dtype=np.int64) % classes,
        max_sequences_per_unit=2,
    )


def _compare_with_autograd(
    model: nn.Module,
    engine: PerUnitGradients,
    feed: Feed,
    batches: list[PhysicalBatch],
) -> None:
    """Compare sums, parameter by parameter, and norms."""
    parameters = list(engine.parameters.values())
    sums = engine.zeros()
    references: list[list[Tensor]] = []
    found: list[Tensor] = []
    for batch in batches:
        first, last = len(references), len(references) + len(batch.rows_of_unit)
        factors = torch.tensor(_FACTORS[first:last], device=feed.device)
        with (
            _grads_untouched(parameters),
            engine.record(batch.rows_of_unit, skip_autograd=False) as tape,
        ):
            losses = feed.losses(model, batch)
            with engine.paused():
                references += [
                    _autograd(losses[rows[rows >= 0]].sum(), parameters)
                    for rows in batch.rows_of_unit
                ]
            norms = tape.backward(losses.sum(), factors.expand_as, sums)
        found.append(torch.linalg.vector_norm(norms, dim=0))
    norms = torch.cat(found)
    expected = torch.stack([_norm(gradients) for gradients in references])
    tolerance = _LOW_PRECISION_TOLERANCE if is_low(model, feed) else _TOLERANCE
    scale = float(expected.max())
    if scale == 0:
        raise without_gradient(model)
    for index, (name, total) in enumerate(sums.items()):
        wanted = sum(f * g[index] for f, g in zip(_FACTORS, references, strict=False))
        error = float(torch.linalg.vector_norm(total - wanted))
        size = float(torch.linalg.vector_norm(torch.as_tensor(wanted)))
        if not error <= tolerance * size + _NEGLIGIBLE * scale:
            raise ModelError(
                f"the per-unit gradient of {name} differs from autograd by "
                f"{error:.2g} of {size:.2g}. Correct the gradient rule of its module, "
                f"set {ONE_ROW}, which needs none, or freeze it with "
                "requires_grad_(False)."
            )
    if not torch.allclose(norms, expected, rtol=tolerance, atol=1e-12):
        raise ModelError(
            "per-unit gradient norms differ from autograd. Check gradient rules that "
            "return several terms for one parameter."
        )


@contextmanager
def _grads_untouched(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Put `grad` of every parameter back on leaving."""
    before = [parameter.grad for parameter in parameters]
    try:
        yield
    finally:
        for parameter, grad in zip(parameters, before, strict=True):
            parameter.grad = grad


def _autograd(loss: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return float32 gradients, zero where unused."""
    gradients = torch.autograd.grad(
        loss, parameters, retain_graph=True, allow_unused=True
    )
    return [
        torch.zeros_like(parameter) if gradient is None else gradient.to_dense().float()
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


def _norm(gradients: list[Tensor]) -> Tensor:
    """L2 norm over all parameters."""
    squares = [g.double().square().sum() for g in gradients]
    return torch.stack(squares).sum().sqrt().float()
