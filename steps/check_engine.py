"""Step: measure the steps of a recorded stage again, without training."""

from typing import Annotated

from zenml import log_metadata, step

from dptune.accounting.ledger import PrivacyLedger
from dptune.audits.step_report import StepAudit
from dptune.config import ModelSettings, PerformanceSettings
from dptune.data.records import Corpus
from dptune.detection.scoring import SensitivityTable
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan
from dptune.workflow.inputs import StageInputs
from dptune.workflow.whitebox import audit_stage
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER)
def check_engine(
    model: ModelBundle,
    corpus: Corpus,
    plan: RunPlan,
    ledger: PrivacyLedger,
    sensitivity: SensitivityTable,
    stage: str,
    settings: ModelSettings,
    performance: PerformanceSettings,
) -> Annotated[StepAudit, "step_audit"]:
    """Return what the engine does, beside what the plan and the ledger say."""
    inputs = StageInputs.of(
        model, corpus, plan, stage, settings, seed=None, sensitivity=sensitivity
    )
    audit = audit_stage(inputs, ledger, performance=performance)
    log_metadata({"passed": audit.passed})
    return audit
