"""Build a corpus: read, check, deduplicate, split, validate, fingerprint."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from datasets import Dataset

from dptune.accounting.assumptions import Assumption
from dptune.data.checks import SPLIT_NAMES, check_records, owner, to_dataset
from dptune.data.deduplication import Deduplication, Duplicates, deduplicate
from dptune.data.messages import ReadConversation
from dptune.data.readers import read_records
from dptune.data.records import (
    MISSING,
    Corpus,
    ProblemLog,
    RawRecord,
    Record,
    seeded_fraction,
)
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
from dptune.data.validation import validate_corpus
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
    settings, log = splits or SplitSettings(), ProblemLog()
    kind = duplicates.resolved(privacy_unit=privacy_unit, has_labels=_labelled(source))
    raw, given = _read(source, data_root, min_records=min_records, log=log)
    records = check_records(
        raw,
        log=log,
        privacy_unit=privacy_unit,
        max_characters=max_characters,
        max_mojibake_share=max_mojibake_share,
        allow_content_hash_ids=allow_content_hash_ids,
    )
    check_leaks(records, log=log)
    log.raise_if_any()
    taken = [row for row in records if is_taken is None or is_taken(row.text)]
    num_other = None if is_taken is None else len(records) - len(taken)
    records = _sample(taken, sample_share, max_records, seed=seed)
    _check_given_by_column(source, records, given=given, log=log)
    placed = assign_splits(records, settings=settings, seed=seed, given=given)
    unique = deduplicate(
        placed, duplicates=kind, near_duplicate_threshold=near_duplicate_threshold
    )
    kept = [placed[i] for i in unique.kept]
    _check_count(len(kept), min_records, stage="kept after deduplication", log=log)
    check_sizes(kept, settings=settings, given=given, log=log)
    log.raise_if_any()
    dataset = to_dataset(kept, with_split=True)
    validation = ValidationReport(view="ingest", success=False, expectations=())
    if validate:
        validation = validate_corpus(
            dataset,
            view="ingest",
            min_records=min_records,
            max_characters=max_characters,
            max_duplicate_share=0.0 if _drops_copies(kind) else 1.0,
            max_mojibake_share=max_mojibake_share,
            allow_text_leak=not _drops_copies(kind),
        )
        _require_success(validation)
    report = _report(
        kept,
        unique,
        source=source,
        raw=raw,
        fingerprint=corpus_fingerprint(dataset),
        privacy_unit=privacy_unit,
        kind=kind,
        unread=_unread(raw, source=source, log=log),
        sampled=max_records is not None,
        num_other_languages=num_other,
        validation=validation,
    )
    return _corpus(dataset, report, records=records, kept=kept)


def _corpus(
    dataset: Dataset,
    report: CorpusReport,
    *,
    records: Sequence[Record],
    kept: Sequence[Record],
) -> Corpus:
    dropped = {row.unit_id for row in records} - {row.unit_id for row in kept}
    return Corpus(
        dataset=dataset,
        fingerprint=report.fingerprint,
        report=report,
        dropped_units=tuple(sorted(dropped)),
    )


def corpus_fingerprint(dataset: Dataset) -> str:
    """Return the SHA-256 over the sorted `(id, unit_id, split, text hash)` of a corpus.

    The order of records does not matter; an edit of a text, owner, split or label does.

    Args:
        dataset: with the columns of a corpus; `label` and `known_values`, if there are
            any, count too.
    """
    columns = ["id", "unit_id", "split", "label", "known_values"]
    present = [dataset[name] for name in columns if name in dataset.column_names]
    hashes = (hashlib.sha256(text.encode()).hexdigest() for text in dataset["text"])
    lines = sorted(json.dumps(row) for row in zip(*present, hashes, strict=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


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


def _read(
    source: DataSource, data_root: Path | None, *, min_records: int, log: ProblemLog
) -> tuple[list[RawRecord], set[str]]:
    """Read the records, and name the splits that the source decides."""
    raw = read_records(source, data_root=data_root, log=log)
    given = _given_splits(source, raw)
    if not log.has_file_faults():
        _check_count(len(raw), min_records, stage="read", log=log)
        _check_given(given, raw, log=log)
    return raw, given


def _check_count(count: int, least: int, *, stage: str, log: ProblemLog) -> None:
    """Report a corpus that is too small."""
    if count < least:
        log.add(
            "corpus",
            f"must hold at least min_records={least} records, got {count} {stage}.",
            "Give more data, or lower min_records.",
        )


def _given_splits(source: DataSource, raw: Sequence[RawRecord]) -> set[str]:
    """Name the splits that the source decides."""
    named = {row.split for row in raw if isinstance(row.split, str)}
    for field_name in SPLITS:
        if getattr(source, field_name, None) is not None:
            named.add(field_name)
    return {SPLIT_NAMES[name] for name in named if name in SPLIT_NAMES}


def _check_given(given: set[str], raw: Sequence[RawRecord], *, log: ProblemLog) -> None:
    """Report splits that the source promises and leaves empty."""
    for split in sorted(given - {SPLIT_NAMES.get(str(row.split)) for row in raw}):
        log.add(
            f"split {split}",
            "must hold a record, got 0.",
            "Fill its file, or leave it out and let dptune cut it from train.",
        )


def _check_given_by_column(
    source: DataSource, records: Sequence[Record], *, given: set[str], log: ProblemLog
) -> None:
    """Report splits that a column promises and leaves empty."""
    if getattr(source, "split_column", None) is not None:
        check_given_by_column(records, given=given - {"train"}, log=log)


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


def _sample(
    records: list[Record], share: float, max_records: int | None, *, seed: int
) -> list[Record]:
    """Take a share of the units, of it the smallest hashed ids, in their old order."""
    records = [
        row
        for row in records
        if seeded_fraction(row.draw_key, seed=seed, purpose="share") < share
    ]
    if max_records is None or len(records) <= max_records:
        return records
    chosen = sorted(
        range(len(records)),
        key=lambda i: seeded_fraction(records[i].id, seed=seed, purpose="sample"),
    )
    return [records[i] for i in sorted(chosen[:max_records])]


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
    raw: Sequence[RawRecord], *, source: DataSource, log: ProblemLog
) -> dict[str, int]:
    """Count what a source of conversations has beside contents, most of it first."""
    if not learnt_roles(source):
        return {}
    keys = Counter(
        key
        for row in raw
        if isinstance(row.text, ReadConversation)
        for key in row.text.unread
    )
    return dict((keys + log.unread_columns).most_common())


def _report(
    records: Sequence[Record],
    unique: Deduplication,
    *,
    source: DataSource,
    raw: Sequence[RawRecord],
    fingerprint: str,
    privacy_unit: PrivacyUnit,
    kind: Duplicates,
    unread: dict[str, int],
    sampled: bool,
    num_other_languages: int | None,
    validation: ValidationReport,
) -> CorpusReport:
    """Count what is in the corpus."""
    by_split = {
        split: [record for record in records if record.split == split]
        for split in SPLITS
    }
    return CorpusReport(
        source=describe_source(source),
        fingerprint=fingerprint,
        num_read=len(raw),
        num_records={split: len(rows) for split, rows in by_split.items()},
        num_units={
            split: len({record.unit_id for record in rows})
            for split, rows in by_split.items()
        },
        num_exact_duplicates=unique.num_exact,
        num_near_duplicates=unique.num_near,
        num_other_languages=num_other_languages or 0,
        num_duplicates_across_units=unique.num_across_units,
        num_characters=sum(len(record.text) for record in records),
        privacy_unit=privacy_unit.value,
        ids_are_content_hashes=any(row.id is MISSING for row in raw),
        units_are_content_hashes=any(
            row.id is MISSING and owner(row, privacy_unit) is MISSING for row in raw
        ),
        deduplicated=_drops_copies(kind)
        or (kind is Duplicates.WITHIN_UNITS and privacy_unit is not PrivacyUnit.RECORD),
        duplicates_are_free=kind.is_free(
            privacy_unit=privacy_unit, has_labels=_labelled(source)
        ),
        sampled=sampled,
        unread=unread,
        assumes=_assumes(source, privacy_unit, selects=num_other_languages is not None),
        validation=validation,
    )
