"""The `compare` command: recipes, budgets and seeds on one corpus, cell by cell."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli import account
from cli.faults import write_trace
from cli.printing import say_next, speaker
from cli.runs import (
    CONFIGS,
    FinishedRun,
    budget_place,
    cause_of,
    finished,
    holding,
    open_workspace,
)
from cli.training import print_tables, write_page
from dptune.comparing import (
    Cell,
    CompareConfig,
    Comparison,
    RecipeChoice,
    load_comparison,
)
from dptune.errors import DptuneError
from dptune.reports.comparison import (
    CellResult,
    ComparisonReport,
    StageUsage,
    finite,
)
from dptune.reports.formatting import MISSING, duration, epsilon, number
from dptune.reports.tables import cells_csv, rows_csv, trace_csv
from dptune.workflow.compare import CheckedComparison, check_comparison
from dptune.workflow.preflight import Checked
from infra.pods import run_options
from infra.profiles import Profile, default_profile, read_profile
from infra.source import library_digest
from infra.workspace import current_workspace, data_root, llm_access


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A comparison that was checked.

    Args:
        path: of its file, for the reader.
        review: digest of the project's reviews.
        profile: where cells run.
        checked: what the preflight learned, by name of the cell.
        files: digest of what models are read from, by their settings.
    """

    path: Path
    comparison: Comparison
    review: str
    profile: Profile
    checked: CheckedComparison
    files: Mapping[str, str]
    retrain: bool

    @property
    def cells(self) -> tuple[Cell, ...]:
        """What is trained."""
        return self.comparison.cells

    def plan_of(self, cell: Cell) -> Checked:
        """Return what the preflight learned about a cell."""
        return self.checked.cells[cell.name]

    def key_of(self, cell: Cell) -> str:
        """Name a cell's result."""
        facts = [self.plan_of(cell).fingerprint, self.review, cell.label]
        if files := self.files[cell.config.model.model_dump_json()]:
            facts.append(files)
        return cell.key(*facts, library_digest())


def compare_and_report(
    path: Path, overrides: Sequence[str], *, retrain: bool, plan_only: bool
) -> None:
    """Check all cells, run those that are not finished, and show them side by side.

    Raises:
        ConfigError: something cannot be used; nothing was created.
        DptuneError: some cells failed; the others are reported all the same.
    """
    console = speaker()
    started = time.monotonic()
    with Console(stderr=True).status("checking every cell") as status:
        job = _checked(path, overrides, retrain=retrain)
        status.update("looking for finished cells")
        known = {} if retrain else _finished_cells(job)
    _print_plan(console, job, done=len(known))
    if plan_only:
        say_next(console, f"dptune compare {path}")
        return
    report = _run(console, job, known)
    commands = _next_steps(job, report)
    files = _write(report, commands)
    print_tables(console, report)
    for file in files:
        console.print(f"report  {file}", soft_wrap=True)
    say_next(console, *commands)
    console.print(f"took    {duration(time.monotonic() - started)}", style="dim")
    if report.failed:
        error = DptuneError(
            f"{len(report.failed)} of {len(report.cells)} cells must be run again: "
            + "; ".join(f"{c.name}: {c.failure}" for c in report.failed)
        )
        error.add_note(account.STARTED)
        raise error


def _checked(path: Path, overrides: Sequence[str], *, retrain: bool) -> _Job:
    """Read the file, and check every cell with the project's reviews."""
    from dptune.workflow.prepare_model import base_files_digest
    from steps._reviewing import with_review

    comparison = load_comparison(path, configs=CONFIGS, overrides=overrides)
    profile = read_profile(default_profile())
    digest, cells = "", []
    for cell in comparison.cells:
        config, digest = with_review(profile.applied_to(cell.config))
        cells.append(replace(cell, config=config))
    with current_workspace().work() as folder:
        checked = check_comparison(
            {cell.name: cell.config for cell in cells},
            data_root=data_root(),
            budget=budget_place(again=retrain),
            access=llm_access(),
            folder=folder,
            accelerators=profile.accelerators,
        )
    models = {cell.config.model.model_dump_json(): cell.config.model for cell in cells}
    return _Job(
        path=path,
        comparison=replace(comparison, cells=tuple(cells)),
        review=digest,
        profile=profile,
        checked=checked,
        files={
            name: base_files_digest(model, data_root=data_root())
            for name, model in models.items()
        },
        retrain=retrain,
    )


def _finished_cells(job: _Job) -> dict[int, str]:
    """Find the pipeline runs of cells that were finished before, by number."""
    if not current_workspace().is_set_up:
        return {}
    open_workspace()
    from zenml.client import Client

    found = {}
    for number_, cell in enumerate(job.cells):
        runs = Client().list_pipeline_runs(
            tags=[_tag(job.key_of(cell))],
            status="completed",
            sort_by="desc:created",
            size=1,
        )
        if runs.items:
            found[number_] = str(runs.items[0].id)
    return found


