"""Two pipelines at once on real servers, for all tests that look at what they did.

ZenML on MariaDB (on SQLite where it cannot be installed), MLflow and the budget store
on PostgreSQL, two project folders as of two machines, one registry and one data set.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.mariadb import running_mariadb
from tests.tracking_servers import Servers, running_servers

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
MODEL, DATA_SET = "shared-assistant", "shared-data"
RECIPES = ("jft", "dp_sgd")
PATIENCE = 1500


@dataclass(frozen=True, kw_only=True)
class Site:
    """Servers, and what the commands of two project folders need to use them.

    Args:
        servers: ZenML's and MLflow's.
        folder: of both project folders, by recipe, and of their logs.
        common: variables of every command.
    """

    servers: Servers
    folder: Path
    common: dict[str, str]

    @property
    def budget(self) -> str:
        """URL of the budget store."""
        return self.common["DPTUNE_BUDGET_URL"]

    def start(self, recipe: str, *arguments: object) -> subprocess.Popen:
        """Start a Python program in a recipe's project folder."""
        with (self.folder / f"{recipe}.log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                cwd=REPOSITORY,
                env=self.servers.environment(self.folder / recipe) | self.common,
                stdout=log,
                stderr=log,
            )

    def said(self) -> dict[str, str]:
        """What the last commands said last."""
        return {r: (self.folder / f"{r}.log").read_text()[-3000:] for r in RECIPES}

    def look(self) -> dict[str, Any]:
        """What both registries say."""
        seen = subprocess.run(
            [sys.executable, "-m", "tests.servers.look", MODEL],
            cwd=REPOSITORY,
            env=self.servers.environment(self.folder / RECIPES[0]) | self.common,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return json.loads(seen.stdout.splitlines()[-1])


@dataclass(frozen=True, kw_only=True)
class Done:
    """Two finished runs: their exit codes, what they said, and both registries."""

    site: Site
    codes: dict[str, int]
    said: dict[str, str]
    seen: dict[str, Any]


@pytest.fixture(scope="session")
def servers_site(tmp_path_factory, postgres) -> Iterator[Site]:
    """Real servers on real databases."""
    folder = tmp_path_factory.mktemp("servers")
    mlflow = postgres.fresh("mlflow").replace("postgresql:", "postgresql+psycopg:")
    with (
        running_mariadb() as zenml,
        running_servers(
            folder, zenml_database=zenml, mlflow_database=mlflow
        ) as servers,
    ):
        common = {
            "DPTUNE_BUDGET_URL": postgres.fresh("budget"),
            "DPTUNE_BUDGET_KEY": "5a" * 32,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        yield Site(servers=servers, folder=folder, common=common)


@pytest.fixture(scope="session")
def done(servers_site) -> Done:
    """Run `run.py train` in both project folders."""
    files = {recipe: _configure(servers_site.folder, recipe) for recipe in RECIPES}
    running = {
        recipe: servers_site.start(recipe, "run.py", "train", file)
        for recipe, file in files.items()
    }
    codes = {recipe: process.wait(PATIENCE) for recipe, process in running.items()}
    return Done(
        site=servers_site,
        codes=codes,
        said=servers_site.said(),
        seen=servers_site.look(),
    )


def _configure(folder: Path, recipe: str) -> Path:
    """Write the configuration of one run."""
    config = yaml.safe_load(TINY.read_text()) | {
        "recipe": recipe,
        "name": recipe.replace("_", "-"),
        "registry": {"model_name": MODEL},
        "budget": {"data_set": DATA_SET},
    }
    small = {"epochs": 2, "expected_batch_size": 64}
    config["stages"]["dp_sgd"] = {"private_finetune": small}
    file = folder / f"{recipe}.yaml"
    file.write_text(yaml.safe_dump(config))
    return file
