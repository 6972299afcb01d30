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
_WIDE = 8.0
"""Perplexities that lie further apart than this factor are drawn on a log scale, and
that of the model before fine-tuning is not drawn if it is worse than all by as much."""


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """One point with its spread; x is infinite where nothing is guaranteed."""

    x: float
    y: float
    error: float = 0.0


@dataclass(frozen=True, kw_only=True)
class _UtilityAxis:
    """How utility is drawn.

    Args:
        untuned: of the model before fine-tuning; None where there is nothing to draw.
        log: whether the scale is logarithmic.
    """

    label: str
    untuned: float | None
    log: bool


def trade_off_plots(
    report: ComparisonReport, rows: Sequence[ComparisonRow]
) -> tuple[Block, ...]:
    """Draw utility, best first, then against certified epsilon and exposure.

    At a single budget all private recipes have one epsilon, and the order says all.
    """
    axis = _axis_of(report, rows)
    plots = []
    ranked = {name: of for name, of in _by_label(rows).items() if of}
    if len(ranked) > 1:
        plots.append(
            Plot(
                svg=_ranking(ranked, axis),
                title="What each keeps",
                caption="Best first, with the claim of the largest budget. "
                f"{_bars(rows)}Claims of different notions must not be compared.",
            )
        )
    claims = _series(rows, _epsilon_of)
    if len({row.target_epsilon for row in rows if row.target_epsilon}) > 1 and claims:
        svg = _trade_off(
            claims, axis, x_label="certified ε of the claim that the budget speaks of"
        )
        caption = (
            f"{_bars(rows)}Claims of different notions share the axis, not the "
            "meaning: the table names them. Past the dotted line there is no guarantee."
        )
        plots.append(Plot(svg=svg, title="What each promises", caption=caption))
    leaks = _series(rows, lambda row: row.exposure.mean if row.exposure else None)
    if leaks:
        svg = _trade_off(
            leaks,
            axis,
            x_label="mean exposure of planted canaries (bits)",
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


def _bars(rows: Sequence[ComparisonRow]) -> str:
    """Say what error bars are, where there are any."""
    spreads = [u.std for u in map(_utility, rows) if u]
    return "Bars: standard deviation over seeds. " if any(spreads) else ""


def _epsilon_of(row: ComparisonRow) -> float | None:
    """Return the certified epsilon; without the claim there is no guarantee."""
    return row.certificate.epsilon if row.certificate else math.inf


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


def _by_label(rows: Sequence[ComparisonRow]) -> dict[str, list[ComparisonRow]]:
    """Return each recipe's rows that have a utility, the best recipe first."""
    found: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        utility = _utility(row)
        if utility and math.isfinite(utility.mean):
            found.setdefault(row.label, []).append(row)

    def best(name: str) -> float:
        means = [u.mean for u in map(_utility, found[name]) if u]
        return -max(means) if found[name][0].accuracy else min(means)

    return {name: found[name] for name in sorted(found, key=best)}


def _axis_of(report: ComparisonReport, rows: Sequence[ComparisonRow]) -> _UtilityAxis:
    """Say how utility is drawn in all figures."""
    classifies = any(row.accuracy for row in rows)
    base = next((c.utility for c in report.finished if c.utility), None)
    untuned = None
    if base is not None:
        untuned = base.base_accuracy if classifies else base.base_perplexity
    means = [u.mean for u in map(_utility, rows) if u and math.isfinite(u.mean)]
    if untuned is not None and not untuned <= _WIDE * max(means, default=math.inf):
        untuned = None
    means += [untuned] if untuned is not None else []
    log = not classifies and bool(means) and max(means) > _WIDE * min(means)
    return _UtilityAxis(
        label="test accuracy, higher is better"
        if classifies
        else f"test perplexity, lower is better{' (log)' if log else ''}",
        untuned=untuned,
        log=log,
    )


def _ranking(
    recipes: dict[str, list[ComparisonRow]], utility_axis: _UtilityAxis
) -> str:
    """Draw one line for each recipe, a mark for each of its budgets."""
    budgets = sorted({r.target_epsilon or 0 for of in recipes.values() for r in of})
    heights = {name: -index for index, name in enumerate(recipes)}

    def paint(axes: Axes) -> None:
        if utility_axis.untuned is not None:
            axes.axvline(
                utility_axis.untuned,
                color=fig.MUTED,
                lw=1,
                ls="--",
                label="no fine-tuning",
            )
        for index, budget in enumerate(budgets):
            marks = [
                (heights[name], utility)
                for name, of in recipes.items()
                for row in of
                if (row.target_epsilon or 0) == budget and (utility := _utility(row))
            ]
            style = {**series_style(index), "linestyle": "none"}
            axes.errorbar(
                [u.mean for _, u in marks],
                [height for height, _ in marks],
                xerr=[u.std or 0.0 for _, u in marks],
                label=f"target ε {number(budget)}" if budget else "without a target ε",
                capsize=3,
                markersize=7,
                **style,  # type: ignore[arg-type]
            )
        if utility_axis.log:
            axes.set_xscale("log")
            plain_ticks(axes.xaxis, digits=(1.0, 2.0, 5.0))
        axes.set_yticks(list(heights.values()), list(heights))
        axes.set_ylim(0.6 - len(recipes), 0.6)
        axes.margins(x=0.06)
        claims = axes.secondary_yaxis("right")
        claims.set_yticks(
            list(heights.values()), [_claim_note(of[-1]) for of in recipes.values()]
        )
        for side in (axes.yaxis, claims.yaxis):
            side.set_tick_params(length=0, labelsize=10)
        claims.spines["right"].set_visible(False)
        axes.set_xlabel(utility_axis.label)
        fig.legend_below(axes, columns=3)

    label = f"{utility_axis.label}, best first: " + "; ".join(
        f"{name} {', '.join(number(u.mean) for u in map(_utility, of) if u)}"
        for name, of in recipes.items()
    )
    return fig.draw(paint, label=label, height=1.5 + 0.27 * max(len(recipes), 4))


def _claim_note(row: ComparisonRow) -> str:
    """Name what a recipe guarantees, in a few words."""
    claim = row.certificate
    if claim is None or math.isinf(claim.epsilon):
        return _NO_GUARANTEE
    return f"ε {number(claim.epsilon)} {claim.notion}, {claim.status}"


def _trade_off(
    series: dict[str, list[_Mark]],
    utility_axis: _UtilityAxis,
    *,
    x_label: str,
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
        if utility_axis.untuned is not None:
            axes.axhline(
                utility_axis.untuned,
                color=fig.MUTED,
                lw=1,
                ls="--",
                label="no fine-tuning",
            )
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
        if utility_axis.log:
            axes.set_yscale("log")
            plain_ticks(axes.yaxis)
        axes.margins(y=0.12)
        axes.set_xticks([t for t in axes.get_xticks() if 0 <= t <= 1.1 * largest])
        axes.set_xlabel(x_label)
        axes.set_ylabel(utility_axis.label)
        fig.legend_below(axes, columns=3)

    label = f"{utility_axis.label} against {x_label}: " + "; ".join(
        f"{name} {number(m.y)} at {number(m.x)}"
        for name, marks in series.items()
        for m in marks
    )
    return fig.draw(
        paint, label=label, height=4.2 + 0.17 * max(0, len(series) // 3 - 2)
    )


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
