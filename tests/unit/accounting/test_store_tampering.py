"""Whoever changes the record is named the first entry that is wrong, every time."""

# ruff: noqa: S608 - the statements are the tests' own

import json
import shutil

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError

from dptune.accounting.store import log
from dptune.accounting.store.attempts import broken_log
from dptune.accounting.store.blocks import Block, stored_blocks
from dptune.accounting.store.database import reading, writing
from dptune.accounting.store.log import entry_hash
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import export, exported_head
from dptune.accounting.store.verify import verify
from dptune.errors import ArtifactError
from tests.budgets import cost, grant, request, run

LAST = 9  # grant, data set, 2 x (reserve, spend, close), reserve


def fill(store):
    """Write the entries that the tests change."""
    store.grant(grant(10.0))
    run(store, range(20), "a", cost(2))
    run(store, range(30), "b", cost(3))
    store.reserve(request(range(30), "c", cost(1)))


@pytest.fixture(scope="module")
def filled(sqlite_budget):
    """A file of such a store, whose copies are as good."""
    url = sqlite_budget()
    made = BudgetStore.open(url)
    fill(made)
    made.engine.dispose()
    return make_url(url).database


@pytest.fixture
def store(budget_url, filled):
    url = make_url(budget_url)
    is_file = url.get_backend_name() == "sqlite"
    if is_file:
        shutil.copy(filled, url.database)
    made = BudgetStore.open(budget_url)
    if not is_file:
        fill(made)
    yield made
    made.engine.dispose()


def rows(store):
    with store.engine.connect() as connection, reading(connection):
        return list(log.read_rows(connection))


def change(store, *statements, **values):
    """Do what the triggers forbid, as the owner of the database can."""
    names = ("log_no_update", "log_no_delete", "unit_sets_no_update")
    with store.engine.connect() as connection, writing(connection):
        for name in (*names, "unit_sets_no_delete", "log_no_truncate"):
            table = name.split("_no_")[0]
            on = "" if connection.dialect.name == "sqlite" else f" ON {table}"
            connection.execute(text(f"DROP TRIGGER IF EXISTS {name}{on}"))
        for statement in statements:
            connection.execute(text(statement), values)


def first_bad(store, heads=()):
    found = verify(store, heads=heads)
    assert not found.success
    return found.findings[0].entry


def edited(row):
    """The same entry, cheaper."""
    content = json.loads(row.content)
    content["at"] = "1999-01-01T00:00:00+00:00"
    return log.canonical(content)


def test_untouched_store_verifies(store):
    found = verify(store)
    assert found.success, found.findings
    assert (found.num_entries, found.num_units) == (LAST, 30)
    assert found.num_figures == 4  # three reservations and what is committed now


@pytest.mark.parametrize("number", range(1, LAST + 1))
def test_edited_entry_is_named(store, number):
    content = edited(rows(store)[number - 1])
    change(store, f"UPDATE log SET content = :c WHERE sequence = {number}", c=content)
    assert first_bad(store) == number


@pytest.mark.parametrize("number", range(1, LAST + 1))
def test_edited_entry_with_a_new_hash_is_named(store, number):
    row = rows(store)[number - 1]
    content = edited(row)
    change(
        store,
        f"UPDATE log SET content = :c, hash = :h WHERE sequence = {number}",
        c=content,
        h=entry_hash(number, row.previous, content),
    )
    assert first_bad(store) == number


@pytest.mark.parametrize("number", range(1, LAST + 1))
def test_deleted_entry_is_named(store, number):
    change(store, f"DELETE FROM log WHERE sequence = {number}")
    assert first_bad(store) == number


@pytest.mark.parametrize("first", range(1, LAST))
def test_reordered_entries_are_named(store, first):
    change(
        store,
        f"UPDATE log SET sequence = 1000 WHERE sequence = {first}",
        f"UPDATE log SET sequence = {first} WHERE sequence = {first + 1}",
        f"UPDATE log SET sequence = {first + 1} WHERE sequence = 1000",
    )
    assert first_bad(store) == first


@pytest.mark.parametrize("kept", range(LAST))
def test_log_that_was_cut_off_is_named(store, kept):
    change(store, f"DELETE FROM log WHERE sequence > {kept}")
    assert first_bad(store) == kept + 1


@pytest.mark.parametrize("kept", range(1, LAST))
def test_log_that_was_cut_off_with_its_head_is_named_by_a_kept_head(store, kept):
    kept_elsewhere = exported_head(json.dumps(export(store)))
    change(
        store,
        f"DELETE FROM log WHERE sequence > {kept}",
        "UPDATE head SET sequence = :s, hash = :h",
        s=kept,
        h=rows(store)[kept - 1].hash,
    )
    assert first_bad(store, heads=[kept_elsewhere]) == kept + 1


def test_chain_that_was_forged_whole_is_told_by_a_kept_head_only(store):
    kept_elsewhere = exported_head(json.dumps(export(store)))
    last = rows(store)[-1]
    content = edited(last)
    forged = entry_hash(last.sequence, last.previous, content)
    change(
        store,
        f"UPDATE log SET content = :c, hash = :h WHERE sequence = {LAST}",
        "UPDATE head SET hash = :h",
        c=content,
        h=forged,
    )
    assert verify(store).success
    assert first_bad(store, heads=[kept_elsewhere]) == LAST


