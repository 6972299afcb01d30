"""What one cell of a comparison came to, from what its run measured."""

import hashlib
import math
from collections.abc import Iterator
from datetime import UTC, datetime

from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import Certificate
from dptune.accounting.events import merge_events
from dptune.accounting.store.allowances import NON_PRIVATE, Cost, total
from dptune.accounting.store.attempts import continues
from dptune.accounting.store.log import Head
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import first_plan, history, unit_of
from dptune.gates.decision import decide
from dptune.gates.evidence import AttemptsEvidence, OriginEvidence
from dptune.gates.policy import GatePolicy
from dptune.planning import RunPlan
from dptune.privacy import Notion
from dptune.reports.comparison import CellResult
from dptune.results import DetectionReport, Interval, RegisteredVersion
from dptune.stages import StagePlan
from dptune.workflow.auditing import audit_run
from dptune.workflow.budget import budget_cost
from dptune.workflow.charging import RELEASED_COUNTS, RELEASED_UNITS, stage_entry
from dptune.workflow.dossier import Dossier, certificates_of


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
        decision=decision,
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


_SAME = 1e-4
"""Relative; versions of an accountant differ by less."""


def contradictions(dossier: Dossier) -> tuple[str, ...]:
    """Name what of a dossier contradicts itself; empty where it is of one training.

    Certificates and audits are computed again from ledger and reports.
    """
    return (*_claims(dossier), *_ledger(dossier), *_step_audits(dossier))


def unpaid(dossier: Dossier, store: BudgetStore | None) -> tuple[str, ...]:
    """Name what the budget store contradicts of a dossier's ledger.

    Args:
        dossier: of a run that a store paid for.
        store: as it is now; None where there is none any more.
    """
    if store is None:
        return ("There is no budget store, but a run that one paid for.",)
    return tuple(_unpaid(dossier, store))


def _unpaid(dossier: Dossier, store: BudgetStore) -> Iterator[str]:
    """Name the first thing that a store contradicts."""
    budget = dossier.budget
    if budget is None or not budget.reservation:
        yield "It does not say which reservation paid for the training."
        return
    head = Head(sequence=budget.head_sequence, hash=budget.head_hash)
    ledger = total(map(budget_cost, dossier.ledger.entries))
    paid = total(run.committed for run in history(store, data_set=budget.data_set))
    planned = first_plan(store, budget.reservation)
    unit = unit_of(store, budget.data_set)
    if not continues(store, head):
        yield (
            f"The budget store does not hold entry {head.sequence} of the run: it is "
            "another store, or an older copy."
        )
    elif any(entry.privacy_unit != unit for entry in dossier.ledger.entries):
        yield f"The ledger is of another privacy unit than data set {budget.data_set}."
    elif not paid.covers(ledger):
        yield f"The ledger charges what data set {budget.data_set} never paid for."
    elif planned is None or not ledger.covers(planned):
        yield "The ledger charges less than the run was reserved for."


def _claims(dossier: Dossier) -> Iterator[str]:
    """Issue certificates and audits again, and compare."""
    issued = certificates_of(dossier.ledger, dossier.plan, dossier.detection)
    if not _alike(
        list(map(_figures, dossier.certificates)), list(map(_figures, issued))
    ):
        yield "The claims are not those that follow from the ledger."
        return
    audits = audit_run(
        dossier.exposure,
        ledger=dossier.ledger,
        certificates=dossier.certificates,
        delta=dossier.plan.target_delta,
        detection=dossier.detection,
    )
    stored = [audit.model_dump() for audit in dossier.audits]
    if not _alike(stored, [audit.model_dump() for audit in audits]):
        yield "The audits are not those that follow from the exposures."


def _figures(certificate: Certificate) -> dict[str, object]:
    """What of a certificate is a claim; names and words of an accountant may change."""
    told = {"accountant", "second_opinion", "second_opinion_method", "explanation"}
    return certificate.model_dump(mode="python", exclude=told)


