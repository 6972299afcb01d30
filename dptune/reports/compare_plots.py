"""Figures of a comparison: what privacy costs, and how training got there."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from dptune.reports import _figure as fig
from dptune.reports._paint import NULL_HIGH, NULL_LOW, note
from dptune.reports.blocks import Block, Plot, Plots
from dptune.reports.cells import (
    CellResult,
    ComparisonReport,
    ComparisonRow,
    Spread,
)
from dptune.reports.formatting import number
from dptune.reports.trace_page import exposure_plots, plain_ticks, series_style

_NO_GUARANTEE = "no guarantee"


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """One point with its spread; x is infinite where nothing is guaranteed."""

    x: float
    y: float
    error: float = 0.0


def trade_off_plots(
    report: ComparisonReport, rows: Sequence[ComparisonRow]
) -> tuple[Block, ...]:
    """Draw utility against certified epsilon, and against exposure."""
    classifies = any(row.accuracy for row in rows)
    name = "test accuracy" if classifies else "test perplexity"
    better = "higher" if classifies else "lower"
    base = _base_utility(report, classifies=classifies)
    plots = []
    claims = _series(rows, _epsilon_of)
    if claims:
        svg = _trade_off(
            claims,
            x_label="certified ε of the claim that the budget speaks of",
            y_label=f"{name} ({better} is better)",
            base=base,
        )
        caption = (
            "Bars: standard deviation over seeds. Claims of different notions share "
            "the axis, not the meaning: the table names them. Past the dotted line "
            "there is no guarantee."
        )
        plots.append(Plot(svg=svg, title="What each promises", caption=caption))
    leaks = _series(rows, lambda row: row.exposure.mean if row.exposure else None)
    if leaks:
        svg = _trade_off(
            leaks,
            x_label="mean exposure of planted canaries (bits)",
            y_label=f"{name} ({better} is better)",
            base=base,
            chance=True,
        )
        caption = (
            "In the grey band lies 95 % of single canaries that no model ever saw."
        )
        plots.append(Plot(svg=svg, title="What each leaks", caption=caption))
    return (Plots(items=tuple(plots)),) if plots else ()


def trace_plots(report: ComparisonReport) -> tuple[Block, ...]:
    """Draw utility over steps, and exposure against perplexity by checkpoint."""
    traced = _traced(report.finished)
    if not traced:
        return ()
    classifies = any(point.accuracy is not None for c in traced for point in c.trace)
    plots = [
        Plot(
            svg=_steps_to_utility(traced, classifies=classifies),
            title="Steps to utility",
            caption="Measured on some held-out records; steps of all stages of a "
            "training are counted through, and steps of different recipes are not "
            "equally dear.",
        )
    ]
    plots += exposure_plots({_name(cell): cell.trace for cell in traced})
    return (Plots(items=tuple(plots)),)


def _utility(row: ComparisonRow) -> Spread | None:
    """Return what a row is good for."""
    return row.accuracy or row.perplexity


def _epsilon_of(row: ComparisonRow) -> float | None:
    """Return the certified epsilon."""
    return row.certificate.epsilon if row.certificate else None


def _series(
    rows: Sequence[ComparisonRow], place: Callable[[ComparisonRow], float | None]
) -> dict[str, list[_Mark]]:
    """Return the marks of every recipe, its budgets in order."""
    found: dict[str, list[_Mark]] = {}
    for row in rows:
        x, utility = place(row), _utility(row)
        if x is None or utility is None or not math.isfinite(utility.mean):
            continue
        mark = _Mark(x=x, y=utility.mean, error=utility.std or 0.0)
        found.setdefault(row.label, []).append(mark)
    return found


def _base_utility(report: ComparisonReport, *, classifies: bool) -> float | None:
    """Return what the model was before fine-tuning."""
    for cell in report.finished:
        if cell.utility:
            value = cell.utility
            return value.base_accuracy if classifies else value.base_perplexity
    return None


def _trade_off(
    series: dict[str, list[_Mark]],
    *,
    x_label: str,
    y_label: str,
    base: float | None,
    chance: bool = False,
) -> str:
    """Draw utility against what is on the x axis; one line for each recipe."""
    finite = [m.x for marks in series.values() for m in marks if math.isfinite(m.x)]
    endless = any(math.isinf(m.x) for marks in series.values() for m in marks)
    largest = max([*finite, NULL_HIGH if chance else 1.0])
    edge = 1.3 * largest if endless else 1.08 * largest

    def paint(axes: Axes) -> None:
        if chance:
            axes.axvspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
        if base is not None and math.isfinite(base):
            axes.axhline(base, color=fig.MUTED, lw=1, ls="--", label="no fine-tuning")
        if endless:
            axes.axvline(1.12 * largest, color=fig.MUTED, linewidth=0.9, linestyle=":")
            note(axes, _NO_GUARANTEE, 1.12 * largest, 0.99)
        plain = [name for name, marks in series.items() if math.isinf(marks[0].x)]
        for index, (name, marks) in enumerate(series.items()):
            shift = plain.index(name) / max(len(plain), 1) if name in plain else 0.0
            at = (1.17 + 0.1 * shift) * largest
            axes.errorbar(
                [m.x if math.isfinite(m.x) else at for m in marks],
                [m.y for m in marks],
                yerr=[m.error for m in marks],
                label=name,
                capsize=3,
                linewidth=1.6,
                markersize=7,
                **series_style(index),  # type: ignore[arg-type]
            )
        axes.set_xlim(0 if not chance else -0.02 * edge, edge)
        axes.margins(y=0.12)
        axes.set_xticks([t for t in axes.get_xticks() if 0 <= t <= 1.1 * largest])
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        fig.legend_below(axes, columns=3)

    label = f"{y_label} against {x_label}: " + "; ".join(
        f"{name} {number(m.y)} at {number(m.x)}"
        for name, marks in series.items()
        for m in marks
    )
    return fig.draw(paint, label=label, height=4.2)


def _traced(cells: Sequence[CellResult]) -> list[CellResult]:
    """Keep one traced training of every recipe: its first seed and smallest budget."""
    found: dict[str, CellResult] = {}
    for cell in cells:
        if cell.trace:
            found.setdefault(cell.label, cell)
    return list(found.values())


def _name(cell: CellResult) -> str:
    """Name a training in a legend."""
    if cell.target_epsilon is None:
        return cell.label
    return f"{cell.label}, ε {number(cell.target_epsilon)}"


def _steps_to_utility(cells: Sequence[CellResult], *, classifies: bool) -> str:
    """Draw the utility of every checkpoint over the steps of the whole training."""

    def paint(axes: Axes) -> None:
        for index, cell in enumerate(cells):
            points = [(s, y) for s, y in _course(cell) if math.isfinite(y)]
            axes.plot(
                [s for s, _ in points],
                [y for _, y in points],
                label=_name(cell),
                linewidth=1.6,
                markersize=5,
                **series_style(index),  # type: ignore[arg-type]
            )
        if not classifies:
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("steps of the training")
        axes.set_ylabel("accuracy" if classifies else "perplexity (log scale)")
        fig.legend_below(axes, columns=3)

    label = "Utility over steps: " + "; ".join(
        f"{_name(c)} ends at {number(_course(c)[-1][1])}" for c in cells
    )
    return fig.draw(paint, label=label, height=4.0)


def _course(cell: CellResult) -> list[tuple[int, float]]:
    """Return steps, counted through the stages, and utility."""
    start, steps = 0, {}
    for stage in cell.stages:
        steps[stage.stage] = start
        start += stage.num_steps
    return [
        (steps.get(p.stage, 0) + p.step, p.accuracy or p.perplexity or math.nan)
        for p in cell.trace
    ]
