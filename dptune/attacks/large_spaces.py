"""Exposure where the candidates are too many to be enumerated, such as 36^10.

A best-first search ranks exactly what the model is fond of. For all others the rank is
the smallest of three upper ones:

* certified: at most `exp(T)` candidates have a loss of `T` or less, because together
  they have a probability of at most one;
* `(k + 1) / (n + 1)` of the space, where `k` of `n` uniform candidates are better;
* an upper bound of a weighted count of candidates drawn from the model.

Where they could be enumerated, but not in the time there is, canaries are ranked by the
head of the ranking, exactly, and by an interval for the rest. Every canary is compared
with uniform candidates. How many of them come before it is binomial, so that Clopper
and Pearson's interval holds its rank; all intervals under a model and its base hold
together with one confidence (Bonferroni). Candidates are drawn by the set's nonce,
before any score is known. The head are canaries that next to no drawn candidate beats,
where an interval would be wide: they are ranked among all. A walk through the trie
finds every candidate up to their scores: below a node whose own loss is as large there
is none, since no token that follows has a negative one.
"""

import hmac
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import nn
from transformers import PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySet
from dptune.attacks.candidates import encode_secrets, plain_tokenizer, with_bos
from dptune.attacks.exposure import (
    CandidateScores,
    Measured,
    Scoring,
    rank_canaries,
    score_candidates,
    tie_place,
)
from dptune.attacks.inference import OnProgress, unwatched
from dptune.attacks.pieces import Spelling
from dptune.attacks.search import (
    Found,
    WeightedSample,
    draw_candidates,
    extrapolated_exposure,
    search,
    uniform_rank,
)
from dptune.attacks.trie import CandidateTrie
from dptune.results import CanaryExposure, Interval
from dptune.statistics import clopper_pearson

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LargeSpaceSettings:
    """What is spent on ranks in a space that is not enumerated.

    Args:
        max_nodes: nodes that the search forwards.
        num_uniform: least uniform candidates to compare with, see `num_compared`.
        num_weighted: candidates drawn from the model; 0 for none.
        confidence: of intervals.
        seed: of both samples, so that a report can be made again.
    """

    max_nodes: int = 20_000
    num_uniform: int = 2000
    num_weighted: int = 1000
    confidence: float = 0.95
    seed: int = 0


def num_compared(canary_set: CanarySet, settings: LargeSpaceSettings) -> int:
    """Uniform candidates that all ranks are by: many more than canaries.

    Tests that take ranks for independent also see what is odd in those: of 1,000
    controls by 2,000, 1 % of clean runs were INVALID at level .0005.
    """
    most = max(len(canary_set.planted), len(canary_set.held_out))
    return max(settings.num_uniform, 20 * most)


@dataclass(frozen=True, kw_only=True)
class _Known:
    """What is known of the space under one model."""

    spelling: Spelling
    scoring: Scoring
    scores: Floats = field(repr=False)  # (canaries,)
    uniform: Floats = field(repr=False)  # (candidates,)
    found: Found
    weighted: WeightedSample | None
    settings: LargeSpaceSettings

    @property
    def num_forwards(self: Self) -> int:
        """Tokens of search and weighted draws."""
        drawn = self.weighted.num_token_forwards if self.weighted else 0
        return self.found.num_token_forwards + drawn

    def certified_rank(self: Self, score: float) -> int:
        """Ranks cannot be larger, since probabilities do not exceed one."""
        return certified_rank(score, spelling=self.spelling, scoring=self.scoring)


def certified_rank(score: float, *, spelling: Spelling, scoring: Scoring) -> int:
    """Largest rank that a score can have, from one forward pass of the canary.

    `1 + floor(exp(T))` for a total of `T` nats, hence exposure of at least
    `log2 |R| - T / ln 2` up to rounding. A mean of `M` nats is a total of at most
    `M L`, where `L` code points have at most `L` tokens.
    """
    space = spelling.spec.space_size
    total = most_nats(score, spelling=spelling, scoring=scoring)
    if total >= math.log(space):
        return space
    return min(space, 1 + math.floor(math.exp(total)))


