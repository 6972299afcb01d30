"""Is the loss that a model returns the one that is trained in its place?"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dptune.dpsgd.feed import Feed
from dptune.dpsgd.isolation import make_probe, same_length
from dptune.dpsgd.prechecks import training_mode
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.refusals import explained, model_name
from dptune.dpsgd.untouched import Undropped
from dptune.errors import ModelError

_TOLERANCES = {torch.float32: 1e-4}
_OF_FEW_BITS = 2e-2
_MOST_ROWS = 5


def check_own_loss(model: nn.Module, feed: Feed, *, next_step: str) -> None:
    """Refuse a model that has a loss of its own, such as one with further terms.

    A script that asks its model for a loss gets that of `feed` in its place, which is
    cross-entropy, of each row alone. Both are computed of made-up rows, in training
    mode without dropout: side by side, since a loss that compares rows, or weighs
    classes, shows on no single one.

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
    classes = int(getattr(getattr(model, "config", None), "num_labels", 1) or 1)
    labels = torch.arange(rows.num_rows, device=rows.input_ids.device) % classes
    rows = replace(rows, labels=labels)
    given = {
        "input_ids": rows.input_ids,
        "attention_mask": rows.attention_mask,
        "labels": labels if has_classes else rows.input_ids,
    }
    chances = seed_sequence(RandomStream.MODEL, seed=0)  # the same for both
    with (
        torch.no_grad(),
        training_mode(model),
        explained(model, "compute a loss", next_step=next_step),
        Undropped(),
    ):
        with scoped_randomness(chances, device=probe.feed.device):
            output: Any = model(**given)
        own = output.loss
        with scoped_randomness(chances, device=probe.feed.device):
            losses = probe.feed.losses(model, rows)
    ours = probe.feed.totals(losses, rows).loss
    few = [_TOLERANCES.get(p.dtype, _OF_FEW_BITS) for p in model.parameters()]
    if own is None or not math.isclose(float(own), ours, rel_tol=max(few)):
        got = "none" if own is None else "another"
        what = "its class" if has_classes else "the tokens that come next"
        raise ModelError(
            f"{model_name(model)} must return the cross-entropy of {what} as its loss, "
            f"of each row by itself, got {got}, such as that of masked words or tags: "
            f"it is what is trained. {next_step}"
        )
