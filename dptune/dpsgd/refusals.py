"""Why a model is refused, and the way out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dptune.dpsgd.dataset import PhysicalBatch
from dptune.dpsgd.gradients import ONE_ROW, PerUnitGradients
from dptune.dpsgd.isolation import (
    COMPARED,
    Isolation,
    Probe,
    crowd_of,
    make_probe,
)
from dptune.dpsgd.untouched import Snapshot
from dptune.errors import DptuneError, ModelError

_LONGEST_MESSAGE = 300
_SHORT = COMPARED[-1]
ONE_SHAPE = (
    "Set fixed_shapes to true, performance.fixed_shapes in a configuration: every "
    "batch is then padded to max_tokens, a public length."
)
SIDE_BY_SIDE = f"Set {ONE_ROW}: every row is then run by itself."


def model_name(model: nn.Module) -> str:
    """Return the class of a model, or of what adapters were added to."""
    base = getattr(model, "get_base_model", lambda: model)()
    return type(base).__name__


def without_gradient(model: nn.Module) -> ModelError:
    """Say that nothing which is trained moves the loss: noise alone would be paid for.

    A copy of a model whose forward pass is bound to the first computes with the weights
    of that, and leaves gradients of records on them that nobody has clipped.
    """
    return ModelError(
        f"{model_name(model)} must have a gradient in what is trained, got none on "
        "made-up rows: its loss is computed with other weights, as by a copy of a "
        "model that something, such as TRL, has given another forward pass. Load the "
        "model anew, or let the loss use what is trained."
    )


@contextmanager
def explained(
    model: nn.Module,
    what: str,
    *,
    short: Probe | None = None,
    next_step: str | Callable[[], str] = "Use a model that takes any rows of token ids "
    "with an attention mask, and nothing else.",
) -> Iterator[None]:
    """Turn any error of a model's code into one that says what the model cannot do.

    Messages may be quoted, since they are about made-up rows.

    Args:
        model: that computes.
        what: it was to do.
        short: asked for a short row, which may do with fixed shapes, or with a token
            that ends the text.
        next_step: what to do, or what finds that out.

    Raises:
        ModelError: instead of what is no error of ours.
    """
    try:
        yield
    except DptuneError:
        raise
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise ModelError(
            f"{model_name(model)} needs more memory than there is for made-up rows. "
            "Lower physical_batch_size (per_device_train_batch_size of a Trainer) or "
            "max_tokens."
        ) from error
    except Exception as error:  # code of a model can raise anything
        if short is not None and _needs_shapes(model, short):
            raise ModelError(
                f"{model_name(model)} cannot compute a row of {short.length(_SHORT)} "
                "tokens without padding, and any record may be as short. "
                f"{ONE_SHAPE}"
            ) from error
        if short is not None and _needs_ends(model, short):
            raise ModelError(
                f"{model_name(model)} reads a row off its end-of-text token and needs "
                "the same number of them in every row of a batch: one record could "
                "stop a batch of others. Use a classifier that reads another position."
            ) from error
        message = " ".join(str(error).split())[:_LONGEST_MESSAGE]
        next_step = next_step if isinstance(next_step, str) else next_step()
        config = getattr(model, "config", None)
        positions = getattr(config, "max_position_embeddings", None)
        if isinstance(error, IndexError) and positions:
            next_step = (
                f"Its configuration names {positions} positions: where rows or "
                f"max_tokens are longer, shorten them. {next_step}"
            )
        if "padding token" in message:  # of classifiers in transformers
            next_step = "Set pad_token_id of its configuration to the token that pads."
        raise ModelError(
            f"{model_name(model)} cannot {what}: {type(error).__name__}: {message}. "
            f"{next_step}"
        ) from error


def company_error(
    model: nn.Module,
    engine: PerUnitGradients,
    probe: Probe,
    snapshot: Snapshot,
    *,
    allowed: float,
    is_rounding: bool,
) -> ModelError:
    """Find out through what others reach a unit, and whether fixed shapes cure it.

    Args:
        model: at the weights where units were not apart.
        engine: hooked into it.
        probe: that found it.
        snapshot: of the model before.
        allowed: distance that passes.
        is_rounding: whether rounding explains what was seen.

    Returns:
        What to raise.
    """
    isolation = Isolation(model, engine, probe)
    name = model_name(model)
    long, *_, short = probe.compared
    fresh = isolation.gradient(long)
    each = isolation.each()
    if not each.distance < float("inf"):
        return ModelError(
            f"{name} must have finite gradients on made-up rows, got others in "
            f"{each.parameter}. Use a model that survives padding tokens inside a row, "
            "and one token again and again."
        )
    fields = ", ".join(snapshot.changed_fields()[:3]) or "something"
    left = {long: isolation.distance(fresh, long)}
    snapshot.restore()
    first = isolation.gradient(short)  # of all
    left[long] = max(left[long], isolation.distance(fresh, long))
    left[short] = isolation.distance(first, short)
    unit = max(left, key=left.__getitem__)
    if left[unit] > allowed:
        return ModelError(
            f"{name} must compute a record alike whatever came before, but keeps "
            f"{fields} from earlier batches: a record of {probe.length(unit)} "
            f"tokens then moves by {left[unit]:.2g} of its norm. Fix that in the "
            "model's configuration, so that no batch changes it."
        )
    unit = max(each.units, key=each.units.__getitem__)
    moved = f"{each.units[unit]:.2g} of its norm (most in {each.parameter})"
    record = f"a made-up record of {probe.length(unit)} tokens"
    cure = _cure(model, engine, probe, snapshot, allowed=allowed)
    if is_rounding:
        return ModelError(
            f"the gradient of {record} moves by {moved} beside others, which is more "
            f"rounding in {name} than a bound can carry. {cure}"
        )
    padded = max(map(isolation.padding, probe.compared))
    if not probe.feed.fixed_shapes and padded > allowed:
        return ModelError(
            f"padding must not reach the loss of a record, but in {name} the gradient "
            f"of {record} moves by {moved} when longer ones join its batch. {cure}"
        )
    return ModelError(
        "the loss of a record must not depend on the other records of its batch, but "
        f"in {name} the gradient of {record} moves by {moved} beside others. {cure} "
        "Use a fixed public normalizer, and no layer that mixes rows."
    )


def _cure(
    model: nn.Module,
    engine: PerUnitGradients,
    probe: Probe,
    snapshot: Snapshot,
    *,
    allowed: float,
) -> str:
    """Say whether fixed shapes help, or one row at a time."""

    def helps(engine: PerUnitGradients, *probes: Probe | None) -> bool:
        """Whether nothing is apart in any of them."""
        for some in filter(None, probes):
            snapshot.restore()
            isolation = Isolation(model, engine, some)
            if not isolation.apart(between=snapshot.restore).distance <= allowed:
                return False
        return True

    fixed = replace(probe.run, fixed_shapes=True)
    are_fixed = probe.feed.fixed_shapes
    probes = make_probe(model, fixed), crowd_of(model, fixed)
    if not are_fixed and helps(engine, *probes):
        return ONE_SHAPE
    useless = f"Fixed shapes{', which are on,' if are_fixed else ''} do not help"
    if helps(PerUnitGradients(model, alone=True), probe.with_rows_alone(model)):
        return f"{useless}. {SIDE_BY_SIDE}" if are_fixed else SIDE_BY_SIDE
    return f"{useless}: use another model."


def _needs_ends(model: nn.Module, probe: Probe) -> bool:
    """Whether a row computes as soon as it ends in the token that ends a text."""
    fields: Any = model
    end: Any = getattr(getattr(fields, "config", None), "eos_token_id", None)
    end = end[0] if isinstance(end, list) and end else end
    if end is None:
        return False
    batch = probe.batch((_SHORT,))
    batch.input_ids[batch.input_ids == end] = batch.input_ids.max()
    batch.input_ids[:, -1] = end
    return _computes(model, probe, batch)


def _needs_shapes(model: nn.Module, probe: Probe) -> bool:
    """Whether a row computes as soon as it is padded to the longest."""
    if probe.feed.fixed_shapes:
        return False
    return _computes(model, probe, probe.with_fixed_shapes().batch((_SHORT,)))


def _computes(model: nn.Module, probe: Probe, batch: PhysicalBatch) -> bool:
    """Whether a model can compute a batch."""
    try:
        with torch.no_grad():
            probe.feed.losses(model, batch)
    except Exception:  # noqa: BLE001 - code of a model can raise anything
        return False
    return True
