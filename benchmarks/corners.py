"""Is an epsilon at the edge of what can be asked ever too small, or slow?

    PYTHONPATH=. python benchmarks/corners.py [--number 300] [--seed 0]

Random histories: rates from 1e-8 to 1, noise from .1 to 1,000, up to a million steps,
deltas from 1e-15 to .01, both relations, truncated batches among them. Each is timed,
and where a claim is made, its truth is sampled: losses of all steps are drawn under the
law that is tilted towards the claimed epsilon, and weighed back. That knows no grid, no
transform and no integral, and none of the accountant's code. A claim is too small where
the true delta at its epsilon is above delta.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any, Final

import dp_accounting
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

from dptune.accounting.accountants import epsilon
from dptune.errors import DptuneError
from dptune.privacy import NeighboringRelation

RESULTS: Final = Path(__file__).parent / "results" / "corners.json"
ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
CELLS, FEW_CELLS, DRAWS, SURE = 200_000, 4_000, 1_000_000, 5.0
Floats = NDArray[np.float64]
Part = tuple[float, str, float, float]
"""Weight, direction, rate and noise of a pair."""


def log_densities(part: Part, x: Floats) -> tuple[Floats, Floats]:
    """Log densities of both sides of a pair, over the one constant that they share."""
    _, direction, rate, noise = part

    def mixture(mean: float) -> Floats:
        near, far = -0.5 * (x / noise) ** 2, -0.5 * ((x - mean) / noise) ** 2
        if rate == 1.0:
            return far
        mixed = np.logaddexp(math.log1p(-rate) + near, math.log(rate) + far)
        return np.asarray(mixed)

    zero = -0.5 * (x / noise) ** 2
    left = zero if direction == "add" else mixture(1.0)
    return left, zero if direction == "remove" else mixture(-1.0)


def tilted_cells(parts: list[Part], c: float, cells: int) -> tuple[Floats, ...]:
    """Log weights of cells under exp(c loss), their left ends, widths and pairs."""
    columns = []
    for number, part in enumerate(parts):
        weight, noise = part[0], part[3]
        reach = 13 * noise + 2 * c + 2
        ends = np.linspace(-reach, reach, cells + 1)
        left, right = log_densities(part, (ends[1:] + ends[:-1]) / 2)
        width = np.full(cells, ends[1] - ends[0])
        log_weight = math.log(weight * width[0] / noise) + left + c * (left - right)
        columns.append((log_weight, ends[:-1], width, np.full(cells, float(number))))
    return tuple(np.concatenate(column) for column in zip(*columns, strict=True))


def true_delta(
    parts: list[Part], count: int, at: float, generator: np.random.Generator
) -> tuple[float, float]:
    """Sample delta at an epsilon, and its standard error."""

    def height(log_c: float) -> float:
        c = math.exp(log_c)
        moment = special.logsumexp(tilted_cells(parts, c, FEW_CELLS)[0])
        return float(count * moment - c * at - math.log(c) - math.log1p(c))

    best = optimize.minimize_scalar(height, bounds=(-4, 12), method="bounded").x
    weights, starts, widths, which = tilted_cells(parts, math.exp(best), CELLS)
    chance = np.exp(weights - special.logsumexp(weights))
    edges = np.cumsum(chance) / chance.sum()
    size = max(400, min(6_000, DRAWS // count))
    losses, logs = np.zeros(size), np.zeros(size)
    for _ in range(count):
        cell = np.minimum(
            np.searchsorted(edges, generator.random(size)), len(edges) - 1
        )
        x = starts[cell] + widths[cell] * generator.random(size)
        for number, part in enumerate(parts):
            mine = which[cell] == number
            left, right = log_densities(part, x[mine])
            drawn = np.log(chance[cell[mine]] / widths[cell[mine]])
            constant = math.log(part[0] / part[3] / math.sqrt(2 * math.pi))
            losses[mine] += left - right
            logs[mine] += constant + left - drawn
    above = np.where(losses > at, logs, -np.inf)
    values = np.exp(above) * -np.expm1(-np.maximum(losses - at, 0.0))
    return float(values.mean()), float(values.std() / math.sqrt(size))


def histories(row: dict[str, Any]) -> list[list[Part]]:
    """Pairs of a step, in each direction that the relation covers."""
    directions = ["remove", "add"] if row["relation"] == ADD else ["replace"]
    plain = [[(1.0, way, row["rate"], row["noise"])] for way in directions]
    if row["cap"] is None:
        return plain
    found = []
    for units in (row["units"], row["units"] + (row["relation"] == ADD)):
        binds = float(stats.binom.sf(row["cap"] - 1, units - 1, row["rate"]))
        if binds == 0.0:
            found += plain
            continue
        cut = float(stats.binom.sf(row["cap"], units, row["rate"]))
        rate = min(1.0, cut * row["cap"] / binds / units)
        for (part,) in plain:
            whole = [(1 - binds, *part[1:])] if binds < 1 else []
            found.append([*whole, (binds, "replace", rate, row["noise"] / 2)])
    return found


def drawn(generator: np.random.Generator) -> dict[str, Any]:
    """Draw a history."""
    rate = 10 ** generator.uniform(-8, 0) if generator.random() < 0.85 else 1.0
    noise = 10 ** generator.uniform(-1, 3 if generator.random() < 0.5 else 0.5)
    count = round(10 ** generator.uniform(0, 6)) if generator.random() < 0.85 else 1
    units = round(10 ** generator.uniform(1, 5))
    cap = max(1, round(units * rate * 10 ** generator.uniform(-0.3, 0.5)))
    return {
        "rate": float(rate),
        "noise": float(noise),
        "count": int(count),
        "delta": float(10 ** generator.uniform(-15, -2)),
        "relation": list(NeighboringRelation)[generator.integers(2)],
        "units": units,
        "cap": cap if generator.random() < 0.2 else None,
    }


def event_of(row: dict[str, Any]) -> dp_accounting.DpEvent:
    """Describe a history."""
    step: dp_accounting.DpEvent = dp_accounting.GaussianDpEvent(row["noise"])
    if row["cap"] is not None:
        step = dp_accounting.TruncatedSubsampledGaussianDpEvent(
            dataset_size=row["units"],
            sampling_probability=row["rate"],
            truncated_batch_size=row["cap"],
            noise_multiplier=row["noise"],
        )
    elif row["rate"] < 1.0:
        step = dp_accounting.PoissonSampledDpEvent(row["rate"], step)
    return dp_accounting.SelfComposedDpEvent(step, row["count"])


def main() -> int:
    """Draw, time and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    generator, rows = np.random.default_rng(options.seed), []
    for _ in range(options.number):
        row = drawn(generator)
        started = time.process_time()
        try:
            row["epsilon"] = epsilon(
                event_of(row), delta=row["delta"], relation=row["relation"]
            )
        except DptuneError as error:
            row["refused"] = str(error)[:80]
        row["seconds"] = time.process_time() - started
        if 1e-6 < row.get("epsilon", 0.0) < 300 and row["count"] <= 1_000:
            sampled = [
                true_delta(parts, row["count"], row["epsilon"], generator)
                for parts in histories(row)
            ]
            value, error = max(sampled)
            row["share"], row["error"] = value / row["delta"], error / row["delta"]
        rows.append(row)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    compared = [row for row in rows if "share" in row]
    small = [r for r in compared if r["share"] > 1 + SURE * r["error"] + 1e-3]
    seconds = sorted(row["seconds"] for row in rows)
    print(
        f"{len(rows)} histories, slowest {seconds[-1]:.2f} s, "
        f"median {seconds[len(rows) // 2]:.3f} s; "
        f"{len(compared)} sampled, {len(small)} too small; "
        f"median share of delta {np.median([r['share'] for r in compared]):.4f}"
    )
    return 1 if small else 0


if __name__ == "__main__":
    sys.exit(main())
