"""The secret that names privacy units: made once, readable by its owner only."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from dptune.errors import ConfigError
from dptune.files import private_folder
from infra.workspace import (
    REPOSITORY,
    Workspace,
    configs_folder,
    current_workspace,
    ensure_budget_key,
    project_folder,
    read_budget_key,
)
from tests.full_disk import files_of_at_most


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    for name in ("KEY", "KEY_FILE", "URL"):
        monkeypatch.delenv(f"DPTUNE_BUDGET_{name}", raising=False)
    return Workspace(root=tmp_path / "home")


def test_reading_makes_nothing(workspace):
    assert read_budget_key(workspace) is None
    assert not workspace.root.exists()


@pytest.mark.parametrize("left", ["zenml", "stores"])
def test_project_of_which_one_folder_is_gone_is_still_one(workspace, left):
    """Versions lie in stores/: ZenML's configuration is made again beside them."""
    assert not workspace.is_set_up
    (workspace.root / left).mkdir(parents=True)
    assert workspace.is_set_up


def test_key_is_made_once_for_its_owner(workspace):
    key = ensure_budget_key(workspace)
    assert len(key) == 32
    assert ensure_budget_key(workspace) == read_budget_key(workspace) == key
    assert stat.S_IMODE(workspace.budget_key_file.stat().st_mode) == 0o600
    assert [p.name for p in workspace.root.iterdir()] == ["budget.key"]


def test_key_that_found_no_room_leaves_no_part_of_it(workspace):
    workspace.root.mkdir()
    with files_of_at_most(8), pytest.raises(OSError, match="large"):
        ensure_budget_key(workspace)
    assert list(workspace.root.iterdir()) == []
    assert len(ensure_budget_key(workspace)) == 32


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_key_that_others_may_read_is_refused(workspace, mode):
    ensure_budget_key(workspace)
    workspace.budget_key_file.chmod(mode)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_budget_key(workspace)


def test_damaged_key_is_refused_without_quoting_it(workspace):
    ensure_budget_key(workspace)
    workspace.budget_key_file.write_text("not hexadecimal")
    with pytest.raises(ConfigError, match="hexadecimal digits") as caught:
        read_budget_key(workspace)
    assert "not hex" not in str(caught.value)


def test_key_and_place_may_come_from_the_environment(workspace, monkeypatch, tmp_path):
    assert workspace.budget_url.startswith("sqlite:///")
    monkeypatch.setenv("DPTUNE_BUDGET_URL", "postgresql://host/name")
    assert workspace.budget_url == "postgresql://host/name"
    monkeypatch.setenv("DPTUNE_BUDGET_KEY_FILE", str(tmp_path / "other.key"))
    key = ensure_budget_key(workspace)
    assert (tmp_path / "other.key").read_text() == key.hex()
    monkeypatch.setenv("DPTUNE_BUDGET_KEY", "ab" * 32)
    assert ensure_budget_key(workspace) == bytes.fromhex("ab" * 32)


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A process whose program is no clone, in a folder below a project."""
    monkeypatch.delenv("DPTUNE_HOME", raising=False)
    monkeypatch.setattr("infra.workspace.REPOSITORY", tmp_path / "site" / "program")
    (tmp_path / "project" / ".dptune").mkdir(parents=True)
    below = tmp_path / "project" / "data"
    below.mkdir()
    monkeypatch.chdir(below)
    return tmp_path


def test_project_is_the_next_folder_upwards_with_a_state(wheel):
    assert project_folder() == wheel / "project"
    assert current_workspace().root == wheel / "project" / ".dptune"
    assert configs_folder() == wheel / "site" / "program" / "configs"
    (wheel / "project" / "configs").mkdir()
    assert configs_folder() == wheel / "project" / "configs"


def test_project_of_another_user_is_not_followed(wheel, monkeypatch):
    monkeypatch.setattr("os.getuid", lambda: 4_000_000)
    assert project_folder() == wheel / "project" / "data"


def test_clone_is_the_project_inside_of_it_and_where_there_is_no_other(
    wheel, monkeypatch
):
    clone = wheel / "clone"
    (clone / "docs").mkdir(parents=True)
    (clone / "pyproject.toml").touch()
    monkeypatch.setattr("infra.workspace.REPOSITORY", clone)
    assert project_folder() == wheel / "project"  # the program of a clone, elsewhere
    for folder in (clone, clone / "docs", wheel):
        monkeypatch.chdir(folder)
        assert project_folder() == clone


_READS = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from dptune.config import DataSettings
from dptune.data import building
from dptune.workflow.ingest import read_corpus
from infra.workspace import Workspace
home, file = map(Path, sys.argv[1:3])
plain = building.corpus_fingerprint
def look(*arguments, **settings):
    held = [path for path in home.rglob("*") if path.is_file()]
    assert any(b"Quartermain" in path.read_bytes() for path in held)
    assert not any(path.stat().st_mode & 0o077 for path in (home, *home.rglob("*")))
    if len(sys.argv) > 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(*arguments, **settings)
building.corpus_fingerprint = look
source = {"kind": "jsonl", "path": str(file), "id_column": "id"}
data = DataSettings.model_validate({"source": source, "privacy_unit": "record"})
os.umask(0)
with Workspace(root=home).work() as folder:
    read = read_corpus(data, data_root=file.parent, folder=folder, validate=False)
assert "Quartermain" in read.dataset[0]["text"]
"""


