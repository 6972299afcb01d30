"""Area under the ROC curve and true positives at a low false-positive rate.

Higher scores mean member. Intervals come from resampling members and non-members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dptune.errors import DataError
from dptune.results import Interval, MembershipSignal, RateAtFpr
from dptune.statistics import fewest_hits_for, hit_rate_interval, resampled_indices

Floats = NDArray[np.float64]

FEWEST_FALSE_POSITIVES = 10
"""A further false-positive rate is resolvable if it lets this many non-members pass."""

_CURVE_POINTS = 100


@dataclass(frozen=True, kw_only=True)
class RocSettings:
    """How ROC figures get their intervals.

    Args:
        low_fpr: the false-positive rate at which true positives are reported.
        more_fprs: further ones, reported where there are enough non-members.
        confidence: of every interval.
        num_attacks: whose true-positive rates the intervals hold for together, in both
            directions, so that the strongest may be chosen after looking.
        num_resamples: bootstrap draws behind that of the area.
        seed: of the bootstrap, so that a report can be made again.
    """

    low_fpr: float = 0.01
    more_fprs: tuple[float, ...] = (0.1, 0.001)
    confidence: float = 0.95
    num_attacks: int = 1
    num_resamples: int = 1000
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class _Sorted:
    """Both groups sorted, and where each member stands among the non-members."""

    members: Floats  # (members,)
    others: Floats  # (non-members,)
    below: NDArray[np.int64]  # (members,) non-members strictly below
    not_above: NDArray[np.int64]  # (members,) non-members below or tied

    @classmethod
    def of(cls: type[Self], members: Floats, others: Floats) -> Self:
        """Sort once, so that resampling only counts."""
        members, others = np.sort(members), np.sort(others)
        return cls(
            members=members,
            others=others,
            below=np.searchsorted(others, members, side="left"),
            not_above=np.searchsorted(others, members, side="right"),
        )


def membership_signal(
    name: str,
    member_scores: Floats,
    non_member_scores: Floats,
    *,
    settings: RocSettings | None = None,
    fold: bool = True,
) -> MembershipSignal:
    """Area, true positives at the low false-positive rate, intervals and curve.

    An attacker may turn an attack around. With `fold`, the area is that of the
    direction in which it is larger, `max(AUC, 1 - AUC)`; its interval is that of the
    scores as turned, not folded again, so that it still holds one half where nothing
    leaks. Rates are of the direction that finds more members at each, and the curve of
    the one that does at the lowest, which may be the other one: a model that knows few
    members by heart and all others a little worse than non-members has an area below
    one half. Intervals of rates are exact (`hit_rate_interval`) for both directions.

    Args:
        name: of the attack.
        member_scores: higher means member.
        non_member_scores: of the same law, not trained on.
        settings: rate, confidence, resampling.
        fold: turn the scores around where that finds more.

    Returns:
        The signal. At `low_fpr` the threshold is the smallest one that lets at most
        that share of non-members pass.

    Raises:
        DataError: a group is empty, or a score is NaN.
    """
    settings = settings or RocSettings()
    members = np.asarray(member_scores, np.float64)
    others = np.asarray(non_member_scores, np.float64)
    if not members.size or not others.size:
        raise DataError("membership needs members and non-members, got an empty group.")
    if np.isnan(members).any() or np.isnan(others).any():
        raise DataError(
            f"scores of attack {name} must be numbers, got NaN. The model's losses are "
            "not finite."
        )
    directions = [_Sorted.of(members, others)]
    if fold:
        directions.append(_Sorted.of(-members, -others))
    largest, low_fpr = max(directions, key=_area), settings.low_fpr
    groups = max(directions, key=lambda one: (_rate(one, low_fpr), _area(one)))
    more = [f for f in settings.more_fprs if _is_resolvable(f, len(others))]
    area_low, area_high = _interval(_resample(largest, settings), settings.confidence)
    fpr, tpr = _curve(groups)
    return MembershipSignal(
        name=name,
        auc=_area(largest),
        auc_interval=Interval(
            low=area_low, high=area_high, confidence=settings.confidence
        ),
        tpr_at_low_fpr=_rate(groups, settings.low_fpr),
        tpr_at_low_fpr_interval=_rate_interval(directions, settings.low_fpr, settings),
        hits=_hits(directions, settings.low_fpr),
        low_fpr=settings.low_fpr,
        rates=tuple(
            RateAtFpr(
                fpr=fpr,
                needed=_num_needed(fpr),
                tpr=max(_rate(one, fpr) for one in directions) if fpr in more else None,
                interval=_rate_interval(directions, fpr, settings)
                if fpr in more
                else None,
            )
            for fpr in settings.more_fprs
        ),
        roc_fpr=fpr,
        roc_tpr=tpr,
    )


def _area(groups: _Sorted) -> float:
    """Chance that a member outranks a non-member, ties counting one half."""
    wins = (groups.below + groups.not_above).sum() / 2.0
    return float(wins / (len(groups.members) * len(groups.others)))


def _rate(groups: _Sorted, low_fpr: float) -> float:
    """Share of members strictly above the threshold."""
    allowed = _num_allowed(len(groups.others), low_fpr)
    threshold = groups.others[len(groups.others) - 1 - allowed]
    return float((groups.members > threshold).mean())


def _num_needed(fpr: float) -> int:
    """Non-members that it takes to resolve a false-positive rate."""
    return int(np.ceil(FEWEST_FALSE_POSITIVES / fpr - 1e-9))


def _is_resolvable(fpr: float, num_others: int) -> bool:
    """Whether a share of the non-members is more than a handful."""
    return num_others >= _num_needed(fpr)


def _hits(directions: Sequence[_Sorted], fpr: float) -> tuple[int, ...]:
    """Members above every threshold that an interval may look at, from the top.

    Where there are two directions, those of the one that has more of them there.
    """
    num = fewest_hits_for(len(directions[0].others), fpr)
    above = [
        len(one.members)
        - np.searchsorted(one.members, one.others[::-1][:num], side="right")
        for one in directions
    ]
    return tuple(np.max(above, axis=0).tolist())


def _rate_interval(
    directions: Sequence[_Sorted], fpr: float, settings: RocSettings
) -> Interval:
    """Exact interval of the true-positive rate, for the strongest of all attacks."""
    low, high = hit_rate_interval(
        _hits(directions, fpr),
        num_members=len(directions[0].members),
        num_non_members=len(directions[0].others),
        fpr=fpr,
        confidence=settings.confidence,
        num_choices=settings.num_attacks * len(directions),
    )
    return Interval(low=low, high=high, confidence=settings.confidence)


def _num_allowed(num_others: int, low_fpr: float) -> int:
    """False positives that may pass, fewer than all."""
    return min(int(np.floor(low_fpr * num_others + 1e-9)), num_others - 1)


def _resample(groups: _Sorted, settings: RocSettings) -> Floats:
    """Area of every bootstrap draw."""
    generator = np.random.default_rng(settings.seed)
    num_others = len(groups.others)
    areas: list[Floats] = []
    draws = resampled_indices(
        len(groups.members),
        num_others,
        num_resamples=settings.num_resamples,
        generator=generator,
    )
    for drawn_members, drawn_others in draws:
        below = np.cumsum(_counts(drawn_others, num_others), axis=1)
        wins = np.take_along_axis(below, groups.below[drawn_members], axis=1)
        ties = np.take_along_axis(below, groups.not_above[drawn_members], axis=1)
        areas.append((wins + ties).mean(axis=1) / (2.0 * num_others))
    return np.concatenate(areas)


def _counts(drawn: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """How often each index was drawn, shifted by one so that sums start at zero."""
    rows = np.arange(len(drawn))[:, None] * (size + 1)
    flat = np.bincount((drawn + rows + 1).ravel(), minlength=len(drawn) * (size + 1))
    return flat.reshape(len(drawn), size + 1)


def _interval(values: Floats, confidence: float) -> tuple[float, float]:
    """Percentile interval."""
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(values, (tail, 1.0 - tail))
    return float(low), float(high)


def _curve(groups: _Sorted) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of the ROC curve, dense at low rates."""
    num = len(groups.others)
    spread = np.geomspace(1, num + 1, _CURVE_POINTS) - 1
    allowed = np.unique(np.floor(spread).astype(np.int64))
    tops = groups.others[np.maximum(num - 1 - allowed, 0)]
    above = len(groups.members) - np.searchsorted(groups.members, tops, side="right")
    tpr = np.where(allowed >= num, 1.0, above / len(groups.members))
    return tuple((allowed / num).tolist()), tuple(tpr.tolist())
