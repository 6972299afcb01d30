"""Lower bounds of epsilon from the canaries of one training run.

| bound | experiment | tests | theorem |
|---|---|---|---|
| `one_run` | pairs, inclusion | replace; add or remove | `guess_tail` |
| `f_dp` | pairs, inclusion | the whole claimed curve | `is_possible` |
| `exposure` | secrets uniform over candidates | replace; add or remove | `hit_tail` |

To replace a record is to remove it and to add another: `exposure` restates its bound
for add or remove as that of a group of two. So do the others where canaries are
appended to records of others: in or out, the record is there.

A secret is random in a fixed record, so a bound under the replace relation speaks of
selective claims too, but only if the detector found the secret. All bounds of a report
hold together with its confidence (Bonferroni over bounds, and within a bound over guess
fractions or shares). None assumes that canaries do not influence each other.

Coins are guessed from scores without looking at the coins. Two experiments lie in one
canary plan of m planted and m held-out secrets, which were drawn uniformly and without
order:

* **pairs**: of each pair (planted i, held out i) a fair coin said which one is planted.
  The coins are independent, exactly. Flipping one replaces a record.
* **inclusion**: each of the 2m secrets is in or out. The coins are fair and independent
  *given* that m of them came up: a probability is at most what independent coins give,
  over P[Bin(2m, 1/2) = m]. Flipping one adds or removes a record, or replaces that
  which the secret is appended to.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dptune.audits.tails import (
    GuaranteeCurve,
    guess_tail,
    hit_tail,
    is_possible,
    largest_refuted,
)
from dptune.gates.evidence import AuditEvidence
from dptune.gates.null_law import distinct_probability, group_privacy
from dptune.privacy import NeighboringRelation, Notion
from dptune.results import CanaryExposure, ExposureReport

FRACTIONS = (0.05, 0.1, 0.2, 0.4)
"""Shares of the coins that are guessed; chosen before looking, one bound for each."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """How many coins were guessed, and how many rightly.

    Args:
        correct: right guesses.
        guesses: made.
        canaries: coins that were thrown.
        chance: probability of the coins' number of heads, by which a p-value is
            divided; 1 where it was not fixed.
    """

    correct: int
    guesses: int
    canaries: int
    chance: float = 1.0

    def best(self, *, num_known: int) -> "Guesses":
        """The same with every guess right of so many coins, and half of the others."""
        known = min(self.guesses, num_known)
        return Guesses(
            correct=known + (self.guesses - known) // 2,
            guesses=self.guesses,
            canaries=self.canaries,
            chance=self.chance,
        )


def guess_pairs(
    planted: Sequence[float],
    held_out: Sequence[float],
    *,
    fractions: Sequence[float] = FRACTIONS,
) -> tuple[Guesses, ...]:
    """Guess which secret of each pair was planted: the one with the higher score.

    Pairs with the largest difference are guessed; a tie counts as wrong.

    Args:
        planted: scores of planted secrets, higher for better known ones.
        held_out: scores of as many others; what has no partner is left out.
        fractions: shares of the pairs that are guessed.

    >>> best, every = guess_pairs(
    ...     [9.0, 4.0, 1.0, 3.0], [2.0, 3.0, 3.0, 2.5], fractions=(0.5, 1.0)
    ... )
    >>> (best.correct, best.guesses), (every.correct, every.guesses)
    ((1, 2), (3, 4))
    """
    num = min(len(planted), len(held_out))
    gain = np.asarray(planted[:num], np.float64) - np.asarray(held_out[:num])
    order = np.argsort(-np.abs(gain), kind="stable")
    counts = _counts(num, fractions)
    return tuple(
        Guesses(correct=int((gain[order[:r]] > 0).sum()), guesses=r, canaries=num)
        for r in counts
    )


def guess_inclusion(
    planted: Sequence[float],
    held_out: Sequence[float],
    *,
    fractions: Sequence[float] = FRACTIONS,
) -> tuple[Guesses, ...]:
    """Guess "in" for the highest scores and "out" for the lowest, as many of each.

    Ties are broken against the guesser.

    Args:
        planted: scores of secrets that were planted.
        held_out: scores of those that were not.
        fractions: shares of all secrets that are guessed.
    """
    scores = np.asarray([*planted, *held_out], np.float64)
    is_in = np.arange(len(scores)) < len(planted)
    from_top = is_in[np.lexsort((is_in, -scores))]
    from_bottom = ~is_in[np.lexsort((~is_in, scores))]
    chance = float(stats.binom.pmf(len(planted), len(scores), 0.5))
    found = []
    for count in _counts(len(scores), fractions):
        half = count // 2
        right = int(from_top[:half].sum() + from_bottom[:half].sum())
        if half:
            found.append(
                Guesses(
                    correct=right,
                    guesses=2 * half,
                    canaries=len(scores),
                    chance=chance,
                )
            )
    return tuple(found)


def _counts(num: int, fractions: Sequence[float]) -> list[int]:
    """Numbers of guesses, each once, at least one."""
    return sorted({max(1, math.floor(f * num)) for f in fractions} if num else ())


CONFIDENCE = 0.99
TOP_SHARES = (1e-5, 1e-3, 1e-1)

_REPLACE = NeighboringRelation.REPLACE_ONE
_ADD = NeighboringRelation.ADD_OR_REMOVE_ONE


@dataclass(frozen=True, kw_only=True)
class AuditedClaim:
    """A claim that a lower bound is wanted for.

    Args:
        notion: what it protects.
        relation: which data sets are neighbors.
        delta: of the bound.
        guarantees: pairs of epsilon and delta that the claim implies, the pair at
            `delta` first; empty where nothing is claimed.
    """

    notion: Notion
    relation: NeighboringRelation
    delta: float
    guarantees: tuple[tuple[float, float], ...] = ()

    @property
    def has_curve(self) -> bool:
        """Whether a curve is claimed that scaling can weaken."""
        return bool(self.guarantees) and 0 < self.guarantees[0][0] < math.inf


@dataclass(frozen=True, kw_only=True)
class _Refuter:
    """One way to refute an epsilon, by what was observed and by the best observation.

    Args:
        method: its name.
        observed: whether an epsilon is refuted.
        perfect: whether it would have been, had the model known every canary that it
            was trained on.
        num_canaries: that were used.
        detail: what was observed.
    """

    method: str
    observed: Callable[[float], bool]
    perfect: Callable[[float], bool]
    num_canaries: int
    detail: str


def audit_canaries(
    report: ExposureReport,
    claims: Sequence[AuditedClaim],
    *,
    num_detected: int | None = None,
    confidence: float = CONFIDENCE,
) -> tuple[AuditEvidence, ...]:
    """Bound epsilon from below, once for every claim and method that can test it.

    **Formal guarantee**: if secrets were drawn from a secure source, all bounds are at
    most the true epsilons with probability `confidence`; for `f_dp`, at most the
    claimed epsilon if the claim holds.

    | case | result |
    |---|---|
    | no planted canary, or secrets that were not drawn at random | no bound |
    | no held-out canary | the exposure audit alone |
    | ranks that are intervals | their far ends, and alpha less their doubt |
    | other ranks that are not exact | no exposure audit |
    | a secret that the detector missed | a selective bound is marked as such |
    | several insertions | the group's bound, restated for one unit |
    | canaries appended to records of others | likewise: two units for add or remove |
    | canaries that were not trained on | used, but for nothing in the capacity |
    | no canary that was trained on | no bound |
    | local claims | no bound: canaries do not test them |

    Canaries that redaction or cutting kept from training stay in: whether one is left
    could follow from its secret or its coin, which must be as they were drawn.

    Args:
        report: of planted and held-out canaries, under the model and its base.
        claims: what to bound.
        num_detected: planted canaries whose secret the detector marked; None where
            nobody looked, which counts as none.
        confidence: that all bounds hold.
    """
    tested = [c for c in claims if c.notion is not Notion.LOCAL]
    found = [(c, r) for c in tested for r in _refuters(report, c, 1.0)]
    alpha = max(0.0, 1.0 - confidence - report.doubt) / max(1, len(found))
    missed = num_detected is None or num_detected < len(report.planted())
    missed = missed or report.setting in ("missed", "partly_missed")
    return tuple(
        AuditEvidence(
            model_digest=report.model_digest,
            method=refuter.method,
            notion=claim.notion,
            relation=claim.relation,
            epsilon_lower_bound=lower,
            delta=claim.delta,
            confidence=confidence,
            capacity=max(lower, largest_refuted(refuter.perfect)),
            num_canaries=refuter.num_canaries,
            assumption_violated=claim.notion is Notion.SELECTIVE and missed,
            detail=refuter.detail,
        )
        for claim in tested
        for refuter in _refuters(report, claim, alpha)
        for lower in [largest_refuted(refuter.observed)]
    )


def planned_capacity(
    claim: AuditedClaim,
    *,
    num_planted: int,
    num_held_out: int,
    space_size: int,
    insertions: int = 1,
    appended: bool = False,
    is_counted: bool = True,
) -> float:
    """Return the largest bound that any audit of a claim could give, before training.

    Args:
        claim: to be audited; its curve is not needed.
        num_planted: canaries that will be planted.
        num_held_out: controls.
        space_size: candidates of one secret.
        insertions: units that hold a copy of one canary.
        appended: to records of others.
        is_counted: ranks are; where they are searched, no bound is by ranks.
    """
    canaries = [
        CanaryExposure(
            canary_id=f"{planted}-{i}",
            planted=planted,
            insertions=insertions if planted else 0,
            rank=1,
            exposure=math.log2(space_size),
            nll=0.0,
            trained=insertions if planted else None,
        )
        for planted, num in ((True, num_planted), (False, num_held_out))
        for i in range(num)
    ]
    report = ExposureReport(
        model_digest="planned",
        base_model_digest="planned",
        canary_set_digest="planned",
        space_size=space_size,
        scoring="sum",
        setting="as_detected",
        exact=is_counted,
        canaries=tuple(canaries),
        base_canaries=tuple(canaries),
        planted_found=num_planted * insertions,
        planted_expected=num_planted * insertions,
        num_token_forwards=0,
        drawn=True,
        appended=appended,
    )
    return max((a.capacity for a in audit_canaries(report, [claim])), default=0.0)


def _refuters(
    report: ExposureReport, claim: AuditedClaim, alpha: float
) -> Iterator[_Refuter]:
    """Every method that tests a claim, each at level `alpha`."""
    planted = report.planted()
    known = sum(c.trained is None or c.trained >= c.insertions for c in planted)
    if not known or not report.drawn:
        return
    copies = max(canary.insertions for canary in planted)
    pair = 1 if claim.relation is _REPLACE else 2
    guesses = _guesses(report, claim.relation)
    if guesses:
        size = copies * (pair if report.appended else 1)
        group = partial(_group, delta=claim.delta, size=size)
        coins = 2 * known if claim.relation is _ADD else known
        yield _one_run(guesses, group, alpha, coins)
        if claim.has_curve:
            yield _f_dp(guesses, claim, size, alpha, coins)
    if not report.is_bounded:
        return
    group = partial(_group, delta=claim.delta, size=pair * copies)
    yield _exposure(report, group, alpha, known)


def _group(epsilon: float, *, delta: float, size: int) -> tuple[float, float]:
    """The guarantee of a secret that sits in `size` units."""
    return group_privacy(epsilon, delta, size=size)


def _guesses(
    report: ExposureReport, relation: NeighboringRelation
) -> tuple[Guesses, ...]:
    """Guess every coin from how much each secret gained over the base model."""
    base = {c.canary_id: c.nll for c in report.base_canaries}
    planted, held_out = (
        [_gain(c, base) for c in group]
        for group in (report.planted(), report.held_out())
    )
    if not held_out:
        return ()
    guess = guess_inclusion if relation is _ADD else guess_pairs
    return guess(planted, held_out)


def _gain(canary: CanaryExposure, base: dict[str, float]) -> float:
    """How much likelier the secret became, nats."""
    return base.get(canary.canary_id, 0.0) - canary.nll


def _one_run(
    guesses: tuple[Guesses, ...],
    group: Callable[[float], tuple[float, float]],
    alpha: float,
    num_known: int,
) -> _Refuter:
    """Count right guesses against randomized response."""

    def refutes(counts: tuple[Guesses, ...], epsilon: float) -> bool:
        total, delta = group(epsilon)
        return any(
            guess_tail(
                g.correct,
                guesses=g.guesses,
                canaries=g.canaries,
                epsilon=total,
                delta=delta,
            )
            <= alpha * g.chance / len(counts)
            for g in counts
        )

    return _guess_refuter("one_run", guesses, refutes, num_known)


def _f_dp(
    guesses: tuple[Guesses, ...],
    claim: AuditedClaim,
    size: int,
    alpha: float,
    num_known: int,
) -> _Refuter:
    """Count right guesses against the claimed curve, all its epsilons scaled."""
    claimed = claim.guarantees[0][0]

    def refutes(counts: tuple[Guesses, ...], epsilon: float) -> bool:
        scale = epsilon / claimed
        curve = GuaranteeCurve(
            [group_privacy(scale * e, d, size=size) for e, d in claim.guarantees]
        )
        return any(
            not is_possible(
                g.correct,
                guesses=g.guesses,
                canaries=g.canaries,
                chance=alpha * g.chance / len(counts),
                curve=curve,
            )
            for g in counts
        )

    return _guess_refuter("f_dp", guesses, refutes, num_known)


def _guess_refuter(
    method: str,
    guesses: tuple[Guesses, ...],
    refutes: Callable[[tuple[Guesses, ...], float], bool],
    num_known: int,
) -> _Refuter:
    """Observe the guesses that were made, and the best ones."""
    return _Refuter(
        method=method,
        observed=partial(refutes, guesses),
        perfect=partial(refutes, tuple(g.best(num_known=num_known) for g in guesses)),
        num_canaries=guesses[0].canaries,
        detail=", ".join(f"{g.correct} of {g.guesses}" for g in guesses)
        + " guesses right",
    )


def _exposure(
    report: ExposureReport,
    group: Callable[[float], tuple[float, float]],
    alpha: float,
    num_known: int,
) -> _Refuter:
    """Count canaries among the best candidates."""
    size, planted = report.space_size, report.planted()
    num = len(planted)
    tops = sorted({max(1, math.floor(share * size)) for share in TOP_SHARES})
    tops = [top for top in tops if top < size]
    level = alpha * distinct_probability(num + len(report.held_out()), size)
    farthest = [report.farthest_rank(canary) for canary in planted]
    observed = [sum(rank <= top for rank in farthest) for top in tops]

    def refutes(hits: list[int], epsilon: float) -> bool:
        total, delta = group(epsilon)
        return any(
            hit_tail(count, canaries=num, share=top / size, epsilon=total, delta=delta)
            <= level / len(tops)
            for top, count in zip(tops, hits, strict=True)
        )

    return _Refuter(
        method="exposure",
        observed=partial(refutes, observed),
        perfect=partial(refutes, [num_known] * len(tops)),
        num_canaries=num,
        detail=", ".join(
            f"{count} of {num} among the best {top:,}"
            for top, count in zip(tops, observed, strict=True)
        ),
    )