def test_missing_head_is_named(store):
    change(store, "DELETE FROM head")
    assert first_bad(store) == LAST


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE grants SET epsilon = 99", "grants"),
        ("DELETE FROM grants", "grants"),
        ("UPDATE reservations SET spent = '{}' WHERE run_key = 'a'", "reservations"),
        ("UPDATE reservations SET status = 'settled'", "reservations"),
        ("UPDATE data_sets SET key_check = 'x'", "data_sets"),
        ("DELETE FROM unit_blocks WHERE prefix < 128", "unit_blocks"),
        ("UPDATE unit_blocks SET prefix = prefix + 1000", "unit_blocks"),
        ("UPDATE unit_blocks SET data_set = 'others'", "unit_blocks"),
        ("UPDATE unit_blocks SET cohorts = names", "unit_blocks"),
        ("DELETE FROM coverage WHERE cohort = 1", "unit_blocks"),
        ("UPDATE cohorts SET size = 7", "cohorts"),
    ],
)
def test_edited_table_is_named(store, statement, table):
    change(store, statement)
    found = verify(store)
    assert any(f"table {table}" in f.message for f in found.findings), found


@pytest.mark.parametrize("what", ["cohort", "name", "order"])
def test_edited_unit_is_named(store, what):
    """One unit put into another cohort, replaced by another, or out of order."""
    with store.engine.connect() as connection, reading(connection):
        found = {place: Block.read(*row) for place, row in stored_blocks(connection)}
    (name, prefix), block = max(found.items(), key=lambda item: len(item[1].names))
    assert len(block.names) > 1
    names, cohorts = block.names.copy(), block.cohorts.copy()
    if what == "cohort":
        cohorts[0] = 3 - cohorts[0]
    elif what == "name":
        names[0] = bytes([prefix]) + b"x" * 15
    else:
        names, cohorts = names[::-1], cohorts[::-1]
    change(
        store,
        f"UPDATE unit_blocks SET names = :n, cohorts = :c WHERE prefix = {prefix}",
        n=names.tobytes(),
        c=cohorts.tobytes(),
    )
    messages = [found.message for found in verify(store).findings]
    assert any(f"unit_blocks: row '{name}', {prefix} is" in m for m in messages)
    if what == "order":  # they would not be found, and look new
        with pytest.raises(ArtifactError, match="names in order"):
            store.reserve(request(range(1000), "more", cost(1)))


def test_edited_and_deleted_unit_sets_name_the_entry_that_made_them(store):
    change(store, "UPDATE unit_sets SET names = :n", n=b"x" * 16)
    assert first_bad(store) == 3
    change(store, "DELETE FROM unit_sets")
    assert first_bad(store) == 3


def forge(store, number, **fields):
    """Write an entry's content anew and hash all that follows."""
    previous, statements = log.GENESIS, []
    for row in rows(store):
        content = json.loads(row.content)
        if row.sequence == number:
            content |= fields
        written = log.canonical(content)
        digest = entry_hash(row.sequence, previous, written)
        quoted = written.replace("'", "''").replace(":", r"\:")
        statements.append(
            f"UPDATE log SET content = '{quoted}', previous = '{previous}', "
            f"hash = '{digest}' WHERE sequence = {row.sequence}"
        )
        previous = digest
    statements.append(f"UPDATE head SET hash = '{previous}'")
    change(store, *statements)


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_figure_that_another_accountant_contradicts_is_named(store, factor):
    (claim,) = json.loads(rows(store)[5].content)["claims"]
    forge(store, 6, claims=[claim | {"after": factor * claim["after"]}])
    assert first_bad(store) == 6


def test_entry_that_cannot_follow_is_named(store):
    forge(store, 4, reservation="nobody")
    assert first_bad(store) == 4


@pytest.mark.parametrize("table", ["log", "unit_sets"])
@pytest.mark.parametrize("verb", ["UPDATE {} SET {} = ''", "DELETE FROM {}"])
def test_database_refuses_to_change_the_record(store, table, verb):
    column = {"log": "content", "unit_sets": "digest"}[table]
    with (
        pytest.raises(DBAPIError, match="append-only"),
        store.engine.connect() as connection,
        writing(connection),
    ):
        connection.execute(text(verb.format(table, column)))
    assert verify(store).success


@pytest.mark.parametrize(
    "text", ["[]", "[" * 100_000, '{"head": {"sequence": 1e400, "hash": "x"}}']
)
def test_file_that_is_no_export_is_refused(text):
    with pytest.raises(ArtifactError, match="budget export"):
        exported_head(text)


def test_log_that_is_whole_is_not_broken(store):
    assert broken_log(store) == ""


@pytest.mark.parametrize(
    ("statement", "number"),
    [
        ("DELETE FROM log WHERE sequence = 2", 2),
        ("UPDATE log SET content = replace(content, 'at', 'At') WHERE sequence = 3", 3),
        (f"DELETE FROM log WHERE sequence = {LAST}", LAST),
    ],
)
def test_log_that_gates_read_is_broken_where_it_was_changed(store, statement, number):
    change(store, statement)
    assert f"Entry {number} of" in broken_log(store)
