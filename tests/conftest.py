"""Fixtures that every kind of test may use."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dptune.accounting.store.store import BudgetStore
from tests.postgres import Server, running_server

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

REPOSITORY = Path(__file__).resolve().parents[1]


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
