"""The `train` command."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cli.runs import STARTED, FinishedRun, NothingToDo, read_config, run_training
from dptune.errors import DptuneError, GateFailedError
from infra.alerts import alert_refusal
from infra.workspace import current_workspace

if TYPE_CHECKING:  # drawing takes long to import, and a run may end before it
    from dptune.gates.decision import GateDecision
    from dptune.reports.page import RunSummary
    from dptune.results import RegisteredVersion


def train_and_report(
    path: Path,
    overrides: Sequence[str],
    *,
    retrain: bool,
    profile: str | None = None,
    if_changed: bool = False,
) -> None:
    """Run one configuration, print the result, and fail if the gate refused.

    Args:
        path: of the configuration.
        overrides: `KEY=VALUE` pairs.
        retrain: train and spend again.
        profile: where to run; None is the default one.
        if_changed: do nothing if a finished run did the same on the same data; nobody
            watches, so that refusals are alerts.

    Raises:
        GateFailedError: the gate's outcome is not PASS.
    """
    console = Console(highlight=False)
    config = read_config(path, overrides)
    console.print(f"[bold]{config.name}[/] with recipe {config.recipe.title}")
    try:
        run = run_training(
            config, retrain=retrain, profile=profile, if_changed=if_changed
        )
    except NothingToDo as answer:
        console.print(str(answer))
        return
    except DptuneError as error:
        if if_changed and STARTED not in getattr(error, "__notes__", ()):
            alert_refusal(error, run=f"{config.name}, {config.recipe.name}")
        raise
    summary = summarize(run, title=config.recipe.title)
    version, decision = _outcome(run)
    name = f"{config.name}-{config.recipe.name}-v{version.version}"
    report = write_report(
        name,
        title=f"{config.name}: {config.recipe.title}",
        runs=[summary],
        intro=config.recipe.reference,
        next_steps=next_steps(version.model_name),
    )
    print_comparison(console, [summary])
    console.print(f"report  {report}")
    for line in next_steps(version.model_name):
        console.print(f"next    {line}", style="dim")
    from dptune.gates.decision import GateOutcome
    from steps._deciding import reasons

    if decision.outcome is not GateOutcome.PASS:
        raise GateFailedError(
            f"version {version.version} of {version.model_name}: {decision.outcome}. "
            f"{reasons(decision)}"
        )


def summarize(run: FinishedRun, *, title: str) -> "RunSummary":
    """Read what a finished run measured."""
    from dptune.reports.page import RunSummary

    version, decision = _outcome(run)
    utility, exposure = (
        run.output("attack", "utility"),
        run.output("attack", "exposure"),
    )
    classifies = utility.accuracy is not None
    return RunSummary(
        title=title,
        model_version=version.version,
        recipe=run.config.recipe.name,
        perplexity=None if classifies else utility.perplexity,
        base_perplexity=None if classifies else utility.base_perplexity,
        accuracy=utility.accuracy,
        base_accuracy=utility.base_accuracy,
        exposure=None if exposure.not_measurable else exposure,
        membership=run.output("attack", "membership"),
        decision=decision,
        card=run.output("gate", "privacy_card"),
    )


def write_report(
    name: str,
    *,
    title: str,
    runs: Sequence["RunSummary"],
    intro: str,
    next_steps: Sequence[str],
) -> Path:
    """Write the self-contained HTML report and return its path."""
    from dptune.reports.page import comparison_page

    folder = current_workspace().reports
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.html"
    page = comparison_page(title, runs, intro=intro, next_steps=next_steps)
    file.write_text(page, encoding="utf-8")
    return file


def print_comparison(console: Console, runs: Sequence["RunSummary"]) -> None:
    """Print the comparison table of the report in the terminal."""
    from dptune.reports.page import summary_rows

    table = Table(show_lines=False)
    table.add_column("")
    for run in runs:
        table.add_column(run.title, overflow="fold")
    group = ""
    for row in summary_rows(runs):
        if row.group != group:
            group = row.group
            table.add_section()
        table.add_row(row.metric, *row.values)
    console.print(table)


def next_steps(model_name: str) -> list[str]:
    """List the commands that a user will want now."""
    return [
        "python run.py status  (champion, challengers, what was spent)",
        f"python run.py gate {model_name} --policy default  (decide again, stricter)",
        "python run.py dashboard  (ZenML: every step, its artifacts and metadata)",
        "python run.py mlflow  (MLflow: runs, models, epsilon as a metric)",
        "cp configs/train/own_text.yaml configs/train/mine.yaml  (edit, train)",
    ]


def _outcome(run: FinishedRun) -> "tuple[RegisteredVersion, GateDecision]":
    """Load the registered version and the decision on it."""
    return run.output("register", "version"), run.output("gate", "decision")
