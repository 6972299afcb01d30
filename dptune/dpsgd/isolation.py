"""Does a unit's gradient stay the same, whoever it is computed with?

Asked of made-up units, in the companies that they are put into.
"""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.distributed import ALONE
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.errors import ModelError

LONGEST = 1024
_MOST_ROWS = 8
_MIDDLE = 256
_SAME_LENGTH = 11
_CROWD = 4096
_CROWD_TOKENS = 128 * _SAME_LENGTH
_VOCABULARY = 64
_SHORT, _SEVERAL, _PADS, _ODD, _LONG, _OTHER = range(6)
_COMPANIES = (
    (_SHORT, _LONG, _ODD),
    (_SEVERAL, _OTHER, _ODD, _PADS, _SHORT),
)
_CLASS = (0, 1, 0, 1, 0, -1)  # of each: somebody in company shares it, others do not
COMPARED = (_LONG, _ODD, _PADS, _SEVERAL, _SHORT)  # the longest first, see `isolation`


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Units of made-up tokens, fed as the units of the run will be.

    Args:
        feed: that of the run, with made-up data.
        companies: units of each physical batch, in order.
        run: the feed of the run.
        compared: units that are also computed alone, in this order: a long one first
            and a short one last.
    """

    feed: Feed
    companies: tuple[tuple[int, ...], ...]
    run: Feed
    compared: tuple[int, ...] = COMPARED

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
        return int(self.feed.data.lengths_of([unit]).values.max())

    def with_fixed_shapes(self) -> "Probe":
        """Return the same probe, padded to one shape."""
        return replace(self, feed=replace(self.feed, fixed_shapes=True))

    def with_rows_alone(self, model: nn.Module) -> "Probe":
        """Return units of one row, one at a time."""
        return make_probe(model, replace(self.run, physical_batch_size=1))

    def without_autocast(self) -> "Probe":
        """Return the same probe in the precision of the weights."""
        return replace(self, feed=replace(self.feed, autocast=False))


def make_probe(model: nn.Module, feed: Feed) -> Probe:
    """Make up units that fit a run: its lengths, rows, padding and precision.

    Lengths are odd or far apart, up to `LONGEST` tokens; one sequence has padding
    tokens inside and one token again and again; two begin with tokens that are no
    targets, as prompts are; one unit has two sequences, if units may. Some share a
    class, some their first token, as records do. Half of the tokens are the first ones,
    half are spread over the vocabulary, whose rare words may take another way. No more
    rows are put together than the run will.

    Args:
        model: on the device that it is to be checked on.
        feed: of the run; of its data the bounds are used and nothing else.
    """
    longest = min(feed.longest, LONGEST)
    draws = np.random.default_rng(0)  # public constants
    tokens = _tokens(model, feed.pad_token_id)
    sequences = [
        draws.choice(tokens, n).astype(np.int64)
        for n in _lengths(longest, several=_several(feed))
    ]
    pads = sequences[-4]
    pads[len(pads) // 2 :] = pads[-1]
    pads[2::5] = feed.pad_token_id
    for sequence in (sequences[0], *sequences[-4:-1]):
        sequence[0] = tokens[0]
    weights = [np.linspace(0.5, 1, len(s), dtype=np.float32) for s in sequences]
    for some in (weights[-3], weights[-1]):
        some[: len(some) // 2] = 0
    ends = [1, len(sequences) - 4, *range(len(sequences) - 3, len(sequences) + 1)]
    data = UnitDataset(
        sequences=Ragged.of(sequences, np.int64),
        loss_weights=Ragged.of(weights, np.float32),
        units=Ragged.cut(np.arange(len(sequences)), np.diff([0, *ends])),
        labels=np.repeat(np.array(_CLASS, np.int64), np.diff([0, *ends]))
        % num_classes(model),
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
    return Probe(feed=made_up, companies=tuple(_companies(data, rows)), run=feed)


def crowd_of(model: nn.Module, feed: Feed) -> Probe | None:
    """Make up as many short rows as a run puts side by side, shorter where many.

    Returns:
        None where the companies of `make_probe` are as many.
    """
    rows = min(feed.physical_batch_size, _CROWD)
    if rows <= max(map(len, _COMPANIES)):
        return None
    few = _MOST_ROWS if rows <= 2 * _MOST_ROWS else _MOST_ROWS // 2  # passes of `rows`
    longest = min(max(3, _CROWD_TOKENS // rows), _SAME_LENGTH, feed.longest)
    draws = np.random.default_rng(2)  # public constants
    tokens = _tokens(model, feed.pad_token_id)
    crowd = replace(
        make_probe(model, feed).feed,
        data=UnitDataset(
            sequences=Ragged.of([*draws.choice(tokens, (rows, longest))], np.int64),
            loss_weights=Ragged.of([*np.ones((rows, longest), np.float32)], np.float32),
            units=Ragged.of([*np.arange(rows)[:, None]], np.int64),
            labels=np.arange(rows) % num_classes(model),
        ),
        physical_batch_size=rows,
        max_tokens=longest,
    )
    return Probe(
        feed=crowd,
        companies=(tuple(range(rows)),),
        run=feed,
        compared=tuple(
            dict.fromkeys(np.linspace(rows - 1, 0, few, dtype=int).tolist())
        ),
    )


def num_classes(model: nn.Module) -> int:
    """Return how many classes a model has; 1 where it has none."""
    return int(getattr(getattr(model, "config", None), "num_labels", 1) or 1)


def _tokens(model: nn.Module, pad_token_id: int) -> list[int]:
    """Return tokens to make rows of, up to 64: the first, and some of all others.

    The last tenth is left out, where placeholders of images and the like are.
    """
    size = _vocabulary_size(model)
    first = size if size <= _VOCABULARY + 1 else _VOCABULARY // 2 + 1
    spread = np.linspace(first, size * 9 // 10, _VOCABULARY // 2).astype(int)
    rest = [] if first == size else spread.tolist()
    return [t for t in dict.fromkeys([*range(first), *rest]) if t != pad_token_id]


def _vocabulary_size(model: nn.Module) -> int:
    """Return how many tokens a model tells apart; some, of characters, do not say."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    named: Any = getattr(text, "vocab_size", None)
    tables = (m for m in model.modules() if isinstance(m, nn.Embedding))
    table = None if named else next(tables, None)
    size = int(named or getattr(table, "num_embeddings", _VOCABULARY))
    return int(min(size, num_tokens(model)))