def _alike(stored: object, computed: object) -> bool:
    """Compare dumped reports, floats to a relative difference."""
    if isinstance(stored, float) and isinstance(computed, float):
        return math.isclose(stored, computed, rel_tol=_SAME, abs_tol=1e-12)
    if isinstance(stored, dict) and isinstance(computed, dict):
        return stored.keys() == computed.keys() and all(
            _alike(stored[key], computed[key]) for key in stored
        )
    if isinstance(stored, list | tuple) and isinstance(computed, list | tuple):
        return len(stored) == len(computed) and all(
            _alike(a, b) for a, b in zip(stored, computed, strict=True)
        )
    return stored == computed


def _ledger(dossier: Dossier) -> Iterator[str]:
    """Every stage of the plan must be paid for, and nothing else."""
    plan, entries = dossier.plan, dossier.ledger.entries
    names = {stage.settings.name for stage in plan.stages}
    charged = {entry.stage for entry in entries} - {RELEASED_COUNTS, RELEASED_UNITS}
    if strangers := sorted(charged - names):
        yield f"The ledger charges {', '.join(strangers)}, which the plan has not."
    if any(entry.recipe not in (plan.recipe, "") for entry in entries):
        yield "The ledger is of another recipe than the plan."
    if any(e.data_fingerprint != dossier.corpus.fingerprint for e in entries):
        yield "The ledger is of another corpus."
    if any(e.privacy_unit != dossier.corpus.privacy_unit for e in entries):
        yield "The ledger is of another privacy unit than the corpus."
    if dossier.recipe.name != plan.recipe:
        yield "The recipe is not that of the plan."
    for stage in plan.stages:
        name = stage.settings.name
        if sum(e.num_steps for e in entries if e.stage == name) < stage.num_steps:
            yield f"The ledger charges fewer steps of stage {name} than were planned."
        elif not _pays(dossier, stage):
            yield f"The ledger charges less for stage {name} than its plan costs."
        if forgotten := _forgotten(dossier, stage):
            yield (
                f"The ledger does not say that stage {name} rests on "
                f"{', '.join(forgotten)}."
            )


def _pays(dossier: Dossier, stage: StagePlan) -> bool:
    """Whether a stage's entries hold every mechanism of its plan."""
    notion = Notion.RECORD
    if stage.settings.local is not None:
        notion = Notion.LOCAL
    elif stage.settings.tiers is not None:
        notion = Notion.SELECTIVE
    entries = [e for e in dossier.ledger.entries if e.stage == stage.settings.name]
    if any(entry.dp_event is None for entry in entries):
        return True  # public text
    paid = Cost.of({notion: merge_events(entry.event(notion) for entry in entries)})
    return NON_PRIVATE in paid.tally(notion) or paid.covers(
        Cost.of({notion: stage.dp_event()})
    )


def _forgotten(dossier: Dossier, stage: StagePlan) -> list[str]:
    """Name what a stage takes for granted by corpus and plan, and its entries do not.

    Marks and canaries may add to it while a run goes on: entries may name more. That a
    number of units was released earlier versions did not say.
    """
    planned = stage_entry(
        dossier.corpus.model_copy(update={"redaction": dossier.redaction.operator}),
        stage,
        recipe=dossier.plan.recipe,
        first_step=0,
        num_steps=stage.num_steps,
        fixed_seed=False,
    )
    named = [
        {*entry.assumptions, Assumption.NUM_UNITS_WAS_RELEASED}
        for entry in dossier.ledger.entries
        if entry.stage == stage.settings.name
    ]
    return [a for a in planned.assumptions if not all(a in own for own in named)]


def _step_audits(dossier: Dossier) -> Iterator[str]:
    """What looked on must have looked on at this plan."""
    stages = {stage.settings.name: stage for stage in dossier.plan.stages}
    for audit in dossier.step_audits:
        stage = stages.get(audit.stage)
        if stage is None or audit.recipe != dossier.plan.recipe:
            yield f"Stage {audit.stage} was audited, which the plan does not have."
        elif audit.num_steps > stage.num_steps or (
            audit.num_steps < stage.num_steps
            and stage.settings.controller is None  # which may stop early
        ):
            yield (
                f"Stage {audit.stage} was audited over {audit.num_steps} steps, and "
                f"planned for {stage.num_steps}."
            )
