"""The secret that names privacy units: made once, readable by its owner only."""

import stat

import pytest

from dptune.errors import ConfigError
from infra.workspace import (
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
