"""Find out before anything is spent whether a model's rows keep to themselves.

All units are made up, so that passing or failing says nothing about the data. Four
questions, in this order: can the model compute such rows at all; does chance act on
each row by itself; is a unit's gradient the same whoever it is computed with; are the
engine's gradients those of autograd.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from dptune.dpsgd.agreement import check_gradients, check_long_gradient, is_low
from dptune.dpsgd.bypassed import check_adapters, check_weights_beside
from dptune.dpsgd.chance import check_chance, check_shared_masks
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import (
    ONE_ROW,
    PerUnitGradients,
    check_modules,
    one_group,
)
from dptune.dpsgd.isolation import (
    COMPARED,
    Isolation,
    Probe,
    crowd_of,
    make_probe,
    same_length,
)
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.refusals import (
    ONE_SHAPE,
    SIDE_BY_SIDE,
    company_error,
    explained,
    model_name,
)
from dptune.dpsgd.untouched import (
    LOW_PRECISION,
    Snapshot,
    Undropped,
    changed_weights,
    in_dtype,
    scaled,
    untouched,
    widened,
)
from dptune.errors import ModelError
from dptune.positions import limits_of_company

_APART = 1e-5
_APART_LOW_PRECISION = 2e-2
_MOST_ROUNDING = 1e-4
_MOST_ROUNDING_SCALED = 1e-3
_EXPONENTS = (2, 1)

_AS_SHORT = f"Any record may be as short. {ONE_SHAPE}"
_ALONE = "Train adapters, or use another model."


def check_model(
    model: nn.Module,
    feed: Feed,
    *,
    parameter_groups: Callable[[str], int] = one_group,
) -> None:
    """Refuse a model or a loss whose per-unit gradients would be wrong, or not its own.

    With the run's loss, precision, padding, attention, adapters, checkpointing and
    training mode, on the run's device:

    1. One row, of one token as of `max_tokens`, and rows of unequal length can be
        computed, and no rotary frequencies go by the longest row of a batch.
    2. Chance acts on each row by itself: beside dropout nothing that is drawn moves a
        loss, and no dropout has one mask for several rows. A layer that is left out for
        a whole batch is no such thing: who shares the coin depends on who is there.
    3. A unit's gradient over its norm is the same alone and in company, to 1e-5 in
        float32: beside rows of up to `max_tokens` (at most 1,024), beside others, of
        which some share its class and its first token and some do not, in another
        order, first of all and after other batches, and in a crowd of as many rows as
        the run has side by side (at most 4,096, of 3 to 11 tokens); with the weights as
        they are and, but for the crowd, with four times as large ones (twice, or not at
        all, where that is all rounding). Dropout is off for that. What is further apart
        is computed again in float64: unless it stays apart it is rounding, and may be
        1e-4 (1e-3 where weights are larger). What runs in bfloat16 is compared in
        float32, and then again in bfloat16 to 2e-2.
    4. Norms and weighted sums of recorded gradients equal those of autograd, unit by
        unit, of short rows and of the longest, to 1e-3 (in bfloat16 to 5e-2), and are
        not all zero.
    5. No adapter is bypassed, and no loss has a gradient in a weight beside the model.
    6. No buffer changes: nothing of a record stays in the model but by the optimizer;
        and nothing in a module counts its passes.

    **Formal guarantee**: a module that drops, mixes up or double-counts rows, padding
    that reaches a loss, a loss averaged over the batch, capacity that rows compete for,
    state that an earlier batch left, and a weight that is used behind its module's back
    are found, where they show on such rows at one of the two points. It is a test and
    no proof. Not found: what begins beyond 1,024 tokens, with more than five rows side
    by side (six where units have several) that are longer than those of a crowd (11
    tokens; beyond 128 rows fewer, 1,408 together, but at least 3), with more than 4,096
    of any, or with tokens other than 64 of the vocabulary; ties that rounding breaks;
    what only equal rows do to each other; in bfloat16 what only a kernel of that
    precision does, below 2e-2; and what appears on the way of training alone.

    The model is left as it was, bit for bit, weights, buffers, attributes,
    configuration and randomness included, even if it is refused.

    **Privacy**: of the data of `feed` only public bounds are read.

    Args:
        model: whole, on the device that it is to be checked on.
        feed: of the run.
        parameter_groups: of the run's clip.

    Raises:
        ModelError: a check failed; names what, and the way out.
    """
    check_modules(model)
    _check_positions(model, feed)
    probe = make_probe(model, feed)
    with untouched(model) as snapshot:
        _check_rows(model, probe, longest=feed.longest)
        _check_trained(model, snapshot)
        check_adapters(model, probe)
        engine = PerUnitGradients(
            model, parameter_groups=parameter_groups, alone=feed.rows_are_alone
        )
        with scaled(model, _EXPONENTS[0]):
            check_chance(model, probe, snapshot, alone=engine.alone)
        if not engine.alone:
            check_shared_masks(model, probe)
        snapshot.restore()
        _check_counts(model, probe)
        snapshot.restore()
        what = "be differentiated record by record"
        way_out = partial(_way_out, model, probe, snapshot)
        with explained(model, what, next_step=way_out), engine:
            with in_dtype(model, torch.float32, of=LOW_PRECISION):
                _check_points(model, engine, replace(feed, autocast=False), snapshot)
                check_gradients(model, engine, replace(feed, autocast=False))
                check_long_gradient(model, engine, probe.without_autocast())
            if is_low(model, feed):
                _check_low_precision(model, engine, probe, snapshot)
                check_gradients(model, engine, feed)
        check_weights_beside(model, probe)
        _check_buffers(model, snapshot)


def _check_positions(model: nn.Module, feed: Feed) -> None:
    """Refuse rows beyond which the longest one of a batch turns all others.

    Made-up rows are too short to tell. Fixed shapes are no way out: some models number
    the tokens of a row without its padding.
    """
    for module in model.modules():
        if not hasattr(module, "rope_type"):
            continue
        config: Any = getattr(module, "config", None)
        for kind, limit in limits_of_company(config):
            by_row = kind == "longrope"
            if feed.longest <= limit or (by_row and feed.rows_are_alone):
                continue
            raise ModelError(
                f"{model_name(model)} has rotary frequencies of kind {kind}: beyond "
                f"{limit} tokens the longest row of a batch decides those of all "
                f"others, but rows may have {feed.longest}. Set max_tokens to at most "
                f"{limit} and cut longer rows" + (f", or {ONE_ROW}." if by_row else ".")
            )


def _check_rows(model: nn.Module, probe: Probe, *, longest: int) -> None:
    """Refuse a model that cannot compute made-up rows, alone or together."""
    changed = changed_weights(model)
    with torch.no_grad():
        with explained(model, "compute a loss from token ids alone", short=probe):
            first = probe.batch((COMPARED[-1],))
            probe.feed.losses(model, first)
        shapes = {first.input_ids.shape}
        for few in () if probe.feed.fixed_shapes else (1, 2):
            batch = same_length(probe, num_rows=1, num_tokens=few)
            without = f"compute a row of {few} tokens without padding"
            with explained(model, without, next_step=_AS_SHORT):
                probe.feed.losses(model, batch)
        long = f"compute a row of {probe.feed.longest} tokens"
        together = "compute rows of unequal length together"
        others = ((long, (COMPARED[0],)), *((together, c) for c in probe.companies))
        for what, units in others:
            batch = probe.batch(units)
            if batch.input_ids.shape not in shapes:
                shapes.add(batch.input_ids.shape)
                with explained(model, what):
                    probe.feed.losses(model, batch)
        if longest > probe.feed.longest:  # a model may have no positions for it
            batch = same_length(probe, num_rows=1, num_tokens=longest)
            with explained(model, f"compute a row of {longest} tokens"):
                probe.feed.losses(model, batch)
    _refuse_changed(changed)


def _check_trained(model: nn.Module, snapshot: Snapshot) -> None:
    """Refuse a forward pass, or a loss, that thaws or freezes weights."""
    for name in snapshot.switched(model):
        raise ModelError(
            f"the weight {name} must stay trained, or frozen, as it was, but a forward "
            "pass or the loss sets its requires_grad: the clip covers what is trained "
            "from the beginning. Set it before training."
        )


def _refuse_changed(changed: Callable[[], list[str]]) -> None:
    """Refuse a model whose weights are others than they were."""
    for name in changed():
        raise ModelError(
            f"the weight {name} must not change by being computed with: it would keep "
            "what it saw of records, without noise. Replace its module."
        )


def _check_counts(model: nn.Module, probe: Probe) -> None:
    """Refuse a model that counts its passes, or keeps a running mean beside buffers.

    What a first pass sets up, and what follows from a batch alone, is neither.
    """
    batch = probe.batch((COMPARED[-1],))
    chances = seed_sequence(RandomStream.MODEL, seed=0)
    with torch.no_grad(), explained(model, "compute a row twice"), Undropped():
        for _ in range(2):
            first = Snapshot(model)
            with scoped_randomness(chances, device=probe.feed.device):
                probe.feed.losses(model, batch)
    for name in first.changed_fields():
        raise ModelError(
            f"{model_name(model)} must compute a record alike whatever came before, "
            f"but {name} is another after each pass, of one and the same row too, as "
            "a count is. How many passes there were depends on who was drawn, and "
            "what begins after some cannot be checked before. Keep it out of the "
            "model, and set what depends on it before training."
        )


def _way_out(model: nn.Module, probe: Probe, snapshot: Snapshot) -> str:
    """Say whether rows that cannot be differentiated together can be alone."""
    if not probe.feed.rows_are_alone:
        alone = PerUnitGradients(model, alone=True)
        with suppress(Exception):
            snapshot.restore()
            Isolation(model, alone, probe.with_rows_alone(model)).apart()
            return SIDE_BY_SIDE
    return _ALONE


def _check_points(
    model: nn.Module, engine: PerUnitGradients, feed: Feed, snapshot: Snapshot
) -> None:
    """Compare units alone and in company, at the weights and at larger ones."""
    probe = make_probe(model, feed)
    with scaled(model, 0):
        changed = changed_weights(model)
        for some in filter(None, (probe, crowd_of(model, feed))):
            _check_isolation(model, engine, some, snapshot, most=_MOST_ROUNDING)
        _refuse_changed(changed)
    for exponent in _EXPONENTS:
        with scaled(model, exponent):
            if _check_isolation(
                model,
                engine,
                probe,
                snapshot,
                most=_MOST_ROUNDING_SCALED,
                may_skip=True,
            ):
                return


def _check_isolation(
    model: nn.Module,
    engine: PerUnitGradients,
    probe: Probe,
    snapshot: Snapshot,
    *,
    most: float,
    may_skip: bool = False,
) -> bool:
    """Compare at one point; return whether more than rounding could be seen there."""
    isolation = Isolation(model, engine, probe)
    snapshot.restore()
    with Undropped():
        found = isolation.apart(between=snapshot.restore).distance
        if found <= _APART:
            return True
        snapshot.restore()
        exact = _in_float64(model, isolation, snapshot)
        is_rounding = exact <= max(_APART, found / 2)  # not a number is none
        if is_rounding and (found <= most or may_skip):
            return found <= most
        snapshot.restore()
        raise company_error(
            model,
            engine,
            probe,
            snapshot,
            allowed=most if is_rounding else _APART,
            is_rounding=is_rounding,
        )


def _in_float64(model: nn.Module, isolation: Isolation, snapshot: Snapshot) -> float:
    """Return the distance without float32's rounding; infinite where that fails."""
    for casts in (widened, nullcontext):  # code of models casts to float32 by itself
        with (
            in_dtype(model, torch.float64, of={torch.float32}),
            suppress(RuntimeError),
        ):
            return isolation.apart(casts=casts, between=snapshot.restore).distance
    return math.inf


def _check_low_precision(
    model: nn.Module, engine: PerUnitGradients, probe: Probe, snapshot: Snapshot
) -> None:
    """Compare in the run's own precision, as far as its rounding lets one see."""
    isolation = Isolation(model, engine, probe)
    snapshot.restore()
    with scaled(model, 0), Undropped():
        found = isolation.apart(between=snapshot.restore)
        if not found.distance <= _APART_LOW_PRECISION:
            snapshot.restore()
            raise company_error(
                model,
                engine,
                probe,
                snapshot,
                allowed=_APART_LOW_PRECISION,
                is_rounding=True,
            )


def _check_buffers(model: nn.Module, snapshot: Snapshot) -> None:
    """Refuse a model that keeps something of its inputs without noise."""
    for name in snapshot.changed_buffers(model):
        raise ModelError(
            f"the buffer {name} must not change in training: it would keep what it saw "
            "of records, without noise. Replace its module, or freeze it in evaluation "
            "mode."
        )
