"""Blocks for what was read, marked and replaced: corpus, detection, redaction."""

from dptune.detection.scoring import SensitivityTable
from dptune.reports.blocks import (
    Block,
    Chip,
    Notice,
    Page,
    Section,
    Table,
    Tone,
    facts,
    table,
    verdict_chip,
    yes_no,
)
from dptune.reports.formatting import (
    count,
    interval,
    number,
    share,
    short_digest,
    words,
)
from dptune.results import (
    CorpusReport,
    DetectionReport,
    RedactionReport,
    ValidationReport,
)


def corpus_page(report: CorpusReport) -> Page:
    """Describe one ingested corpus in counts."""
    splits = list(report.num_records)
    sections = [
        Section(
            title="What was read",
            blocks=(
                facts(
                    ("Source", report.source),
                    ("Fingerprint", short_digest(report.fingerprint)),
                    ("Privacy unit", words(report.privacy_unit)),
                    ("Records read", count(report.num_read)),
                    ("Exact duplicates removed", count(report.num_exact_duplicates)),
                    ("Near duplicates removed", count(report.num_near_duplicates)),
                    ("Characters", count(report.num_characters)),
                ),
                *_weak_ids(report),
            ),
        ),
        Section(
            title="Splits",
            blocks=(
                table(
                    ("Split", "Records", "Privacy units"),
                    (
                        (
                            split,
                            count(report.num_records[split]),
                            count(report.num_units.get(split, 0)),
                        )
                        for split in splits
                    ),
                    numeric=(1, 2),
                ),
            ),
        ),
        validation_section(report.validation),
    ]
    return Page(
        kicker="Corpus",
        title=report.source,
        chip=_success_chip(report.validation),
        lede="Counts only. The text is a restricted artifact and is never shown.",
        sections=tuple(sections),
    )


def detection_page(report: DetectionReport) -> Page:
    """Describe what the detector marked."""
    flagged = report.num_records_with_spans / max(report.num_records, 1)
    total = sum(report.num_spans.values())
    return Page(
        kicker="Detection",
        title=f"Personal data, tier {words(report.tier)}",
        lede="Types and counts of what was marked; no span is shown. The counts are "
        "exact and private: keep this page inside the trust boundary.",
        sections=(
            Section(
                title="Coverage",
                blocks=(
                    facts(
                        ("Recognizers", ", ".join(report.recognizers)),
                        ("Records", count(report.num_records)),
                        (
                            "Records with a span",
                            count(report.num_records_with_spans),
                            share(flagged),
                        ),
                        ("Characters masked", share(report.masked_character_share)),
                        _missing_rate(report),
                        ("Corpus fingerprint", short_digest(report.fingerprint)),
                    ),
                    *_unknown_recall(report),
                ),
            ),
            Section(
                title="Spans by type",
                blocks=(
                    table(
                        ("Type", "Spans", "Share"),
                        (
                            (name, count(n), share(n / max(total, 1)))
                            for name, n in _most_first(report.num_spans)
                        ),
                        numeric=(1, 2),
                    ),
                ),
            ),
        ),
    )


def redaction_page(report: RedactionReport) -> Page:
    """Describe what redaction left behind."""
    return Page(
        kicker="Redaction",
        title=f"Operator {report.operator}",
        chip=_success_chip(report.validation),
        lede="Checks of the redacted text for patterns that must not survive.",
        sections=(
            Section(
                title="What was replaced",
                blocks=(
                    facts(
                        ("Operator", words(report.operator)),
                        ("Characters masked", share(report.masked_character_share)),
                    ),
                ),
            ),
            validation_section(report.validation),
        ),
    )


def sensitivity_page(report: SensitivityTable) -> Page:
    """Describe the sensitivity score of every entity type."""
    return Page(
        kicker="Sensitivity scores",
        title="How sensitive is each type of personal data?",
        lede="Score = 0.4 rarity + 0.3 linkable + 0.3 legally protected, in [0, 1].",
        sections=(
            Section(
                title="Types, most sensitive first",
                blocks=(
                    *_private_counts(report),
                    *_judge(report),
                    table(
                        (
                            "Type",
                            "Score",
                            "Group",
                            "Rarity",
                            "Linkable",
                            "Legally protected",
                            *(("Judge",) if report.judge else ()),
                            "Source",
                        ),
                        (
                            (
                                row.entity_type,
                                number(row.score),
                                row.tier_group,
                                number(row.rarity),
                                "yes" if row.linkable else "no",
                                "yes" if row.legally_protected else "no",
                                *((_JUDGED[row.judged],) if report.judge else ()),
                                row.citation,
                            )
                            for row in report.rows
                        ),
                        numeric=(1, 3),
                    ),
                ),
            ),
        ),
    )


