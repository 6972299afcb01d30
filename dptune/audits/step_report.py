"""What step-level checks found: plain figures, no data."""

from typing import Self

from dptune.results import Report


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
    """

    stage: str
    recipe: str
    data_fingerprint: str
    checks: tuple[StepCheck, ...]

    @property
    def passed(self: Self) -> bool:
        """Whether every check did."""
        return all(check.passed for check in self.checks)
