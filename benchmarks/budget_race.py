"""Processes racing for the last of a budget: how often do two of them get it?

    export PYTHONPATH=.
    python benchmarks/budget_race.py sqlite:///race.db --rounds 100
    python benchmarks/budget_race.py postgresql://user@host/name --rounds 100

In every round a fresh data set may pay for three runs, and fifty processes ask for one
at the same moment, each with the same twenty units and one of its own. Every winner
spends; half of them settle, half keep their reservation open. A round is good if
exactly three won, nobody waited for ever, and the composed epsilon is within the grant;
at the end the log is verified. The first round begins with fifty processes that open a
store which is not there yet. `--twin-rounds` adds rounds in which the check is done
before the lock: the bug that this must find. `tests/integration/test_budget_race.py`
runs a few rounds of both. Processes are forked from one that has imported everything.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier

from dptune.accounting.accountants import epsilon
from dptune.accounting.store import cohorts
from dptune.accounting.store.allowances import Cost, Grant
from dptune.accounting.store.database import connecting, reading, writing
from dptune.accounting.store.reservations import Reservation, UnitSet
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.summaries import budgets
from dptune.accounting.store.tables import IdKind
from dptune.accounting.store.verify import verify
from dptune.errors import BudgetExceededError
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from tests.support.events import poisson_gaussian_event

WINNERS, STEPS, DELTA, PATIENCE = 3, 10, 1e-5, 120.0
RELATION = NeighboringRelation.ADD_OR_REMOVE_ONE


class Twin(BudgetStore):
    """Checks before it holds the lock, and believes what it saw."""

    def reserve(self, request: Request, **_: bool) -> Reservation:
        """Check, and only then lock and write."""
        with connecting(self.engine) as connection:
            with reading(connection):
                super()._examine(connection, request)
            time.sleep(0.2)
            with writing(connection):
                return self._enter(connection, request)

    def _examine(self, connection, request):  # noqa: ANN001, ANN202 - twin
        return cohorts.touched_by(connection, request.units), []


def main() -> int:
    """Run all rounds and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("url")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--processes", type=int, default=50)
    parser.add_argument("--twin-rounds", type=int, default=0)
    options = parser.parse_args()
    _warm(options.processes)
    found = _race(options.url, options.rounds, options.processes, BudgetStore)
    if options.twin_rounds:
        twin = _race(options.url, options.twin_rounds, options.processes, Twin)
        found["twin"] = {"rounds": options.twin_rounds, **_only_faults(twin)}
    print(json.dumps(found))
    return 0


def _race(
    url: str, rounds: int, processes: int, kind: type[BudgetStore]
) -> dict[str, object]:
    """Run rounds and say what came of them."""
    started = time.monotonic()
    found, stuck = _rounds(url, rounds, processes, kind)
    store = BudgetStore.open(url)
    result = {
        "database": store.engine.dialect.name,
        "rounds": len(found),
        "processes": processes,
        "overspends": sum(won > WINNERS for won, _ in found),
        "wasted": sum(won < WINNERS for won, _ in found),
        "beyond_grant": sum(spent > _limit() for _, spent in found),
        "stuck": stuck,
        "verified": verify(store).success,
        "seconds": round(time.monotonic() - started, 1),
    }
    store.engine.dispose()
    return result


def _only_faults(found: dict[str, object]) -> dict[str, object]:
    """Keep what tells whether a planted bug was found."""
    return {name: found[name] for name in ("overspends", "beyond_grant")}


def _rounds(
    url: str, rounds: int, processes: int, kind: type[BudgetStore]
) -> tuple[list[tuple[int, float]], int]:
    """Run all rounds; winners and epsilon of each, and processes that did not end."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes + 1)
    won = context.Value("i", 0)
    names = [f"{kind.__name__.lower()}-{turn}" for turn in range(rounds)]
    racers = [
        context.Process(target=_racer, args=(url, names, kind, number, barrier, won))
        for number in range(processes)
    ]
    for racer in racers:
        racer.start()
    found = [_round(url, name, barrier, won) for name in names]
    for racer in racers:
        racer.join(PATIENCE)
    stuck = [racer for racer in racers if racer.exitcode != 0]
    for racer in stuck:
        racer.kill()
    return found, len(stuck)


def _round(
    url: str, name: str, barrier: Barrier, won: Synchronized
) -> tuple[int, float]:
    """Let all processes ask at once; count winners and the composed epsilon."""
    store = BudgetStore.open(url)
    grant = Grant(
        data_set=name,
        notion=Notion.RECORD,
        relation=RELATION,
        epsilon=_limit(),
        delta=DELTA,
    )
    store.grant(grant)
    won.value = 0
    barrier.wait(PATIENCE)
    barrier.wait(PATIENCE)
    (report,) = budgets(store, delta=DELTA, only=name)
    store.engine.dispose()
    return won.value, report.lines[0].committed


def _racer(
    url: str,
    names: list[str],
    kind: type[BudgetStore],
    number: int,
    barrier: Barrier,
    won: Synchronized,
) -> None:
    """Ask once in every round; on success spend, and settle every other time."""
    store = kind.open(url)
    for name in names:
        request = _request(name, number)
        barrier.wait(PATIENCE)
        try:
            held = store.reserve(request)
            store.spend(held.id, _cost(1), stage="race", num_steps=STEPS)
            if number % 2:
                store.settle(held.id)
            with won.get_lock():
                won.value += 1
        except BudgetExceededError:
            pass
        barrier.wait(PATIENCE)
    store.engine.dispose()


def _request(name: str, number: int) -> Request:
    """Ask for the units that all share, and one of one's own."""
    ids = [*map(str, range(20)), f"own-{number}"]
    return Request(
        units=UnitSet.of(ids, key=b"k" * 32, data_set=name),
        privacy_unit=PrivacyUnit.RECORD,
        id_kind=IdKind.SOURCE,
        run_key=str(number),
        recipe="race",
        planned=_cost(1),
    )


def _cost(runs: int) -> Cost:
    """Cost of some runs."""
    event = poisson_gaussian_event(
        sample_rate=1.0, noise_multiplier=5.0, num_steps=runs * STEPS
    )
    return Cost.of({Notion.RECORD: event})


def _limit() -> float:
    """Epsilon of as many runs as may win."""
    return epsilon(_cost(WINNERS).event(Notion.RECORD), delta=DELTA, relation=RELATION)


def _warm(processes: int) -> None:
    """Do once what children inherit: the accountant's cache, a dialect, a migration.

    What stays is what they race for: rows, locks, and the tables themselves.
    """
    with tempfile.TemporaryDirectory() as folder:
        BudgetStore.open(f"sqlite:///{folder}/warm.db").engine.dispose()
    for runs in range(1, processes + 1):
        epsilon(_cost(runs).event(Notion.RECORD), delta=DELTA, relation=RELATION)


if __name__ == "__main__":
    sys.exit(main())
