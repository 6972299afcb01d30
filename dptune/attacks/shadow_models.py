"""Shadow models: a model is attacked by models that were trained on known halves.

Each is the base, trained on a half of the attacked records.

Shadows come in pairs that share all attacked records between them, members and
non-members alike, by a draw that knows nothing of who is a member: half of the shadows
saw a record and half did not (the online attack of Carlini et al.).

Symbols: `x` is the statistic of a record under the attacked model (for text the mean
log probability of its tokens, for a class the log odds of its label), `i_p` and `o_p`
under the shadow of pair `p` that saw it and the one that did not, `i` and `o` their
means over pairs, `s_i` and `s_o` standard deviations, one for all records.

| name | score |
|---|---|
| `lira` | `log N(x; i, s_i) - log N(x; o, s_o)` |
| `rmia` | `x - log mean exp` over all shadows |
| `combined` | log odds of a logistic regression over all scores, learnt on shadows |

The regression's examples are the shadows themselves, each attacked as the model is, by
its base and by the pairs that it is not of: who was trained on is known there. It never
sees who is a member of the model, so that its scores are as good as any other's. Scores
are standardized within each model, so that a model that was trained longer, or with
noise, is measured in its own units.

References:
    Carlini et al. (2022), "Membership inference attacks from first principles",
    algorithm 1, with the global variance of section VI.C, which few shadows ask for.
    Zarifzadeh, Liu, Shokri (2024), "Low-cost high-power membership inference attacks",
    whose rank among population records is monotone in the ratio that is taken here.
    Shokri et al. (2017), "Membership inference attacks against machine learning
    models", section V.E: an attack that is learnt on shadow models.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from torch import nn

from dptune.errors import DataError
from dptune.results import STRONGEST_ATTACK, ShadowReport

Floats = NDArray[np.float64]
Choice = NDArray[np.bool_]

FEWEST_SHADOWS = 4
"""Two pairs: one is attacked while the other stands for what is known."""


_LEAST_VARIANCE = 1e-12
_LARGEST = 1e4
"""Nats per token that no finite probability has: where a model rules a token out."""


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """What one model shows of every record. Private.

    Args:
        statistic: what shadows are compared by, `(records,)`.
        scores: of each attack that needs no shadow; higher means member.
    """

    statistic: Floats = field(repr=False)
    scores: Mapping[str, Floats] = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Course:
    """How far the training of one shadow went.

    Args:
        losses: mean over the last pass, after each step that has a whole one behind it.
        finished: whether the last step was taken; else the last of `losses` ended it.
    """

    losses: tuple[float, ...] = field(repr=False)
    finished: bool = True

    def ends_alike(self: Self, until: float) -> bool:
        """Whether a training until this loss, seeded alike, has the same last step.

        >>> Course(losses=(3.0, 2.0, 1.0)).ends_alike(0.5)
        True
        >>> Course(losses=(3.0, 2.0, 1.0)).ends_alike(2.5)
        False
        >>> Course(losses=(3.0, 2.0), finished=False).ends_alike(0.5)
        False
        """
        *before, last = self.losses or (math.inf,)
        ended = self.finished or last <= until
        return ended and all(loss > until for loss in before)


@dataclass(kw_only=True)
class Opponent:
    """What attacks compare a model with, which does not depend on that model. Private.

    Two models that were fine-tuned from one base, attacked on the same records by the
    same settings, have the same base losses, and the same shadows wherever both let
    them train to the same step. With one opponent for both, these are found once.

    Args:
        base: log probabilities of the base, once they were found.
        shadows: of each number, what it showed and where its training ended.
    """

    base: Any = field(default=None, repr=False)
    shadows: dict[int, tuple[Course, Attacked]] = field(
        default_factory=dict, repr=False
    )


def draw_halves(num_records: int, num_shadows: int, *, seed: int) -> Choice:
    """Draw which shadow sees which record, `(shadows, records)`.

    Shadow `2 p + 1` sees what shadow `2 p` does not.

    Raises:
        DataError: shadows are odd in number, or fewer than `FEWEST_SHADOWS`.
    """
    if num_shadows < FEWEST_SHADOWS or num_shadows % 2:
        raise DataError(
            f"shadow models must be an even number from {FEWEST_SHADOWS} on, got "
            f"{num_shadows}. Set attack.shadows.num_models."
        )
    generator = np.random.default_rng(seed)
    chosen = np.zeros((num_shadows, num_records), dtype=bool)
    for first in range(0, num_shadows, 2):
        chosen[first, generator.permutation(num_records)[: num_records // 2]] = True
        chosen[first + 1] = ~chosen[first]
    return chosen


def attack_with_shadows(
    model: Attacked,
    *,
    train: Callable[[int, Sequence[int]], tuple[nn.Module, Course]],
    attack: Callable[[nn.Module, str], Attacked],
    until: float,
    opponent: Opponent,
    num_members: int,
    num_records: int,
    num_shadows: int,
    seed: int,
) -> tuple[dict[str, Floats], ShadowReport]:
    """Train shadows, one at a time, attack each, and drop it.

    Args:
        model: what the attacked model shows.
        train: trains a copy of the base, given the shadow's number and its records.
        attack: looks at one model, which it is told a name of.
        until: mean loss over a pass at which `train` ends before its last step.
        opponent: whose shadows serve again, and who gets those that were trained.
        num_members: records that the attacked model was trained on, the first ones.
        num_records: attacked.
        num_shadows: how many, see `draw_halves`.
        seed: of the halves.

    Returns:
        Scores of all attacks, `shadow_scores` among them, and what the shadows were.
    """
    seen = draw_halves(num_records, num_shadows, seed=seed)

    def shown(number: int) -> Attacked:
        known = opponent.shadows.get(number)
        if known is None or not known[0].ends_alike(until):
            shadow, course = train(number, np.flatnonzero(seen[number]).tolist())
            known = course, attack(shadow, f"shadow {number + 1}")
            opponent.shadows[number] = known
        return known[1]

    shadows = [shown(number) for number in range(num_shadows)]
    members, others = np.split(_bounded(model.statistic), [num_members])
    spread = np.hypot(_standard_error(members), _standard_error(others))
    signs = np.where(seen, 1, -1)
    known = np.array([_bounded(shadow.statistic) for shadow in shadows])
    report = ShadowReport(
        num_models=num_shadows,
        num_records=int(seen[0].sum()),
        effect=float(2 * (signs * known).mean()),
        model_effect=float(members.mean() - others.mean() - 2 * spread),
    )
    return {**model.scores, **shadow_scores(model, shadows, seen)}, report


def _standard_error(values: Floats) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0


def shadow_scores(
    model: Attacked, shadows: Sequence[Attacked], seen: Choice
) -> dict[str, Floats]:
    """Score every record by the attacks of the table; higher means member.

    Args:
        model: the attacked one.
        shadows: in pairs, see `draw_halves`.
        seen: which shadow saw which record, `(shadows, records)`.
    """
    first, second = (
        _bounded(np.array([shadow.statistic for shadow in shadows[k::2]]))
        for k in (0, 1)
    )
    pairs = _Pairs(
        inside=np.where(seen[::2], first, second),
        outside=np.where(seen[::2], second, first),
    )
    known = pairs.beside(_bounded(model.statistic))
    examples = [
        _features(shadow, pairs.without(number // 2).beside(_bounded(shadow.statistic)))
        for number, shadow in enumerate(shadows)
    ]
    regression = LogisticRegression(max_iter=1000)
    regression.fit(np.concatenate(examples), seen.ravel())
    return {
        "lira": known["lira"],
        "rmia": known["rmia"],
        STRONGEST_ATTACK: regression.decision_function(_features(model, known)),
    }


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """The statistic under the shadow of each pair that saw a record, and the other."""

    inside: Floats  # (pairs, records)
    outside: Floats
    variances: tuple[float, float] | None = None

    def without(self: Self, pair: int) -> Self:
        """Leave one pair out; variances are still those of all."""
        return replace(
            self,
            inside=np.delete(self.inside, pair, axis=0),
            outside=np.delete(self.outside, pair, axis=0),
            variances=self._variances(),
        )

    def _variances(self: Self) -> tuple[float, float]:
        """Global variances of both groups."""
        if self.variances is not None:
            return self.variances
        inside, outside = (
            max(float(values.var(axis=0, ddof=1).mean()), _LEAST_VARIANCE)
            for values in (self.inside, self.outside)
        )
        return inside, outside

    def beside(self: Self, own: Floats) -> dict[str, Floats]:
        """Compare a model that is of no pair with all of them."""
        (inside, outside), variances = (self.inside, self.outside), self._variances()
        means = inside.mean(axis=0), outside.mean(axis=0)
        logs = [
            -((own - mean) ** 2) / (2 * variance) - np.log(variance) / 2
            for mean, variance in zip(means, variances, strict=True)
        ]
        every = np.concatenate([inside, outside])
        return {
            "lira": logs[0] - logs[1],
            "rmia": own - np.logaddexp.reduce(every, axis=0) + np.log(len(every)),
            "above_outside": own - means[1],
            "above_middle": own - (means[0] + means[1]) / 2,
        }


def _bounded(values: Floats) -> Floats:
    """Keep infinite scores out of means."""
    return np.clip(values, -_LARGEST, _LARGEST)


def _features(attacked: Attacked, known: Mapping[str, Floats]) -> Floats:
    """All scores of a model, standardized over records, `(records, scores)`."""
    columns = _bounded(np.stack([*attacked.scores.values(), *known.values()], axis=1))
    if np.isnan(columns).any():
        raise DataError(
            "scores of a model must be numbers, got NaN. Its losses are NaN."
        )
    spread = columns.std(axis=0)
    standard: Floats = (columns - columns.mean(axis=0)) / np.where(spread, spread, 1.0)
    return standard
