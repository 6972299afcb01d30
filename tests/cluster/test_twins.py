"""Killed training with a planted bug: what the sound run is held to finds it."""

import re

import pytest

from cli.runs import read_config
from infra.pods import run_options

from .commands import output
from .killed import gather
from .story import SCHEDULED, TINY, failed_logs, witness_of

pytestmark = pytest.mark.slow
OF_A_RUN = re.compile("[0-9a-f]+-twin")  # a step's job names the step between
TWINS = {"anew": "several reservations", "replay": "noise drawn twice"}


@pytest.fixture(scope="module")
def found(site, story):
    """What is wrong with each twin; they run side by side."""
    from .twins import twin_pipeline  # noqa: PLC0415 - needs a stack

    cluster = site.cluster
    for number, twin in enumerate(TWINS, start=1):
        changes = (
            *(f"budget.data_set=twin-{twin}", f"repetition={number}"),
            f"data.source.seed={10 + number}",
        )
        config = site.profile.applied_to(read_config(TINY, (*SCHEDULED, *changes)))
        names = ["reserve_budget", "train_private_finetune"]
        options = run_options(site.profile, names)
        options["settings"]["orchestrator.kubernetes"]["synchronous"] = False
        twin_pipeline.with_options(run_name=f"twin-{twin}", **options)(
            run_id=str(story.killed.run.id),
            config=config.model_dump(mode="json"),
            seed=5,
        )
    jobs = [j for j in cluster.all("jobs") if OF_A_RUN.fullmatch(j["metadata"]["name"])]
    assert len(jobs) == len(TWINS)
    for job in jobs:
        assert cluster.wait(job), failed_logs(site)
    return {twin: _faults(site, story, twin) for twin in TWINS}


def _faults(site, story, twin):
    from zenml.client import Client  # noqa: PLC0415

    run = Client().get_pipeline_run(f"twin-{twin}")
    plan = output(story.killed.run, "calibrate", "plan")
    return gather(
        url=site.budget_url,
        data_set=f"twin-{twin}",
        ledger=output(run, "train_private_finetune", "ledger"),
        witness=witness_of(site, f"twin-{twin}"),
        planned=plan.stages[1].num_steps,
        block=2,
    ).faults()


@pytest.mark.parametrize("twin", TWINS)
def test_twin_is_caught(found, twin):
    assert TWINS[twin] in found[twin]
