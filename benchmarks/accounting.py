"""How fast, and how tight, does the ledger answer?

    export PYTHONPATH=.
    python benchmarks/accounting.py                     all parts; about 20 minutes
    python benchmarks/accounting.py speed rounding      some parts
    python benchmarks/accounting.py schedules --number 10000 --seconds 900

`speed`: one million steps at a thousand noise levels, cold, and with one more stage on
what is cached; twenty levels; and, for the same histories, dp_accounting alone.

`schedules`: random heterogeneous histories against the quadrature, an accountant that
shares only the dominating pair with ours. Histories on which the quadrature does not
settle are compared with dp_accounting's own composition instead, extrapolated.

Run it with OMP_NUM_THREADS=1 on one core. Results are added to
`benchmarks/results/accounting.json`.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path

import dp_accounting
import numpy as np
from dp_accounting.pld import PLDAccountant

from dptune.accounting import accountants, composition, pairs
from dptune.accounting.accountants import epsilon
from dptune.accounting.events import merge_events
from dptune.accounting.quadrature import QuadratureError, quadrature_delta
from dptune.privacy import NeighboringRelation
from tests.support.events import poisson_gaussian_event
from tests.support.rounding import rounding_bounds

RESULTS = Path(__file__).parent / "results" / "accounting.json"
RELATIONS = list(NeighboringRelation)
THEIRS = {
    NeighboringRelation.ADD_OR_REMOVE_ONE: (
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    ),
    NeighboringRelation.REPLACE_ONE: dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def forget() -> None:
    """Empty every cache, as in a new process."""
    accountants._epsilon.cache_clear()
    composition._spectra.clear()
    composition._profile.cache_clear()
    pairs.mechanism_distribution.cache_clear()
    pairs.typical_loss.cache_clear()


def timed(work: Callable[[], float]) -> tuple[float, float]:
    """Return a result and the seconds that it took."""
    started = time.perf_counter()
    return work(), time.perf_counter() - started


def history(levels: int, steps: int, rate: float) -> dp_accounting.DpEvent:
    """Steps at distinct noise multipliers between 1 and 4."""
    noises = np.random.default_rng(0).uniform(1.0, 4.0, levels)
    return merge_events(
        poisson_gaussian_event(
            sample_rate=rate, noise_multiplier=float(noise), num_steps=steps // levels
        )
        for noise in noises
    )


def theirs(
    event: dp_accounting.DpEvent, relation: NeighboringRelation, grid: float
) -> float:
    """Ask dp_accounting alone."""
    accountant = PLDAccountant(THEIRS[relation], grid)
    accountant.compose(event)
    return float(accountant.get_epsilon(1e-5))


def speed() -> list[dict[str, object]]:
    """Time cold and cached answers."""
    more = poisson_gaussian_event(
        sample_rate=0.001, noise_multiplier=1.2345, num_steps=1000
    )
    rows: list[dict[str, object]] = []
    for levels, steps, rate in ((20, 20_000, 0.001), (1000, 1_000_000, 0.001)):
        event = history(levels, steps, rate)
        for relation in RELATIONS:
            forget()

            def ask(
                event: dp_accounting.DpEvent = event,
                relation: NeighboringRelation = relation,
            ) -> float:
                return epsilon(event, delta=1e-5, relation=relation)

            cold, cold_seconds = timed(ask)
            longer = merge_events([event, more])
            _, warm_seconds = timed(lambda: ask(longer))  # noqa: B023 - called at once
            tight, their_seconds = timed(
                lambda: theirs(event, relation, 1e-4)  # noqa: B023 - called at once
            )
            rows.append(
                {
                    "levels": levels,
                    "steps": steps,
                    "relation": relation.value,
                    "epsilon": round(cold, 6),
                    "cold_seconds": round(cold_seconds, 2),
                    "one_more_stage_seconds": round(warm_seconds, 2),
                    "dp_accounting_epsilon": round(tight, 6),
                    "dp_accounting_seconds": round(their_seconds, 1),
                    "cached_megabytes": round(
                        composition._spectra.num_bytes / 2**20, 1
                    ),
                }
            )
            print(rows[-1], flush=True)
    return rows


def rounding() -> list[dict[str, object]]:
    """Show what rounding costs: a controller that moves the noise at every step."""
    rng = np.random.default_rng(1)
    noises = 1.2 * np.exp(np.cumsum(rng.normal(0, 0.02, 10_000)) / 10)
    event = merge_events(
        poisson_gaussian_event(
            sample_rate=0.005, noise_multiplier=float(noise), num_steps=1
        )
        for noise in noises
    )
    counts = accountants._used_mechanisms(event)
    rows = []
    for relation in RELATIONS:
        forget()
        got, seconds = timed(
            lambda: epsilon(event, delta=1e-5, relation=relation)  # noqa: B023
        )
        low, high = (
            epsilon(bound, delta=1e-5, relation=relation)
            for bound in rounding_bounds(counts, most=1024)
        )
        rows.append(
            {
                "distinct_levels": len(counts),
                "relation": relation.value,
                "epsilon": round(got, 6),
                "no_less_than": round(low, 6),
                "rounded_up_at_most_percent": round(100 * (high / low - 1), 3),
                "seconds": round(seconds, 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def random_schedule(rng: np.random.Generator) -> dp_accounting.DpEvent:
    """One to six blocks, heterogeneous over orders of magnitude."""
    return merge_events(
        poisson_gaussian_event(
            sample_rate=float(10 ** rng.uniform(-3.5, -0.5)),
            noise_multiplier=float(10 ** rng.uniform(-0.15, 1)),
            num_steps=int(10 ** rng.uniform(0.5, 4)),
        )
        for _ in range(int(rng.integers(1, 7)))
    )


def excess(
    event: dp_accounting.DpEvent, delta: float, relation: NeighboringRelation
) -> tuple[float, float] | None:
    """Return ours and by what share it is larger, None where nobody could say.

    The quadrature's delta at our epsilon, seen through our own slope, tells how much
    smaller epsilon could be; one evaluation instead of a search.
    """
    ours = epsilon(event, delta=delta, relation=relation)
    if not 1e-3 < ours < 100:
        return None
    exact = quadrature_delta(event, epsilon=ours, relation=relation)
    if exact <= 0:
        raise QuadratureError("the quadrature found nothing to compare with.")
    there = epsilon(event, delta=exact, relation=relation)
    return ours, (there - ours) / ours


def by_dp_accounting(
    event: dp_accounting.DpEvent, delta: float, relation: NeighboringRelation
) -> float:
    """Compare with dp_accounting's own composition, extrapolated to no grid at all.

    Theirs is an upper bound on a grid, whose error falls with the square of the
    spacing; two spacings tell where it ends.
    """
    ours = epsilon(event, delta=delta, relation=relation)
    grid = max(min(1e-3, ours / 2000), 2e-5)
    found = []
    for interval in (2 * grid, grid):
        accountant = PLDAccountant(THEIRS[relation], interval)
        found.append(float(accountant.compose(event).get_epsilon(delta)))
    return ours / ((4 * found[1] - found[0]) / 3) - 1


def schedules(number: int, seconds: float, first: int = 0) -> dict[str, object]:
    """Compare random histories until the number or the time is reached."""
    started, found, unsettled, skipped, done = time.monotonic(), [], [], 0, 0
    for seed in range(first, first + number):
        if time.monotonic() - started > seconds:
            break
        rng = np.random.default_rng(seed)
        event, delta = random_schedule(rng), float(10 ** rng.uniform(-9, -3))
        for relation in RELATIONS:
            try:
                compared = excess(event, delta, relation)
            except QuadratureError:
                unsettled.append(by_dp_accounting(event, delta, relation))
                continue
            if compared is None:
                skipped += 1
            else:
                found.append(compared[1])
        done += 1
        if done % 100 == 0:
            print(done, len(found), min(found), np.median(found), flush=True)
    share, other = np.array(found), np.array(unsettled)
    return {
        "schedules": done,
        "comparisons": len(found),
        "outside_1e-3_to_100": skipped,
        "smaller_by_more_than_the_quadratures_error": int((share < -2e-4).sum()),
        "least_excess_percent": round(100 * float(share.min()), 4),
        "median_excess_percent": round(100 * float(np.median(share)), 4),
        "largest_excess_percent": round(100 * float(share.max()), 4),
        "compared_with_dp_accounting": len(unsettled),
        "of_these_least_excess_percent": round(100 * float(other.min(initial=0)), 4),
        "of_these_largest_excess_percent": round(100 * float(other.max(initial=0)), 4),
        "seconds": round(time.monotonic() - started),
    }


def save(part: str, found: object) -> None:
    """Add one part to the results."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[part] = found
    known["hardware"] = f"{platform.machine()}, one thread"
    RESULTS.write_text(json.dumps(known, indent=2) + "\n")


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ("speed", "rounding", "schedules")
    parser.add_argument("parts", nargs="*", choices=[*parts, []])
    parser.add_argument("--number", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=900.0)
    parser.add_argument("--first", type=int, default=0)
    asked = parser.parse_args()
    for part in asked.parts or parts:
        if part == "speed":
            save(part, speed())
        elif part == "rounding":
            save(part, rounding())
        else:
            found = schedules(asked.number, asked.seconds, asked.first)
            print(json.dumps(found, indent=2))
            save(f"schedules_from_{asked.first}", found)


if __name__ == "__main__":
    main()