def most_nats(score: float, *, spelling: Spelling, scoring: Scoring) -> float:
    """Total nats that no candidate of a score, or of a smaller one, is above."""
    return score * (spelling.end if scoring == "mean" else 1)


def measure_large_space(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    canary_set: CanarySet,
    *,
    bos: int | None,
    scoring: Scoring = "sum",
    settings: LargeSpaceSettings | None = None,
    batch_size: int = 256,
    device: str | torch.device | None = None,
    on_progress: OnProgress = unwatched,
) -> Measured:
    """Rank all canaries of a space of any size, exactly where the model likes them.

    Args:
        model: any causal language model with a key-value cache, in float32.
        tokenizer: the model's, fast.
        canary_set: what to rank.
        bos: token that opens a record in training; None if there is none.
        scoring: `sum` of the nats, or `mean` per token.
        settings: how much to spend.
        batch_size: nodes forwarded at once.
        device: where to run; None is where the model is.
        on_progress: told how many nodes the search forwarded.

    Raises:
        ModelError: as in `search`, or the tokenizer cannot spell the secrets.

    Privacy:
        A function of private data outside any epsilon.
    """
    settings = settings or LargeSpaceSettings()
    spec = canary_set.spec
    drawn = [*canary_set.planted, *canary_set.held_out]
    source = random.Random(settings.seed)  # noqa: S311 - a public comparison sample
    uniform = [
        spec.secret_at(source.randrange(spec.space_size))
        for _ in range(num_compared(canary_set, settings))
    ]
    sample = _score_secrets(
        model,
        tokenizer,
        canary_set,
        [*drawn, *uniform],
        bos=bos,
        batch_size=batch_size,
        device=device,
    )
    spelling = Spelling.of(spec, tokenizer, bos=bos, sample=[*drawn, *uniform])
    values = sample.by(scoring)
    known = _explore(
        model,
        spelling,
        scores=values[: len(drawn)],
        uniform=values[len(drawn) :],
        scoring=scoring,
        settings=settings,
        batch_size=batch_size,
        device=device,
        on_progress=on_progress,
    )
    found = [
        _exposure(
            known, canary_set, number, score=float(values[number]), nll=float(nll)
        )
        for number, nll in enumerate(sample.nll[: len(drawn)])
    ]
    return Measured(
        canaries=tuple(found),
        num_token_forwards=sample.num_token_forwards + known.num_forwards,
    )


def _score_secrets(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    canary_set: CanarySet,
    drawn: Sequence[str],
    *,
    bos: int | None,
    batch_size: int,
    device: str | torch.device | None,
) -> CandidateScores:
    """Score some candidates in one walk over their trie."""
    spec = canary_set.spec
    encoded = encode_secrets(
        spec, plain_tokenizer(tokenizer), drawn, prefix=spec.prefix
    )
    trie = CandidateTrie.of(spec, with_bos(encoded, bos), key="sample")
    return score_candidates(model, trie, batch_size=batch_size, device=device)


def _explore(
    model: nn.Module,
    spelling: Spelling,
    *,
    scores: Floats,
    uniform: Floats,
    scoring: Scoring,
    settings: LargeSpaceSettings,
    batch_size: int,
    device: str | torch.device | None,
    on_progress: OnProgress,
) -> _Known:
    """Search as far as nodes may reach; draw from the model if canaries are beyond."""
    tokens = spelling.spec.length if scoring == "mean" else 1
    reach = math.log(settings.max_nodes) / tokens
    near = scores[scores <= reach]
    limit = float(near.max()) + 1e-4 if len(near) else 0.0
    found = search(
        model,
        spelling,
        limit=limit,
        scoring=scoring,
        max_nodes=settings.max_nodes,
        batch_size=batch_size,
        device=device,
        on_progress=on_progress,
    )
    # a canary that the uniform sample can rank needs no other sample
    hidden = (scores > found.complete_below) & (scores < np.quantile(uniform, 0.02))
    weighted = None
    if settings.num_weighted and hidden.any():
        weighted = draw_candidates(
            model,
            spelling,
            count=settings.num_weighted,
            generator=torch.Generator().manual_seed(settings.seed),
            device=device,
            batch_size=batch_size,
        )
    return _Known(
        spelling=spelling,
        scoring=scoring,
        scores=scores,
        uniform=uniform,
        found=found,
        weighted=weighted,
        settings=settings,
    )


