"""The `budget` commands: what data sets may spend, have spent, and who spent it."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from cli.options import ConfigPath, Overrides, Reason
from cli.printing import folding_table, say_next, speaker
from dptune.errors import ArtifactError, ConfigError
from dptune.privacy import NeighboringRelation, Notion
from infra.workspace import current_workspace, data_root, ensure_budget_key, llm_access

if TYPE_CHECKING:  # takes long to import, and --help is to be quick
    from dptune.accounting.store.log import Head
    from dptune.accounting.store.reservations import Reservation
    from dptune.accounting.store.store import BudgetStore
    from dptune.results import BudgetReport

DataSet = Annotated[
    str, typer.Argument(help="The name under budget.data_set.", show_default=False)
]
Delta = Annotated[
    float, typer.Option(help="Delta of figures that nothing was granted for.")
]
_DELTA = 1e-5
_STALE = timedelta(minutes=30)
"""Longer than any block takes: who is silent for so long was perhaps killed."""

_HELP = """What every run ever spent on each privacy unit, and what is left.

The budget belongs to the data set, over all runs: scheduled ones, repeated ones, trials
of a sweep. A run holds its whole cost before it starts, pays for every block before its
noise is drawn, and gives back the rest. Epsilons are composed, never added.

Begin with `dptune budget grant <data set> --epsilon 9 --delta 1e-5`, which pays for one
run of `own_text.yaml`: epsilon 8, and a spare block in case it is killed.
"""


def build_budget_app() -> typer.Typer:
    """Build the group of commands."""
    app = typer.Typer(
        help=_HELP,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    for command in (show, grant, count, reserve, release, history, export, verify):
        app.command()(command)
    app.command(name="admit-loss")(admit_loss)
    return app


def show(delta: Delta = _DELTA) -> None:
    """Show what every data set may spend, has spent, and went into tuning."""
    from dptune.accounting.accountants import check_delta

    check_delta(delta)
    console = speaker()
    show_budgets(console, delta=delta)
    if stale := _show_open_runs(console):
        say_next(console, f"dptune budget release {stale}  (if it will not resume)")
    else:
        say_next(console, "dptune budget history  (every run on the data)")


def grant(  # noqa: PLR0917 - typer passes them by name
    data_set: DataSet,
    epsilon: Annotated[float, typer.Option(help="What its worst unit may lose.")],
    delta: Annotated[float, typer.Option(help="Below 1 / number of units.")],
    notion: Annotated[Notion, typer.Option(help="What is protected.")] = Notion.RECORD,
    relation: Annotated[
        NeighboringRelation | None,
        typer.Option(help="Which data are neighbors; the notion's usual by default."),
    ] = None,
    adaptive: Annotated[
        bool,
        typer.Option(
            help="It holds too where rate, noise or steps of a run are chosen for what "
            "earlier runs released, by a privacy filter. The same runs take mostly a "
            "fifth to two fifths more."
        ),
    ] = False,
    reason: Reason = "",
) -> None:
    """Set what a data set may spend, in place of an earlier grant of this notion."""
    from dptune.accounting.certificates import check_relation
    from dptune.accounting.store.allowances import Grant
    from dptune.accounting.store.store import BudgetStore
    from dptune.accounting.store.summaries import budgets
    from dptune.configfile import validate
    from dptune.settings import BudgetSettings

    settings = validate(BudgetSettings, {"data_set": data_set})
    made = Grant(
        data_set=settings.data_set,
        notion=notion,
        relation=check_relation(notion, relation),
        epsilon=epsilon,
        delta=delta,
        adaptive=adaptive,
    )
    workspace = current_workspace()
    workspace.make()
    with BudgetStore.open(workspace.budget_url) as store:
        store.grant(made, reason=reason)
        (report,) = budgets(store, delta=delta, only=data_set)
    console = speaker()
    console.print(f"{data_set} may spend ε {epsilon:g}, {made.label}")
    console.print(_budget_table(report))
    if any(x.allowance is not None and x.spent > x.allowance for x in report.lines):
        console.print("more was spent than is allowed: what comes is refused")
    say_next(console, "dptune budget show")


def count(
    config: ConfigPath,
    noise_multiplier: Annotated[
        float, typer.Option(help="Stddev of the noise; one unit moves the count by 1.")
    ],
    overrides: Overrides = None,
) -> None:
    """Count privacy units under noise, once, for `data.public_units`; this spends."""
    from cli.runs import read_config
    from dptune.configfile import validate
    from dptune.data.public_units import ReleasedUnits
    from dptune.workflow.ingest import read_corpus
    from dptune.workflow.planned_units import release_units

    settings = read_config(config, overrides or [])
    asked = {"number": 1, "noise_multiplier": noise_multiplier}
    validate(ReleasedUnits, asked)  # before anything is read or spent
    workspace = current_workspace()
    with workspace.work() as folder:
        corpus = read_corpus(settings.data, data_root=data_root(), folder=folder)
    found = release_units(
        settings,
        corpus,
        noise_multiplier=noise_multiplier,
        folder=workspace.runs,
        url=workspace.budget_url,
        key=ensure_budget_key(workspace),
    )
    console = speaker()
    console.print(
        f"write into {config}, under data:\n"
        f"  public_units: {{number: {found.number}, "
        f"noise_multiplier: {found.noise_multiplier:g}}}",
        soft_wrap=True,
    )
    say_next(console, f"dptune calibrate {config}")


def reserve(config: ConfigPath, overrides: Overrides = None) -> None:
    """Hold the cost of a run now; the same `train` command finds it later."""
    from cli.runs import budget_place, read_config, train_command
    from dptune.workflow.budget import reserve_budget
    from dptune.workflow.ingest import read_corpus
    from dptune.workflow.preflight import check_run
    from steps._reviewing import with_review

    settings, _ = with_review(read_config(config, overrides or []))
    workspace = current_workspace()
    with workspace.work() as folder:
        checked = check_run(
            settings,
            data_root=data_root(),
            budget=budget_place(),
            access=llm_access(),
            folder=folder,
        )
        corpus = read_corpus(
            settings.data,
            data_root=data_root(),
            expected=checked.source_fingerprint,
            folder=folder,
        )
    held = reserve_budget(
        settings,
        corpus,
        checked.plan,
        url=workspace.budget_url,
        key=ensure_budget_key(workspace),
    )
    console = speaker()
    console.print(f"reservation {held.id} on {held.data_set}, {held.num_units:,} units")
    say_next(
        console,
        f"{train_command(config, overrides or [])}  (spends it)",
        f"dptune budget release {held.id}  (gives it back)",
    )


def release(
    reservation: Annotated[str, typer.Argument(help="Its id; see `budget history`.")],
) -> None:
    """Give back what a killed or abandoned run still holds; what it drew is spent."""
    with _require() as store:
        store.release(reservation)
    console = speaker()
    console.print(f"reservation {reservation[:40]} holds nothing any more")
    say_next(console, "dptune budget show")


def admit_loss(reason: Reason) -> None:
    """Say that earlier entries of the store are lost for good, so that runs go on.

    First restore what can be restored, and reserve again what was spent since.
    """
    from dptune.workflow.attempts import admit_lost_store
    from steps._lost import lost_heads

    runs = current_workspace().runs
    with _require() as store:
        heads = tuple(lost_heads().values()) if _has_registry() else ()
        loss = admit_lost_store(store, runs=runs, heads=heads, reason=reason)
    console = speaker()
    console.print(
        f"on record: {loss.charges} charges of journals and the entries that paid for "
        f"{len(loss.heads)} versions are lost"
    )
    say_next(console, "dptune budget show")


def history(
    data_set: Annotated[
        str | None, typer.Argument(help="One data set; all by default.")
    ] = None,
) -> None:
    """List every run that touched the data, with what it holds and has drawn."""
    from dptune.accounting.store.summaries import history as runs_on

    with _find() or nullcontext() as store:
        runs = runs_on(store, data_set=data_set) if store else []
        if data_set is not None and not runs:
            _refuse_unknown(store, data_set)
    console = speaker()
    for name in dict.fromkeys(run.data_set for run in runs):
        console.print(_history_table([r for r in runs if r.data_set == name]))
    if not runs:
        console.print("no run touched the data yet", style="dim")
    say_next(console, "dptune budget verify")


def _history_table(runs: Sequence["Reservation"]) -> Table:
    """Lay out one line per run on a data set; ids stay whole, to be copied."""
    table = folding_table(
        f"runs on {runs[0].data_set}",
        *("reservation", "recipe", "units", "status", "drawn", "held"),
    )
    table.columns[0].no_wrap = True
    for held in runs:
        drawn = held.spent.count(Notion.RECORD)
        table.add_row(
            held.id,
            f"{held.recipe} ({f'{held.purpose} {held.sweep}'.strip()})",
            f"{held.num_units:,}",
            held.status,
            str(drawn),
            str(held.committed.count(Notion.RECORD) - drawn),
        )
    return table


def _refuse_unknown(store: "BudgetStore | None", data_set: str) -> None:
    """Refuse a name that nothing was granted to or spent of: an empty table would lie.

    Raises:
        ConfigError: lists the names there are.
    """
    from dptune.accounting.store.summaries import budgets

    known = [r.data_set for r in budgets(store, delta=_DELTA)] if store else []
    if data_set not in known:
        message = f"must be one of {', '.join(known) or 'none yet'}, got {data_set!r}."
        raise ConfigError.at("data_set", message)


def export(
    file: Annotated[Path, typer.Argument(help="Where to write; must not exist.")],
) -> None:
    """Write the log and its head, to be kept elsewhere: `verify --head` reads it."""
    from dptune.accounting.store.summaries import export as contents

    with _require() as store:
        content = contents(store)
    if file.exists():
        raise ConfigError.at("FILE", f"must not exist, got {file.name}.")
    try:
        file.write_text(json.dumps(content, indent=1), encoding="utf-8")
    except OSError as error:
        message = f"must be writable, got {error.strerror}."
        raise ConfigError.at("FILE", message) from None
    console = speaker()
    console.print(f"{content['head']['sequence']} entries written to {file}")
    say_next(console, f"dptune budget verify --head {file}")


def verify(
    head: Annotated[
        list[Path] | None,
        typer.Option(help="A file that `budget export` wrote. Repeat it."),
    ] = None,
) -> None:
    """Check the log, the tables, and every epsilon with another accountant.

    Exit 0 if all is as it was written and what runs spent is there, 1 if not: the
    first bad entry is named.
    """
    from dptune.accounting.store.verify import verify as checked

    known, wrong = [_read_head(file) for file in head or []], _lost()
    console = speaker()
    with (_find() if wrong else _require()) or nullcontext() as store:
        found = checked(store, heads=known) if store else None
    if found:
        console.print(
            f"{found.num_entries} entries, {found.num_units:,} units, "
            f"{found.num_figures} figures computed again"
        )
        wrong = [*(finding.message for finding in found.findings), *wrong]
    for problem in wrong:
        console.print(f"wrong {problem}", style="bold red", soft_wrap=True)
    if wrong or found is None:
        say_next(console, "restore the store from a backup; grant nothing until then")
        raise typer.Exit(1)
    console.print(f"all as written; head {found.head.sequence} {found.head.hash[:16]}")
    say_next(console, "dptune budget export FILE  (keep the head elsewhere)")


def show_budgets(console: Console, *, delta: float = _DELTA) -> None:
    """Print what every data set may spend and has spent."""
    from dptune.accounting.store.summaries import budgets
    from dptune.gates.origin import counts
    from dptune.workflow.attempts import attempts_on

    with _find() or nullcontext() as store:
        reports = budgets(store, delta=delta) if store else []
        attempts = [attempts_on(store, r.data_set) if store else None for r in reports]
    for report in reports:
        console.print(_budget_table(report))
    lost = _lost()
    for problem in lost:
        words = f"lost {problem}: see `budget verify`, and restore"
        console.print(words, style="bold red")
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


def _read_head(file: Path) -> "Head":
    """Read an exported head."""
    from dptune.accounting.store.summaries import exported_head

    try:
        return exported_head(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        message = f"must be a file that can be read, got {file.name}."
        raise ConfigError.at("--head", message) from None


def _budget_table(report: "BudgetReport") -> Table:
    """Lay out one line per notion of a data set."""
    from dptune.reports.formatting import epsilon, lower, upper

    table = folding_table(
        f"budget of {report.data_set}: {report.num_units:,} units, "
        f"runs {report.num_runs}, open {report.num_open}",
        *("promise", "allowed ε", "spent ε", "with open runs", "left", "tuning ε", "δ"),
    )
    for line in report.lines:
        table.add_row(
            f"{line.notion}, {line.relation.replace('_', ' ')}"
            f"{', adaptive' if line.adaptive else ''}",
            "-" if line.allowance is None else lower(line.allowance),
            epsilon(line.spent),
            epsilon(line.committed),
            "-" if line.left is None else lower(line.left),
            epsilon(line.tuning),
            upper(line.delta),
        )
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

    if not current_workspace().is_set_up:
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
        ArtifactError: nothing was ever granted or spent, or the store is lost.
    """
    from dptune.workflow.attempts import lost_store

    store = _find()
    if store is None and (lost := _lost()):
        raise lost_store("; ".join(lost))
    if store is None:
        raise ArtifactError(
            "there is no budget store yet: nothing was granted or spent. Run "
            "`dptune budget grant` or `dptune train` first."
        )
    return store
