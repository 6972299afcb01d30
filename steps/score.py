"""Step: how sensitive is each type of entity. Never cached: it may charge."""

from typing import Annotated

from zenml import step

from dptune.accounting.ledger import PrivacyLedger
from dptune.config import ScoringSettings
from dptune.data.records import Corpus
from dptune.detection.scoring import SensitivityTable
from dptune.planning import RunPlan
from dptune.results import BudgetReservation
from infra.workspace import current_workspace, llm_access
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER)
def score(
    corpus: Corpus,
    plan: RunPlan,
    ledger: PrivacyLedger,
    reservation: BudgetReservation,
    settings: ScoringSettings,
    corpus_is_public: bool,
    seed: int | None,
    retrain: bool,
) -> tuple[
    Annotated[SensitivityTable, "sensitivity"],
    Annotated[PrivacyLedger, "scored_ledger"],
]:
    """Return rarity, linkability, legal protection and score of each entity type."""
    from dptune.workflow.budget import release_held, spender
    from dptune.workflow.score import score_corpus

    workspace = current_workspace()
    with release_held(workspace.budget_url, reservation):
        table, scored = score_corpus(
            corpus,
            settings,
            ledger,
            recipe=plan.recipe,
            corpus_is_public=corpus_is_public,
            folder=workspace.runs,
            seed=seed,
            retrain=retrain,
            run=reservation.id,
            spend=spender(workspace.budget_url, reservation),
            nominal_epsilon=plan.counts_nominal_epsilon,
            access=llm_access(),
        )
    return table, scored
