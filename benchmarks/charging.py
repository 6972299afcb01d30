"""What share of a private step does charging take? Store and journal against training.

    export PYTHONPATH=.
    python benchmarks/charging.py                     # SQLite in a temporary folder
    python benchmarks/charging.py postgresql://user@host/name

The model of `engine.py` (6 layers of width 256, 16 records of 128 tokens) is trained by
`train_stage` with a charge before every step instead of every block, so that charges
and steps alternate and a busy machine slows both. A charge is what the pipeline does:
the ledger entry, a spend on the budget store down to the disk, a line of the journal
down to the disk. The share is the median charge over the median step and the steps of a
block, which is how many share one charge. Writes `benchmarks/results/charging.json`.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
from engine import TIME, build_model, make_tokens

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import DataView, LedgerEntry
from dptune.accounting.store.allowances import Grant
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.tables import IdKind
from dptune.config import PerformanceSettings
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.trainer import train_stage
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.results import BudgetReservation
from dptune.workflow.budget import budget_cost, spender
from tests.support.events import poisson_gaussian_event

RESULTS = Path(__file__).parent / "results" / "charging.json"
RECORDS, BATCH, WARM_UP = 1600, 16, 3


def main() -> None:
    """Measure, print and keep one line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("url", nargs="?", default="")
    parser.add_argument("--steps", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        url = options.url or f"sqlite:///{folder}/budget.db"
        charges, steps = measure(url, folder, options.steps)
    block = PerformanceSettings().block_size
    charge, step = statistics.median(charges), statistics.median(steps)
    found = {
        "database": url.split(":", maxsplit=1)[0],
        "charges": len(charges),
        "milliseconds_of_a_charge": round(1000 * charge, 2),
        "milliseconds_of_a_step": round(1000 * step, 1),
        "steps_of_a_block": block,
        "charging_over_training_percent": round(100 * charge / (block * step), 3),
        "with_blocks_of_one_step_percent": round(100 * charge / step, 2),
    }
    print(json.dumps(found))
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    RESULTS.write_text(json.dumps(known | {found["database"]: found}, indent=1) + "\n")


def measure(url: str, folder: Path, num_steps: int) -> tuple[list[float], list[float]]:
    """Train, and return seconds of each charge and each step."""
    plan = GradientPlan(
        noise_multiplier=1.0,
        sample_rate=BATCH / RECORDS,
        max_grad_norm=1.0,
        expected_batch_size=float(BATCH),
    )
    entry = LedgerEntry(
        stage="private",
        recipe="dp_sgd",
        data_fingerprint="0" * 64,
        privacy_unit=PrivacyUnit.RECORD,
        view=DataView.ORIGINAL,
        dp_event=plan.dp_event(1),
        num_steps=1,
    )
    spend = spender(url, hold(url, num_steps))
    journal = LedgerJournal(folder / "ledger.jsonl")
    charges, steps, since = [], [], [0.0]

    def charge(_first: int, _count: int) -> None:
        started = time.perf_counter()
        spend(entry)
        journal.charge(entry)
        since[0] = time.perf_counter()
        charges.append(since[0] - started)

    train_stage(
        build_model("untied", "small", positions=TIME["small"]),
        records(),
        plan=plan,
        num_steps=num_steps,
        optimizer=OptimizerSettings(learning_rate=1e-4),
        physical_batch_size=BATCH,
        pad_token_id=0,
        loss_normalizer=float(TIME["small"]),
        checkpoint_dir=None,
        block_size=1,
        charge=charge,
        on_step=lambda _: steps.append(time.perf_counter() - since[0]),
    )
    return charges[WARM_UP:], steps[WARM_UP:]


def records() -> UnitDataset:
    """Make up records of one unit each."""
    tokens = make_tokens("small", RECORDS)
    return UnitDataset.from_columns(
        tokens.tolist(),
        [[1.0] * TIME["small"]] * RECORDS,
        list(range(RECORDS)),
        max_sequences_per_unit=1,
    )


def hold(url: str, num_steps: int) -> BudgetReservation:
    """Reserve the run under a grant."""
    store = BudgetStore.open(url)
    event = poisson_gaussian_event(
        sample_rate=BATCH / RECORDS, noise_multiplier=1.0, num_steps=num_steps
    )
    terms = {
        "notion": Notion.RECORD,
        "relation": NeighboringRelation.ADD_OR_REMOVE_ONE,
    }
    store.grant(Grant(data_set="charging", epsilon=50.0, delta=1e-6, **terms))
    entry = LedgerEntry(
        stage="private",
        recipe="dp_sgd",
        data_fingerprint="0" * 64,
        privacy_unit=PrivacyUnit.RECORD,
        view=DataView.ORIGINAL,
        dp_event=event,
        num_steps=num_steps,
    )
    ids = map(str, range(RECORDS))
    held = store.reserve(
        Request(
            units=UnitSet.of(ids, key=b"k" * 32, data_set="charging"),
            privacy_unit=PrivacyUnit.RECORD,
            id_kind=IdKind.SOURCE,
            run_key=str(time.time_ns()),
            recipe="dp_sgd",
            planned=budget_cost(entry),
        )
    )
    store.engine.dispose()
    return BudgetReservation(
        id=held.id,
        data_set="charging",
        num_units=RECORDS,
        head_sequence=0,
        head_hash="",
    )


if __name__ == "__main__":
    main()
