"""Signed decisions that a deploy job can check offline, and evidence: DSSE, Ed25519.

The envelope is the Dead Simple Signing Envelope, so that other tools can check it too;
its payload is a `Statement` as canonical JSON, or an `EvidenceStatement`.

**Formal guarantee.** `open_envelope` returns only what the holder of the private key
signed, byte for byte: a changed byte anywhere, or another key, raise. What was signed
names every file of the version; `refuse_other_files` compares them with a folder's.

**References**: DSSE protocol 1.0.2 (secure-systems-lab/dsse), RFC 8032.
"""

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from pydantic import AwareDatetime, ValidationError

from dptune.errors import ArtifactError, ConfigError
from dptune.gates.decision import GateDecision, worst_outcome
from dptune.gates.manifest import (
    Manifest,
    difference,
    is_mlflow_layout,
    read_manifest,
)
from dptune.results import Report

PAYLOAD_TYPE: Final = "application/vnd.dptune.gate-decision+json"
EVIDENCE_TYPE: Final = "application/vnd.dptune.evidence+json"
UNSIGNED: Final = "unsigned"


class Statement(Report):
    """What is signed: the decision, and which version it is about.

    Args:
        model_name, model_version: as registered.
        decided_at: when, in UTC.
        decision: with every criterion and the digest of the weights.
        manifest: the files that lay in the store, of which the decision holds the
            digest; none where they could not be listed.
        decision_hash: as the registry shows it.
    """

    model_name: str
    model_version: str
    decided_at: datetime
    decision: GateDecision
    manifest: Manifest
    decision_hash: str

    @property
    def subject(self: Self) -> str:
        """Name the version in a message."""
        return f"version {self.model_version} of {self.model_name}"


class EvidenceStatement(Report):
    """What is signed of evidence, when the run that measured it registers it.

    Args:
        model_name, model_version, model_digest: of the version that it is about.
        evidence_digest: SHA-256 of the evidence as it is stored.
        data_set: whose budget paid for the training.
        run: of the orchestrator that measured and registered.
        measured_at: when the oldest of its attacks ran.
        registered_at: when it was signed.
    """

    model_name: str
    model_version: str
    model_digest: str
    evidence_digest: str
    data_set: str
    run: str
    measured_at: AwareDatetime | None
    registered_at: AwareDatetime


_KINDS: Final[Mapping[type[Report], str]] = {
    Statement: PAYLOAD_TYPE,
    EvidenceStatement: EVIDENCE_TYPE,
}


def seal(statement: Statement | EvidenceStatement, *, private_key: bytes | None) -> str:
    """Put a statement into an envelope, signed where there is a key.

    Args:
        statement: what to sign.
        private_key: Ed25519 as PEM; None leaves the envelope unsigned, and no deploy
            job will take it.

    Raises:
        ConfigError: the key is of another kind. Never quotes it.
    """
    payload = _canonical(json.loads(statement.model_dump_json()))
    kind, signatures = _KINDS[type(statement)], []
    if private_key is not None:
        key = _private(private_key)
        signature = key.sign(_authenticated(payload, kind))
        name = key_id(key.public_key())
        signatures = [{"keyid": name, "sig": base64.b64encode(signature).decode()}]
    return _envelope(payload, signatures, kind)


def open_envelope(text: str, *, public_key: bytes) -> Statement:
    """Return what was signed, or raise.

    | case | raises |
    |---|---|
    | unsigned, or signed with another key | ArtifactError |
    | a byte of the envelope changed | ArtifactError |
    | the decision contradicts its own criteria, hash or files | ArtifactError |

    Args:
        text: the envelope.
        public_key: Ed25519 as PEM.

    Raises:
        ArtifactError: see above.
        ConfigError: the key is of another kind.
    """
    payload = _verified(text, _public(public_key), PAYLOAD_TYPE, what="decision")
    return _checked(payload)


def open_evidence(text: str, *, private_key: bytes | None) -> EvidenceStatement:
    """Return what was signed of evidence with a key, or raise.

    Args:
        text: the envelope.
        private_key: of whoever registers and decides, as PEM; None checks no
            signature, and the statement is worth what its place is worth.

    Raises:
        ArtifactError: unsigned, signed with another key, changed, or something else.
        ConfigError: the key is of another kind.
    """
    if private_key is None:
        kind, payload, _ = _parse(text)
        _refuse_other_kind(kind, EVIDENCE_TYPE, what="evidence")
    else:
        key = _private(private_key).public_key()
        payload = _verified(text, key, EVIDENCE_TYPE, what="evidence")
    try:
        return EvidenceStatement.model_validate_json(payload)
    except ValidationError:
        raise ArtifactError(
            "the signed evidence must be of this version's format, but is not."
        ) from None


def signer_of(text: str) -> str:
    """Name the key of an envelope, or `unsigned`; proves nothing."""
    _, _, signatures = _parse(text)
    return signatures[0]["keyid"] if signatures else UNSIGNED


def _verified(text: str, key: Ed25519PublicKey, kind: str, *, what: str) -> bytes:
    """Return the payload of an envelope of one kind that a key signed."""
    found, payload, signatures = _parse(text)
    if not signatures:
        raise ArtifactError(
            f"the {what} must be signed, but is not: no key was configured where it "
            "was made. Set DPTUNE_SIGNING_KEY_FILE there and make it again."
        )
    mine = [s["sig"] for s in signatures if s["keyid"] == key_id(key)]
    if not mine:
        made = ", ".join(s["keyid"] for s in signatures)
        raise ArtifactError(
            f"the {what} must be signed with key {key_id(key)}, got {made}. Use the "
            "public key that belongs to the signer, or do not deploy."
        )
    try:
        key.verify(_decode(mine[0]), _authenticated(payload, found))
    except InvalidSignature:
        raise _changed() from None
    _refuse_other_kind(found, kind, what=what)
    return payload


