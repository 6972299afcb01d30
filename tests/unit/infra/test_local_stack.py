"""A project folder that lies elsewhere than it was made is refused, not begun anew."""

import shutil
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import yaml
from zenml.config import global_config

from dptune.errors import ArtifactError
from infra.stacks.local import STACK, _refuse_moved, ensure_local_stack
from infra.workspace import Workspace


@pytest.fixture
def made(tmp_path):
    """A project folder as ZenML leaves it; only what names its place."""
    workspace = Workspace(root=tmp_path / "mine" / ".dptune")
    workspace.zenml.mkdir(parents=True)
    database = workspace.stores / "default_zen_store" / "zenml.db"
    database.parent.mkdir(parents=True)
    database.touch()
    note(workspace, f"sqlite:///{database}")
    return workspace


def note(workspace, url):
    content = yaml.safe_dump({"store": {"type": "sql", "url": url}})
    (workspace.zenml / "config.yaml").write_text(content)


def test_project_folder_where_it_was_made_is_opened(made):
    _refuse_moved(made)


@pytest.mark.parametrize("is_copy", [False, True])
def test_project_folder_that_moved_or_was_copied_is_refused(made, tmp_path, is_copy):
    place = tmp_path / "elsewhere" / ".dptune"
    (shutil.copytree if is_copy else shutil.move)(made.root, place)
    with pytest.raises(ArtifactError, match="must lie where it was made") as caught:
        _refuse_moved(Workspace(root=place))
    assert str(made.root) in str(caught.value)
    assert str(place) in str(caught.value)


def test_project_folder_behind_a_link_is_opened(made, tmp_path):
    (tmp_path / "moved").mkdir()
    made.root.rename(tmp_path / "moved" / ".dptune")
    made.root.symlink_to(tmp_path / "moved" / ".dptune")
    _refuse_moved(Workspace(root=tmp_path / "moved" / ".dptune"))


@pytest.mark.parametrize("url", ["https://zenml.example.org", None])
def test_server_elsewhere_is_none_of_its_business(made, url):
    note(made, url)
    _refuse_moved(made)


def test_project_folder_without_a_configuration_is_new(tmp_path):
    _refuse_moved(Workspace(root=tmp_path / ".dptune"))


@pytest.mark.parametrize(
    ("url", "opens"), [("https://zenml.example.org", True), ("sqlite:///{}", False)]
)
def test_only_a_database_of_ones_own_can_have_gone(tmp_path, monkeypatch, url, opens):
    """With a server each second command ended: `zenml.db` was made, and had gone."""
    workspace = Workspace(root=tmp_path / ".dptune")
    database = workspace.stores / "default_zen_store" / "zenml.db"
    store = SimpleNamespace(url=url.format(database))
    client = SimpleNamespace(
        zen_store=None, active_stack_model=SimpleNamespace(name=STACK)
    )
    configuration = SimpleNamespace(store_configuration=store, analytics_opt_in=True)
    monkeypatch.setattr(global_config, "GlobalConfiguration", lambda: configuration)
    monkeypatch.setattr("zenml.client.Client", lambda: client)
    ensure_local_stack(workspace)
    with nullcontext() if opens else pytest.raises(ArtifactError, match="has gone"):
        ensure_local_stack(workspace)
