"""Check raw records one by one and name every fault by row."""

import math
import re
import sys
from collections.abc import Iterable

from dptune.conversation import RESERVED, contents_only
from dptune.data.engine import count
from dptune.data.messages import ReadConversation
from dptune.data.records import MAX_ROWS_NAMED, MISSING, ProblemLog, RawRecord
from dptune.data.table import (
    NO_LABEL,
    NUMBER,
    UNDECIDED,
    WORD,
    RecordTable,
    TableWriter,
    split_code,
)
from dptune.data.validation import MOJIBAKE
from dptune.privacy import PrivacyUnit
from dptune.spellings import MAX_CHARACTERS

SPLIT_NAMES = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
_SPLIT_CODES = {name: split_code(split) for name, split in SPLIT_NAMES.items()}
_MAX_ID_CHARACTERS = 200
_MOJIBAKE = re.compile(MOJIBAKE)
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_Fault = tuple[str, str]


def check_records(
    raw: Iterable[RawRecord],
    *,
    writer: TableWriter,
    log: ProblemLog,
    privacy_unit: PrivacyUnit | None = None,
    max_characters: int | None = None,
) -> RecordTable:
    """Check raw records one by one as they come, leaving out and reporting faulty ones.

    Args:
        raw: records as read.
        writer: where sound ones are written.
        log: where faults go.
        privacy_unit: decides what owns a record; None takes what the source names.
        max_characters: longest text, code points; None for no limit.
    """
    table = writer.table
    for row in raw:
        table.num_read += 1
        unit = owner(row, privacy_unit)
        if isinstance(row.split, str) and row.split in SPLIT_NAMES:
            table.named.add(row.split)
        if row.id is MISSING:
            table.has_missing_ids = True
            table.has_content_units |= unit is MISSING
        table.has_missing_units |= row.unit is MISSING
        table.has_units |= unit is not MISSING
        if isinstance(row.text, ReadConversation):
            table.unread.update(row.text.unread)
        _check_record(row, unit, max_characters, writer, log)
    return writer.close()


def check_columns(
    table: RecordTable,
    *,
    log: ProblemLog,
    privacy_unit: PrivacyUnit | None = None,
    max_mojibake_share: float = 1.0,
    allow_content_hash_ids: bool = True,
) -> None:
    """Check what needs all records: owners, ids, broken characters, types of labels.

    Args:
        table: records that were checked one by one.
        log: where faults go.
        privacy_unit: decides what owns a record; None takes what the source names.
        max_mojibake_share: largest share of records with broken characters, in [0, 1].
        allow_content_hash_ids: whether a privacy unit may be known by its content only.
    """
    if privacy_unit is PrivacyUnit.USER and table.has_missing_units:
        log.add(
            "privacy_unit",
            "must be owned by a column of the source, got privacy_unit=user without "
            "unit_column.",
            "Set unit_column, or choose privacy_unit record or document.",
        )
    if table.has_content_units and not allow_content_hash_ids:
        log.add(
            "id_column",
            "must name stable ids, got none, so that privacy units would be known by "
            "hashes of their text and an edited text would buy a fresh budget.",
            "Set id_column (or unit_column), for plain text that is never edited "
            "position_ids: true, or else allow_content_hash_ids: true.",
        )
    if table.has_missing_ids:
        table.number_copies()
    else:
        _check_ids(table, log=log)
    _check_values(table, max_mojibake_share=max_mojibake_share, log=log)


def owner(row: RawRecord, privacy_unit: PrivacyUnit | None) -> object:
    """Name what owns a record; `MISSING` where that is the record itself."""
    if privacy_unit is PrivacyUnit.RECORD:
        return MISSING
    if row.unit is MISSING and row.document is not None:
        return row.document
    return row.unit


