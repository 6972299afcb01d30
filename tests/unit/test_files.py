"""A file is there as it was, or as it shall be."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dptune.files import replacing

REPOSITORY = Path(__file__).resolve().parents[2]


def test_file_is_replaced_once_it_is_written(tmp_path):
    file = tmp_path / "new" / "a.json"
    for text in ("one", "two"):
        with replacing(file) as half:
            half.write_text(text)
            assert not file.exists() or file.read_text() == "one"
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]


def test_file_stays_where_writing_fails(tmp_path):
    file = tmp_path / "a.json"
    file.write_text("one")

    def fail():
        with replacing(file) as half:
            half.write_text("tw")
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        fail()
    assert file.read_text() == "one"
    assert list(tmp_path.iterdir()) == [file]


def test_file_stays_where_the_writer_is_killed(tmp_path):
    file = tmp_path / "a.json"
    file.write_text("one")
    program = (
        "import os, pathlib, signal, sys; from dptune.files import replacing\n"
        "with replacing(pathlib.Path(sys.argv[1])) as half:\n"
        "    half.write_text('tw')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", program, file]
    done = subprocess.run(command, check=False, env=environment)
    assert done.returncode == -signal.SIGKILL
    assert file.read_text() == "one"
