"""What is on disk stays readable: `formats.json` holds the shapes, and examples.

Members of enumerations, fields of reports and of values must be there as they always
were; new ones may be added, fields with a default. Texts and digests of the examples
must be the same to the byte, since hashes and signatures are over them.

`python tests/golden/test_formats.py` writes the file anew. A line of it that changes is
a break with what users have stored: CHANGELOG says why, and how old files are read.
"""

import dataclasses
import importlib
import inspect
import itertools
import json
import pkgutil
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import dp_accounting as dpa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from pydantic import BaseModel
from sqlalchemy import select

from dptune.accounting.adaptive import AskedBudget, Card, DeckTerms
from dptune.accounting.assumptions import EXPLANATIONS, Assumption
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.events import event_to_json, mechanism_counts
from dptune.accounting.ledger import LedgerEntry, NotionEvent
from dptune.accounting.store import allowances, log, schema
from dptune.accounting.store.attempts import (
    Attempt,
    Loss,
    admit_loss,
    record_attempt,
)
from dptune.accounting.store.log import Head
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets, export
from dptune.gates.criterion import Criterion, GateOutcome, Verdict
from dptune.gates.decision import GateDecision
from dptune.gates.manifest import Manifest, StoredFile
from dptune.gates.signing import EvidenceStatement, Statement, seal
from dptune.privacy import Notion, Purpose
from dptune.results import Interval
from tests.budgets import REPLACE, cost, grant, request

FILE = Path(__file__).with_name("formats.json")
ROOMS = ("dptune.accounting", "dptune.accounting.store", "dptune.gates")
SINGLE = ("dptune.privacy", "dptune.dpsgd.sampling", "dptune.attacks.exposure")
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
GAUSSIAN = dpa.GaussianDpEvent(1.1)


def _modules() -> Iterator[ModuleType]:
    for room in ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{room}.{found.name}")
    yield from map(importlib.import_module, SINGLE)


def _shape(kind: type) -> dict[str, Any] | None:
    """What of a class is written to disk, or handed around."""
    if issubclass(kind, Enum):
        return {member.name: member.value for member in kind}
    if issubclass(kind, BaseModel):
        schema = kind.model_json_schema()
        needed = schema.get("required", ())
        return {
            name: {key: value for key, value in field.items() if key != "title"}
            | ({"required": True} if name in needed else {})
            for name, field in schema["properties"].items()
        }
    if dataclasses.is_dataclass(kind):
        hidden = {one.name for one in dataclasses.fields(kind) if not one.repr}
        return {
            name: _default(one) + (", hidden" if name in hidden else "")
            for name, one in inspect.signature(kind).parameters.items()
        }
    return None


def _default(parameter: inspect.Parameter) -> str:
    """Write a default; where a factory makes it, what it makes is another test's."""
    value = parameter.default
    if value is inspect.Parameter.empty:
        return "required"
    return "made anew" if "factory" in repr(value) else repr(value)


def shapes() -> dict[str, dict[str, Any]]:
    """Collect the shapes of all public classes, by their full name."""
    found = {}
    for module in _modules():
        for name, kind in vars(module).items():
            own = inspect.isclass(kind) and kind.__module__ == module.__name__
            if own and not name.startswith("_") and (shape := _shape(kind)):
                found[f"{module.__name__}.{name}"] = shape
    return found


def _journal(folder: Path) -> dict[str, str]:
    """Charge two entries; the second leaves nothing to its default."""
    journal = LedgerJournal(folder / "journal.jsonl")
    base = {"recipe": "dp_sgd", "data_fingerprint": "f", "privacy_unit": "record"}
    plain = LedgerEntry(
        **base, stage="one", view="original", dp_event=GAUSSIAN, num_steps=1
    )
    sampled = dpa.PoissonSampledDpEvent(0.5, GAUSSIAN)
    full = LedgerEntry(
        **base,
        stage="two",
        view="redacted",
        dp_event=dpa.SelfComposedDpEvent(sampled, 3),
        num_steps=6,
        notion_events=(
            NotionEvent(notion=Notion.SELECTIVE, dp_event=GAUSSIAN, tier="high"),
        ),
        sample_rate=0.25,
        noise_multiplier=1.1,
        max_grad_norm=0.5,
        num_bands=2,
        assumptions=(Assumption.PUBLIC_HYPERPARAMETERS,),
        nominal_epsilon=2.5,
        nominal_reference="Table 1",
        fixed_seed=True,
    )
    journal.charge(plain)
    journal.charge(full)
    names = ("journal.jsonl", "journal.jsonl.head")
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def _grants(folder: Path) -> str:
    """Grant two steps of a deck."""
    card = Card(sample_rate=0.25, noise_multiplier=1.5)
    terms = DeckTerms(cards=((card, 2),))
    budget = AskedBudget(terms, path=folder / "grants.jsonl")
    budget.confirm_charge()
    budget.ask(1.0)
    budget.ask(2.0, sample_rate=0.25)
    return (folder / "grants.jsonl").read_text(encoding="utf-8")


EVENTS = (
    dpa.NoOpDpEvent(),
    dpa.NonPrivateDpEvent(),
    GAUSSIAN,
    dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.25, GAUSSIAN), 3),
    dpa.ComposedDpEvent(
        [GAUSSIAN, dpa.TruncatedSubsampledGaussianDpEvent(9, 0.5, 4, 2.0)]
    ),
)