def _check_record(
    row: RawRecord,
    unit: object,
    max_characters: int | None,
    writer: TableWriter,
    log: ProblemLog,
) -> None:
    """Check one record, and write it if it can be used."""
    id_fault = _name_fault("id", row.id)
    faults = [
        _text_fault(row.text, max_characters),
        id_fault,
        _name_fault("unit", unit),
        _split_fault(row.split),
        _label_fault(row.label),
        *(_known_fault(value) for _, value in row.known),
    ]
    text = row.text
    if isinstance(text, ReadConversation):
        faults += text.faults
        text = text.text
    found = [fault for fault in faults if fault is not None]
    for number, (message, next_step) in enumerate(found):
        place = (writer.table.num_read, number)
        log.add_row(row.location(), message, next_step, place=place)
    if found or not isinstance(text, str):
        if row.id is not MISSING and id_fault is None:
            writer.add_id(row, str(row.id))
        return
    label, kind, is_whole = _label_of(row.label)
    known = [
        {"value": str(value), "entity_type": name}
        for name, value in row.known
        if not _is_blank(value)
    ]
    writer.add(
        row,
        text=text,
        identifier=None if row.id is MISSING else str(row.id),
        unit=None if unit is MISSING else str(unit),
        split=UNDECIDED if row.split is None else _SPLIT_CODES[str(row.split)],
        label=label,
        label_kind=kind,
        is_whole=is_whole,
        is_broken=_is_broken(text),
        known=known if row.known else None,
    )


def _label_of(label: object) -> tuple[str | None, int, bool]:
    """Return a label as text, its kind, and whether it is a whole number as text.

    CSV files write integers as text. Only where writing the integer gives the label
    again: else one record's label could decide what class another's is.
    """
    if label is MISSING:
        return None, NO_LABEL, False
    if isinstance(label, int | float):
        return str(int(label)), NUMBER, True
    text = str(label)
    return text, WORD, _WHOLE_NUMBER.fullmatch(text) is not None


def _is_broken(text: str) -> bool:
    """Whether a text holds mojibake, which printable ASCII does not."""
    if text.isascii() and text.isprintable():
        return False
    return _MOJIBAKE.search(text) is not None


_DUPLICATE_ID = (
    "id must be unique, got an id that an earlier row has.",
    "Remove copies, or set ids_are_per_split: true if every split counts anew.",
)


def _is_encodable(value: str) -> bool:
    """Tell whether a string is Unicode text, without lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _null_fault(field: str, value: object, next_step: str) -> _Fault | None:
    """Find a missing value."""
    if value is None:
        return f"{field} must not be null, got null.", next_step
    if isinstance(value, float) and math.isnan(value):
        return f"{field} must not be NaN, got NaN.", next_step
    return None


def _text_fault(text: object, max_characters: int | None) -> _Fault | None:
    """Find what is wrong with a text."""
    if isinstance(text, ReadConversation):
        return _content_fault(text.text, max_characters) if text.text else None
    if isinstance(text, str) and RESERVED.search(text):  # one inside may come to front
        return (
            "text must not hold U+FDD0 to U+FDEF, which are no characters.",
            "Check encoding, or remove them.",
        )
    if isinstance(text, str):
        return _content_fault(text, max_characters)
    kind = type(text).__name__
    return _null_fault("text", text, "Remove the row or fill it.") or (
        f"text must be a string, got {kind}.",
        "Name a column of text, or columns of text and numbers in a text_template.",
    )


def _content_fault(text: str, max_characters: int | None) -> _Fault | None:
    """Find what is wrong with a text that is a string."""
    if not contents_only(text).strip():
        got = "white space only" if text else "nothing"
        return f"text must not be empty, got {got}.", "Remove the row or fill it."
    if not _is_encodable(text):
        return "text must be Unicode, got a lone surrogate.", "Write the file again."
    if "\0" in text:
        return "text must not hold NUL, got one.", "Check encoding."
    if max_characters is not None and len(text) > max_characters:
        return (
            f"text must have at most max_characters={max_characters}, got more.",
            "Split the text, or raise max_characters.",
        )
    return None


def _name_fault(field: str, value: object) -> _Fault | None:
    """Find what is wrong with an id or a unit."""
    if value is MISSING:
        return None
    repair = f"Give every row its {field}, or choose another {field}_column."
    if isinstance(value, bool) or not isinstance(value, str | int):
        kind = type(value).__name__
        is_float = isinstance(value, float)  # of pandas, where a number is missing
        return _null_fault(field, value, repair) or (
            f"{field} must be a string or whole number, got {kind}.",
            f"Write {field}s as whole numbers or strings." if is_float else repair,
        )
    got = _name_defect(str(value))
    if got is None:
        return None
    return (
        f"{field} must be 1 to {_MAX_ID_CHARACTERS} Unicode characters, got {got}.",
        repair,
    )


def _name_defect(value: str) -> str | None:
    """Say why a string is no id."""
    if not value.strip():
        return "nothing"
    if len(value) > _MAX_ID_CHARACTERS:
        return "more"
    return None if _is_encodable(value) else "a lone surrogate"


def _split_fault(value: object) -> _Fault | None:
    """Find what is wrong with a split."""
    if value is None or (isinstance(value, str) and value in SPLIT_NAMES):
        return None
    return (
        "split must be train, validation or test, got another value.",
        "Rename the splits, or choose another split_column.",
    )


def _label_fault(value: object) -> _Fault | None:
    """Find what is wrong with a label."""
    if value is MISSING:
        return None
    if isinstance(value, str) and value.strip() and _is_encodable(value):
        return None
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        if -(1 << 63) <= value < 1 << 63:
            return None
        return (
            "label must be a whole number of 64 bits or a string, got one beyond.",
            "Write labels that large as strings.",
        )
    return (
        "label must be a whole number or a string, got null, NaN or another type.",
        "Remove rows without a label, or choose another label_column.",
    )


def _is_blank(value: object) -> bool:
    """Tell a field that holds nothing."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or (isinstance(value, str) and not value.strip())


