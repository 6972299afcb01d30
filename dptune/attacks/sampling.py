"""How many candidates a model likes better than a score, from samples of candidates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from dptune.attacks._inference import KeyValues, evaluating, next_logits, place
from dptune.attacks.pieces import Spelling
from dptune.statistics import resampled_indices

Floats = NDArray[np.float64]

_FEWEST_HITS = 30
"""Drawn candidates below a score without which a weighted count means nothing."""


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
        self: Self, scores: Floats, score: float, *, confidence: float, seed: int
    ) -> float | None:
        """Upper bootstrap bound of the number of candidates below a score.

        None where fewer than 30 draws fell below it: the weights of those that did not
        show up may be the largest.
        """
        weights = np.where(scores <= score, self.weights, 0.0)
        if (weights > 0).sum() < _FEWEST_HITS:
            return None
        generator = np.random.default_rng(seed)
        draws = resampled_indices(len(weights), num_resamples=500, generator=generator)
        means = np.concatenate([weights[index].mean(axis=1) for (index,) in draws])
        return float(np.quantile(means, confidence))


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
    tail = (1.0 - confidence) / 2.0
    rank = -(-space_size * (below + 1) // (count + 1))
    low = float(stats.beta.ppf(tail, below, count - below + 1)) if below else 0.0
    high = 1.0
    if below < count:
        high = float(stats.beta.isf(tail, below + 1, count - below))
    upper = -math.log2(low) if low > 0 else math.log2(space_size)
    return min(rank, space_size), -math.log2(high), upper


def extrapolated_exposure(sample: Floats, score: float) -> float:
    """Bits by a skew-normal law fitted to uniform candidates: a guess beyond them.

    It may say far more bits than there are (Carlini et al. 2019, section 4.3).
    """
    law = stats.skewnorm.fit(sample)
    return float(-stats.skewnorm.logcdf(score, *law) / math.log(2))
