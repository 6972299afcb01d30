"""Step: mark personal data in every record."""

from typing import Annotated

from zenml import step

from dptune.attacks.canaries import CanarySet
from dptune.config import DetectionSettings
from dptune.data.records import Corpus
from dptune.detection.labelling import SpanShard
from dptune.results import DetectionReport
from infra.workspace import current_workspace, llm_access
from steps._caching import BY_CONTENT
from steps._progress import progress_of_many


@step(enable_cache=True, cache_policy=BY_CONTENT)
def detect(
    corpus: Corpus,
    canaries: CanarySet,
    shards: list[SpanShard],
    settings: DetectionSettings,
    corpus_is_public: bool,
    data_set: str,
    review: str,
) -> tuple[
    Annotated[Corpus, "labelled_corpus"], Annotated[DetectionReport, "detection"]
]:
    """Return the corpus with a `spans` column, and what was marked and missed.

    Args:
        corpus: with canaries in it.
        canaries: what was planted.
        shards: of steps that read one part each; without any, all is read here.
        settings: which recognizers.
        corpus_is_public: nothing needs to be found.
        data_set: whose lists act.
        review: digest of the project's reviews, so that an import misses the cache.
    """
    from dptune.workflow.detect import label_corpus
    from steps._reviewing import read_review

    with progress_of_many() as tell:
        labelled, report = label_corpus(
            corpus,
            canaries,
            settings,
            corpus_is_public=corpus_is_public,
            data_set=data_set,
            review=read_review(review),
            access=llm_access(),
            shards=shards,
            folder=current_workspace().cache / "spans",
            on_progress=tell,
        )
    return labelled, report
