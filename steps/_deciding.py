"""Decide on a registered version from what is stored with it, and record it."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from zenml import log_metadata
from zenml.metadata.metadata_types import MetadataType

from dptune.errors import (
    ArtifactError,
    ConfigError,
    MalformedEvidenceError,
    PrivacyError,
)
from dptune.gates.decision import GateDecision, decide, unreadable
from dptune.gates.policy import GatePolicy
from dptune.gates.signing import Statement, seal, signer_of
from dptune.reports.card.page import render_html, render_markdown
from dptune.reports.card.statements import (
    PrivacyCard,
    at_a_glance,
    epsilon_words,
    summary_markdown,
)
from dptune.results import RegisteredVersion
from dptune.workflow.dossier import Dossier
from infra.workspace import read_signing_key
from steps import _champions, _registry, _tracking
from steps._evidence import examine
from steps._files import look_at_files
from steps._noting import note_verdict
from steps._registry import show_on_run

StoredT = TypeVar("StoredT", bound=BaseModel)
ENVELOPE = "decision.signed.json"
_POLICY, _KEPT = "policy.json", "decisions"
_NO_EVIDENCE = (
    *(MalformedEvidenceError, PrivacyError),
    *(ValueError, TypeError, LookupError, ArithmeticError, AttributeError),
)
"""What nonsense in stored evidence raises; an ArtifactError says that there is none."""


def decide_on(
    model_name: str, version: str, *, policy: GatePolicy
) -> tuple[GateDecision, PrivacyCard | None]:
    """Gate one version against the current champion; keep decision and card with it.

    Evidence that cannot be read, the champion's as well, is INVALID, and has no card;
    so are files that are not those that were registered.

    Raises:
        ArtifactError: there is no such version, or it has no evidence.
    """
    registered = _tracking.describe(model_name, version)
    files = look_at_files(registered)
    text = _tracking.read_evidence(model_name, version)
    champion = _champions.champion(model_name)
    now = datetime.now(tz=UTC)
    override = _tracking.override_of(_tracking.get_version(model_name, version))
    card = None
    try:
        dossier = parse_dossier(text, version)
        rival = None if champion == version else champion
        deleted = rival is not None and not _champions.is_there(model_name, rival)
        rival = None if deleted else rival
        other = _read_champion(model_name, rival) if rival else None
        origin, attempts = examine(
            dossier, text, registered, policy=policy, now=now, champion=rival
        )
        evidence = dossier.evidence(
            other,
            champion_deleted=deleted,
            decided_at=now,
            files=files,
            origin=origin,
            attempts=attempts,
        )
        decision = decide(evidence, policy)
        card = dossier.card(registered, decision, override=override)
    except (ConfigError, *_NO_EVIDENCE) as error:
        decision = unreadable(
            text,
            policy,
            model_digest=registered.model_digest,
            reason=_what_is_wrong(error),
            files=files,
        )
    statement = Statement(
        model_name=model_name,
        model_version=version,
        decided_at=now,
        decision=decision,
        manifest=files.stored,
        decision_hash=decision.decision_hash,
    )
    envelope = seal(statement, private_key=read_signing_key())
    kept = {
        ENVELOPE: envelope,
        _kept_as(decision.decision_hash): envelope,
        _POLICY: policy.model_dump_json(indent=2),
    }
    with _registry.recording_decision(model_name):
        note_verdict(model_name, version, decision)
        _record(registered, decision, card, beside=champion, files=kept)
    return decision, card


def kept_envelope(model_name: str, version: str, decision_hash: str) -> str | None:
    """Return a decision on a version, the newest or an earlier one, by its hash."""
    if not re.fullmatch(r"[0-9a-f]{64}", decision_hash):
        return None
    return _tracking.read_file(model_name, version, _kept_as(decision_hash))


def _kept_as(decision_hash: str) -> str:
    """Name the file of a decision, which later ones leave alone."""
    return f"{_KEPT}/{decision_hash}.signed.json"


def _what_is_wrong(error: Exception) -> str:
    """Say why evidence cannot be read; only our own words may quote it."""
    if isinstance(error, MalformedEvidenceError | ConfigError):
        return str(error)
    return (
        f"evidence must be what the attacks wrote, but reading it ends in "
        f"{type(error).__name__}."
    )


def decide_beside_champion(
    version: RegisteredVersion, decision: GateDecision
) -> GateDecision:
    """Return a decision, made again if the champion is not the one that it knew.

    Called in a step, while nobody else can move the champion.

    Raises:
        ArtifactError: the policy is not stored with the version any more.
    """
    known = _tracking.get_version(version.model_name, version.version)
    champion = _champions.champion(version.model_name)
    if _tracking.decided_beside(known) == champion:
        return decision
    policy = _tracking.read_file(version.model_name, version.version, _POLICY)
    if policy is None:
        raise ArtifactError(f"version {version.version} must have {_POLICY}.")
    again, card = decide_on(
        version.model_name,
        version.version,
        policy=_as_written(GatePolicy, policy, _POLICY),
    )
    show_on_run(glance(again, card), version, outcome=again.outcome)
    log_metadata(decision_metadata(again, version))
    return again


def glance(decision: GateDecision, card: PrivacyCard | None) -> dict[str, str]:
    """Say on a page what was decided; what cannot be read has no card."""
    if card is not None:
        return at_a_glance(card, decision)
    return {"verdict": str(decision.outcome), "refused by evidence": reasons(decision)}


def _as_written(schema: type[StoredT], text: str, name: str) -> StoredT:
    """Read a stored file of ours.

    Raises:
        ArtifactError: it is not what was written.
    """
    try:
        return schema.model_validate_json(text)
    except ValidationError:
        raise ArtifactError(
            f"{name} must be what `gate` wrote, but cannot be read. Run `dptune "
            "gate` on the version again."
        ) from None


def decision_metadata(
    decision: GateDecision, version: RegisteredVersion
) -> dict[str, MetadataType]:
    """Say on the step what was decided; alerts read it."""
    return {
        "gate": decision.outcome.value,
        "gate_reason": reasons(decision),
        "model": f"{version.model_name} version {version.version}",
        "policy": decision.policy,
        "criteria": ", ".join(c.name for c in decision.failed()) or "all met",
    }


def record_override(model_name: str, version: str, *, reason: str) -> None:
    """Keep why a version was promoted past the gate: on its card and both registries.

    Later decisions keep the reason.
    """
    registered = _tracking.describe(model_name, version)
    kept = _tracking.read_file(model_name, version, "decision.json")
    decision = _as_written(GateDecision, kept, "decision.json") if kept else None
    card = read_dossier(model_name, version).card(registered, decision, override=reason)
    summary = summary_markdown(at_a_glance(card, decision))
    _tracking.record_override(
        registered, reason=reason, summary=summary, files=_card_files(card)
    )
    metadata: dict[str, MetadataType] = {"override": reason}
    _registry.ensure_zenml_version(model_name, version, metadata=metadata)


def _card_files(card: PrivacyCard | None) -> dict[str, str]:
    """The card, for reading in two ways; an old one would contradict the decision."""
    if card is None:
        no = "There is no card: the evidence of this version cannot be read."
        return {"privacy_card.md": f"{no}\n", "privacy_card.html": f"<p>{no}</p>\n"}
    return {
        "privacy_card.md": render_markdown(card),
        "privacy_card.html": render_html(card),
    }


def read_dossier(model_name: str, version: str | None) -> Dossier:
    """Read the dossier that is stored with a version.

    Raises:
        ArtifactError: there is none.
        MalformedEvidenceError: it is not what was written.
    """
    return parse_dossier(
        _tracking.read_evidence(model_name, str(version)), str(version)
    )


def _read_champion(model_name: str, version: str) -> Dossier:
    """Read the dossier that another version is compared with.

    Raises:
        MalformedEvidenceError: it is not what was written, or there is none any more.
    """
    try:
        return read_dossier(model_name, version)
    except MalformedEvidenceError:
        raise
    except ArtifactError:
        raise MalformedEvidenceError(
            f"evidence of version {version}, the champion, must be there to compare "
            "with, but is gone. Restore it in MLflow's store, or go back to another "
            "champion."
        ) from None


def parse_dossier(text: str, version: str) -> Dossier:
    """Read a dossier from what is stored with a version.

    Raises:
        MalformedEvidenceError: it is not what was written; names fields, no values.
    """
    try:
        return Dossier.model_validate_json(text)
    except ValidationError as error:
        found = [
            ".".join(map(str, one["loc"])) or "the whole file"
            for one in error.errors(include_url=False, include_input=False)
        ]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    raise MalformedEvidenceError(
        f"evidence of version {version} must be what the attacks wrote, but cannot be "
        f"read at {', '.join(one[:80] for one in found[:3])}{more}."
    )


def reasons(decision: GateDecision) -> str:
    """Say in one line why a decision is not a pass, or that it is one."""
    failed = decision.failed()
    return "; ".join(f"{c.name}: {c.reason}" for c in failed) or "every criterion met"


def _record(
    version: RegisteredVersion,
    decision: GateDecision,
    card: PrivacyCard | None,
    *,
    beside: str | None,
    files: Mapping[str, str],
) -> None:
    """Write decision and card to MLflow, and the verdict to ZenML's twin."""
    signer, page = signer_of(files[ENVELOPE]), glance(decision, card)
    _tracking.record_decision(
        version,
        decision=decision,
        reasons=reasons(decision),
        signer=signer,
        epsilons={
            f"{c.notion}.{c.relation}": epsilon_words(c)
            for c in (card.certificates if card else ())
        },
        summary=summary_markdown(page),
        beside=beside,
        files={
            **files,
            "decision.json": decision.model_dump_json(indent=2),
            **_card_files(card),
        },
    )
    twin = _registry.ensure_zenml_version(
        version.model_name, version.version, metadata={}
    )
    said = {
        **page,
        "decision_hash": decision.decision_hash,
        "policy": decision.policy,
        "decision_signed_by": signer,
    }
    _registry.show_decision(twin, said)
    _registry.tag_verdict(twin, decision.outcome)
