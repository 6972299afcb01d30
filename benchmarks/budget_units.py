"""Measure what the budget store takes to hold and settle the budget of many units.

    export PYTHONPATH=.
    python benchmarks/budget_units.py sqlite:///units.db --units 10000000
    python benchmarks/budget_units.py postgresql://user@host/name --units 10000000

The store must be empty. Runs follow one another, each in a process of its own: `first`
reads units that nobody has read before, `same` reads them again, `superset` reads them
and a tenth more, `half` reads as many units as the first, half of them known; then the
log is verified. Each line tells seconds and processor seconds to name units (`name`,
keyed hashes of the ids in an Arrow column), to tell whose texts they are (`texts`, of
`--characters` each, as a run does besides), to hold the cost (`reserve`), to spend a
block and to settle; and the peak memory of the process, mapped files included, beside
what it had before, and that of the server's process where it is on this machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from datasets import Dataset
from sqlalchemy import text

from dptune.accounting.store.allowances import Cost, Grant
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.tables import IdKind
from dptune.accounting.store.verify import verify
from dptune.data.records import Corpus
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.workflow.naming import check_digest, claim_digest, texts_digest
from tests.support.events import poisson_gaussian_event

KEY, NAME, DELTA, PART = b"k" * 32, "people", 1e-8, 100_000
RUNS = {"first": (0, 10), "same": (0, 10), "superset": (0, 11), "half": (6, 16)}
"""Units of each run, in tenths of `--units`."""


def main() -> None:
    """Measure every run in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--characters", type=int, default=0, help="0: name no texts")
    parser.add_argument("--runs", nargs="+", default=[*RUNS, "verify"])
    parser.add_argument("--folder", type=Path, help="for the invented ids")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure is not None:
        run, file = asked.measure
        print(json.dumps({"run": run} | measure(asked.url, run, file)))
        return
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        for run in asked.runs:
            file = Path(folder) / f"{run}.arrow"
            first, end = (n * asked.units // 10 for n in RUNS.get(run, (0, 0)))
            write(file, first, end, characters=asked.characters)
            command = [sys.executable, __file__, asked.url, "--measure", run, file]
            subprocess.run(command, check=True, env=os.environ)
            file.unlink()


def write(file: Path, first: int, end: int, *, characters: int) -> None:
    """Invent records of as many units, part by part."""
    kinds = {"id": pa.string(), "text": pa.string(), "unit_id": pa.string()}
    schema = pa.schema(kinds)
    words = "a word that is of no account here " * (characters // 34 + 1)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for start in range(first, end, PART):
            numbers = range(start, min(start + PART, end))
            ids = pa.array([f"customer-{number:010d}" for number in numbers])
            texts = [f"{number:010d} {words}"[:characters] for number in numbers]
            columns = [ids, pa.array(texts), ids]
            writer.write_batch(pa.record_batch(columns, schema))


def measure(url: str, run: str, file: str) -> dict[str, object]:
    """Do one run, or verify, in this process."""
    store = BudgetStore.open(url)
    before = peak()
    clock = Clock()
    with store, pa.memory_map(file) as source:
        if run == "verify":
            with clock("verify"):
                found = verify(store)
            told = {"right": found.success, "num_units": found.num_units}
        else:
            table = pa.ipc.open_stream(source).read_all()
            rows = Dataset(table, fingerprint="invented")  # as of a corpus: not hashed
            corpus = Corpus(dataset=rows, fingerprint="", report=None)
            told = play(store, run, corpus, clock)
        server = server_peak(store)
    return told | clock.seconds | {
        "peak_mib": round(peak()), "before_mib": round(before), "server_mib": server
    }  # fmt: skip


def play(store: BudgetStore, run: str, corpus: Corpus, clock: "Clock") -> dict:
    """Hold, spend and settle as a run does."""
    if run == "first":
        add = NeighboringRelation.ADD_OR_REMOVE_ONE
        terms = {"data_set": NAME, "notion": Notion.RECORD, "relation": add}
        store.grant(Grant(**terms, epsilon=50.0, delta=DELTA))
    named = corpus.dataset.num_rows and len(corpus.dataset[0]["text"]) > 0
    with clock("name"):
        units = UnitSet.of(corpus.source_units, key=KEY, data_set=NAME)
    if named:
        with clock("texts"):
            texts = texts_digest(corpus, key=KEY)
            check_digest(store, units, texts)
    event = poisson_gaussian_event(
        sample_rate=0.001, noise_multiplier=1.0, num_steps=100
    )
    cost = Cost.of({Notion.RECORD: event})
    asked = Request(
        units=units,
        privacy_unit=PrivacyUnit.RECORD,
        id_kind=IdKind.SOURCE,
        run_key=run,
        recipe="many units",
        planned=cost,
    )
    with clock("reserve"):
        held = store.reserve(asked)
    if named:
        with clock("texts"):
            claim_digest(store, units, texts, reservation=held)
    with clock("spend"):
        store.spend(held.id, cost, stage="private", num_steps=100)
    with clock("settle"):
        store.settle(held.id)
        (report,) = budgets(store, delta=DELTA, only=NAME)
    return {
        "units": len(units),
        "known": report.num_units,
        "epsilon": round(report.lines[0].spent, 4),
    }


class Clock:
    """Adds up seconds and processor seconds of what is done under a name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Measure one part."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        spent = time.perf_counter() - wall, time.process_time() - cpu
        known = self.seconds.get(name, [0.0, 0.0])
        self.seconds[name] = [
            round(a + b, 2) for a, b in zip(known, spent, strict=True)
        ]


def peak(process: str = "self") -> float:
    """Return the most MiB that a process has held, shared ones included."""
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    found = dict(line.split(":", 1) for line in status.splitlines())
    return int(found["VmHWM"].split()[0]) / 1024


def server_peak(store: BudgetStore) -> int | None:
    """Look at the process that serves this one, where it is on this machine."""
    if store.engine.dialect.name == "sqlite":
        return None
    with store.engine.connect() as connection:
        number = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
    return round(peak(str(number))) if Path(f"/proc/{number}/status").exists() else None


if __name__ == "__main__":
    main()
