"""Three runs of the whole pipeline, side by side, that all tests look at."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenml.client import Client
from zenml.models import PipelineRunResponse

from infra.workspace import REPOSITORY

from .commands import command, overrides
from .forked_pods import start_forked
from .site import Site

TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
SCHEDULED = (
    *("name=scheduled", "registry.model_name=scheduled", "budget.data_set=scheduled"),
    # Long enough to be killed in; a block more than planned is above the tiny target.
    *("stages.jft.private_finetune.epochs=6", "gate.max_epsilon=12"),
)
SEEDED = ("seed=7", "registry.model_name=seeded", "budget.data_set=seeded")


@dataclass(frozen=True, kw_only=True)
class Story:
    """Finished runs.

    Args:
        killed: a schedule's, of which a training pod was killed.
        cronjob: of that schedule, as the cluster had it.
        seeded: a `train` with a seed, and its exit code.
        local: what the same `train` measured on this machine, and its exit code.
    """

    killed: PipelineRunResponse
    cronjob: dict
    seeded: PipelineRunResponse
    seeded_code: int
    local: dict[str, Any]


def make_story(site: Site, folder: Path) -> Story:
    """Run all three at once: each would wait for itself more than for the others.

    Args:
        site: where two of them run.
        folder: of the third, on this machine.
    """
    cluster, profile = site.cluster, ("--profile", site.profile_file)
    cluster.more_variables = lambda pod: watched(site, pod)
    options = (*overrides(SCHEDULED), "--cron", "0 3 * * 1", "--deadline", "600")
    words = ("schedule", "create", "weekly", TINY, *options, "--start-within", "30")
    assert command(*words, *profile) == 0
    (cronjob,) = cluster.all("cronjobs")
    job = cluster.fire(cronjob["metadata"]["name"])
    local = start_forked(
        [
            *("python", "-m", "tests.cluster.commands", folder / "result.json"),
            *("train", TINY, *overrides(SEEDED), "--profile", "local"),
        ],
        {"DPTUNE_HOME": str(folder / "home"), "PATH": os.environ["PATH"]},
        folder / "log",
    )
    code = command("train", TINY, *overrides(SEEDED), *profile)
    assert cluster.wait(job), failed_logs(site)
    assert local.wait() == 0, (folder / "log").read_text()[-3000:]
    schedule = Client().get_schedule("weekly")
    return Story(
        killed=_newest(schedule_id=schedule.id),
        cronjob=cronjob,
        seeded=_newest(name="startswith:tiny-"),
        seeded_code=code,
        local=json.loads((folder / "result.json").read_text()),
    )


def witness_of(site: Site, run: str) -> Path:
    """Where the draws of a run's private stage are witnessed."""
    return site.cluster.folder / "witness" / run


def watched(site: Site, pod: dict) -> dict[str, str]:
    """Variables that watch the private stage of runs that are to be killed."""
    labels = pod["metadata"]["labels"]
    if labels.get("step_name") != "train_private_finetune":
        return {}
    run, _, rest = labels["run_name"].partition("-")
    if run == "scheduled":
        return {"WITNESS": str(witness_of(site, run))}
    if run == "twin":
        return {"WITNESS": str(witness_of(site, f"twin-{rest}")), "TWIN": rest}
    return {}


def _newest(**wanted: object) -> PipelineRunResponse:
    (run,) = Client().list_pipeline_runs(sort_by="desc:created", size=1, **wanted).items
    return Client().get_pipeline_run(run.id)


def failed_logs(site: Site) -> str:
    """What pods that failed said last."""
    pods = (p for p in site.cluster.all("pods") if p["status"]["phase"] == "Failed")
    return "\n".join(site.cluster.log(p["metadata"]["name"])[-2000:] for p in pods)


def pods_of(site: Site, run: PipelineRunResponse) -> list[tuple[str, dict]]:
    """Step and pod of a run, in the order of their starts."""
    return [
        (pod["metadata"]["labels"]["step_name"].replace("-", "_"), pod)
        for pod in site.cluster.all("pods")
        if pod["metadata"]["labels"].get("run_id") == str(run.id)
        and "step_name" in pod["metadata"]["labels"]
    ]
