"""kill -9 at random moments of a private run, then resume: is any noise unpaid?

    python benchmarks/kill_resume.py 200 --twins

One run after another is started the way the pipeline does it: hold the budget, train a
stage with journal, store and checkpoints, settle. Each is killed one to three times, at
moments that are uniform over the time of a whole run, and resumed until it is through.
A witness beside the run, a file that is synced to disk, gets a line before noise is
drawn, so that no draw is missing from it, and after it a digest of that noise. After
every process start, killed or not:

- **under-counts**: starts that drew noise for more steps than they had charged, to the
  journal or to the store. Starts are looked at one by one: what an earlier one charged
  in vain excuses nothing.
- **double counts**: runs that charged more than their steps and one block for each
  kill, to the journal or to the store.
- **reused**: runs in which the same noise was drawn twice.
- **incomplete**: runs whose model, journal, checkpoint or store is not what a run that
  nobody killed leaves behind: all steps, weights with the digest that was reported, one
  reservation, settled, every entry of the store's log verified.

`--twins` plants bugs that this must find, one after another until each is found: `late`
charges a block after its noise, `once` charges no step a second time, `whole` charges
all steps at every start, `replay` draws the noise of an earlier start again.
`tests/integration/test_kill_resume.py` runs ten kills, and the twins. Processes are
forked from one that has imported everything. A kill leaves what was written to the
operating system: what a power cut does is not tested here. Writes `--output`, if given.
"""

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from safetensors.torch import load_file
from witness import PHASE, PHASES, is_reused, phased, seen, watch

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.accounting.store.allowances import Grant
from dptune.accounting.store.reservations import ReservationStatus, UnitSet
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.summaries import history
from dptune.accounting.store.tables import IdKind
from dptune.accounting.store.verify import verify
from dptune.config import PerformanceSettings
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.records import Corpus
from dptune.data.source import SyntheticSource
from dptune.dpsgd import trainer
from dptune.models.loading import load_model, model_digest, save_model
from dptune.models.source import ArchitectureSource, ModelBundle
from dptune.planning import RunPlan, plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.results import BudgetReservation
from dptune.workflow import job
from dptune.workflow.budget import planned_costs, settle_budget, spender
from dptune.workflow.inputs import StageInputs
from dptune.workflow.train_stage import run_stage

STEPS, BLOCK, DELTA, DATA_SET = 26, 4, 1e-3, "people"
MOST_TWIN_KILLS = 60
PERFORMANCE = PerformanceSettings(
    physical_batch_size=64, block_size=BLOCK, device="cpu"
)
ARCHITECTURE = ArchitectureSource(
    kind="architecture",
    num_layers=1,
    num_heads=2,
    hidden_size=16,
    max_tokens=32,
    vocab_size=258,
    tokenizer={"kind": "trained"},
)


