"""Fifty processes ask for the last of a budget at once; benchmarks/ runs 100 rounds."""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GOOD = {"overspends": 0, "wasted": 0, "beyond_grant": 0, "stuck": 0, "verified": True}


def race(url, *options):
    script = REPOSITORY / "benchmarks" / "budget_race.py"
    done = subprocess.run(
        [sys.executable, script, url, *options],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=600,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_nobody_gets_more_than_is_left(budget_url):
    found = race(budget_url, "--rounds", "5")
    assert (found["processes"], found["rounds"]) == (50, 5)
    assert {name: found[name] for name in GOOD} == GOOD


def test_store_that_is_created_by_fifty_at_once(tmp_path):
    found = race(f"sqlite:///{tmp_path}/new.db", "--rounds", "1")
    assert {name: found[name] for name in GOOD} == GOOD


def test_twin_that_checks_before_it_locks_is_caught(budget_url):
    found = race(budget_url, "--rounds", "1", "--twin")
    assert found["overspends"] == found["beyond_grant"] == 1
