"""Pages of what was read, marked and replaced: corpus, detection, redaction."""

from collections.abc import Iterator

from dptune.detection.scoring import SensitivityTable
from dptune.reports.blocks import (
    Block,
    Chip,
    Notice,
    Page,
    Section,
    Tone,
    facts,
    page,
    section,
    table_of,
    yes_no,
)
from dptune.reports.formatting import (
    count,
    interval,
    number,
    percent,
    short_digest,
    words,
)
from dptune.results import (
    CorpusReport,
    DetectionReport,
    LanguageShare,
    RedactionReport,
    ValidationReport,
)

_JUDGED = {
    "no": "no answer: the table's value",
    "same": "agrees",
    "raised": "raised",
    "lowered": "lowered",
    "changed": "changed",
    "held": "would lower, may not",
}
_WEAK_IDS = Notice(
    tone=Tone.INCONCLUSIVE,
    title="Ids are hashes of the text.",
    text="An edited record looks like a new one, so the data-set budget cannot "
    "follow a person from one version of the data to the next.",
)
_PRIVATE_COUNTS = Notice(
    tone=Tone.INCONCLUSIVE,
    title="Counted in private data without noise.",
    text="Rarities on this page are private, and a mechanism that uses this "
    "table has no guarantee. Take public counts, or release counts under "
    "differential privacy.",
)


def corpus_page(report: CorpusReport) -> Page:
    """Describe one ingested corpus in counts."""
    return page(
        section(
            "What was read",
            facts(
                ("Source", report.source),
                ("Fingerprint", short_digest(report.fingerprint)),
                ("Privacy unit", words(report.privacy_unit)),
                ("Records read", count(report.num_read)),
                ("Exact duplicates removed", count(report.num_exact_duplicates)),
                ("Near duplicates removed", count(report.num_near_duplicates)),
                ("Characters", count(report.num_characters)),
                *((f"Not read: {k}", count(n)) for k, n in report.unread.items()),
            ),
            _WEAK_IDS if report.ids_are_content_hashes else None,
        ),
        section(
            "Splits",
            table_of(
                report.num_records,
                ("Split", str),
                ("Records", lambda split: count(report.num_records[split])),
                ("Privacy units", lambda split: count(report.num_units.get(split, 0))),
                numeric=(1, 2),
            ),
        ),
        _expectations(report.validation),
        label="Corpus",
        title=report.source,
        chip=_success_chip(report.validation),
        subtitle="Counts only. The text is a restricted artifact and is never shown.",
    )


def detection_page(report: DetectionReport) -> Page:
    """Describe what the detector marked."""
    total = max(sum(report.num_spans.values()), 1)
    return page(
        _coverage(report),
        section(
            "By language",
            table_of(
                report.languages,
                ("Language", lambda share: share.language),
                ("Records", lambda share: count(share.num_records)),
                (
                    "Characters masked",
                    lambda share: percent(share.masked_character_share),
                ),
                ("Missing rate", _rate_of),
                numeric=(1, 2, 3),
            ),
        )
        if report.languages
        else None,
        section(
            "Spans by type",
            table_of(
                sorted(report.num_spans.items(), key=lambda item: (-item[1], item[0])),
                ("Type", lambda item: item[0]),
                ("Spans", lambda item: count(item[1])),
                ("Fraction", lambda item: percent(item[1] / total)),
                numeric=(1, 2),
            ),
        ),
        label="Detection",
        title=", ".join(
            (
                f"Personal data, tier {words(report.tier)}",
                *(f"{r} {words(t)}" for r, t in sorted(report.role_tiers.items())),
            )
        ),
        subtitle="Types and counts of what was marked; no span is shown. The counts "
        "are exact and private: keep this page inside the trust boundary.",
    )


def _coverage(report: DetectionReport) -> Section | None:
    """Say how much was marked, and what is known of what was missed."""
    flagged = report.num_records_with_spans / max(report.num_records, 1)
    bounds, source = report.missing_rate_interval, report.missing_rate_source
    measured = interval(bounds, as_percent=True) if bounds else "no interval was given"
    name, refused = "False-negative rate (missing rate)", report.missing_rate_refusal
    return section(
        "Coverage",
        facts(
            ("Recognizers", ", ".join(report.recognizers)),
            ("Left unmarked where found", "; ".join(report.taken_back) or "nothing"),
            ("Records", count(report.num_records)),
            (
                "Records with a span",
                count(report.num_records_with_spans),
                percent(flagged),
            ),
            ("Characters masked", percent(report.masked_character_share)),
            (
                name,
                percent(report.missing_rate),
                "; ".join(filter(None, (measured, source))),
            )
            if report.missing_rate is not None
            else None,
            ("Corpus fingerprint", short_digest(report.fingerprint)),
        ),
        Notice(
            tone=Tone.INCONCLUSIVE,
            title="The missing rate is not known.",
            text="Every claim that assumes perfect recall rests on an assumption "
            "that was not measured on this corpus. Audit a sample to put an "
            "interval on it."
            + (f" An imported rate was refused: {refused}." if refused else ""),
        )
        if report.missing_rate is None
        else None,
    )