def _tag(key: str) -> str:
    """Return the tag that a cell's pipeline run carries."""
    return f"cell-{key}"


def _run(console: Console, job: _Job, known: Mapping[int, str]) -> ComparisonReport:
    """Run what is not finished, cell by cell, then put all together.

    Raises:
        RunInterruptedException: this process was told to end, and not one cell alone.
    """
    open_workspace()
    from zenml.exceptions import RunInterruptedException

    from pipelines.compare import compare_pipeline
    from pipelines.train import failures
    from steps._figures import comparison_run

    name = job.comparison.config.name
    parent = comparison_run(f"compare-{name}", name)
    runs, broken = dict(known), {}
    clock = _Clock(left=len(job.cells) - len(known))
    for number_, cell in enumerate(job.cells):
        place = (f"cell {number_ + 1} of {len(job.cells)}", "bold")
        if number_ in runs:
            console.print(Text.assemble(place, f" {cell.name}: finished before"))
            continue
        console.print(Text.assemble(place, f" {cell.name}{clock.note()}"))
        try:
            run = _run_cell(job, cell, parent)
        except RunInterruptedException:
            raise
        except Exception as error:  # noqa: BLE001 - the others go on
            broken[number_] = _reason(error)
            reason = Text.assemble(("  failed ", "bold red"), broken[number_])
            console.print(reason)
        else:
            runs[number_] = str(run.response.id)
            console.print(f"  {_spent(run)}", style="dim")
        clock.tick()
    failures.clear()
    try:
        response = compare_pipeline.with_options(
            run_name=f"{name}-{{date}}-{{time}}", tags=[name]
        )(
            plan=json.loads(_planned(job, broken).model_dump_json()),
            runs={str(k): v for k, v in runs.items()},
            parent=parent,
        )
    except Exception as error:  # noqa: BLE001 - the step's own error says more
        raise cause_of(error) from None
    outputs = finished(response).steps["compare"].outputs
    report: ComparisonReport = outputs["comparison"][0].load()
    return report


def _run_cell(job: _Job, cell: Cell, parent: str) -> FinishedRun:
    """Train and attack one cell in a pipeline run of its own.

    Raises:
        PrivacyError: the base model is a version that learnt from the same data set, or
            from another one and has no pass.
        Exception: what its first failed step raised.
    """
    from pipelines.compare import cell_pipeline
    from pipelines.train import failures, step_names
    from steps._lineage import refuse_trained_base

    failures.clear()
    config, checked = cell.config, job.plan_of(cell)
    refuse_trained_base(config, data_root=data_root())
    tracker = {
        "experiment_name": f"compare-{config.name}",
        "tags": {"mlflow.parentRunId": parent},
    }
    key = job.key_of(cell)
    options = run_options(job.profile, step_names(config))
    options["settings"] = {
        **options.get("settings", {}),
        "experiment_tracker.mlflow": tracker,
    }
    name = f"{config.name}-{config.recipe.name}-{key[:8]}-{{date}}-{{time}}"
    with holding(config, checked.fingerprint, job.profile, url=budget_place().url):
        try:
            response = cell_pipeline.with_options(
                run_name=name,
                tags=[config.name, config.recipe.name, _tag(key)],
                **options,
            )(
                config=config.model_dump(mode="json"),
                fingerprint=checked.source_fingerprint,
                label=cell.label,
                retrain=job.retrain,
                review=job.review,
            )
        except Exception as error:  # noqa: BLE001 - it is raised again below
            raise cause_of(error) from None
        return FinishedRun(config=config, response=finished(response))


class _Clock:
    """Guesses how long the cells that are left will take."""

    def __init__(self, *, left: int) -> None:
        self._left = left
        self._done = 0
        self._started = time.monotonic()

    def tick(self) -> None:
        """Count a cell as done."""
        self._left -= 1
        self._done += 1

    def note(self) -> str:
        """Return how much is left; nothing before the first cell is done."""
        if not self._done:
            return ""
        each = (time.monotonic() - self._started) / self._done
        return f", about {duration(each * self._left)} left"


def _reason(error: Exception) -> str:
    """Say why a cell failed, without anything that could hold a record."""
    if isinstance(error, DptuneError):
        return str(error)
    trace = write_trace(current_workspace().root / "logs", error)
    return f"{type(error).__name__}; the trace is in {trace.name} of the logs folder."


def _spent(run: FinishedRun) -> str:
    """Say what the data set has spent so far, in all runs."""
    budget = run.output("settle_budget", "budget")
    privacy = run.config.privacy
    lines = [
        f"ε {epsilon(line.spent)} {line.notion}"
        for line in budget.lines
        if (line.notion, line.relation) == (privacy.notion, privacy.relation)
    ]
    return f"{budget.data_set} has spent {', '.join(lines) or 'nothing'} in all runs"


