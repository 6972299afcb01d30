"""A project folder that somebody has reached; see `unearned.py`."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import mlflow
import yaml
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.tracking._model_registry import utils as registry
from mlflow.tracking._tracking_service import utils as tracking
from sqlalchemy import create_engine, text
from zenml.client import Client

from dptune.accounting.store.attempts import Attempt, record_attempt
from dptune.accounting.store.store import BudgetStore
from dptune.gates.signing import EvidenceStatement, open_unverified, seal
from dptune.workflow.dossier import Dossier
from infra.stacks.local import ensure_local_stack, isolate
from infra.workspace import REPOSITORY, Workspace, current_workspace
from steps import _evidence, _tracking
from steps._deciding import ENVELOPE
from tests.integration.conftest import Project, _forget_other_projects
from tests.unit.gates.test_signing import PEM

MODEL = "tiny-assistant"
CLEAN, LEAKY, SECOND = "1", "2", "3"
"""The version that passed, the one that was refused, and the champion."""


class World:
    """A project folder that somebody has reached, and the command line on it."""

    def __init__(self, home: Path, output: str = "output") -> None:
        self.home, self.outside = home / "project", home / "outside"
        self.config, self.policy = (
            self.outside / "tiny.yaml",
            self.outside / "gate.yaml",
        )
        self.public = self.outside / "public.pem"
        self.project = Project(home=self.home, outside=self.outside / output)

    def open(self) -> None:
        """Point this process at the folder."""
        os.environ |= {
            "DPTUNE_HOME": str(self.home),
            "DPTUNE_DATA_ROOT": str(self.outside),
            "DPTUNE_SIGNING_KEY": PEM.decode(),
            "COLUMNS": "9999",
        }
        self.project.outside.mkdir(parents=True, exist_ok=True)
        tempfile.tempdir = str(self.outside)
        isolate(Workspace(root=self.home))
        _forget_other_projects()
        ensure_local_stack(Workspace(root=self.home))
        _tracking.connect()

    def renew(self) -> None:
        """Open no database through what a parent process had open: files are others."""
        for store in (Client().zen_store, tracking._get_store(), registry._get_store()):
            store.engine.dispose(close=False)

    # commands

    def apart(self, *arguments: object) -> tuple[int, str]:
        """Run a command in a process of its own, with the environment as it is."""
        command = [sys.executable, "run.py", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def run(self, *arguments: object) -> tuple[int, str]:
        """Run a command as a user would; its settings of MLflow do not stay."""
        code, said = self.project.run(*map(str, arguments))
        _tracking.connect()
        return code, said

    def gate(self, version: str = CLEAN, policy: object = None) -> tuple[int, str]:
        """Decide under the policy that runs planned for, unless another is named."""
        options = ("--version", version, "--policy", policy or self.policy)
        return self.run("gate", MODEL, *options)

    def promote(self, version: str = CLEAN, *options: object) -> tuple[int, str]:
        """Promote a version by hand."""
        return self.run("promote", MODEL, "--version", version, *options)

    def rollback(self, *options: object) -> tuple[int, str]:
        """Go back to an earlier champion."""
        return self.run("rollback", MODEL, "--reason", "way", *options)

    def verify(
        self,
        version: str = CLEAN,
        *,
        folder: Path | None = None,
        policy: object = None,
        envelope: Path | None = None,
    ) -> tuple[int, str]:
        """Ask as a deploy job does, with its own copy of key and policy."""
        return self.run(
            "verify-decision",
            envelope or self.beside(version) / ENVELOPE,
            *("--key", self.public, "--policy", policy or self.policy),
            *("--model", folder or self.files(version)),
        )

    def everywhere(self, version: str = CLEAN) -> list[tuple[int, str]]:
        """Ask a deploy job, and then for a promotion and a new decision."""
        return [self.verify(version), self.promote(version), self.gate(version)]

    def train(self, *overrides: str, config: Path | None = None) -> tuple[int, str]:
        """Train with `key=value` overrides."""
        given = [part for one in overrides for part in ("--set", one)]
        return self.run("train", config or self.config, *given)

    def config_with(self, **changes: object) -> Path:
        """Write the run's configuration with other values of top-level keys."""
        values = yaml.safe_load(self.config.read_text())
        for key, change in changes.items():
            old = values.get(key)
            both = isinstance(old, dict) and isinstance(change, dict)
            values[key] = {**old, **change} if both else change
        file = self.outside / "changed.yaml"
        file.write_text(yaml.safe_dump(values))
        return file

    # what lies there

    def known(self, version: str) -> ModelVersion:
        """Ask the registry for a version."""
        return _tracking.get_version(MODEL, version)

    def files(self, version: str = CLEAN) -> Path:
        """The folder of a version in MLflow's store."""
        with _tracking.version_folder(MODEL, version) as folder:
            return folder

    def beside(self, version: str = CLEAN) -> Path:
        """The folder of its evidence and its decisions."""
        uri = MlflowClient().get_run(self.known(version).run_id).info.artifact_uri
        return Path(uri.removeprefix("file://").removeprefix("file:"))

    def weights(self, version: str = CLEAN) -> Path:
        """The weights of a version."""
        return self.files(version) / "model" / "model.safetensors"

    def evidence(self, version: str = CLEAN) -> Path:
        """Its evidence."""
        return self.beside(version) / _tracking.EVIDENCE

    def signed(self, version: str = CLEAN) -> Path:
        """The envelope of its evidence."""
        return self.beside(version) / _tracking.SIGNED_EVIDENCE

    def tag(self, version: str, **tags: str) -> None:
        """Write tags of a version."""
        for key, value in tags.items():
            name = f"dptune.{key}"
            MlflowClient().set_model_version_tag(MODEL, version, name, value)

    def change(
        self, version: str, edit: Callable[[dict[str, Any]], object]
    ) -> dict[str, Any]:
        """Edit stored evidence, and nothing that was written down of it."""
        values: dict[str, Any] = json.loads(self.evidence(version).read_text())
        edit(values)
        self.evidence(version).write_text(json.dumps(values))
        return values

    def forge(self, version: str, *, key: bytes | None = None) -> None:
        """Write down evidence as it lies there now, wherever no key is needed."""
        content = self.evidence(version).read_text()
        digest = _evidence.digest_of(content)
        self.tag(version, evidence=digest)
        values = json.loads(content)
        budget = values.get("budget") or {}
        data_set = budget.get("data_set", "")
        statement = EvidenceStatement(
            model_name=MODEL,
            model_version=version,
            model_digest=values["model_digest"],
            evidence_digest=digest,
            data_set=data_set,
            run="r",
            measured_at=Dossier.model_validate_json(content).measured_at,
            registered_at=datetime.now(tz=UTC),
        )
        self.signed(version).write_text(seal(statement, private_key=key))
        self.enter(digest, data_set=data_set, about=f"version {version} of {MODEL}")

    def enter(self, subject: str, *, data_set: str, about: str) -> None:
        """Write a registration into the budget store's log."""
        store = BudgetStore.find(current_workspace().budget_url)
        kind = Attempt.REGISTRATION
        record_attempt(
            store, data_set=data_set, kind=kind, subject=subject, about=about
        )
        store.engine.dispose()

    def put_decision(self, version: str, envelope: str) -> None:
        """Lay a decision beside a version and write the tags that it would have."""
        (self.beside(version) / ENVELOPE).write_text(envelope)
        held = open_unverified(envelope)
        kept = self.beside(version) / "decisions"
        kept.mkdir(exist_ok=True)
        (kept / f"{held.decision_hash}.signed.json").write_text(envelope)
        self.tag(version, gate="PASS", decision_hash=held.decision_hash)
        self.tag(version, policy=held.decision.policy, reason="every criterion met")

    def one_bit(self) -> None:
        """Flip a bit of the clean version's weights."""
        body = bytearray(self.weights().read_bytes())
        body[-3] ^= 1
        self.weights().write_bytes(body)

    def refused_now(self) -> str:
        """Let the runs' own policy refuse what it passed; return the pass."""
        envelope = (self.beside() / ENVELOPE).read_text()
        body = self.weights().read_bytes()
        self.one_bit()
        self.gate()
        self.weights().write_bytes(body)
        return envelope

    def trail(self, entry: Mapping[str, object], *, key: str = "2020") -> None:
        """Write an entry onto the trail of promotions."""
        name = f"dptune.champion.{key}"
        MlflowClient().set_registered_model_tag(MODEL, name, json.dumps(entry))

    def cut_trail(self) -> None:
        """Delete every entry of the trail of promotions."""
        for name in MlflowClient().get_registered_model(MODEL).tags:
            if name.startswith("dptune.champion."):
                MlflowClient().delete_registered_model_tag(MODEL, name)

    def mlflow_sql(self, statement: str, **values: object) -> None:
        """Edit the registry's database."""
        _sql(mlflow.get_registry_uri(), statement, values)

    def budget_sql(self, statement: str, **values: object) -> None:
        """Edit the budget store."""
        _sql(current_workspace().budget_url, statement, values)

    def policy_file(self, file_name: str = "policy.yaml", **changes: object) -> Path:
        """Write the runs' policy with other fields, under another name."""
        values = yaml.safe_load(self.policy.read_text()) | {"name": "lax"} | changes
        file = self.outside / file_name
        file.write_text(yaml.safe_dump(values))
        return file


