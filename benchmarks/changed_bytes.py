"""Is every changed byte of a version, its decision and its policy found?

    PYTHONPATH=. python benchmarks/changed_bytes.py [--positions 1000] [--seed 0]

A tiny model is logged to a fresh MLflow, as registration does it, and a decision on it
is signed. Then one byte at a time is changed, at random positions of each: the files of
the version as they lie in the store, the same as downloaded, a plain model folder made
of them, the signed decision, and a policy's file. Each change must be refused by what
`verify-decision` does, or, for the policy, by its digest. Comments and blanks of a
policy say nothing, and are counted apart.
"""

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from dptune.configfile import load_policy
from dptune.errors import DptuneError
from dptune.gates.manifest import read_manifest
from dptune.gates.signing import (
    Statement,
    open_envelope,
    refuse_other_files,
    refuse_other_weights,
    seal,
)
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
    """Change one byte below a folder, hand over its file, and put it back."""
    sizes = {p: p.stat().st_size for p in sorted(root.rglob("*")) if p.is_file()}
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
        policy = policy_changes(home, draw, given.positions)
        missed += policy["MISSED"]
        print(f"policy: {dict(policy)}")
    print(f"not found: {missed}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
