"""Do draws of units follow the law that was accounted? One pass over the draws.

Poisson sampling says: given how many join a step, they are a uniform subset of all
units, whatever was drawn before. So for any score of units that is fixed before the
step, the sum over those who join is a martingale difference of known variance. Scores
here are the place in the data, the length, how often a unit was drawn, and whether it
was drawn so and so many steps ago; beside them stand runs of neighbors within a step.

References:
    Freedman (1975), "On tail probabilities for martingales", theorem 1.6. Wald and
    Wolfowitz (1940), on runs.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from dptune.audits.step_report import FALSE_ALARM_RATE, StepCheck
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import SamplingKind, UnitIndices, sampling_generator

_CELLS: Final = 10_000_000
_MIN_STEPS, _MAX_STEPS = 50, 500
_LAGS: Final = 32
_FEWEST_SIZES: Final = 50
_SURE_BITS: Final = 60.0
_RARE: Final = 1e-15
_NO_SPREAD: Final = 1e-9


@dataclass
class _Deviation:
    """A sum of martingale differences, its variance, and the largest of them."""

    total: float = 0.0
    variance: float = 0.0
    largest: float = 0.0

    def add(self, total: float, *, variance: float, largest: float) -> None:
        """Add what one step shows."""
        self.total += total
        self.variance += variance
        self.largest = max(self.largest, largest)

    def excess(self, *, level: float) -> float:
        """Return how far out the sum is, as a share of what chance allows."""
        if self.variance == 0.0:
            return 0.0
        tail = math.log(2 / level)
        allowed = math.sqrt(2 * self.variance * tail) + self.largest * tail / 3
        return abs(self.total) / allowed


@dataclass
class SamplingTally:
    """What a row of draws says of the law that made them.

    **Privacy**: its sums are private; `checks` tells no figure of them.

    Args:
        plan: the law.
        num_units: who can join.
        lengths: of every unit, such as its number of tokens, if known.
    """

    plan: GradientPlan
    num_units: int
    lengths: NDArray[np.int64] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Start without a draw."""
        num = self.num_units
        self._scores = {"place": _centred(np.arange(num))}
        if self.lengths is not None:
            self._scores["length"] = _centred(self.lengths.argsort().argsort())
        self._spreads = {n: (s.var(), s.max()) for n, s in self._scores.items()}
        place, half = np.arange(num), -(-num // 2)
        keys = (place, place % 2 * num + place, place % half * 2 + place // half)
        self._orders = [key.argsort().argsort() for key in keys]
        self._found: dict[str, _Deviation] = {}
        self._times = np.zeros(num, np.int64)
        self._times_squared = self._most = 0
        self._last = np.full(num, -1)
        self._held = np.zeros(_LAGS)  # units that joined last so many steps ago
        self._lags, self._lag_variances = np.zeros(_LAGS), np.zeros(_LAGS)
        self._turn: list[UnitIndices] = []
        self._sizes: list[int] = []
        self._steps = self._repeats = self._early = self._largest = 0

    def see(self, drawn: UnitIndices) -> None:
        """Look at the units of the next step."""
        bands = len(self.plan.noise_coefficients)
        inside = drawn[(drawn >= 0) & (drawn < self.num_units)]
        distinct = np.unique(inside)
        self._repeats += len(drawn) - len(distinct)
        self._largest = max(self._largest, len(drawn))
        self._steps += 1
        self._turn.append(distinct)
        if len(self._turn) == bands:  # a whole cycle is one Poisson draw
            whole = np.concatenate(self._turn)
            self._early += len(whole) - len(np.unique(whole))
            self._take(np.unique(whole))
            self._turn = []

    def checks(self) -> list[StepCheck]:
        """Return verdicts; each errs on sound sampling with probability 1e-6."""
        plan, bands = self.plan, len(self.plan.noise_coefficients)
        found = [
            _verdict(
                "sampling_without_repeats",
                self._repeats == 0,
                "no unit is drawn twice into one step",
            )
        ]
        if plan.sampling is SamplingKind.TRUNCATED_POISSON:
            found.append(
                _verdict(
                    "sampling_cap",
                    self._largest <= (plan.max_batch_size or 0),
                    "no batch is above the public cap",
                )
            )
        found.append(self._rate(min(1.0, plan.sample_rate * bands)))
        if bands == 1 and len(self._sizes) >= _FEWEST_SIZES:
            found.append(self._spread())
        if bands > 1:
            found.append(
                _verdict(
                    "sampling_in_turn",
                    self._early == 0,
                    "no unit joins twice in one turn of the bands",
                )
            )
        return [*found, *self._fairness()]

    def _take(self, drawn: UnitIndices) -> None:
        """Look at one Poisson draw."""
        num, size, now = self.num_units, len(drawn), len(self._sizes)
        self._sizes.append(size)
        share = size * (num - size) / max(1, num - 1)
        for name, score in self._scores.items():
            variance, largest = self._spreads[name]
            self._note(name, score[drawn].sum(), share * variance, largest)
            if size == self.plan.max_batch_size:  # where a cap has chosen
                self._note(
                    f"{name}_full", score[drawn].sum(), share * variance, largest
                )
        times, mean = self._times[drawn], sum(self._sizes[:-1]) / num
        self._note(
            "history",
            times.sum() - size * mean,
            share * (self._times_squared / num - mean * mean),
            max(self._most - mean, mean),
        )
        self._ages(drawn, now=now, share=share)
        for order, place in enumerate(self._orders):
            self._runs(f"neighbors_{order}", np.sort(place[drawn]))
        self._times[drawn] += 1
        self._times_squared += int((2 * times + 1).sum())
        self._most = max(self._most, int(self._times[drawn].max(initial=0)))
        self._last[drawn] = now

    def _ages(self, drawn: UnitIndices, *, now: int, share: float) -> None:
        """Compare who joins with when they joined last."""
        last = self._last[drawn]
        ages = now - last[(last >= 0) & (now - last <= _LAGS)]
        seen = np.bincount(ages, minlength=_LAGS + 1)[1:]
        parts = self._held / self.num_units
        self._lags += seen - len(drawn) * parts
        self._lag_variances += share * parts * (1 - parts)
        part = float(parts.sum())
        recent = float(seen.sum()) - len(drawn) * part
        self._note("lags", recent, share * part * (1 - part), 1.0)
        self._held = np.append(len(drawn), (self._held - seen)[:-1])

    def _runs(self, name: str, places: NDArray[np.int64]) -> None:
        """Count runs of neighbors: hypergeometric, given how many join."""
        num, size = self.num_units, len(places)
        if not 1 < size < num:
            return
        runs = 1 + int((np.diff(places) > 1).sum())
        free = num - size
        variance = size * (size - 1) * free * (free + 1) / (num * num * (num - 1))
        self._note(name, runs - size * (free + 1) / num, variance, 1.0)

    def _note(self, name: str, total: float, variance: float, largest: float) -> None:
        """Add to a deviation."""
        self._found.setdefault(name, _Deviation()).add(
            float(total), variance=float(variance), largest=float(largest)
        )

    def _rate(self, rate: float) -> StepCheck:
        """The share of units that join must be the accounted rate: a sum of coins."""
        name, what = "sampling_rate", "as many units join as the accounted rate says"
        num, total = len(self._sizes), sum(self._sizes)
        if self.plan.sampling is SamplingKind.TRUNCATED_POISSON:
            law = size_law(self.plan, num_units=self.num_units)
            apart = _Deviation(
                total - num * law.mean, num * law.variance, law.farthest
            ).excess(level=FALSE_ALARM_RATE)
            return _verdict(name, apart <= 1.0, what)
        coins = stats.binom(self.num_units * num, rate)
        low, high = coins.ppf(FALSE_ALARM_RATE / 2), coins.isf(FALSE_ALARM_RATE / 2)
        return _verdict(name, bool(low <= total <= high), what)

    def _spread(self) -> StepCheck:
        """Batch sizes must scatter as coins do, cut where there is a cap."""
        name, what = "sampling_spread", "batch sizes scatter as coins do"
        expected = size_law(self.plan, num_units=self.num_units)
        if expected.variance < _NO_SPREAD:
            return _verdict(name, passed=True, detail=what)
        sizes = np.array(self._sizes, np.float64)
        dispersion = float(((sizes - expected.mean) ** 2).mean() / expected.variance)
        # a mean of squares with the fourth moment of sizes, as a gamma law
        squares = (expected.kurtosis - 1) / len(sizes)
        law = stats.gamma(1 / squares, scale=squares)
        tail = FALSE_ALARM_RATE / 2
        return _verdict(
            name, float(law.ppf(tail)) <= dispersion <= float(law.isf(tail)), what
        )

    def _fairness(self) -> Iterator[StepCheck]:
        """Who joins must not depend on place, length, past or neighbors."""
        kinds = {
            "sampling_fair": (
                ("place", "length", "history"),
                "who joins follows neither place in the data, nor length, nor past",
            ),
            "sampling_memoryless": (
                ("lag",),
                "who joins does not depend on who joined the steps before",
            ),
            "sampling_apart": (("neighbors",), "units join without their neighbors"),
        }
        lags = zip(self._lags, self._lag_variances, strict=True)
        found = self._found | {
            f"lag_{age}": _Deviation(total, variance, 1.0)
            for age, (total, variance) in enumerate(lags, start=1)
        }
        for name, (prefixes, what) in kinds.items():
            own = [d for n, d in found.items() if n.startswith(prefixes)]
            level = FALSE_ALARM_RATE / max(1, len(own))
            worst = max((d.excess(level=level) for d in own), default=0.0)
            yield _verdict(name, worst <= 1.0, what)


@dataclass(frozen=True, kw_only=True)
class SizeLaw:
    """Moments of the number of units that join a step.

    Args:
        mean: of the number.
        variance: of the number.
        kurtosis: fourth central moment over the square of the variance; 1 without any.
        farthest: largest distance from the mean.
    """

    mean: float
    variance: float
    kurtosis: float
    farthest: float


def size_law(plan: GradientPlan, *, num_units: int) -> SizeLaw:
    """Return the law of batch sizes: coins of all places, cut; units have some of them.

    Args:
        plan: of one band; without a cap, units have all places.
        num_units: who can join.

    >>> from dptune.dpsgd.sampling import SamplingKind
    >>> plan = GradientPlan(
    ...     noise_multiplier=1.0,
    ...     sample_rate=0.5,
    ...     max_grad_norm=1.0,
    ...     expected_batch_size=1,
    ...     sampling=SamplingKind.TRUNCATED_POISSON,
    ...     num_units=2,
    ...     max_batch_size=1,
    ... )
    >>> size_law(plan, num_units=2).mean
    0.75
    """
    capped = plan.sampling is SamplingKind.TRUNCATED_POISSON
    places = plan.num_units if capped and plan.num_units else num_units
    cap = min(places, plan.max_batch_size or places) if capped else places
    coins = stats.binom(places, plan.sample_rate)
    joined = np.arange(int(min(cap, coins.isf(_RARE))) + 1)
    chances = coins.pmf(joined)
    chances[-1] = coins.sf(joined[-1] - 1)
    with np.errstate(divide="ignore", invalid="ignore"):  # where all of them join
        moments = stats.hypergeom(places, num_units, joined).stats("mvsk")
    mean, variance, skew, kurt = (
        np.nan_to_num(moment, posinf=0.0, neginf=0.0) for moment in moments
    )
    middle = float(chances @ mean)
    off = mean - middle
    second = float(chances @ (variance + off**2))
    fourth = float(
        chances
        @ (
            (kurt + 3) * variance**2
            + 4 * skew * variance**1.5 * off
            + 6 * variance * off**2
            + off**4
        )
    )
    return SizeLaw(
        mean=middle,
        variance=second,
        kurtosis=fourth / second**2 if second > 0 else 1.0,
        farthest=max(middle, min(cap, num_units) - middle),
    )


def check_sampling(
    plan: GradientPlan,
    *,
    num_units: int,
    lengths: NDArray[np.int64] | None = None,
) -> list[StepCheck]:
    """Draw many steps: who joins must follow the law that was accounted.

    Args:
        plan: whose sampler is asked.
        num_units: who can join.
        lengths: see `SamplingTally`.
    """
    bands = len(plan.noise_coefficients)
    public = max(1.0, plan.expected_batch_size / plan.sample_rate)
    turns = max(_MIN_STEPS, min(_MAX_STEPS, int(_CELLS / public))) // bands
    tally = SamplingTally(plan=plan, num_units=num_units, lengths=lengths)
    sampler, generator = plan.sampler(num_units), sampling_generator()
    for _ in range(max(1, turns) * bands):
        tally.see(sampler.sample(generator))
    return [*tally.checks(), _check_secret(plan, num_units=num_units)]


@contextmanager
def known_randomness() -> Iterator[None]:
    """Set every generator of the process to a known state, and put it back."""
    states = np.random.get_state(), random.getstate()  # noqa: NPY002 - the global one
    with torch.random.fork_rng():
        torch.manual_seed(0)  # noqa: TID251 - known on purpose
        np.random.seed(0)  # noqa: NPY002, TID251
        random.seed(0)  # noqa: TID251
        try:
            yield
        finally:
            np.random.set_state(states[0])  # noqa: NPY002
            random.setstate(states[1])


def _check_secret(plan: GradientPlan, *, num_units: int) -> StepCheck:
    """Two runs that start alike must draw other units: nothing known feeds them."""
    rate = min(0.5, plan.sample_rate)
    bits = -num_units * math.log2(rate**2 + (1 - rate) ** 2)
    steps = math.ceil(_SURE_BITS / max(bits, 1e-3))
    both = []
    for _ in range(2):
        with known_randomness():
            sampler, generator = plan.sampler(num_units), sampling_generator()
            drawn = [sampler.sample(generator) for _ in range(min(steps, _MAX_STEPS))]
        both.append(np.concatenate([np.append(units, -1) for units in drawn]))
    certain = plan.sample_rate == 1.0 or steps > _MAX_STEPS
    return _verdict(
        "sampling_secret",
        certain or not np.array_equal(both[0], both[1]),
        "who joins does not follow from the state of a known generator",
    )


def _verdict(name: str, passed: bool, detail: str) -> StepCheck:  # noqa: FBT001 - it is the verdict
    """A check whose figure is private."""
    return StepCheck(name=name, passed=bool(passed), detail=detail)


def _centred(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Scores from -1 to 1 of mean zero."""
    scores = np.asarray(values, np.float64) - np.mean(values)
    return scores / max(1.0, float(np.abs(scores).max()))