@dataclass(frozen=True, kw_only=True)
class Toy:
    """What every run trains: data, model and plan, made once."""

    corpus: Corpus
    model: ModelBundle
    plan: RunPlan

    def inputs(self) -> StageInputs:
        """Return the inputs of the only stage."""
        return StageInputs(
            model=self.model,
            corpus=self.corpus,
            plan=self.plan.stages[0],
            recipe=self.plan.recipe,
            max_tokens=24,
            max_sequences_per_unit=2,
            seed=None,
        )


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Steps that a run has charged to journal and store, and drawn, so far."""

    journal: int = 0
    store: int = 0
    drawn: int = 0


@dataclass(kw_only=True)
class Found:
    """What was found over all runs."""

    kills: int = 0
    runs: int = 0
    starts: int = 0
    under_counts: int = 0
    double_counts: int = 0
    reused: int = 0
    incomplete: int = 0
    most_extra_steps: int = 0
    killed_in: Counter[str] = field(default_factory=Counter)

    def faults(self) -> list[str]:
        """Name what must not be there and is."""
        names = ("under_counts", "double_counts", "reused", "incomplete")
        return [name for name in names if getattr(self, name)]


def main() -> int:
    """Kill as often as asked, print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("kills", type=int, nargs="?", default=200)
    parser.add_argument("--twins", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads must not be forked
    started = time.monotonic()
    moments = random.Random(options.seed)  # noqa: S311 - no secret
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        toy = _toy(folder / "base")
        usual = _usual_seconds(toy, folder)
        found = Found()
        while found.kills < options.kills:
            _one_run(toy, folder / f"run-{found.runs}", usual, None, found, moments)
        twins = {
            twin: _first_faults(toy, folder / twin, usual, twin, moments)
            for twin in (TWINS if options.twins else ())
        }
    result = {
        **vars(found),
        "killed_in": {phase: found.killed_in[phase] for phase in PHASES},
        "twins": twins,
        "steps": STEPS,
        "block": BLOCK,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(result))
    if options.output:
        options.output.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    return 0


def _usual_seconds(toy: Toy, folder: Path) -> float:
    """Fill the accountant's cache, which children inherit, and time a whole run."""
    _reserve(toy, _made(folder / "warm"))
    for name in ("first", "whole"):
        began = time.monotonic()
        if _start(toy, folder / name, twin=None, kill_after=None) != 0:
            raise SystemExit("a run that nobody kills must end well")
    return time.monotonic() - began


def _first_faults(
    toy: Toy, folder: Path, usual: float, twin: str, moments: random.Random
) -> list[str]:
    """Kill runs with a planted bug until something is found."""
    found = Found()
    while not found.faults() and found.kills < MOST_TWIN_KILLS:
        _one_run(toy, folder / str(found.runs), usual, twin, found, moments)
    return found.faults()


def _one_run(
    toy: Toy,
    home: Path,
    usual: float,
    twin: str | None,
    found: Found,
    moments: random.Random,
) -> None:
    """Start a run, kill it one to three times, let it end, and look."""
    before, kills = Counts(), 0
    for planned in [True] * moments.randint(1, 3) + [False]:
        delay = moments.uniform(0, usual) if planned else None
        code = _start(toy, home, twin=twin, kill_after=delay)
        after = _counts(toy, home)
        found.starts += 1
        found.under_counts += _is_unpaid(before, after)
        before = after
        if code != -signal.SIGKILL:
            break  # it was through before its time came
        kills += 1
        found.killed_in[PHASES[PHASE.value]] += 1
    extra = max(before.journal, before.store) - STEPS
    found.runs += 1
    found.kills += kills
    found.double_counts += extra > kills * BLOCK
    found.most_extra_steps = max(found.most_extra_steps, extra)
    found.reused += is_reused(home / "witness")
    found.incomplete += code != 0 or not _is_complete(toy, home)


def _is_unpaid(before: Counts, after: Counts) -> bool:
    """Whether one process start drew more than it charged."""
    drawn = after.drawn - before.drawn
    paid = min(after.journal - before.journal, after.store - before.store)
    return drawn > paid


def _start(
    toy: Toy, home: Path, *, twin: str | None, kill_after: float | None
) -> int | None:
    """Run in a process of its own; kill it after some seconds; return how it ended."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_run, args=(toy, home, twin))
    process.start()
    process.join(kill_after)
    if kill_after is not None:
        process.kill()
    process.join()
    return process.exitcode


def _run(toy: Toy, home: Path, twin: str | None) -> None:
    """Hold the budget, train, settle: what the pipeline does, in one process."""
    PHASE.value = PHASES.index("start")
    watch(_made(home) / "witness")
    if twin is not None:
        TWINS[twin](toy, home)
    reservation = _reserve(toy, home)
    outcome = run_stage(
        toy.inputs(),
        PrivacyLedger(),
        folder=home / "runs",
        performance=PERFORMANCE,
        spend=phased("store", spender(_url(home), reservation)),
    )
    PHASE.value = PHASES.index("settle")
    settle_budget(_url(home), reservation, delta=DELTA)
    result = {
        "digest": outcome.bundle.digest,
        "steps": outcome.report.num_steps,
        "charged": sum(entry.num_steps for entry in outcome.ledger.entries),
    }
    (home / "result.json").write_text(json.dumps(result), "utf-8")


def _made(folder: Path) -> Path:
    """Make a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _reserve(toy: Toy, home: Path) -> BudgetReservation:
    """Hold the run's cost, or find what an earlier start held."""
    store = BudgetStore.open(_url(home))
    terms = (Notion.RECORD, NeighboringRelation.ADD_OR_REMOVE_ONE)
    if not history(store):
        store.grant(
            Grant(
                data_set=DATA_SET,
                notion=terms[0],
                relation=terms[1],
                epsilon=100.0,
                delta=DELTA,
            )
        )
    whole, spare = planned_costs(
        toy.plan, toy.corpus.report, redaction="mask", block_size=BLOCK, seeded=False
    )
    request = Request(
        units=UnitSet.of(toy.corpus.source_units, key=b"k" * 32, data_set=DATA_SET),
        privacy_unit=PrivacyUnit.RECORD,
        id_kind=IdKind.SOURCE,
        run_key="run",
        recipe=toy.plan.recipe,
        planned=whole,
        spare=spare,
    )
    held = store.reserve(request)
    head = store.head()
    store.engine.dispose()
    return BudgetReservation(
        id=held.id,
        data_set=held.data_set,
        num_units=held.num_units,
        head_sequence=head.sequence,
        head_hash=head.hash,
    )


def _counts(toy: Toy, home: Path) -> Counts:
    """Read what a run has charged and drawn so far."""
    store = BudgetStore.find(_url(home))
    runs = history(store) if store else []
    if store:
        store.engine.dispose()
    return Counts(
        journal=_journal_steps(toy, home),
        store=sum(run.spent.count(Notion.RECORD) for run in runs),
        drawn=seen(home / "witness").count("draw"),
    )


def _journal_steps(toy: Toy, home: Path) -> int:
    """Steps that the journal paid for."""
    journal = LedgerJournal(home / "runs" / toy.inputs().key() / "ledger.jsonl")
    return sum(entry.num_steps for entry in journal.read().entries)


def _is_complete(toy: Toy, home: Path) -> bool:
    """Whether a run has left everything behind that it should."""
    stage = home / "runs" / toy.inputs().key()
    result = json.loads((home / "result.json").read_text("utf-8"))
    (state,) = (stage / "checkpoint").glob("step-*/state.json")
    weights = load_file(stage / "model" / "model.safetensors")
    store = BudgetStore.open(_url(home))
    (run,) = history(store)
    verified = verify(store).success
    store.engine.dispose()
    return (
        result["steps"] == STEPS == json.loads(state.read_text("utf-8"))["step"]
        and result["digest"] == model_digest(stage / "model") != toy.model.digest
        and all(bool(value.isfinite().all()) for value in weights.values())
        and run.status is ReservationStatus.SETTLED
        and run.is_complete
        and _journal_steps(toy, home) == result["charged"] >= STEPS
        and verified
    )


def _url(home: Path) -> str:
    """Name the budget store of a run."""
    return f"sqlite:///{home / 'budget.db'}"


def _toy(folder: Path) -> Toy:
    """Make data, model and plan."""
    corpus = build_corpus(
        SyntheticSource(num_records=40, seed=2),
        privacy_unit=PrivacyUnit.RECORD,
        duplicates=Duplicates.KEEP,
    )
    loaded = load_model(ARCHITECTURE)
    save_model(loaded.model, loaded.tokenizer, folder)
    units = corpus.report.num_units["train"]
    stage = {
        "name": "private",
        "view": "original",
        "epochs": STEPS * 8 / units,
        "expected_batch_size": 8,
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
        "clipping": {"max_grad_norm": 0.5},
        "noise": {"noise_multiplier": 1.0},
    }
    recipe = Recipe.model_validate({"name": "toy", "title": "T", "stages": [stage]})
    plan = plan_run(
        recipe,
        num_units=units,
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=None,
        target_delta=DELTA,
    )
    if plan.stages[0].num_steps != STEPS:
        raise SystemExit(f"the toy run must have {STEPS} steps")
    return Toy(
        corpus=corpus,
        model=ModelBundle(path=folder, digest=model_digest(folder)),
        plan=plan,
    )


def _late(_toy: Toy, _home: Path) -> None:
    """Charge a block when the next one begins: after its noise."""
    train = job.train_stage

    def twin(*arguments: Any, charge: Callable[..., None], **keywords: Any) -> Any:  # noqa: ANN401
        waiting: list[tuple[int, int]] = []

        def later(first_step: int, num_steps: int) -> None:
            while waiting:
                charge(*waiting.pop())
            waiting.append((first_step, num_steps))

        outcome = train(*arguments, charge=later, **keywords)
        while waiting:
            charge(*waiting.pop())
        return outcome

    job.train_stage = twin


def _once(toy: Toy, home: Path) -> None:
    """Charge no step that the journal has already: noise that is drawn again is not."""
    train = job.train_stage

    def twin(*arguments: Any, charge: Callable[..., None], **keywords: Any) -> Any:  # noqa: ANN401
        def new_only(first_step: int, num_steps: int) -> None:
            if first_step + num_steps > _journal_steps(toy, home):
                charge(first_step, num_steps)

        return train(*arguments, charge=new_only, **keywords)

    job.train_stage = twin


def _whole(_toy: Toy, _home: Path) -> None:
    """Charge all steps at every start: safe, and wasteful."""
    train = job.train_stage

    def twin(*arguments: Any, charge: Callable[..., None], **keywords: Any) -> Any:  # noqa: ANN401
        charged: list[bool] = []

        def at_once(_first_step: int, _num_steps: int) -> None:
            if not charged:
                charged.append(True)
                charge(0, STEPS)

        return train(*arguments, charge=at_once, **keywords)

    job.train_stage = twin


def _replay(_toy: Toy, _home: Path) -> None:
    """Give every start the same number, and noise that follows from it."""
    train = job.train_stage
    trainer.claim_attempt = lambda _folder: 0

    def twin(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        return train(*arguments, **{**keywords, "seed": 5})

    job.train_stage = twin


TWINS = {"late": _late, "once": _once, "whole": _whole, "replay": _replay}


if __name__ == "__main__":
    sys.exit(main())