def _known_fault(value: object) -> _Fault | None:
    """Find what is wrong with a value that is personal data."""
    if _is_blank(value):
        return None
    repair = "Correct the column, or take it out of known_columns."
    if isinstance(value, bool) or not isinstance(value, str | int):
        kind = type(value).__name__
        return f"a known value must be a string or whole number, got {kind}.", repair
    if len(str(value)) > MAX_CHARACTERS or not _is_encodable(str(value)):
        message = f"a known value must be at most {MAX_CHARACTERS} Unicode characters"
        return f"{message}, got something else.", repair
    return None


def _check_ids(table: RecordTable, *, log: ProblemLog) -> None:
    """Report ids that an earlier record has, whose records are passed over then."""
    engine = table.engine
    repeated = (
        "SELECT id, min(pos) AS first FROM records GROUP BY id HAVING count(*) > 1"
    )
    if not engine.execute(f"{repeated} LIMIT 1").fetchall():
        return
    engine.execute(
        f"CREATE TEMP TABLE later AS SELECT pos FROM records JOIN ({repeated}) "  # noqa: S608
        "USING (id) WHERE pos <> first"
    )
    rows, number = table.locations(
        "pos IN (SELECT pos FROM later)", limit=MAX_ROWS_NAMED
    )
    first = count(engine, "SELECT min(pos) FROM later")
    log.add_rows(rows, *_DUPLICATE_ID, count=number, place=(first + 1, sys.maxsize))
    engine.execute(
        "UPDATE records SET is_sound = false WHERE pos IN (SELECT pos FROM later)"
    )


def _check_values(
    table: RecordTable, *, max_mojibake_share: float, log: ProblemLog
) -> None:
    """Report a corpus with too many broken characters, and labels of two types."""
    ((total, broken, *kinds),) = table.engine.execute(
        "SELECT count(*), count(*) FILTER (is_broken), min(label), max(label) "
        "FROM records WHERE is_sound"
    ).fetchall()
    if total and broken / total > max_mojibake_share:
        rows, _ = table.locations("is_sound AND is_broken", limit=MAX_ROWS_NAMED)
        log.add(
            f"text ({'; '.join(rows)})",
            "must hold broken characters (mojibake) in at most "
            f"{max_mojibake_share:.2%} of records, got {broken} of {total}.",
            "Set encoding to what the file is, or repair it.",
        )
    if kinds[0] != kinds[1]:
        log.add(
            "label_column",
            "must hold whole numbers only or strings only, got both.",
            "Map labels to one type.",
        )
    table.label_kind = kinds[0] or NO_LABEL
