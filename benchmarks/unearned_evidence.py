"""Ways by evidence; see `unearned.py`."""

import base64
import json
import os
import shutil
from collections.abc import Callable
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from unearned import BOTH, BUDGET, STORE, Answer, way
from unearned_world import CLEAN, LEAKY, SECOND, World

from steps import _evidence
from tests.unit.gates.test_signing import pem_of

# evidence


def _sections(part: str, **figures: object) -> Callable[[dict[str, Any]], None]:
    return lambda values: values[part].update(figures)


def _quiet(values: dict[str, Any]) -> None:
    """Let the leaker look as if it knew nothing."""
    size = values["exposure"]["space_size"]
    for canary in values["exposure"]["canaries"]:
        canary |= {"rank": size // 2, "exposure": 1.0}


def _cheap(values: dict[str, Any]) -> None:
    for certificate in values["certificates"]:
        certificate |= {"epsilon": 1.0, "status": "certified"}


def _no_ledger(values: dict[str, Any]) -> None:
    values["ledger"]["entries"] = []


def _merged(world: World) -> None:
    """The clean version's reports and ledger, as the leaker's."""
    clean = json.loads(world.evidence(CLEAN).read_text())
    own = json.loads(world.evidence(LEAKY).read_text())
    text = json.dumps(clean | {"manifest": own["manifest"]})
    text = text.replace(clean["model_digest"], own["model_digest"])
    world.evidence(LEAKY).write_text(text)


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "exposures edited down": _quiet,
    "epsilon of every certificate set to 1": _cheap,
    "the ledger emptied": _no_ledger,
    "perplexity edited": _sections("utility", perplexity=1.0),
    "membership signals deleted": _sections("membership", signals=[]),
}


def _enlist_edits() -> None:
    for what, edit in EDITS.items():

        def play(world: World, edit: Callable[..., None] = edit) -> Answer:
            world.change(LEAKY, edit)
            return [world.gate(LEAKY), world.promote(LEAKY), world.verify(LEAKY)]

        way(
            "evidence",
            f"the leaker's evidence with {what}",
            rights=STORE,
            says="evidence|is INVALID|is BLOCK|outcome INVALID",
        )(play)


_enlist_edits()


@way(
    "evidence",
    "figures edited, noted in tag, envelope and log, signed with another key",
    rights=f"{BOTH}, {BUDGET}",
    says="must be signed with key",
)
def _(world: World) -> Answer:
    world.change(LEAKY, _cheap)
    world.change(LEAKY, _quiet)
    world.forge(LEAKY, key=pem_of(Ed25519PrivateKey.generate()))
    return world.gate(LEAKY)


@way(
    "evidence",
    "figures edited, noted everywhere, with no key configured",
    rights=f"{BOTH}, {BUDGET}, and a gate without a key",
    says="not those that follow from the ledger",
)
def _(world: World) -> Answer:
    world.change(LEAKY, _cheap)
    world.forge(LEAKY)
    os.environ.pop("DPTUNE_SIGNING_KEY")
    return world.gate(LEAKY)


@way(
    "evidence",
    "clean reports and ledger merged into the leaker's evidence, noted everywhere",
    rights=f"{BOTH}, {BUDGET}",
    says="must be signed",
)
def _(world: World) -> Answer:
    _merged(world)
    world.forge(LEAKY)
    return world.gate(LEAKY)


@way(
    "evidence",
    "the clean version's evidence and its envelope laid over the leaker's",
    rights=STORE,
    says="another model|does not have the digest",
)
def _(world: World) -> Answer:
    shutil.copy(world.evidence(CLEAN), world.evidence(LEAKY))
    shutil.copy(world.signed(CLEAN), world.signed(LEAKY))
    return world.gate(LEAKY)


@way(
    "evidence",
    "another version's signed envelope",
    rights=STORE,
    says="written down with another",
)
def _(world: World) -> Answer:
    shutil.copy(world.signed(SECOND), world.signed(CLEAN))
    return world.gate()


@way("evidence", "the signature taken off", rights=STORE, says="must be signed")
def _(world: World) -> Answer:
    values = json.loads(world.signed().read_text())
    text = json.dumps(values | {"signatures": []}, indent=1, sort_keys=True) + "\n"
    world.signed().write_text(text)
    return world.gate()


@way("evidence", "two signatures, one of them another's", rights=STORE, says="changed")
def _(world: World) -> Answer:
    values = json.loads(world.signed().read_text())
    (mine,) = values["signatures"]
    forged = {**mine, "sig": base64.b64encode(bytes(64)).decode()}
    values["signatures"] = [forged, mine]
    world.signed().write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")
    return world.gate()


@way(
    "evidence",
    "earlier evidence of the same version, with its own genuine signature",
    rights=BOTH,
    says="noted last",
)
def _(world: World) -> Answer:
    old, signed = world.evidence().read_text(), world.signed().read_text()
    code, said = world.train("attack.num_bootstrap=101")
    if code:
        return code, said
    world.evidence().write_text(old)
    world.signed().write_text(signed)
    world.tag(CLEAN, evidence=_evidence.digest_of(old))
    return [world.gate(), world.promote()]


@way(
    "evidence",
    "evidence edited between the gate and the promotion",
    rights=STORE,
    says="not what the gate decided on",
)
def _(world: World) -> Answer:
    world.gate()
    world.change(CLEAN, _sections("utility", perplexity=1.0))
    return world.promote()


@way(
    "evidence",
    "the champion's loss edited up, so that a worse version passes",
    rights=STORE,
    says="champion's evidence",
)
def _(world: World) -> Answer:
    def worse(values: dict[str, Any]) -> None:
        losses = values["utility"]["record_nll"]
        values["utility"]["record_nll"] = [3 * nats for nats in losses]

    world.change(SECOND, worse)
    return world.gate()


ENCODED: dict[str, Callable[[bytes], bytes]] = {
    "in UTF-16": lambda body: body.decode().encode("utf-16"),
    "behind a byte order mark": lambda body: b"\xef\xbb\xbf" + body,
    "with a key given twice": lambda body: body[:-1] + b',"certificates":[]}',
    "with something behind its end": lambda body: body + b"{}",
    "with NaN for a figure": lambda body: body.replace(
        b'"perplexity":', b'"perplexity":NaN,"was":'
    ),
    "with an infinite figure": lambda body: body.replace(
        b'"nll_per_token":', b'"nll_per_token":1e999,"was":'
    ),
    "of a hundred thousand brackets": lambda _: b"[" * 100_000,
    "of no bytes": lambda _: b"",
    "of bytes that are no text": lambda _: b"\xff\x00\xfe",
}


def _enlist_encoded() -> None:
    for what, encode in ENCODED.items():

        def play(world: World, encode: Callable[[bytes], bytes] = encode) -> Answer:
            world.evidence().write_bytes(encode(world.evidence().read_bytes()))
            return [world.gate(), world.promote()]

        says = "evidence|has gate outcome INVALID"
        way("evidence", f"evidence {what}", rights=STORE, says=says)(play)


_enlist_encoded()


@way("evidence", "no evidence at all", rights=STORE, says=r"must have evidence\.json")
def _(world: World) -> Answer:
    world.evidence().unlink()
    return [world.gate(), world.promote()]


@way("evidence", "a folder in its place", rights=STORE, says=r"evidence\.json")
def _(world: World) -> Answer:
    world.evidence().unlink()
    world.evidence().mkdir()
    return [world.gate(), world.promote()]
