"""Compare a model's per-unit gradients with autograd before anything is spent.

The probe is a handful of made-up tokens, so that passing or failing says nothing about
the data. Its batch, its lengths and its units all differ in size, so that no dimension
can pass for another.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import RecordLoss
from dptune.errors import ModelError

_LENGTHS = (5, 4, 3)
_UNITS = ((0,), (1, 2))
_FACTORS = (0.75, 0.25)
_TOLERANCE = 1e-3
_LOW_PRECISION_TOLERANCE = 5e-2
_NEGLIGIBLE = 1e-5
_NUDGE = 0.02


def probe_data(
    *, num_tokens: int, pad_token_id: int, num_classes: int = 1
) -> UnitDataset:
    """Return two units of one and two short sequences of made-up tokens and classes."""
    vocabulary = [token for token in range(num_tokens) if token != pad_token_id][:64]
    draws = np.random.default_rng(0)  # public constants
    return UnitDataset(
        sequences=tuple(draws.choice(vocabulary, n).astype(np.int64) for n in _LENGTHS),
        loss_weights=tuple(np.linspace(0.5, 1, n, dtype=np.float32) for n in _LENGTHS),
        units=tuple(np.asarray(unit, np.int64) for unit in _UNITS),
        labels=np.arange(len(_LENGTHS), dtype=np.int64) % num_classes,
        max_sequences_per_unit=2,
    )


def check_model(
    model: nn.Module,
    record_loss: RecordLoss,
    *,
    num_tokens: int,
    pad_token_id: int,
    num_classes: int = 1,
    device: str | torch.device = "cpu",
) -> None:
    """Refuse a model or a loss whose per-unit gradients would be wrong.

    1. The loss of a row is the same with and without the other rows.
    2. Norms and weighted sums of recorded gradients equal those of autograd, unit by
        unit.
    3. No buffer changes: nothing of a record stays in the model but by the optimizer.

    **Formal guarantee**: a module that drops, mixes up or double-counts rows, a loss
    averaged over the batch, and a weight that is used behind its module's back are all
    found, in parameters whose gradient is not below 1e-5 of the whole. Parameters that
    are all zero are nudged meanwhile, for where one factor of an adapter starts at
    zero, the other has no gradient.

    **Privacy**: reads no private data.

    Args:
        model: on `device`.
        record_loss: loss to train with.
        num_tokens: size of the vocabulary.
        pad_token_id: id of padding.
        num_classes: that a classifier tells apart.
        device: where the model is.

    Raises:
        ModelError: a check failed; names the parameter.
    """
    data = probe_data(
        num_tokens=num_tokens, pad_token_id=pad_token_id, num_classes=num_classes
    )
    _check_independence(model, record_loss, data, pad_token_id, device)
    batch = data.collate(range(data.num_units), pad_token_id).to(device)
    with _nudged(model), _buffers_unchanged(model):
        _check_gradients(model, record_loss, batch)


def _check_independence(
    model: nn.Module,
    record_loss: RecordLoss,
    data: UnitDataset,
    pad_token_id: int,
    device: str | torch.device,
) -> None:
    """Compare losses of units together and alone, without dropout."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            batch = data.collate(range(data.num_units), pad_token_id).to(device)
            together = record_loss(model, batch)
            if together.shape != (batch.num_rows,):
                raise ModelError(
                    f"a record loss must return one value for each of {batch.num_rows} "
                    f"rows, got shape {tuple(together.shape)}."
                )
            alone = [
                record_loss(model, data.collate([unit], pad_token_id).to(device))
                for unit in range(data.num_units)
            ]
    finally:
        model.train(was_training)
    tolerance = _tolerance(model)
    if not torch.allclose(torch.cat(alone), together, rtol=tolerance, atol=1e-6):
        raise ModelError(
            "the loss of a record must not depend on the other records of its batch. "
            "Use a fixed public normalizer, and no layer that mixes rows."
        )


def _check_gradients(
    model: nn.Module, record_loss: RecordLoss, batch: PhysicalBatch
) -> None:
    """Compare recorded gradients with one autograd pass per unit, on one graph."""
    with PerUnitGradients(model) as engine:
        parameters = list(engine.parameters.values())
        with (
            _grads_untouched(parameters),
            engine.record(batch.rows_of_unit, skip_autograd=False) as tape,
        ):
            losses = record_loss(model, batch)
            with engine.paused():
                references = [
                    _autograd(losses[list(rows)].sum(), parameters) for rows in _UNITS
                ]
            sums = engine.zeros()
            norms = tape.backward(
                losses.sum(), lambda norms: norms.new_tensor([_FACTORS]), sums
            )[0]
    expected = torch.stack([_norm(gradients) for gradients in references])
    tolerance = _tolerance(model)
    scale = float(expected.max())
    for index, (name, total) in enumerate(sums.items()):
        wanted = sum(f * g[index] for f, g in zip(_FACTORS, references, strict=True))
        error = float(torch.linalg.vector_norm(total - wanted))
        size = float(torch.linalg.vector_norm(torch.as_tensor(wanted)))
        if not error <= tolerance * size + _NEGLIGIBLE * scale:
            raise ModelError(
                f"the per-unit gradient of {name} differs from autograd by "
                f"{error:.2g} of {size:.2g}. Correct the gradient rule of its module, "
                "or freeze it with requires_grad_(False)."
            )
    if not torch.allclose(norms, expected, rtol=tolerance, atol=1e-12):
        raise ModelError(
            "per-unit gradient norms differ from autograd. Check gradient rules that "
            "return several terms for one parameter."
        )


@contextmanager
def _nudged(model: nn.Module) -> Iterator[None]:
    """Move trainable parameters away from zero, and put them back on leaving."""
    zeros = [p for p in model.parameters() if p.requires_grad and not p.any()]
    generator = torch.Generator().manual_seed(0)  # public constants
    try:
        with torch.no_grad():
            for parameter in zeros:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * _NUDGE)
        yield
    finally:
        with torch.no_grad():
            for parameter in zeros:
                parameter.zero_()


@contextmanager
def _buffers_unchanged(model: nn.Module) -> Iterator[None]:
    """Refuse a model that keeps something of its inputs without noise.

    Raises:
        ModelError: a buffer changed; names it.
    """
    before = {name: value.clone() for name, value in model.named_buffers()}
    yield
    for name, value in model.named_buffers():
        if name not in before or not torch.equal(value, before[name]):
            raise ModelError(
                f"the buffer {name} must not change in training: it would keep what "
                "it saw of records, without noise. Replace its module, or freeze it "
                "in evaluation mode."
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
        torch.zeros_like(parameter) if gradient is None else gradient.float()
        for parameter, gradient in zip(parameters, gradients, strict=True)
    ]


def _norm(gradients: list[Tensor]) -> Tensor:
    """L2 norm over all parameters."""
    squares = [g.double().square().sum() for g in gradients]
    return torch.stack(squares).sum().sqrt().float()


def _tolerance(model: nn.Module) -> float:
    """Looser where frozen weights or the computation are not float32."""
    exact = all(value.dtype == torch.float32 for value in model.parameters())
    exact = exact and not torch.is_autocast_enabled("cpu")
    return _TOLERANCE if exact else _LOW_PRECISION_TOLERANCE
