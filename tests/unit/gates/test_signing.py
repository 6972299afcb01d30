"""A signed decision: genuine ones pass, and every broken twin is caught."""

import base64
import hashlib
import json
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from dptune.errors import ArtifactError, ConfigError
from dptune.gates.decision import Criterion, GateDecision, GateOutcome, Verdict
from dptune.gates.manifest import Manifest, StoredFile
from dptune.gates.signing import (
    UNSIGNED,
    EvidenceStatement,
    Statement,
    open_envelope,
    open_evidence,
    open_unverified,
    public_key_of,
    refuse_other_weights,
    seal,
    signer_of,
)

DIGEST = "d" * 64
FILES = Manifest(files=(StoredFile(path="MLmodel", size=1, sha256="a" * 64),))


def pem_of(key) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def public_of(key) -> bytes:
    spki = PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(Encoding.PEM, spki)


def raw(pem: bytes) -> bytes:
    return load_pem_public_key(pem).public_bytes(Encoding.Raw, PublicFormat.Raw)


KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PEM, PUBLIC = pem_of(KEY), public_of(KEY)


def statement(*, manifest=Manifest(), **changes) -> Statement:  # noqa: B008 - frozen
    criterion = Criterion(
        name="epsilon", verdict=Verdict.PASS, measured=4.0, threshold=8.0, reason="ok"
    )
    values = {
        "outcome": GateOutcome.PASS,
        "model_digest": DIGEST,
        "policy_name": "default",
        "policy_version": 1,
        "policy_digest": "p",
        "evidence_digest": "e",
        "manifest_digest": manifest.digest,
        "criteria": (criterion,),
    }
    decision = GateDecision(**{**values, **changes})
    return Statement(
        model_name="m",
        model_version="7",
        decided_at=datetime(2026, 5, 4, tzinfo=UTC),
        decision=decision,
        manifest=manifest,
        decision_hash=decision.decision_hash,
    )


def opened(text, *, key=PUBLIC) -> Statement:
    return open_envelope(text, public_key=key)


@pytest.fixture(scope="module")
def sealed() -> str:
    return seal(statement(), private_key=PEM)


def test_what_was_signed_comes_back(sealed):
    assert opened(sealed) == statement()
    assert seal(statement(), private_key=PEM) == sealed


def test_any_changed_byte_is_refused(sealed):
    data = bytearray(sealed.encode())
    for place in {*range(0, len(data), 5), len(data) - 1}:
        twin = bytearray(data)
        twin[place] ^= 1
        with pytest.raises(ArtifactError):
            opened(twin.decode("utf-8", errors="replace"))


@pytest.mark.parametrize("change", [" ", "\n", "\r\n"])
def test_added_white_space_is_refused(sealed, change):
    with pytest.raises(ArtifactError):
        opened(sealed + change)


def test_another_key_is_refused(sealed):
    other = public_of(Ed25519PrivateKey.generate())
    mine, theirs = (
        signer_of(seal(statement(), private_key=PEM)),
        hashlib.sha256(raw(other)).hexdigest()[:16],
    )
    told = f"the decision must be signed with key {theirs}, got {mine}\\."
    with pytest.raises(ArtifactError, match=told):
        opened(sealed, key=other)


def test_foreign_signature_under_our_key_id_is_refused(sealed):
    forged = json.loads(
        seal(statement(), private_key=pem_of(Ed25519PrivateKey.generate()))
    )
    forged["signatures"][0]["keyid"] = signer_of(sealed)
    text = json.dumps(forged, indent=1, sort_keys=True) + "\n"
    with pytest.raises(ArtifactError, match="changed since"):
        opened(text)


def test_other_weights_are_refused(sealed):
    refuse_other_weights(opened(sealed), DIGEST)
    with pytest.raises(ArtifactError, match="about these weights"):
        refuse_other_weights(opened(sealed), "e" * 64)


def test_unsigned_decision_says_so_and_is_refused():
    text = seal(statement(), private_key=None)
    assert signer_of(text) == UNSIGNED
    with pytest.raises(ArtifactError, match="the decision must be signed"):
        opened(text)


def test_signature_of_another_decision_is_refused(sealed):
    other = json.loads(seal(statement(policy_name="lax"), private_key=PEM))
    mixed = json.loads(sealed) | {"signatures": other["signatures"]}
    with pytest.raises(ArtifactError, match="changed since"):
        opened(json.dumps(mixed, indent=1, sort_keys=True) + "\n")


