"""What the `budget` commands do."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from dptune.errors import ArtifactError, ConfigError
from dptune.privacy import NeighboringRelation, Notion
from dptune.reports.formatting import epsilon as epsilon_text
from dptune.results import BudgetReport
from infra.workspace import (
    current_workspace,
    data_root,
    ensure_budget_key,
    llm_access,
)

if TYPE_CHECKING:
    from dptune.accounting.store.log import Head
    from dptune.accounting.store.store import BudgetStore

_DELTA = 1e-5
_STALE = timedelta(minutes=30)
"""Longer than any block takes: who is silent for so long was perhaps killed."""


def show_command(delta: float) -> None:
    """Print every budget."""
    from dptune.accounting.accountants import check_delta

    check_delta(delta)
    console = Console(highlight=False)
    show_budgets(console, delta=delta)
    stale = _show_open_runs(console)
    if stale:
        _next(console, f"dptune budget release {stale}  (if it will not resume)")
    else:
        _next(console, "dptune budget history  (every run on the data)")


def show_budgets(console: Console, *, delta: float = _DELTA) -> None:
    """Print what every data set may spend and has spent."""
    from dptune.accounting.store.summaries import budgets
    from dptune.gates.origin import counts
    from dptune.workflow.attempts import attempts_on

    with _find() or nullcontext() as store:
        reports = budgets(store, delta=delta) if store else []
        attempts = [attempts_on(store, r.data_set) if store else None for r in reports]
    console.print(_budget_table(reports))
    lost = _lost()
    for problem in lost:
        console.print(f"[bold red]lost[/] {problem}: see `budget verify`, and restore")
    if not reports and not lost:
        console.print("nothing was spent or granted yet", style="dim")
    for report, counted in zip(reports, attempts, strict=True):
        if counted is not None:
            console.print(counts(counted), style="dim")
        for sweep, trials in report.sweeps.items():
            console.print(
                f"{report.data_set}: sweep {sweep} drew {trials} trials", style="dim"
            )


def _show_open_runs(console: Console) -> str | None:
    """Name runs that hold budget; return the one that has been silent longest."""
    from dptune.accounting.store.summaries import open_runs

    with _find() or nullcontext() as store:
        found = open_runs(store) if store else []
    now, stale = datetime.now(tz=UTC), None
    for run in sorted(found, key=lambda r: r.heard_at):
        held, silent = run.reservation, now - run.heard_at
        drawn = held.spent.count(Notion.RECORD)
        planned = held.planned.count(Notion.RECORD)
        console.print(
            f"open: {held.id}, {held.recipe} on {held.data_set}, {drawn} of {planned} "
            f"mechanisms drawn, last heard of {_ago(silent)} ago",
            soft_wrap=True,
        )
        if silent < _STALE:
            continue
        stale = stale or held.id
        console.print(
            "  silent: if its process is gone, the same `train` command continues it, "
            f"or `dptune budget release {held.id}` gives back what it holds",
            style="yellow",
            soft_wrap=True,
        )
    return stale


def _ago(time: timedelta) -> str:
    """Round a time to what a person wants to know."""
    minutes = max(0, round(time.total_seconds() / 60))
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"


def grant_command(
    data_set: str,
    *,
    epsilon: float,
    delta: float,
    notion: Notion,
    relation: NeighboringRelation | None,
    reason: str,
) -> None:
    """Grant a budget."""
    from dptune.accounting.certificates import check_relation
    from dptune.accounting.store.allowances import Grant
    from dptune.accounting.store.store import BudgetStore
    from dptune.configfile import validate
    from dptune.settings import BudgetSettings

    settings = validate(BudgetSettings, {"data_set": data_set})
    made = Grant(
        data_set=settings.data_set,
        notion=notion,
        relation=check_relation(notion, relation),
        epsilon=epsilon,
        delta=delta,
    )
    workspace = current_workspace()
    workspace.root.mkdir(parents=True, exist_ok=True)
    with BudgetStore.open(workspace.budget_url) as store:
        store.grant(made, reason=reason)
    console = Console(highlight=False)
    console.print(f"{data_set} may spend ε {epsilon:g}, {made.label}")
    _next(console, "dptune budget show")


def reserve_command(path: Path, overrides: Sequence[str]) -> None:
    """Hold the cost of a run."""
    from cli.runs import budget_place, read_config, train_command
    from dptune.workflow.budget import reserve_budget
    from dptune.workflow.ingest import read_corpus
    from dptune.workflow.preflight import check_run
    from steps._reviewing import with_review

    config, _ = with_review(read_config(path, overrides))
    workspace = current_workspace()
    checked = check_run(
        config,
        data_root=data_root(),
        budget=budget_place(),
        access=llm_access(),
        folder=workspace.work,
    )
    corpus = read_corpus(
        config.data,
        data_root=data_root(),
        expected=checked.fingerprint,
        folder=workspace.work,
    )
    held = reserve_budget(
        config,
        corpus,
        checked.plan,
        url=workspace.budget_url,
        key=ensure_budget_key(workspace),
    )
    console = Console(highlight=False)
    console.print(f"reservation {held.id} on {held.data_set}, {held.num_units:,} units")
    _next(console, f"{train_command(path, overrides)}  (spends it)")
    _next(console, f"dptune budget release {held.id}  (gives it back)")


def count_command(
    path: Path, overrides: Sequence[str], *, noise_multiplier: float
) -> None:
    """Release the number of units, and say what to write into the configuration."""
    from cli.runs import read_config
    from dptune.configfile import validate
    from dptune.data.public_units import ReleasedUnits
    from dptune.workflow.ingest import read_corpus
    from dptune.workflow.planned_units import release_units

    config = read_config(path, overrides)
    asked = {"number": 1, "noise_multiplier": noise_multiplier}
    validate(ReleasedUnits, asked)  # before anything is read or spent
    workspace = current_workspace()
    found = release_units(
        config,
        read_corpus(config.data, data_root=data_root(), folder=workspace.work),
        noise_multiplier=noise_multiplier,
        folder=workspace.runs,
        url=workspace.budget_url,
        key=ensure_budget_key(workspace),
    )
    console = Console(highlight=False)
    console.print(
        f"write into {path}, under data:\n"
        f"  public_units: {{number: {found.number}, "
        f"noise_multiplier: {found.noise_multiplier:g}}}",
        soft_wrap=True,
    )
    _next(console, f"dptune calibrate {path}")


def admit_loss_command(reason: str) -> None:
    """Put on record that the store does not know all that was spent."""
    from dptune.workflow.attempts import admit_lost_store
    from steps._lost import lost_heads

    runs = current_workspace().runs
    with _require() as store:
        heads = tuple(lost_heads().values()) if _has_registry() else ()
        loss = admit_lost_store(store, runs=runs, heads=heads, reason=reason)
    console = Console(highlight=False)
    console.print(
        f"on record: {loss.charges} charges of journals and the entries that paid for "
        f"{len(loss.heads)} versions are lost"
    )
    _next(console, "dptune budget show")


def release_command(reservation: str) -> None:
    """Give back what a run holds."""
    with _require() as store:
        store.release(reservation)
    console = Console(highlight=False)
    console.print(f"reservation {reservation[:40]} holds nothing any more")
    _next(console, "dptune budget show")


def history_command(data_set: str | None) -> None:
    """List reservations."""
    from dptune.accounting.store.summaries import history

    table = Table(title="runs that touched the data", title_justify="left")
    columns = ("reservation", "data set", "recipe", "purpose", "units", "status")
    for column in (*columns, "mechanisms drawn", "held"):
        table.add_column(column, overflow="fold")
    with _find() or nullcontext() as store:
        runs = history(store, data_set=data_set) if store else []
    for held in runs:
        purpose = f"{held.purpose} {held.sweep}".strip()
        table.add_row(
            held.id,
            held.data_set,
            held.recipe,
            purpose,
            f"{held.num_units:,}",
            held.status,
            str(held.spent.count(Notion.RECORD)),
            str(held.committed.count(Notion.RECORD)),
        )
    console = Console(highlight=False)
    console.print(table)
    _next(console, "dptune budget verify")


def export_command(file: Path) -> None:
    """Write the log to a file."""
    from dptune.accounting.store.summaries import export

    with _require() as store:
        content = export(store)
    if file.exists():
        raise ConfigError.at("FILE", f"must not exist, got {file.name}.")
    try:
        file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        message = f"must be writable, got {error.strerror}."
        raise ConfigError.at("FILE", message) from None
    console = Console(highlight=False)
    console.print(f"{content['head']['sequence']} entries written to {file}")
    _next(console, f"dptune budget verify --head {file}")


def verify_command(heads: Sequence[Path]) -> None:
    """Verify the store; exit code 1 if something is wrong."""
    from dptune.accounting.store.verify import verify

    known = [_read_head(file) for file in heads]
    with _require() as store:
        found = verify(store, heads=known)
    console = Console(highlight=False)
    console.print(
        f"{found.num_entries} entries, {found.num_units:,} units, "
        f"{found.num_figures} figures computed again"
    )
    for finding in found.findings:
        console.print(f"[bold red]wrong[/] {finding.message}", soft_wrap=True)
    if not found.success:
        _next(console, "restore the store from a backup; grant nothing until then")
        raise typer.Exit(1)
    console.print(f"all as written; head {found.head.sequence} {found.head.hash[:16]}")
    _next(console, "dptune budget export FILE  (keep the head elsewhere)")


def _read_head(file: Path) -> "Head":
    """Read an exported head."""
    from dptune.accounting.store.summaries import exported_head

    try:
        return exported_head(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        message = f"must be a file that can be read, got {file.name}."
        raise ConfigError.at("--head", message) from None


def _budget_table(reports: Sequence[BudgetReport]) -> Table:
    """Lay out one line per data set and notion."""
    table = Table(title="budget per data set, all runs", title_justify="left")
    columns = ("data set", "units", "runs (open)", "notion", "allowed ε", "spent ε")
    for column in (*columns, "with open runs", "left", "tuning ε", "δ"):
        table.add_column(column, overflow="fold")
    for report in reports:
        for number, line in enumerate(report.lines):
            first = number == 0
            table.add_row(
                report.data_set if first else "",
                f"{report.num_units:,}" if first else "",
                f"{report.num_runs} ({report.num_open})" if first else "",
                f"{line.notion}, {line.relation.replace('_', ' ')}",
                "-" if line.allowance is None else f"{line.allowance:g}",
                epsilon_text(line.spent),
                epsilon_text(line.committed),
                "-" if line.left is None else epsilon_text(line.left),
                epsilon_text(line.tuning),
                f"{line.delta:g}",
            )
        table.add_section()
    return table


def _lost() -> list[str]:
    """Say what the store should hold of what was spent, and does not."""
    if _has_registry():
        from steps._lost import what_is_lost

        return what_is_lost()
    from dptune.workflow.attempts import missing_from

    with _find() or nullcontext() as store:
        problem = missing_from(store, runs=current_workspace().runs)
    return [problem] if problem else []


def _has_registry() -> bool:
    """Whether there are registered versions to ask; opens the project if so."""
    from cli.runs import require_workspace

    if not current_workspace().zenml.is_dir():
        return False
    require_workspace()
    return True


def _find() -> "BudgetStore | None":
    """Open the project's store if there is one."""
    from dptune.accounting.store.store import BudgetStore

    return BudgetStore.find(current_workspace().budget_url)


def _require() -> "BudgetStore":
    """Open the project's store.

    Raises:
        ArtifactError: nothing was ever granted or spent.
    """
    store = _find()
    if store is None:
        raise ArtifactError(
            "there is no budget store yet: nothing was granted or spent. Run "
            "`dptune budget grant` or `dptune train` first."
        )
    return store


def _next(console: Console, line: str) -> None:
    """Say what one will want now."""
    console.print(f"next    {line}", style="dim")
