"""Step: mark personal data in some parts of the corpus."""

from typing import Annotated

from zenml import step

from dptune.config import DetectionSettings
from dptune.data.records import Corpus
from dptune.detection.labelling import SpanShard
from infra.workspace import current_workspace, llm_access
from steps._caching import BY_CONTENT
from steps._progress import progress


@step(enable_cache=True, cache_policy=BY_CONTENT)
def detect_shard(
    corpus: Corpus,
    settings: DetectionSettings,
    data_set: str,
    review: str,
    index: int,
    num_shards: int,
) -> Annotated[SpanShard, "spans"]:
    """Return the spans of a run of parts, which `detect` merges with the others.

    Args:
        corpus: with canaries in it.
        settings: which recognizers.
        data_set: whose lists act.
        review: digest of the project's reviews, so that an import misses the cache.
        index: of the shard.
        num_shards: how many shards there are.
    """
    from dptune.detection.labelling import shard_rows
    from dptune.workflow.detect import label_shard
    from steps._reviewing import read_review

    total = len(shard_rows(len(corpus.dataset), index=index, num_shards=num_shards))
    with progress(f"detect, shard {index + 1} of {num_shards}", total) as advance:
        return label_shard(
            corpus,
            settings,
            index=index,
            num_shards=num_shards,
            data_set=data_set,
            review=read_review(review),
            access=llm_access(),
            folder=current_workspace().cache / "spans",
            on_progress=advance,
        )
