"""Step: fill in every stage's noise, and what it will cost, before any training."""

from typing import Annotated

from zenml import step

from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySpec
from dptune.config import DataSettings, PrivacySettings, ScoringSettings
from dptune.planning import RunPlan
from dptune.recipes import Recipe
from dptune.results import CorpusReport
from steps._caching import BY_CONTENT


@step(enable_cache=True, cache_policy=BY_CONTENT)
def calibrate(
    corpus: CorpusReport,
    canaries: CanarySpec,
    recipe: Recipe,
    privacy: PrivacySettings,
    scoring: ScoringSettings,
    data: DataSettings,
) -> tuple[Annotated[RunPlan, "plan"], Annotated[PrivacyLedger, "empty_ledger"]]:
    """Return the plan (noise, rate, steps, epsilon) and the ledger it starts with."""
    from dptune.workflow.planned_units import ledger_of, units_for
    from dptune.workflow.preflight import plan_for

    plan = plan_for(
        recipe,
        privacy,
        units=units_for(data, canaries, corpus),
        counts_noise_multiplier=scoring.noise_multiplier,
    )
    return plan, ledger_of(plan, corpus)
