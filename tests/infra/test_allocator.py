import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is set"
)

_MEGABYTES = 160
_PROGRAM = """
import re, resource, sys
from pathlib import Path
import torch
from infra.allocator import freed_memory_kept

def resident():
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmRSS:\\s+(\\d+)", status).group(1)) // 1024

def step():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**21) for _ in range(20)]  # 8 MiB each
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * 4 // 1024

with freed_memory_kept(sys.argv[1]):
    faults = [step() for _ in range(5)][-1]
    inside = resident()
print(faults, inside - resident())
"""


def run_steps(device, **environment):
    """Return MiB cleared anew in the fifth step, and MiB given back on leaving."""
    ours = ("MALLOC_", "GLIBC_TUNABLES")
    clean = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, device],
        cwd=REPOSITORY,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    faults, given_back = done.stdout.split()
    return int(faults), int(given_back)


def test_next_step_finds_the_memory_of_the_last():
    faults, given_back = run_steps("cpu")
    assert faults < 0.05 * _MEGABYTES
    assert given_back > 0.8 * _MEGABYTES


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "131072"),
        ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072"),
    ],
)
def test_settings_of_the_user_are_left_alone(name, value):
    """It also shows that the test above would notice if nothing were kept."""
    faults, given_back = run_steps("cpu", **{name: value})
    assert faults > 0.5 * _MEGABYTES
    assert given_back < 0.2 * _MEGABYTES


def test_nothing_is_set_for_an_accelerator():
    assert run_steps("cuda")[1] < 0.2 * _MEGABYTES
