"""Step: what one cell of a comparison came to. Registers nothing, promotes nothing."""

from typing import Annotated, Any

from zenml import log_metadata, step

from dptune.config import TrainConfig
from dptune.models.source import ModelBundle
from dptune.reports.comparison import CellResult
from dptune.results import SamplesReport
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def assess(
    model: ModelBundle,
    results: list[Any],
    samples: SamplesReport,
    config: TrainConfig,
    label: str,
) -> Annotated[CellResult, "cell"]:
    """Return utility, leakage, claims and what the gate would decide.

    Args:
        model: the weights.
        results: one artifact for each field of `RunResults`, told apart by type.
        samples: completions to look at.
        config: of the run.
        label: of the recipe in its comparison.
    """
    from dptune.workflow.assess import assess as assess_dossier
    from dptune.workflow.dossier import RunResults
    from steps._evidence import attempts_now
    from steps._figures import log_numbers
    from steps._registering import dossier_of_run, measured_numbers, written

    dossier = dossier_of_run(model, RunResults.collect(results), config)
    numbers = measured_numbers(dossier)
    log_numbers(numbers)
    log_metadata({"recipe": label, **written(numbers)})
    cell = assess_dossier(
        dossier,
        config.gate,
        label=label,
        seed=config.repetition,
        attempts=attempts_now(dossier.budget.data_set if dossier.budget else ""),
    )
    return cell.model_copy(update={"samples": samples})
