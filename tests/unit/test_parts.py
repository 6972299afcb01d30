"""Tables are worked on part by part: in order, in processes that end, and once."""

import os
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from datasets import Dataset

from dptune import parts
from dptune.errors import ArtifactError, ConfigError, DptuneError, Problem
from dptune.parts import (
    Parts,
    batches,
    each_part,
    find,
    finished_part,
    forget,
    map_table,
    read_part,
    replaced,
    write_part,
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 3)


def test_a_table_given_up_half_written_closes_its_file(tmp_path):
    half = Parts(pa.schema({"text": pa.string()}), folder=tmp_path, name="half")
    half.append(pa.record_batch({"text": ["a"]}))
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    was_open = psutil.Process().num_fds()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del half
    assert psutil.Process().num_fds() == was_open - 1


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("num_rows", [0, 1, 3, 10])
def test_parts_come_in_order_and_all_rows_are_told(num_rows, num_processes):
    told = []

    def work(rows, tell):
        time.sleep(0.02 * (rows.start == 0))  # the first is done last
        for _ in rows:
            tell(1)
        return [*rows]

    found = each_part(
        work, num_rows, num_processes=num_processes, on_progress=told.append
    )
    assert [row for rows in found for row in rows] == [*range(num_rows)]
    assert told == sorted(told)
    assert (told or [0])[-1] == num_rows


def test_an_error_in_a_process_keeps_all_its_problems():
    def work(rows, tell):
        raise ConfigError([Problem(path=f"p{i}", message="must.") for i in (1, 2)])

    with pytest.raises(ConfigError) as refusal:
        list(each_part(work, 9, num_processes=2))
    assert [problem.path for problem in refusal.value.problems] == ["p1", "p2"]


def test_a_killed_process_ends_the_work_and_says_why():
    def work(rows, tell):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(DptuneError, match="one was killed"):
        list(each_part(work, 9, num_processes=2))


_ORPHANS = """
import os, time
from dptune import parts
parts.PART_ROWS = 1
def work(rows, tell):
    os.write(1, b"%d\\n" % os.getpid())  # one write: two processes share the pipe
    time.sleep(60)
list(parts.each_part(work, 2, num_processes=2))
"""


def test_no_process_outlives_the_one_that_takes_its_results():
    with subprocess.Popen(
        [sys.executable, "-c", _ORPHANS], stdout=subprocess.PIPE, text=True
    ) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        parent.kill()
    limit = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.1)


def mapped(folder, columns):
    table = pa.table(columns)
    file = Parts(table.schema, folder=folder, name="table")
    for batch in table.to_batches(max_chunksize=2):
        file.append(batch)
    file.close()
    return Dataset(file.table(), fingerprint="f")


def test_pages_that_were_read_are_let_go(tmp_path):
    rows = Dataset(map_table(_large(tmp_path)), fingerprint="f")

    def resident():
        found = re.search(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())
        return int(found[1])

    before, most = resident(), 0
    for batch in batches(rows, ["text"], rows=500):
        assert len(batch["text"][0].as_py()) == 1000
        most = max(most, resident() - before)
    held = resident()
    assert sum(map(len, rows.with_format("arrow")[:]["text"].to_pylist())) == 16_000_000
    assert resident() - held > 12_000  # what a reader holds that lets nothing go
    assert most < 4_000


def _large(folder):
    file = Parts(pa.schema({"text": pa.string()}), folder=folder, name="large")
    for _ in range(32):
        texts = pa.array(["x" * 1000] * 500)
        file.append(pa.record_batch([texts], schema=file.schema))
    file.close()
    return folder / "large.arrow"


def test_rows_are_found_and_replaced_and_the_others_stay(tmp_path):
    rows = mapped(tmp_path, {"id": [*"abcdef"], "text": [*"uvwxyz"]})
    assert find(rows, "id", {"e", "b", "q"}).tolist() == [1, 4]
    changed = replaced(rows, "text", {4: "four", 1: "one", 5: "five"})
    assert changed["text"][:] == ["u", "one", "w", "x", "four", "five"]
    assert changed.features == rows.features
    some = replaced(rows.select([5, 0, 2]), "text", {1: "new"})
    assert some["text"][:] == ["z", "new", "w"]
    assert replaced(rows, "text", {}) is rows


def test_a_part_is_whole_or_absent(tmp_path):
    file, table = tmp_path / "a" / "part.arrow", pa.table({"x": [1, 2]})
    assert read_part(file) is None
    write_part(file, table)
    assert read_part(file).equals(table)
    assert read_part(file, ["y"]) is None
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(file.read_bytes()[:-9])
    assert read_part(file) is None
    with pytest.raises(ArtifactError, match="one is gone"):
        finished_part(file)


def test_what_nobody_used_for_long_is_forgotten(tmp_path):
    old, new = tmp_path / "old" / "p.arrow", tmp_path / "new" / "p.arrow"
    for file in (old, new):
        write_part(file, pa.table({"x": [1]}))
    long_ago = time.time() - 99
    for path in (old, old.parent, new, new.parent):
        os.utime(path, (long_ago, long_ago))
    assert read_part(new) is not None  # which is a use
    forget(tmp_path, unused_for=50)
    assert not old.exists()
    assert new.exists()
    forget(tmp_path / "absent")
