"""Two pipelines at once on real servers: both finish, and the registries agree."""

import pytest

from dptune.accounting.store.reservations import ReservationStatus
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import export, history
from dptune.accounting.store.verify import verify
from dptune.privacy import Notion

from .conftest import DATA_SET, RECIPES

pytestmark = pytest.mark.slow


def test_both_finish_and_pass(done):
    assert done.codes == dict.fromkeys(RECIPES, 0), done.said


def test_each_run_has_a_version_of_its_own(done):
    seen = done.seen
    assert sorted(seen["versions"]) == ["1", "2"]
    recipes = {found["tags"]["dptune.recipe"] for found in seen["versions"].values()}
    assert recipes == set(RECIPES)
    for found in seen["versions"].values():
        assert found["run"]["status"] == "completed"
        assert set(found["run"]["steps"].values()) == {"completed"}


def test_registries_agree_on_every_version(done):
    seen = done.seen
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
    seen = done.seen
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
    seen = done.seen
    for found in seen["versions"].values():
        assert found["metrics"] == pytest.approx(found["measured"])
        curves = {k: v for k, v in found["curves"].items() if "progress/" in k}
        assert curves
        for steps in curves.values():
            assert steps == sorted(set(steps))


def test_budget_store_verifies_and_holds_both(done):
    store = BudgetStore.open(done.site.budget)
    found = verify(store)
    assert found.success, found.findings
    runs = history(store, data_set=DATA_SET)
    assert {run.recipe for run in runs} == set(RECIPES)
    assert {run.status for run in runs} == {ReservationStatus.SETTLED}
    assert all(run.spent.count(Notion.RECORD) for run in runs)
    assert export(store)["head"]["sequence"] == found.num_entries
    store.engine.dispose()
