"""Ways by tags, aliases, decisions and the place of a version; see `unearned.py`."""

import shutil

import mlflow
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from mlflow import MlflowClient
from unearned import BOTH, COMMANDS, POLICIES, REGISTRY, STORE, Answer, way
from unearned_world import CLEAN, LEAKY, MODEL, SECOND, World

from dptune.gates.signing import open_unverified, seal
from steps._deciding import ENVELOPE
from steps._tracking import _log_and_register
from tests.unit.gates.test_signing import pem_of

# tags, aliases, decisions

TAGS = "tags, aliases, decisions"


@way(TAGS, "tags that say PASS", rights=REGISTRY, says="BLOCK")
def _(world: World) -> Answer:
    world.tag(LEAKY, gate="PASS", reason="every criterion met")
    return [world.promote(LEAKY), world.verify(LEAKY)]


@way(
    TAGS,
    "the clean version's decision, laid beside the leaker with all tags",
    rights=BOTH,
    says="decision of its own|byte for byte",
)
def _(world: World) -> Answer:
    world.put_decision(LEAKY, (world.beside() / ENVELOPE).read_text())
    return [world.promote(LEAKY), world.verify(LEAKY)]


def _forged(world: World, key: bytes | None) -> str:
    held = open_unverified((world.beside(LEAKY) / ENVELOPE).read_text())
    kept = tuple(
        c.model_copy(update={"verdict": "PASS"}) for c in held.decision.criteria
    )
    made = held.decision.model_copy(update={"outcome": "PASS", "criteria": kept})
    made = type(held.decision).model_validate_json(made.model_dump_json())
    update = {"decision": made, "decision_hash": made.decision_hash}
    return seal(held.model_copy(update=update), private_key=key)


@way(TAGS, "an unsigned decision that says PASS", rights=BOTH, says="must be signed")
def _(world: World) -> Answer:
    world.put_decision(LEAKY, _forged(world, None))
    return [world.promote(LEAKY), world.verify(LEAKY)]


@way(TAGS, "one signed with another key", rights=BOTH, says="must be signed with key")
def _(world: World) -> Answer:
    key = pem_of(Ed25519PrivateKey.generate())
    world.put_decision(LEAKY, _forged(world, key))
    return [world.promote(LEAKY), world.verify(LEAKY)]


@way(
    TAGS,
    "the pass from before a refusal put back, with its tags",
    rights=BOTH,
    says="newest decision|refused since",
)
def _(world: World) -> Answer:
    envelope = world.refused_now()
    shutil.rmtree(world.beside() / "decisions")
    world.put_decision(CLEAN, envelope)
    return [world.promote(), world.rollback("--to", CLEAN)]


@way(
    TAGS,
    "the envelope alone put back",
    rights=STORE,
    says="the registry names|refused since",
)
def _(world: World) -> Answer:
    envelope = world.refused_now()
    (world.beside() / ENVELOPE).write_text(envelope)
    return [world.promote(), world.rollback("--to", CLEAN)]


@way(TAGS, "back to a refused champion", rights=COMMANDS, says="refused since")
def _(world: World) -> Answer:
    world.refused_now()
    return world.rollback("--to", CLEAN)


@way(
    TAGS,
    "a lax pass over a strict refusal",
    rights=POLICIES,
    says="must have passed under policy|refused since",
)
def _(world: World) -> Answer:
    world.refused_now()
    world.gate(policy=world.policy_file(max_epsilon=900.0))
    return [world.promote(), world.verify(), world.rollback("--to", CLEAN)]


@way(
    TAGS,
    "the leaker promoted by hand, and believed to be champion",
    rights=COMMANDS,
    says="BLOCK|no pass",
)
def _(world: World) -> Answer:
    world.promote(LEAKY, "--override", "trust me")
    return [world.verify(LEAKY), world.gate(LEAKY)]


@way(TAGS, "an override without a reason", rights=COMMANDS, says="stays on record")
def _(world: World) -> Answer:
    return world.promote(LEAKY, "--override", " \t ")


@way(
    TAGS,
    "a version passed beside an older champion than the one that is now",
    rights=COMMANDS,
    says="champion since",
)
def _(world: World) -> Answer:
    """The first is decided on; then the second is champion again: which was better?"""
    world.rollback("--to", CLEAN)
    world.gate(SECOND)
    world.gate(CLEAN)
    world.promote(SECOND)
    return world.promote(CLEAN)


@way(
    TAGS,
    "an entry of the trail that names the leaker, and back to it",
    rights=REGISTRY,
    says="BLOCK|has none",
)
def _(world: World) -> Answer:
    held = open_unverified((world.beside(LEAKY) / ENVELOPE).read_text())
    entry = {"at": "2020-01-01T00:00:00+00:00", "version": LEAKY}
    world.trail(entry | {"decision": held.decision_hash})
    return world.rollback("--to", LEAKY)


@way(
    TAGS,
    "the trail cut, so that no champion sets the bar",
    rights=REGISTRY,
    says="trail",
)
def _(world: World) -> Answer:
    world.cut_trail()
    MlflowClient().delete_registered_model_alias(MODEL, "champion")
    return [world.gate(), world.promote()]


@way(
    TAGS,
    "the trail's last entry cut, so that an older champion sets the bar",
    rights=REGISTRY,
    says="trail",
)
def _(world: World) -> Answer:
    names = MlflowClient().get_registered_model(MODEL).tags
    last = max(name for name in names if name.startswith("dptune.champion."))
    MlflowClient().delete_registered_model_tag(MODEL, last)
    MlflowClient().set_registered_model_alias(MODEL, "champion", CLEAN)
    return world.gate()