def _sql(url: str, statement: str, values: Mapping[str, object]) -> None:
    engine = create_engine(url)
    with engine.begin() as connection:
        guards = text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for name in connection.execute(guards).scalars().all():
            connection.execute(text(f'DROP TRIGGER "{name}"'))  # whoever may write may
        connection.execute(text(statement), dict(values))
    engine.dispose()


@contextmanager
def clock(shift: timedelta) -> Iterator[None]:
    """Let this process's code read a clock that is set otherwise."""

    class Shifted(datetime):
        @classmethod
        def now(cls, tz=None):  # noqa: ANN001, ANN206 - as the class it stands for
            return datetime.now(tz=tz) + shift

    rooms = ("dptune", "steps", "cli", "infra", "pipelines", "materializers")
    changed = [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in rooms
        and getattr(module, "datetime", None) is datetime
    ]
    for module in changed:
        module.datetime = Shifted
    try:
        yield
    finally:
        for module in changed:
            module.datetime = datetime


def artifact(name: str, file: str) -> Path:
    """The newest file of an artifact of the last run."""
    from zenml.client import Client  # noqa: PLC0415

    (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    steps = Client().get_pipeline_run(run.id).steps
    for step in steps.values():
        if name in step.outputs:
            return Path(step.outputs[name][0].uri) / file
    raise KeyError(name)
