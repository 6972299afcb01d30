"""The backup job's commands on a real PostgreSQL: dump, destroy, restore, verify."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import budgets
from infra.cluster.manifests import render_overlay
from tests.budgets import cost, grant, run
from tests.infra.clusters import find

REPOSITORY = Path(__file__).resolve().parents[2]
PEOPLE = range(40)
DATABASE = "dptune_budget"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def job():
    """Name the commands of the CronJob's containers."""
    schedule = find(render_overlay("production"), "CronJob/budget-backup")
    pod = schedule["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return {c["name"]: c["command"] for c in pod["initContainers"] + pod["containers"]}


class Site:
    """A database, the volume of backups, and the job."""

    def __init__(self, server, job, folder):
        if shutil.which("pg_dump") is None:
            pytest.skip("pg_dump is not installed")
        self.server, self.job, self.backup = server, job, folder / "backup"
        self.admin = f"dbname=postgres user=dptune host={server.folder}"
        self.url = f"postgresql+psycopg://dptune@/{DATABASE}?host={server.folder}"
        for name in ("backup", "scratch"):
            (folder / name).mkdir()
        programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.environment = os.environ | {
            "PATH": programs,
            "BACKUP": str(self.backup),
            "SCRATCH": str(folder / "scratch"),
            "DPTUNE_HOME": str(folder / "scratch" / "home"),
            "DPTUNE_BUDGET_URL": self.url,
            "PYTHONPATH": str(REPOSITORY),
        }

    def do(self, command, *, expect=0):
        """Run a command as the pod would; returns all output."""
        found = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert found.returncode == expect, found.stdout
        return found.stdout

    def back_up(self):
        """Run the whole job; returns the dump and the head."""
        for name in ("head", "dump", "verify"):
            self.do(self.job[name])
        name = (self.backup.parent / "scratch" / "name").read_text().strip()
        assert not list(self.backup.glob("*.partial"))
        return self.backup / f"{name}.dump", self.backup / f"{name}.head.json"

    def empty(self):
        """Destroy the database, if there is one, and make an empty one."""
        with psycopg.connect(self.admin, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {DATABASE}")

    def restore(self, dump):
        """Do what the runbook says."""
        self.empty()
        place = self.url.replace("+psycopg", "")
        self.do(["pg_restore", "--exit-on-error", "--no-owner", "-d", place, dump])

    def charge(self, name):
        """Let a run spend."""
        store = BudgetStore.open(self.url)
        run(store, PEOPLE, name, cost(50))
        (report,) = budgets(store, delta=1e-5)
        store.engine.dispose()
        return report


@pytest.fixture
def site(postgres, job, tmp_path):
    made = Site(postgres, job, tmp_path)
    made.empty()
    store = BudgetStore.open(made.url)
    store.grant(grant(50.0))
    store.engine.dispose()
    return made


def test_store_comes_back_whole_and_an_older_backup_is_recognised(site):
    site.charge("january")
    older, _ = site.back_up()
    before = site.charge("february")
    newer, head = site.back_up()
    verify = [sys.executable, "run.py", "budget", "verify", "--head", str(head)]

    site.restore(newer)
    assert "all as written" in site.do(verify)
    store = BudgetStore.open(site.url)
    assert budgets(store, delta=1e-5) == [before]
    store.engine.dispose()

    site.restore(older)
    assert "wrong" in site.do(verify, expect=1)
    assert "wrong" in site.do(site.job["verify"], expect=1)
    assert "all as written" in site.do([*verify[:4]])
