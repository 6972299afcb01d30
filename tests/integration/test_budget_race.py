"""Fifty processes ask for the last of a budget at once; benchmarks/ runs 100 rounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
GOOD = {"overspends": 0, "wasted": 0, "beyond_grant": 0, "stuck": 0, "verified": True}


def race(url):
    script = REPOSITORY / "benchmarks" / "budget_race.py"
    done = subprocess.run(
        [sys.executable, script, url, "--rounds", "5", "--twin-rounds", "1"],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def found(request, tmp_path_factory):
    """Five honest rounds and one of the twin, on a store that fifty create at once."""
    if request.param == "sqlite":
        return race(f"sqlite:///{tmp_path_factory.mktemp('race')}/new.db")
    return race(request.getfixturevalue("postgres").fresh("race"))


def test_nobody_gets_more_than_is_left(found):
    assert (found["processes"], found["rounds"]) == (50, 5)
    assert {name: found[name] for name in GOOD} == GOOD


def test_twin_that_checks_before_it_locks_is_caught(found):
    assert found["twin"] == {"rounds": 1, "overspends": 1, "beyond_grant": 1}
