"""Is the loss that a model returns the one that is trained in its place?"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dptune.dpsgd.dataset import PhysicalBatch
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.isolation import make_probe, num_classes, same_length
from dptune.dpsgd.prechecks import training_mode
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.refusals import explained, model_name
from dptune.dpsgd.untouched import Undropped, scaled
from dptune.errors import ModelError

_TOLERANCES = {torch.float32: 1e-4}
_OF_FEW_BITS = 2e-2
_MOST_ROWS = 5
_ROUNDS = 3


def check_own_loss(model: nn.Module, feed: Feed, *, next_step: str) -> None:
    """Refuse a model that has a loss of its own, such as one with further terms.

    A script that asks its model for a loss gets that of `feed` in its place, which is
    cross-entropy, of each row alone. Both are computed of made-up rows, in training
    mode without dropout: side by side, since a loss that compares rows, or weighs
    classes, shows on no single one; with the weights as they are and four times as
    large, since smoothed labels do not show where all tokens are as likely; and of rows
    whose targets are what the model finds likeliest too, since focal losses do not show
    where targets are unlikely.

    Args:
        model: on its device, and checked: chance moves rows one by one.
        feed: of the run.
        next_step: what to do where they differ.

    Raises:
        ModelError: the model returns another loss, or none.
    """
    has_classes = feed.data.labels is not None
    feed = replace(feed, fixed_shapes=False, autocast=False)
    probe = make_probe(model, feed)
    rows = same_length(probe, num_rows=min(feed.physical_batch_size, _MOST_ROWS))
    labels = torch.arange(rows.num_rows, device=rows.input_ids.device)
    labels %= num_classes(model)
    rows = replace(rows, labels=labels)
    chances = seed_sequence(RandomStream.MODEL, seed=0)  # the same for both
    few = [_TOLERANCES.get(p.dtype, _OF_FEW_BITS) for p in model.parameters()]
    with training_mode(model), explained(model, "compute a loss", next_step=next_step):
        for exponent in (0, 2):
            with scaled(model, exponent), torch.no_grad(), Undropped():
                for some in (rows, _likely(model, rows, has_classes=has_classes)):
                    with scoped_randomness(chances, device=probe.feed.device):
                        own = _own_loss(model, some, has_classes=has_classes)
                    with scoped_randomness(chances, device=probe.feed.device):
                        losses = probe.feed.losses(model, some)
                    ours = probe.feed.totals(losses, some).loss
                    if exponent and not math.isfinite(ours):
                        continue
                    most = max(few) * max(1.0, abs(ours))
                    if own is None or not abs(own - ours) <= most:
                        raise _another(
                            model, own, has_classes=has_classes, next_step=next_step
                        )


def _own_loss(
    model: nn.Module, rows: PhysicalBatch, *, has_classes: bool
) -> float | None:
    """Return the loss that a model returns, if it does."""
    output: Any = model(
        input_ids=rows.input_ids,
        attention_mask=rows.attention_mask,
        labels=rows.labels if has_classes else rows.input_ids,
    )
    return None if output.loss is None else float(output.loss)


def _likely(
    model: nn.Module, rows: PhysicalBatch, *, has_classes: bool
) -> PhysicalBatch:
    """Return rows whose classes, or first tokens, a model finds likeliest.

    Among the tokens of the rows: others may end a text, or stand for an image. What
    follows is likeliest behind the tokens of the round before.
    """
    tokens, ids = torch.unique(rows.input_ids), rows.input_ids
    for _ in range(_ROUNDS):
        output: Any = model(input_ids=ids, attention_mask=rows.attention_mask)
        if has_classes:
            return replace(rows, labels=output.logits.argmax(-1))
        likely = tokens[output.logits[:, :-1, tokens].argmax(-1)]
        ids = torch.cat([ids[:, :1], likely], dim=1)
    return replace(rows, input_ids=ids)


def _another(
    model: nn.Module, own: float | None, *, has_classes: bool, next_step: str
) -> ModelError:
    """Say that a model returns no loss, or another one than is trained."""
    what = "its class" if has_classes else "the tokens that come next"
    return ModelError(
        f"{model_name(model)} must return the cross-entropy of {what} as its loss, of "
        f"each row by itself, got {'none' if own is None else 'another'}, such as that "
        f"of masked words or tags: it is what is trained. {next_step}"
    )
