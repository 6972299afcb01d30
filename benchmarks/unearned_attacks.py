"""Ways by test sets, attacks, budgets and the environment; see `unearned.py`."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from unearned import (
    ARTIFACTS,
    COMMANDS,
    CONFIGURATION,
    DATA,
    ENVIRONMENT,
    FOLDER,
    STORE,
    Answer,
    trained,
    way,
)
from unearned_world import CLEAN, LEAKY, MODEL, World, artifact

from steps import _tracking

# test sets and attacks


def _records(world: World, name: str, texts: list[str]) -> Path:
    file = world.outside / name
    rows = ({"id": f"{name}{i}", "text": text} for i, text in enumerate(texts))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def _texts(num: int = 260) -> list[str]:
    from dptune.data.synthetic import generate_dialogues  # noqa: PLC0415

    return [r.text for r in generate_dialogues(num_records=num, private=True, seed=5)]


def _with_files(world: World, train: list[str], test: list[str]) -> Answer:
    _records(world, "train.jsonl", train)
    _records(world, "test.jsonl", test)
    source = {"kind": "jsonl", "id_column": "id"}
    source |= {"train": "train.jsonl", "test": "test.jsonl"}
    data = yaml.safe_load(world.config.read_text())["data"] | {"source": source}
    gate = {"max_membership_tpr": 0.5, "blind_level": 0.001}
    file = world.config_with(data=data, recipe="no_dp", gate=gate)
    return world.train(config=file)


TEST_SETS: dict[str, tuple[Callable[[list[str]], list[str]], str]] = {
    "no record": (lambda _: [], "test"),
    "one record": (lambda t: t[140:141], "5 texts|test"),
    "one record, 120 times": (lambda t: t[140:141] * 120, "one unit alone"),
    "records of the training set": (lambda t: t[:120], "one unit alone"),
    "records of the training set, one blank more": (
        lambda t: [text + " " for text in t[:120]],
        "blind|near|membership",
    ),
    "a tenth of it copies of training records, one blank more": (
        lambda t: [*t[140:248], *(text + " " for text in t[:12])],
        "non-members|budget",
    ),
    "records of one word": (lambda t: ["hello"] * 60 + t[140:200], "blind"),
}


def _enlist_tests() -> None:
    for what, (make, says) in TEST_SETS.items():

        def play(world: World, make: Callable[..., list[str]] = make) -> Answer:
            texts = _texts()
            return _with_files(world, texts[:140], make(texts))

        named = f"test set: {what}"
        way("test sets and attacks", named, rights=DATA, says=says)(play)


_enlist_tests()


ATTACKS: dict[str, tuple[dict[str, Any], str]] = {
    "no shadow models": ({"attack": {"shadows": None}}, "shadow_models|shadow models"),
    "50 members": ({"attack": {"num_members": 50}}, "Attack at least|members"),
    "one member": ({"attack": {"num_members": 1}}, "num_members"),
    "exposure searched among 100 candidates": (
        {"attack": {"max_candidates": 100}},
        "extrapolated|not counted",
    ),
    "shadow models of no epochs": (
        {"attack": {"shadows": {"epochs": 0}}},
        "epochs",
    ),
    "two shadow models": ({"attack": {"shadows": {"num_models": 2}}}, "num_models"),
    "a test split of two records": (
        {"data": {"splits": {"validation": 0.0, "test": 0.01}}},
        "texts of each|members|test",
    ),
    "no test split": (
        {"data": {"splits": {"validation": 0.0, "test": 0.0}}},
        "splits.test",
    ),
}


def _enlist_attacks() -> None:
    for what, (changes, says) in ATTACKS.items():
        way(
            "test sets and attacks", f"attacks: {what}", rights=CONFIGURATION, says=says
        )(trained(**changes))


_enlist_attacks()


@way(
    "test sets and attacks",
    "attacks: shadow models that learn nothing, beside a model that did",
    rights=CONFIGURATION,
    says="shadow",
)
def _(world: World) -> Answer:
    weak = {"shadows": {"epochs": 0.001, "learning_rate": 1e-12}}
    return world.train("recipe=no_dp", config=world.config_with(attack=weak))


@way(
    "policies",
    "inline in a configuration, open, under the name `default`",
    rights=CONFIGURATION,
    says="gate.name",
)
def _(world: World) -> Answer:
    return world.train(
        config=world.config_with(gate={"name": "default", "max_epsilon": 900.0})
    )


@way(
    "policies",
    "inline in a configuration, open, under a name of its own",
    rights=CONFIGURATION,
    says="must have passed under policy",
)
def _(world: World) -> Answer:
    file = world.config_with(
        gate={"name": "mine", "max_epsilon": 900.0}, privacy={"target_epsilon": 40.0}
    )
    code, said = world.train(config=file)
    if code:
        return code, said
    newest = str(_tracking.versions(MODEL)[0].version)
    return world.verify(newest)


@way(
    "policies",
    "opened by --set on the command line",
    rights=COMMANDS,
    says="must have passed under policy|thresholds have changed",
)
def _(world: World) -> Answer:
    code, said = world.train("gate.max_epsilon=900", "privacy.target_epsilon=40")
    if code:
        return code, said
    newest = str(_tracking.versions(MODEL)[0].version)
    return world.verify(newest)


@way(
    "policies",
    "edited where the decision keeps it, for the promotion that decides again",
    rights=STORE,
    says="must have passed under policy|BLOCK",
)
def _(world: World) -> Answer:
    """`promote` of a run decides again where the champion moved since its gate."""
    from types import SimpleNamespace  # noqa: PLC0415

    from steps import _deciding  # noqa: PLC0415

    _deciding.show_on_run = lambda *_, **__: None
    _deciding.log_metadata = lambda *_: None
    lax = yaml.safe_load(world.policy.read_text()) | {"max_epsilon": 900.0}
    (world.beside() / "policy.json").write_text(json.dumps(lax | {"name": "mine"}))
    world.tag(CLEAN, decided_beside_version="7")
    again = _deciding.decide_beside_champion(
        _tracking.describe(MODEL, CLEAN), SimpleNamespace()
    )
    code, said = world.promote()
    return code, f"{again.outcome} {said}"


# budget


SPENT = "budget and attempts"


@way(
    SPENT,
    "the data set renamed: a fresh count of evaluations",
    rights=CONFIGURATION,
    says="under which these texts were charged",
)
def _(world: World) -> Answer:
    strict = {"name": "few", "max_evaluations": 3}
    file = world.config_with(gate=strict, budget={"data_set": "fresh"}, repetition=9)
    return world.train(config=file)


@way(
    SPENT,
    "trained again and again until it passes",
    rights=COMMANDS,
    says="attempts",
)
def _(world: World) -> Answer:
    file = world.config_with(gate={"name": "few", "max_evaluations": 3})
    return world.train("repetition=9", config=file)


@way(
    SPENT,
    "a finished stage's weights swapped, for the run that resumes it",
    rights=FOLDER,
    says="must|digest|changed",
)
def _(world: World) -> Answer:
    runs = world.home / "runs"
    stages = [f.parent for f in runs.rglob("model.safetensors")]
    source = world.weights(LEAKY)
    for stage in stages:
        shutil.copy(source, stage / "model.safetensors")
    return world.train("attack.num_bootstrap=101")


@way(
    SPENT,
    "a journal's charges edited down, for the run that resumes",
    rights=FOLDER,
    says="tampered|journal|must",
)
def _(world: World) -> Answer:
    for journal in (world.home / "runs").glob("*/ledger.jsonl"):
        body = journal.read_text()
        journal.write_text(body.replace('"num_steps":', '"num_steps":0,"was":'))
    return world.train("attack.num_bootstrap=101")


@way(
    SPENT,
    "a cached answer of the attacks edited",
    rights=ARTIFACTS,
    says="artifact attack/exposure",
)
def _(world: World) -> Answer:
    world.train("recipe=no_dp")
    file = artifact("exposure", "report.json")
    values = json.loads(file.read_text())
    for canary in values["canaries"]:
        canary |= {"rank": values["space_size"] // 2, "exposure": 1.0}
    file.write_text(json.dumps(values))
    return world.train("recipe=no_dp")


# environment


@way(
    "environment",
    "another signing key by DPTUNE_SIGNING_KEY",
    rights=ENVIRONMENT,
    says="must be signed with key",
)
def _(world: World) -> Answer:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PrivateKey,
    )

    from tests.unit.gates.test_signing import pem_of  # noqa: PLC0415

    os.environ["DPTUNE_SIGNING_KEY"] = pem_of(Ed25519PrivateKey.generate()).decode()
    return [world.promote(), world.gate(), world.verify()]


@way(
    "environment",
    "no signing key: an unsigned decision",
    rights=ENVIRONMENT,
    says="must be signed",
)
def _(world: World) -> Answer:
    os.environ["DPTUNE_SIGNING_KEY"] = ""
    world.gate()
    return world.verify()


@way(
    "environment",
    "a signing key that is none",
    rights=ENVIRONMENT,
    says="Ed25519",
)
def _(world: World) -> Answer:
    os.environ["DPTUNE_SIGNING_KEY"] = "-----BEGIN PRIVATE KEY-----"
    return [world.gate(), world.promote()]


@way(
    "environment",
    "another registry by MLFLOW_REGISTRY_URI and MLFLOW_TRACKING_URI",
    rights=ENVIRONMENT,
    says="must|refused|BLOCK",
)
def _(world: World) -> Answer:
    other = world.outside / "other.db"
    os.environ["MLFLOW_REGISTRY_URI"] = f"sqlite:///{other}"
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{other}"
    options = (MODEL, "--version", LEAKY)
    policy = ("--policy", world.policy)
    return [
        world.apart("gate", *options, *policy),
        world.apart("promote", *options),
    ]


@way(
    "environment",
    "another project folder by DPTUNE_HOME",
    rights=ENVIRONMENT,
    says="project folder|must be",
)
def _(world: World) -> Answer:
    os.environ["DPTUNE_HOME"] = str(world.outside / "elsewhere")
    return world.apart("gate", MODEL, "--policy", world.policy)


@way(
    "environment",
    "a profile that is none by DPTUNE_PROFILE",
    rights=ENVIRONMENT,
    says="profile",
)
def _(world: World) -> Answer:
    os.environ["DPTUNE_PROFILE"] = "../../evil"
    return world.gate()
