"""Start a pipeline run, and read what it left."""

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cli import account
from cli.faults import write_trace
from cli.stack import open_profile
from dptune.config import TrainConfig
from dptune.configfile import load_train_config
from dptune.errors import DptuneError, PrivacyError
from dptune.files import locked
from infra.pods import run_options
from infra.profiles import Profile, default_profile, read_profile
from infra.workspace import (
    Workspace,
    configs_folder,
    current_workspace,
    read_budget_key,
)

if TYPE_CHECKING:
    from zenml.models import PipelineRunResponse

    from dptune.workflow.preflight import BudgetPlace, Checked

CONFIGS = configs_folder()
_MOMENT = 3
"""Seconds."""


@dataclass(frozen=True, kw_only=True)
class FinishedRun:
    """The outputs of one finished pipeline run, loaded when asked for."""

    config: TrainConfig
    response: "PipelineRunResponse"

    def output(self, step: str, name: str) -> Any:  # noqa: ANN401 - any report
        """Load one output of one step."""
        return self.response.steps[step].outputs[name][0].load()


def read_config(path: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a training configuration with the repository's recipes and policies."""
    return load_train_config(path, configs=CONFIGS, overrides=overrides)


class NothingToDo(Exception):  # noqa: N818 - an answer, not a fault
    """A finished run did the same on the same data."""


def train_command(path: Path, overrides: Sequence[str] = ()) -> str:
    """Return the command that trains a configuration as it was read."""
    sets = [word for change in overrides for word in ("--set", change)]
    return shlex.join(["dptune", "train", str(path), *sets])


@contextmanager
def _without_kept_corpus() -> Iterator[None]:
    """Remove the corpus that the preflight kept for the first step, at any end."""
    with current_workspace().work() as folder:
        try:
            yield
        finally:
            from dptune.workflow.kept import drop_corpus

            drop_corpus(folder)


@_without_kept_corpus()
def run_training(
    config: TrainConfig,
    *,
    retrain: bool = False,
    profile: str | None = None,
    if_changed: bool = False,
) -> FinishedRun:
    """Check everything that can be checked beforehand, then run the pipeline.

    Args:
        config: of the run.
        retrain: train and spend again.
        profile: where to run; None is the default one.
        if_changed: do nothing if a finished run did the same on the same data.

    Raises:
        NothingToDo: see `if_changed`.
        DptuneError: before anything is created, or from a step, then with the note
            `account.STARTED`.
    """
    from dptune.workflow.preflight import check_run
    from infra.workspace import data_root, llm_access
    from steps._progress import progress_of_many
    from steps._reviewing import read_lists, with_review

    chosen = read_profile(profile or default_profile())
    config, digest = with_review(chosen.applied_to(config))
    place = budget_place(again=retrain)
    with progress_of_many() as tell, current_workspace().work() as folder:
        checked = check_run(
            config,
            data_root=data_root(),
            budget=place,
            access=llm_access(),
            validate=chosen.stack is None,  # elsewhere the first pod's libraries do
            gated=True,
            accelerators=chosen.accelerators,
            lists=read_lists(digest),
            folder=folder,
            keep=chosen.stack is None,  # the first pod reads on another disk
            on_progress=tell,
        )
    show_warnings(checked)
    open_profile(chosen)
    from steps._lost import refuse_lost_store

    refuse_lost_store()
    from pipelines.train import failures, step_names, train_pipeline
    from steps._deleted import refuse_deleted_experiment
    from steps._lineage import refuse_trained_base
    from steps._noting import refuse_foreign_models
    from steps._observing import hooks
    from steps._scheduling import finished_run, work_tag
    from steps._tracking import connect

    refuse_deleted_experiment(connect(), train_pipeline.name)
    refuse_foreign_models(config.registry.model_name)
    refuse_trained_base(config, data_root=data_root())
    tag = work_tag(config, checked.fingerprint)
    if if_changed and (done := finished_run(tag)) is not None:
        raise NothingToDo(f"nothing changed since {done}; nothing was done or spent")

    failures.clear()
    with holding(config, checked.fingerprint, chosen, url=place.url):
        try:
            response = train_pipeline.with_options(
                run_name=f"{config.name}-{config.recipe.name}-{{date}}-{{time}}",
                tags=[config.name, config.recipe.name, tag],
                **hooks({**os.environ, **chosen.environment}),
                **run_options(chosen, step_names(config)),
            )(
                config=config.model_dump(mode="json"),
                fingerprint=checked.source_fingerprint,
                retrain=retrain,
                review=digest,
            )
        except Exception as error:  # noqa: BLE001 - it is raised again below
            cause = cause_of(error)
            if chosen.stack is not None and not isinstance(cause, DptuneError):
                cause = _failed_elsewhere(error)
            cause.add_note(account.STARTED)
        else:
            return FinishedRun(config=config, response=finished(response))
        raise cause  # outside of the handler, so that it keeps what it was raised from


@contextmanager
def holding(
    config: TrainConfig, fingerprint: str, profile: Profile, *, url: str
) -> Iterator[None]:
    """Let one of equal runs be under way here, and give back what a failed one held.

    Equal runs share what is held of the budget, and their stages' folders. Elsewhere a
    run may go on without this process, whose steps give back what they held.

    Args:
        config: of the run.
        fingerprint: of its corpus.
        profile: where it runs.
        url: of the budget store.

    Raises:
        PrivacyError: another process is at the same run; nothing was changed.
    """
    from dptune.workflow.budget import release_budget, run_key

    if profile.stack is not None:
        account.begin(config, fingerprint, url=url)
        yield
        return
    file = current_workspace().runs / f"{run_key(config, fingerprint)[:24]}.lock"
    file.parent.mkdir(exist_ok=True)
    with ExitStack() as held:
        _lock(held, file)
        account.begin(config, fingerprint, url=url)
        try:
            yield
        except Exception:
            release_budget(url, config, fingerprint)
            raise


def _lock(held: ExitStack, file: Path) -> None:
    """Lock a run: workers of one that was killed hold it, too, and end a moment later.

    Raises:
        PrivacyError: another process is at the run.
    """
    try:
        held.enter_context(locked(file, patience=_MOMENT))
    except BlockingIOError:
        raise PrivacyError(
            "equal runs must follow one another, but another process is at this one. "
            "Wait for its end, or set `repetition`."
        ) from None


def _failed_elsewhere(error: Exception) -> DptuneError:
    """Say that a run ended badly in pods, whose errors do not travel."""
    trace = write_trace(current_workspace().root / "logs", error)
    return DptuneError(
        f"the cluster must finish the run, but did not ({type(error).__name__}). The "
        "dashboard shows the step that failed and its log; what this machine saw is "
        f"in {trace}."
    )


def show_warnings(checked: "Checked") -> None:
    """Tell whoever sits here what the data ask for; a log may go elsewhere."""
    for warning in checked.warnings:
        Console(stderr=True, markup=False).print(warning, style="yellow")


def budget_place(*, again: bool = False) -> "BudgetPlace":
    """Say where this project's budget is kept; creates nothing."""
    from dptune.workflow.preflight import BudgetPlace

    workspace = current_workspace()
    return BudgetPlace(
        url=workspace.budget_url,
        key=read_budget_key(workspace),
        again=again,
        runs=workspace.runs,
    )


def open_workspace() -> Workspace:
    """Make the project folder and the default profile's stack active."""
    open_profile(read_profile(default_profile()))
    return current_workspace()


def require_workspace() -> Workspace:
    """Return the workspace of a project that has run before.

    Raises:
        DptuneError: nothing was ever run here.
    """
    workspace = current_workspace()
    profile = read_profile(default_profile())
    if profile.stack is None and not workspace.is_set_up:
        raise DptuneError(
            "nothing was trained in this project yet, so there are no versions. Run "
            "`dptune quickstart` or `dptune train configs/train/<name>.yaml` first, or "
            "go to the project's folder."
        )
    open_profile(profile)
    return workspace


def cause_of(error: Exception) -> BaseException:
    """Return what a step raised, not what the orchestrator made of it."""
    from pipelines.train import failures
    from steps import _tracking

    _tracking.end_runs()
    return failures[0] if failures else error


def finished(response: "PipelineRunResponse | None") -> "PipelineRunResponse":
    """Fetch the run again, with its final status and outputs."""
    from zenml.client import Client

    if response is None:
        raise DptuneError("the orchestrator must run in the foreground, but did not.")
    return Client().get_pipeline_run(response.id)
