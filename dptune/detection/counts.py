"""Counts of entity types, released under differential privacy."""

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import datasets
import dp_accounting

from dptune.detection.recognizer import HIGH_ENTITY_TYPES
from dptune.errors import ConfigError

PUBLIC_TYPES = tuple(sorted(HIGH_ENTITY_TYPES | {"PRON", "PROPN", "NOUN", "VERB"}))
"""The types that are always counted: a list from the corpus would leak its types."""


@dataclass(frozen=True, kw_only=True)
class ReleasedCounts:
    """Noisy counts and what they cost.

    Args:
        counts: at least 0, for every public type.
        event: must be charged to the ledger before the counts are used.
    """

    counts: Mapping[str, int]
    event: dp_accounting.DpEvent


def counts_by_unit(dataset: datasets.Dataset) -> list[Counter[str]]:
    """Count mentions by type for each privacy unit. The result is private.

    Args:
        dataset: columns `unit_id` and `spans`.
    """
    units: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for batch in dataset.select_columns(["unit_id", "spans"]).iter(1000):
        for unit, spans in zip(batch["unit_id"], batch["spans"], strict=True):
            units[unit].update(span["entity_type"] for span in spans)
    return list(units.values())


def release_counts(
    units: Iterable[Mapping[str, int]],
    *,
    noise_multiplier: float,
    max_norm: float = 10.0,
    generator: random.Random | None = None,
) -> ReleasedCounts:
    """Sum the counts of all units with Gaussian noise.

    Each unit's vector of counts v is scaled by min(1, C / ||v||), the vectors are
    added, and noise of standard deviation sigma C is added to each of the public types.
    Types that are not public are left out.

    **Formal guarantee.** The sum of vectors of L2 norm at most C with noise sigma C is
    the Gaussian mechanism with noise multiplier sigma: the event says so, and an
    accountant turns it into epsilon under either relation. Rounding and clipping at 0
    come after. The noise is drawn in floating point, as everywhere here.

    | case | result |
    |---|---|
    | no units | noise alone |
    | `noise_multiplier` 0, infinite, NaN | refused |

    **Privacy.** `units` is private; the result may be released once its event is
    charged.

    Args:
        units: mentions by type, one mapping per privacy unit.
        noise_multiplier: sigma, in (0, inf).
        max_norm: C, in (0, inf), chosen without looking at the corpus.
        generator: for tests; a missing one means entropy of the operating system.

    Raises:
        ConfigError: a number is out of range.
    """
    for name, value in (("noise_multiplier", noise_multiplier), ("max_norm", max_norm)):
        if not (value > 0 and math.isfinite(value)):
            raise ConfigError(f"{name} must be in (0, inf), got {name}={value}.")
    draw = random.SystemRandom() if generator is None else generator
    totals = dict.fromkeys(PUBLIC_TYPES, 0.0)
    for unit in units:
        known = {kind: count for kind, count in unit.items() if kind in totals}
        norm = math.sqrt(sum(count * count for count in known.values()))
        scale = min(1.0, max_norm / norm) if norm else 0.0
        for kind, count in known.items():
            totals[kind] += scale * count
    stddev = noise_multiplier * max_norm
    noisy = {kind: total + draw.gauss(0.0, stddev) for kind, total in totals.items()}
    return ReleasedCounts(
        counts={kind: max(0, round(value)) for kind, value in noisy.items()},
        event=dp_accounting.GaussianDpEvent(noise_multiplier=noise_multiplier),
    )
