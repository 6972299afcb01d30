"""Mechanisms of known epsilon that answer like a trained model.

Each releases something about every canary on its own, so that its guarantee for one
canary is exact, and writes an `ExposureReport` as an attack on a model would.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dptune.audits.canary_audit import AuditedClaim
from dptune.privacy import NeighboringRelation, Notion
from dptune.results import CanaryExposure, ExposureReport
from tests.support.gaussian_curve import gaussian_epsilon

Floats = NDArray[np.float64]

SPACE: Final = 10**6
DELTA: Final = 1e-5
_CURVE: Final = (DELTA, 1e-3, 1e-2, 0.05, 0.15, 0.3)
_ADD: Final = NeighboringRelation.ADD_OR_REMOVE_ONE
_REPLACE: Final = NeighboringRelation.REPLACE_ONE


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What a mechanism released of its canaries, and its true claims."""

    report: ExposureReport
    claims: tuple[AuditedClaim, ...]

    def epsilon(self, relation: NeighboringRelation) -> float:
        """Return the true epsilon at `DELTA`."""
        claim = next(c for c in self.claims if c.relation is relation)
        return claim.guarantees[0][0]


def gaussian_mechanism(
    generator: np.random.Generator, *, mu: float, num: int
) -> Simulated:
    """Release N(mu, 1) for every planted canary and N(0, 1) for every other."""
    planted = generator.normal(mu, 1.0, num)
    held_out = generator.normal(0.0, 1.0, num)
    return Simulated(
        report=_report(
            _ranks(stats.norm.sf(planted)),
            _ranks(stats.norm.sf(held_out)),
            losses=(-planted, -held_out),
        ),
        claims=(
            _claim(_ADD, [(gaussian_epsilon(mu, delta=d), d) for d in _CURVE]),
            _claim(
                _REPLACE,
                [(gaussian_epsilon(math.sqrt(2) * mu, delta=d), d) for d in _CURVE],
            ),
        ),
    )


def randomized_response(
    generator: np.random.Generator, *, epsilon: float, num: int
) -> Simulated:
    """Say of every canary whether it was planted, a lie with chance 1 / (1 + e^eps)."""
    lie = 1.0 / (1.0 + math.exp(epsilon))
    planted = generator.random(num) >= lie
    held_out = generator.random(num) < lie
    noise = generator.random((2, num)) / 4  # breaks ties, says nothing
    losses = (noise[0] - planted, noise[1] - held_out)
    ranks = [_ranks(generator.random(num)) for _ in range(2)]
    return Simulated(
        report=_report(*ranks, losses=losses),
        claims=(
            _claim(_ADD, [(_at_delta(epsilon), DELTA), (epsilon, 0.0)]),
            _claim(_REPLACE, [(2 * epsilon, DELTA)]),
        ),
    )


def subset_selection(
    generator: np.random.Generator, *, epsilon: float, top: int, num: int
) -> Simulated:
    """Name `top` candidates for every planted canary, epsilon-DP if it is replaced."""
    odds = math.exp(epsilon) * top / (SPACE - top)
    inside = generator.random(num) < odds / (1 + odds)
    first = generator.integers(1, top + 1, num)
    other = generator.integers(top + 1, SPACE + 1, num)
    planted = np.where(inside, first, other)
    held_out = generator.integers(1, SPACE + 1, num)
    share, chance = top / SPACE, odds / (1 + odds)
    removed = max(math.log(chance / share), math.log((1 - share) / (1 - chance)))
    return Simulated(
        report=_report(planted, held_out, losses=(np.log(planted), np.log(held_out))),
        claims=(
            _claim(_ADD, [(removed, DELTA)]),
            _claim(_REPLACE, [(epsilon, DELTA)]),
        ),
    )


def _at_delta(epsilon: float) -> float:
    """Epsilon at `DELTA` of randomized response."""
    return math.log(max(1.0, math.exp(epsilon) - DELTA * (1 + math.exp(epsilon))))


def _claim(
    relation: NeighboringRelation, guarantees: list[tuple[float, float]]
) -> AuditedClaim:
    """The true claim of a mechanism."""
    return AuditedClaim(
        notion=Notion.RECORD,
        relation=relation,
        delta=DELTA,
        guarantees=tuple(guarantees),
    )


def _ranks(shares: Floats) -> NDArray[np.int64]:
    """Ranks from shares of the candidates."""
    return np.clip(np.ceil(shares * SPACE), 1, SPACE).astype(np.int64)


def _report(
    planted: NDArray[np.int64],
    held_out: NDArray[np.int64],
    *,
    losses: tuple[Floats, Floats],
) -> ExposureReport:
    """Write ranks and losses as an attack would; the base model knows nothing."""
    found = (
        *_canaries("planted", planted, losses[0]),
        *_canaries("held-out", held_out, losses[1]),
    )
    return ExposureReport(
        model_digest="simulated",
        base_model_digest="base",
        canary_set_digest="canaries",
        space_size=SPACE,
        scoring="sum",
        setting="as_detected",
        exact=True,
        canaries=found,
        base_canaries=tuple(c.model_copy(update={"nll": 0.0}) for c in found),
        planted_found=len(planted),
        planted_expected=len(planted),
        num_token_forwards=1,
        drawn=True,
    )


def _canaries(
    group: str, ranks: NDArray[np.int64], losses: Floats
) -> tuple[CanaryExposure, ...]:
    """One group of canaries."""
    return tuple(
        CanaryExposure(
            canary_id=f"{group}-{i}",
            planted=group == "planted",
            insertions=int(group == "planted"),
            rank=int(rank),
            exposure=math.log2(SPACE) - math.log2(rank),
            nll=float(loss),
        )
        for i, (rank, loss) in enumerate(zip(ranks, losses, strict=True))
    )
