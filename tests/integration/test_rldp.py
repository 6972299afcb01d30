"""RLDP from one command: its claim, its policy and its traces reach the card."""

import pytest
from zenml.client import Client

from dptune.workflow.controller import read_controllers

from .conftest import TINY

STAGE = "private_finetune"
SETTINGS = (
    "recipe=rldp",
    "registry.model_name=tiny-rldp",
    "budget.data_set=steered",
    "data.source.seed=55",
    f"stages.rldp.{STAGE}.epochs=6",
    f"stages.rldp.{STAGE}.expected_batch_size=32",
)


@pytest.fixture(scope="module")
def ran(project):
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    code, text = project.run("train", TINY, *sets)
    (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    return code, text, Client().get_pipeline_run(run.id)


def output(run, step, name):
    return run.steps[step].outputs[name][0].load()


def test_rldp_runs_from_text_to_a_card_with_both_epsilons(ran):
    code, text, run = ran
    assert code == 0, text
    report = output(run, f"train_{STAGE}", "stage_report")
    assert report.controller.num_actions >= 20
    assert report.controller.rewards_from == "released"
    card = output(run, "gate", "privacy_card")
    assert card.controllers == (report.controller,)
    (nominal,) = {c.nominal_epsilon for c in card.certificates}
    finite = [c.epsilon for c in card.certificates if c.status == "certified"]
    assert 0 < nominal < min(finite) <= 8.0
    bundle = output(run, f"train_{STAGE}", "model")
    assert read_controllers(bundle.path) == card.controllers
    policies = list(bundle.path.glob("controller_*.safetensors"))
    assert len(policies) == 1


def test_pages_draw_the_traces(ran):
    _, _, run = ran
    for step, name in ((f"train_{STAGE}", "stage_report"), ("gate", "privacy_card")):
        (artifact,) = run.steps[step].outputs[name]
        pages = [artifact.load()] and artifact.visualizations
        assert pages
    from dptune.reports.card.page import card_page  # noqa: PLC0415 - matplotlib
    from dptune.reports.pages.training import stage_page  # noqa: PLC0415

    card = card_page(output(run, "gate", "privacy_card"))
    page = stage_page(output(run, f"train_{STAGE}", "stage_report"))
    for made in (card, page):
        (section,) = (s for s in made.sections if s.title.startswith("Controller"))
        assert sum(block.kind == "plot" for block in section.blocks) == 2


def test_preflight_refuses_a_run_in_which_the_controller_hardly_acts(project):
    sets = [part for setting in SETTINGS for part in ("--set", setting)]
    few = f"stages.rldp.{STAGE}.epochs=1"
    code, text = project.run("train", TINY, *sets, "--set", few)
    assert code == 2, text
    words = " ".join(text.split())
    assert "at least 20 times" in words
    assert f"Raise stages.{STAGE}.epochs" in words
