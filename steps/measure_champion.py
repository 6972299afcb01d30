"""Step: the version in production, on this run's held-out records."""

from typing import Annotated

from zenml import step

from dptune.config import ModelSettings, PerformanceSettings
from dptune.data.records import Corpus
from dptune.models.source import ModelBundle
from dptune.results import ChampionReport
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def measure_champion(
    base_model: ModelBundle,
    corpus: Corpus,
    model_name: str,
    settings: ModelSettings,
    performance: PerformanceSettings,
) -> Annotated[ChampionReport, "champion"]:
    """Return the champion's loss, so that the gate compares like with like.

    Of one that was deleted from the registry there is none, as the gate will say.
    """
    from dptune.workflow.attack import measure_utility
    from infra.workspace import current_workspace
    from steps._champions import champion, is_there
    from steps._files import fetched_bundle
    from steps._tracking import connect

    connect()
    version = champion(model_name)
    if version is None or not is_there(model_name, version):
        return ChampionReport()
    with fetched_bundle(model_name, version) as bundle:
        utility = measure_utility(
            bundle,
            base_model,
            corpus,
            max_tokens=settings.max_tokens,
            performance=performance,
            cache=current_workspace().cache,
        )
    return ChampionReport(model_digest=bundle.digest, utility=utility)