def num_tokens(model: nn.Module) -> float:
    """Return how many tokens a model has embeddings for; some do not say."""
    embed: Any = getattr(model, "get_input_embeddings", lambda: None)
    with suppress(NotImplementedError):  # of characters, such as Canine
        return float(getattr(embed(), "num_embeddings", math.inf))
    return math.inf


def same_length(
    probe: Probe, *, num_rows: int, num_tokens: int | None = None
) -> PhysicalBatch:
    """Return rows of one length, by default a few tokens."""
    draws = np.random.default_rng(1)  # public constants
    sequences = probe.feed.data.sequences
    tokens = np.unique(np.concatenate([sequences[0], sequences[-1]]))
    num_tokens = num_tokens or min(_SAME_LENGTH, probe.feed.longest)
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
    """Cut companies into batches of at most so many rows.

    A unit that is left without company is that unit alone once more, and left out where
    it has company elsewhere.
    """
    pieces: list[tuple[int, ...]] = []
    for company in _COMPANIES:
        waiting: list[int] = []
        for unit in company:
            if data.units.lengths[[*waiting, unit]].sum() > num_rows:
                pieces.append(tuple(waiting))
                waiting = []
            waiting.append(unit)
        pieces.append(tuple(waiting))
    accompanied = {unit for piece in pieces if len(piece) > 1 for unit in piece}
    return [
        piece
        for piece in pieces
        if len(piece) > 1 or (piece and piece[0] not in accompanied)
    ]


_SMALLEST_SHARE = 1e-3
Sums = dict[str, Tensor]
Casts = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Apart:
    """How far gradients in company are from those alone, in units of C.

    Args:
        distance: of all units together; NaN or infinite where a gradient is.
        parameter: where it is largest.
        units: distance of each unit by itself, where that was asked for.
    """

    distance: float
    parameter: str
    units: dict[int, float] = field(default_factory=dict)


