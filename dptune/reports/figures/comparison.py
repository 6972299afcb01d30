"""Figures of a comparison: what privacy costs, and how training got there."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from dptune.reports.blocks import Plot
from dptune.reports.comparison import (
    CellResult,
    ComparisonReport,
    ComparisonRow,
)
from dptune.reports.figures import canvas as fig
from dptune.reports.figures.canvas import NULL_HIGH, NULL_LOW
from dptune.reports.formatting import epsilon, number

_NO_GUARANTEE = "no guarantee"
_UNTUNED = "no fine-tuning"
_WIDE = 8.0
"""Perplexities that lie further apart than this factor are drawn on a log scale, and
that of the model before fine-tuning is not drawn if it is worse than all by as much."""


@dataclass(frozen=True, kw_only=True)
class _Mark:
    """One point with its error bar; x is infinite where nothing is guaranteed."""

    x: float
    y: float
    error: float = 0.0
    passed: bool = False


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
) -> tuple[Plot, ...]:
    """Draw utility, best first, then against certified epsilon and exposure.

    At a single budget all private recipes have one epsilon, and the order says all.
    """
    axis = _axis_of(report, rows)
    plots = []
    ranked = _by_label(rows)
    known = [utility.std for row in rows if (utility := row.utility)]
    bars = "Bars: standard deviation over seeds. " if any(known) else ""
    if ranked:
        plots.append(
            Plot(
                svg=_ranking(ranked, axis),
                title="What each keeps",
                caption="Best first, with the claim of the largest budget. "
                f"{bars}Claims of different notions must not be compared.",
            )
        )
    claims = _series(  # without the claim there is no guarantee
        rows, lambda row: row.certificate.epsilon if row.certificate else math.inf
    )
    if len({row.target_epsilon for row in rows if row.target_epsilon}) > 1 and claims:
        label = "certified ε of the claim that the budget speaks of"
        svg = _trade_off(claims, axis, x_label=label)
        caption = (
            f"{bars}Claims of different notions share the axis, not the "
            "meaning: the table names them. Past the dotted line there is no guarantee."
        )
        plots.append(Plot(svg=svg, title="What each promises", caption=caption))
    leaks = _series(rows, lambda row: row.exposure.mean if row.exposure else None)
    if leaks:
        label = "mean exposure of planted canaries (bits)"
        svg = _trade_off(leaks, axis, x_label=label, chance=True)
        caption = (
            "In the grey band lies 95 % of single canaries that no model ever saw. "
            "Filled marks passed the gate."
        )
        plots.append(Plot(svg=svg, title="What each leaks", caption=caption))
    return tuple(plots)


def steps_to_utility(cells: Sequence[CellResult]) -> str:
    """Draw the utility of every checkpoint over the steps of the whole training.

    Args:
        cells: with checkpoints.
    """
    classifies = any(point.accuracy is not None for c in cells for point in c.trace)
    courses = {cell.title: _course(cell) for cell in cells}

    def paint(axes: Axes) -> None:
        for index, (name, course) in enumerate(courses.items()):
            points = [(step, y) for step, y in course if math.isfinite(y)]
            axes.plot(
                [step for step, _ in points],
                [y for _, y in points],
                label=name,
                linewidth=1.6,
                markersize=5,
                **fig.series_style(index),
            )
        if not classifies:
            axes.set_yscale("log")
            fig.plain_ticks(axes.yaxis)
        axes.set_xlim(left=0)
        fig.step_axis(axes, "steps of the training")
        axes.set_ylabel("accuracy" if classifies else "perplexity (log scale)")
        fig.legend_below(axes, columns=3)

    label = "Utility over steps: " + "; ".join(
        f"{name} ends at {number(course[-1][1])}" for name, course in courses.items()
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


def _series(
    rows: Sequence[ComparisonRow], place: Callable[[ComparisonRow], float | None]
) -> dict[str, list[_Mark]]:
    """Return the marks of every recipe, its budgets in order."""
    found: dict[str, list[_Mark]] = {}
    for row in rows:
        x, utility = place(row), row.utility
        if x is None or utility is None or not math.isfinite(utility.mean):
            continue
        passed = set(row.outcomes) == {"PASS"}
        mark = _Mark(x=x, y=utility.mean, error=utility.std or 0.0, passed=passed)
        found.setdefault(row.label, []).append(mark)
    return found


def _by_label(rows: Sequence[ComparisonRow]) -> dict[str, list[ComparisonRow]]:
    """Return each recipe's rows that have a utility, the best recipe first."""
    found: dict[str, list[ComparisonRow]] = {}
    for row in rows:
        if row.utility and math.isfinite(row.utility.mean):
            found.setdefault(row.label, []).append(row)

    def best(name: str) -> float:
        means = [row.utility.mean for row in found[name] if row.utility]
        return -max(means) if found[name][0].accuracy else min(means)

    return {name: found[name] for name in sorted(found, key=best)}


