"""Does a loss that a script gives remember the rows of a step?

Before training, a loss is tried on a few dozen made-up rows. A queue of negatives that
is used once it is full, or a mean that runs on and is divided by after a while, shows
on none of them: it begins on the way. Then records of earlier steps reach the gradients
of others, and no clip of theirs bounds that.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from dptune.dpsgd.feed import Feed
from dptune.dpsgd.isolation import make_probe, same_length
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.errors import PrivacyError

_APART: Final = 1e-5
_APART_LOW_PRECISION: Final = 1e-3
_ROWS: Final = 2


class Memory:
    """Compares losses of made-up rows before the passes of a step and behind them.

    **Formal guarantee**: what the passes of a step leave in a loss, or in the model,
    and moves the losses of made-up rows by more than 1e-5 of them (1e-3 in bfloat16,
    where kernels may round otherwise each time), is found before that step is released.
    Not found: what a script moves there between two steps.

    Args:
        model: that is trained; its weights stay as they are within a step.
        feed: of the run. Losses of the engine's own are not looked at.
    """

    def __init__(self, model: nn.Module, feed: Feed) -> None:
        self._model = model
        self._feed = feed
        self._looks = bool(getattr(feed.record_loss, "is_of_script", False))
        if self._looks:
            probe = make_probe(model, feed)
            rows = min(_ROWS, feed.physical_batch_size)
            shape = replace(probe.feed, physical_batch_size=rows)
            self._rows = shape.shaped(same_length(probe, num_rows=rows))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at the passes of a step.

        Raises:
            PrivacyError: rows that are computed now are told what came before.
        """
        if not self._looks:
            yield
            return
        before = self._losses()
        yield
        after = self._losses()
        most = _APART_LOW_PRECISION if self._feed.autocast else _APART
        most *= float(before.abs().nan_to_num(posinf=0.0).max())
        if not torch.allclose(before, after, rtol=0, atol=most, equal_nan=True):
            raise PrivacyError(
                "loss must give a row the same value whatever was computed before, but "
                "keeps something of the rows of a step, such as a queue or a running "
                "mean: records of one step would move the gradients of others in the "
                "next ones, which no clip bounds. Leave it out of the loss. Nothing "
                "was released of this step."
            )

    def _losses(self) -> Tensor:
        """Return losses of made-up rows, with the same dropout each time."""
        randomness = seed_sequence(RandomStream.MODEL, seed=0)
        with torch.no_grad(), scoped_randomness(randomness, device=self._feed.device):
            return self._feed.losses(self._model, self._rows).float()
