"""Two runs decide beside the same champion: whoever promotes last decides again."""

import json

import pytest
import yaml
from mlflow import MlflowClient

from .conftest import MODEL, PATIENCE, RECIPES, TINY

pytestmark = pytest.mark.slow


def race(done, folder, twin):
    """Decide on both versions side by side, with no champion; what is wrong then."""
    site, policy = done.site, yaml.safe_load(TINY.read_text())["gate"]
    client = MlflowClient(site.servers.mlflow)
    client.delete_registered_model_alias(MODEL, "champion")
    for tag in client.get_registered_model(MODEL).tags:
        if tag.startswith("dptune.champion."):  # the trail
            client.delete_registered_model_tag(MODEL, tag)
    known = done.seen["versions"].values()
    runs = {found["tags"]["dptune.recipe"]: found["run"]["id"] for found in known}
    before = len(site.look()["trail"])
    program = ("-m", "tests.servers.race")
    running = [
        site.start(recipe, *program, runs[recipe], json.dumps(policy), folder, twin)
        for recipe in RECIPES
    ]
    codes = [process.wait(PATIENCE) for process in running]
    assert codes == [0, 0], site.said()
    return faults(site.look(), before)


def faults(seen, before):
    """Name what must not be."""
    promoted = [entry["version"] for entry in seen["trail"][before:]]
    beside = {
        number: found["tags"]["dptune.decided_beside_version"]
        for number, found in seen["versions"].items()
    }
    found = {
        "a promotion is not in the trail": sorted(promoted) != ["1", "2"],
        "the last one promoted is not the champion": seen["champion"]
        not in promoted[-1:],
        "decided beside another champion": [beside[n] for n in promoted]
        != ["", *promoted][: len(promoted)],
    }
    return {name for name, is_so in found.items() if is_so}


def test_second_decision_is_made_again_beside_the_first_ones_champion(done, tmp_path):
    assert race(done, tmp_path, "sound") == set()
    assert len(list((tmp_path / "decided").iterdir())) == 2
    assert len(list((tmp_path / "looked").iterdir())) == 2


@pytest.mark.parametrize("twin", ["unlocked", "unheeding"])
def test_twin_is_caught(done, tmp_path, twin):
    assert "decided beside another champion" in race(done, tmp_path, twin)