def _exposure(
    known: _Known, canary_set: CanarySet, number: int, *, score: float, nll: float
) -> CanaryExposure:
    """Rank of one canary, exact or bounded."""
    spec, num_planted = canary_set.spec, len(canary_set.planted)
    planted = number < num_planted
    drawn = (*canary_set.planted, *canary_set.held_out)[number]
    own = known.found.by_path.get(known.spelling.tokens_of(drawn), score)
    place = partial(tie_place, canary_set, drawn)
    rank, _ = known.found.rank(own)
    name = f"planted-{number}" if planted else f"held-out-{number - num_planted}"
    bits = math.log2(spec.space_size)
    common = {
        "canary_id": name,
        "planted": planted,
        "insertions": spec.insertions if planted else 0,
        "nll": nll,
        "certified_exposure": bits - math.log2(known.certified_rank(score)),
        "extrapolated_exposure": extrapolated_exposure(
            known.uniform[: known.settings.num_uniform], score
        ),
    }
    if own < known.found.complete_below:
        rank += place(max(1, known.found.num_tied(own)))
        return CanaryExposure(rank=rank, exposure=bits - math.log2(rank), **common)
    method, largest, interval = _bounded_rank(known, score, smallest=rank, place=place)
    return CanaryExposure(
        rank=largest,
        exposure=bits - math.log2(largest),
        method=method,
        exposure_interval=interval,
        **common,
    )


def _bounded_rank(
    known: _Known, score: float, *, smallest: int, place: Callable[[int], int]
) -> tuple[str, int, Interval]:
    """The smallest of the upper ranks, its name, and where exposure lies."""
    space, settings = known.spelling.spec.space_size, known.settings
    uniform, low, high = uniform_rank(
        known.uniform,
        score,
        space_size=space,
        confidence=settings.confidence
        if known.weighted is None
        else _half(settings.confidence),
        place=place,
    )
    ranks = {"certified_bound": known.certified_rank(score), "uniform_sample": uniform}
    weighted = _weighted_rank(known, score)
    if weighted is not None:
        ranks["importance_sample"] = weighted
    method = min(ranks, key=lambda name: ranks[name])
    bits = math.log2(space)
    others = [r for name, r in ranks.items() if name != "uniform_sample"]
    return (
        method,
        max(ranks[method], smallest),
        Interval(
            low=max(low, bits - math.log2(min(others))),
            high=max(low, min(high, bits - math.log2(smallest))),
            confidence=settings.confidence,
        ),
    )


def _weighted_rank(known: _Known, score: float) -> int | None:
    """Upper rank by candidates drawn from the model, if there are any."""
    sample = known.weighted
    if sample is None:
        return None
    scores = sample.losses
    if known.scoring == "mean":
        scores = scores / np.maximum(sample.num_scored, 1)
    upper = sample.count_upper(
        scores,
        score,
        total=most_nats(score, spelling=known.spelling, scoring=known.scoring),
        confidence=_half(known.settings.confidence),
    )
    return math.ceil(min(known.spelling.spec.space_size, 1 + upper))


def _half(confidence: float) -> float:
    """Half of the level for each of two methods, so that their intervals hold both."""
    return (1.0 + confidence) / 2.0


CONFIDENCE = 1 - 1e-4
"""That all intervals hold; a gate's bounds at level .005 have to allow for the rest."""

_HEAD = 8
"""Most drawn candidates before a canary of the head."""

_ROUNDING = 1e-3
_FINE = 1 << 53


