"""What a data set has spent, as the budget store knows it."""

from typing import Self

from pydantic import Field

from dptune.results.base import Report


class BudgetReservation(Report):
    """What a run holds of a data set's budget, as its training steps need it.

    Args:
        id: of the reservation in the budget store.
        data_set: whose budget it is.
        num_units: source units that the run reads; canaries are none.
        head_sequence: entries of the store's log after it was made.
        head_hash: of the last of them.
        found_open: see `Reservation`.
    """

    id: str
    data_set: str
    num_units: int
    head_sequence: int
    head_hash: str
    found_open: bool = False


class BudgetLine(Report):
    """What a data set's worst cohort has spent under one notion. Never add two lines.

    Args:
        notion: `Notion` of the line.
        relation: `NeighboringRelation` of the line.
        adaptive: whether epsilons hold whatever runs were chosen for what earlier ones
            released; else as if all had been fixed before the first.
        allowance: granted epsilon; None where nothing was granted.
        spent: epsilon of everything drawn, composed.
        committed: the same with all that open reservations may still draw.
        tuning: epsilon of the trials of sweeps alone, composed.
        worst_cohort_units: how many units have spent that much.
    """

    notion: str
    relation: str
    delta: float
    adaptive: bool = False
    allowance: float | None
    spent: float
    committed: float
    tuning: float
    worst_cohort_units: int

    @property
    def left(self: Self) -> float | None:
        """Allowance less what is committed: a guide, since epsilons do not add."""
        if self.allowance is None:
            return None
        return max(self.allowance - self.committed, 0.0)


class LedgerCurve(Report):
    """Epsilon so far over the steps of one stage, under one notion.

    Args:
        stage: name of the stage.
        notion: `Notion` of every epsilon.
        relation: `NeighboringRelation` of every epsilon.
        delta: of every epsilon.
        steps: charged so far, counted from the start of the run.
        epsilon: of everything up to there, composed.
    """

    stage: str
    notion: str
    relation: str
    delta: float
    steps: tuple[int, ...]
    epsilon: tuple[float, ...]


class BudgetReport(Report):
    """What one data set has spent over all runs, as the budget store knows it.

    Args:
        sweeps: how many trials each sweep drew.
        head_sequence: entries of the store's log when this was read.
        head_hash: of the last of them; kept here, it betrays a store that is rewritten.
        curves: how the run that made this report spent; none outside a run.
        reservation: of that run; empty outside one.
    """

    data_set: str
    privacy_unit: str
    num_units: int
    num_cohorts: int
    num_runs: int
    num_open: int
    sweeps: dict[str, int]
    lines: tuple[BudgetLine, ...]
    head_sequence: int = Field(ge=0, lt=1 << 63)  # as databases count
    head_hash: str
    curves: tuple[LedgerCurve, ...] = ()
    reservation: str = ""
