"""The redacted view of a corpus and the check on what is left in it."""

import hashlib
import hmac
from collections.abc import Callable

from datasets import Dataset

from dptune.config import RedactionSettings
from dptune.conversation import num_said, turns_of
from dptune.data.records import Corpus
from dptune.data.validation import validate_redacted
from dptune.detection.known_values import is_ordinary
from dptune.errors import DataError, Problem
from dptune.redaction.engine import redact_dataset
from dptune.redaction.operators import KEYED, Operator
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.redaction.residual import residual_counts, residual_spelling_counts
from dptune.results import RedactionReport

_WRITES_VALUES = frozenset({*KEYED, Operator.PARTIAL, Operator.KEEP})
"""Operators whose results may look like personal data."""


def redact_corpus(
    corpus: Corpus,
    settings: RedactionSettings,
    *,
    key: Callable[[], bytes],
    encryption_key: Callable[[str], bytes] | None = None,
) -> tuple[Corpus, RedactionReport]:
    """Replace every marked span.

    Pseudonyms are addresses and numbers on purpose, and what is kept may be one, so
    what is left is looked for between them: in the same texts, masked.

    Args:
        corpus: with the column `spans`.
        settings: what is written in the place of spans.
        key: returns the project's secret; asked for only by operators that need one,
            which use a key of their own derived from it.
        encryption_key: returns the key that a variable holds; asked by `encrypt`.

    Returns:
        the redacted view (same rows, same ids, no `spans`) and the residual report.

    Raises:
        DataError: an e-mail address, SSN, card number or IBAN is left.
        DependencyError: pseudonyms need a package that is not installed.
    """
    redacted = redact_dataset(
        corpus.dataset,
        operator=settings.operator,
        by_type=settings.operators,
        merge_adjacent=settings.merge_adjacent,
        pseudonyms=pseudonyms_of(settings, key, encryption_key),
    )
    checked = redacted
    if settings.used & _WRITES_VALUES:
        checked = redact_dataset(corpus.dataset, operator=Operator.MASK)
    left = residual_spelling_counts(
        corpus.dataset, is_ordinary=is_ordinary, kept=settings.kept
    )
    report = RedactionReport(
        operator=settings.name,
        masked_character_share=_masked_share(corpus),
        validation=validate_redacted(checked),
        residual_values=residual_counts(corpus.dataset, redacted, kept=settings.kept),
        residual_parts=dict(left.parts),
        residual_spellings=dict(left.spellings),
        residual_halves=dict(left.halves),
        num_emptied_turns=_num_learnt(corpus.dataset) - _num_learnt(redacted),
    )
    if not report.validation.success:
        failed = [e for e in report.validation.expectations if not e.success]
        raise DataError(
            [
                Problem(
                    path=f"redacted corpus, {expectation.name}",
                    message=f"must hold, but does not ({expectation.detail}).",
                    next_step="Add a recognizer, or put the values on a deny list.",
                )
                for expectation in failed
            ]
        )
    return corpus.redacted(redacted, operator=settings.name), report


def pseudonyms_of(
    settings: RedactionSettings,
    key: Callable[[], bytes],
    encryption_key: Callable[[str], bytes] | None = None,
) -> Pseudonyms | None:
    """Derive the keys of a redaction, so that they name no privacy unit.

    Returns:
        None where no operator needs one.
    """
    if not settings.used & KEYED:
        return None
    read = encryption_key if Operator.ENCRYPT in settings.used else None
    return Pseudonyms(
        key=hmac.new(key(), b"dptune pseudonyms", hashlib.sha256).digest(),
        scope=settings.pseudonym_scope,
        locale=settings.pseudonym_locale,
        encryption_key=read(settings.encryption_key) if read else None,
    )


def _num_learnt(dataset: Dataset) -> int:
    """Turns of conversations that are learnt."""
    return sum(turn.trained for text in dataset["text"] for turn in turns_of(text))


def _masked_share(corpus: Corpus) -> float:
    """Share of the characters that lie in a span."""
    masked = sum(
        span["end"] - span["start"]
        for spans in corpus.dataset["spans"]
        for span in spans
    )
    return float(masked) / max(1, sum(map(num_said, corpus.dataset["text"])))
