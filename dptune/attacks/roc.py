"""Area under the ROC curve, true positives at low false-positive rates, and a control.

Higher scores mean member. Intervals come from resampling members and non-members. A
membership attack that sees no model is the control: it must fail, or the split is
shifted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, stats
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
)
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import Pipeline

from dptune.attacks.settings import FEWEST_TEXTS
from dptune.errors import DataError
from dptune.results import BlindSignal, Interval, MembershipSignal, RateAtFpr
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
    more = [f for f in settings.more_fprs if len(others) >= _num_needed(f)]
    area_low, area_high = _area_interval(largest, settings)
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
    num_others = len(groups.others)
    allowed = min(int(np.floor(low_fpr * num_others + 1e-9)), num_others - 1)
    threshold = groups.others[num_others - 1 - allowed]
    return float((groups.members > threshold).mean())


def _num_needed(fpr: float) -> int:
    """Non-members that it takes to resolve a false-positive rate."""
    return int(np.ceil(FEWEST_FALSE_POSITIVES / fpr - 1e-9))


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


def _area_interval(groups: _Sorted, settings: RocSettings) -> tuple[float, float]:
    """Percentile interval, but as wide as groups that are told apart without an error.

    Those have no spread. Of k disjoint pairs of a member and a non-member, all are in
    order with chance area^k.
    """
    tail = (1.0 - settings.confidence) / 2.0
    low, high = np.quantile(_resample(groups, settings), (tail, 1.0 - tail))
    least = tail ** (1.0 / min(len(groups.members), len(groups.others)))
    return min(float(low), least), max(float(high), 1.0 - least)


def _curve(groups: _Sorted) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of the ROC curve, dense at low rates."""
    num = len(groups.others)
    spread = np.geomspace(1, num + 1, _CURVE_POINTS) - 1
    allowed = np.unique(np.floor(spread).astype(np.int64))
    tops = groups.others[np.maximum(num - 1 - allowed, 0)]
    above = len(groups.members) - np.searchsorted(groups.members, tops, side="right")
    tpr = np.where(allowed >= num, 1.0, above / len(groups.members))
    return tuple((allowed / num).tolist()), tuple(tpr.tolist())


_CONFIDENCE = 0.99
_WORD = r"\w+|[^\w\s]"

Labels = NDArray[np.int64]


def refuse_too_few(members: int, non_members: int) -> None:
    """Refuse groups that are too small for any control.

    Raises:
        DataError: one of them is.
    """
    if min(members, non_members) < FEWEST_TEXTS:
        raise DataError(
            f"the blind baseline needs at least {FEWEST_TEXTS} texts of each group, "
            f"got {members} and {non_members}."
        )


def blind_signal(
    member_texts: Sequence[str],
    non_member_texts: Sequence[str],
    *,
    settings: RocSettings | None = None,
) -> BlindSignal:
    """Tell members from non-members by their text alone, in two ways.

    **A classifier** of words, word pairs and length, for what differs a little
    everywhere. One random half of the texts fits it, the other half is scored: given
    the fit, held-out scores are independent, so that interval and p-value hold. Pooled
    scores of a cross-validation are not: over equal halves of one law their area spread
    about twice as wide as its interval said. The area is not folded: a classifier below
    one half has learnt nothing.

    **A search** over every word and every pair of words or characters for one that more
    members hold, or more non-members, for what differs in a few texts only: an odd word
    in a tenth of the members moves no area by more than .05.

    **Formal guarantee.** Where membership is a random choice among the texts, `p_value`
    is at most `a` with chance `a` at most (the classifier's part by the normal limit of
    the rank sum).

    A small p-value says that members and non-members differ without any model, so that
    no membership figure on this split means anything (Meeus et al. 2024, "SoK:
    membership inference attacks on LLMs are rushing nowhere").

    Args:
        member_texts: texts that were trained on.
        non_member_texts: texts that were not.
        settings: resampling; its confidence is replaced by 0.99.

    Raises:
        DataError: a group has too few texts to fit on one half of them.
    """
    settings = replace(settings or RocSettings(), confidence=_CONFIDENCE)
    refuse_too_few(len(member_texts), len(non_member_texts))
    texts = [*member_texts, *non_member_texts]
    labels = np.repeat((1, 0), (len(member_texts), len(non_member_texts)))
    scores, held = _held_out_scores(texts, labels, seed=settings.seed)
    signal = membership_signal(
        "blind", scores[held == 1], scores[held == 0], settings=settings, fold=False
    )
    learnt = stats.mannwhitneyu(
        scores[held == 1], scores[held == 0], alternative="greater", method="asymptotic"
    )
    found = (float(learnt.pvalue), _odd_word_p_value(texts, labels))
    p_value = min(1.0, len(found) * min(found))
    return BlindSignal(**{**dict(signal), "hits": ()}, p_value=p_value)


