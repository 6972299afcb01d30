"""The redacted view of a corpus and the check on what is left in it."""

from dptune.data.corpus import Corpus
from dptune.data.validation import validate_redacted
from dptune.errors import DataError, Problem
from dptune.redaction.engine import redact_dataset
from dptune.redaction.operators import Operator
from dptune.results import RedactionReport


def redact_corpus(
    corpus: Corpus, *, operator: Operator
) -> tuple[Corpus, RedactionReport]:
    """Replace every marked span.

    Returns:
        the redacted view (same rows, same ids, no `spans`) and the residual report.

    Raises:
        DataError: an e-mail address, SSN, card number or IBAN is left.
    """
    redacted = redact_dataset(corpus.dataset, operator=operator)
    report = RedactionReport(
        operator=operator.value,
        masked_character_share=_masked_share(corpus),
        validation=validate_redacted(redacted),
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
    return corpus.redacted(redacted, operator=operator.value), report


def _masked_share(corpus: Corpus) -> float:
    """Share of the characters that lie in a span."""
    masked = sum(
        span["end"] - span["start"]
        for spans in corpus.dataset["spans"]
        for span in spans
    )
    return float(masked) / max(1, sum(map(len, corpus.dataset["text"])))
