"""Do the stores of a project folder agree? Read from the databases themselves."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import witness

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.store.attempts import charges
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.verify import verify

NOISY, BLOCK, PLANNED = "private_finetune", 2, 5
HALF = ("*.half", ".writing-*", "*.partial", "*.making", "budget.key.*")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Folders of this program.

    Args:
        root: everything; beside the small file system, logs and bases.
    """

    root: Path

    @property
    def disk(self) -> Path:
        """The small file system."""
        return self.root / "disk"

    @property
    def home(self) -> Path:
        """The project folder."""
        return self.disk / "home"

    @property
    def flag(self) -> Path:
        """What the C library shall answer."""
        return self.root / "flag"

    @property
    def witness(self) -> Path:
        """What noise was drawn."""
        return self.root / "witness"


@dataclass(frozen=True, kw_only=True)
class Command:
    """What a round does.

    Args:
        arguments: of `run.py`.
        base: folder that it begins with; None for none.
        champion: that must be there at the end.
        versions: how many there must be then.
    """

    arguments: tuple[str, ...]
    base: str | None
    champion: str
    versions: int


def paid(place: Place) -> tuple[int, int, int]:
    """Count noisy steps that journals and store paid for, and that were drawn."""
    journals = sum(
        entry.num_steps
        for file in place.home.glob("runs/*/ledger.jsonl")
        for entry in LedgerJournal(file).read().entries
        if entry.stage == NOISY
    )
    store = BudgetStore.find(f"sqlite:///{place.home / 'budget.db'}")
    paid = 0
    if store is not None:
        paid = sum(steps for stage, steps in charges(store) if stage == NOISY)
        store.engine.dispose()
    return journals, paid, witness.seen(place.witness).count("draw")


def agree(place: Place, *, since: tuple[int, int, int] = (0, 0, 0)) -> list[str]:
    """Say what must not be there at any moment, and is."""
    problems = []
    journal, store, drawn = (b - a for a, b in zip(since, paid(place), strict=True))
    if not drawn <= journal <= store:
        problems.append(f"drew {drawn}, journal {journal}, store {store}")
    if witness.is_reused(place.witness):
        problems.append("noise drawn twice")
    if (found := BudgetStore.find(f"sqlite:///{place.home / 'budget.db'}")) is not None:
        if not verify(found).success:
            problems.append("the budget store does not verify")
        found.engine.dispose()
    problems += [
        f"version {v} without its digest"
        for v, tags in _versions(place)
        if "dptune.digest" not in tags
    ]
    trail, champion = _champions(place)
    if champion is not None and champion not in trail:
        problems.append(f"champion {champion} that the trail {trail} does not know")
    return problems


def complete(place: Place, command: Command, *, starts: int) -> list[str]:
    """Say what a command that is through must have left, and has not."""
    problems = []
    versions = _versions(place)
    if len(versions) != command.versions:
        problems.append(f"{len(versions)} versions")
    for version, tags in versions:
        problems += [f"version {version}: {p}" for p in _whole(tags)]
    trail, champion = _champions(place)
    staged = _rows(
        place.home / "stores" / "default_zen_store" / "zenml.db",
        "SELECT name FROM model_version WHERE stage = 'production'",
    )
    wanted = command.champion
    if [champion, *trail[-1:], *staged] != [wanted, wanted, (f"v{wanted}",)]:
        problems.append(f"champion {champion}, trail {trail}, ZenML {staged}")
    runs = command.versions * PLANNED
    journal, store, drawn = paid(place)
    most = runs + (starts - 1) * BLOCK
    if not runs <= journal <= store <= most:
        problems.append(f"{runs} steps cost {journal} and {store}, drawn {drawn}")
    left = [p.name for pattern in HALF for p in place.home.rglob(pattern)]
    left += [p.name for p in (place.home / "tmp").glob("*")]
    return problems + ([f"left behind: {left}"] if left else [])


def _whole(tags: dict[str, str]) -> list[str]:
    """Compare what is stored with a version with what its tags say."""
    folder = Path(tags["artifacts"])
    problems = []
    try:
        evidence = (folder / "evidence.json").read_bytes()
        sealed = json.loads((folder / "decision.signed.json").read_text())
        kept = folder / "decisions" / f"{tags['dptune.decision_hash']}.signed.json"
        if sha256(evidence).hexdigest() != tags["dptune.evidence"]:
            problems.append("evidence is not what was noted")
        if json.loads(kept.read_text()) != sealed:
            problems.append("the newest decision is not the one that is kept")
        json.loads((folder / "evidence.signed.json").read_text())
        if tags["dptune.gate"] != "PASS":
            problems.append(f"gate says {tags['dptune.gate']}")
    except (OSError, ValueError, KeyError) as error:
        problems.append(f"{type(error).__name__} {error}")
    return problems


def _mlflow(place: Place) -> Path | None:
    """Find MLflow's database."""
    return next(iter(place.home.glob("stores/**/mlflow.db")), None)


def _versions(place: Place) -> list[tuple[str, dict[str, str]]]:
    """List versions with their tags, and where their files lie, from the database."""
    database = _mlflow(place)
    found = []
    query = "SELECT version, run_id FROM model_versions ORDER BY version"
    for version, run in _rows(database, query):
        tags = dict(
            _rows(
                database,
                "SELECT key, value FROM model_version_tags WHERE version = ?",
                version,
            )
        )
        place_of = "SELECT artifact_uri FROM runs WHERE run_uuid = ?"
        ((uri,),) = _rows(database, place_of, run)
        place_in = str(uri).removeprefix("file://").removeprefix("file:")
        found.append((str(version), tags | {"artifacts": place_in}))
    return found


def _champions(place: Place) -> tuple[list[str], str | None]:
    """Read the trail, and where the alias points, from the database."""
    database = _mlflow(place)
    query = "SELECT value FROM registered_model_tags WHERE key LIKE 'dptune.champion.%'"
    entries = [json.loads(value) for (value,) in _rows(database, query)]
    trail = [e["version"] for e in sorted(entries, key=lambda e: e["at"])]
    query = "SELECT version FROM registered_model_aliases WHERE alias = 'champion'"
    alias = [str(version) for (version,) in _rows(database, query)]
    return trail, alias[0] if alias else None


def _rows(database: Path | None, query: str, *values: object) -> list[tuple[Any, ...]]:
    """Read rows; a table that is not there has none."""
    if database is None or not database.exists():
        return []
    with closing(sqlite3.connect(database)) as connection:
        try:
            return connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