def _planned(job: _Job, failures: Mapping[int, str]) -> ComparisonReport:
    """Return the comparison without results."""
    config = job.comparison.config
    return ComparisonReport(
        name=config.name,
        title=config.title,
        intro=config.intro,
        baseline=job.comparison.baseline,
        reference=job.comparison.reference,
        cells=tuple(
            CellResult(
                label=cell.label,
                recipe=cell.config.recipe.name,
                target_epsilon=cell.target_epsilon,
                seed=cell.seed,
                failure=failures.get(number_, ""),
                stages=tuple(
                    StageUsage(
                        stage=stage.settings.name, num_steps=stage.num_steps, seconds=0
                    )
                    for stage in job.plan_of(cell).plan.stages
                ),
            )
            for number_, cell in enumerate(job.cells)
        ),
        total_epsilon=finite(job.checked.total_epsilon),
        private_epsilon=finite(job.checked.private_epsilon),
    )


def _print_plan(console: Console, job: _Job, *, done: int) -> None:
    """Print what will be trained and what it costs, one line for recipe and budget."""
    config = job.comparison.config
    console.print(config.title, style="bold")
    table = Table(title="plan", title_justify="left")
    for name in ("recipe", "target ε", "stage", "steps", "noise / C"):
        table.add_column(name)
    for name in ("ε of noisy stages", "nominal ε"):
        table.add_column(name)
    shown = [cell for cell in job.cells if cell.seed == config.seeds[0]]
    for cell in shown:
        plan = job.plan_of(cell).plan
        spent = epsilon(plan.epsilon) if cell.config.recipe.private else MISSING
        for index, stage in enumerate(plan.stages):
            first = index == 0
            table.add_row(
                cell.label if first else "",
                number(cell.target_epsilon) if first else "",
                stage.settings.name,
                str(stage.num_steps),
                number(stage.noise_multiplier),
                spent if first else "",
                epsilon(plan.nominal_epsilon) if first else "",
            )
    console.print(table)
    total, private = job.checked.total_epsilon, job.checked.private_epsilon
    privacy = job.cells[0].config.privacy
    console.print(
        f"{len(job.cells)} cells over {len(config.seeds)} seeds, {done} finished "
        f"before. Together they cost ε {epsilon(total)} {privacy.notion}, those with "
        f"noise ε {epsilon(private)}, all charged to "
        f"{job.cells[0].config.budget.data_set}.",
    )


def _write(report: ComparisonReport, commands: Sequence[str]) -> list[Path]:
    """Write page and tables to the project folder's reports."""
    stem = f"compare-{report.name}"
    page = write_page(stem, report, commands)
    files = {f"{stem}.csv": rows_csv(report), f"{stem}-cells.csv": cells_csv(report)}
    if any(cell.trace for cell in report.cells):
        files[f"{stem}-trace.csv"] = trace_csv(report)
    for name, text in files.items():
        (page.parent / name).write_text(text, encoding="utf-8")
    return [page, *(page.parent / name for name in files)]


def _next_steps(job: _Job, report: ComparisonReport) -> list[str]:
    """Say how to look closer, and how to register the one that did best."""
    lines = [
        "dptune mlflow  (the comparison as one run, its cells below it)",
        "dptune dashboard  (ZenML: every step of every cell)",
    ]
    config = job.comparison.config
    best = _best(report)
    if best is None or not isinstance(config.base, str):
        return lines
    choice = next(c for c in config.recipes if c.name == best.label)
    changes = _changes(config, choice)
    if best.target_epsilon is not None:
        changes["privacy.target_epsilon"] = best.target_epsilon
    sets = " ".join(f"--set '{k}={_inline(v)}'" for k, v in changes.items())
    command = f"dptune train configs/train/{config.base}.yaml {sets}"
    return [*lines, f"{command}  (registers {best.label}; finished stages are kept)"]


def _changes(config: CompareConfig, choice: RecipeChoice) -> dict[str, Any]:
    """Return what a recipe's training has other than its base, by dotted key."""
    changes = {"recipe": choice.recipe, **_flat(config.set), **_flat(choice.set)}
    return {
        key: value
        for key, value in changes.items()
        if key.startswith(f"stages.{choice.recipe}.") or not key.startswith("stages.")
    }


def _best(report: ComparisonReport) -> CellResult | None:
    """Return a cell of the private recipe with the best utility at the first budget."""
    private = [c for c in report.finished if c.target_epsilon is not None and c.utility]
    return min(
        private,
        key=lambda c: (
            c.target_epsilon or 0.0,
            c.utility.nll_per_token if c.utility else 0,
        ),
        default=None,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write nested settings as dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def _inline(value: object) -> str:
    """Write a YAML value in one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n").removesuffix("\n...")
