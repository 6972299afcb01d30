"""Small runs for tests of the budget store: units, costs, grants, requests."""

import itertools
import os
import signal

import dp_accounting
from sqlalchemy import Engine, event, select

from dptune.accounting.accountants import epsilon
from dptune.accounting.events import merge_events
from dptune.accounting.store import schema
from dptune.accounting.store.allowances import Cost, Grant
from dptune.accounting.store.database import reading
from dptune.accounting.store.reservations import UnitSet
from dptune.accounting.store.store import Request
from dptune.accounting.store.tables import IdKind
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from tests.support.events import poisson_gaussian_event

KEY = b"k" * 32
DELTA = 1e-5
ADD, REPLACE = NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_ONE


def steps_event(steps, *, noise=2.0, rate=0.1):
    return poisson_gaussian_event(
        sample_rate=rate, noise_multiplier=noise, num_steps=steps
    )


def cost(steps, **how):
    event = steps_event(steps, **how)
    return Cost.of({Notion.RECORD: event, Notion.SELECTIVE: event})


def no_guarantee():
    return Cost.of({Notion.RECORD: dp_accounting.NonPrivateDpEvent()})


def spent_epsilon(*events, delta=DELTA, relation=ADD):
    return epsilon(merge_events(events), delta=delta, relation=relation)


def grant(epsilon, *, notion=Notion.RECORD, relation=ADD, data_set="people"):
    return Grant(
        data_set=data_set,
        notion=notion,
        relation=relation,
        epsilon=epsilon,
        delta=DELTA,
    )


def request(ids, run_key, planned, *, key=KEY, data_set="people", **changes):
    settings = {
        "units": UnitSet.of(map(str, ids), key=key, data_set=data_set),
        "privacy_unit": PrivacyUnit.RECORD,
        "id_kind": IdKind.SOURCE,
        "run_key": run_key,
        "recipe": "dp_sgd",
        "planned": planned,
    }
    return Request(**(settings | changes))


def run(store, ids, run_key, planned, **changes):
    """Reserve, spend all that was planned, settle."""
    held = store.reserve(request(ids, run_key, planned, **changes))
    store.spend(held.id, planned, stage="private", num_steps=1)
    store.settle(held.id)
    return held


def stored(store):
    """Everything that a store holds, table by table."""
    with store.engine.connect() as connection, reading(connection):
        return {
            name: sorted(map(tuple, connection.execute(select(table))))
            for name, table in schema.metadata.tables.items()
        }


def killed(url, act, *, at):
    """Let a process of its own act on a store, and die before a statement of a number.

    Returns whether it died, rather than being through before.
    """
    child = os.fork()
    if not child:
        statements = itertools.count()

        def die(*_):
            if next(statements) == at:
                os.kill(os.getpid(), signal.SIGKILL)

        event.listen(Engine, "before_cursor_execute", die)
        try:
            act(url)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])
