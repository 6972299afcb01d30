"""Step: hold the whole run's cost in the budget store, before anything is trained."""

from typing import Annotated

from zenml import step

from dptune.config import TrainConfig
from dptune.data.records import Corpus
from dptune.planning import RunPlan
from dptune.results import BudgetReservation
from infra.workspace import current_workspace, ensure_budget_key
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER)
def reserve_budget(
    corpus: Corpus, plan: RunPlan, config: TrainConfig, retrain: bool
) -> Annotated[BudgetReservation, "reservation"]:
    """Return the run's reservation; a resumed run finds its own.

    The corpus is the one that was ingested: canaries are nobody's data.
    """
    from dptune.workflow.budget import reserve_budget as reserve

    workspace = current_workspace()
    return reserve(
        config,
        corpus,
        plan,
        url=workspace.budget_url,
        key=ensure_budget_key(workspace),
        again=retrain,
    )
