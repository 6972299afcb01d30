"""Decide on a registered version from what is stored with it, and record it."""

from collections.abc import Mapping
from datetime import UTC, datetime

from zenml import log_metadata
from zenml.metadata.metadata_types import MetadataType

from dptune.errors import ArtifactError
from dptune.gates.decision import GateDecision, decide
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import Statement, seal, signer_of
from dptune.reports.card import PrivacyCard, render_html, render_markdown
from dptune.reports.summary import at_a_glance, epsilon_words, summary_markdown
from dptune.results import RegisteredVersion
from dptune.workflow.dossier import Dossier
from infra.workspace import read_signing_key
from steps import _registry, _tracking
from steps._dashboard import show_on_run

ENVELOPE = "decision.signed.json"
_POLICY = "policy.json"


def decide_on(
    model_name: str, version: str, *, policy: GatePolicy
) -> tuple[GateDecision, PrivacyCard]:
    """Gate one version against the current champion; keep decision and card with it.

    Raises:
        ArtifactError: the stored evidence is of other weights than the version's.
    """
    registered = _tracking.describe(model_name, version)
    dossier = read_dossier(model_name, version)
    if dossier.model_digest != registered.model_digest:
        raise ArtifactError(
            f"evidence of version {version} must be of its own weights, but the "
            "digests differ. Run the attacks on this version again."
        )
    champion = _tracking.alias(model_name, _tracking.CHAMPION)
    other = (
        read_dossier(model_name, champion) if champion not in (None, version) else None
    )
    now = datetime.now(tz=UTC)
    decision = decide(dossier.evidence(other, decided_at=now), policy)
    override = _tracking.override_of(_tracking.get_version(model_name, version))
    card = dossier.card(registered, decision, override=override)
    statement = Statement(
        model_name=model_name,
        model_version=version,
        decided_at=now,
        decision=decision,
        decision_hash=decision.decision_hash,
    )
    envelope = seal(statement, private_key=read_signing_key())
    files = {ENVELOPE: envelope, _POLICY: policy.model_dump_json(indent=2)}
    _record(registered, decision, card, beside=champion, files=files)
    return decision, card


def decide_beside_champion(
    version: RegisteredVersion, decision: GateDecision
) -> GateDecision:
    """Return a decision, made again if the champion is not the one that it knew.

    Called in a step, while nobody else can move the champion.

    Raises:
        ArtifactError: the policy is not stored with the version any more.
    """
    known = _tracking.get_version(version.model_name, version.version)
    champion = _tracking.alias(version.model_name, _tracking.CHAMPION)
    if _tracking.decided_beside(known) == champion:
        return decision
    policy = _tracking.read_file(version.model_name, version.version, _POLICY)
    if policy is None:
        raise ArtifactError(f"version {version.version} must have {_POLICY}.")
    again, card = decide_on(
        version.model_name,
        version.version,
        policy=GatePolicy.model_validate_json(policy),
    )
    show_on_run(at_a_glance(card, again), version, outcome=again.outcome)
    log_metadata(decision_metadata(again, version))
    return again


def decision_metadata(
    decision: GateDecision, version: RegisteredVersion
) -> dict[str, MetadataType]:
    """Say on the step what was decided; alerts read it."""
    return {
        "gate": decision.outcome.value,
        "gate_reason": reasons(decision),
        "model": f"{version.model_name} version {version.version}",
        "criteria": ", ".join(c.name for c in decision.failed()) or "all met",
    }


def record_override(model_name: str, version: str, *, reason: str) -> None:
    """Keep why a version was promoted past the gate: on its card and both registries.

    Later decisions keep the reason.
    """
    registered = _tracking.describe(model_name, version)
    kept = _tracking.read_file(model_name, version, "decision.json")
    decision = GateDecision.model_validate_json(kept) if kept else None
    card = read_dossier(model_name, version).card(registered, decision, override=reason)
    summary = summary_markdown(at_a_glance(card, decision))
    _tracking.record_override(
        registered, reason=reason, summary=summary, files=_card_files(card)
    )
    metadata: dict[str, MetadataType] = {"override": reason}
    _registry.ensure_zenml_version(model_name, version, metadata=metadata)


def _card_files(card: PrivacyCard) -> dict[str, str]:
    """The card, for reading in two ways."""
    return {
        "privacy_card.md": render_markdown(card),
        "privacy_card.html": render_html(card),
    }


def read_dossier(model_name: str, version: str | None) -> Dossier:
    """Read the dossier that is stored with a version."""
    return Dossier.model_validate_json(
        _tracking.read_evidence(model_name, str(version))
    )


def reasons(decision: GateDecision) -> str:
    """Say in one line why a decision is not a pass, or that it is one."""
    failed = decision.failed()
    return "; ".join(f"{c.name}: {c.reason}" for c in failed) or "every criterion met"


def _record(
    version: RegisteredVersion,
    decision: GateDecision,
    card: PrivacyCard,
    *,
    beside: str | None,
    files: Mapping[str, str],
) -> None:
    """Write decision and card to MLflow, and the verdict to ZenML's twin."""
    signer, glance = signer_of(files[ENVELOPE]), at_a_glance(card, decision)
    _tracking.record_decision(
        version,
        outcome=decision.outcome.value,
        decision_hash=decision.decision_hash,
        reasons=reasons(decision),
        signer=signer,
        epsilons={
            f"{c.notion}.{c.relation}": epsilon_words(c) for c in card.certificates
        },
        summary=summary_markdown(glance),
        beside=beside,
        files={
            **files,
            "decision.json": decision.model_dump_json(indent=2),
            **_card_files(card),
        },
    )
    twin = _registry.ensure_zenml_version(
        version.model_name,
        version.version,
        metadata={
            **glance,
            "decision_hash": decision.decision_hash,
            "decision_signed_by": signer,
        },
    )
    _registry.tag_verdict(twin, decision.outcome)
