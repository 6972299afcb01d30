"""Did this model memorize? Exposure of canaries and membership of records."""

import math

from dptune.gates.criterion import Criterion, Verdict, any_nan, broken, missing
from dptune.gates.evidence import Evidence
from dptune.gates.null_law import (
    fisher_p_value,
    largest_mean_exposure,
    mean_exposure_bounds,
    single_p_value,
)
from dptune.gates.policy import GatePolicy
from dptune.gates.validity import (
    DRAW_FRESH,
    RANK_EXACTLY,
    at_worst,
    exposure_fault,
    no_canaries,
    not_drawn,
)
from dptune.results import (
    STRONGEST_ATTACK,
    ExposureReport,
    Interval,
    MembershipReport,
    MembershipSignal,
    ShadowReport,
)
from dptune.rounding import percent_at_most, written_at_most, written_p_value
from dptune.statistics import fewest_hits_for, hit_rate_interval, holm

_LOW_FPR = 0.01
_LEAST_EFFECT = 0.1
_RANK_BY_SUM = "Rank by what a whole candidate costs: set attack.scoring to sum."
_DECIDE_BY_NUMBER = "Set canaries.setting to missed: secrets must not decide who stays."


def leakage(evidence: Evidence, policy: GatePolicy) -> list[Criterion]:
    """All checks of what attacks found."""
    return [
        *_exposure(evidence, policy),
        _membership(evidence.membership, policy, looks=evidence.num_looks),
    ]


def _exposure(evidence: Evidence, policy: GatePolicy) -> list[Criterion]:
    """A leak that is proven, and one that cannot be ruled out."""
    report, names = evidence.exposure, ("memorization", "assurance")
    if report is None or not report.planted():
        return [no_canaries(name, report, policy) for name in names]
    if exposure_fault(report):
        return []
    if not report.drawn:
        return [not_drawn(name) for name in names]
    return [
        _memorization(report, policy),
        _assurance(report, policy, looks=evidence.num_looks),
    ]


def _memorization(report: ExposureReport, policy: GatePolicy) -> Criterion:
    """Block a leak that is significant by Holm and of the policy's size.

    Ranks that are too large show one as those that are too small do: what a model was
    made to avoid comes last, and whoever counts from there finds it. By the near ends
    of intervals they block; far ends alone prove nothing, and are INCONCLUSIVE.
    """
    size, trained = report.space_size, [canary.rank for canary in report.trained()]
    # one that is said not to have been trained on leaks all the same if it is known
    every = [canary.rank for canary in report.planted()]
    unlike = _unlike_others(report, policy)
    late, latest = ([], []) if unlike else _from_the_last(report)
    mean, avoided = _mean_exposure(report), _mean_bits(late, size)
    p_values = {
        "all": _either_side([] if unlike else trained, late, size),
        "single": single_p_value(every, size),
    }
    leaks = holm(p_values, level=policy.memorization_level)
    at_far_ends = {**p_values, "all": _either_side(trained, latest, size)}
    may_leak = _mean_bits(latest, size) >= policy.effect_size_bits and (
        "all" in holm(at_far_ends, level=policy.memorization_level)
    )
    share = min(every) / size
    all_leak = "all" in leaks and max(mean, avoided) >= policy.effect_size_bits
    one_leaks = "single" in leaks and share <= policy.single_canary_share
    if not trained and not one_leaks:
        return no_canaries("memorization", report, policy)
    low, high = mean_exposure_bounds(mean, max(1, len(trained)), level=0.025)
    verdict = Verdict.BLOCK if all_leak or one_leaks else Verdict.PASS
    few, lacks = len(trained) < policy.min_canaries, _weak_scores(report) + unlike
    if may_leak and verdict is Verdict.PASS:
        lacks.append("At the far ends of intervals canaries come last.")
    if verdict is Verdict.PASS and (lacks or few):
        verdict = Verdict.INCONCLUSIVE
    return Criterion(
        name="memorization",
        verdict=verdict,
        measured=mean,
        interval=Interval(low=low, high=high, confidence=0.95),
        threshold=policy.effect_size_bits,
        reason=f"Mean exposure of {len(trained)} planted canaries is {mean:.2f} bits "
        f"(1.44 without a leak, Fisher p {written_p_value(p_values['all'])}); the best "
        f"is among the first {share:.2g} of candidates (corrected p "
        f"{written_p_value(p_values['single'])})"
        f"{at_worst(report)}."
        + "".join(f" {lack}" for lack in lacks)
        + _backwards(avoided) * (all_leak and avoided > mean),
        what_would_change_it={
            Verdict.BLOCK: _advise_fresh(report, policy)
            + "Train with more noise, fewer steps, or on redacted text."
            + f" {RANK_EXACTLY}" * bool(report.doubt),
            Verdict.INCONCLUSIVE: _RANK_BY_SUM
            if _weak_scores(report)
            else _DECIDE_BY_NUMBER
            if unlike
            else RANK_EXACTLY
            if lacks
            else "Plant more canaries that are trained on.",
        }.get(verdict, ""),
    )