def _rate_of(share: LanguageShare) -> str:
    """Quote the missing rate of a language with its bounds."""
    if share.missing_rate is None or share.missing_rate_interval is None:
        return "not measured"
    bounds = interval(share.missing_rate_interval, as_percent=True)
    return f"{percent(share.missing_rate)} ({bounds})"


def redaction_page(report: RedactionReport) -> Page:
    """Describe what redaction left behind."""
    return page(
        section(
            "What was replaced",
            facts(
                ("Operator", words(report.operator)),
                ("Characters masked", percent(report.masked_character_share)),
                ("Turns left empty, not learnt", count(report.num_emptied_turns))
                if report.num_emptied_turns
                else None,
            ),
        ),
        _expectations(report.validation),
        section("What is left of values that were found elsewhere", _residual(report)),
        label="Redaction",
        title=f"Operator {report.operator}",
        chip=_success_chip(report.validation),
        subtitle="Checks of the redacted text for patterns that must not survive.",
    )


def _residual(report: RedactionReport) -> Block:
    """Tell by type what stands outside of marks still."""
    left = {
        "Whole": report.residual_values,
        "In parts": report.residual_parts,
        "Otherwise written": report.residual_spellings,
        "Marked in part": report.residual_halves,
    }
    columns = (
        (name, lambda kind, counts=counts: count(counts.get(kind, 0)))
        for name, counts in left.items()
    )
    kinds = sorted({kind for counts in left.values() for kind in counts})
    return table_of(kinds, ("Type", str), *columns, numeric=(1, 2, 3, 4))


def sensitivity_page(report: SensitivityTable) -> Page:
    """Describe the sensitivity score of every entity type."""
    judged = (("Judge", lambda row: _JUDGED[row.judged]),) if report.judge else ()
    return page(
        section(
            "Types, most sensitive first",
            _PRIVATE_COUNTS if report.counts == "non_private" else None,
            *_judge(report),
            table_of(
                report.rows,
                ("Type", lambda row: row.entity_type),
                ("Score", lambda row: number(row.score)),
                ("Group", lambda row: row.tier_group),
                ("Rarity", lambda row: number(row.rarity)),
                ("Linkable", lambda row: "yes" if row.linkable else "no"),
                (
                    "Legally protected",
                    lambda row: "yes" if row.legally_protected else "no",
                ),
                *judged,
                ("Source", lambda row: row.citation),
                numeric=(1, 3),
            ),
        ),
        label="Sensitivity scores",
        title="How sensitive is each type of personal data?",
        subtitle="Score = 0.4 rarity + 0.3 linkable + 0.3 legally protected, in "
        "[0, 1].",
    )


def validation_page(report: ValidationReport) -> Page:
    """Describe the expectations on one corpus view."""
    return page(
        _expectations(report),
        label="Validation",
        title=f"View {words(report.view)}",
        chip=_success_chip(report),
    )


def _expectations(report: ValidationReport) -> Section | None:
    """List expectations, failed ones first."""
    return section(
        f"Expectations on the {words(report.view)} view",
        table_of(
            sorted(report.expectations, key=lambda e: e.success),
            ("Expectation", lambda e: words(e.name)),
            ("Verdict", lambda e: yes_no(good=e.success)),
            ("Detail", lambda e: e.detail or "–"),
        ),
    )


def _success_chip(report: ValidationReport) -> Chip:
    """Return the verdict of a validation."""
    failed = sum(not e.success for e in report.expectations)
    no = f"{count(failed)} NOT MET"
    return yes_no(good=report.success, yes="ALL EXPECTATIONS MET", no=no)


def _judge(report: SensitivityTable) -> Iterator[Block]:
    """Say which language model was asked, and warn where it did not answer."""
    judge = report.judge
    if judge is None:
        return
    if judge.failures:
        kinds = ", ".join(f"{why} ({count(n)})" for why, n in judge.failures.items())
        missing = judge.num_asked - judge.num_answered
        yield Notice(
            tone=Tone.INCONCLUSIVE,
            title=f"{count(missing)} types keep the built-in value.",
            text=f"The language model gave no valid answer about them: {kinds}.",
        )
    answered = f"{count(judge.num_answered)} of {count(judge.num_asked)}"
    yield facts(
        ("Language model asked about types", judge.model),
        ("Types answered", answered),
        ("May lower a score of the built-in table", "yes" if judge.may_lower else "no"),
    )
