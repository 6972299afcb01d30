"""Best-first search for the candidates that a model likes best, and samples of them.

A node is a sequence of pieces behind the context. Its bound is the smallest score that
a candidate below it can have, so that once every open node's bound has reached a
score, all candidates with smaller scores are known: the rank at that score is exact.

A model gives all candidates together a probability of at most one, so fewer than
`exp(T)` have a total loss below `T`: a memorised canary is ranked after a few nodes,
however large the space.
"""

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from dptune.attacks.exposure import Scoring
from dptune.attacks.inference import (
    KeyValues,
    OnProgress,
    evaluating,
    next_logits,
    place,
    unwatched,
)
from dptune.attacks.pieces import Spelling
from dptune.errors import ModelError
from dptune.statistics import clopper_pearson

Path = tuple[int, ...]

_SIDES: tuple[Literal["left", "right"], ...] = ("left", "right")


@dataclass(frozen=True, kw_only=True)
class Found:
    """Candidates in the order of their scores, as far as they are known. Restricted.

    Args:
        scores: of the candidates that were found, ascending.
        by_path: the same by the candidates' tokens behind the context.
        complete_below: all candidates with scores below this one were found.
        num_nodes: nodes that were forwarded.
        num_token_forwards: tokens that went through the model.
    """

    scores: NDArray[np.float64] = field(repr=False)
    by_path: dict[Path, float] = field(repr=False)
    complete_below: float
    num_nodes: int
    num_token_forwards: int

    def rank(self: Self, score: float) -> tuple[int, bool]:
        """One more than the candidates found below a score, and whether that is all."""
        better = int(np.searchsorted(self.scores, score, side="left"))
        return 1 + better, score <= self.complete_below

    def num_tied(self: Self, score: float) -> int:
        """Candidates with this very score: all of them, if it is below what is open."""
        left, right = (np.searchsorted(self.scores, score, side=s) for s in _SIDES)
        return int(right - left)


@dataclass(frozen=True, order=True, kw_only=True)
class _Node:
    """Pieces behind the context; ordered by bound."""

    bound: float
    path: Path = field(repr=False)
    loss: float
    place: int


