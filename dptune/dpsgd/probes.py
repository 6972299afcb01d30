"""Made-up units, and the companies that they are put into."""

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.distributed import ALONE
from dptune.dpsgd.feed import Feed

LONGEST = 1024
_MOST_ROWS = 8
_MIDDLE = 256
_SAME_LENGTH = 11
_VOCABULARY = 64
_SHORT, _SEVERAL, _PADS, _ODD, _LONG, _OTHER = range(6)
_COMPANIES = (
    (_SHORT, _LONG, _ODD),
    (_OTHER, _ODD, _PADS, _SEVERAL, _SHORT),
)
COMPARED = (_LONG, _ODD, _PADS, _SEVERAL, _SHORT)  # the longest first, see `isolation`


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Units of made-up tokens, fed as the units of the run will be.

    Args:
        feed: that of the run, with made-up data.
        companies: units of each physical batch, in order.
    """

    feed: Feed
    companies: tuple[tuple[int, ...], ...]

    def batch(self, units: tuple[int, ...]) -> PhysicalBatch:
        """Collate units as the run does, in this order."""
        feed = self.feed
        piece = feed.data.collate(units, feed.pad_token_id)
        return feed.shaped(piece).to(feed.device)

    def padded(self, unit: int) -> PhysicalBatch:
        """Return one unit alone, padded as if it stood beside the longest."""
        feed = self.feed
        piece = feed.data.collate([unit], feed.pad_token_id)
        return piece.filled(
            num_rows=piece.num_rows,
            num_tokens=feed.longest,
            pad_token_id=feed.pad_token_id,
        ).to(feed.device)

    def length(self, unit: int) -> int:
        """Tokens of a unit's longest sequence."""
        rows = self.feed.data.units[unit]
        return max(len(self.feed.data.sequences[row]) for row in rows)

    def with_fixed_shapes(self) -> "Probe":
        """Return the same probe, padded to one shape."""
        return replace(self, feed=replace(self.feed, fixed_shapes=True))

    def without_autocast(self) -> "Probe":
        """Return the same probe in the precision of the weights."""
        return replace(self, feed=replace(self.feed, autocast=False))


def make_probe(model: nn.Module, feed: Feed) -> Probe:
    """Make up units that fit a run: its lengths, rows, padding and precision.

    Lengths are odd or far apart, up to `LONGEST` tokens; one sequence has padding
    tokens inside and one token again and again; one unit has two sequences, if units
    may. No more rows are put together than the run will.

    Args:
        model: on the device that it is to be checked on.
        feed: of the run; of its data the bounds are used and nothing else.
    """
    longest = min(feed.longest, LONGEST)
    draws = np.random.default_rng(0)  # public constants
    size = _vocabulary_size(model)
    tokens = [t for t in range(min(size, _VOCABULARY + 1)) if t != feed.pad_token_id]
    sequences = [
        draws.choice(tokens, n).astype(np.int64)
        for n in _lengths(longest, several=_several(feed))
    ]
    pads = sequences[-4]
    pads[len(pads) // 2 :] = pads[-1]
    pads[2::5] = feed.pad_token_id
    ends = [1, len(sequences) - 4, *range(len(sequences) - 3, len(sequences) + 1)]
    classes = int(getattr(getattr(model, "config", None), "num_labels", 1) or 1)
    data = UnitDataset(
        sequences=tuple(sequences),
        loss_weights=tuple(
            np.linspace(0.5, 1, len(s), dtype=np.float32) for s in sequences
        ),
        units=tuple(np.arange(a, b) for a, b in pairwise([0, *ends])),
        labels=np.arange(len(sequences), dtype=np.int64) % classes,
        max_sequences_per_unit=2,
    )
    rows = min(feed.physical_batch_size, _MOST_ROWS)
    made_up = replace(
        feed,
        data=data,
        physical_batch_size=rows,
        max_tokens=longest,
        device=next(model.parameters()).device,
        ranks=ALONE,
        in_step=False,
    )
    return Probe(feed=made_up, companies=tuple(_companies(data, rows)))


def _vocabulary_size(model: nn.Module) -> int:
    """Return how many tokens a model tells apart; some, of characters, do not say."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return int(getattr(text, "vocab_size", None) or _VOCABULARY)


def same_length(probe: Probe, *, num_rows: int) -> PhysicalBatch:
    """Return rows of one length, to see what grows with their number."""
    draws = np.random.default_rng(1)  # public constants
    sequences = probe.feed.data.sequences
    tokens = np.unique(np.concatenate([sequences[0], sequences[-1]]))
    num_tokens = min(_SAME_LENGTH, probe.feed.longest)
    ids = torch.from_numpy(draws.choice(tokens, (num_rows, num_tokens)))
    return PhysicalBatch(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        loss_weights=torch.ones(ids.shape),
        rows_of_unit=torch.arange(num_rows)[:, None],
        labels=torch.zeros(num_rows, dtype=torch.long),
    ).to(probe.feed.device)


def _several(feed: Feed) -> bool:
    """Whether the run has units of several rows."""
    return feed.data.max_sequences_per_unit > 1 and feed.physical_batch_size > 1


def _lengths(longest: int, *, several: bool) -> list[int]:
    """Lengths of sequences: short, several, with padding, odd, longest, another."""
    middle = min(longest, _MIDDLE)
    own = [5, 19] if several else [19]
    wanted = [3, *own, 13, middle // 3 | 1, longest, middle // 2 + 1]
    return [max(1, min(length, longest)) for length in wanted]


def _companies(data: UnitDataset, num_rows: int) -> list[tuple[int, ...]]:
    """Cut companies into batches of at most so many rows; keep no one alone."""
    pieces: list[tuple[int, ...]] = []
    for company in _COMPANIES:
        waiting: list[int] = []
        for unit in company:
            if sum(len(data.units[u]) for u in [*waiting, unit]) > num_rows:
                pieces.append(tuple(waiting))
                waiting = []
            waiting.append(unit)
        pieces.append(tuple(waiting))
    return [piece for piece in pieces if piece]