def _held_out_scores(
    texts: Sequence[str], labels: Labels, *, seed: int
) -> tuple[Floats, Labels]:
    """Fit on a random half, stratified; return scores and labels of the other half."""
    features = _features(texts)
    fitted, held = train_test_split(
        np.arange(len(texts)), test_size=0.5, stratify=labels, random_state=seed
    )
    classifier = Pipeline(
        [
            ("weights", TfidfTransformer(sublinear_tf=True)),
            ("fit", LogisticRegression(solver="liblinear", random_state=seed)),
        ]
    )
    classifier.fit(features[fitted], labels[fitted])
    scores: Floats = classifier.decision_function(features[held])
    return scores, labels[held]


def _features(texts: Sequence[str]) -> sparse.csr_matrix:
    """Counts of words and word pairs, and one column per octave of length."""
    words = HashingVectorizer(
        n_features=1 << 16,
        ngram_range=(1, 2),
        token_pattern=_WORD,
        lowercase=False,
        alternate_sign=False,
        norm=None,
    ).transform(texts)
    sizes = [(len(text), len(re.findall(_WORD, text))) for text in texts]
    octaves = np.floor(2 * np.log2(np.asarray(sizes) + 1.0)).astype(np.int64)
    columns = [np.eye(128)[np.minimum(column, 127)] for column in octaves.T]
    return sparse.hstack([words, *(sparse.csr_matrix(c) for c in columns)]).tocsr()


def _odd_word_p_value(texts: Sequence[str], labels: Labels) -> float:
    """Bound the chance that a search over all features finds one so uneven by luck.

    Texts that hold a feature are a fixed number; how many of them are members is
    hypergeometric where membership is a random choice, exactly, whatever else the texts
    share. The chances of all features to be as uneven as the most uneven one are added
    up: a rare feature that cannot be so uneven adds nothing (Westfall, Wolfinger 1997,
    "Multiple tests with discrete distributions").
    """
    holds = _presence(texts)
    num, num_members = len(labels), int(labels.sum())
    totals = np.asarray(holds.sum(axis=0)).ravel().astype(np.int64)
    inside = np.asarray(holds[labels == 1].sum(axis=0)).ravel().astype(np.int64)
    laws = {int(t): _uneven(int(t), num, num_members) for t in np.unique(totals)}
    lowest = [max(0, int(t) - (num - num_members)) for t in totals]
    least = min(
        laws[int(t)][1][i - low]
        for t, i, low in zip(totals, inside, lowest, strict=True)
    )
    numbers = zip(*np.unique(totals, return_counts=True), strict=True)
    chances = [
        count * laws[int(t)][0][laws[int(t)][1] <= least * (1 + 1e-9)].sum()
        for t, count in numbers
    ]
    return float(min(1.0, sum(chances)))


def _uneven(total: int, num: int, num_members: int) -> tuple[Floats, Floats]:
    """Chance and two-sided p-value of each number of members among `total` texts."""
    counts = np.arange(max(0, total - num + num_members), min(total, num_members) + 1)
    chances = stats.hypergeom.pmf(counts, num, num_members, total)
    tails = np.minimum(np.cumsum(chances), np.cumsum(chances[::-1])[::-1])
    return chances, np.minimum(1.0, 2.0 * tails)


def _presence(texts: Sequence[str]) -> sparse.csr_matrix:
    """Which text holds which word, pair of words or of characters, `(texts, kinds)`.

    Features that the same texts hold are one: a pair says no more than its odd word.
    """
    common = {"ngram_range": (1, 2), "lowercase": False, "binary": True}
    kinds = ({"token_pattern": _WORD}, {"analyzer": "char"})
    found = [CountVectorizer(**common, **kind).fit_transform(texts) for kind in kinds]
    holds = sparse.hstack(found).tocsc()
    marks = np.random.default_rng(0).random(len(texts))  # tells sets of texts apart
    _, first = np.unique(holds.T @ marks, return_index=True)
    return holds[:, first].tocsr()
