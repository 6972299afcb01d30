"""Collect everything that is wrong with a corpus, so that one error can say it all."""

from dataclasses import dataclass, field

from dptune.errors import DataError, Problem

_MAX_ROWS_NAMED = 5


@dataclass(slots=True)
class _Group:
    """Rows with the same fault."""

    message: str
    next_step: str
    count: int = 0
    rows: list[str] = field(default_factory=list)

    def to_problem(self) -> Problem:
        """Name the first rows and count the rest."""
        more = self.count - len(self.rows)
        rows = [*self.rows, f"and {more} more rows"] if more else self.rows
        return Problem(
            path="; ".join(rows), message=self.message, next_step=self.next_step
        )


class ProblemLog:
    """An append-only collector, which sees row names and counts but no record text."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []
        self._groups: dict[str, _Group] = {}

    def __bool__(self) -> bool:
        """Whether anything was reported."""
        return bool(self._problems or self._groups)

    def has_file_faults(self) -> bool:
        """Whether a whole file, not just some rows, could not be used."""
        return bool(self._problems)

    def add(self, path: str, message: str, next_step: str = "") -> None:
        """Report one fault of a file, a setting or the whole corpus."""
        self._problems.append(Problem(path=path, message=message, next_step=next_step))

    def add_row(self, row: str, message: str, next_step: str = "") -> None:
        """Report one fault of one row; equal faults are grouped."""
        group = self._groups.setdefault(message, _Group(message, next_step))
        group.count += 1
        if len(group.rows) < _MAX_ROWS_NAMED:
            group.rows.append(row)

    def problems(self) -> tuple[Problem, ...]:
        """Everything reported so far, files before rows."""
        rows = tuple(group.to_problem() for group in self._groups.values())
        return (*self._problems, *rows)

    def raise_if_any(self) -> None:
        """Raise one error with every problem.

        Raises:
            DataError: something was reported.
        """
        if self:
            raise DataError(self.problems())
