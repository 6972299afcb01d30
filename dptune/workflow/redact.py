"""The redacted view of a corpus and the check on what is left in it."""

import hashlib
import hmac
from collections.abc import Callable

from dptune.config import RedactionSettings
from dptune.data.records import Corpus
from dptune.data.validation import validate_redacted
from dptune.errors import DataError, Problem
from dptune.redaction.engine import redact_dataset, residual_counts
from dptune.redaction.operators import Operator, Pseudonyms
from dptune.results import RedactionReport


def redact_corpus(
    corpus: Corpus, settings: RedactionSettings, *, key: Callable[[], bytes]
) -> tuple[Corpus, RedactionReport]:
    """Replace every marked span.

    Pseudonyms are addresses and numbers on purpose, so what is left is looked for
    between them: in the same texts, masked.

    Args:
        corpus: with the column `spans`.
        settings: what is written in the place of spans.
        key: returns the project's secret; asked for only by pseudonyms, which use a
            key of their own derived from it.

    Returns:
        the redacted view (same rows, same ids, no `spans`) and the residual report.

    Raises:
        DataError: an e-mail address, SSN, card number or IBAN is left.
        DependencyError: pseudonyms need a package that is not installed.
    """
    is_invented = settings.operator is Operator.PSEUDONYM
    redacted = redact_dataset(
        corpus.dataset,
        operator=settings.operator,
        merge_adjacent=settings.merge_adjacent,
        pseudonyms=_pseudonyms(settings, key()) if is_invented else None,
    )
    checked = redacted
    if is_invented:
        checked = redact_dataset(corpus.dataset, operator=Operator.MASK)
    report = RedactionReport(
        operator=settings.operator.value,
        masked_character_share=_masked_share(corpus),
        validation=validate_redacted(checked),
        residual_values=residual_counts(corpus.dataset, redacted),
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
    return corpus.redacted(redacted, operator=settings.operator.value), report


def _pseudonyms(settings: RedactionSettings, secret: bytes) -> Pseudonyms:
    """Derive the key of pseudonyms, so that it names no privacy unit."""
    return Pseudonyms(
        key=hmac.new(secret, b"dptune pseudonyms", hashlib.sha256).digest(),
        scope=settings.pseudonym_scope,
        locale=settings.pseudonym_locale,
    )


def _masked_share(corpus: Corpus) -> float:
    """Share of the characters that lie in a span."""
    masked = sum(
        span["end"] - span["start"]
        for spans in corpus.dataset["spans"]
        for span in spans
    )
    return float(masked) / max(1, sum(map(len, corpus.dataset["text"])))
