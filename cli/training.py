"""The commands `train` and `quickstart`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from cli.account import STARTED
from cli.printing import say_next, speaker
from cli.runs import CONFIGS, FinishedRun, NothingToDo, read_config, run_training
from dptune.errors import DptuneError, GateFailedError
from infra.alerts import alert_refusal
from infra.workspace import current_workspace

if TYPE_CHECKING:  # drawing takes long to import, and a run may end before it
    from dptune.gates.decision import GateDecision
    from dptune.reports.comparison import CellResult, ComparisonReport


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
    console = speaker()
    config = read_config(path, overrides)
    console.print(f"{config.name} with recipe {config.recipe.title}", style="bold")
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
    from dptune.gates.decision import GateOutcome
    from dptune.reports.comparison import ComparisonReport
    from steps._deciding import reasons

    cell = cell_of(run, label=config.recipe.title)
    model_name = config.registry.model_name
    commands = next_steps(model_name)
    report = ComparisonReport(
        name=f"{config.name}-{config.recipe.name}-v{cell.version}",
        title=f"{config.name}: {config.recipe.title}",
        intro=config.recipe.reference,
        cells=(cell,),
    )
    print_tables(console, report)
    if cell.decision is not None:
        say_remedies(console, cell.decision)
    console.print(f"report  {write_page(report.name, report, commands)}")
    say_next(console, *commands)
    if cell.decision is not None and cell.decision.outcome is not GateOutcome.PASS:
        raise GateFailedError(
            f"version {cell.version} of {model_name}: {cell.decision.outcome}. "
            f"{reasons(cell.decision)}"
        )


def cell_of(run: FinishedRun, *, label: str) -> "CellResult":
    """Read what a finished run measured, registered and decided.

    Args:
        run: of the pipeline `train`.
        label: names it beside others.
    """
    from dptune.reports.card.statements import GateStatement
    from dptune.reports.comparison import CellResult
    from dptune.workflow.assess import nominal_interval

    config, plan = run.config, run.output("calibrate", "plan")
    # The gate's own, unless the champion was moved between: then it was made again.
    decision, card = (
        run.output("promote", "decision"),
        run.output("gate", "privacy_card"),
    )
    cell = CellResult(
        label=label,
        recipe=config.recipe.name,
        target_epsilon=plan.target_epsilon,
        seed=config.repetition,
        notion=plan.notion,
        relation=plan.relation,
        version=run.output("register", "version").version,
        utility=run.output("attack", "utility"),
        exposure=run.output("attack", "exposure"),
        membership=run.output("attack", "membership"),
        decision=decision,
        card=card.model_copy(update={"gate": GateStatement.of(decision)}),
        nominal_interval=nominal_interval(plan, run.output("detect", "detection")),
    )
    return cell.with_stages(
        run.output(f"train_{stage.name}", "stage_report")
        for stage in config.recipe.stages
    )


def write_page(
    stem: str, report: "ComparisonReport", next_steps: Sequence[str]
) -> Path:
    """Write the page of a comparison to the project folder, and return its path.

    Args:
        stem: of the file's name.
        report: one training, or several.
        next_steps: what a reader will want to do now.
    """
    from dptune.reports.pages.comparison import compare_page
    from dptune.reports.render import page_html

    folder = current_workspace().reports
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{stem}.html"
    page = page_html(compare_page(report, next_steps=next_steps))
    file.write_text(page, encoding="utf-8")
    return file


def print_tables(console: Console, report: "ComparisonReport") -> None:
    """Print the tables of a comparison's page in the terminal."""
    from dptune.reports.comparison import comparison_rows
    from dptune.reports.tables import comparison_tables

    for block in comparison_tables(report, comparison_rows(report)):
        table = Table()
        for name in block.columns:
            table.add_column(name, overflow="fold")
        for _, rows in block.parts():
            table.add_section()
            for row in rows:
                table.add_row(*(c if isinstance(c, str) else c.text for c in row))
        console.print(table)


def say_remedies(console: Console, decision: "GateDecision") -> None:
    """Say what would change each criterion that was not met, one a line."""
    from dptune.reports.pages.decisions import change_bullets

    remedies = change_bullets(decision)
    for remedy in remedies.items if remedies else ():
        console.print(f"to pass {remedy}", markup=False, soft_wrap=True)


def next_steps(model_name: str, *, policy: str | None = None) -> list[str]:
    """List the commands that a user will want now.

    Args:
        model_name: that was registered.
        policy: of the quickstart, which leads on to a stricter one and to text of one's
            own; None for what somebody trains by a configuration of theirs.
    """
    start = Path("configs/train/own_text.yaml")
    mine = start.with_name("mine.yaml")
    stricter = f"dptune gate {model_name} --policy default  (decide again, stricter)"
    copy = f"cp {start} {mine}  (edit, train)"
    if not start.is_file():
        copy = f"dptune init  (makes {start}, to copy, edit and train)"
    return [
        "dptune status  (champion, challengers, what was spent)",
        *([] if policy in {None, "default"} else [stricter]),
        "dptune dashboard  (ZenML: every step, its artifacts and metadata)",
        "dptune mlflow  (MLflow: runs, models, epsilon as a metric)",
        # It would overwrite what was edited.
        *([] if policy is None or mine.exists() else [copy]),
    ]


_RECIPES = ("no_dp", "jft")
_INTRO = (
    "Invented customer-service dialogues with planted canaries, fine-tuned twice from "
    "one model that was pre-trained on public text: without protection, and by Just "
    "Fine-tune Twice. Every verdict below follows from what was measured."
)


def run_quickstart(*, seed: int, retrain: bool) -> None:
    """Train without and with protection, and show both side by side.

    Args:
        seed: decides the invented corpus; noise and canaries stay secret.
        retrain: train again instead of using finished runs.

    Raises:
        GateFailedError: the protected model was refused.
    """
    console = speaker()
    started = time.monotonic()
    runs = [_run(console, recipe, seed=seed, retrain=retrain) for recipe in _RECIPES]
    from dptune.reports.comparison import ComparisonReport

    cells = tuple(cell_of(run, label=run.config.recipe.title) for run in runs)
    last = runs[-1].config
    commands = next_steps(last.registry.model_name, policy=last.gate.name)
    report = ComparisonReport(
        name="quickstart" if seed == 0 else f"quickstart-seed-{seed}",
        title="One corpus, two recipes",
        intro=_INTRO,
        baseline=cells[0].label,
        cells=cells,
    )
    console.print()
    print_tables(console, report)
    for cell in cells:
        failed = cell.decision.failed() if cell.decision else ()
        why = f"({', '.join(c.name for c in failed)})" if failed else ""
        console.print(f"{cell.label}: {cell.outcome} {why}", style="bold")
    console.print(f"\nreport  {write_page(report.name, report, commands)}")
    say_next(console, *commands)
    console.print(f"took    {time.monotonic() - started:.0f} s", style="dim")
    if cells[-1].outcome != "PASS":
        raise GateFailedError(
            f"the protected model was not promoted ({cells[-1].outcome}); the "
            "report says why. Chance can do that: the noise is fresh in every run."
        )


def _run(console: Console, recipe: str, *, seed: int, retrain: bool) -> FinishedRun:
    """Run the quickstart's configuration with one recipe."""
    config = read_config(
        CONFIGS / "train" / "quickstart.yaml",
        [f"recipe={recipe}", f"data.source.seed={seed}"],
    )
    console.print(f"\n{config.recipe.title} ({recipe})", style="bold")
    return run_training(config, retrain=retrain)
