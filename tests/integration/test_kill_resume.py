"""Ten kills at random moments of a training run; benchmarks/ does two hundred."""

import json

import pytest

from tests.forks import REPOSITORY, run_forked

TWINS = {
    "late": "under_counts",
    "once": "under_counts",
    "whole": "double_counts",
    "replay": "reused",
}


@pytest.fixture(scope="module")
def found():
    script = REPOSITORY / "benchmarks" / "kill_resume.py"
    done = run_forked(script, 10, "--twins")
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_killed_and_resumed_runs_pay_for_all_noise_and_end_whole(found):
    assert found["kills"] >= 10
    faults = ("under_counts", "double_counts", "reused", "incomplete")
    assert [found[name] for name in faults] == [0, 0, 0, 0]


@pytest.mark.parametrize("twin", TWINS)
def test_twin_is_caught(found, twin):
    assert TWINS[twin] in found["twins"][twin]
