"""Step: attack the trained model, and the base beside it."""

from typing import Annotated

from zenml import step

from dptune.attacks.canaries import CanarySet
from dptune.attacks.settings import AttackSettings
from dptune.config import DetectionSettings, ModelSettings, PerformanceSettings
from dptune.data.records import Corpus
from dptune.models.source import ModelBundle
from dptune.results import (
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    SamplesReport,
    TrainedCanaries,
    UtilityReport,
)
from infra.allocator import freed_memory_kept
from infra.workspace import current_workspace, llm_access
from steps._caching import BY_CONTENT
from steps._progress import progress_of_many, say


@step(enable_cache=True, cache_policy=BY_CONTENT)
def attack(
    model: ModelBundle,
    base_model: ModelBundle,
    corpus: Corpus,
    canaries: CanarySet,
    trained: list[TrainedCanaries],
    settings: ModelSettings,
    attacks: AttackSettings,
    detection: DetectionSettings,
    performance: PerformanceSettings,
    data_set: str,
) -> tuple[
    Annotated[ExposureReport, "exposure"],
    Annotated[MembershipReport, "membership"],
    Annotated[ExtractionReport, "extraction"],
    Annotated[UtilityReport, "utility"],
    Annotated[SamplesReport, "samples"],
]:
    """Return what four attacks found on a model, each with its controls, and samples.

    The budget store counts the evaluation before anybody sees it.
    """
    from dptune.workflow.attack import attack_model
    from dptune.workflow.attempts import record_evaluation
    from dptune.workflow.device import pick_device

    workspace = current_workspace()
    device = pick_device(performance.device)
    with freed_memory_kept(device), progress_of_many() as tell:
        found = attack_model(
            model,
            base_model,
            corpus,
            canaries,
            trained=trained,
            max_tokens=settings.max_tokens,
            max_sequences_per_unit=settings.max_sequences_per_unit,
            attacks=attacks,
            detection=detection,
            performance=performance,
            cache=workspace.cache,
            access=llm_access(),
            say=say,
            tell=tell,
        )
    record_evaluation(workspace.budget_url, found.reports, data_set=data_set)
    return (
        found.exposure,
        found.membership,
        found.extraction,
        found.utility,
        found.samples,
    )
