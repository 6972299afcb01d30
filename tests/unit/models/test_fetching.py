"""A folder of models for pods that reach no hub."""

import shutil

import pytest

from dptune.errors import DependencyError
from dptune.models.digest import model_digest
from dptune.models.hub import fetch_models
from dptune.models.loading import save_model
from dptune.models.source import HubSource, PathSource

COMMIT = "c" * 40
SOURCE = HubSource(kind="hub", id="nobody/something")


@pytest.fixture
def folder(tmp_path, make_gpt2, tokenizer):
    """A volume that holds one model."""
    repository = tmp_path / "volume" / "models--nobody--something"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    save_model(make_gpt2(), tokenizer, tmp_path / "saved")
    shutil.copytree(tmp_path / "saved", repository / "snapshots" / COMMIT)
    return tmp_path / "volume"


def test_what_is_there_is_named_by_commit_and_digest(folder, tmp_path):
    other = PathSource(kind="path", path="somewhere")
    (found,) = fetch_models([SOURCE, other, SOURCE], folder=folder)
    assert found.commit == COMMIT
    assert found.digest == model_digest(tmp_path / "saved")


def test_what_is_missing_is_named(folder):
    other = HubSource(kind="hub", id="nobody/else")
    with pytest.raises(DependencyError, match="nobody/else"):
        fetch_models([SOURCE, other], folder=folder)


def test_folder_that_may_not_be_written_serves_its_models(folder):
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert len(fetch_models([SOURCE], folder=folder)) == 1
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755)
