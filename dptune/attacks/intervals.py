"""Exposure by the head of the ranking, exactly, and by an interval for the rest.

Every canary is compared with uniform candidates. How many of them come before it is
binomial, so that Clopper and Pearson's interval holds its rank; all intervals under a
model and its base hold together with one confidence (Bonferroni). Candidates are drawn
by the set's nonce, before any score is known.

The head are canaries that next to no drawn candidate beats, where an interval would be
wide: they are ranked among all. A walk through the trie finds every candidate up to
their scores: below a node whose own loss is as large there is none, since no token that
follows has a negative one.
"""

import hmac
import math
from functools import partial

import numpy as np
from torch import nn

from dptune.attacks.canaries import CanarySet
from dptune.attacks.exposure import (
    Measured,
    Scoring,
    rank_canaries,
    score_candidates,
    tie_place,
)
from dptune.attacks.inference import OnProgress, unwatched
from dptune.attacks.trie import CandidateTrie
from dptune.results import CanaryExposure, Interval
from dptune.statistics import clopper_pearson

CONFIDENCE = 1 - 1e-4
"""That all intervals hold; a gate's bounds at level .005 have to allow for the rest."""

_HEAD = 8
"""Most drawn candidates before a canary of the head."""

_ROUNDING = 1e-3
_FINE = 1 << 53


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
    confidence = 1 - (1 - CONFIDENCE) / (2 * len(secrets))
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