def _signed() -> dict[str, str]:
    """A decision and what was measured, signed with a known key and unsigned."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    files = Manifest(files=(StoredFile(path="model/é.bin", size=3, sha256="ab"),))
    criterion = Criterion(
        name="memorization",
        verdict=Verdict.PASS,
        measured=1.5,
        interval=Interval(low=1.0, high=2.0, confidence=0.95),
        threshold=2.5,
        reason="É.",
    )
    decision = GateDecision(
        outcome=GateOutcome.PASS,
        model_digest="m",
        policy_name="p",
        policy_version=2,
        policy_digest="d",
        evidence_digest="e",
        manifest_digest=files.digest,
        criteria=(criterion,),
    )
    statement = Statement(
        model_name="name",
        model_version="7",
        decided_at=NOW,
        decision=decision,
        manifest=files,
        decision_hash=decision.decision_hash,
    )
    evidence = EvidenceStatement(
        model_name="name",
        model_version="7",
        model_digest="m",
        evidence_digest="e",
        data_set="people",
        run="run",
        measured_at=None,
        registered_at=NOW,
    )
    return {
        "decision": seal(statement, private_key=pem),
        "evidence": seal(evidence, private_key=pem),
        "unsigned": seal(evidence, private_key=None),
        "decision_hash": decision.decision_hash,
        "manifest_digest": files.digest,
    }


def _store(folder: Path) -> dict[str, Any]:
    """Live through everything that a store writes down, and read all of its tables.

    The clock stands still, ids are counted, and a mechanism costs 1/4, so that nothing
    depends on the machine.
    """
    numbers = itertools.count(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))
        patch.setattr(log, "datetime", _Clock)
        patch.setattr(allowances, "epsilon", _quarters)
        store = BudgetStore.open(f"sqlite:///{folder}/budget.db")
        _live(store)
        reports = [one.model_dump(mode="json") for one in budgets(store, delta=0.5)]
    tables = {}
    with store.engine.connect() as connection:
        for name, table in schema.metadata.tables.items():
            rows = connection.execute(select(table).order_by(*table.primary_key))
            tables[name] = [
                [value.hex() if isinstance(value, bytes) else value for value in row]
                for row in rows
            ]
    found = {"tables": tables, "budgets": reports, "export": export(store)}
    store.engine.dispose()
    return found


class _Clock:
    @staticmethod
    def now(*, tz: tzinfo) -> datetime:
        return NOW.replace(tzinfo=tz)


def _quarters(event: dpa.DpEvent, **_: object) -> float:
    return sum(count for _, count in mechanism_counts(event)) / 4


def _live(store: BudgetStore) -> None:
    """Grants, two runs of which one splits a cohort and stops, attempts, a loss."""
    store.grant(grant(9.0), reason="first")
    store.grant(grant(8.0, notion=Notion.SELECTIVE, relation=REPLACE))
    held = store.reserve(request(range(6), "one", cost(4), spare=cost(1)))
    store.spend(held.id, cost(3), stage="private", num_steps=3)
    store.settle(held.id)
    tuned = request(range(4, 8), "two", cost(6), purpose=Purpose.TUNING, sweep="rates")
    held = store.reserve(tuned)
    store.spend(held.id, cost(2), stage="private", num_steps=2)
    store.release(held.id)
    store.reserve(tuned)
    older = [kind for kind in Attempt if kind is not Attempt.READING]
    for kind in older:
        record_attempt(
            store, data_set="people", kind=kind, subject="s", about="model, version 1"
        )
    head = Head(sequence=1, hash="h")
    admit_loss(store, Loss(charges=2, heads=(head,), reason="disk"))
    record_attempt(store, data_set="people", kind=Attempt.READING, subject="t")


def examples(folder: Path) -> dict[str, Any]:
    """Write one of everything whose bytes are hashed, signed or compared."""
    weakened = {
        assumption.value: sorted(
            " ".join((notion.value, relation.value))
            for notion, relation in explanation.weakens
        )
        for assumption, explanation in EXPLANATIONS.items()
    }
    return {
        "events": [event_to_json(event) for event in EVENTS],
        "journal": _journal(folder),
        "grants": _grants(folder),
        "signed": _signed(),
        "store": _store(folder),
        "weakened claims": weakened,
    }


def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def test_shapes_are_what_they_were_and_what_is_new_has_a_default():
    found = json.loads(json.dumps(shapes()))
    changed, needed = {}, {}
    for name, known in golden()["shapes"].items():
        now = found.get(name, {})
        changed |= {f"{name}.{k}": now.get(k) for k in known if now.get(k) != known[k]}
        added = {f"{name}.{k}": now[k] for k in now.keys() - known.keys()}
        needed |= {name: one for name, one in added.items() if "required" in one}
    assert (changed, needed) == ({}, {})


def test_everything_written_has_the_bytes_that_it_always_had(tmp_path):
    known, found = golden()["examples"], examples(tmp_path)
    meant = known.pop("weakened claims")  # of later assumptions nothing is known yet
    assert {name: found["weakened claims"].get(name) for name in meant} == meant
    assert {name: found.get(name) for name in known} == known
    for text in found["events"]:
        assert json.loads(text)["version"] == 1


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        told = {"shapes": shapes(), "examples": examples(Path(place))}
    FILE.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", "utf-8")
