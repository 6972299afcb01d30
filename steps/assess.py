"""Step: what one cell of a comparison came to. Registers nothing, promotes nothing."""

from typing import Annotated

from zenml import log_metadata, step

from dptune.accounting.ledger import PrivacyLedger
from dptune.config import TrainConfig
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan
from dptune.reports.cells import CellResult
from dptune.results import (
    BudgetReport,
    ChampionReport,
    CorpusReport,
    DetectionReport,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    RedactionReport,
    UtilityReport,
)
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def assess(
    model: ModelBundle,
    plan: RunPlan,
    ledger: PrivacyLedger,
    corpus: CorpusReport,
    detection: DetectionReport,
    redaction: RedactionReport,
    exposure: ExposureReport,
    membership: MembershipReport,
    extraction: ExtractionReport,
    utility: UtilityReport,
    budget: BudgetReport,
    config: TrainConfig,
    label: str,
) -> Annotated[CellResult, "cell"]:
    """Return utility, leakage, claims and what the gate would decide."""
    from dptune.workflow.assess import assess as assess_dossier
    from steps._evidence import attempts_now
    from steps._figures import log_numbers
    from steps._registering import dossier_of_run, measured_numbers

    dossier = dossier_of_run(
        model,
        config,
        plan=plan,
        ledger=ledger,
        corpus=corpus,
        detection=detection,
        redaction=redaction,
        exposure=exposure,
        membership=membership,
        extraction=extraction,
        utility=utility,
        champion=ChampionReport(),
        budget=budget,
    )
    numbers = measured_numbers(dossier)
    log_numbers(numbers)
    log_metadata({"recipe": label, **{k: f"{v:.4g}" for k, v in numbers.items()}})
    return assess_dossier(
        dossier,
        config.gate,
        label=label,
        seed=config.repetition,
        attempts=attempts_now(budget.data_set),
    )
