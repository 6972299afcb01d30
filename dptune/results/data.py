"""What is known of a corpus: what was read, marked and replaced, in counts."""

from typing import Literal

from pydantic import Field

from dptune.results.base import Interval, Report

MissingRateOrigin = Literal["", "gold", "review", "declared"]


class Expectation(Report):
    """Verdict of one data expectation: booleans and counts, never a value."""

    name: str
    success: bool
    detail: str = ""


class ValidationReport(Report):
    """What Great Expectations said of one corpus view."""

    view: str
    success: bool
    expectations: tuple[Expectation, ...]


class CorpusReport(Report):
    """Counts of one ingested corpus.

    `num_duplicates_across_units` counts dropped records whose kept copy belongs to
    another privacy unit: a dependence between units that a claim has to name. `sampled`
    is another: whether a limit on the number of records may leave some out.

    Args:
        deduplicated: whether original text decided which records stay, within units
            or across them.
        duplicates_are_free: whether dropping them keeps every claim as it is; see
            `dptune.data.deduplication`. Reports of before do not know.
        num_other_languages: records that were dropped for the language they are in.
        assumes: names of what else makes one unit's data depend on another's.
        marks_assume: the same of what was marked, for stages that see marks.
        unread: of conversations, messages with a key that is not read, by key, and
            sources with a column of tools or documents.
    """

    source: str
    fingerprint: str
    num_read: int
    num_records: dict[str, int]
    num_units: dict[str, int]
    num_exact_duplicates: int
    num_near_duplicates: int
    num_other_languages: int = 0
    num_duplicates_across_units: int = 0
    num_characters: int
    privacy_unit: str
    ids_are_content_hashes: bool = False
    units_are_content_hashes: bool = False
    deduplicated: bool = True
    duplicates_are_free: bool = False
    sampled: bool = False
    assumes: tuple[str, ...] = ()
    marks_assume: tuple[str, ...] = ()
    redaction: str = ""
    unread: dict[str, int] = Field(default_factory=dict)
    validation: ValidationReport


class LanguageShare(Report):
    """What the detector marked, and missed, in the records of one language.

    Records that are too short to tell count with the language of most.

    Args:
        language: ISO 639-1.
        missing_rate: in these records, if it was measured.
        missing_rate_texts: records or sentences that it was measured on.
    """

    language: str
    num_records: int
    masked_character_share: float
    missing_rate: float | None = None
    missing_rate_interval: Interval | None = None
    missing_rate_texts: int = 0


class DetectionReport(Report):
    """What the detector marked in one corpus.

    `num_canaries_detected` counts planted canaries all of whose copies have their whole
    secret marked, once their setting was applied; None where nobody looked.

    Args:
        missing_rate: missed sensitive words / all words, if it was measured.
        missing_rate_source: how it was measured, as a card quotes it.
        missing_rate_origin: what it was measured by, or that somebody declared it;
            empty in reports from before, and without a rate.
        missing_rate_texts: records or sentences that it was measured on.
        missing_rate_refusal: why an imported rate does not hold here.
        review: id of the reviewed sample, if the rate comes from one.
        languages: by language, the one of most records first; empty in reports from
            before.
        role_tiers: of conversations, turns of which less counts, by role.
        taken_back: what stays unmarked although a recognizer finds it: types that are
            off or need more confidence, and how many phrases are allowed.
    """

    fingerprint: str
    tier: str
    recognizers: tuple[str, ...]
    num_records: int
    num_records_with_spans: int
    num_spans: dict[str, int]
    masked_character_share: float
    missing_rate: float | None = None
    missing_rate_interval: Interval | None = None
    num_canaries_detected: int | None = None
    missing_rate_source: str = ""
    missing_rate_origin: MissingRateOrigin = ""
    missing_rate_texts: int = 0
    missing_rate_refusal: str = ""
    review: str = ""
    languages: tuple[LanguageShare, ...] = ()
    role_tiers: dict[str, str] = Field(default_factory=dict)
    taken_back: tuple[str, ...] = ()


class RedactionReport(Report):
    """What redaction left behind.

    Args:
        residual_values: by entity type, values found in one place of a record that
            stand elsewhere in it still.
        residual_parts: places where parts of names that were found stand.
        residual_spellings: places where such values stand, otherwise written.
        residual_halves: values that a mark covers in part.
        num_emptied_turns: of conversations, turns that nothing was left of to learn.
    """

    operator: str
    masked_character_share: float
    validation: ValidationReport
    residual_values: dict[str, int] = Field(default_factory=dict)
    residual_parts: dict[str, int] = Field(default_factory=dict)
    residual_spellings: dict[str, int] = Field(default_factory=dict)
    residual_halves: dict[str, int] = Field(default_factory=dict)
    num_emptied_turns: int = 0