class Isolation:
    """Compares units alone with units in company, at the weights of the moment.

    Args:
        model: in the modes of the run.
        engine: hooked into the model.
        probe: made-up units.
    """

    def __init__(
        self, model: nn.Module, engine: PerUnitGradients, probe: Probe
    ) -> None:
        self._model = model
        self._engine = engine
        self._probe = probe
        self._coefficients = _coefficients(probe)
        self._casts: Casts = nullcontext
        self._largest_norm = 0.0

    def apart(
        self,
        *,
        casts: Casts = nullcontext,
        between: Callable[[], None] = lambda: None,
    ) -> Apart:
        """Compare all units at once.

        Args:
            casts: that losses are computed in.
            between: called before units are in company. Where it puts the model back,
                two batches come first, and what a first batch leaves shows.
        """
        self._casts = casts
        return self._apart(self._probe.compared, between)

    def each(self) -> Apart:
        """Compare one unit after the other: slower, and knows whose gradient moves."""
        found = {unit: self._apart((unit,)) for unit in self._probe.compared}
        worst = max(found.values(), key=lambda apart: _order(apart.distance))
        return Apart(
            worst.distance,
            worst.parameter,
            {unit: apart.distance for unit, apart in found.items()},
        )

    def padding(self, unit: int) -> float:
        """Return how far padding alone moves a unit."""
        batch = self._probe.padded(unit)
        return self._between(unit, lambda: self._batch_of(unit), lambda: batch)

    def gradient(self, unit: int) -> Sums:
        """Return a unit's gradient alone, divided by its norm."""
        sums = self._engine.zeros()
        self._add(self._batch_of(unit), [-1.0], sums, {}, (unit,))
        return sums

    def distance(self, gradient: Sums, unit: int) -> float:
        """Return how far a unit alone is from what `gradient` found before."""
        sums = {name: -total for name, total in gradient.items()}
        self._add(self._batch_of(unit), [-1.0], sums, {}, (unit,))
        return _largest(sums).distance

    def _apart(
        self, compared: tuple[int, ...], between: Callable[[], None] = lambda: None
    ) -> Apart:
        """Take the longest alone first, and the shortest first of all once more.

        What the longest leaves behind must not matter, nor that it was not there yet.
        """
        sums, norms = self._engine.zeros(), dict[int, Tensor]()
        first = compared[-1]
        for unit in compared:
            total = sum(c.get(unit, 0.0) for c in self._coefficients) + (unit == first)
            self._add(self._batch_of(unit), [-total], sums, norms, (unit,))
        between()
        self._add(self._batch_of(first), [1.0], sums, norms, (first,))
        between()
        for company, wanted in zip(
            self._probe.companies, self._coefficients, strict=True
        ):
            if not set(company) & set(compared):
                continue
            factors = [wanted.get(u, 0.0) if u in compared else 0.0 for u in company]
            self._add(self._probe.batch(company), factors, sums, norms, company)
        return _largest(sums)

    def _between(
        self,
        unit: int,
        first: Callable[[], PhysicalBatch],
        second: Callable[[], PhysicalBatch],
    ) -> float:
        """Return the distance of a unit in two batches of its own."""
        sums, norms = self._engine.zeros(), dict[int, Tensor]()
        self._add(first(), [-1.0], sums, norms, (unit,))
        self._add(second(), [1.0], sums, norms, (unit,))
        return _largest(sums).distance

    def _batch_of(self, unit: int) -> PhysicalBatch:
        """Return the batch of one unit alone."""
        return self._probe.batch((unit,))

    def _add(
        self,
        batch: PhysicalBatch,
        coefficients: list[float],
        sums: Sums,
        norms: dict[int, Tensor],
        units: tuple[int, ...],
    ) -> None:
        """Add coefficient * gradient / norm alone of each unit of a batch."""

        def factors(found: Tensor) -> Tensor:
            """Divide by norms alone, which the first batch of a unit finds."""
            result = torch.zeros_like(found)
            for index, (unit, factor) in enumerate(
                zip(units, coefficients, strict=True)
            ):
                if factor:
                    scale = norms.setdefault(unit, self._scale(found[:, index]))
                    result[:, index] = factor * scale
            return result

        with self._engine.record(batch.rows_of_unit) as tape:
            with self._casts(), self._chance(units):
                losses = self._probe.feed.losses(self._model, batch)
            _check_losses(losses, batch)
            found = tape.backward(losses.sum(), factors, sums)
        if not bool(torch.isfinite(found[:, : len(units)]).all()):
            for total in sums.values():
                total.fill_(torch.nan)

    def _chance(self, units: tuple[int, ...]) -> AbstractContextManager[None]:
        """Give a row that is alone the same chances each time, and others to others."""
        if not self._engine.alone:
            return nullcontext()
        randomness = seed_sequence(RandomStream.MODEL, seed=units[0])
        return scoped_randomness(randomness, device=self._probe.feed.device)

    def _scale(self, norms: Tensor) -> Tensor:
        """Factors that bring the groups of one unit to norm 1 together, `(groups,)`.

        A group, or a unit, next to nothing is not blown up: it may be rounding alone.
        """
        whole = float(torch.linalg.vector_norm(norms))
        if not 0 < whole < math.inf:
            return torch.zeros_like(norms)
        self._largest_norm = max(self._largest_norm, whole)
        least = _SMALLEST_SHARE * max(whole, _SMALLEST_SHARE * self._largest_norm)
        if len(norms) == 1:
            least = _SMALLEST_SHARE * self._largest_norm
        return 1 / norms.clamp(min=least) / math.sqrt(len(norms))


def _coefficients(probe: Probe) -> list[dict[int, float]]:
    """Return numbers in (.5, 1) for every unit that is compared and every company."""
    generator = torch.Generator().manual_seed(0)  # public constants
    return [
        {
            unit: 0.5 + 0.5 * float(torch.rand((), generator=generator))
            for unit in company
            if unit in probe.compared
        }
        for company in probe.companies
    ]


def _check_losses(losses: Tensor, batch: PhysicalBatch) -> None:
    """Refuse a loss that is not one of each row."""
    if losses.shape != (batch.num_rows,):
        raise ModelError(
            f"a record loss must return one value for each of {batch.num_rows} rows, "
            f"got shape {tuple(losses.shape)}."
        )


def _largest(sums: Sums) -> Apart:
    """Return the norm of everything, and the parameter that has most of it."""
    squares = {
        name: float(total.double().square().sum()) for name, total in sums.items()
    }
    worst = max(squares, key=lambda name: _order(squares[name]))
    return Apart(math.sqrt(sum(squares.values())), worst)


def _order(value: float) -> float:
    """Put NaN above everything."""
    return math.inf if math.isnan(value) else value