def interval_ends(
    num_sampled: int, *, num_secrets: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ends of a canary's interval by how many drawn candidates come before it.

    Args:
        num_sampled: candidates that every canary is compared with.
        num_secrets: canaries whose intervals hold together, under model and base.

    Returns:
        Near and far ends, `(num_sampled + 1,)` each, shares of all candidates; NaN for
        a canary of the head, whose rank is counted.
    """
    before = np.arange(1, num_sampled + 1)
    tail = (1 - _confidence(num_secrets)) / 2  # as of `clopper_pearson`
    near = np.append(0.0, special.betaincinv(before, num_sampled - before + 1, tail))
    far = 1 - near[::-1]
    near[: _HEAD + 1] = far[: _HEAD + 1] = math.nan
    return near, far


def _confidence(num_secrets: int) -> float:
    """Confidence of one interval, so that all of them hold with `CONFIDENCE`."""
    return 1 - (1 - CONFIDENCE) / (2 * num_secrets)


def measure_with_intervals(
    model: nn.Module,
    trie: CandidateTrie,
    canary_set: CanarySet,
    *,
    num_sampled: int,
    scoring: Scoring = "sum",
    batch_size: int = 1024,
    device: str | None = None,
    on_progress: OnProgress = unwatched,
) -> Measured:
    """Rank canaries of the head among all candidates, and the others by a sample.

    Args:
        model: see `score_candidates`.
        trie: all candidates.
        canary_set: what to rank, at least one.
        num_sampled: candidates that every canary is compared with.
        scoring: `sum` of the nats, or `mean` per token.
        batch_size: nodes forwarded at once, at most.
        device: where to run; None is where the model is.
        on_progress: told how many nodes were forwarded.

    Raises:
        ModelError: see `score_candidates`.

    Privacy:
        A function of private data outside any epsilon.
    """
    seed = hmac.digest(canary_set.nonce.encode(), b"candidates to compare", "sha256")
    source = np.random.default_rng(int.from_bytes(seed))
    sampled = source.integers(0, canary_set.spec.space_size, num_sampled)
    coins = source.random(num_sampled)
    secrets = (*canary_set.planted, *canary_set.held_out)
    own = np.array([canary_set.spec.index_of(secret) for secret in secrets])
    score = partial(score_candidates, model, trie, batch_size=batch_size, device=device)
    scores = score(only=np.append(own, sampled), on_progress=on_progress)
    drawn, found = scores.by(scoring)[sampled], scores.by(scoring)[own]
    places = [tie_place(canary_set, secret, _FINE) / _FINE for secret in secrets]
    before = [
        int(((drawn < one) | ((drawn == one) & (coins < place))).sum())
        for one, place in zip(found, places, strict=True)
    ]
    limit, num_forwards = -math.inf, scores.num_token_forwards
    if min(before) <= _HEAD:
        limit = float(found[np.array(before) <= _HEAD].max()) + _ROUNDING
        # of a mean per token only the sum over as many tokens as there are is known
        below = limit * (int(trie.num_scored.max()) if scoring == "mean" else 1)
        expected = scores.expected_nodes(trie, below)
        scores = score(
            only=own,
            below=below,
            on_progress=lambda done, _: on_progress(done, max(done, expected)),
        )
        found, num_forwards = (
            scores.by(scoring)[own],
            num_forwards + (scores.num_token_forwards),
        )
    # among those that were scored, so that a rank is no larger than it would be of all
    ranked = rank_canaries(scores, trie, canary_set, scoring=scoring)
    confidence = _confidence(len(secrets))
    return Measured(
        canaries=tuple(
            one
            if value < limit
            else _bounded(
                one,
                clopper_pearson(count, num_sampled, confidence=confidence),
                space_size=canary_set.spec.space_size,
            )
            for one, value, count in zip(ranked, found, before, strict=True)
        ),
        num_token_forwards=num_forwards,
    )


def _bounded(
    canary: CanaryExposure, shares: tuple[float, float], *, space_size: int
) -> CanaryExposure:
    """Put the ends of an interval into the place of a rank.

    With `B` candidates before a canary and `T` as good, itself included, a drawn one
    counts with chance `p = (B + u T) / N`, where `u` is the canary's place among
    equals. Its rank, `1 + B + floor(u T)`, is above `p N` and at most `p N + 1`.
    """
    low, high = (math.floor(share * space_size) + 1 for share in shares)
    nearest, farthest = max(canary.rank, low), min(space_size, high)
    bits = math.log2(space_size)
    exposure = bits - math.log2(nearest)
    return canary.model_copy(
        update={
            "rank": nearest,
            "exposure": exposure,
            "method": "interval",
            "exposure_interval": Interval(
                low=bits - math.log2(farthest), high=exposure, confidence=CONFIDENCE
            ),
        }
    )
