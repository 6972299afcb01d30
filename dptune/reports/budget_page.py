"""Blocks for a data set's budget: what all runs spent, what tuning took, what is left.

The same table stands on the privacy card, so that a stranger sees what the choice of a
model's settings has cost.
"""

from collections.abc import Iterable, Sequence

from dptune.reports.blocks import (
    Block,
    Cell,
    Facts,
    Page,
    Plot,
    Section,
    Table,
    facts,
    table,
)
from dptune.reports.formatting import count, epsilon, number, short_digest, words
from dptune.reports.plan_page import relation_words
from dptune.reports.plots import EpsilonSeries, budget_plot, epsilon_plot
from dptune.reports.statements import SpentStatement
from dptune.results import BudgetReport, LedgerCurve


def budget_page(report: BudgetReport) -> Page:
    """Describe a budget after a run has settled."""
    return Page(
        kicker="Budget",
        title=f"Data set {report.data_set}, all runs",
        lede="Epsilon of everything that ever ran on the data set, composed for the "
        "units that were charged most. Never add two lines, nor a run to a run.",
        sections=(
            Section(title="What is left", blocks=_left(report)),
            *(
                Section(title="How this run spent", blocks=curve_plots(report.curves))
                for _ in report.curves[:1]
            ),
            Section(title="Who is charged", blocks=(_facts(report),)),
        ),
    )


def curve_plots(curves: Sequence[LedgerCurve]) -> tuple[Block, ...]:
    """Draw epsilon so far over the steps of a run, by stage and notion."""
    if not curves:
        return ()
    series = [
        EpsilonSeries(
            stage=curve.stage,
            notion=curve.notion,
            steps=curve.steps,
            epsilon=curve.epsilon,
        )
        for curve in curves
    ]
    terms = dict.fromkeys((c.notion, c.relation) for c in curves)
    named = "; ".join(f"{n}: {relation_words(r)}" for n, r in terms)
    caption = f"At δ = {number(curves[0].delta)}. {named}. Steps as they were charged."
    return (Plot(svg=epsilon_plot(series), caption=caption),)


def budget_table(
    lines: Iterable[SpentStatement], *, unit: str, num_trials: int
) -> Table:
    """List what was spent, what of it by trials, and what is left."""
    return table(
        ("Notion", "Spent on tuning ε", "Spent in all ε", "Allowed ε", "Left ε", "δ"),
        (_row(line, unit) for line in lines),
        numeric=range(1, 6),
        caption="For the units that were charged most, under the assumptions of every "
        "run. What tuning spent is part of what was spent in all "
        f"({count(num_trials)} trial{'' if num_trials == 1 else 's'}). Left: allowed "
        "less what is spent or held by open runs, a guide, since epsilons do not add.",
    )


def _row(line: SpentStatement, unit: str) -> tuple[Cell, ...]:
    """Return one notion's row."""
    return (
        f"All runs: {line.notion} ({words(line.relation)} {unit})",
        epsilon(line.tuning),
        epsilon(line.spent),
        "not granted" if line.allowance is None else number(line.allowance),
        "–" if line.left is None else epsilon(line.left),
        number(line.delta),
    )


def _left(report: BudgetReport) -> tuple[Block, ...]:
    """Draw and list what is left."""
    lines = [SpentStatement.of(line) for line in report.lines]
    unit, trials = report.privacy_unit, sum(report.sweeps.values())
    rows = budget_table(lines, unit=unit, num_trials=trials)
    svg = budget_plot(report.lines)
    if not svg:
        return (rows,)
    caption = "Tuning is part of what is spent. Notions without a guarantee left out."
    return (Plot(svg=svg, caption=caption), rows)


def _facts(report: BudgetReport) -> Facts:
    """Say who is charged, by how many runs."""
    trials = ", ".join(f"{name}: {count(n)}" for name, n in report.sweeps.items())
    return facts(
        ("Privacy units", count(report.num_units), report.privacy_unit),
        ("Runs", count(report.num_runs), f"{count(report.num_open)} open"),
        ("Trials of sweeps", trials or "none"),
        (
            "Log",
            f"{count(report.head_sequence)} entries",
            f"last hash {short_digest(report.head_hash)}",
        ),
    )