def _axis_of(report: ComparisonReport, rows: Sequence[ComparisonRow]) -> _UtilityAxis:
    """Say how utility is drawn in all figures."""
    classifies = any(row.accuracy for row in rows)
    base = next((c.utility for c in report.finished if c.utility), None)
    untuned = None
    if base is not None:
        untuned = base.base_accuracy if classifies else base.base_perplexity
    means = [row.utility.mean for row in rows if row.utility]
    means = [mean for mean in means if math.isfinite(mean)]
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
    untuned = utility_axis.untuned

    def paint(axes: Axes) -> None:
        if untuned is not None:
            axes.axvline(untuned, color=fig.MUTED, lw=1, ls="--", label=_UNTUNED)
        for index, budget in enumerate(budgets):
            marks = [
                (heights[name], row.utility)
                for name, of in recipes.items()
                for row in of
                if (row.target_epsilon or 0) == budget and row.utility
            ]
            axes.errorbar(
                [u.mean for _, u in marks],
                [height for height, _ in marks],
                xerr=[u.std or 0.0 for _, u in marks],
                label=f"target ε {number(budget)}" if budget else "without a target ε",
                capsize=3,
                markersize=7,
                **{**fig.series_style(index), "linestyle": "none"},
            )
        if utility_axis.log:
            axes.set_xscale("log")
            fig.plain_ticks(axes.xaxis, digits=(1.0, 2.0, 5.0))
        axes.set_yticks(list(heights.values()), list(heights))
        axes.set_ylim(0.6 - len(recipes), 0.6)
        axes.margins(x=0.06)
        claims = axes.secondary_yaxis("right")
        notes = [_claim_note(of[-1]) for of in recipes.values()]
        claims.set_yticks(list(heights.values()), notes)
        for side in (axes.yaxis, claims.yaxis):
            side.set_tick_params(length=0, labelsize=10)
        claims.spines["right"].set_visible(False)
        axes.set_xlabel(utility_axis.label)
        fig.legend_below(axes, columns=3)

    label = f"{utility_axis.label}, best first: " + "; ".join(
        f"{name} {', '.join(number(row.utility.mean) for row in of if row.utility)}"
        for name, of in recipes.items()
    )
    return fig.draw(paint, label=label, height=1.5 + 0.27 * max(len(recipes), 4))


def _claim_note(row: ComparisonRow) -> str:
    """Name what a recipe guarantees, in a few words."""
    claim = row.certificate
    if claim is None or math.isinf(claim.epsilon):
        return _NO_GUARANTEE
    return f"ε {epsilon(claim.epsilon)} {claim.notion}, {claim.status}"


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
    plain = [name for name, marks in series.items() if math.isinf(marks[0].x)]
    largest = max([*finite, NULL_HIGH if chance else 1.0])
    edge = 1.3 * largest if endless else 1.08 * largest
    untuned = utility_axis.untuned

    def paint(axes: Axes) -> None:
        if chance:
            axes.axvspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
        if untuned is not None:
            axes.axhline(untuned, color=fig.MUTED, lw=1, ls="--", label=_UNTUNED)
        if endless:
            axes.axvline(1.12 * largest, color=fig.MUTED, linewidth=0.9, linestyle=":")
            fig.note(axes, _NO_GUARANTEE, 1.12 * largest, 0.99)
        for index, (name, marks) in enumerate(series.items()):
            shift = plain.index(name) / len(plain) if name in plain else 0.0
            end = (1.17 + 0.1 * shift) * largest
            xs = [m.x if math.isfinite(m.x) else end for m in marks]
            style = {"markersize": 7, **fig.series_style(index)}
            axes.errorbar(
                xs,
                [m.y for m in marks],
                yerr=[m.error for m in marks],
                label=name,
                capsize=3,
                linewidth=1.6,
                markerfacecolor=None if all(m.passed for m in marks) else "white",
                **style,
            )
            filled = [(x, m.y) for x, m in zip(xs, marks, strict=True) if m.passed]
            axes.plot(
                [x for x, _ in filled],
                [y for _, y in filled],
                **{**style, "linestyle": "none"},
            )
        axes.set_xlim(0 if not chance else -0.02 * edge, edge)
        if utility_axis.log:
            axes.set_yscale("log")
            fig.plain_ticks(axes.yaxis)
        axes.margins(y=0.12)
        axes.set_xticks([t for t in axes.get_xticks() if 0 <= t <= 1.1 * largest])
        axes.set_xlabel(x_label)
        axes.set_ylabel(utility_axis.label)
        fig.legend_below(axes, columns=3)

    label = f"{utility_axis.label} against {x_label}: " + "; ".join(
        f"{name} {number(m.y)} at {number(m.x) if chance else epsilon(m.x)}"
        for name, marks in series.items()
        for m in marks
    )
    height = 4.2 + 0.17 * max(0, len(series) // 3 - 2)
    return fig.draw(paint, label=label, height=height)
