from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from time import sleep

import pytest

from infra.locks import one_at_a_time

TIMES = 40


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/not/there/yet/budget.db"
    return request.getfixturevalue("postgres").fresh(f"locks-{tmp_path.name}")


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
