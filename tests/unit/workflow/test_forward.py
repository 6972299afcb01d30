"""Forward noise through a stage: what is charged, certified, killed and kept."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from dptune.accounting.assumptions import Assumption
from dptune.accounting.ledger import PrivacyLedger
from dptune.configfile import load_train_config
from dptune.data.source import TextSource
from dptune.dpsgd.randomness import GaussianStream
from dptune.errors import ConfigError
from dptune.local import release as local_release
from dptune.local import training as local_training
from dptune.local.release import release as local_release_release
from dptune.planning import plan_run
from dptune.privacy import Mode, NeighboringRelation, Notion, UnitsFrom
from dptune.recipes import Recipe
from dptune.workflow.charging import planned_ledger, stage_entry
from dptune.workflow.expectation import gate_doubts
from dptune.workflow.forward import PublicText
from dptune.workflow.inputs import StageInputs
from dptune.workflow.train_stage import run_stage
from dptune.workflow.what_if import calibration
from dptune.workflow.whitebox import audit_stage
from tests.unit.reports.samples import corpus_report

from .conftest import PERFORMANCE
from .test_classifying import MAX_TOKENS, WORDS, base, reviews  # noqa: F401 - fixtures

RECIPES = Path(__file__).resolve().parents[3] / "configs" / "recipes"
REPLACE = NeighboringRelation.REPLACE_ONE
SELECTIVE = Notion.SELECTIVE
SST2 = 67_349


def recipe(name, **local):
    values = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    stage = values["stages"][0]
    stage["local"] |= local
    if local:
        stage["expected_batch_size"] = 8
    return Recipe.model_validate(values)


def plan(
    made,
    *,
    num_units=SST2,
    target=8.0,
    mode=Mode.SOUND,
    notion=Notion.LOCAL,
    units_from=UnitsFrom.EXACT,
):
    return plan_run(
        made,
        num_units=num_units,
        units_from=units_from,
        notion=notion,
        relation=REPLACE,
        target_epsilon=target,
        target_delta=1e-5,
        mode=mode,
    )


@pytest.mark.parametrize("name", ["dp_forward", "ew_ft"])
def test_sound_mode_is_certified_at_its_target(name):
    found = plan(recipe(name))
    assert 0.98 * 8 < found.epsilon <= 8.0
    (stage,) = found.stages
    assert stage.num_steps == 3
    assert stage.nominal_epsilon < 0.5  # what the paper would claim for so much noise
    sigmas = [s for s, _ in stage.noise_runs(0, 3)]
    assert sorted(sigmas, reverse=True) == sigmas
    assert (sigmas[0] > sigmas[-1]) is (name == "ew_ft")


@pytest.mark.parametrize(("name", "certified"), [("dp_forward", 76.4), ("ew_ft", 70.7)])
def test_paper_mode_says_eight_and_certifies_seventy(name, certified):
    found = plan(recipe(name), mode=Mode.PAPER)
    assert found.stages[0].nominal_epsilon == pytest.approx(8.0, rel=0.011)
    assert found.epsilon == pytest.approx(certified, abs=1.5)


def test_calibration_promises_the_local_notion_and_no_record():
    made = plan(recipe("ew_ft"))
    ledger = planned_ledger(made, corpus_report(), redaction="mask", fixed_seed=False)
    found = calibration(made, config="c", ledger=ledger)
    assert [p.notion for p in found.promises] == [Notion.LOCAL, Notion.SELECTIVE]
    assert found.promises[0].epsilon == found.epsilon <= 8.0
    assert found.what_if is None


@pytest.mark.parametrize("units_from", UnitsFrom)
@pytest.mark.parametrize(
    "changes",
    [
        {"units_are_content_hashes": True, "deduplicated": False},
        {"deduplicated": True, "duplicates_are_free": True},
    ],
)
def test_texts_that_decide_who_sends_are_named(units_from, changes):
    """Another text falls into another split, and the server sees one user less."""
    named = Assumption.REPLACEMENT_KEEPS_NUM_UNITS
    (stage,) = plan(recipe("dp_forward"), units_from=units_from).stages

    def claims(report):
        entry = stage_entry(
            report, stage, recipe="r", first_step=0, num_steps=3, fixed_seed=False
        )
        ledger = PrivacyLedger(entries=(entry,))
        return [ledger.certificate(n, delta=1e-5) for n in (Notion.LOCAL, SELECTIVE)]

    for claim in claims(corpus_report(deduplicated=False)):
        assert (claim.status, named in claim.assumptions) == ("certified", False)
    for claim in claims(corpus_report(**changes)):
        assert (claim.status, named in claim.assumptions) == ("conditional", True)


@pytest.mark.parametrize("name", ["dp_forward", "ew_ft"])
def test_example_of_texts_without_ids_can_pass_its_policy(name):
    config = load_train_config(
        RECIPES.parent / "train" / "sst2.yaml",
        configs=RECIPES.parent,
        overrides=(
            f"recipe={name}",
            "gate=classifier_local",
            "privacy.notion=local",
            "privacy.relation=replace_one",
            "privacy.target_epsilon=8.0",
        ),
    )
    report = corpus_report(units_are_content_hashes=True, deduplicated=False)
    made = planned_ledger(
        plan(config.recipe), report, redaction="mask", fixed_seed=False
    )
    assert gate_doubts(config, made) == ()


@pytest.mark.parametrize("target", [0.5, 1.0001])
def test_small_target_has_a_sound_plan(target):
    assert 0.98 * target < plan(recipe("ew_ft"), target=target).epsilon <= target


@pytest.mark.parametrize("notion", [Notion.RECORD, Notion.SELECTIVE])
def test_other_notions_are_refused(notion):
    with pytest.raises(ConfigError, match="must be local"):
        plan(recipe("dp_forward"), notion=notion)


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 2.5},
        {"view": "redacted"},
        {"optimizer": {"learning_rate": 0.1, "schedule": "linear"}},
        {"noise": {}, "clipping": {"max_grad_norm": 1.0}},
        {"nominal": {"formula": "rdp", "reference": "x"}},
    ],
)
def test_stages_that_contradict_forward_noise_are_refused(changes):
    values = yaml.safe_load((RECIPES / "dp_forward.yaml").read_text())
    values["stages"][0] |= changes
    with pytest.raises(ValueError, match="local"):
        Recipe.model_validate(values)


@pytest.fixture
def inputs(reviews, base, tmp_path):  # noqa: F811 - fixtures
    (tmp_path / "public.txt").write_text("\n".join(" ".join(WORDS) for _ in range(9)))
    public = PublicText(source=TextSource(path="public.txt"), data_root=tmp_path)

    def make(name="ew_ft", seed=None, **local):
        small = {"layer": 1, "autoencoder_steps": 5}
        if name == "ew_ft":
            small["autoencoder"] = [8]
        units = reviews.report.num_units["train"]
        made = plan(recipe(name, **(small | local)), num_units=units)
        return StageInputs(
            model=base,
            corpus=reviews,
            plan=made.stages[0],
            recipe=name,
            max_tokens=MAX_TOKENS,
            max_sequences_per_unit=1,
            seed=seed,
            public_text=public,
        )

    return make


def run(made, folder, **arguments):
    return run_stage(
        made, PrivacyLedger(), folder=folder, performance=PERFORMANCE, **arguments
    )


def claims(ledger):
    return {(c.notion, c.relation): c.epsilon for c in ledger.certificates(delta=1e-5)}


def test_stage_is_another_once_its_public_text_holds_something_else(inputs, tmp_path):
    before = inputs().key()
    (tmp_path / "public.txt").write_text("another text that anybody may read\n")
    assert inputs().key() != before


@pytest.mark.parametrize("name", ["dp_forward", "ew_ft"])
def test_stage_is_certified_locally_and_for_no_record(inputs, tmp_path, name):
    done = run(inputs(name), tmp_path / "runs")
    found = claims(done.ledger)
    assert 0.98 * 8 < found[Notion.LOCAL, REPLACE] <= 8.0
    assert found[Notion.SELECTIVE, REPLACE] == found[Notion.LOCAL, REPLACE]
    assert found[Notion.RECORD, REPLACE] == math.inf
    assert [e.num_steps for e in done.ledger.entries] == [1, 1, 1]
    local = done.ledger.certificate(Notion.LOCAL, delta=1e-5)
    assert "labels_are_sent" in {a.value for a in local.assumptions}
    assert local.nominal_epsilon == done.ledger.entries[0].nominal_epsilon < 8


def test_both_parts_are_kept_with_the_whole(inputs, tmp_path):
    done = run(inputs(), tmp_path / "runs")
    parts = {file.name for file in done.bundle.path.glob("local_*")}
    assert parts == {
        "local_user.safetensors",
        "local_server.safetensors",
        "local_split.json",
    }
    line = json.loads((done.bundle.path / "local_split.json").read_text())
    assert line["settings"]["autoencoder"] == [8]
    assert len(line["noise_multipliers"]) == 3


class Killed(BaseException):
    """Stands for a kill: nothing of ours catches it."""


def test_kill_spends_its_participation_and_never_a_further_one(inputs, tmp_path):
    made, charged = inputs(), []

    def dies(entry):
        charged.append(entry)

    def on_step(now):
        if now.step == 1:
            raise Killed

    with pytest.raises(Killed):
        run(made, tmp_path / "runs", spend=dies, on_step=on_step)
    done = run(made, tmp_path / "runs", spend=dies)
    again = run(made, tmp_path / "runs", spend=dies)
    assert len(charged) == 3
    assert claims(done.ledger)[Notion.LOCAL, REPLACE] <= 8.0
    assert done.report.resumed_from_step == 1
    assert again.bundle == done.bundle


def test_kill_inside_a_participation_loses_it(inputs, tmp_path):
    made, charged = inputs(), []

    def dies_after_the_second_charge(entry):
        charged.append(entry)
        if len(charged) == 2:
            raise Killed

    with pytest.raises(Killed):
        run(made, tmp_path / "runs", spend=dies_after_the_second_charge)
    done = run(made, tmp_path / "runs", spend=charged.append)
    assert len(done.ledger.entries) <= 3
    assert claims(done.ledger)[Notion.LOCAL, REPLACE] <= 8.0


def test_autoencoder_without_public_text_is_refused(inputs, tmp_path):
    made = inputs()
    object.__setattr__(made, "public_text", None)
    with pytest.raises(ConfigError, match="public_text"):
        run(made, tmp_path / "runs")


def test_fixed_seed_has_no_certificate(inputs, tmp_path):
    done = run(inputs("dp_forward", seed=1), tmp_path / "runs")
    assert claims(done.ledger)[Notion.LOCAL, REPLACE] == math.inf


def forward_audit(made, folder):
    done = run(made, folder)
    found = audit_stage(made, done.ledger, performance=PERFORMANCE)
    return {check.name for check in found.checks if not check.passed}


def test_audit_of_releases_passes_and_its_twins_do_not(inputs, tmp_path, monkeypatch):
    assert forward_audit(inputs(), tmp_path / "sound") == set()
    for name, twin, expected in (
        ("normalize", lambda hidden, *, max_norm: hidden * 2, "release_norm"),
        ("release", clean, "releases_as_planned"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local_release, name, twin)
            patch.setattr(local_training, name, twin)
            assert expected in forward_audit(inputs(), tmp_path / name)


def same_for_every_release(self, *tensors, stddev):
    """Planted: a stream that begins anew whenever it is asked."""
    if not hasattr(self, "numbers"):
        self.numbers = torch.from_numpy(np.random.default_rng().normal(size=50_000))
    for values in tensors:
        values.view(-1).add_(self.numbers[: values.numel()], alpha=stddev)


def test_noise_that_releases_share_is_caught(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(GaussianStream, "add_to", same_for_every_release)
    assert "noise_independence" in forward_audit(inputs(), tmp_path / "shared")


def clean(hidden, *, max_norm, noise_stddev, stream):
    """Planted: half the noise."""
    return local_release_release(
        hidden, max_norm=max_norm, noise_stddev=noise_stddev / 2, stream=stream
    )
