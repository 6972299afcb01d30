"""Where a version's evidence comes from: what was written down of it, and where.

| what speaks for it | where it is kept |
|---|---|
| its digest when it was registered | a tag in MLflow |
| the same, append-only and chained | the log of the budget store |
| a signature of the run that measured it, where there is a key | beside it |
| plan, ledger, claims and audits agree | in itself, computed again |
| every charge was paid | the budget store |
"""

from datetime import UTC, datetime

from zenml import get_step_context

from dptune.accounting.store.attempts import (
    Attempt,
    broken_log,
    clock_behind,
    last_attempt,
    losses,
    record_attempt,
)
from dptune.accounting.store.store import BudgetStore
from dptune.errors import ArtifactError, GateFailedError
from dptune.gates.decision import GateDecision
from dptune.gates.evidence import AttemptsEvidence, OriginEvidence
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import (
    UNSIGNED,
    EvidenceStatement,
    open_evidence,
    seal,
    signer_of,
)
from dptune.results import RegisteredVersion
from dptune.workflow.assess import contradictions, unpaid
from dptune.workflow.attempts import attempts_on
from dptune.workflow.dossier import Dossier
from infra.workspace import read_signing_key
from steps import _champions, _tracking
from steps._lineage import trained_over
from steps._lost import budget_store, lost_heads
from steps._noting import cut_trail
from steps._tracking import digest_of


def keep_evidence(dossier: Dossier, version: RegisteredVersion) -> None:
    """Write evidence with its version, sign it, and enter it into the budget store.

    Called in the step that registers the version.
    """
    text, key = dossier.model_dump_json(), read_signing_key()
    digest, budget = digest_of(text), dossier.budget
    data_set = budget.data_set if budget else ""
    statement = EvidenceStatement(
        model_name=version.model_name,
        model_version=version.version,
        model_digest=dossier.model_digest,
        evidence_digest=digest,
        data_set=data_set,
        run=str(get_step_context().pipeline_run.id),
        measured_at=dossier.measured_at,
        registered_at=datetime.now(tz=UTC),
    )
    with budget_store() as store:
        if store is not None:
            record_attempt(
                store,
                data_set=data_set,
                kind=Attempt.REGISTRATION,
                subject=digest,
                about=_about(version),
            )
    _tracking.keep_evidence(
        version,
        text,
        signed=seal(statement, private_key=key),
        digest=digest,
        paid=f"{budget.head_sequence}:{budget.head_hash}" if budget else "",
    )


def examine(
    dossier: Dossier,
    text: str,
    version: RegisteredVersion,
    *,
    policy: GatePolicy,
    now: datetime,
    champion: str | None = None,
) -> tuple[OriginEvidence, AttemptsEvidence | None]:
    """Say where stored evidence comes from, and how often its data set was tried.

    The decision that is about to be made is counted.

    Args:
        dossier: as it was read.
        text: that it was read from.
        version: that it should be about.
        policy: of the decision.
        now: the time.
        champion: the version whose evidence it is compared with, if there is another.
    """
    digest, faults = digest_of(text), list(contradictions(dossier))
    remarks = [_champions.misplaced_champion(version.model_name)]
    envelope = _tracking.read_file(
        version.model_name, version.version, _tracking.SIGNED_EVIDENCE
    )
    run, signer, is_verified, problems = _signature(
        envelope, dossier, version, digest=digest
    )
    faults += problems
    faults += filter(None, [trained_over(dossier, version)])
    known = _tracking.get_version(version.model_name, version.version)
    if _tracking.evidence_digest_of(known) != digest:
        faults.append("It does not have the digest that the registry noted.")
    data_set = dossier.budget.data_set if dossier.budget else ""
    attempts = None
    with budget_store() as store:
        faults += unpaid(dossier, store)
        broken = broken_log(store) if store is not None else ""
        faults += [broken] if broken else []
        if store is not None:
            faults += _unlike_log(store, data_set, version, digest=digest, now=now)
            record_attempt(
                store,
                data_set=data_set,
                kind=Attempt.DECISION,
                subject=digest_of(f"{digest} {policy.digest}"),
                about=_about(version),
            )
            attempts = attempts_on(store, data_set)
        if not broken:  # else the log says nothing of champions
            faults += filter(None, [cut_trail(version.model_name)])
        if champion is not None:
            fault, remark = _unlike_noted(store, version.model_name, champion)
            faults += [fault] if fault else []
            remarks.append(remark)
    if lost := lost_heads():
        faults.append(
            f"The budget store does not hold what paid for {', '.join(list(lost)[:3])}."
        )
    origin = OriginEvidence(
        digest=digest,
        signer=signer,
        is_verified=is_verified,
        run=run,
        faults=tuple(faults),
        remarks=tuple(filter(None, remarks)),
    )
    return origin, attempts


