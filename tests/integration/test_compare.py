"""A comparison through the command line: failed, taken up again, and finished.

Its cells are the trainings of the fixture, so that they are answered from their stages.
"""

import mlflow
import pytest
import yaml
from zenml.client import Client
from zenml.exceptions import RunInterruptedException

import cli.comparing
from cli.runs import read_config
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import history
from dptune.attacks.canaries import CanarySet
from dptune.errors import DataError, PrivacyError
from dptune.reports.comparison import ComparisonReport
from steps import _lineage, _tracking

from .conftest import TINY
from .scanning import Needles, canary_strings, leaks, personal_strings

REASON = "split test must have a token to predict, got none."


@pytest.fixture(scope="module")
def file(trained, project):
    values = yaml.safe_load(TINY.read_text())
    folder = project.outside.parent / "compare"
    folder.mkdir()
    comparison = {
        "name": "beside",
        "title": "Two recipes",
        "base": values,
        "recipes": ["no_dp", "jft"],
        "budgets": [8.0],
        "measure": {"extraction": True},
    }
    path = folder / "beside.yaml"
    path.write_text(yaml.safe_dump(comparison))
    return path


def spent(project):
    """What runs drew; one that drew nothing is left out."""
    store = BudgetStore.open(f"sqlite:///{project.home / 'budget.db'}")
    try:
        runs = [r for r in history(store) if r.spent.tallies]
        return [(run.recipe, run.status, run.spent) for run in runs]
    finally:
        store.engine.dispose()


def versions():
    return [found.version for found in _tracking.versions("tiny-assistant")]


@pytest.fixture(scope="module")
def compared(file, project):
    """Plan, a run that is told to end, one with a cell that fails, and another."""
    _tracking.connect()
    found = {"before": spent(project), "versions": versions()}
    found["plan"] = project.run("compare", file, "--plan")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli.comparing, "_run_cell", _terminated)
        found["terminated"] = project.run("compare", file)
        patch.undo()
        patch.setattr(cli.comparing, "_run_cell", _failing(cli.comparing._run_cell))
        found["first"] = project.run("compare", file)
    found["page"] = (project.home / "reports" / "compare-beside.html").read_text()
    found["second"] = project.run("compare", file)
    found["after"] = spent(project)
    return found


def _terminated(job, cell, parent):
    """As ZenML answers a signal that this program was told to ignore."""
    raise RunInterruptedException("The execution was interrupted.")


def _failing(run_cell):
    def run(job, cell, parent):
        if cell.label == "jft":
            raise DataError(REASON)
        return run_cell(job, cell, parent)

    return run


def output(run, step, name):
    return run.steps[step].outputs[name][0].load()


def last(pipeline):
    runs = Client().list_pipeline_runs(pipeline=pipeline, sort_by="desc:created")
    return [Client().get_pipeline_run(run.id) for run in runs.items]


def test_plan_shows_noise_and_cost_and_runs_nothing(compared):
    code, text = compared["plan"]
    assert code == 0, text
    for words in ("private_finetune", "2 cells", "0 finished before", "jft"):
        assert words in text
    assert "cell 1 of 2" not in text


def test_comparison_that_is_told_to_end_starts_no_other_cell(compared):
    code, text = compared["terminated"]
    assert code == 130, text
    assert "cell 1 of 2" in text
    assert "cell 2 of 2" not in text
    assert "the same command completes it" in " ".join(text.split())


def test_failed_cell_is_told_and_does_not_lose_the_others(compared):
    code, text = compared["first"]
    assert code == 2, text
    assert "cell 2 of 2" in text
    assert REASON in " ".join(text.split())
    assert "had started" in text
    assert "1 FAILED" in compared["page"]
    assert REASON in compared["page"]
    assert "no_dp" in compared["page"]


def test_second_run_does_only_what_is_left(compared):
    code, text = compared["second"]
    assert code == 0, text
    assert "1 finished before" in text
    assert "no_dp, seed 0: finished before" in text
    assert len(last("compare_cell")) == 2


def test_nothing_is_charged_for_stages_that_were_finished(compared):
    assert compared["after"] == compared["before"]


def test_comparison_is_an_artifact_with_every_cell(compared):
    report = output(last("compare")[0], "compare", "comparison")
    assert type(report) is ComparisonReport
    assert [cell.label for cell in report.finished] == ["no_dp", "jft"]
    no_dp, jft = report.cells
    assert no_dp.utility.record_tokens == jft.utility.record_tokens
    assert [stage.stage for stage in jft.stages] == [
        "redacted_finetune",
        "private_finetune",
    ]
    assert jft.seconds > 0
    assert jft.certificate.epsilon <= 8.0


def test_tracker_has_one_parent_with_a_child_for_each_cell(compared, project):
    _tracking.connect()
    (place,) = [e for e in mlflow.search_experiments() if e.name == "compare-beside"]
    assert place.artifact_location.startswith(f"file:{project.home}")
    runs = mlflow.search_runs([place.experiment_id], output_format="list")
    (parent,) = [r for r in runs if "dptune.comparison" in r.data.tags]
    children = [
        r for r in runs if r.data.tags.get("mlflow.parentRunId") == parent.info.run_id
    ]
    assert len(children) == len(runs) - 1 == 2
    assert all("perplexity" in child.data.metrics for child in children)
    assert "jft_epsilon_8/perplexity" in parent.data.metrics


def test_nothing_is_registered_or_promoted(compared):
    _tracking.connect()
    assert "beside" not in _tracking.model_names()
    assert versions() == compared["versions"]


def test_reports_hold_no_text_of_a_record(compared, project):
    data = yaml.safe_load(TINY.read_text())["data"]["source"]
    cell = last("compare_cell")[0]
    canaries: CanarySet = output(cell, "plant_canaries", "canaries")
    strings = personal_strings(num_records=data["num_records"], seed=data["seed"])
    needles = Needles(strings | canary_strings(canaries))
    assert leaks(needles, project.home, project.outside) == {}
    for end in (".html", ".csv", "-cells.csv"):
        assert (project.home / "reports" / f"compare-beside{end}").is_file()


@pytest.mark.parametrize("repetition", [0, 3])
def test_a_repetition_draws_canaries_of_its_own(project, repetition):
    from pipelines.train import train_pipeline  # noqa: PLC0415 - needs a stack

    changed = [f"repetition={repetition}"]
    loaded = read_config(TINY, changed)
    values = loaded.model_dump(mode="json")
    pipeline = train_pipeline.with_options()
    pipeline.prepare(config=values, fingerprint="f" * 64, retrain=True)
    drawing = pipeline.invocations["plant_canaries"]
    assert drawing.parameters["repetition"] == repetition


def test_cell_over_a_base_that_learnt_from_the_data_is_not_run(
    compared, file, project, monkeypatch
):
    def refuse(config, *, data_root):
        raise PrivacyError("model.source must be a public model")

    monkeypatch.setattr(_lineage, "refuse_trained_base", refuse)
    code, text = project.run("compare", file, "--retrain")
    assert code == 2, text
    assert text.count("failed model.source must be a public model") == 2
    assert spent(project) == compared["after"]
    assert len(last("compare_cell")) == 2
