"""Kills of ranks and their agent at random moments; benchmarks/ does fifty."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TWINS = {
    "late": "under_counts",
    "once": "under_counts",
    "whole": "double_counts",
    "replay": "reused",
    "early": "incomplete",
}


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_killed_ranks_pay_for_all_noise_and_twins_are_caught(sharding):
    script = REPOSITORY / "benchmarks" / "kill_ranks.py"
    done = subprocess.run(
        [sys.executable, script, "10", "--twins", "--sharding", sharding],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kills"] >= 10
    faults = ("under_counts", "double_counts", "reused", "incomplete")
    assert [found[name] for name in faults] == [0, 0, 0, 0]
    for twin, fault in TWINS.items():
        assert fault in found["twins"][twin]
