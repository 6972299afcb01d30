"""Step: register the model in both registries, with everything that is known of it."""

from typing import Annotated

from zenml import step

from dptune.accounting.ledger import PrivacyLedger
from dptune.audits.step_report import StepAudit
from dptune.config import TrainConfig
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan
from dptune.results import (
    BudgetReport,
    ChampionReport,
    CorpusReport,
    DetectionReport,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    RedactionReport,
    RegisteredVersion,
    UtilityReport,
)
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def register(
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
    champion: ChampionReport,
    budget: BudgetReport,
    step_audits: list[StepAudit],
    config: TrainConfig,
) -> Annotated[RegisteredVersion, "version"]:
    """Return the version; weights that are registered already keep theirs."""
    from steps._evidence import refuse_changed_inputs
    from steps._registering import dossier_of_run, register_dossier

    reports = {
        "plan": plan,
        "ledger": ledger,
        "corpus": corpus,
        "detection": detection,
        "redaction": redaction,
        "exposure": exposure,
        "membership": membership,
        "extraction": extraction,
        "utility": utility,
        "champion": champion,
        "budget": budget,
    }
    refuse_changed_inputs(reports)
    audits = tuple(step_audits)
    dossier = dossier_of_run(model, config, step_audits=audits, **reports)
    return register_dossier(dossier, model.path, model_name=config.registry.model_name)