def _unlike_others(report: ExposureReport, policy: GatePolicy) -> list[str]:
    """Say that which planted canaries were trained on followed from their secrets.

    A detector that misses secrets of letters alone leaves those: no model ranks them as
    others, and ranks among all candidates neither prove a leak nor rule one out. The
    base model tells it, which saw none.
    """
    size, kept = report.space_size, {one.canary_id for one in report.trained()}
    base = [one.rank for one in report.base_planted() if one.canary_id in kept]
    late = [size + 1 - rank for rank in base]
    is_chosen = len(kept) < len(report.planted())
    if not is_chosen or _either_side(base, late, size) > policy.base_level:
        return []
    return ["Those that were trained on are unlike the others to the base model too."]


def _advise_fresh(report: ExposureReport, policy: GatePolicy) -> str:
    """Advise fresh canaries where the base model may know them: training is not why."""
    base = [canary.rank for canary in report.base_planted()]
    if fisher_p_value(base, report.space_size) > policy.base_level:
        return ""
    return f"{DRAW_FRESH} first: before training they came as early. "


def _from_the_last(report: ExposureReport) -> tuple[list[int], list[int]]:
    """Ranks of canaries that were trained on, from the last candidate on.

    At the near ends of intervals, where they are no smaller than the true ones, and at
    the far ends. None where some are upper bounds, which may be the last without being
    late.
    """
    if not report.is_bounded:
        return [], []
    after, canaries = report.space_size + 1, report.trained()
    near = [after - canary.rank for canary in canaries]
    return near, [after - report.farthest_rank(canary) for canary in canaries]


def _either_side(early: list[int], late: list[int], size: int) -> float:
    """Two-sided p-value of ranks, counted from the first and the last candidate."""
    return min(1.0, 2.0 * min(fisher_p_value(ranks, size) for ranks in (early, late)))


def _mean_bits(ranks: list[int], size: int) -> float:
    """Mean exposure of ranks, bits; 0 of none."""
    return sum(math.log2(size / rank) for rank in ranks) / max(1, len(ranks))


def _backwards(bits: float) -> str:
    return (
        f" Counted from the last candidate it is {bits:.2f} bits: the model avoids "
        "what it was trained on, or scores are of the wrong sign."
    )


def _assurance(report: ExposureReport, policy: GatePolicy, *, looks: int) -> Criterion:
    """Say INCONCLUSIVE where a leak of the policy's size cannot be ruled out."""
    mean, num = _mean_exposure(report), len(report.trained())
    if not num:
        return no_canaries("assurance", report, policy)
    lacks, level = _lacks(report, policy), policy.assurance_level / looks
    if report.doubt <= level / 2:
        level -= report.doubt
    else:
        lacks.append(f"Intervals of ranks leave more doubt. {RANK_EXACTLY}")
    low, _ = mean_exposure_bounds(mean, num, level=level)
    exposures = [canary.exposure for canary in report.trained()]
    most_bits = math.log2(report.space_size)  # of a canary that is ranked first
    high = float(largest_mean_exposure(exposures, most_bits=most_bits, level=level))
    passed = not lacks and high <= policy.assurance_bound_bits
    most = written_at_most(high)
    reason = f"Mean exposure is at most {most} bits at confidence {1 - level:g}"
    reason += f"{at_worst(report)}."
    return Criterion(
        name="assurance",
        verdict=Verdict.PASS if passed else Verdict.INCONCLUSIVE,
        measured=high,
        interval=Interval(low=low, high=high, confidence=1 - 2 * level),
        threshold=policy.assurance_bound_bits,
        reason=" ".join([reason, *lacks]),
        what_would_change_it=""
        if passed
        else "Plant more canaries in the next run, or leak less.",
    )


