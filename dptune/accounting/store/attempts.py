"""Attempts on a data set, and losses of the store: entries that cost nothing.

An attempt is an evaluation (attacks on a model) or a decision (a gate's verdict). Each
looks at private records once more, and whoever looks often enough finds a model that
passes by luck. Trainings need no entries of their own: they are reservations. A
reading notes under which name the texts of a corpus were charged first.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import Connection, select

from dptune.accounting.store import entries, log, schema
from dptune.accounting.store.database import connecting, reading, writing
from dptune.accounting.store.entries import read_content
from dptune.accounting.store.log import Head
from dptune.accounting.store.store import BudgetStore

_CLOCKS_DIFFER: Final = timedelta(minutes=5)


class Attempt(StrEnum):
    """What was done with private records that no epsilon counts."""

    READING = "reading"
    EVALUATION = "evaluation"
    REGISTRATION = "registration"
    DECISION = "decision"
    VERDICT = "verdict"
    PROMOTION = "promotion"


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What a store admits that it does not know any more.

    Args:
        charges: of journals that it has no entries for.
        heads: ends of a log that it is not the continuation of.
        reason: of whoever accepted it.
    """

    charges: int
    heads: tuple[Head, ...]
    reason: str


def record_attempt(
    store: BudgetStore, *, data_set: str, kind: Attempt, subject: str, about: str = ""
) -> None:
    """Enter an attempt; the last one again is no other.

    Args:
        store: where attempts of the data set are counted.
        data_set: whose records were looked at.
        kind: of attempt.
        subject: digest of what the result depends on.
        about: the model and version, where it has one; the set of units of a reading.
    """
    with connecting(store.engine) as connection, writing(connection):
        found = _subjects(connection, data_set=data_set, kind=kind, about=about)
        if not found or found[-1] != subject:
            entry = entries.attempt_entry(
                data_set, kind=kind, subject=subject, about=about
            )
            log.append(connection, entry)


def count_attempts(store: BudgetStore, *, data_set: str, kind: Attempt) -> int:
    """Count the different attempts of one kind on a data set."""
    with connecting(store.engine) as connection, reading(connection):
        return len(set(_subjects(connection, data_set=data_set, kind=kind)))


def last_attempt(
    store: BudgetStore, *, data_set: str, kind: Attempt, about: str
) -> str | None:
    """Return the subject of the newest attempt of one kind that is about a version."""
    with connecting(store.engine) as connection, reading(connection):
        found = _subjects(connection, data_set=data_set, kind=kind, about=about)
    return found[-1] if found else None


def attempts_with(
    store: BudgetStore, *, kind: Attempt, subject: str
) -> list[tuple[str, str]]:
    """List data set and `about` of all attempts that have this subject, in order."""
    with connecting(store.engine) as connection, reading(connection):
        return [
            (str(content["data_set"]), str(content["about"]))
            for content in _contents(connection, "attempt")
            if (content["attempt"], content["subject"]) == (kind.value, subject)
        ]


def attempts_about(store: BudgetStore, about: str) -> list[tuple[Attempt, str]]:
    """List kind and subject of all attempts about one thing, in order."""
    with connecting(store.engine) as connection, reading(connection):
        return [
            (Attempt(content["attempt"]), str(content["subject"]))
            for content in _contents(connection, "attempt")
            if content["about"] == about
        ]


def admit_loss(store: BudgetStore, loss: Loss) -> Head:
    """Enter that earlier entries are gone, and that somebody knows."""
    with connecting(store.engine) as connection, writing(connection):
        entry = entries.loss_entry(loss.charges, loss.heads, reason=loss.reason)
        return log.append(connection, entry)


def losses(store: BudgetStore) -> list[Loss]:
    """List what was admitted to be lost."""
    with connecting(store.engine) as connection, reading(connection):
        return [
            Loss(
                charges=int(content["charges"]),
                heads=tuple(Head(**head) for head in content["heads"]),
                reason=str(content["reason"]),
            )
            for content in _contents(connection, "loss")
        ]


def charges(store: BudgetStore) -> Iterable[tuple[str, int]]:
    """Name stage and steps of every block that was ever paid for."""
    with connecting(store.engine) as connection, reading(connection):
        return [
            (str(c["stage"]), int(c["num_steps"]))
            for c in _contents(connection, "spend")
        ]


def continues(store: BudgetStore, head: Head) -> bool:
    """Whether the log went through a head that was kept elsewhere."""
    return not unknown_heads(store, [head])


def unknown_heads(store: BudgetStore, heads: Iterable[Head]) -> list[Head]:
    """Return those heads, kept elsewhere, that the log never went through."""
    query = select(schema.log.c.hash)
    with connecting(store.engine) as connection, reading(connection):
        return [
            head
            for head in heads
            if connection.execute(
                query.where(schema.log.c.sequence == head.sequence)
            ).scalar_one_or_none()
            != head.hash
        ]


def broken_log(store: BudgetStore) -> str:
    """Say where the log was edited, cut or moved; nothing where its chain is whole.

    What the log says was attempted is worth no more than its chain.
    """
    with connecting(store.engine) as connection, reading(connection):
        rows = log.read_rows(connection)
        broken = log.first_break(rows, [log.read_head(connection)])
    if broken is None:
        return ""
    return (
        f"Entry {broken.sequence} of the budget store's log {broken.reason}: see "
        "`dptune budget verify`."
    )


def last_entry_at(store: BudgetStore) -> datetime | None:
    """Read when the newest entry was made, by its writer's clock."""
    query = select(schema.log.c.content).order_by(schema.log.c.sequence.desc()).limit(1)
    with connecting(store.engine) as connection, reading(connection):
        found = connection.execute(query).scalar_one_or_none()
    return None if found is None else datetime.fromisoformat(read_content(found)["at"])


def clock_behind(store: BudgetStore, now: datetime) -> str:
    """Say that a clock is behind the newest entry, or nothing.

    Old evidence would be young by it.
    """
    newest = last_entry_at(store)
    if newest is None or newest <= now + _CLOCKS_DIFFER:
        return ""
    return "The clock is behind the newest entry of the budget store."


def _subjects(
    connection: Connection, *, data_set: str, kind: Attempt, about: str = ""
) -> list[str]:
    """Collect what was attempted, in order; about anything where nothing is named."""
    wanted = (data_set, kind.value)
    return [
        str(content["subject"])
        for content in _contents(connection, "attempt")
        if (content["data_set"], content["attempt"]) == wanted
        and about in ("", content["about"])
    ]


def _contents(connection: Connection, kind: str) -> Iterator[dict[str, Any]]:
    """Read all entries of one kind, in order."""
    column = schema.log.c.content
    query = (
        select(column)
        .where(column.contains(f'"kind":"{kind}"', autoescape=True))
        .order_by(schema.log.c.sequence)
    )
    for text in connection.execute(query).scalars():
        content = read_content(text)
        if content["kind"] == kind:  # a reason may quote anything
            yield content
