"""What a project leaves is for its owner alone, as another user would see it."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from infra import private
from infra.private import (
    Closed,
    close_to_others,
    drop_temporary_files,
    keep_temporary_files_in,
    write_for_owner_only,
)
from infra.workspace import Workspace
from steps._observing import hooks

NOBODY = 65534


@pytest.fixture(autouse=True)
def keep_process():
    """Give umask and temporary folder back."""
    umask = os.umask(0o022)
    yield
    drop_temporary_files()
    os.umask(umask)


@pytest.fixture
def open_folder(tmp_path):
    """A project folder as earlier versions left it."""
    root = tmp_path / "home"
    (root / "stores" / "corpus").mkdir(parents=True)
    (root / "stores" / "corpus" / "data.arrow").write_text("Zebediah")
    (root / "budget.db").write_text("x")
    return root


def open_to_others(root):
    paths = [root, *root.rglob("*")]
    return [p for p in paths if not p.is_symlink() and p.stat().st_mode & 0o077]


def as_another_user(*command):
    """Run a command as a user who owns nothing here; skips where there is none."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, to become another user")
    rights = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    return subprocess.run(
        ["setpriv", *rights, *map(str, command)], capture_output=True, check=False
    )


@pytest.fixture
def reachable(open_folder):
    """The same where every folder above lets other users through."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    shutil.copytree(open_folder, folder / "home")
    yield folder / "home"
    shutil.rmtree(folder)


def test_folder_of_an_earlier_version_is_closed_and_counted(open_folder):
    assert len(open_to_others(open_folder)) == 5
    assert close_to_others(open_folder) == Closed(changed=5)
    assert open_to_others(open_folder) == []
    assert close_to_others(open_folder) == Closed()


def test_another_user_reads_an_open_folder_and_not_a_closed_one(reachable):
    text = reachable / "stores" / "corpus" / "data.arrow"
    assert as_another_user("cat", text).stdout == b"Zebediah"  # the twin
    close_to_others(reachable)
    for command in (("cat", text), ("ls", reachable), ("cat", reachable / "budget.db")):
        found = as_another_user(*command)
        assert found.returncode != 0
        assert found.stdout == b""


def test_closing_follows_no_link(open_folder, tmp_path):
    outside = tmp_path / "outside.txt"
    outside.write_text("x")
    (open_folder / "link").symlink_to(outside)
    (open_folder / "folder").symlink_to(tmp_path)
    close_to_others(open_folder)
    assert outside.stat().st_mode & 0o777 == 0o644


def test_closing_that_was_killed_goes_on(open_folder, monkeypatch):
    real = Path.chmod

    def killed(path, mode):
        if path == open_folder:
            raise KeyboardInterrupt
        real(path, mode)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", killed)
        with pytest.raises(KeyboardInterrupt):
            close_to_others(open_folder)
        assert open_to_others(open_folder) == [open_folder]
    assert close_to_others(open_folder) == Closed(changed=1)


def test_files_of_the_process_and_of_its_children_are_the_owners(tmp_path):
    write_for_owner_only()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_text("x")
    subprocess.run(["touch", tmp_path / "a" / "c"], check=True)
    assert open_to_others(tmp_path / "a") == []


def test_step_in_a_pod_writes_for_its_owner(tmp_path, monkeypatch):
    monkeypatch.delenv("DPTUNE_LOG_FORMAT", raising=False)
    hooks({})["on_start"]()
    (tmp_path / "a").write_text("x")
    assert open_to_others(tmp_path / "a") == []


def test_temporary_files_lie_in_the_project_folder_and_go(tmp_path):
    workspace = Workspace(root=tmp_path / "home")
    before = tempfile.gettempdir()
    keep_temporary_files_in(workspace)
    keep_temporary_files_in(workspace)
    copy = Path(tempfile.mkdtemp())
    child = [sys.executable, "-c", "import tempfile; print(tempfile.mkdtemp())"]
    childs = Path(subprocess.check_output(child, text=True).strip())
    for folder in (copy, childs):
        assert folder.is_relative_to(workspace.temporary)
    drop_temporary_files()
    assert list(workspace.temporary.iterdir()) == []
    assert tempfile.gettempdir() == before


def test_copies_of_a_killed_process_go_and_those_of_a_living_one_stay(tmp_path):
    workspace = Workspace(root=tmp_path / "home")
    program = (
        "import pathlib, sys, tempfile, time; sys.path.insert(0, sys.argv[2]);"
        "from infra.private import keep_temporary_files_in;"
        "from infra.workspace import Workspace;"
        "keep_temporary_files_in(Workspace(root=pathlib.Path(sys.argv[1])));"
        "print(tempfile.mkdtemp(), flush=True); time.sleep(60)"
    )
    place = str(Path(private.__file__).parents[1])
    command = [sys.executable, "-c", program, str(workspace.root), place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as living:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as killed:
            copies = [Path(p.stdout.readline().strip()) for p in (living, killed)]
            killed.kill()
        time.sleep(0.05)
        keep_temporary_files_in(workspace)
        assert [copy.exists() for copy in copies] == [True, False]
        living.kill()


def test_folder_that_goes_while_others_are_swept_stops_nobody(tmp_path, monkeypatch):
    workspace = Workspace(root=tmp_path / "home")
    workspace.temporary.mkdir(parents=True)
    gone = workspace.temporary / "gone"
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([gone]))
    keep_temporary_files_in(workspace)
    assert Path(tempfile.gettempdir()).parent == workspace.temporary
