"""The forward form of a plan: one object that owns the local claim of a stage.

A user sends a server the hidden state of a sequence, clipped and noised, once in
every epoch. The server is not trusted and sees who takes part, so that there is no
sampling to gain from; what it does with what it received is post-processing.

References:
    Du et al. (2023), "DP-Forward", CCS, https://arxiv.org/abs/2309.06746, section 4;
    Zhang et al. (2026), "EW-FT", section 5.3, equation 11.
"""

import math
from dataclasses import dataclass
from typing import Final

import dp_accounting
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
)

from dptune.errors import ConfigError, Problem
from dptune.privacy import NeighboringRelation

SMALLEST_MAX_NORM: Final = 1e-12


@dataclass(frozen=True, kw_only=True)
class ForwardPlan:
    """Noised hidden states: a clip, a noise multiplier for each participation.

    Participation j of a sequence x releases h(x) + N(0, (sigma_j C)^2 I) with
    ||h(x)||_F <= C, where h is fixed in advance: the user's layers and encoder are
    frozen and public.

    **Formal guarantee** (local, replace one sequence): all that the server sees of a
    sequence is dominated by `dp_event(num_participations)`: Gaussian mechanisms of
    sensitivity 2C, composed without amplification. With one constant multiplier that is
    one Gaussian of mu = 2 sqrt(E) / sigma (Dong et al. 2022, corollary 3.3).

    | case | meaning |
    |---|---|
    | a hidden state that is zero or not finite | its release is noise only |
    | more participations than multipliers | refused |
    | labels | sent in the clear, covered by nothing |
    | lengths | hidden: every sequence has `max_tokens` rows, padding is noised too |

    Args:
        noise_multipliers: sigma_j, noise stddev / C, above 0, in the order of use.
        max_norm: C, Frobenius norm of a sequence's hidden state, at least 1e-12: far
            below, float32 rounds it up.
        num_users: sequences, each of them a unit.
        batch_size: sequences in a step of the server; no part of the claim.

    Raises:
        ConfigError: a number is out of range.
    """

    noise_multipliers: tuple[float, ...]
    max_norm: float
    num_users: int
    batch_size: int

    def __post_init__(self) -> None:
        """Check every number."""
        checks = {
            "noise_multipliers": bool(self.noise_multipliers)
            and all(0 < sigma < math.inf for sigma in self.noise_multipliers),
            "max_norm": SMALLEST_MAX_NORM <= self.max_norm < math.inf,
            "num_users": self.num_users >= 1,
            "batch_size": self.batch_size >= 1,
        }
        problems = [
            Problem(
                path=name,
                message="must be above 0 and finite, and at least one; "
                f"max_norm at least {SMALLEST_MAX_NORM:g}.",
            )
            for name, valid in checks.items()
            if not valid
        ]
        if problems:
            raise ConfigError(problems)

    @property
    def num_participations(self) -> int:
        """E: how often each sequence is released, at most."""
        return len(self.noise_multipliers)

    @property
    def noise_multiplier(self) -> float:
        """The least of all."""
        return min(self.noise_multipliers)

    @property
    def sample_rate(self) -> float:
        """Every sequence takes part in every epoch, and the server sees it."""
        return 1.0

    @property
    def max_grad_norm(self) -> float:
        """C, under the name that plans have in common."""
        return self.max_norm

    @property
    def expected_batch_size(self) -> float:
        """Public divisor: a release is not a sum."""
        return 1.0

    def noise_stddev(self, *, step: int = 0) -> float:
        """Return the stddev of participation `step`, from 0."""
        return self.noise_multipliers[step] * self.max_norm

    def sensitivity(self, relation: NeighboringRelation) -> float:
        """Return 2C, for replacement; nothing else is defined for one user's release.

        Raises:
            ConfigError: the relation is not replacement.
        """
        if relation is not NeighboringRelation.REPLACE_ONE:
            raise ConfigError(
                f"relation must be replace_one for the local notion, got {relation}."
            )
        return 2 * self.max_norm

    def dp_event(self, num_steps: int, *, first_step: int = 0) -> dp_accounting.DpEvent:
        """Describe `num_steps` participations of every sequence.

        Under `REPLACE_ONE` the accountant takes the sensitivity of a Gaussian as 2C.
        More of them than there are multipliers have no guarantee.
        """
        last = first_step + num_steps
        if last > self.num_participations:
            return NonPrivateDpEvent()
        sigmas = self.noise_multipliers[first_step:last]
        if not sigmas:
            return NoOpDpEvent()
        return ComposedDpEvent([GaussianDpEvent(sigma) for sigma in sigmas])
