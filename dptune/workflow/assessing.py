"""What one cell of a comparison came to, from what its run measured."""

import hashlib
from datetime import UTC, datetime

from dptune.gates.decision import decide
from dptune.gates.evidence import AttemptsEvidence, OriginEvidence
from dptune.gates.policy import GatePolicy
from dptune.planning import RunPlan
from dptune.reports.cells import CellResult
from dptune.results import DetectionReport, Interval, RegisteredVersion
from dptune.stages import StagePlan
from dptune.workflow.agreement import contradictions
from dptune.workflow.dossier import Dossier


def assess(
    dossier: Dossier,
    policy: GatePolicy,
    *,
    label: str,
    seed: int,
    attempts: AttemptsEvidence | None = None,
) -> CellResult:
    """Say what a model leaks, what it promises and what the gate would decide.

    The model is not registered: champions stay what they are.

    Args:
        dossier: everything that is known about the model.
        policy: of the configuration.
        label: of the recipe in its comparison.
        seed: number of the repetition.
        attempts: how often the data set was tried; None says that nobody counted.
    """
    plan = dossier.plan
    text = dossier.model_dump_json()
    origin = OriginEvidence(
        digest=hashlib.sha256(text.encode()).hexdigest(),
        signer="unsigned",
        is_verified=False,
        faults=contradictions(dossier),
    )
    evidence = dossier.evidence(
        None, decided_at=datetime.now(tz=UTC), origin=origin, attempts=attempts
    )
    decision = decide(evidence, policy)
    nowhere = RegisteredVersion(
        model_name=label,
        version="not registered",
        model_digest=dossier.model_digest,
        model_uri="",
        recipe=plan.recipe,
    )
    return CellResult(
        label=label,
        recipe=plan.recipe,
        target_epsilon=plan.target_epsilon,
        seed=seed,
        notion=plan.notion.value,
        relation=plan.relation.value,
        utility=dossier.utility,
        exposure=dossier.exposure,
        membership=dossier.membership,
        card=dossier.card(nowhere, decision),
        nominal_interval=nominal_interval(plan, dossier.detection),
    )


def nominal_interval(plan: RunPlan, detection: DetectionReport) -> Interval | None:
    """Return the papers' figure at both ends of the missing rate's interval.

    Args:
        plan: of the run; a stage whose figure counts on a missing rate has a
            `nominal.rate_factor` below 1.
        detection: with the interval, where the rate was measured.

    References:
        Shi et al. (2022), section 3.1 and table 3.
    """
    rate = detection.missing_rate_interval
    counts = [s for s in plan.stages if _counts_on_rate(s)]
    if rate is None or not counts:
        return None
    return Interval(
        low=_nominal_at(plan, rate.low),
        high=_nominal_at(plan, rate.high),
        confidence=rate.confidence,
    )


def _counts_on_rate(stage: StagePlan) -> bool:
    """Whether the paper scales a stage's sampling rate by the missing rate."""
    nominal = stage.settings.nominal
    return nominal is not None and nominal.rate_factor < 1


def _nominal_at(plan: RunPlan, missing_rate: float) -> float:
    """Add the stages' figures up as if the detector missed that share."""
    return sum(
        _stage_nominal(stage, missing_rate, delta=plan.target_delta) or 0.0
        for stage in plan.stages
    )


def _stage_nominal(
    stage: StagePlan, missing_rate: float, *, delta: float
) -> float | None:
    """Return one stage's figure; it costs nothing where nothing is missed."""
    nominal = stage.settings.nominal
    if nominal is None or not _counts_on_rate(stage):
        return stage.nominal_epsilon
    if missing_rate <= 0:
        return 0.0
    changed = nominal.model_copy(update={"rate_factor": min(missing_rate, 1.0)})
    settings = stage.settings.model_copy(update={"nominal": changed})
    other = stage.model_copy(update={"settings": settings})
    return other.with_nominal(delta=delta).nominal_epsilon
