"""Build a corpus: read, check, deduplicate, split, validate, fingerprint."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dptune.accounting.assumptions import Assumption
from dptune.data.checks import SPLIT_NAMES, check_columns, check_records
from dptune.data.deduplication import Deduplication, deduplicate
from dptune.data.draws import seeded_fractions
from dptune.data.duplicates import Duplicates
from dptune.data.engine import Engine, open_engine, own_tables, scratch_folder
from dptune.data.readers import read_records
from dptune.data.records import Corpus, ProblemLog, RawRecord
from dptune.data.source import (
    SPLITS,
    DataSource,
    TextSource,
    describe_source,
    learnt_roles,
)
from dptune.data.splitting import (
    SplitSettings,
    assign_splits,
    check_given_by_column,
    check_leaks,
    check_sizes,
)
from dptune.data.table import LEFT_OUT, RecordTable, Splits, TableWriter
from dptune.data.validation import validate_corpus
from dptune.data.written import (
    WrittenRecords,
    corpus_fingerprint,
    count_units,
    dropped_units,
    write_records,
)
from dptune.errors import ConfigError, DataError, Problem
from dptune.privacy import PrivacyUnit
from dptune.results import CorpusReport, ValidationReport


def build_corpus(
    source: DataSource,
    *,
    privacy_unit: PrivacyUnit,
    data_root: Path | None = None,
    splits: SplitSettings | None = None,
    duplicates: Duplicates = Duplicates.AUTO,
    near_duplicate_threshold: float | None = 0.85,
    max_characters: int = 100_000,
    max_mojibake_share: float = 0.01,
    min_records: int = 10,
    sample_share: float = 1.0,
    max_records: int | None = None,
    allow_content_hash_ids: bool = False,
    seed: int = 0,
    validate: bool = True,
    is_taken: Callable[[str], bool] | None = None,
    folder: Path | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Corpus:
    """Read a source and make a corpus that training may use.

    Every check runs before anything is returned, and one error tells all that is wrong.
    Duplicates go after splitting; `dptune.data.deduplication` says what that means for
    a claim.

    Privacy: the data set is private. `report` and `fingerprint` hold no text, but they
    count private data; errors name rows by file and number.

    Args:
        source: where the records are.
        privacy_unit: what one neighbor changes. `RECORD`: the record. `DOCUMENT`: the
            unit column, else the file of plain text, else the record. `USER`: the unit
            column, which must be there.
        data_root: folder that relative paths start from; the working directory if None.
        splits: expected shares; one tenth each for validation and test if None.
        duplicates: which records go that repeat others.
        near_duplicate_threshold: Jaccard similarity in (0, 1]; None skips the count.
        max_characters: longest text, code points.
        max_mojibake_share: largest share of records with broken characters, in [0, 1].
        min_records: fewest records, before and after deduplication, at least 1.
        sample_share: chance in (0, 1] that a unit is taken, by its own hashed id: no
            unit keeps another in or out.
        max_records: take this many at random, by hashed id; None takes all. One unit
            more may then push out records of others, so that a claim is about what was
            taken: the report says so, and the certificate after it.
        allow_content_hash_ids: let a privacy unit be known by a hash of its text.
        seed: public; decides splits, and which units and records are taken.
        validate: ask Great Expectations as well, which takes seconds to import; the
            report of a corpus of which it was not asked has no expectations.
        is_taken: tells by the text of a record whether it is taken, such as by its
            language; None takes all.
        folder: a private folder of the project, for work files that are gone when this
            returns, or at its next call if the process is killed. Records are then
            read from disk, as those of the corpus are afterwards. None keeps all in
            memory.
        on_progress: called now and then with what is being done, records done, and all
            of them; 0 while nobody knows how many there are.

    Raises:
        ConfigError: an argument is out of range.
        DataError: with every fault of the source.
        DependencyError: a hub data set cannot be fetched.
    """
    _check_arguments(
        duplicates=duplicates,
        near_duplicate_threshold=near_duplicate_threshold,
        max_characters=max_characters,
        max_mojibake_share=max_mojibake_share,
        min_records=min_records,
        sample_share=sample_share,
        max_records=max_records,
    )
    with scratch_folder(folder) as place, open_engine(place) as engine:
        corpus = _Building(
            source=source,
            privacy_unit=privacy_unit,
            splits=splits or SplitSettings(),
            kind=duplicates.resolved(
                privacy_unit=privacy_unit, has_labels=_labelled(source)
            ),
            near_duplicate_threshold=near_duplicate_threshold,
            max_characters=max_characters,
            max_mojibake_share=max_mojibake_share,
            min_records=min_records,
            sample_share=sample_share,
            max_records=max_records,
            seed=seed,
            is_taken=is_taken,
            folder=place,
            engine=engine,
            tell=on_progress or (lambda *_: None),
        ).corpus(
            data_root=data_root,
            allow_content_hash_ids=allow_content_hash_ids,
            validate=validate,
        )
    pa.default_memory_pool().release_unused()
    return corpus


@dataclass(kw_only=True)
class _Building:
    """A corpus under construction: what was asked for, and what is wrong so far."""

    source: DataSource
    privacy_unit: PrivacyUnit
    splits: SplitSettings
    kind: Duplicates
    near_duplicate_threshold: float | None
    max_characters: int
    max_mojibake_share: float
    min_records: int
    sample_share: float
    max_records: int | None
    seed: int
    is_taken: Callable[[str], bool] | None
    folder: Path | None
    engine: Engine
    tell: Callable[[str, int, int], None]
    log: ProblemLog = field(default_factory=ProblemLog)

    def corpus(
        self, *, data_root: Path | None, allow_content_hash_ids: bool, validate: bool
    ) -> Corpus:
        """Read, check, sample, split, deduplicate and write the records."""
        with own_tables(self.engine) as tables:
            table, given = self._read(tables, data_root)
            check_columns(
                table,
                log=self.log,
                privacy_unit=self.privacy_unit,
                max_mojibake_share=self.max_mojibake_share,
                allow_content_hash_ids=allow_content_hash_ids,
            )
            check_leaks(table, log=self.log)
            self.log.raise_if_any()
            placed, num_other = self._place(table, given)
            unique = deduplicate(
                table,
                placed,
                duplicates=self.kind,
                near_duplicate_threshold=self.near_duplicate_threshold,
                folder=self.folder,
                on_progress=partial(self._tell_of, "look for copies", table.num_read),
            )
            kept = np.where(unique.kept, placed, LEFT_OUT)
            self._check_kept(kept, given)
            written = write_records(table, kept, folder=self.folder)
            num_units = count_units(table, kept)
            dropped = dropped_units(table, placed, kept)
        validation = self._validated(written) if validate else _UNASKED
        report = self._report(
            table,
            kept,
            unique,
            fingerprint=corpus_fingerprint(written.reader(), engine=self.engine),
            num_units=num_units,
            num_characters=written.num_characters,
            num_other_languages=num_other,
            validation=validation,
        )
        return Corpus(
            dataset=written.dataset(),
            fingerprint=report.fingerprint,
            report=report,
            dropped_units=dropped,
        )

    def _read(
        self, tables: Engine, data_root: Path | None
    ) -> tuple[RecordTable, set[str]]:
        """Read the records, and name the splits that the source decides."""
        writer = TableWriter(
            tables, self.folder, is_chat=bool(learnt_roles(self.source))
        )
        table = check_records(
            self._counted(read_records(self.source, data_root=data_root, log=self.log)),
            writer=writer,
            log=self.log,
            privacy_unit=self.privacy_unit,
            max_characters=self.max_characters,
        )
        found = {SPLIT_NAMES[name] for name in table.named}
        given = found | {
            name for name in SPLITS if getattr(self.source, name, None) is not None
        }
        if not self.log.has_file_faults():
            self._check_count(table.num_read, stage="read")
            for split in sorted(given - found):
                self.log.add(
                    f"split {split}",
                    "must hold a record, got 0.",
                    "Fill its file, or leave it out and let dptune cut it from train.",
                )
        return table, given

    def _counted(self, records: Iterable[RawRecord]) -> Iterator[RawRecord]:
        """Tell how many records were read, now and then."""
        for number, record in enumerate(records):
            if number % _ROWS_BETWEEN_TELLING == 0:
                self.tell("read", number, 0)
            yield record

    def _tell_of(self, what: str, total: int, done: int) -> None:
        """Tell how far something is."""
        self.tell(what, done, total)

    def _place(self, table: RecordTable, given: set[str]) -> tuple[Splits, int | None]:
        """Choose records, and give them splits; count those whose texts are others."""
        taken, num_other = _take(table, self.is_taken)
        taken = _sample(
            table, taken, self.sample_share, self.max_records, seed=self.seed
        )
        if getattr(self.source, "split_column", None) is not None:
            others = given - {"train"}
            check_given_by_column(table, taken, given=others, log=self.log)
        placed = assign_splits(table, settings=self.splits, seed=self.seed, given=given)
        return np.where(taken, placed, LEFT_OUT), num_other

    def _check_kept(self, kept: Splits, given: set[str]) -> None:
        """Refuse what is left if it is too little."""
        numbers = np.bincount(kept[kept >= 0], minlength=len(SPLITS))
        self._check_count(int(numbers.sum()), stage="kept after deduplication")
        present = {name for name, number in zip(SPLITS, numbers, strict=True) if number}
        check_sizes(present, settings=self.splits, given=given, log=self.log)
        self.log.raise_if_any()

    def _check_count(self, number: int, *, stage: str) -> None:
        """Report a corpus that is too small."""
        if number < self.min_records:
            self.log.add(
                "corpus",
                f"must hold at least min_records={self.min_records} records, got "
                f"{number} {stage}.",
                "Give more data, or lower min_records.",
            )

    def _validated(self, written: WrittenRecords) -> ValidationReport:
        """Ask Great Expectations about what was written."""
        validation = validate_corpus(
            written.reader(),
            view="ingest",
            min_records=self.min_records,
            max_characters=self.max_characters,
            max_duplicate_share=0.0 if _drops_copies(self.kind) else 1.0,
            max_mojibake_share=self.max_mojibake_share,
            allow_text_leak=not _drops_copies(self.kind),
            engine=self.engine,
        )
        _require_success(validation)
        return validation

    def _report(
        self,
        table: RecordTable,
        kept: Splits,
        unique: Deduplication,
        *,
        fingerprint: str,
        num_units: dict[str, int],
        num_characters: int,
        num_other_languages: int | None,
        validation: ValidationReport,
    ) -> CorpusReport:
        """Count what is in the corpus."""
        kind, unit = self.kind, self.privacy_unit
        numbers = np.bincount(kept[kept >= 0], minlength=len(SPLITS))
        return CorpusReport(
            source=describe_source(self.source),
            fingerprint=fingerprint,
            num_read=table.num_read,
            num_records=dict(zip(SPLITS, numbers.tolist(), strict=True)),
            num_units=num_units,
            num_exact_duplicates=unique.num_exact,
            num_near_duplicates=unique.num_near,
            num_other_languages=num_other_languages or 0,
            num_duplicates_across_units=unique.num_across_units,
            num_characters=num_characters,
            privacy_unit=unit.value,
            ids_are_content_hashes=table.has_missing_ids,
            units_are_content_hashes=table.has_content_units,
            deduplicated=_drops_copies(kind)
            or (kind is Duplicates.WITHIN_UNITS and unit is not PrivacyUnit.RECORD),
            duplicates_are_free=kind.is_free(
                privacy_unit=unit, has_labels=_labelled(self.source)
            ),
            sampled=self.max_records is not None,
            unread=_unread(table, source=self.source, log=self.log),
            assumes=_assumes(
                self.source, unit, selects=num_other_languages is not None
            ),
            validation=validation,
        )


_ROWS_BETWEEN_TELLING = 4096
_UNASKED = ValidationReport(view="ingest", success=False, expectations=())


def _check_arguments(
    *,
    duplicates: Duplicates,
    near_duplicate_threshold: float | None,
    max_characters: int,
    max_mojibake_share: float,
    min_records: int,
    sample_share: float,
    max_records: int | None,
) -> None:
    """Report every argument that is out of range."""
    threshold = near_duplicate_threshold
    rules = [
        ("near_duplicate_threshold", threshold, "in (0, 1] or null",
         threshold is None or 0 < threshold <= 1),
        ("duplicates", duplicates, "another than drop_near without a threshold",
         threshold is not None or duplicates is not Duplicates.NEAR),
        ("max_characters", max_characters, "at least 1", max_characters >= 1),
        ("max_mojibake_share", max_mojibake_share, "in [0, 1]",
         0 <= max_mojibake_share <= 1),
        ("min_records", min_records, "at least 1", min_records >= 1),
        ("sample_share", sample_share, "in (0, 1]", 0 < sample_share <= 1),
        ("max_records", max_records, f"at least min_records={min_records} or null",
         max_records is None or max_records >= min_records),
    ]  # fmt: skip
    problems = [
        Problem(path=name, message=f"must be {constraint}, got {name}={value}.")
        for name, value, constraint, holds in rules
        if not holds
    ]
    if problems:
        raise ConfigError(problems)


def _labelled(source: DataSource) -> bool:
    """Whether a copy comes with more than its text: a label, or values known of it."""
    has_label = getattr(source, "label_column", None) is not None
    return has_label or bool(getattr(source, "known_columns", None))


def _drops_copies(kind: Duplicates) -> bool:
    """Whether no text is left twice, whoever it belongs to."""
    return kind in {Duplicates.EXACT, Duplicates.NEAR}


def _assumes(
    source: DataSource, privacy_unit: PrivacyUnit, *, selects: bool
) -> tuple[str, ...]:
    """Name what makes units depend on each other, or leave the data, in the source."""
    is_placed = (
        isinstance(source, TextSource)
        and source.position_ids
        and source.record != "document"
        and privacy_unit is PrivacyUnit.RECORD
    )
    found = (Assumption.POSITIONS_NAME_RECORDS.value,) if is_placed else ()
    return (*found, Assumption.LANGUAGE_IS_PUBLIC.value) if selects else found


def _take(
    table: RecordTable, is_taken: Callable[[str], bool] | None
) -> tuple[npt.NDArray[np.bool_], int | None]:
    """Take records by their texts; the number of others, None if nobody is asked."""
    taken = np.ones(table.num_read, bool)
    if is_taken is None:
        return taken, None
    for positions, texts in table.texts(taken):
        taken[positions] = [is_taken(text) for text in texts.to_pylist()]
    return taken, int((~taken).sum())


def _sample(
    table: RecordTable,
    taken: npt.NDArray[np.bool_],
    share: float,
    max_records: int | None,
    *,
    seed: int,
) -> npt.NDArray[np.bool_]:
    """Take a share of the units, and of it the records of the smallest hashed ids."""
    if share < 1:
        taken = taken & (_drawn(table.draw_keys(), seed=seed, purpose="share") < share)
    if max_records is None or taken.sum() <= max_records:
        return taken
    fractions = _drawn(table.ids(), seed=seed, purpose="sample")
    places = np.flatnonzero(taken)
    chosen = places[np.argsort(fractions[places], kind="stable")[:max_records]]
    taken = np.zeros_like(taken)
    taken[chosen] = True
    return taken


def _drawn(
    names: Iterable[pa.StringArray], *, seed: int, purpose: str
) -> npt.NDArray[np.float64]:
    """Map the names of all records to [0, 1)."""
    return np.concatenate(
        [seeded_fractions(n.to_pylist(), seed=seed, purpose=purpose) for n in names]
    )


def _require_success(validation: ValidationReport) -> None:
    """Refuse a corpus that failed an expectation."""
    problems = [
        Problem(
            path=f"expectation {item.name}",
            message=f"must hold, got a failure ({item.detail}).",
            next_step="Report this: the checks before it should have found the rows.",
        )
        for item in validation.expectations
        if not item.success
    ]
    if problems:
        raise DataError(problems)


def _unread(
    table: RecordTable, *, source: DataSource, log: ProblemLog
) -> dict[str, int]:
    """Count what a source of conversations has beside contents, most of it first."""
    if not learnt_roles(source):
        return {}
    return dict((table.unread + log.unread_columns).most_common())
