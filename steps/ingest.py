"""Step: read, check, deduplicate and split a corpus."""

from typing import Annotated, Any

from zenml import step

from dptune.config import DataSettings, TrainConfig
from dptune.data.records import Corpus
from dptune.results import CorpusReport
from infra.workspace import current_workspace, data_root
from steps._caching import BY_CONTENT
from steps._progress import progress_of_many
from steps._scheduling import stop_if_done


@step(enable_cache=True, cache_policy=BY_CONTENT)
def ingest(
    data: DataSettings,
    fingerprint: str,
    scheduled: dict[str, Any] | None = None,
) -> tuple[Annotated[Corpus, "corpus"], Annotated[CorpusReport, "corpus_report"]]:
    """Return the checked corpus and what was found in it.

    Args:
        data: where the records are and what a privacy unit is.
        fingerprint: of the source as it is now, so that changed data miss the cache;
            empty where nobody could look before.
        scheduled: configuration of a scheduled run, which stops here if neither the
            data nor the base model have changed; None for a run that somebody started.
    """
    from dptune.workflow.ingest import read_corpus

    with progress_of_many() as tell, current_workspace().work() as folder:
        corpus = read_corpus(
            data,
            data_root=data_root(),
            expected=fingerprint or None,
            folder=folder,
            on_progress=tell,
        )
    if scheduled:
        stop_if_done(TrainConfig.model_validate(scheduled), corpus.fingerprint)
    return corpus, corpus.report
