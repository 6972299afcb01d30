"""Many pods that start and end at once: each one's exit code is its own."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from .forked_pods import start_forked

pytestmark = pytest.mark.slow
NUM_PODS = 60


@pytest.mark.usefixtures("site")  # what all pods are forked from has read its variables
def test_no_exit_code_is_lost(tmp_path):
    def run(number):
        return start_forked(["python", "-m", "this"], {}, tmp_path / str(number)).wait()

    with ThreadPoolExecutor(max_workers=6) as threads:
        assert [*threads.map(run, range(NUM_PODS))] == [0] * NUM_PODS
