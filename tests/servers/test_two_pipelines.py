"""Two pipelines at once on real servers: both finish, and the registries agree.

ZenML on MariaDB (on SQLite where it cannot be installed), MLflow and the budget store
on PostgreSQL, two project folders as of two machines, one registry and one data set.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dptune.accounting.store.reservations import ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import export, history
from dptune.accounting.store.verify import verify
from dptune.privacy import Notion
from tests.mariadb import running_mariadb
from tests.tracking_servers import running_servers

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
MODEL, DATA_SET = "shared-assistant", "shared-data"
RECIPES = ("jft", "dp_sgd")
PATIENCE = 1500

pytestmark = pytest.mark.slow


def start(folder, environment, recipe):
    """Start `run.py train` in a project folder of its own."""
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
    command = [sys.executable, "run.py", "train", str(file)]
    with (folder / f"{recipe}.log").open("w") as log:
        return subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=log, stderr=log
        )


@pytest.fixture(scope="module")
def done(tmp_path_factory, postgres):
    """Exit codes of both, what they said, the budget store, and both registries."""
    folder = tmp_path_factory.mktemp("servers")
    budget = postgres.fresh("budget")
    mlflow = postgres.fresh("mlflow").replace("postgresql:", "postgresql+psycopg:")
    with (
        running_mariadb() as zenml,
        running_servers(
            folder, zenml_database=zenml, mlflow_database=mlflow
        ) as servers,
    ):
        common = {
            "DPTUNE_BUDGET_URL": budget,
            "DPTUNE_BUDGET_KEY": "5a" * 32,
            "PYTHONPATH": str(REPOSITORY),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        running = {}
        for recipe in RECIPES:
            own = servers.environment(folder / recipe) | common
            running[recipe] = start(folder, own, recipe)
        codes = {r: process.wait(PATIENCE) for r, process in running.items()}
        said = {r: (folder / f"{r}.log").read_text()[-3000:] for r in RECIPES}
        seen = subprocess.run(
            [sys.executable, "-m", "tests.servers.look", MODEL],
            cwd=REPOSITORY,
            env=servers.environment(folder / RECIPES[0]) | common,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        yield codes, said, budget, json.loads(seen.stdout.splitlines()[-1])


def test_both_finish_and_pass(done):
    codes, said, _, _ = done
    assert codes == dict.fromkeys(RECIPES, 0), said


def test_each_run_has_a_version_of_its_own(done):
    *_, seen = done
    assert sorted(seen["versions"]) == ["1", "2"]
    recipes = {found["tags"]["dptune.recipe"] for found in seen["versions"].values()}
    assert recipes == set(RECIPES)
    for found in seen["versions"].values():
        assert found["run"]["status"] == "completed"
        assert set(found["run"]["steps"].values()) == {"completed"}


def test_registries_agree_on_every_version(done):
    *_, seen = done
    for number, found in seen["versions"].items():
        tags, twin, run = found["tags"], found["zenml"], found["run"]
        verdict = tags["dptune.gate"]
        for metadata in (twin["metadata"], run["metadata"]):
            assert metadata["verdict"] == verdict
            claims = {k: v for k, v in metadata.items() if k.startswith("epsilon, ")}
            assert claims
            for about in {"epsilon, record", "epsilon, selective"} & set(claims):
                assert f"**{about}**: {claims[about]}" in found["description"]
        assert twin["metadata"]["decision_hash"] == tags["dptune.decision_hash"]
        assert [t for t in twin["tags"] if "verdict" in t] == [f"verdict:{verdict}"]
        assert [t for t in run["tags"] if "verdict" in t] == [f"verdict:{verdict}"]
        assert twin["runs"] == [run["id"]]
        assert run["id"] in tags["zenml.run_url"]
        assert (twin["stage"] == "production") == (seen["champion"] == number)


def test_each_champion_was_compared_with_the_one_before_it(done):
    *_, seen = done
    before = ""
    for entry in seen["trail"]:
        tags = seen["versions"][entry["version"]]["tags"]
        assert tags["dptune.decided_beside_version"] == before
        before = entry["version"]
    assert before == seen["champion"]
    verdicts = {n: v["tags"]["dptune.gate"] for n, v in seen["versions"].items()}
    passed = {number for number, verdict in verdicts.items() if verdict == "PASS"}
    assert {entry["version"] for entry in seen["trail"]} == passed


def test_no_metric_is_lost(done):
    *_, seen = done
    for found in seen["versions"].values():
        assert found["metrics"] == pytest.approx(found["measured"])
        curves = {k: v for k, v in found["curves"].items() if "progress/" in k}
        assert curves
        for steps in curves.values():
            assert steps == sorted(set(steps))


def test_budget_store_verifies_and_holds_both(done):
    _, _, url, _ = done
    store = BudgetStore.open(url)
    found = verify(store)
    assert found.success, found.findings
    runs = history(store, data_set=DATA_SET)
    assert {run.recipe for run in runs} == set(RECIPES)
    assert {run.status for run in runs} == {ReservationStatus.SETTLED}
    assert all(run.spent.count(Notion.RECORD) for run in runs)
    assert export(store)["head"]["sequence"] == found.num_entries
    store.engine.dispose()
