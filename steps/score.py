"""Step: how sensitive is each type of entity."""

from typing import Annotated

from zenml import step

from dptune.detection.scoring import SensitivityTable, score_entity_types
from dptune.results import DetectionReport
from steps._caching import BY_CONTENT


@step(enable_cache=True, cache_policy=BY_CONTENT)
def score(
    detection: DetectionReport, corpus_is_public: bool
) -> Annotated[SensitivityTable, "sensitivity"]:
    """Return rarity, linkability, legal protection and score of each entity type."""
    return score_entity_types(detection.num_spans, counts_are_public=corpus_is_public)
