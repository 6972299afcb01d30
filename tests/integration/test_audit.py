"""`run.py audit`: on a recorded run, and on a model directory from elsewhere."""

import json

import pytest
from zenml.client import Client

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.audits.step_report import StepAudit
from dptune.data.source import SyntheticSource
from dptune.dpsgd import noise
from dptune.results import ExposureReport, MembershipReport
from tests.support.sources import read_source

from .conftest import TINY


@pytest.fixture
def last_run():
    def find():
        (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
        return Client().get_pipeline_run(run.id)

    return find


@pytest.mark.parametrize("target", ["tiny-assistant:1", str(TINY)])
def test_audit_of_a_recorded_run_passes(trained, project, last_run, target):
    code, text = project.run("audit", target)
    assert code == 0, text
    run = last_run()
    assert run.pipeline.name == "audit_run"
    names = set()
    for step in run.steps.values():
        (artifact,) = step.outputs["step_audit"]
        audit = artifact.load()
        assert type(audit) is StepAudit
        assert audit.passed
        assert artifact.visualizations
        names |= {check.name for check in audit.checks}
    assert {"sensitivity", "noise_variance", "event"} <= names


def test_audit_catches_an_engine_without_noise(trained, project, monkeypatch):
    monkeypatch.setattr(noise, "add_gaussian_noise", lambda *_, **__: None)
    code, text = project.run("audit", "tiny-assistant:1")
    assert code == 1
    assert "noise_variance" in text
    assert "Traceback" not in text


def test_audit_of_a_directory_attacks_with_given_texts(
    trained, project, last_run, tmp_path
):
    steps = trained["no_dp"].run.steps
    model, base = (
        steps[step].outputs[name][0].load().path
        for step, name in (("train_finetune", "model"), ("prepare_model", "base_model"))
    )
    rows = read_source(SyntheticSource(num_records=260, seed=5), data_root=tmp_path)
    canaries = draw_canaries(
        CanarySpec(num_planted=3, num_held_out=3, length=3), seed=1
    )
    planted = [canaries.spec.record(secret) for secret in canaries.planted]
    texts = [str(text) for text in rows["text"]]
    files = {
        "members": [*planted, *texts[:130]],
        "non-members": texts[130:],
    }
    options = []
    for name, values in files.items():
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps({"text": t}) + "\n" for t in values))
        options += [f"--{name}", file]
    secret = tmp_path / "canaries.json"
    secret.write_text(canaries.model_dump_json())
    code, text = project.run(
        "audit", model, "--base", base, *options, "--canaries", secret
    )
    assert code == 0, text
    run = last_run()
    (membership,) = run.steps["attack_texts"].outputs["membership"]
    (exposure,) = run.steps["rank_canaries"].outputs["exposure"]
    assert type(membership.load()) is MembershipReport
    found = exposure.load()
    assert type(found) is ExposureReport
    assert (found.planted_found, len(found.planted())) == (3, 3)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nobody:1",), "recorded here"),
        (("tiny-assistant:77",), "recorded here"),
        ((".",), "--members"),
    ],
)
def test_impossible_audits_exit_2(trained, project, arguments, says):
    code, text = project.run("audit", *arguments)
    assert code == 2
    assert says in text
    assert "Traceback" not in text
