"""Records from a file to a corpus, what is wrong with them, and the corpus itself."""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import CoreSchema, core_schema

from dptune.errors import DataError, Problem, id_suffix
from dptune.results import CorpusReport

if TYPE_CHECKING:  # so that those who only name a corpus need no library of tables
    from datasets import Dataset


class _Missing:
    """A column that a row does not have, unlike one that is null."""

    def __repr__(self) -> str:
        """Name it in messages."""
        return "missing"


MISSING: Final = _Missing()
_ROWS_AT_ONCE: Final = 10_000


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RawRecord:
    """A record as its source gives it, unchecked: any field may be of any type.

    Args:
        file: name of the file, for messages.
        row: line or row number in the file, from 1.
        text: hidden from `repr`, as are all values.
        id: `MISSING` where the source has no ids.
        unit: owner named by the source, `MISSING` if it names none.
        document: file or document that the record is part of, None if it is its own.
        split: `None` if the source decides no splits.
        label: `MISSING` where the source has no labels.
        known: pairs of type and value of the columns that hold personal data.
    """

    file: str
    row: int
    text: object
    id: object = MISSING
    unit: object = MISSING
    document: str | None = None
    split: object = None
    label: object = MISSING
    known: tuple[tuple[str, object], ...] = ()

    def location(self) -> str:
        """Name the row by file and number, and by id as `id_suffix` shows it."""
        return f"{self.file} row {self.row}{id_suffix(self.id)}"


MAX_ROWS_NAMED: Final = 5


Place = tuple[int, int]
"""Where a fault stands among others: the record, and the number of the check."""

_IN_FILES: Final = -1
AT_END: Final[Place] = (sys.maxsize, 0)


@dataclass(slots=True)
class _Group:
    """Rows with the same fault, and where the first of them is."""

    message: str
    next_step: str
    place: Place
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
        self.unread_columns: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Whether anything was reported."""
        return bool(self._problems or self._groups)

    def has_file_faults(self) -> bool:
        """Whether a whole file, not just some rows, could not be used."""
        return bool(self._problems)

    def add(self, path: str, message: str, next_step: str = "") -> None:
        """Report one fault of a file, a setting or the whole corpus."""
        self._problems.append(Problem(path=path, message=message, next_step=next_step))

    def add_row(
        self, row: str, message: str, next_step: str = "", *, place: Place | None = None
    ) -> None:
        """Report one fault of one row; equal faults are grouped.

        Args:
            row: its name.
            message: without text.
            next_step: what to do.
            place: of the record and the check; None for what a reader found, which
                comes before what checks find.
        """
        self.add_rows([row], message, next_step, count=1, place=place)

    def add_rows(
        self,
        rows: Sequence[str],
        message: str,
        next_step: str,
        *,
        count: int,
        place: Place | None = None,
    ) -> None:
        """Report one fault of many rows, of which the first ones are named."""
        place = (_IN_FILES, len(self._groups)) if place is None else place
        group = self._groups.setdefault(message, _Group(message, next_step, place))
        group.count += count
        group.place = min(group.place, place)
        group.rows += rows[: max(0, MAX_ROWS_NAMED - len(group.rows))]

    def take_rows(self, other: "ProblemLog") -> None:
        """Report what another log holds of rows, behind what readers found before."""
        for group in other._groups.values():
            self.add_rows(group.rows, group.message, group.next_step, count=group.count)

    def problems(self) -> tuple[Problem, ...]:
        """Everything reported so far, files before rows, in the order of the source."""
        groups = sorted(self._groups.values(), key=lambda group: group.place)
        return (*self._problems, *(group.to_problem() for group in groups))

    def raise_if_any(self) -> None:
        """Raise one error with every problem.

        Raises:
            DataError: something was reported.
        """
        if self:
            raise DataError(self.problems())


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A checked, deduplicated, split corpus.

    Args:
        dataset: columns `id, text, unit_id, split`, and `label` where there are labels,
            `known_values` where columns of the source hold personal data. Private;
            hidden from `repr`.
        fingerprint: SHA-256 over ids, units, splits and text hashes.
        report: counts and the verdict of the data expectations; holds no text.
        dropped_units: privacy units of which deduplication left no record. They were
            read, and a copy of what they say may be trained on.
    """

    dataset: "Dataset" = field(repr=False, compare=False)
    fingerprint: str
    report: CorpusReport
    dropped_units: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> CoreSchema:  # noqa: ANN401
        """Where pydantic checks an argument, a corpus is taken as one thing."""
        return core_schema.is_instance_schema(cls)

    @property
    def source_fingerprint(self) -> str:
        """Fingerprint of all that was read: also of units that left no record.

        They change nothing that is trained on, but they are charged. The same as
        `fingerprint` where there are none.
        """
        if not self.dropped_units:
            return self.fingerprint
        text = json.dumps([self.fingerprint, *self.dropped_units])
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def source_units(self) -> Iterator[str]:
        """Every privacy unit that was read, also those that deduplication dropped.

        One that has several records is named for each. Ask a corpus before canaries
        are planted: these are no units of the source.
        """
        yield from self.values("unit_id")
        yield from self.dropped_units

    def values(self, name: str) -> Iterator[str]:
        """Every value of a column of text, in order; few of them are in memory."""
        column = self.dataset.select_columns([name]).with_format("arrow")
        for batch in column.iter(_ROWS_AT_ONCE):
            yield from batch.column(name).to_pylist()

    def with_dataset(self, dataset: "Dataset") -> "Corpus":
        """Return another view of the same corpus: its fingerprint and report stay."""
        return replace(self, dataset=dataset)

    def assuming(self, *names: str) -> "Corpus":
        """Return the corpus with more that every claim about it rests on."""
        return self._naming("assumes", names)

    def marked(self, dataset: "Dataset", *, assumes: Sequence[str]) -> "Corpus":
        """Return the corpus with its marks, which know what they rest on."""
        return self.with_dataset(dataset)._naming("marks_assume", assumes)

    def _naming(self, field_name: str, names: Sequence[str]) -> "Corpus":
        """Add names to a field of the report."""
        known = (*getattr(self.report, field_name), *names)
        more = {field_name: tuple(dict.fromkeys(known))}
        return replace(self, report=self.report.model_copy(update=more))

    def redacted(self, dataset: "Dataset", *, operator: str) -> "Corpus":
        """Return the redacted view, which knows how it was made."""
        report = self.report.model_copy(update={"redaction": operator})
        return replace(self, dataset=dataset, report=report)

    def split(self, name: str) -> "Dataset":
        """Return the records of one split, in order; empty if there is none."""
        from dptune.parts import find  # noqa: PLC0415 - see above

        return self.dataset.select(find(self.dataset, "split", [name]))
