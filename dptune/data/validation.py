"""Great Expectations over a corpus, with results that hold booleans only.

Patterns check a redacted corpus from outside: of the detectors whose
work they judge they share nothing but the arithmetic of check digits.

Great Expectations is imported when a corpus is validated, since that takes seconds.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import datasets
import pandas as pd
import pyarrow as pa

from dptune.data.engine import Engine, given, own_tables
from dptune.data.source import SPLITS
from dptune.errors import ConfigError
from dptune.identifiers import IBAN_LENGTHS, has_iban_digits, is_luhn_valid
from dptune.parts import batches
from dptune.results import Expectation, ValidationReport

# U+FFFD, control characters, and UTF-8 read as Latin-1 or Windows-1252.
MOJIBAKE = (
    "\ufffd|[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f]"
    "|[\u00c2\u00c3][\u0080-\u00bf\u0152-\u0192\u2013-\u203a\u20ac\u2122]"
    "|\u00e2[\u0080\u20ac][\u0080-\u00bf\u0152-\u0192\u02c6-\u02dc\u2013-\u203a\u2122]"
)
# RFC 5321 mailbox, without quoted local parts.
EMAIL = r"[\w.%+\-]@(?:[A-Za-z0-9\-]+\.)+[A-Za-z]{2,}"
# Social Security Administration: no area 000, 666, 9xx, no group 00, no serial 0000.
US_SSN = (
    "(?<![0-9])(?<![0-9]-)(?!000|666|9)[0-9]{3}[- ](?!00)[0-9]{2}[- ]"
    "(?!0000)[0-9]{4}(?!-?[0-9])"
)

_DIGIT_GROUPS = re.compile(r"[0-9]+(?:[ -][0-9]+)*")
_CARD_PREFIX = re.compile(r"3[0-9]|4|5[0-9]|6|2[2-7]")
_IBAN_START = re.compile(r"(?<![A-Z0-9])[A-Z]{2}[0-9]{2}(?=[ -]?[A-Z0-9])")


def has_card_number(text: str) -> bool:
    """Tell whether a text holds a payment card number with a valid check digit.

    Every run of whole digit groups of 13 to 19 digits in all is tried, so that a number
    beside a card does not hide it.

    >>> has_card_number("card 4111 1111 1111 1111 ok"), has_card_number("4111 1112")
    (True, False)

    References:
        ISO/IEC 7812-1:2017, annex B (Luhn).
    """
    return any(
        _CARD_PREFIX.match(digits) is not None and is_luhn_valid(digits)
        for match in _DIGIT_GROUPS.finditer(text)
        for digits in _joined_groups(re.split("[ -]", match.group()))
    )


def _joined_groups(groups: list[str]) -> list[str]:
    """Join neighboring groups to runs of 13 to 19 digits."""
    runs = []
    for first in range(len(groups)):
        digits = ""
        for group in groups[first : first + 19]:
            digits += group
            if len(digits) > 19:
                break
            if len(digits) >= 13:
                runs.append(digits)
    return runs


def has_iban(text: str) -> bool:
    """Tell whether a text holds an IBAN of a known country with valid check digits.

    >>> has_iban("to DE89 3704 0044 0532 0130 00 please"), has_iban("DE89 3704 0044")
    (True, False)

    References:
        ISO 13616-1:2020; ISO/IEC 7064, MOD 97-10.
    """
    upper = text.upper()
    return any(_is_iban(upper, match.start()) for match in _IBAN_START.finditer(upper))


def _is_iban(text: str, start: int) -> bool:
    """Check the characters from `start`, past single spaces and hyphens."""
    length = IBAN_LENGTHS.get(text[start : start + 2], 0)
    compact = re.sub("[ -]", "", text[start : start + 2 * length])[:length]
    if not length or not re.fullmatch(f"[A-Z0-9]{{{length}}}", compact):
        return False
    return has_iban_digits(compact)


REDACTED_TYPES = ("EMAIL", "US_SSN", "CREDIT_CARD", "IBAN")


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """One expectation by the name of its class, our name for it, and what it asks."""

    name: str
    expectation: str
    detail: str
    arguments: dict[str, object]


def validate_corpus(
    records: datasets.Dataset | pa.RecordBatchReader,
    *,
    view: str,
    min_records: int = 1,
    max_characters: int = 100_000,
    max_duplicate_share: float = 0.0,
    max_mojibake_share: float = 0.01,
    allow_text_leak: bool = False,
    engine: Engine | None = None,
) -> ValidationReport:
    """Check the shape and soundness of a corpus.

    DuckDB counts, batch by batch, what is wrong with how many rows; Great Expectations
    is asked about one row of these counts, so that no corpus is too large for it.

    Privacy: the report holds names, verdicts and bounds, no value of the corpus.

    Args:
        records: columns `id, text, unit_id, split`; a missing one is a failed
            expectation, not an error.
        view: what the corpus is, such as `ingest` or `with_canaries`.
        min_records: fewest records.
        max_characters: longest text, code points.
        max_duplicate_share: largest share of repeated texts, in [0, 1]; raise it for a
            corpus with canaries that are inserted several times.
        max_mojibake_share: largest share of records with broken characters, in [0, 1].
        allow_text_leak: do not ask that equal texts stay in one split.
        engine: counts; None lets one in memory do it.

    Returns:
        One verdict for each expectation, and whether all hold.
    """
    rules = _corpus_rules(
        min_records=min_records,
        max_characters=max_characters,
        max_duplicate_share=max_duplicate_share,
        max_mojibake_share=max_mojibake_share,
    )
    if not allow_text_leak:
        rules = (*rules, _none("no_text_leak", "text_leaks", "every text in one split"))
    with own_tables(engine) as tables:
        counted = _counted(records, tables, max_characters=max_characters)
    return _validate(counted, rules, view=view)


def count_left(dataset: datasets.Dataset) -> Counter[str]:
    """Count records in which personal data with a fixed form are left.

    Those of several parts of a corpus may be added.

    Args:
        dataset: with the redacted `text`.
    """
    found: Counter[str] = Counter()
    if "text" in dataset.column_names:
        found.update(dict.fromkeys(("text", *_LEFT), 0))
        for batch in batches(dataset, ["text"]):
            texts = batch.column("text").drop_null().to_pylist()
            found["text"] += batch.num_rows - len(texts)
            for name, is_left in _LEFT.items():
                found[name] += sum(1 for text in texts if is_left(text))
    return found


def validate_redacted(
    found: Mapping[str, int],
    *,
    view: str = "redacted",
    entity_types: Sequence[str] = REDACTED_TYPES,
) -> ValidationReport:
    """Check that no personal data with a fixed form is left after redaction.

    E-mail addresses and social security numbers are found by pattern, payment cards and
    IBANs by pattern and check digits.

    Privacy: the report holds names and verdicts, no value of the corpus.

    Args:
        found: what `count_left` counted.
        view: name of the report.
        entity_types: what must be gone, out of `REDACTED_TYPES`; leave out a type that
            a pseudonym operator writes on purpose.

    Raises:
        ConfigError: an entity type has no check.
    """
    unknown = sorted(set(entity_types) - set(REDACTED_TYPES))
    if unknown:
        raise ConfigError(
            f"entity_types must be out of {REDACTED_TYPES}, got {unknown}. "
            "Other types have no fixed form that could be checked."
        )
    rules = (
        _not_null("text"),
        *(rule for kind, rule in _redacted_rules().items() if kind in entity_types),
    )
    return _validate(pd.DataFrame([dict(found)]), rules, view=view)


_LEFT: Final[dict[str, Callable[[str], object]]] = {
    "emails": re.compile(EMAIL).search,
    "us_ssns": re.compile(US_SSN).search,
    "card_numbers": has_card_number,
    "ibans": has_iban,
}
"""What tells that something is left after redaction."""


def _counted(
    records: datasets.Dataset | pa.RecordBatchReader,
    engine: Engine,
    *,
    max_characters: int,
) -> pd.DataFrame:
    """Count what is wrong with a corpus, in one row.

    A column that the corpus has, has its name and the number of its nulls.
    """
    if isinstance(records, datasets.Dataset):
        table = records.with_format("arrow")[:]
        records = pa.RecordBatchReader.from_batches(table.schema, table.to_batches())
    present = [n for n in _COLUMNS if n in records.schema.names]
    noted = [f"{name}::VARCHAR AS {name}" for name in present if name != "text"]
    noted += list(_OF_TEXTS.values()) if "text" in present else []
    noted.append("true AS is_row")
    with given(engine, records):
        engine.execute(
            f"CREATE TEMP TABLE rows AS SELECT {', '.join(noted)} FROM given"  # noqa: S608 - ours
        )
    asked = {"num_rows": "count(*)"}
    asked |= {name: f"count(*) - count({name})" for name in present if name != "text"}
    if "id" in present:
        asked["repeated_ids"] = _groups("id", "id IS NOT NULL", "count(*) > 1")
    if "split" in present:
        known = ", ".join(f"'{split}'" for split in SPLITS)
        asked["unknown_splits"] = f"count(*) FILTER (split NOT IN ({known}))"
    if "text" in present:
        asked |= _ASKED_OF_TEXTS
        bounds = f"BETWEEN 1 AND {max_characters}"
        asked["out_of_bounds"] = f"count(*) FILTER (size NOT {bounds})"
    for name, flag in (("unit_id", "unit_leaks"), ("text", "text_leaks")):
        if {name, "split"} <= set(present):
            group = "digest" if name == "text" else name
            several = "min(coalesce(split, '')) <> max(coalesce(split, ''))"
            asked[flag] = _groups(group, "true", several)
    values = ", ".join(f"{value} AS {name}" for name, value in asked.items())
    return engine.execute(f"SELECT {values} FROM rows").df()  # noqa: S608 - ours


_COLUMNS: Final = ("id", "text", "unit_id", "split")


def _groups(column: str, where: str, having: str) -> str:
    """Count the values of a column that have something in common in their rows."""
    return (
        f"(SELECT count(*) FROM (SELECT {column} FROM rows WHERE {where} "  # noqa: S608
        f"GROUP BY {column} HAVING {having}))"
    )


_BLANKS: Final = "".join(
    f"\\x{{{code:X}}}" for code in range(0x3001) if re.match(r"\s", chr(code))
)
"""What Python takes for white space, which is more than RE2 does."""
_CONVERSATION: Final = r"^[\x{FDD0}\x{FDD1}][a-z]+\x{FDD2}"
_OF_TEXTS: Final = {
    "null": "text IS NULL AS no_text",
    "size": "length(text) AS size",
    "blank": f"NOT regexp_matches(text, '[^{_BLANKS}]') AS is_blank",
    "broken": f"regexp_matches(text, '{MOJIBAKE}') AS is_broken",
    "digest": (
        f"md5_number(CASE WHEN regexp_matches(text, '{_CONVERSATION}') "
        "THEN replace(text, chr(64977), chr(64976)) ELSE text END) AS digest"
    ),
}
_ASKED_OF_TEXTS: Final = {
    "text": "count(*) FILTER (no_text)",
    "blank_texts": "count(*) FILTER (is_blank)",
    "sound_share": "1 - count(*) FILTER (is_broken) / count(size)",
    "distinct_share": f"{_groups('digest', 'true', 'true')} / count(*)",
}


def _not_null(column: str) -> _Rule:
    """Expect a column without nulls."""
    return _none(f"{column}_not_null", column, "no null")


def _none(name: str, column: str, detail: str) -> _Rule:
    """Expect a count of nothing."""
    return _between(name, column, detail, 0, 0)


def _between(
    name: str, column: str, detail: str, least: float | None, most: float | None
) -> _Rule:
    """Expect a figure within bounds."""
    return _Rule(
        name=name,
        expectation="ExpectColumnValuesToBeBetween",
        detail=detail,
        arguments={"column": column, "min_value": least, "max_value": most},
    )


def _corpus_rules(
    *,
    min_records: int,
    max_characters: int,
    max_duplicate_share: float,
    max_mojibake_share: float,
) -> tuple[_Rule, ...]:
    """Write down what a corpus must satisfy."""
    columns = ("id", "text", "unit_id", "split")
    return (
        _Rule(
            name="columns",
            expectation="ExpectTableColumnsToMatchSet",
            detail=f"at least {', '.join(columns)}",
            arguments={"column_set": list(columns), "exact_match": False},
        ),
        _between("row_count", "num_rows", f"at least {min_records}", min_records, None),
        *(_not_null(column) for column in columns),
        _none("id_unique", "repeated_ids", "no repeated id"),
        _none("text_length", "out_of_bounds", f"1 to {max_characters} characters"),
        _none("text_not_blank", "blank_texts", "more than white space"),
        _none("split_known", "unknown_splits", " or ".join(SPLITS)),
        _between(
            "duplicate_share",
            "distinct_share",
            f"at most {max_duplicate_share:.2%} repeated texts",
            1 - max_duplicate_share,
            None,
        ),
        _none("no_unit_leak", "unit_leaks", "every unit in one split"),
        _between(
            "no_mojibake",
            "sound_share",
            f"broken characters in at most {max_mojibake_share:.2%} of texts",
            1 - max_mojibake_share,
            None,
        ),
    )


def _redacted_rules() -> dict[str, _Rule]:
    """Write down what must be gone, by entity type."""
    return {
        "EMAIL": _none("no_email", "emails", "no e-mail address"),
        "US_SSN": _none("no_us_ssn", "us_ssns", "no social security number"),
        "CREDIT_CARD": _none(
            "no_credit_card", "card_numbers", "no card number with valid check digit"
        ),
        "IBAN": _none("no_iban", "ibans", "no IBAN with valid check digits"),
    }


def _validate(
    frame: pd.DataFrame, rules: Sequence[_Rule], *, view: str
) -> ValidationReport:
    """Run rules in an ephemeral context that prints, stores and sends nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside Great Expectations
        verdicts = _run(frame, rules)
    expectations = tuple(
        Expectation(
            name=rule.name, success=verdicts.get(rule.name, False), detail=rule.detail
        )
        for rule in rules
    )
    return ValidationReport(
        view=view,
        success=all(item.success for item in expectations),
        expectations=expectations,
    )


def _run(frame: pd.DataFrame, rules: Sequence[_Rule]) -> dict[str, bool]:
    """Ask Great Expectations; only booleans leave this function."""
    import great_expectations as gx  # noqa: PLC0415 - takes seconds
    import great_expectations.expectations as gxe  # noqa: PLC0415
    from great_expectations.data_context.types.base import (  # noqa: PLC0415
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    context = gx.get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        ),
    )
    batch = (
        context.data_sources.add_pandas("corpus")
        .add_dataframe_asset("corpus")
        .add_batch_definition_whole_dataframe("all")
        .get_batch(batch_parameters={"dataframe": frame})
    )
    suite = gx.ExpectationSuite(
        name="corpus",
        expectations=[
            getattr(gxe, rule.expectation)(**rule.arguments, meta={"name": rule.name})
            for rule in rules
        ],
    )
    result = batch.validate(suite, result_format={"result_format": "BOOLEAN_ONLY"})
    verdicts = {}
    for item in result.results:
        meta = item.expectation_config.meta if item.expectation_config else None
        verdicts[str((meta or {}).get("name"))] = bool(item.success)
    return verdicts