def _lacks(report: ExposureReport, policy: GatePolicy) -> list[str]:
    """What the exposure report has too little of."""
    planted = len(report.planted())
    counts = (
        (
            (
                "planted canary that was trained on",
                "planted canaries that were trained on",
            ),
            len(report.trained()),
            policy.min_canaries,
        ),
        (
            ("held-out canary", "held-out canaries"),
            len(report.held_out()),
            policy.min_held_out,
        ),
        (
            ("candidate", "candidates"),
            report.space_size,
            needed_candidates(policy, planted),
        ),
    )
    lacks = [
        f"There {_are(found)} {found} {names[found != 1]}, "
        f"{least} {_are(least)} needed."
        for names, found, least in counts
        if found < least
    ]
    if not report.is_bounded:
        lacks.append("Ranks are extrapolated, not counted.")
    return lacks + _weak_scores(report) + _unlike_others(report, policy)


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _weak_scores(report: ExposureReport) -> list[str]:
    """Say where candidates were scored in a way that hides a leak.

    The mean over a candidate's tokens hangs on how many it has, for trained and unseen
    secrets alike: ranks stay uniform without a leak, and show less of one.
    """
    if report.scoring == "sum":
        return []
    return [f"Candidates were ranked by the {report.scoring} over their tokens."]


def needed_candidates(policy: GatePolicy, num_planted: int) -> int:
    """Fewest candidates among which one canary at rank 1 of so many blocks by itself.

    Holm's procedure asks it for half of the level, corrected for their number.
    """
    by_level = math.ceil(num_planted / (policy.memorization_level / 2))
    by_share = math.ceil(1 / policy.single_canary_share)
    return max(policy.min_space_size, by_level, by_share)


def _mean_exposure(report: ExposureReport) -> float:
    """Mean over canaries that were trained on, bits; of all where none was."""
    canaries = report.trained() or report.planted()
    return sum(canary.exposure for canary in canaries) / len(canaries)


def _membership(
    report: MembershipReport | None, policy: GatePolicy, *, looks: int
) -> Criterion:
    """Block if some attack may find more members than the policy allows.

    The largest upper bound of all attacks is one of the strongest, whichever that is;
    lower bounds are corrected for having chosen it, in its better direction.
    """
    if report is None:
        return missing("membership", "membership report")
    if _num_shadows(report) < policy.min_shadow_models:
        return _no_shadows(report, policy)
    if policy.min_shadow_models and _know_too_little(report.shadows):
        return _blind_shadows()
    intervals = [signal.tpr_at_low_fpr_interval for signal in report.signals]
    values = [v for s in report.signals for v in (s.auc, s.tpr_at_low_fpr)]
    if any_nan([*values, *(v for i in intervals for v in (i.low, i.high))]):
        return broken("membership", "A membership figure is NaN.")
    if not report.signals or any(_is_odd(s, report) for s in report.signals):
        return broken("membership", "Rates and counts of an attack do not agree.")
    bounds, wider = (
        [_bounds(signal, report, policy, looks=n) for signal in report.signals]
        for n in (1, looks)
    )
    upper = max(one.high for one in wider)
    pairs = zip(report.signals, bounds, strict=True)
    worst, interval = max(pairs, key=lambda pair: pair[1].high)
    limit = policy.max_membership_tpr
    few = min(report.num_members, report.num_non_members) < (
        policy.min_membership_records
    )
    # at a smaller rate fewer members are found than at the policy's
    elsewhere = any(signal.low_fpr != _LOW_FPR for signal in report.signals)
    proven = any(one.low > limit for one in bounds)
    verdict, change = Verdict.PASS, ""
    if proven or (interval.high > limit and not few):
        verdict = Verdict.BLOCK
        change = "Train with more noise or fewer steps, or attack more records."
    elif few or elsewhere:
        verdict = Verdict.INCONCLUSIVE
        change = (
            f"Attack at least {policy.min_membership_records} members and "
            "non-members, each of a unit of its own, at a false-positive rate of "
            f"{_LOW_FPR}."
        )
    elif upper > limit:
        verdict = Verdict.INCONCLUSIVE
        change = "Attack more records: their bound allows for all evaluations."
    return Criterion(
        name="membership",
        verdict=verdict,
        measured=worst.tpr_at_low_fpr,
        interval=interval,
        threshold=limit,
        reason=f"Attack {worst.name}, with the largest bound of {len(bounds)}, finds "
        f"at most {percent_at_most(upper)} of members at {worst.low_fpr:.1%} false "
        f"positives ({report.num_members} members, {report.num_non_members} "
        f"non-members, {_num_shadows(report)} shadow models).",
        what_would_change_it=change,
    )