def test_signed_pass_that_contradicts_its_criteria_is_refused():
    blocked = Criterion(
        name="exposure", verdict=Verdict.BLOCK, measured=9.0, threshold=1.0, reason="x"
    )
    text = seal(statement(criteria=(blocked,)), private_key=PEM)
    with pytest.raises(ArtifactError, match="follow from the criteria"):
        opened(text)


def test_signed_statement_with_another_hash_is_refused():
    twin = statement().model_copy(update={"decision_hash": "0" * 64})
    with pytest.raises(ArtifactError, match="hash"):
        opened(seal(twin, private_key=PEM))


def test_signed_statement_that_lists_other_files_is_refused():
    twin = statement().model_copy(update={"manifest": FILES})
    with pytest.raises(ArtifactError, match="files that it lists"):
        opened(seal(twin, private_key=PEM))


def test_envelope_opened_without_a_key_is_held_to_its_own_words():
    text = seal(statement(), private_key=None)
    assert open_unverified(text) == statement()
    twin = statement().model_copy(update={"decision_hash": "0" * 64})
    with pytest.raises(ArtifactError, match="hash"):
        open_unverified(seal(twin, private_key=None))


def test_public_key_of_a_signing_key_opens_what_it_signed(sealed):
    assert public_key_of(PEM) == PUBLIC
    with pytest.raises(ConfigError, match="Ed25519"):
        public_key_of(PUBLIC)


def test_envelope_is_dsse(sealed):
    """The signature is over DSSE's pre-authentication encoding, written out here."""
    values = json.loads(sealed)
    payload = base64.b64decode(values["payload"])
    kind = values["payloadType"]
    assert kind == "application/vnd.dptune.gate-decision+json"
    signed = f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload
    KEY.public_key().verify(base64.b64decode(values["signatures"][0]["sig"]), signed)


@pytest.mark.parametrize(
    "pem",
    [b"", b"secret-material", PUBLIC, pem_of(ec.generate_private_key(ec.SECP256R1()))],
)
def test_unusable_private_key_is_refused_and_not_quoted(pem):
    with pytest.raises(ConfigError, match="openssl genpkey") as refusal:
        seal(statement(), private_key=pem)
    assert "secret-material" not in str(refusal.value)


def test_private_key_is_no_public_key(sealed):
    with pytest.raises(ConfigError, match="public key"):
        opened(sealed, key=PEM)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"payload": "eA=="}', "🙂"])
def test_garbage_is_no_envelope(text):
    with pytest.raises(ArtifactError, match="envelope"):
        opened(text)


# evidence


def evidence_statement(**changes) -> EvidenceStatement:
    at = datetime(2026, 5, 4, tzinfo=UTC)
    values = {
        "model_name": "m",
        "model_version": "7",
        "model_digest": DIGEST,
        "evidence_digest": "e" * 64,
        "data_set": "people",
        "run": "r",
        "measured_at": at,
        "registered_at": at,
    }
    return EvidenceStatement(**{**values, **changes})


def test_evidence_that_was_signed_comes_back():
    text = seal(evidence_statement(), private_key=PEM)
    assert open_evidence(text, private_key=PEM) == evidence_statement()
    assert open_evidence(text, private_key=None) == evidence_statement()
    assert signer_of(text) != UNSIGNED


def test_evidence_that_is_unsigned_or_signed_otherwise_is_refused():
    other = pem_of(Ed25519PrivateKey.generate())
    for key in (None, other):
        text = seal(evidence_statement(), private_key=key)
        with pytest.raises(ArtifactError, match="the evidence must be signed"):
            open_evidence(text, private_key=PEM)


def test_any_changed_byte_of_signed_evidence_is_refused():
    data = bytearray(seal(evidence_statement(), private_key=PEM).encode())
    for place in {*range(0, len(data), 5), len(data) - 1}:
        twin = bytearray(data)
        twin[place] ^= 1
        with pytest.raises(ArtifactError):
            open_evidence(twin.decode("utf-8", errors="replace"), private_key=PEM)


def test_envelope_of_one_kind_is_not_taken_for_another(sealed):
    text = seal(evidence_statement(), private_key=PEM)
    with pytest.raises(ArtifactError, match="another kind"):
        opened(text)
    for key in (PEM, None):
        with pytest.raises(ArtifactError, match="another kind"):
            open_evidence(sealed, private_key=key)