def _unlike_noted(
    store: BudgetStore | None, model_name: str, champion: str
) -> tuple[str, str]:
    """Hold the champion's evidence to what registry and log noted of it.

    Its loss is the bar for every other version: an edited one lets a bad one through.
    Its signature may be an earlier key's, and is not asked for.

    Returns:
        What is wrong, and what should be known; both may be empty.
    """
    text = _tracking.read_evidence(model_name, champion)
    noted = {_tracking.evidence_digest_of(_tracking.get_version(model_name, champion))}
    if store is not None:
        budget = Dossier.model_validate_json(text).budget
        logged = last_attempt(
            store,
            data_set=budget.data_set if budget else "",
            kind=Attempt.REGISTRATION,
            about=_about(_tracking.describe(model_name, champion)),
        )
        if logged or not losses(store):
            noted.add(logged or "")
    if noted == {""}:
        return "", "Nobody noted the champion's evidence: it is from before that."
    if noted != {digest_of(text)}:
        return "The champion's evidence is not what was noted when it was measured.", ""
    return "", ""


def is_noted(dossier: Dossier, text: str, version: RegisteredVersion) -> bool:
    """Whether evidence is what the budget store noted of a version last."""
    data_set, about = dossier.budget.data_set if dossier.budget else "", _about(version)
    kind = Attempt.REGISTRATION
    with budget_store() as store:
        return store is not None and digest_of(text) == last_attempt(
            store, data_set=data_set, kind=kind, about=about
        )


def refuse_changed_evidence(version: RegisteredVersion, decision: GateDecision) -> None:
    """Refuse to act on a decision whose evidence is another one now.

    Raises:
        GateFailedError: it was changed since, or registered anew.
    """
    text = _tracking.read_evidence(version.model_name, version.version)
    if digest_of(text) != decision.dossier_digest:
        raise GateFailedError(
            f"the evidence of version {version.version} of {version.model_name} is not "
            "what the gate decided on. Run `dptune gate` on it again."
        )


def refuse_unnoted_evidence(version: RegisteredVersion) -> None:
    """Refuse to vouch for a version whose evidence is not what the registry noted.

    It may be another than its decision was about: the same run may register it anew.

    Raises:
        GateFailedError: it is gone, or was changed.
    """
    name, number = version.model_name, version.version
    text = _tracking.read_file(name, number, _tracking.EVIDENCE)
    noted = _tracking.evidence_digest_of(_tracking.get_version(name, number))
    if text is None or noted not in {"", digest_of(text)}:
        raise GateFailedError(
            f"version {number} of {name} must have the evidence that it was registered "
            f"with, but it {'is gone' if text is None else 'was changed'}. Restore "
            f"{_tracking.EVIDENCE} in MLflow's store."
        )


def attempts_now(data_set: str) -> AttemptsEvidence | None:
    """Count the attempts on a data set; None where no store counts them."""
    with budget_store() as store:
        return None if store is None else attempts_on(store, data_set)


def _signature(
    envelope: str | None,
    dossier: Dossier,
    version: RegisteredVersion,
    *,
    digest: str,
) -> tuple[str, str, bool, list[str]]:
    """Read what was signed: the run, the signer, whether it was checked, and faults."""
    if envelope is None:
        return "", UNSIGNED, False, ["Nothing says which run measured it."]
    key = read_signing_key()
    try:
        statement, signer = (
            open_evidence(envelope, private_key=key),
            signer_of(envelope),
        )
    except ArtifactError as error:
        return "", UNSIGNED, False, [f"Its signature does not hold: {error}"]
    wanted = {
        "model_name": version.model_name,
        "model_version": version.version,
        "model_digest": version.model_digest,
        "evidence_digest": digest,
        "data_set": dossier.budget.data_set if dossier.budget else "",
        "measured_at": dossier.measured_at,
    }
    other = [
        name.replace("_", " ")
        for name, value in wanted.items()
        if getattr(statement, name) != value
    ]
    faults = [f"It was written down with another {', '.join(other)}."] if other else []
    return statement.run, signer, key is not None, faults


def _unlike_log(
    store: BudgetStore,
    data_set: str,
    version: RegisteredVersion,
    *,
    digest: str,
    now: datetime,
) -> list[str]:
    """Compare with the log, whose entries nobody can change."""
    faults = []
    known = last_attempt(
        store, data_set=data_set, kind=Attempt.REGISTRATION, about=_about(version)
    )
    if known != digest:
        faults.append("It does not have the digest that the budget store noted last.")
    return [*faults, *filter(None, [clock_behind(store, now)])]


def _about(version: RegisteredVersion) -> str:
    """Name a version in the log."""
    return f"version {version.version} of {version.model_name}"