def open_unverified(text: str) -> Statement:
    """Return what an envelope holds, whoever wrote it; proves nothing.

    Raises:
        ArtifactError: it is no envelope, or contradicts itself.
    """
    kind, payload, _ = _parse(text)
    _refuse_other_kind(kind, PAYLOAD_TYPE, what="decision")
    return _checked(payload)


def public_key_of(private_key: bytes) -> bytes:
    """Return the public half of a signing key, as PEM.

    Raises:
        ConfigError: the key is of another kind. Never quotes it.
    """
    public = _private(private_key).public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def refuse_other_weights(statement: Statement, model_digest: str) -> None:
    """Refuse a digest of weights that the decision is not about.

    Raises:
        ArtifactError: the digests differ.
    """
    known = statement.decision.model_digest
    if known != model_digest:
        raise ArtifactError(
            "the decision must be about these weights, got digest "
            f"{model_digest[:16]} and a decision on {known[:16]}. "
            "Deploy the version that was decided on."
        )


def refuse_other_files(statement: Statement, folder: Path) -> None:
    """Refuse a folder that does not hold the version's files, all of them and no other.

    Args:
        statement: what was signed.
        folder: the version as MLflow keeps it or downloads it, or a plain model folder
            made of its model's and tokenizer's files.

    Raises:
        ArtifactError: a file is too many, missing or changed; names it.
    """
    found, expected = read_manifest(folder), statement.manifest
    if is_mlflow_layout(folder):
        found = found.without_download_note(
            model_name=statement.model_name, version=statement.model_version
        )
    else:
        expected = expected.in_one_folder()
    if differs := difference(expected, found):
        raise ArtifactError(
            f"the files must be those of {statement.subject} that were decided on, "
            f"byte for byte, and no others, got {differs}. Fetch the version again "
            "into an empty folder, and do not load this one."
        )


def _refuse_other_kind(found: str, wanted: str, *, what: str) -> None:
    """Refuse an envelope of something else, however well it is signed."""
    if found != wanted:
        raise ArtifactError(f"the envelope must hold the {what}, got another kind.")


def key_id(key: Ed25519PublicKey) -> str:
    """Name a public key: the beginning of the SHA-256 of its raw bytes."""
    raw = key.public_bytes(Encoding.Raw, PublicFormat.Raw)
    return hashlib.sha256(raw).hexdigest()[:16]


def _checked(payload: bytes) -> Statement:
    """Read a statement whose signature is right; a signer can err too."""
    try:
        statement = Statement.model_validate_json(payload)
    except ValidationError:
        raise ArtifactError(
            "the signed decision must be of this version's format, but is not. Check "
            "it with the version of dptune that made it."
        ) from None
    decision, files = statement.decision, statement.manifest
    if decision.decision_hash != statement.decision_hash:
        raise ArtifactError("the decision must have the hash that was signed with it.")
    if worst_outcome(decision.criteria) is not decision.outcome:
        raise ArtifactError(
            f"outcome must follow from the criteria, got {decision.outcome}."
        )
    if decision.manifest_digest != files.digest:
        raise ArtifactError("the decision must be about the files that it lists.")
    return statement


def _parse(text: str) -> tuple[str, bytes, list[dict[str, str]]]:
    """Read an envelope of any kind; only the very bytes that `seal` writes pass."""
    try:
        values: dict[str, Any] = json.loads(text)
        kind = str(values["payloadType"])
        payload = _decode(values["payload"])
        signatures = [
            {"keyid": str(s["keyid"]), "sig": str(s["sig"])}
            for s in values["signatures"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ArtifactError(
            "the file must be an envelope that `dptune gate --output` wrote, but is "
            "not."
        ) from None
    if _envelope(payload, signatures, kind) != text:
        raise _changed()
    return kind, payload, signatures


def _envelope(payload: bytes, signatures: list[dict[str, str]], kind: str) -> str:
    """Write an envelope; the same parts give the same bytes."""
    values = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": kind,
        "signatures": signatures,
    }
    return json.dumps(values, indent=1, sort_keys=True) + "\n"


def _authenticated(payload: bytes, kind: str) -> bytes:
    """DSSE's pre-authentication encoding."""
    name = kind.encode()
    parts = (b"DSSEv1", str(len(name)).encode(), name, str(len(payload)).encode())
    return b" ".join((*parts, payload))


def _canonical(values: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Write JSON in one way."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode()


def _decode(text: str) -> bytes:
    """Read strict base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError):
        raise _changed() from None


def _changed() -> ArtifactError:
    return ArtifactError(
        "the decision must be as it was signed, but was changed since. Do not deploy; "
        "fetch it again from the registry."
    )


def _private(pem: bytes) -> Ed25519PrivateKey:
    """Read a private key."""
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            "the signing key must be an Ed25519 private key as PEM without password, "
            "got something else, which is not shown. Make one with "
            "`openssl genpkey -algorithm ed25519 -out signing.pem`."
        )
    return key


def _public(pem: bytes) -> Ed25519PublicKey:
    """Read a public key."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(
            "--key must be an Ed25519 public key as PEM, got something else. Make it "
            "with `openssl pkey -in signing.pem -pubout -out signing.pub.pem`."
        )
    return key
