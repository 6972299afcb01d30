"""The words of a privacy claim: notion, relation, unit, status, budget."""

import math
from dataclasses import dataclass
from enum import StrEnum

from dptune.errors import ConfigError, Problem


class NeighboringRelation(StrEnum):
    """Which two data sets count as neighbors.

    The sensitivity of a sum of vectors clipped to norm C is C under
    `ADD_OR_REMOVE_ONE` and 2C under `REPLACE_ONE`. `noise_multiplier` is the noise
    stddev divided by C under both.
    """

    ADD_OR_REMOVE_ONE = "add_or_remove_one"
    REPLACE_ONE = "replace_one"


class Purpose(StrEnum):
    """Why a run touches the data. Tuning spends like training, and is told apart."""

    TRAINING = "training"
    TUNING = "tuning"


class Mode(StrEnum):
    """Whether a run follows a theorem or its paper.

    `sound`: noise is calibrated to what can be certified. `paper`: to what the paper's
    own formula yields; what is certified stands beside it, and may be nothing.
    """

    SOUND = "sound"
    PAPER = "paper"


class Notion(StrEnum):
    """What a guarantee protects. Epsilons of two notions are never compared.

    * `RECORD`: the presence of one whole privacy unit.
    * `SELECTIVE`: the sensitive tokens of one record (Shi et al. 2022, Definition 3),
      a replace relation.
    * `LOCAL`: one sequence against a server that is not trusted, a replace relation.
    """

    RECORD = "record"
    SELECTIVE = "selective"
    LOCAL = "local"


class PrivacyUnit(StrEnum):
    """What one neighbor changes, the finest first."""

    RECORD = "record"
    DOCUMENT = "document"
    USER = "user"

    @property
    def coarseness(self) -> int:
        """Place in that order: a replace claim for a unit holds for finer ones.

        Not so add or remove: see `GatePolicy.relations_for`.

        >>> PrivacyUnit.USER.coarseness > PrivacyUnit.RECORD.coarseness
        True
        """
        return list(PrivacyUnit).index(self)


class CertificateStatus(StrEnum):
    """How well a claim is founded.

    * `CERTIFIED`: a theorem whose conditions the code enforces.
    * `CONDITIONAL`: a theorem under named assumptions that the code cannot enforce.
    * `EMPIRICAL`: measured, not proven.
    * `NONE`: no guarantee.
    """

    CERTIFIED = "certified"
    CONDITIONAL = "conditional"
    EMPIRICAL = "empirical"
    NONE = "none"


class UnitsFrom(StrEnum):
    """Where the number of privacy units that a plan is made for comes from.

    * `EXACT`: counted on the data, so that neighbors differ in it.
    * `DECLARED`: public knowledge, to two digits.
    * `RELEASED`: counted under noise, and charged.
    """

    EXACT = "exact"
    DECLARED = "declared"
    RELEASED = "released"


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """A target (epsilon, delta).

    Args:
        target_epsilon: in (0, inf).
        target_delta: in (0, 1); choose less than 1 / number of privacy units.

    Raises:
        ConfigError: a value is out of range or NaN.
    """

    target_epsilon: float
    target_delta: float

    def __post_init__(self) -> None:
        """Check both values and report both at once."""
        problems = []
        if not (self.target_epsilon > 0 and math.isfinite(self.target_epsilon)):
            problems.append(
                Problem(
                    path="target_epsilon",
                    message="must be in (0, inf), got "
                    f"target_epsilon={self.target_epsilon}.",
                    next_step="Common choices are 1 to 8.",
                )
            )
        if not 0 < self.target_delta < 1:
            problems.append(
                Problem(
                    path="target_delta",
                    message=f"must be in (0, 1), got target_delta={self.target_delta}.",
                    next_step="Choose less than 1 / number of privacy units.",
                )
            )
        if problems:
            raise ConfigError(problems)
