"""Step: the model before fine-tuning, pre-trained on public text if it has to be."""

from typing import Annotated

from zenml import step

from dptune.attacks.canaries import CanarySpec
from dptune.config import ModelSettings, PerformanceSettings
from dptune.models.source import ModelBundle
from infra.workspace import current_workspace, data_root
from steps._caching import BY_CONTENT


@step(enable_cache=True, cache_policy=BY_CONTENT)
def prepare_model(
    model: ModelSettings, performance: PerformanceSettings, canaries: CanarySpec
) -> Annotated[ModelBundle, "base_model"]:
    """Return the base model, from the project's cache if it was made before."""
    from dptune.workflow.prepare_model import prepare_base, with_canary_tokens
    from steps._training_progress import TrainingProgress

    workspace = current_workspace()
    progress = TrainingProgress("pre-train on public text")
    with progress as on_step, workspace.work() as work:
        base = prepare_base(
            model,
            performance,
            data_root=data_root(),
            folder=workspace.cache,
            work=work,
            on_step=on_step,
        )
    return with_canary_tokens(base, canaries, folder=workspace.cache)
