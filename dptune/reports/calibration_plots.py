"""Figures of a calibration: noise against targets, epsilon against epochs and noise.

Inline SVG for the page, or all three side by side as a PNG.
"""

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from dptune.reports import _figure as fig
from dptune.reports.calibration import Calibration, EpsilonGrid, WhatIf
from dptune.reports.formatting import number

Paint = Callable[[Axes], None]


def target_plot(what_if: WhatIf) -> str:
    """Draw the noise that targets need under both relations."""
    label = "Noise per step over C against the target epsilon, for two relations"
    return fig.draw(_paint_targets(what_if), label=label)


def batch_plot(calibration: Calibration, what_if: WhatIf) -> str:
    """Draw epsilon over epochs, a line for each batch size, at the planned noise."""
    label = "Epsilon over epochs, a line for each batch size"
    return fig.draw(_paint_batches(calibration, what_if), label=label)


def noise_plot(calibration: Calibration, what_if: WhatIf) -> str:
    """Draw epsilon over noise, a line for each number of epochs."""
    label = "Epsilon over the noise multiplier, a line for each number of epochs"
    return fig.draw(_paint_noises(calibration, what_if), label=label)


def calibration_png(calibration: Calibration, what_if: WhatIf) -> bytes:
    """Draw the three figures side by side."""
    return fig.draw_png(
        (
            _paint_targets(what_if),
            _paint_batches(calibration, what_if),
            _paint_noises(calibration, what_if),
        )
    )


def _paint_targets(what_if: WhatIf) -> Paint:
    """Paint noise against targets; the planned target is a dotted line."""
    lines = (
        ("record, add or remove", [(t, t.add_or_remove) for t in what_if.targets]),
        ("record, replace; selective", [(t, t.replace) for t in what_if.targets]),
    )

    def paint(axes: Axes) -> None:
        for index, (name, choices) in enumerate(lines):
            points = [(t.target_epsilon, c.run_noise) for t, c in choices if c]
            _line(axes, points, index=index, name=name)
        planned = [t.target_epsilon for t in what_if.targets if t.is_planned]
        if planned:
            axes.axvline(planned[0], color=fig.INK, lw=1, ls=":", label="planned")
        _log(axes, x=[t.target_epsilon for t in what_if.targets])
        axes.set_xlabel("target epsilon")
        axes.set_ylabel("noise per step, over C")
        fig.legend_below(axes, columns=3)

    return paint


def _paint_batches(calibration: Calibration, what_if: WhatIf) -> Paint:
    """Paint epsilon over epochs."""
    grid = what_if.by_batch

    def paint(axes: Axes) -> None:
        for index, (size, row) in enumerate(zip(grid.rows, grid.epsilon, strict=True)):
            points = list(zip(grid.epochs, row, strict=True))
            _line(axes, points, index=index, name=f"batch {size:,.0f}")
        column = grid.planned[1]
        _mark_plan(axes, grid, x=grid.epochs[column], target=calibration.target_epsilon)
        _log(axes, x=grid.epochs)
        axes.set_xlabel("epochs, at the planned noise multiplier")
        axes.set_ylabel(f"epsilon ({_relation(calibration)})")
        fig.legend_below(axes, columns=4)

    return paint


def _paint_noises(calibration: Calibration, what_if: WhatIf) -> Paint:
    """Paint epsilon over noise multipliers."""
    grid = what_if.by_noise

    def paint(axes: Axes) -> None:
        columns = zip(*grid.epsilon, strict=True)
        for index, (epochs, column) in enumerate(
            zip(grid.epochs, columns, strict=True)
        ):
            points = list(zip(grid.rows, column, strict=True))
            _line(axes, points, index=index, name=f"{number(epochs)} epochs")
        row = grid.planned[0]
        _mark_plan(axes, grid, x=grid.rows[row], target=calibration.target_epsilon)
        _log(axes, x=grid.rows)
        axes.set_xlabel("noise multiplier, at the planned batch size")
        axes.set_ylabel(f"epsilon ({_relation(calibration)})")
        fig.legend_below(axes, columns=4)

    return paint


def _line(
    axes: Axes, points: Sequence[tuple[float, float]], *, index: int, name: str
) -> None:
    """Draw the finite part of one line."""
    finite = [(x, y) for x, y in points if math.isfinite(y) and y > 0]
    axes.plot(
        [x for x, _ in finite],
        [y for _, y in finite],
        color=fig.SERIES[index % 6],
        linestyle=fig.DASHES[index % 6],
        marker=fig.MARKERS[index % 6],
        markersize=4.5,
        linewidth=1.8,
        label=name,
    )


def _mark_plan(
    axes: Axes, grid: EpsilonGrid, *, x: float, target: float | None
) -> None:
    """Ring the planned point, and draw the target."""
    row, column = grid.planned
    value = grid.epsilon[row][column]
    if target is not None:
        axes.axhline(target, color=fig.INK, lw=1, ls=":", label="target")
    if math.isfinite(value) and value > 0:
        axes.plot(
            [x],
            [value],
            marker="o",
            markersize=13,
            markerfacecolor="none",
            markeredgecolor=fig.INK,
            markeredgewidth=1.6,
            linestyle="none",
            zorder=5,
            label="plan",
        )


def _log(axes: Axes, *, x: Sequence[float]) -> None:
    """Make both axes logarithmic; a tick at every x, and at 1, 2, 5, 10, ... of y."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(set(x))))
    low, high = axes.get_ylim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [d * 10.0**p for p in powers for d in (1, 2, 5)]
    axes.yaxis.set_major_locator(FixedLocator([t for t in ticks if low <= t <= high]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
        axis.set_minor_locator(NullLocator())


def _relation(calibration: Calibration) -> str:
    """Name the relation in a word or two."""
    return "replace" if calibration.relation == "replace_one" else "add or remove"