NONSENSE = {
    "no JSON": "x",
    "JSON that is no entry": "[]",
    "an entry without a version": '{"at": "2020"}',
    "an entry whose time is a number": '{"at": 1, "version": "2"}',
    "an entry of a version that is not there": '{"at": "2999", "version": "99"}',
}


def _enlist_nonsense() -> None:
    for what, value in NONSENSE.items():

        def play(world: World, value: str = value) -> Answer:
            name = "dptune.champion.2999"
            MlflowClient().set_registered_model_tag(MODEL, name, value)
            return [world.gate(), world.promote(), world.rollback()]

        named = f"{what} on the trail of promotions"
        way(TAGS, named, rights=REGISTRY, says="trail|champion since")(play)


_enlist_nonsense()


@way(TAGS, "nonsense for the budget's head", rights=REGISTRY, says="budget")
def _(world: World) -> Answer:
    world.tag(LEAKY, budget_head="x:y")
    return world.gate()


@way(
    TAGS,
    "the alias set on the leaker by hand",
    rights=REGISTRY,
    says="BLOCK|no pass",
)
def _(world: World) -> Answer:
    MlflowClient().set_registered_model_alias(MODEL, "champion", LEAKY)
    _, said = world.run("status")
    if "by hand" not in said:
        return 0, said
    return [world.verify(LEAKY), world.promote(LEAKY)]


def _leaky_place(world: World) -> str:
    return str(world.known(LEAKY).source)


@way(
    TAGS,
    "the clean version's source led to the leaker's files",
    rights=REGISTRY,
    says="one place|byte for byte|not those that were registered",
)
def _(world: World) -> Answer:
    world.mlflow_sql(
        "UPDATE model_versions SET source = :s WHERE name = :n AND version = 1",
        s=_leaky_place(world),
        n=MODEL,
    )
    return [world.gate(), world.promote()]


@way(
    TAGS,
    "source and place of storage both led to the leaker's files",
    rights=REGISTRY,
    says="byte for byte|not those that were registered",
)
def _(world: World) -> Answer:
    world.mlflow_sql(
        "UPDATE model_versions SET (source, storage_location) = (SELECT source, "
        "storage_location FROM model_versions WHERE name = :n AND version = 2) "
        "WHERE name = :n AND version = 1",
        n=MODEL,
    )
    return [world.gate(), world.promote()]


@way(
    TAGS,
    "the leaker's run led to the clean version's evidence and decisions",
    rights=REGISTRY,
    says="of its own|written down with another|another model",
)
def _(world: World) -> Answer:
    world.mlflow_sql(
        "UPDATE model_versions SET run_id = :r WHERE name = :n AND version = 2",
        r=world.known(CLEAN).run_id,
        n=MODEL,
    )
    held = open_unverified((world.beside(LEAKY) / ENVELOPE).read_text())
    world.tag(LEAKY, decision_hash=held.decision_hash)
    return [world.promote(LEAKY), world.gate(LEAKY)]


@way(
    TAGS,
    "a second model of another name with the clean one's run, decisions and tags",
    rights=BOTH,
    says="decision of its own|written down with another",
)
def _(world: World) -> Answer:
    client, known = MlflowClient(), world.known(CLEAN)
    client.create_registered_model("assistant")
    made = client.create_model_version("assistant", known.source, run_id=known.run_id)
    for key, value in known.tags.items():
        client.set_model_version_tag("assistant", made.version, key, value)
    options = ("assistant", "--version", made.version, "--policy", world.policy)
    return [
        world.run("promote", *options),
        world.run("gate", *options),
    ]


@way(
    TAGS,
    "a version of the same name, logged by hand in another experiment",
    rights=BOTH,
    says="registered|must have|digest",
)
def _(world: World) -> Answer:
    """The leaker's weights, under the clean run's evidence and tags."""
    known = world.known(CLEAN)
    plain = world.outside / "plain"
    for part in ("model", "components/tokenizer"):
        shutil.copytree(world.files(LEAKY) / part, plain, dirs_exist_ok=True)
    mlflow.set_experiment("elsewhere")
    with mlflow.start_run():
        made = _log_and_register(plain, MODEL, {}, known.tags["dptune.digest"], "jft")
    for key, value in known.tags.items():
        MlflowClient().set_model_version_tag(MODEL, made.version, key, value)
    beside = world.beside(str(made.version))
    beside.mkdir(parents=True, exist_ok=True)
    for file in world.beside(CLEAN).iterdir():
        if file.is_file():
            shutil.copy(file, beside / file.name)
    return [world.gate(made.version), world.promote(made.version)]


@way(
    TAGS,
    "the model deleted and made anew, so that numbers begin at 1 again",
    rights=BOTH,
    says="byte for byte|registered|must have|digest|trail",
)
def _(world: World) -> Answer:
    client = MlflowClient()
    source, run = world.known(LEAKY).source, world.known(CLEAN).run_id
    tags = world.known(CLEAN).tags
    client.delete_registered_model(MODEL)
    client.create_registered_model(MODEL)
    client.create_model_version(MODEL, source, run_id=run)
    for key, value in tags.items():
        client.set_model_version_tag(MODEL, CLEAN, key, value)
    return world.everywhere()
