"""What step-level checks found: plain figures, no data."""

from typing import Final, Self

from dptune.results import Report

FALSE_ALARM_RATE: Final = 1e-6
"""Probability that a check fails on a sound engine."""


class StepCheck(Report):
    """One check of the engine.

    Args:
        name: such as `sensitivity`.
        passed: whether the engine does what the plan says.
        measured: the figure, if it is one.
        limit: what it was compared with.
        detail: what the figure is.
    """

    name: str
    passed: bool
    measured: float | None = None
    limit: float | None = None
    detail: str

    @classmethod
    def failed(cls: type[Self], name: str, detail: str) -> Self:
        """A check that fails without a figure."""
        return cls(name=name, passed=False, detail=detail)


class StepAudit(Report):
    """All step-level checks of one stage.

    Args:
        stage: name of the stage.
        recipe: that it belongs to.
        data_fingerprint: of the corpus that the steps were run on.
        checks: in the order in which they ran.
        is_private: whether the stage has noise to look at.
        num_steps: of the stage.
        num_recorded: steps that were looked at while the stage trained; None where
            nobody could.
        unrecorded: why nobody could.
        seconds: that the checks took after the stage had trained.
    """

    stage: str
    recipe: str
    data_fingerprint: str
    checks: tuple[StepCheck, ...]
    is_private: bool = True
    num_steps: int = 0
    num_recorded: int | None = None
    unrecorded: str = ""
    seconds: float = 0.0

    @property
    def failed(self: Self) -> tuple[str, ...]:
        """Names of the checks that did not pass."""
        return tuple(check.name for check in self.checks if not check.passed)

    @property
    def summary(self: Self) -> str:
        """One line: what was found."""
        if not self.checks:
            return "not audited"
        failed = self.failed
        return f"failed: {', '.join(failed)}" if failed else "passed"

    @property
    def passed(self: Self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks)
