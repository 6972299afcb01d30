"""Step: one training stage of the recipe. Never cached: it charges the ledger.

A finished identical stage is answered by the stage's own folder instead, where the
charge lies beside the weights.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated

from zenml import get_step_context, log_metadata, step

from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySet
from dptune.attacks.settings import AttackSettings
from dptune.audits.step_report import StepAudit
from dptune.config import ModelSettings, PerformanceSettings
from dptune.data.records import Corpus
from dptune.detection.scoring import SensitivityTable
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan
from dptune.results import BudgetReservation, StageReport, TrainedCanaries
from dptune.settings import StepAuditSettings
from infra.allocator import freed_memory_kept
from infra.workspace import current_workspace, data_root
from steps._caching import NEVER

if TYPE_CHECKING:
    from dptune.workflow.inputs import StageInputs
    from dptune.workflow.tracing import Tracer


@step(enable_cache=False, cache_policy=NEVER, experiment_tracker=True)
def train_stage(
    model: ModelBundle,
    corpus: Corpus,
    plan: RunPlan,
    ledger: PrivacyLedger,
    reservation: BudgetReservation,
    sensitivity: SensitivityTable,
    stage: str,
    settings: ModelSettings,
    performance: PerformanceSettings,
    seed: int | None,
    retrain: bool,
    repetition: int,
    labelled: Corpus,
    canaries: CanarySet,
    attacks: AttackSettings,
    audit: StepAuditSettings,
) -> tuple[
    Annotated[ModelBundle, "model"],
    Annotated[PrivacyLedger, "ledger"],
    Annotated[StageReport, "stage_report"],
    Annotated[StepAudit, "step_audit"],
    Annotated[TrainedCanaries, "trained_canaries"],
]:
    """Return the trained model, the longer ledger, how the stage went, and its audit.

    Last comes which canaries the stage trained on, by their tokens.

    The audit is of this very run: what was recorded while it trained, and a few steps
    run again on its own data.
    """
    from dptune.workflow.budget import release_held, spender
    from dptune.workflow.device import pick_device, remembered_peak
    from dptune.workflow.inputs import StageInputs
    from dptune.workflow.train_stage import run_stage
    from dptune.workflow.whitebox import kept_audit
    from infra.nodes.launcher import launcher_of
    from steps._figures import log_internal_curve, log_progress
    from steps._training_progress import TrainingProgress

    inputs = StageInputs.of(
        model,
        corpus,
        plan,
        stage,
        settings,
        seed=seed,
        data_root=data_root(),
        repetition=repetition,
        sensitivity=sensitivity,
    )
    workspace = current_workspace()
    home = workspace.runs / inputs.key()
    tracer = _tracer(inputs, labelled, canaries, attacks, performance, reservation)
    with (
        freed_memory_kept(pick_device(performance.device)),
        release_held(workspace.budget_url, reservation),
        remembered_peak(home / "peak_memory", performance) as peak,
        TrainingProgress(
            f"stage {stage}",
            plan=inputs.plan,
            run=plan,
            journal=home / "ledger.jsonl",
            record=lambda figures, step: log_progress(stage, figures, step=step),
        ) as on_step,
    ):
        done = run_stage(
            inputs,
            ledger,
            folder=workspace.runs,
            performance=performance,
            retrain=retrain,
            run=reservation.id,
            spend=spender(workspace.budget_url, reservation),
            on_step=on_step,
            watch=tracer.watch if tracer.steps else None,
            canaries=canaries,
            launch=launcher_of(get_step_context().step_run.config.extra),
        )
        audited = kept_audit(
            inputs,
            done.ledger,
            performance=performance,
            num_steps=audit.num_steps,
            home=home,
        )
    log_metadata({"audit": audited.summary})
    log_internal_curve(f"{stage}/loss", {p.step: p.loss for p in done.report.curve})
    more = {"peak_memory_bytes": peak.num_bytes, "trace": tracer.points()}
    report = done.report.model_copy(update=more)
    return done.bundle, done.ledger, report, audited, done.trained


def _tracer(
    inputs: "StageInputs",
    labelled: Corpus,
    canaries: CanarySet,
    attacks: AttackSettings,
    performance: PerformanceSettings,
    reservation: BudgetReservation,
) -> "Tracer":
    """Measure the stage's model while it trains, beside its checkpoint."""
    from dptune.workflow.attempts import record_trace
    from dptune.workflow.tracing import Tracer

    workspace = current_workspace()
    return Tracer(
        plan=inputs.plan,
        corpus=labelled,
        canaries=canaries,
        attacks=attacks,
        max_tokens=inputs.max_tokens,
        performance=performance,
        file=workspace.runs / inputs.key() / "trace.jsonl",
        cache=workspace.cache,
        enter=partial(
            record_trace,
            workspace.budget_url,
            reservation.id,
            canaries.digest,
            data_set=reservation.data_set,
        ),
    )
