"""What a detector marked in a corpus, in counts: of all records, and by language."""

from collections import Counter
from collections.abc import Sequence

import datasets

from dptune.conversation import contents_only, num_said
from dptune.detection.engine import DetectionEngine
from dptune.detection.known_values import COLUMN, NAME
from dptune.detection.languages.identify import languages_of
from dptune.errors import DetectionError
from dptune.results import DetectionReport, LanguageShare


def detection_report(
    dataset: datasets.Dataset, engine: DetectionEngine, fingerprint: str
) -> DetectionReport:
    """Count what was found. Counts are private until released otherwise.

    Args:
        dataset: a corpus with `text` and `spans`.
        engine: the engine that labelled it.
        fingerprint: of the corpus that was labelled.
    """
    counts: Counter[str] = Counter()
    with_spans = 0
    sizes: list[tuple[int, int]] = []
    for row in dataset.select_columns(["text", "spans"]):
        with_spans += bool(row["spans"])
        counts.update(span["entity_type"] for span in row["spans"])
        marked = sum(span["end"] - span["start"] for span in row["spans"])
        sizes.append((num_said(row["text"]), marked))
    finders = dict.fromkeys(engine.recognizers)
    if COLUMN in dataset.column_names:
        finders[NAME] = None
    characters, masked = (sum(column) for column in zip((0, 0), *sizes, strict=True))
    languages = languages_of(map(contents_only, dataset["text"]))
    return DetectionReport(
        fingerprint=fingerprint,
        tier=engine.tier,
        role_tiers={r: str(tier) for r, tier in engine.rules.role_tiers.items()},
        taken_back=engine.taken_back,
        recognizers=tuple(finders),
        num_records=len(dataset),
        num_records_with_spans=with_spans,
        num_spans=dict(sorted(counts.items())),
        masked_character_share=masked / characters if characters else 0.0,
        languages=tuple(
            _language_share(language, sizes, languages)
            for language, _ in Counter(languages).most_common()
        ),
    )


def _language_share(
    language: str, sizes: Sequence[tuple[int, int]], languages: Sequence[str]
) -> LanguageShare:
    """Count what is masked in the records of one language."""
    own = [
        size for size, found in zip(sizes, languages, strict=True) if found == language
    ]
    characters, masked = (sum(column) for column in zip(*own, strict=True))
    return LanguageShare(
        language=language,
        num_records=len(own),
        masked_character_share=masked / characters if characters else 0.0,
    )


def refuse_if_nothing_found(report: DetectionReport, *, corpus_is_public: bool) -> None:
    """Refuse a private corpus in which the detector found nothing at all.

    Raises:
        DetectionError: no span in a corpus that is not declared public.
    """
    if report.num_records_with_spans == 0 and not corpus_is_public:
        raise DetectionError(
            "the detector must find at least one span in a private corpus, got "
            f"num_spans=0 in num_records={report.num_records}. Check language "
            "and tier, or declare the corpus public in its config."
        )