def _num_shadows(report: MembershipReport) -> int:
    """Shadow models behind the attack that uses them best; 0 where it did not run."""
    ran = any(signal.name == STRONGEST_ATTACK for signal in report.signals)
    return report.shadows.num_models if report.shadows is not None and ran else 0


def _no_shadows(report: MembershipReport, policy: GatePolicy) -> Criterion:
    """Say that the strongest attack did not run: what others miss, it may find."""
    return Criterion(
        name="membership",
        verdict=Verdict.INCONCLUSIVE,
        measured=_num_shadows(report),
        threshold=policy.min_shadow_models,
        reason=f"The strongest attack, {STRONGEST_ATTACK}, had "
        f"{_num_shadows(report)} shadow models, the policy asks for "
        f"{policy.min_shadow_models}.",
        what_would_change_it="Set attack.shadows.num_models to at least "
        f"{policy.min_shadow_models} and attack again.",
    )


def _know_too_little(shadows: ShadowReport | None) -> bool:
    """Whether shadows learned next to nothing of what the attacked model knows."""
    if shadows is None or shadows.effect is None or shadows.model_effect is None:
        return True
    return not shadows.effect >= _LEAST_EFFECT * shadows.model_effect


def _blind_shadows() -> Criterion:
    return Criterion(
        name="membership",
        verdict=Verdict.INCONCLUSIVE,
        reason="Nothing shows that the shadow models know records that they saw "
        "better than others, as the model does: attacks by them would find nothing.",
        what_would_change_it="Raise attack.shadows.epochs, leave out "
        "attack.shadows.learning_rate, and attack again.",
    )


def _is_odd(signal: MembershipSignal, report: MembershipReport) -> bool:
    """Whether the counts of an attack contradict themselves or its rate."""
    hits, count, others = signal.hits, report.num_members, report.num_non_members
    if not 0 < signal.low_fpr < 1 or count < 1 or others < 1:
        return True
    allowed = math.floor(signal.low_fpr * others + 1e-9)
    if len(hits) != fewest_hits_for(others, signal.low_fpr) or allowed >= len(hits):
        return True
    if tuple(sorted(hits)) != hits or hits[0] < 0 or hits[-1] > count:
        return True
    return not math.isclose(hits[allowed] / count, signal.tpr_at_low_fpr, abs_tol=1e-6)


def _bounds(
    signal: MembershipSignal,
    report: MembershipReport,
    policy: GatePolicy,
    *,
    looks: int,
) -> Interval:
    """Interval of one attack's rate; the lower end is corrected for the choice."""
    confidence = 1 - policy.membership_level / looks
    low, high = hit_rate_interval(
        signal.hits,
        num_members=report.num_members,
        num_non_members=report.num_non_members,
        fpr=signal.low_fpr,
        confidence=confidence,
        num_choices=2 * len(report.signals),
    )
    return Interval(low=low, high=high, confidence=confidence)