def validation_page(report: ValidationReport) -> Page:
    """Describe the expectations on one corpus view."""
    return Page(
        kicker="Validation",
        title=f"View {words(report.view)}",
        chip=_success_chip(report),
        sections=(validation_section(report),),
    )


def validation_section(report: ValidationReport) -> Section:
    """List expectations, failed ones first."""
    ordered = sorted(report.expectations, key=lambda e: e.success)
    found: Table = table(
        ("Expectation", "Verdict", "Detail"),
        ((words(e.name), yes_no(good=e.success), e.detail or "–") for e in ordered),
    )
    return Section(
        title=f"Expectations on the {words(report.view)} view", blocks=(found,)
    )


_JUDGED = {
    "no": "no answer: the table's value",
    "same": "agrees",
    "raised": "raised",
    "lowered": "lowered",
    "changed": "changed",
    "held": "would lower, may not",
}


def _judge(report: SensitivityTable) -> tuple[Block, ...]:
    """Say which language model was asked, and warn where it did not answer."""
    judge = report.judge
    if judge is None:
        return ()
    shown = facts(
        ("Language model asked about types", judge.model),
        ("Types answered", f"{count(judge.num_answered)} of {count(judge.num_asked)}"),
        ("May lower a score of the built-in table", "yes" if judge.may_lower else "no"),
    )
    if not judge.failures:
        return (shown,)
    kinds = ", ".join(f"{why} ({count(n)})" for why, n in judge.failures.items())
    missing = judge.num_asked - judge.num_answered
    notice = Notice(
        tone=Tone.INCONCLUSIVE,
        title=f"{count(missing)} types keep the built-in value.",
        text=f"The language model gave no valid answer about them: {kinds}.",
    )
    return (notice, shown)


def _private_counts(report: SensitivityTable) -> tuple[Notice, ...]:
    """Warn where the table itself is private."""
    if report.counts != "non_private":
        return ()
    return (
        Notice(
            tone=Tone.INCONCLUSIVE,
            title="Counted in private data without noise.",
            text="Rarities on this page are private, and a mechanism that uses this "
            "table has no guarantee. Take public counts, or release counts under "
            "differential privacy.",
        ),
    )


def _weak_ids(report: CorpusReport) -> tuple[Notice, ...]:
    """Warn where the budget cannot follow an edited record."""
    if not report.ids_are_content_hashes:
        return ()
    return (
        Notice(
            tone=Tone.INCONCLUSIVE,
            title="Ids are hashes of the text.",
            text="An edited record looks like a new one, so the data-set budget cannot "
            "follow a person from one version of the data to the next.",
        ),
    )


def _missing_rate(report: DetectionReport) -> tuple[str, str, str] | None:
    """Return the missing rate with its interval, if it was measured."""
    if report.missing_rate is None:
        return None
    measured = (
        interval(report.missing_rate_interval, as_share=True)
        if report.missing_rate_interval
        else "no interval was given"
    )
    source = report.missing_rate_source
    note = f"{measured}; {source}" if source else measured
    return ("Missing rate", share(report.missing_rate), note)


def _unknown_recall(report: DetectionReport) -> tuple[Notice, ...]:
    """Say that recall is unknown where it is."""
    if report.missing_rate is not None:
        return ()
    return (
        Notice(
            tone=Tone.INCONCLUSIVE,
            title="The missing rate is not known.",
            text="Every claim that assumes perfect recall rests on an assumption that "
            "was not measured on this corpus. Audit a sample to put an interval on it."
            + (
                f" An imported rate was refused: {report.missing_rate_refusal}."
                if report.missing_rate_refusal
                else ""
            ),
        ),
    )


def _most_first(counts: dict[str, int]) -> list[tuple[str, int]]:
    """Sort by count, then by name."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _success_chip(report: ValidationReport) -> Chip:
    """Return the verdict of a validation."""
    if report.success:
        return Chip(text="ALL EXPECTATIONS MET", tone=Tone.PASS)
    failed = sum(not e.success for e in report.expectations)
    chip = verdict_chip("block")
    return Chip(text=f"{count(failed)} NOT MET", tone=chip.tone)
