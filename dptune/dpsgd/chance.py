"""Does chance act on each row by itself?

Dropout draws for every entry, so that two neighboring data sets can be coupled with the
same mask in each row that both have, and the clip bounds the rest. What is drawn once
for all rows of a batch (a layer that is left out, hashes, a mask that rows share) has
no such coupling: which rows share it depends on who is there. Where every row has a
pass of its own, whatever torch draws there from its own generator, whose seed is
secret, is that row's: adapters that are left out by a coin (LoHa, LoKr) train so.
"""

from functools import partial

import torch
from torch import Tensor, nn

from dptune.dpsgd.gradients import ONE_ROW
from dptune.dpsgd.isolation import Probe, same_length
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.refusals import explained, model_name
from dptune.dpsgd.untouched import Snapshot, Undropped
from dptune.errors import ModelError

_SAME_LOSS = 1e-4
_SAME_LOSS_DRAWN = 1e-6
_OF_ROWS = (
    "Rows of one batch share what is drawn, and who shares it depends on who is there. "
    "Set its rate to 0 in the model's configuration, or a model or adapters without "
    f"(LoRA draws nothing), or {ONE_ROW}, where each row has chances of its own."
)
_OF_SEEDS = (
    "Python, numpy and generators of a model's own have seeds that a script may know, "
    "and one record more moves what is drawn for those behind it. Set its rate to 0 in "
    "the model's configuration, or draw by torch without a generator."
)


def check_chance(
    model: nn.Module, probe: Probe, snapshot: Snapshot, *, alone: bool
) -> None:
    """Refuse a model whose losses depend on chance beside dropout.

    Where the longest rows draw nothing, one company will do. What is drawn may move few
    rows, and those by little, such as the hashes that attention sorts long rows by.

    Args:
        model: in training mode.
        probe: made-up rows.
        snapshot: of the model before.
        alone: every row has a pass of its own: what torch draws there, but for a
            generator of the model's own, may move it.

    Raises:
        ModelError: names what draws.
    """
    longest = max(probe.companies, key=lambda units: max(map(probe.length, units)))
    asked = partial(_refuse_chance, model, probe, snapshot, alone=alone)
    drawn = asked(longest, most=_SAME_LOSS)
    for units in probe.companies if drawn else ():
        asked(units, most=_SAME_LOSS_DRAWN)


def _refuse_chance(
    model: nn.Module,
    probe: Probe,
    snapshot: Snapshot,
    units: tuple[int, ...],
    *,
    alone: bool,
    most: float,
) -> dict[str, None]:
    """Compute one batch under two chances; return what was drawn beside dropout."""
    batch = probe.batch(units)
    losses, drawn = [], dict[str, None]()
    for extreme in (0, 1):
        snapshot.restore()
        seed = 0 if alone else extreme
        randomness = seed_sequence(RandomStream.MODEL, seed=seed)
        device = probe.feed.device
        mode = Undropped(extreme=extreme, alone=alone)
        with (
            torch.no_grad(),
            scoped_randomness(randomness, device=device),
            explained(model, "compute rows together"),
            mode,
        ):
            losses.append(probe.feed.losses(model, batch).float())
        drawn |= mode.draws
    if not _close(*losses, most=most):
        raise ModelError(
            f"{model_name(model)} must draw nothing but dropout in training, but "
            f"{', '.join(drawn) or 'a kernel outside torch'} moves its losses. "
            f"{_OF_SEEDS if alone else _OF_ROWS}"
        )
    return drawn


def _close(first: Tensor, second: Tensor, *, most: float) -> bool:
    """Whether losses are equal, up to rounding; those that are not finite too."""
    scale = float(first.nan_to_num(posinf=0.0, neginf=0.0).abs().max())
    return torch.allclose(first, second, rtol=0, atol=most * scale, equal_nan=True)


def check_shared_masks(model: nn.Module, probe: Probe) -> None:
    """Refuse dropout whose mask does not grow with the number of rows."""
    rows = (7, 13)
    sizes: list[dict[str, int]] = []
    for num_rows in rows:
        mode = Undropped()
        batch = same_length(probe, num_rows=num_rows)
        what = "compute rows of one length"
        with torch.no_grad(), explained(model, what), mode:
            probe.feed.losses(model, batch)
        if not (mode.dropped or sizes):
            return
        found: dict[str, int] = {}
        for caller, size in mode.dropped:
            found[caller] = found.get(caller, 0) + size
        sizes.append(found)
    few, many = sizes
    shared = [n for n in few if few[n] * rows[1] != many.get(n, 0) * rows[0]]
    if shared:
        raise ModelError(
            f"{model_name(model)} must draw a dropout mask for every row, but "
            f"{', '.join(shared)} has one for all rows of a batch: who shares it "
            "depends on who is there. Set the rates of dropout to 0 in the model's "
            f"configuration, or {ONE_ROW}."
        )
