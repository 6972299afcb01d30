"""Runs of the whole pipeline that all tests look at: small ones, and the quickstart."""

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
    "data.source.seed=6",  # texts keep the name of the data set that they had first
)
QUICKSTART = REPOSITORY / "configs" / "train" / "quickstart.yaml"
UNPROTECTED = ("recipe=no_dp", "budget.data_set=quickstart")
NIGHTLY = (
    *("recipe=jft", "budget.data_set=quickstart"),
    # Room for a block that is paid for twice, below the 2 that its gate asks for.
    *("performance.block_size=2", "privacy.target_epsilon=1.8"),
)
LOST = "settle_budget"
SEEDED = ("seed=7", "registry.model_name=seeded", "budget.data_set=seeded")


@dataclass(frozen=True, kw_only=True)
class Killed:
    """The first run of a schedule, of which a training pod was killed.

    Args:
        run: finished.
        schedule: its name.
        cronjob: of that schedule, as the cluster had it.
        data_set: of this run alone.
    """

    run: PipelineRunResponse
    schedule: str
    cronjob: dict
    data_set: str


@dataclass(frozen=True, kw_only=True)
class Story:
    """Finished runs.

    Args:
        killed: a schedule's.
        seeded: a `train` with a seed, and its exit code. A pod was lost after its step,
            `LOST`, had ended.
        local: what the same `train` measured on this machine, and its exit code.
    """

    killed: Killed
    seeded: PipelineRunResponse
    seeded_code: int
    local: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Both finished runs of the quickstart.

    Args:
        unprotected: a `train`, and its exit code.
        killed: a schedule's, of the protected one.
    """

    unprotected: PipelineRunResponse
    unprotected_code: int
    killed: Killed


def make_story(site: Site, folder: Path) -> Story:
    """Run all three at once: each would wait for itself more than for the others.

    Args:
        site: where two of them run.
        folder: of the third, on this machine.
    """
    cronjob = _schedule(site, "weekly", TINY, SCHEDULED)
    job = site.cluster.fire(cronjob["metadata"]["name"])
    local = start_forked(
        [
            *("python", "-m", "tests.cluster.commands", folder / "result.json"),
            *("train", TINY, *overrides(SEEDED), "--profile", "local"),
        ],
        {"DPTUNE_HOME": str(folder / "home"), "PATH": os.environ["PATH"]},
        folder / "log",
    )
    code = command("train", TINY, *overrides(SEEDED), "--profile", site.profile_file)
    killed = _ended(site, "weekly", cronjob, job, data_set="scheduled")
    assert local.wait() == 0, (folder / "log").read_text()[-3000:]
    return Story(
        killed=killed,
        seeded=_newest(name="startswith:tiny-"),
        seeded_code=code,
        local=json.loads((folder / "result.json").read_text()),
    )


def make_quickstart(site: Site) -> Quickstart:
    """Run both, one after the other as `run.py quickstart` does."""
    profile = ("--profile", site.profile_file)
    code = command("train", QUICKSTART, *overrides(UNPROTECTED), *profile)
    unprotected = _newest(name="startswith:quickstart-")
    cronjob = _schedule(site, "nightly", QUICKSTART, NIGHTLY)
    job = site.cluster.fire(cronjob["metadata"]["name"])
    return Quickstart(
        unprotected=unprotected,
        unprotected_code=code,
        killed=_ended(site, "nightly", cronjob, job, data_set="quickstart"),
    )


def _schedule(site: Site, name: str, config: Path, changes: tuple[str, ...]) -> dict:
    """Create a schedule; what the cluster has of it."""
    when = ("--cron", "0 3 * * 1", "--deadline", "600", "--start-within", "30")
    words = ("schedule", "create", name, config, *overrides(changes), *when)
    assert command(*words, "--profile", site.profile_file) == 0
    return site.cluster.all("cronjobs")[-1]


def _ended(
    site: Site, schedule: str, cronjob: dict, job: dict, *, data_set: str
) -> Killed:
    """Wait for a schedule's first run."""
    assert site.cluster.wait(job), failed_logs(site)
    return Killed(
        run=_newest(schedule_id=Client().get_schedule(schedule).id),
        schedule=schedule,
        cronjob=cronjob,
        data_set=data_set,
    )


def witness_of(site: Site, data_set: str) -> Path:
    """Where the draws of a run's private stage are witnessed."""
    return site.cluster.folder / "witness" / data_set


def watched(site: Site, pod: dict) -> dict[str, str]:
    """Variables of pods that are watched, or lost."""
    labels = pod["metadata"]["labels"]
    step = labels.get("step_name")
    run, _, rest = labels.get("run_name", "").partition("-")
    if step == LOST and run == "tiny":
        return {"LOST": str(site.cluster.folder / "lost")}
    if step != "train_private_finetune":
        return {}
    if run == "twin":
        return {"WITNESS": str(witness_of(site, f"twin-{rest}")), "TWIN": rest}
    is_killed = run in ("scheduled", "quickstart")  # its data set is called so too
    return {"WITNESS": str(witness_of(site, run))} if is_killed else {}


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


def codes_of(site: Site, run: PipelineRunResponse) -> dict[str, list[int]]:
    """Exit codes of all pods of each step, in the order of their starts."""
    codes: dict[str, list[int]] = {}
    for name, pod in pods_of(site, run):
        (status,) = pod["status"]["containerStatuses"]
        codes.setdefault(name, []).append(status["state"]["terminated"]["exitCode"])
    return codes


def container(pod: dict) -> dict:
    """The only one."""
    (only,) = pod["spec"]["containers"]
    return only


def is_heavy(step: str) -> bool:
    """Whether a step is one of those that accelerators are for."""
    return step.startswith("train_") or step == "attack"
