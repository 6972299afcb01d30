"""Fixtures that every kind of test may use."""

import gc
import itertools
import os
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from dptune.accounting.store.store import BudgetStore
from tests.postgres import Server, running_server
from tests.support.checked import use_passed_checks

# Collecting garbage walks millions of objects of the libraries: a fifth of all time.
gc.set_threshold(20_000, 20, 100)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # sums in one order, see the Makefile
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

REPOSITORY = Path(__file__).resolve().parents[1]
USES_PROJECT = re.compile(r"^def \w+\([^)]*\b(?:project|trained)\b", re.MULTILINE)


class Together(LoadFileScheduling):
    """Keeps a file in one process, and all that look at the shared project in one.

    ZenML has one client a process, and what the project trained the next file looks at:
    it is trained once, and files come in their order.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return "project" if file in self._users else file

    @cached_property
    def _users(self) -> frozenset[str]:
        files = (REPOSITORY / "tests" / "integration").glob("test_*.py")
        return frozenset(
            str(file.relative_to(REPOSITORY))
            for file in files
            if USES_PROJECT.search(file.read_text("utf8"))
        )


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Let xdist share out work as above."""
    return Together(config, log)


@pytest.fixture(scope="module", autouse=True)
def _few_objects_to_walk() -> None:
    """Leave what is loaded out of collections: `Trainer` asks for one a training."""
    gc.collect()
    gc.freeze()
    if "accelerate.utils.memory" in sys.modules:  # collects in each training
        sys.modules["accelerate.utils.memory"].gc = SimpleNamespace(collect=int)


@pytest.fixture(scope="module", autouse=True)
def _models_are_checked_once(request) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_passed_checks(patch, request.module)
        yield


def _seed() -> None:
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)
        if torch.cuda.is_initialized():  # else `torch.manual_seed` notes the stack
            torch.cuda.manual_seed_all(0)


@pytest.fixture(scope="module", autouse=True)
def _same_draws_in_every_module() -> None:
    _seed()


@pytest.fixture(autouse=True)
def _same_draws_in_every_test() -> None:
    """Draw the same weights in every run; noise and canaries stay secret."""
    _seed()


def pytest_sessionfinish() -> None:
    """Let modules be torn down in the usual way: nanobind reports what is not."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real text and small real models; skips where it is absent."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs ../shared/data, which only developers have")
    return folder


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A throwaway PostgreSQL server; skips with a reason where there can be none."""
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def sqlite_budget(tmp_path_factory) -> Callable[[], str]:
    """Make URLs of fresh budget stores on SQLite."""
    folder = tmp_path_factory.mktemp("budget")
    store = BudgetStore.open(f"sqlite:///{folder}/template.db")
    store.engine.dispose()
    numbers = itertools.count()

    def fresh() -> str:
        file = folder / f"{next(numbers)}.db"
        shutil.copy(folder / "template.db", file)
        return f"sqlite:///{file}"

    return fresh


@pytest.fixture(scope="session")
def postgres_budget(postgres) -> Callable[[], str]:
    """Make URLs of fresh budget stores on PostgreSQL."""
    numbers = itertools.count()

    def fresh() -> str:
        url = postgres.fresh(f"b{next(numbers)}")
        BudgetStore.open(url).engine.dispose()
        return url

    return fresh


@pytest.fixture(params=["sqlite", "postgresql"])
def budget_url(request) -> str:
    """A fresh budget store, on each database."""
    name = {"sqlite": "sqlite_budget", "postgresql": "postgres_budget"}
    return request.getfixturevalue(name[request.param])()
