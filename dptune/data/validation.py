"""Great Expectations over a corpus, with results that hold booleans only.

Patterns check a redacted corpus from outside: of the detectors whose
work they judge they share nothing but the arithmetic of check digits.

Great Expectations is imported when a corpus is validated, since that takes seconds.
"""

import hashlib
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import datasets
import pandas as pd

from dptune.conversation import without_training
from dptune.data.source import SPLITS
from dptune.errors import ConfigError
from dptune.identifiers import IBAN_LENGTHS, has_iban_digits, is_luhn_valid
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
    dataset: datasets.Dataset,
    *,
    view: str,
    min_records: int = 1,
    max_characters: int = 100_000,
    max_duplicate_share: float = 0.0,
    max_mojibake_share: float = 0.01,
    allow_text_leak: bool = False,
) -> ValidationReport:
    """Check the shape and soundness of a corpus.

    Privacy: the report holds names, verdicts and bounds, no value of the corpus.

    Args:
        dataset: columns `id, text, unit_id, split`; a missing one is a failed
            expectation, not an error.
        view: what the corpus is, such as `ingest` or `with_canaries`.
        min_records: fewest records.
        max_characters: longest text, code points.
        max_duplicate_share: largest share of repeated texts, in [0, 1]; raise it for a
            corpus with canaries that are inserted several times.
        max_mojibake_share: largest share of records with broken characters, in [0, 1].
        allow_text_leak: do not ask that equal texts stay in one split.

    Returns:
        One verdict for each expectation, and whether all hold.
    """
    frame = _corpus_frame(dataset)
    rules = _corpus_rules(
        min_records=min_records,
        max_characters=max_characters,
        max_duplicate_share=max_duplicate_share,
        max_mojibake_share=max_mojibake_share,
    )
    if not allow_text_leak:
        rules = (
            *rules,
            _never("no_text_leak", "text_leaks", "every text in one split"),
        )
    return _validate(frame, rules, view=view)


def validate_redacted(
    dataset: datasets.Dataset,
    *,
    view: str = "redacted",
    entity_types: Sequence[str] = REDACTED_TYPES,
) -> ValidationReport:
    """Check that no personal data with a fixed form is left after redaction.

    E-mail addresses and social security numbers are found by pattern, payment cards and
    IBANs by pattern and check digits.

    Privacy: the report holds names and verdicts, no value of the corpus.

    Args:
        dataset: with the redacted `text`.
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
    texts = list(dataset["text"]) if "text" in dataset.column_names else []
    frame = pd.DataFrame({"text": pd.Series(texts, dtype=object)})
    if "text" in dataset.column_names:
        texts = [str(text) for text in frame["text"]]
        frame["has_card_number"] = [has_card_number(text) for text in texts]
        frame["has_iban"] = [has_iban(text) for text in texts]
    else:
        frame = frame.drop(columns="text")
    rules = (
        _not_null("text"),
        *(rule for kind, rule in _redacted_rules().items() if kind in entity_types),
    )
    return _validate(frame, rules, view=view)


def _corpus_frame(dataset: datasets.Dataset) -> pd.DataFrame:
    """Take the columns of a corpus and add what expectations cannot compute."""
    present = [
        n for n in ("id", "text", "unit_id", "split") if n in dataset.column_names
    ]
    frame = pd.DataFrame({name: list(dataset[name]) for name in present}, dtype=object)
    if "text" in present:
        frame["text_sha256"] = [
            hashlib.sha256(
                without_training(str(text)).encode("utf-8", "replace")
            ).hexdigest()
            for text in frame["text"]
        ]
    for name, flag in (("unit_id", "unit_leaks"), ("text_sha256", "text_leaks")):
        if {name, "split"} <= set(frame.columns):
            frame[flag] = _in_several(frame[name], frame["split"])
    return frame


def _in_several(owners: Iterable[object], splits: Iterable[object]) -> list[bool]:
    """Flag rows whose owner is in more than one split."""
    pairs = list(zip(owners, splits, strict=True))
    found = defaultdict(set)
    for owner, split in pairs:
        found[owner].add(split)
    return [len(found[owner]) > 1 for owner, _ in pairs]


def _not_null(column: str) -> _Rule:
    """Expect a column without nulls."""
    return _Rule(
        name=f"{column}_not_null",
        expectation="ExpectColumnValuesToNotBeNull",
        detail="no null",
        arguments={"column": column},
    )


def _never(name: str, column: str, detail: str) -> _Rule:
    """Expect a flag that is false in every row."""
    return _Rule(
        name=name,
        expectation="ExpectColumnValuesToBeInSet",
        detail=detail,
        arguments={"column": column, "value_set": [False]},
    )


def _no_match(name: str, pattern: str, detail: str, *, mostly: float = 1.0) -> _Rule:
    """Expect texts without a pattern."""
    return _Rule(
        name=name,
        expectation="ExpectColumnValuesToNotMatchRegex",
        detail=detail,
        arguments={"column": "text", "regex": pattern, "mostly": mostly},
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
        _Rule(
            name="row_count",
            expectation="ExpectTableRowCountToBeBetween",
            detail=f"at least {min_records}",
            arguments={"min_value": min_records},
        ),
        *(_not_null(column) for column in columns),
        _Rule(
            name="id_unique",
            expectation="ExpectColumnValuesToBeUnique",
            detail="no repeated id",
            arguments={"column": "id"},
        ),
        _Rule(
            name="text_length",
            expectation="ExpectColumnValueLengthsToBeBetween",
            detail=f"1 to {max_characters} characters",
            arguments={"column": "text", "min_value": 1, "max_value": max_characters},
        ),
        _Rule(
            name="text_not_blank",
            expectation="ExpectColumnValuesToMatchRegex",
            detail="more than white space",
            arguments={"column": "text", "regex": r"\s*\S"},
        ),
        _Rule(
            name="split_known",
            expectation="ExpectColumnValuesToBeInSet",
            detail=" or ".join(SPLITS),
            arguments={"column": "split", "value_set": list(SPLITS)},
        ),
        _Rule(
            name="duplicate_share",
            expectation="ExpectColumnProportionOfUniqueValuesToBeBetween",
            detail=f"at most {max_duplicate_share:.2%} repeated texts",
            arguments={"column": "text_sha256", "min_value": 1 - max_duplicate_share},
        ),
        _never("no_unit_leak", "unit_leaks", "every unit in one split"),
        _no_match(
            "no_mojibake",
            MOJIBAKE,
            f"broken characters in at most {max_mojibake_share:.2%} of texts",
            mostly=1 - max_mojibake_share,
        ),
    )


def _redacted_rules() -> dict[str, _Rule]:
    """Write down what must be gone, by entity type."""
    return {
        "EMAIL": _no_match("no_email", EMAIL, "no e-mail address"),
        "US_SSN": _no_match("no_us_ssn", US_SSN, "no social security number"),
        "CREDIT_CARD": _never(
            "no_credit_card", "has_card_number", "no card number with valid check digit"
        ),
        "IBAN": _never("no_iban", "has_iban", "no IBAN with valid check digits"),
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
