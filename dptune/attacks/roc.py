"""Area under the ROC curve and true positives at a low false-positive rate.

Higher scores mean member. Intervals come from resampling members and non-members.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dptune.errors import DataError
from dptune.results import Interval, MembershipSignal, RateAtFpr
from dptune.statistics import clopper_pearson, resampled_indices

Floats = NDArray[np.float64]

FEWEST_FALSE_POSITIVES = 10
"""A further false-positive rate is resolvable if it lets this many non-members pass."""

_CURVE_POINTS = 100


@dataclass(frozen=True, kw_only=True)
class RocSettings:
    """How ROC figures are resampled.

    Args:
        low_fpr: the false-positive rate at which true positives are reported.
        more_fprs: further ones, reported where there are enough non-members.
        confidence: of every interval.
        num_resamples: bootstrap draws.
        seed: of the bootstrap, so that a report can be made again.
    """

    low_fpr: float = 0.01
    more_fprs: tuple[float, ...] = (0.1, 0.001)
    confidence: float = 0.95
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

    An attacker may turn an attack around. With `fold`, scores are negated once if the
    area is below one half, so that the area is `max(AUC, 1 - AUC)`; the interval is
    that of the scores as turned, not folded again, so that it still holds one half
    where nothing leaks. The interval of the true-positive rate is the union of the
    bootstrap interval and Clopper-Pearson's, because resampling sees no variance at a
    rate of 0.

    Args:
        name: of the attack.
        member_scores: higher means member.
        non_member_scores: of the same law, not trained on.
        settings: rate, confidence, resampling.
        fold: turn the scores around if that makes the area larger.

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
    if fold and _area(_Sorted.of(members, others)) < 0.5:
        members, others = -members, -others
    groups = _Sorted.of(members, others)
    more = [f for f in settings.more_fprs if _is_resolvable(f, len(others))]
    areas, rates = _resample(groups, settings, fprs=(settings.low_fpr, *more))
    area_low, area_high = _interval(areas, settings.confidence)
    resolved = {
        fpr: _rate_interval(groups, fpr, drawn, confidence=settings.confidence)
        for fpr, drawn in rates.items()
    }
    fpr, tpr = _curve(groups)
    return MembershipSignal(
        name=name,
        auc=_area(groups),
        auc_interval=Interval(
            low=area_low, high=area_high, confidence=settings.confidence
        ),
        tpr_at_low_fpr=_rate(groups, settings.low_fpr),
        tpr_at_low_fpr_interval=resolved[settings.low_fpr],
        low_fpr=settings.low_fpr,
        rates=tuple(
            RateAtFpr(
                fpr=fpr,
                needed=_num_needed(fpr),
                tpr=_rate(groups, fpr) if fpr in more else None,
                interval=resolved[fpr] if fpr in more else None,
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


def _rate_interval(
    groups: _Sorted, fpr: float, drawn: Floats, *, confidence: float
) -> Interval:
    """Union of the bootstrap interval and of Clopper-Pearson's."""
    num_members = len(groups.members)
    exact = clopper_pearson(
        round(_rate(groups, fpr) * num_members), num_members, confidence=confidence
    )
    low, high = _interval(drawn, confidence)
    return Interval(
        low=min(low, exact[0]), high=max(high, exact[1]), confidence=confidence
    )


def _num_allowed(num_others: int, low_fpr: float) -> int:
    """False positives that may pass, fewer than all."""
    return min(int(np.floor(low_fpr * num_others + 1e-9)), num_others - 1)


def _resample(
    groups: _Sorted, settings: RocSettings, *, fprs: tuple[float, ...]
) -> tuple[Floats, dict[float, Floats]]:
    """Area, and true positives at every rate, of every bootstrap draw."""
    generator = np.random.default_rng(settings.seed)
    num_members, num_others = len(groups.members), len(groups.others)
    # members strictly above each non-member, as a position in the sorted members
    first_above = np.searchsorted(groups.members, groups.others, side="right")
    areas: list[Floats] = []
    rates: dict[float, list[Floats]] = {fpr: [] for fpr in fprs}
    last = {fpr: num_others - 1 - _num_allowed(num_others, fpr) for fpr in fprs}
    draws = resampled_indices(
        num_members,
        num_others,
        num_resamples=settings.num_resamples,
        generator=generator,
    )
    for drawn_members, drawn_others in draws:
        below = np.cumsum(_counts(drawn_others, num_others), axis=1)
        wins = np.take_along_axis(below, groups.below[drawn_members], axis=1)
        ties = np.take_along_axis(below, groups.not_above[drawn_members], axis=1)
        areas.append((wins + ties).mean(axis=1) / (2.0 * num_others))
        ordered = np.partition(drawn_others, sorted(set(last.values())), axis=1)
        for fpr, place in last.items():
            above = drawn_members >= first_above[ordered[:, place]][:, None]
            rates[fpr].append(above.mean(axis=1))
    joined = {fpr: np.concatenate(found) for fpr, found in rates.items()}
    return np.concatenate(areas), joined


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