@pytest.fixture
def reads(tmp_path):
    """Read records where no project is, in a process that may be killed meanwhile."""
    home, file, temporary = tmp_path / "home", tmp_path / "a.jsonl", tmp_path / "tmp"
    temporary.mkdir()
    rows = [{"id": f"{i}", "text": f"Quartermain's line {i}"} for i in range(300)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def read(*killed):
        done = subprocess.run(
            [*(sys.executable, "-c", _READS, home, file, REPOSITORY), *killed],
            check=False,
            env={**os.environ, "TMPDIR": str(temporary)},
        )
        assert not list(temporary.iterdir())
        return done.returncode, home

    return read


def test_project_that_no_folder_can_be_made_for_is_refused(tmp_path):
    """The command crashed, with exit code 3."""
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(ConfigError, match="DPTUNE_HOME"):
            Workspace(root=place).make()
    Workspace(root=tmp_path / "a" / "b").make()
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_project_whose_path_ends_early_in_a_url_is_refused(tmp_path, monkeypatch):
    """Two of them shared a budget store, which lay outside of both."""
    monkeypatch.delenv("DPTUNE_BUDGET_URL", raising=False)
    asked = Workspace(root=tmp_path / "what?" / "home")
    for use in (asked.make, lambda: asked.budget_url):
        with pytest.raises(ConfigError, match="without '\\?'"):
            use()
    monkeypatch.setenv("DPTUNE_BUDGET_URL", "postgresql://u@h/d")
    assert asked.budget_url == "postgresql://u@h/d"


def test_records_lie_on_disk_where_no_project_is_and_nothing_stays(reads):
    code, home = reads()
    assert code == 0
    assert not home.exists()


def test_records_that_a_kill_left_go_when_the_next_are_read(reads):
    code, home = reads("killed")
    assert code == -signal.SIGKILL
    held = b"".join(p.read_bytes() for p in home.rglob("*") if p.is_file())
    assert b"Quartermain" in held
    assert reads() == (0, home)
    assert not list(home.iterdir())


def test_records_are_read_into_memory_where_no_folder_can_be_made(tmp_path):
    with Workspace(root=tmp_path / "gone" / "home").work() as folder:
        assert folder is None
    assert not list(tmp_path.iterdir())


def test_folder_of_a_project_and_what_others_do_in_it_stay(tmp_path):
    with Workspace(root=tmp_path).work() as folder:
        assert folder == tmp_path / "work"
    assert tmp_path.is_dir()
    made = Workspace(root=tmp_path / "made")
    with made.work() as folder, private_folder(folder, purpose="corpus") as others:
        with made.work():
            pass
        assert others.is_dir()
    assert not made.root.exists()
