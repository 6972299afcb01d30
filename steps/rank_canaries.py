"""Step: rank given canaries under a model that this project did not train."""

from typing import Annotated

from zenml import step

from dptune.config import PerformanceSettings
from dptune.results import ExposureReport
from dptune.workflow.external_audit import ForeignModel, rank_foreign
from infra.workspace import current_workspace
from steps._caching import NEVER
from steps._progress import progress_of_many


@step(enable_cache=False, cache_policy=NEVER)
def rank_canaries(
    foreign: ForeignModel, performance: PerformanceSettings
) -> Annotated[ExposureReport, "exposure"]:
    """Return the rank of every canary, planted and held out."""
    cache = current_workspace().cache
    cache.mkdir(parents=True, exist_ok=True)
    with progress_of_many() as tell:
        return rank_foreign(foreign, performance=performance, cache=cache, tell=tell)
