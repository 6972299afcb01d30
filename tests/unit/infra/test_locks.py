import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from functools import partial
from time import sleep

import pytest
from sqlalchemy import Engine, NullPool, create_engine, event, text
from sqlalchemy.exc import OperationalError

from cli.faults import fault_of
from dptune.errors import ArtifactError
from infra import locks
from infra.locks import made_whole, never_made_twice, one_at_a_time

TIMES = 40


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/not/there/yet/budget.db"
    return request.getfixturevalue("postgres").fresh(f"locks-{tmp_path.name}")


def test_store_behind_a_link_is_locked_as_one(tmp_path):
    """Folders that shared it by a link moved a champion at the same time."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "budget.db").touch()
    (tmp_path / "there" / "budget.db").symlink_to(tmp_path / "here" / "budget.db")
    with one_at_a_time(f"sqlite:///{tmp_path}/there/budget.db", "champion of bot"):
        pass
    assert len(list((tmp_path / "here").glob("*.lock"))) == 1
    assert not list((tmp_path / "there").glob("*.lock"))


def counted(enter):
    """Read, wait and write back, as registries do that cannot compare and set."""
    state = {"count": 0}

    def add(_):
        with enter():
            before = state["count"]
            sleep(0.002)
            state["count"] = before + 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(TIMES)))
    return state["count"]


def test_nobody_overwrites_what_another_wrote(url):
    lock = partial(one_at_a_time, url, "champion of bot")
    assert counted(lock) == TIMES


def test_twin_without_a_lock_loses_some():
    assert counted(nullcontext) < TIMES


def test_locks_of_other_names_do_not_wait(url):
    with one_at_a_time(url, "champion of one"), one_at_a_time(url, "champion of two"):
        pass


def test_lock_is_free_after_an_error(url):
    with pytest.raises(KeyError), one_at_a_time(url, "champion of bot"):
        raise KeyError
    with one_at_a_time(url, "champion of bot"):
        pass


def test_lock_stays_on_a_server_that_ends_what_waits(postgres):
    """A promotion that read large weights lost it, and heard of that at its end."""
    hurried = postgres.fresh("hurried") + (
        "%20-cidle_in_transaction_session_timeout%3D50%20-cstatement_timeout%3D100"
    )
    entered = []

    def enter():
        with one_at_a_time(hurried, "champion of bot"):
            entered.append("second")

    with ThreadPoolExecutor(1) as pool:
        with one_at_a_time(hurried, "champion of bot"):
            second = pool.submit(enter)
            sleep(0.4)
            entered.append("first")
        second.result()
    assert entered == ["first", "second"]


def test_lock_that_is_held_too_long_is_told(url, monkeypatch):
    monkeypatch.setattr(locks, "_PATIENCE", 1)
    lock = partial(one_at_a_time, url, "champion of bot")
    with lock(), pytest.raises(ArtifactError), lock():
        pass
    with one_at_a_time(url, "champion of bot"):
        pass


# a database that another program makes table by table


def make(database, *, cut=False):
    """Make tables, and fail in between; what is there already stands in the way."""
    with closing(sqlite3.connect(database)) as connection:
        for name in ("runs", "version"):
            connection.execute(f"CREATE TABLE {name} (x)")
            connection.commit()
            if cut:
                raise KeyboardInterrupt


def made(database, *, whole=made_whole):
    """Make it where it is not; return whether it was there."""
    with whole(database):
        was_there = database.exists()
        if not was_there:
            make(database)
    return was_there


def cut_off(database, *, whole=made_whole):
    with pytest.raises(KeyboardInterrupt), whole(database):
        make(database, cut=True)


def test_database_that_was_cut_off_is_made_anew(tmp_path):
    database = tmp_path / "new" / "a.db"
    cut_off(database)
    assert database.exists()
    assert [made(database), made(database)] == [False, True]
    left = sorted(p.name for p in database.parent.iterdir())
    assert left == ["a.db", "a.db.lock", "a.db.made"]


def test_database_whose_file_has_gone_is_not_made_anew(tmp_path):
    database = tmp_path / "a.db"
    made(database)
    database.rename(tmp_path / "aside")
    with pytest.raises(ArtifactError, match="has gone") as caught:
        made(database)
    assert fault_of(caught.value) is not None
    assert not database.exists()
    (tmp_path / "aside").rename(database)
    assert made(database)


def connect(database):
    engine = create_engine(f"sqlite:///{database}", poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))


def test_database_that_goes_while_it_is_used_is_not_made_anew(tmp_path, monkeypatch):
    """ZenML and MLflow open new connections to it all the time."""
    never_made_twice()
    never_made_twice()
    database = tmp_path / "a b%41#c.db"
    connect(database)  # nobody has made it yet
    made(database)
    connect(database)
    database.rename(tmp_path / "aside")
    with pytest.raises(OperationalError) as caught:
        connect(database)
    assert "does not answer" in fault_of(caught.value).what
    assert not database.exists()
    (tmp_path / "aside").rename(database)
    connect(database)


def test_twin_that_opens_as_sqlite_does_makes_a_new_one(tmp_path):
    never_made_twice()
    event.remove(Engine, "do_connect", locks._open_only)
    try:
        database = tmp_path / "a.db"
        made(database)
        database.unlink()
        connect(database)
        assert database.exists()
    finally:
        never_made_twice()


def test_twin_that_forgets_what_was_made_makes_it_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "refuse_gone", lambda *_, **__: None)
    database = tmp_path / "a.db"
    made(database)
    database.unlink()
    assert not made(database)


def test_twin_without_a_mark_keeps_a_part(tmp_path):
    database = tmp_path / "a.db"
    cut_off(database, whole=nullcontext)
    assert made(database, whole=nullcontext)
    with pytest.raises(sqlite3.OperationalError, match="already exists"):
        make(database)


def test_database_from_before_is_left_alone(tmp_path):
    database = tmp_path / "a.db"
    make(database)
    assert made(database)
    made_mark = tmp_path / "a.db.made"
    assert sorted(tmp_path.iterdir()) == [database, made_mark]
    database.unlink()
    with pytest.raises(ArtifactError, match="has gone"):
        made(database)


def test_database_is_made_once_where_many_begin(tmp_path):
    database = tmp_path / "a.db"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: made(database), range(8)))
    assert sorted(found) == [False, *[True] * 7]
