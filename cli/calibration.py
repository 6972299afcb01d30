"""The `calibrate` command: what a run costs, before it trains."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from cli.printing import say_next, speaker
from cli.runs import budget_place, read_config, show_warnings, train_command
from dptune.config import TrainConfig
from dptune.errors import BudgetExceededError, ConfigError, Problem, ProblemsError
from dptune.reports import blocks
from dptune.reports.blocks import Block, Chip, Page
from dptune.reports.render import page_html
from dptune.results import AttackCost, Calibration
from infra.allocator import freed_memory_kept
from infra.workspace import current_workspace, data_root, llm_access

if TYPE_CHECKING:  # takes seconds to import, and a configuration may be wrong
    from dptune.workflow.preflight import Checked

_PAGES = (".html", ".htm")


def show_calibration(
    path: Path, overrides: Sequence[str], *, output: Path | None, as_json: bool
) -> None:
    """Print every stage's noise and cost and what other choices would cost.

    Writes the same tables with figures to `output`, by default a page in the project
    folder's reports; with `as_json` it prints JSON and writes only what was asked for.

    Raises:
        BudgetExceededError: the data set cannot pay for the run; after the tables,
            which show what would cost less.
        DptuneError: something cannot be used. Either way nothing was written.
    """
    with Console(stderr=True).status("checking text, model and budget") as status:
        config, checked, refusal = _check(path, overrides, output)
        from dptune.workflow.budget import lacks_grant
        from dptune.workflow.power import planned_power
        from dptune.workflow.what_if import calibration

        found = calibration(
            checked.plan,
            config=config.name,
            ledger=checked.ledger,
            power=planned_power(
                config,
                checked.plan,
                checked.ledger,
                units_by_split=checked.units_by_split,
                lacks_grant=lacks_grant(current_workspace().budget_url, config),
            ),
            on_progress=status.update,
        )
        status.update("timing what attacks will do")
        found = found.model_copy(update={"attacks": _attacks(config, checked)})
        page = _page(found)
    if as_json:
        typer.echo(found.model_dump_json(indent=2))
    else:
        _print_page(speaker(), page)
    if refusal is not None:
        raise refusal
    if as_json:
        if output is not None:
            _write(output, found, page)
        return
    console, target = speaker(), output or _default_output(found)
    _write(target, found, page)
    console.print(f"report  {target}", soft_wrap=True)
    command = train_command(path, overrides)
    say_next(console, command)


def _page(found: Calibration) -> Page:
    """Draw figures, with a library that is not in memory while attacks are timed."""
    from dptune.reports.pages.calibration import calibration_page

    return calibration_page(found)


def _attacks(config: TrainConfig, checked: "Checked") -> tuple[AttackCost, ...]:
    """Measure what attacks will take here."""
    from dptune.workflow.attack_cost import attack_costs, load_unfitted
    from dptune.workflow.device import pick_device

    with freed_memory_kept(pick_device(config.performance.device)):
        return attack_costs(
            load_unfitted(config.model, data_root=data_root()),
            config.attack,
            config.canaries,
            max_tokens=config.model.max_tokens,
            performance=config.performance,
            num_held_out=checked.num_records.get("test"),
        )


def _check(
    path: Path, overrides: Sequence[str], output: Path | None
) -> tuple[TrainConfig, "Checked", BudgetExceededError | None]:
    """Check the output, the configuration and the run; tell all problems at once."""
    problems, refusal = _output_problems(output), None
    try:
        config = read_config(path, overrides)
        from dptune.workflow.preflight import check_run
        from steps._reviewing import read_lists, with_review

        config, digest = with_review(config)
        with current_workspace().work() as folder:
            check = partial(
                check_run,
                config,
                data_root=data_root(),
                access=llm_access(),
                lists=read_lists(digest),
                folder=folder,
            )
            try:
                checked = check(budget=budget_place())
            except BudgetExceededError as error:  # the only problem there is
                checked, refusal = check(), error
        show_warnings(checked)
    except ProblemsError as error:
        if not problems:
            raise
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return config, checked, refusal


def _output_problems(output: Path | None) -> list[Problem]:
    """Find what keeps a report from being written."""
    if output is None:
        return []
    if output.suffix not in (*_PAGES, ".png"):
        message = f"must end in .html or .png, got {output.name!r}."
        return [Problem(path="--output", message=message)]
    if output.is_dir() or not output.parent.is_dir():
        return [
            Problem(
                path="--output",
                message=f"must be a file in a folder that exists, got {str(output)!r}.",
                next_step="Make the folder first.",
            )
        ]
    return []


def _default_output(found: Calibration) -> Path:
    """Return the place in the project folder's reports."""
    folder = current_workspace().reports
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{found.config}-{found.recipe}-calibration.html"


def _write(output: Path, found: Calibration, page: Page) -> None:
    """Write the page, or the figures alone where a picture was asked for."""
    if output.suffix in _PAGES:
        output.write_text(page_html(page), encoding="utf-8")
    elif found.what_if is not None:
        from dptune.reports.figures.runs import calibration_png

        output.write_bytes(calibration_png(found, found.what_if))


def _print_page(console: Console, page: Page) -> None:
    """Print what the page says, without its figures."""
    console.print(page.title, style="bold")
    console.print(page.subtitle, style="dim")
    for section in page.sections:
        if any(isinstance(block, blocks.Plots) for block in section.blocks):
            continue
        console.print(f"\n{section.title}", style="bold")
        for block in section.blocks:
            _print_block(console, block)


def _print_block(console: Console, block: Block) -> None:
    """Print one table or notice."""
    if isinstance(block, blocks.Table):
        console.print(_rich_table(block))
        if block.caption:
            console.print(block.caption, style="dim")
    elif isinstance(block, blocks.Notice):
        console.print(block.text)


def _rich_table(block: blocks.Table) -> Table:
    """Return a table for the terminal."""
    from dptune.reports.pages.calibration import PLAN

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(block.columns):
        made.add_column(name, justify="right" if index in block.numeric else "left")
    for row in block.rows:
        made.add_row(*(f"{c.text} {PLAN}" if isinstance(c, Chip) else c for c in row))
    return made