@torch.inference_mode()
def search(
    model: nn.Module,
    spelling: Spelling,
    *,
    limit: float,
    scoring: Scoring = "sum",
    max_nodes: int = 20_000,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> Found:
    """Find every candidate with a score below `limit`, or as many as nodes allow.

    Only the tokenization that the tokenizer itself gives counts as a candidate, as
    everywhere; a path that spells it in other pieces is dropped at its end.

    Args:
        model: any causal language model with a key-value cache, in float32.
        spelling: of the candidates.
        limit: scores at or above it are of no interest.
        scoring: `sum` of the nats, or `mean` per token.
        max_nodes: forwarded at most, apart from one batch.
        batch_size: nodes forwarded at once.
        device: where to run; None is where the model is.
        on_progress: told how many nodes were forwarded; it may end before the last.

    Raises:
        ModelError: the weights are not float32, the architecture keeps no keys and
            values, a score is NaN, or candidates do not share their context.

    Privacy:
        The scores are private: a function of the model.
    """
    target = place(model, device)
    hunt = _Hunt(model=model, spelling=spelling, device=target, limit=limit)
    hunt.scoring = scoring
    with evaluating(model):
        return hunt.run(
            max_nodes=max_nodes, batch_size=batch_size, on_progress=on_progress
        )


class _Hunt:
    """The open nodes, and what was found."""

    scoring: Scoring = "sum"

    def __init__(
        self,
        *,
        model: nn.Module,
        spelling: Spelling,
        device: torch.device,
        limit: float,
    ) -> None:
        self.model, self.spelling, self.device = model, spelling, device
        self.limit = limit
        self.open: list[_Node] = []
        self.ends: list[_Node] = []
        self.num_forwards = 0
        tables = [torch.from_numpy(ids).to(device) for ids in spelling.pieces]
        self.pieces: list[Tensor] = tables
        if not spelling.context:
            raise ModelError(
                "a canary must have a token before the secret. Put text before "
                "{secret} in the template, or open records with a BOS token."
            )

    def run(self, *, max_nodes: int, batch_size: int, on_progress: OnProgress) -> Found:
        """Expand nodes from the best on."""
        root = torch.tensor([self.spelling.context])
        self.num_forwards += root.numel()
        logits, key_values = next_logits(
            self.model, root, [], past=0, device=self.device
        )
        start = _Node(bound=-1.0, path=(), loss=0.0, place=0)
        self._expand([start], logits)
        num_nodes = 1
        while self.open and num_nodes < max_nodes:
            count = min(batch_size, len(self.open))
            nodes = [heapq.heappop(self.open) for _ in range(count)]
            for group in _by_depth(nodes):
                self._expand(group, self._forward(group, key_values))
            num_nodes += count
            on_progress(num_nodes, max_nodes)
        best_open = self.open[0].bound if self.open else math.inf
        by_path = {node.path: node.bound for node in self._canonical()}
        return Found(
            scores=np.sort(list(by_path.values())),
            by_path=by_path,
            complete_below=min(best_open, self.limit),
            num_nodes=num_nodes,
            num_token_forwards=self.num_forwards,
        )

    def _forward(self, nodes: Sequence[_Node], key_values: KeyValues) -> Tensor:
        """Logits behind the paths of nodes of one depth."""
        tokens = torch.tensor([node.path for node in nodes])
        self.num_forwards += tokens.numel()
        past = [(_repeat(k, len(nodes)), _repeat(v, len(nodes))) for k, v in key_values]
        length = len(self.spelling.context)
        return next_logits(self.model, tokens, past, past=length, device=self.device)[0]

    def _expand(self, nodes: Sequence[_Node], logits: Tensor) -> None:
        """Keep the children that can still come below the limit."""
        normalizer = torch.logsumexp(logits, dim=-1)
        if not torch.isfinite(normalizer).all():
            raise ModelError(
                "scores must be numbers, got NaN. The model's weights or activations "
                "are not finite; no exposure can be measured."
            )
        for row, node in enumerate(nodes):
            chosen = logits[row, self.pieces[node.place]] - normalizer[row]
            self._add(node, -chosen.double().cpu().numpy())

    def _add(self, node: _Node, losses: NDArray[np.float64]) -> None:
        """Open the children of one node, or close those that end a secret."""
        lengths = self.spelling.lengths[node.place]
        places = node.place + lengths
        totals = node.loss + losses
        num_tokens = len(node.path) + 1
        bounds = self._bounds(totals, num_tokens, self.spelling.end - places)
        for child in np.flatnonzero(bounds < self.limit):
            piece = int(self.spelling.pieces[node.place][child])
            found = _Node(
                bound=float(bounds[child]),
                path=(*node.path, piece),
                loss=float(totals[child]),
                place=int(places[child]),
            )
            if found.place >= self.spelling.end:
                self.ends.append(found)
            else:
                heapq.heappush(self.open, found)

    def _bounds(
        self,
        totals: NDArray[np.float64],
        num_tokens: int,
        missing: NDArray[np.int64],
    ) -> NDArray[np.float64]:
        """Smallest scores below nodes that miss so many code points."""
        if self.scoring == "sum":
            return totals
        # the most tokens, one for each missing code point, none of them a loss
        bounds: NDArray[np.float64] = totals / (num_tokens + np.maximum(missing, 0))
        return bounds

    def _canonical(self) -> list[_Node]:
        """Ends whose pieces are the tokens that the tokenizer gives their text."""
        if not self.ends:
            return []
        paths = self.spelling.paths_of([self.spelling.read(n.path) for n in self.ends])
        own = zip(self.ends, paths, strict=True)
        return [node for node, path in own if path == node.path]


def _repeat(tensor: Tensor, count: int) -> Tensor:
    """The same keys or values for every row, without a copy."""
    return tensor.expand(count, *tensor.shape[1:])


def _by_depth(nodes: Iterable[_Node]) -> list[list[_Node]]:
    """Nodes whose paths are of one length, together."""
    groups: dict[int, list[_Node]] = {}
    for node in nodes:
        groups.setdefault(len(node.path), []).append(node)
    return list(groups.values())


Floats = NDArray[np.float64]

_LARGEST_LOG = 700.0


@dataclass(frozen=True, kw_only=True)
class WeightedSample:
    """Candidates drawn from the model itself, with one over their chance. Private.

    Args:
        losses: total nats of each drawn candidate.
        num_scored: its tokens.
        weights: one over the chance to draw it; 0 for a spelling that the tokenizer
            does not give.
        num_token_forwards: tokens that went through the model.
    """

    losses: Floats = field(repr=False)  # (draws,)
    num_scored: NDArray[np.int64] = field(repr=False)
    weights: Floats = field(repr=False)
    num_token_forwards: int

    def count_upper(
        self: Self, scores: Floats, score: float, *, total: float, confidence: float
    ) -> float:
        """Upper bound of the number of candidates with a score, or a smaller one.

        What was drawn says little of weights that did not show up, which may be the
        largest: resampling would leave them out. But a candidate's chance to be drawn
        is at least its probability, so that no weight is above `exp(total)`, and an
        empirical Bernstein bound holds for weights of any law.

        Args:
            scores: of the draws.
            score: up to which candidates are counted.
            total: nats that none of them has more of.
            confidence: of the bound.

        References:
            Maurer and Pontil (2009), "Empirical Bernstein bounds and sample-variance
            penalization", theorem 4.
        """
        weights = np.where(scores <= score, self.weights, 0.0)
        largest = max(math.exp(min(total, _LARGEST_LOG)), float(weights.max()))
        num, log = len(weights), math.log(2.0 / (1.0 - confidence))
        spread = math.sqrt(2.0 * float(weights.var(ddof=1)) * log / num)
        unseen = 7.0 * largest * log / (3.0 * (num - 1))
        return float(weights.mean()) + spread + unseen


@torch.inference_mode()
def draw_candidates(
    model: nn.Module,
    spelling: Spelling,
    *,
    count: int,
    generator: torch.Generator,
    device: str | torch.device | None = None,
    batch_size: int = 256,
) -> WeightedSample:
    """Draw candidates piece by piece from the model, kept to the pieces that fit.

    The mean of the weights of the draws below a score estimates, without bias, how
    many candidates are below it.

    Args:
        model: any causal language model with a key-value cache.
        spelling: of the candidates.
        count: how many to draw.
        generator: source of the draws, on the CPU.
        device: where to run; None is where the model is.
        batch_size: paths forwarded at once.

    Privacy:
        The result is private: a function of the model.
    """
    target = place(model, device)
    draw = _Draw(model, spelling, device=target, generator=generator)
    with evaluating(model):
        parts = [
            draw.run(min(batch_size, count - start))
            for start in range(0, count, batch_size)
        ]
    losses, scored, chances = (
        np.concatenate(part) for part in zip(*parts, strict=True)
    )
    return WeightedSample(
        losses=losses,
        num_scored=scored,
        weights=np.where(draw.canonical(), np.exp(chances), 0.0),
        num_token_forwards=draw.num_forwards,
    )


class _Draw:
    """Paths that grow by one piece at a time."""

    def __init__(
        self,
        model: nn.Module,
        spelling: Spelling,
        *,
        device: torch.device,
        generator: torch.Generator,
    ) -> None:
        self.model, self.spelling, self.device = model, spelling, device
        self.generator = generator
        root = torch.tensor([spelling.context])
        self.num_forwards = root.numel()
        logits, self.context = next_logits(model, root, [], past=0, device=device)
        self.first = logits
        self.paths: list[tuple[int, ...]] = []

    def run(self, count: int) -> tuple[Floats, NDArray[np.int64], Floats]:
        """Losses, scored tokens, and minus the log chance of `count` paths."""
        losses, chances = np.zeros(count), np.zeros(count)
        scored, places = np.zeros(count, np.int64), np.zeros(count, np.int64)
        paths: list[tuple[int, ...]] = [()] * count
        logits = self.first.expand(count, -1)
        while True:
            before = places.copy()
            for at in np.unique(before[before < self.spelling.end]):
                rows = np.flatnonzero(before == at)
                pieces, loss, chance = self._step(logits[rows], int(at))
                places[rows] = at + self.spelling.lengths[at][pieces]
                losses[rows] += loss
                scored[rows] += 1
                chances[rows] += chance
                for row, piece in zip(rows, pieces, strict=True):
                    paths[row] = (*paths[row], int(self.spelling.pieces[at][piece]))
            growing = np.flatnonzero(places < self.spelling.end)
            if not len(growing):
                break
            logits = self._forward(paths, growing, logits)
        self.paths.extend(paths)
        return losses, scored, chances

    def _step(
        self, logits: Tensor, at: int
    ) -> tuple[NDArray[np.int64], Floats, Floats]:
        """Draw a piece for each row: its number, its loss, minus its log chance."""
        pieces = torch.from_numpy(self.spelling.pieces[at]).to(logits.device)
        log_probs = logits[:, pieces] - torch.logsumexp(logits, dim=-1)[:, None]
        allowed = torch.log_softmax(log_probs.double(), dim=-1).cpu()
        drawn = torch.multinomial(allowed.exp(), 1, generator=self.generator)
        loss = -log_probs.double().cpu().gather(1, drawn)[:, 0]
        chance = -allowed.gather(1, drawn)[:, 0]
        return drawn[:, 0].numpy(), loss.numpy(), chance.numpy()

    def _forward(
        self, paths: Sequence[tuple[int, ...]], rows: NDArray[np.int64], logits: Tensor
    ) -> Tensor:
        """Logits behind the growing paths, all of one length; other rows stay."""
        tokens = torch.tensor([paths[row] for row in rows])
        self.num_forwards += tokens.numel()
        past: KeyValues = [
            (k.expand(len(rows), *k.shape[1:]), v.expand(len(rows), *v.shape[1:]))
            for k, v in self.context
        ]
        length = len(self.spelling.context)
        found, _ = next_logits(
            self.model, tokens, past, past=length, device=self.device
        )
        out = logits.clone()
        out[torch.from_numpy(rows).to(out.device)] = found
        return out

    def canonical(self) -> NDArray[np.bool_]:
        """Whether each path is the tokenizer's own spelling of its text."""
        own = self.spelling.paths_of([self.spelling.read(path) for path in self.paths])
        return np.array([a == b for a, b in zip(own, self.paths, strict=True)])


def uniform_rank(
    sample: Floats,
    score: float,
    *,
    space_size: int,
    confidence: float,
    place: Callable[[int], int],
) -> tuple[int, float, float]:
    """Rank by `(k + 1) / (n + 1)`, and Clopper-Pearson's bounds of exposure in bits.

    `k` of `n` uniform candidates come before the canary. `(k + 1) / (n + 1)` is a valid
    p-value of a canary of the same law that the model never saw, for any `n`.

    Args:
        sample: scores of the candidates.
        score: of the canary.
        space_size: candidates in all.
        confidence: of the bounds.
        place: draws the canary's place, from 0, among so many equals, itself included.
    """
    count, tied = len(sample), int((sample == score).sum())
    below = int((sample < score).sum()) + place(tied + 1)
    rank = -(-space_size * (below + 1) // (count + 1))
    low, high = clopper_pearson(below, count, confidence=confidence)
    upper = -math.log2(low) if low > 0 else math.log2(space_size)
    return min(rank, space_size), -math.log2(high), upper


def extrapolated_exposure(sample: Floats, score: float) -> float:
    """Bits by a skew-normal law fitted to uniform candidates: a guess beyond them.

    It may say far more bits than there are (Carlini et al. 2019, section 4.3).
    """
    law = stats.skewnorm.fit(sample)
    return float(-stats.skewnorm.logcdf(score, *law) / math.log(2))
