"""What a comparison's last lines tell the reader to run."""

import json
from types import SimpleNamespace

from cli import comparing
from cli.comparing import _changes
from dptune.comparing import CompareConfig


def test_training_of_one_recipe_takes_no_stages_of_the_others():
    config = CompareConfig.model_validate(
        {
            "name": "beside",
            "title": "Beside",
            "base": "quickstart",
            "set": {
                "data": {"max_records": 50},
                "stages": {
                    "jft": {"private_finetune": {"epochs": 2}},
                    "jft_light": {"private_finetune": {"epochs": 3}},
                },
            },
            "recipes": [
                {
                    "recipe": "jft",
                    "set": {"stages": {"jft": {"private_finetune": {"epochs": 4}}}},
                }
            ],
            "budgets": [8.0],
        }
    )
    assert _changes(config, config.recipes[0]) == {
        "recipe": "jft",
        "data.max_records": 50,
        "stages.jft.private_finetune.epochs": 4,
    }


def test_finished_cells_are_known_by_the_files_of_their_model(tmp_path, monkeypatch):
    """A model that was replaced under its path kept the results of the first."""
    monkeypatch.setenv("DPTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DPTUNE_DATA_ROOT", str(tmp_path))
    monkeypatch.setattr(comparing, "check_comparison", lambda cells, **_: seen(cells))
    values = {
        "name": "files",
        "title": "Files",
        "base": "quickstart",
        "set": {"model": {"public_text": {"kind": "text", "path": "public.txt"}}},
        "recipes": ["dp_adam"],
        "budgets": [8.0],
    }
    (tmp_path / "files.yaml").write_text(json.dumps(values))
    keys = []
    for words in ("one", "two", "one"):
        (tmp_path / "public.txt").write_text(words)
        job = comparing._checked(tmp_path / "files.yaml", [], retrain=False)
        keys.append(job.key_of(job.cells[0]))
    assert keys[0] == keys[2] != keys[1]


def seen(cells):
    checked = SimpleNamespace(fingerprint="corpus")
    return SimpleNamespace(cells=dict.fromkeys(cells, checked))
