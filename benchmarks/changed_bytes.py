"""Is every changed byte of a version, its decision, evidence and policy found?

    PYTHONPATH=. python benchmarks/changed_bytes.py [--positions 1000] [--seed 0]

A tiny model is logged to a fresh MLflow, as registration does it, and a decision on it
is signed. Then one byte at a time is changed, at random positions of each: the files of
the version as they lie in the store, the same as downloaded, a plain model folder made
of them, the signed decision, the evidence, its signed envelope, and a policy's file.
Each change must be refused by what `verify-decision` does, or, for evidence, by what
`gate` reads and compares, or, for the policy, by its digest. Comments and blanks of a
policy say nothing, and are counted apart.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from dptune.configfile import load_policy
from dptune.errors import DptuneError, GateFailedError
from dptune.gates.manifest import read_manifest
from dptune.gates.signing import (
    EvidenceStatement,
    Statement,
    open_envelope,
    refuse_other_files,
    refuse_other_weights,
    seal,
)
from dptune.results import RegisteredVersion
from steps import _evidence, _tracking
from steps._deciding import parse_dossier
from tests.unit.gates.test_signing import DIGEST, PEM, PUBLIC, statement

CONFIGS = Path(__file__).parents[1] / "configs"
NAME = "bytes"
"""The name of the model that is registered."""


def places(sizes: dict[Path, int], draw: random.Random, count: int) -> Iterator:
    """Draw files, half by size and half alike, and a position in each."""
    files = list(sizes)
    mean = sum(sizes.values()) / len(files)
    for file in draw.choices(files, [sizes[f] + mean for f in files], k=count):
        yield file, draw.randrange(sizes[file])


def spoiled(root: Path, draw: random.Random, count: int) -> Iterator[Path]:
    """Change one byte of a file, or below a folder, and put it back."""
    files = [root] if root.is_file() else sorted(root.rglob("*"))
    sizes = {p: p.stat().st_size for p in files if p.is_file()}
    for file, place in places(sizes, draw, count):
        body = file.read_bytes()
        other = bytearray(body)
        other[place] ^= draw.randrange(1, 256)
        file.write_bytes(other)
        yield file
        file.write_bytes(body)


def refused(check: Callable[[], object]) -> bool:
    """Whether a check refuses what it is given; anything but a refusal is a fault."""
    try:
        check()
    except DptuneError:
        return True
    return False


def registered(home: Path) -> tuple[Path, Path, str]:
    """Log and register a tiny model; return its store, a download, and its version."""
    import mlflow  # noqa: PLC0415 - slow
    from mlflow.store.artifact.artifact_repository_registry import (  # noqa: PLC0415
        get_artifact_repository,
    )

    from steps._tracking import _log_and_register  # noqa: PLC0415
    from tests.integration.test_unearned_pass import tiny_model  # noqa: PLC0415

    mlflow.set_tracking_uri(f"sqlite:///{home}/mlflow.db")
    mlflow.create_experiment(NAME, artifact_location=f"file:{home}/artifacts")
    mlflow.set_experiment(NAME)
    with mlflow.start_run():
        folder = tiny_model(home / "model")
        version = _log_and_register(folder, NAME, {}, DIGEST, "jft")
    store = Path(get_artifact_repository(version.source).repo.artifact_dir)
    (home / "download").mkdir()
    uri = f"models:/{NAME}/{version.version}"
    fetched = mlflow.artifacts.download_artifacts(uri, dst_path=str(home / "download"))
    return store, Path(fetched), str(version.version)


def decided(store: Path, version: str) -> Statement:
    """Decide on what lies there, under a policy of the program."""
    policy = load_policy("default", configs=CONFIGS, key="--policy")
    made = statement(
        manifest=read_manifest(store),
        policy_version=policy.version,
        policy_digest=policy.digest,
    )
    return made.model_copy(update={"model_name": NAME, "model_version": version})


def verified(folder: Path, envelope: Path) -> None:
    """Do what `verify-decision` does with what lies there."""
    text = envelope.read_bytes().decode("utf-8", errors="replace")
    opened = open_envelope(text, public_key=PUBLIC)
    refuse_other_weights(opened, DIGEST)
    refuse_other_files(opened, folder)


def evidence_kept(store: Path, version: str) -> tuple[RegisteredVersion, Path]:
    """Keep evidence and its signature with a version; return it and their folder."""
    from mlflow import MlflowClient  # noqa: PLC0415 - slow

    from tests.integration.test_unearned_pass import dossier_of  # noqa: PLC0415

    manifest = read_manifest(store)
    dossier = dossier_of(DIGEST).model_copy(update={"manifest": manifest})
    about = RegisteredVersion(
        model_name=NAME,
        version=version,
        model_digest=DIGEST,
        model_uri=str(store),
        recipe="jft",
    )
    text = dossier.model_dump_json()
    made = EvidenceStatement(
        model_name=NAME,
        model_version=version,
        model_digest=DIGEST,
        evidence_digest=_evidence.digest_of(text),
        data_set="",
        run="r",
        measured_at=dossier.measured_at,
        registered_at=datetime.now(tz=UTC),
    )
    signed, digest = seal(made, private_key=PEM), made.evidence_digest
    _tracking.keep_evidence(about, text, signed=signed, digest=digest, paid="")
    run = _tracking.get_version(NAME, version).run_id
    uri = str(MlflowClient().get_run(run).info.artifact_uri)
    return about, Path(uri.removeprefix("file://").removeprefix("file:"))


def believed(about: RegisteredVersion) -> None:
    """Read evidence and its signature as `gate` does.

    Raises:
        GateFailedError: it would call them INVALID.
    """
    text = _tracking.read_evidence(NAME, about.version)
    dossier = parse_dossier(text, about.version)
    envelope = _tracking.read_file(NAME, about.version, _tracking.SIGNED_EVIDENCE)
    digest = _evidence.digest_of(text)
    *_, faults = _evidence._signature(envelope, dossier, about, digest=digest)
    if faults:
        raise GateFailedError(" ".join(faults))


def evidence_changes(store: Path, version: str, draw: random.Random, count: int) -> int:
    """Change bytes of evidence and of its envelope; return how many went unnoticed."""
    about, beside = evidence_kept(store, version)
    os.environ["DPTUNE_SIGNING_KEY"] = PEM.decode()
    believed(about)
    missed = 0
    for name in (_tracking.EVIDENCE, _tracking.SIGNED_EVIDENCE):
        found = sum(
            refused(lambda: believed(about))
            for _ in spoiled(beside / name, draw, count)
        )
        missed += count - found
        print(f"{name}: {found} of {count} changed bytes refused")
    return missed


def policy_changes(home: Path, draw: random.Random, count: int) -> Counter[str]:
    """Change bytes of a policy's file: another digest, a refusal, or the same."""
    known = load_policy("default", configs=CONFIGS, key="--policy")
    folder = home / "policy"
    folder.mkdir()
    shutil.copy(CONFIGS / "gates" / "default.yaml", folder / "mine.yaml")
    found: Counter[str] = Counter()
    for file in spoiled(folder, draw, count):
        try:
            now = load_policy(str(file), configs=CONFIGS, key="--policy")
        except DptuneError:
            found["refused"] += 1
        else:
            # equal values are the same policy: a comment or a blank was changed
            same = now.model_dump() == known.model_dump()
            if same != (now.digest == known.digest):
                found["MISSED"] += 1
            else:
                found["same policy" if same else "another digest"] += 1
    return found


def main() -> int:
    """Change bytes, count what is found, and say what is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)  # noqa: S311 - places, no secrets
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        store, fetched, version = registered(home)
        plain = home / "plain"
        for part in ("model", "components/tokenizer"):
            shutil.copytree(store / part, plain, dirs_exist_ok=True)
        signed = home / "signed"
        signed.mkdir()
        envelope = signed / "decision.signed.json"
        envelope.write_text(seal(decided(store, version), private_key=PEM))
        folders = {"store": store, "download": fetched, "plain folder": plain}
        for folder in folders.values():
            verified(folder, envelope)
        targets = [
            *((what, folder, folder) for what, folder in folders.items()),
            ("decision", signed, store),
        ]
        for what, root, folder in targets:
            found = sum(
                refused(lambda folder=folder: verified(folder, envelope))
                for _ in spoiled(root, draw, given.positions)
            )
            missed += given.positions - found
            print(f"{what}: {found} of {given.positions} changed bytes refused")
        missed += evidence_changes(store, version, draw, given.positions)
        policy = policy_changes(home, draw, given.positions)
        missed += policy["MISSED"]
        print(f"policy: {dict(policy)}")
    print(f"not found: {missed}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
