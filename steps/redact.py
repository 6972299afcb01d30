"""Step: replace what was marked, and check that nothing structured is left."""

from typing import Annotated

from zenml import step

from dptune.data.records import Corpus
from dptune.redaction.operators import RedactionSettings
from dptune.results import RedactionReport
from infra.workspace import (
    current_workspace,
    ensure_budget_key,
    read_redaction_key,
)
from steps._caching import BY_CONTENT
from steps._progress import progress


@step(enable_cache=True, cache_policy=BY_CONTENT)
def redact(
    corpus: Corpus, settings: RedactionSettings
) -> tuple[
    Annotated[Corpus, "redacted_corpus"], Annotated[RedactionReport, "redaction"]
]:
    """Return the redacted view, row by row aligned with the original."""
    from dptune.workflow.redact import redact_corpus

    with progress("redact", len(corpus.dataset)) as advance:
        redacted, report = redact_corpus(
            corpus,
            settings,
            key=lambda: ensure_budget_key(current_workspace()),
            encryption_key=read_redaction_key,
            folder=current_workspace().cache / "redacted",
            on_progress=advance,
        )
    return redacted, report
