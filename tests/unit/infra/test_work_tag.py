"""A tag of a run tells equal work apart, and neighbors to nobody outside."""

import hashlib
import json
from pathlib import Path

import pytest

from dptune.configfile import load_train_config
from steps._scheduling import work_tag

CONFIGS = Path(__file__).resolve().parents[3] / "configs"


@pytest.fixture
def config(tmp_path, monkeypatch):
    """Read the quickstart with changes, in a project of its own."""
    monkeypatch.setenv("DPTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPTUNE_DATA_ROOT", str(tmp_path))

    def read(*changes):
        path = CONFIGS / "train" / "quickstart.yaml"
        return load_train_config(path, configs=CONFIGS, overrides=changes)

    return read


def test_tag_of_a_run_cannot_be_computed_without_the_secret(
    config, tmp_path, monkeypatch
):
    tags = set()
    for project in ("one", "two"):
        monkeypatch.setenv("DPTUNE_HOME", str(tmp_path / project))
        tags |= {work_tag(config(), "corpus"), work_tag(config(), "corpus")}
    assert len(tags) == 2  # one for each secret
    values = config().model_dump(mode="json", exclude={"performance"})
    for files in ("", tags):
        text = json.dumps([values, "corpus", str(files)], sort_keys=True)
        plain = hashlib.sha256(text.encode()).hexdigest()
        assert not [tag for tag in tags if plain[:24] in tag]


def test_other_data_settings_or_base_model_are_other_work(config, tmp_path):
    changes = ("model.source={kind: path, path: base}", "model.pretraining=null")
    of_model = config(*changes)
    (tmp_path / "base").mkdir()
    tags = [work_tag(of_model, "corpus"), work_tag(of_model, "other corpus")]
    for content in ("weights", "other weights", "weights"):
        (tmp_path / "base" / "model.safetensors").write_text(content)
        tags.append(work_tag(of_model, "corpus"))
    assert tags[2] == tags[4]
    assert len(set(tags)) == 4
    slower = config(*changes, "performance.physical_batch_size=3")
    assert work_tag(slower, "corpus") == tags[4]
    assert work_tag(config(*changes, "recipe=no_dp"), "corpus") not in tags
