"""Check raw records one by one and name every fault by row."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Sequence

import datasets

from dptune.conversation import contents_only, is_conversation, without_training
from dptune.data.messages import ReadConversation
from dptune.data.records import MISSING, ProblemLog, RawRecord, Record
from dptune.data.validation import MOJIBAKE
from dptune.errors import DataError
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
_MAX_ID_CHARACTERS = 200
KNOWN_FEATURE = datasets.List(
    {"value": datasets.Value("string"), "entity_type": datasets.Value("string")}
)
_MOJIBAKE = re.compile(MOJIBAKE)
_WHOLE_NUMBER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_Fault = tuple[str, str]


def check_records(
    raw: Sequence[RawRecord],
    *,
    log: ProblemLog,
    privacy_unit: PrivacyUnit | None = None,
    max_characters: int | None = None,
    max_mojibake_share: float = 1.0,
    allow_content_hash_ids: bool = True,
) -> list[Record]:
    """Turn raw records into checked ones, leaving out and reporting faulty ones.

    Args:
        raw: records as read.
        log: where faults go.
        privacy_unit: decides what owns a record; None takes what the source names.
        max_characters: longest text, code points; None for no limit.
        max_mojibake_share: largest share of records with broken characters, in [0, 1].
        allow_content_hash_ids: whether a privacy unit may be known by its content only.
    """
    if privacy_unit is PrivacyUnit.USER and any(row.unit is MISSING for row in raw):
        log.add(
            "privacy_unit",
            "must be owned by a column of the source, got privacy_unit=user without "
            "unit_column.",
            "Set unit_column, or choose privacy_unit record or document.",
        )
    _check_content_units(raw, privacy_unit, allowed=allow_content_hash_ids, log=log)
    seen = Counter[str]()
    records = []
    for row in raw:
        record = _check_record(row, seen, privacy_unit, max_characters, log)
        if record is not None:
            records.append(record)
    _check_mojibake(records, max_share=max_mojibake_share, log=log)
    _check_labels(records, log=log)
    return records


def owner(row: RawRecord, privacy_unit: PrivacyUnit | None) -> object:
    """Name what owns a record; `MISSING` where that is the record itself."""
    if privacy_unit is PrivacyUnit.RECORD:
        return MISSING
    if row.unit is MISSING and row.document is not None:
        return row.document
    return row.unit


def _check_content_units(
    raw: Sequence[RawRecord],
    privacy_unit: PrivacyUnit | None,
    *,
    allowed: bool,
    log: ProblemLog,
) -> None:
    """Report privacy units whose only name is a hash of what they say."""
    if allowed or not any(
        row.id is MISSING and owner(row, privacy_unit) is MISSING for row in raw
    ):
        return
    log.add(
        "id_column",
        "must name stable ids, got none, so that privacy units would be known by "
        "hashes of their text and an edited text would buy a fresh budget.",
        "Set id_column (or unit_column), or set allow_content_hash_ids: true.",
    )


def _check_record(
    row: RawRecord,
    seen: Counter[str],
    privacy_unit: PrivacyUnit | None,
    max_characters: int | None,
    log: ProblemLog,
) -> Record | None:
    """Check one record; None if it cannot be used."""
    unit = owner(row, privacy_unit)
    faults = [
        _text_fault(row.text, max_characters),
        _name_fault("id", row.id),
        _name_fault("unit", unit),
        _split_fault(row.split),
        _label_fault(row.label),
        *(_known_fault(value) for _, value in row.known),
    ]
    text = row.text
    if isinstance(text, ReadConversation):
        faults += text.faults
        text = text.text
    identifier = _content_id(text, seen) if row.id is MISSING else str(row.id)
    if row.id is not MISSING and not faults[1]:
        seen[identifier] += 1
        faults.append(_DUPLICATE_ID if seen[identifier] > 1 else None)
    found = [fault for fault in faults if fault is not None]
    for message, next_step in found:
        log.add_row(row.location(), message, next_step)
    if found or not isinstance(text, str):
        return None
    owner_id = identifier if unit is MISSING else str(unit)
    is_content = unit is MISSING and row.id is MISSING
    label = int(row.label) if isinstance(row.label, int | float) else str(row.label)
    return Record(
        id=identifier,
        text=text,
        unit_id=owner_id,
        draw_key=_content_hash(text) if is_content else owner_id,
        split=None if row.split is None else SPLIT_NAMES[str(row.split)],
        label=None if row.label is MISSING else label,
        location=row.location(),
        known=tuple((kind, str(v)) for kind, v in row.known if not _is_blank(v)),
    )


_DUPLICATE_ID = (
    "id must be unique, got an id that an earlier row has.",
    "Remove copies, or set ids_are_per_split: true if every split counts anew.",
)


def _content_id(text: object, seen: Counter[str]) -> str:
    """Name a record by its text; later copies get a number."""
    identifier = _content_hash(text)
    seen[identifier] += 1
    count = seen[identifier]
    return identifier if count == 1 else f"{identifier}-{count}"


def _content_hash(text: object) -> str:
    """Hash a text; equal texts share it."""
    data = without_training(str(text)).encode("utf-8", "surrogatepass")
    return f"text-{hashlib.sha256(data).hexdigest()[:32]}"


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
    if isinstance(text, str) and is_conversation(text):
        return (
            "text must not begin with U+FDD0 or U+FDD1, which are no characters.",
            "Check encoding, or remove them.",
        )
    if isinstance(text, str):
        return _content_fault(text, max_characters)
    kind = type(text).__name__
    return _null_fault("text", text, "Remove the row or fill it.") or (
        f"text must be a string, got {kind}.",
        "Choose another text_column, or write a text_template.",
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
        return _null_fault(field, value, repair) or (
            f"{field} must be a string or whole number, got {kind}.",
            repair,
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
    if value is MISSING or isinstance(value, bool | int):
        return None
    if isinstance(value, str) and value.strip() and _is_encodable(value):
        return None
    if isinstance(value, float) and value.is_integer():
        return None
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


def _check_mojibake(
    records: Sequence[Record], *, max_share: float, log: ProblemLog
) -> None:
    """Report a corpus with too many broken characters."""
    broken = [row.location for row in records if _MOJIBAKE.search(row.text)]
    if records and len(broken) / len(records) > max_share:
        log.add(
            f"text ({'; '.join(broken[:5])})",
            f"must hold broken characters (mojibake) in at most {max_share:.2%} of "
            f"records, got {len(broken)} of {len(records)}.",
            "Set encoding to what the file is, or repair it.",
        )


def _check_labels(records: Sequence[Record], *, log: ProblemLog) -> None:
    """Report labels of two types."""
    if len({type(row.label) for row in records}) > 1:
        log.add(
            "label_column",
            "must hold whole numbers only or strings only, got both.",
            "Map labels to one type.",
        )


def to_dataset(records: Sequence[Record], *, with_split: bool) -> datasets.Dataset:
    """Write checked records as an Arrow data set.

    Raises:
        DataError: a value cannot be stored in Arrow.
    """
    columns: dict[str, list[object]] = {
        "id": [row.id for row in records],
        "text": [row.text for row in records],
        "unit_id": [row.unit_id for row in records],
    }
    features = dict.fromkeys(columns, datasets.Value("string"))
    if with_split:
        columns["split"] = [row.split for row in records]
        features["split"] = datasets.Value("string")
    if any(row.label is not None for row in records):
        labels: list[object] = [row.label for row in records]
        # CSV files write integers as text. Only where writing the integer gives the
        # label again: else one record's label could decide what class another's is.
        if all(isinstance(x, str) and _WHOLE_NUMBER.fullmatch(x) for x in labels):
            labels = [int(str(label)) for label in labels]
        columns["label"] = labels
        is_text = any(isinstance(label, str) for label in labels)
        features["label"] = datasets.Value("string" if is_text else "int64")
    if any(row.known for row in records):
        columns["known_values"] = [
            [{"value": value, "entity_type": kind} for kind, value in row.known]
            for row in records
        ]
        features["known_values"] = KNOWN_FEATURE
    try:
        return datasets.Dataset.from_dict(columns, datasets.Features(features))
    except (OverflowError, ValueError, TypeError):
        pass  # Arrow quotes the value in its message
    raise DataError("values must fit Arrow types, got one that does not. Check labels.")
