"""The `audit` command: a recorded run's steps, or a model trained elsewhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from rich.text import Text

from cli.account import STARTED
from cli.printing import folding_table, speaker
from cli.runs import (
    cause_of,
    finished,
    open_workspace,
    read_config,
    require_workspace,
)
from dptune.attacks.settings import AttackSettings
from dptune.audits.step_report import StepAudit
from dptune.config import PerformanceSettings, TrainConfig
from dptune.errors import ArtifactError, ConfigError, GateFailedError, Problem
from dptune.reports.formatting import number, words
from dptune.workflow.external_audit import ForeignModel

if TYPE_CHECKING:
    from zenml.models import PipelineRunResponse


def audit_recorded(target: str) -> None:
    """Check the engine on the recorded data, plan and ledger of a run.

    Args:
        target: a configuration (its last run), or `MODEL` or `MODEL:VERSION`.

    Raises:
        GateFailedError: a check failed.
        ArtifactError: there is no such run.
    """
    require_workspace()
    run, config = _recorded(target)
    from pipelines.audit import audit_run_pipeline

    response = _run(
        audit_run_pipeline,
        run_id=str(run.id),
        config=config.model_dump(mode="json"),
    )
    audits = [
        response.steps[f"check_{stage.name}"].outputs["step_audit"][0].load()
        for stage in config.recipe.stages
    ]
    _print_checks(audits, title=f"engine on the steps of {run.name}")
    failed = [c.name for a in audits for c in a.checks if not c.passed]
    if failed:
        raise GateFailedError(
            f"the engine does not do what the plan says: {', '.join(failed)}."
        )


def audit_directory(
    model: Path,
    *,
    base: Path | None,
    members: Path | None,
    non_members: Path | None,
    canaries: Path | None,
    max_tokens: int,
) -> None:
    """Attack a model directory with texts.

    Raises:
        ConfigError: something that the attacks need is not given or not there.
    """
    needed = {"--base": base, "--members": members, "--non-members": non_members}
    absent = [
        Problem(path=k, message="must be given.") for k, v in needed.items() if not v
    ]
    if absent:
        raise ConfigError(absent)
    paths = {"base": base, "members": members, "non_members": non_members}
    try:
        foreign = ForeignModel.model_validate(
            {k: p.resolve() for k, p in (paths | {"model": model}).items() if p}
            | {"canaries": canaries and canaries.resolve(), "max_tokens": max_tokens}
        )
    except ValidationError as error:
        message = str(error.errors(include_input=False)[0]["msg"])
        raise ConfigError.at("audit", message) from None
    open_workspace()
    from pipelines.audit import audit_model_pipeline

    response = _run(
        audit_model_pipeline,
        foreign=foreign,
        attacks=AttackSettings(),
        performance=PerformanceSettings(),
    )
    _print_attacks(response)


def _run(pipeline: Any, **parameters: object) -> "PipelineRunResponse":  # noqa: ANN401
    """Run a pipeline in the foreground; errors of ours keep their type."""
    from pipelines.train import failures

    failures.clear()
    try:
        return finished(pipeline(**parameters))
    except Exception as error:  # noqa: BLE001 - it is raised again below
        cause = cause_of(error)
        cause.add_note(STARTED)
    raise cause  # outside of the handler, so that it keeps what it was raised from


def _recorded(target: str) -> tuple["PipelineRunResponse", TrainConfig]:
    """Find the training run that a name stands for."""
    from zenml.client import Client

    runs = Client().list_pipeline_runs(
        pipeline="train", status="completed", sort_by="desc:created", size=200
    )
    name, _, version = target.partition(":")
    wanted = read_config(Path(target)).name if target.endswith(".yaml") else None
    for found in runs.items:
        run = Client().get_pipeline_run(found.id)
        config = TrainConfig.model_validate((run.config.parameters or {})["config"])
        if wanted is not None:
            if config.name == wanted:
                return run, config
            continue
        made = run.steps["register"].outputs["version"][0].load()
        if made.model_name == name and version in ("", made.version):
            return run, config
    raise ArtifactError(
        f"audit must be of a run that is recorded here or of a model directory, got "
        f"{target}. `dptune status` lists runs and versions."
    )


def _print_checks(audits: list[StepAudit], *, title: str) -> None:
    """Print every check, stage by stage."""
    columns = ("check", "verdict", "measured", "limit", "what it is")
    for audit in audits:
        table = folding_table(f"{title}: {audit.stage}", *columns)
        for check in audit.checks:
            table.add_row(
                words(check.name),
                "pass" if check.passed else Text("FAIL", "bold red"),
                number(check.measured),
                number(check.limit),
                check.detail,
            )
        speaker().print(table)


def _print_attacks(response: "PipelineRunResponse") -> None:
    """Print what the attacks found."""
    found = response.steps["attack_texts"].outputs["membership"][0].load()
    columns = ("attack", "AUC", "true positives at 1 % false positives")
    table = folding_table("membership attacks", *columns)
    for signal in (*found.signals, found.blind):
        table.add_row(signal.name, number(signal.auc), number(signal.tpr_at_low_fpr))
    console = speaker()
    console.print(table)
    if "rank_canaries" in response.steps:
        exposure = response.steps["rank_canaries"].outputs["exposure"][0].load()
        planted = [c.exposure for c in exposure.planted()]
        console.print(
            f"mean exposure {number(sum(planted) / len(planted))} bits over "
            f"{len(planted)} canaries (1.44 without a leak)"
        )
