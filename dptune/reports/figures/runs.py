"""Figures of a run: what it would cost, how it trained, what it spent.

Inline SVG, the same bytes for the same input; those of a calibration also as a PNG.
"""

import math
import statistics
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes

from dptune.errors import ConfigError
from dptune.reports.figures import canvas as fig
from dptune.reports.formatting import epsilon, lower, number
from dptune.results import (
    BudgetLine,
    Calibration,
    ControllerReport,
    EpsilonGrid,
    LedgerCurve,
    StageReport,
    WhatIf,
)

Paint = Callable[[Axes], None]


def calibration_plots(
    calibration: Calibration, what_if: WhatIf
) -> tuple[str, str, str]:
    """Draw noise against targets, epsilon over epochs, and epsilon over noise."""
    targets, batches, noises = _paints(calibration, what_if)
    label = "Noise per step over C against the target epsilon, for two relations"
    epochs = "Epsilon over epochs, a line for each batch size"
    noise = "Epsilon over the noise multiplier, a line for each number of epochs"
    return (
        fig.draw(targets, label=label),
        fig.draw(batches, label=epochs),
        fig.draw(noises, label=noise),
    )


def calibration_png(calibration: Calibration, what_if: WhatIf) -> bytes:
    """Draw the three figures side by side."""
    return fig.draw_png(_paints(calibration, what_if))


def epsilon_plot(curves: Sequence[LedgerCurve]) -> str:
    """Draw epsilon so far over the steps of a run, one line for each stage and notion.

    Args:
        curves: at least one; what is infinite is said in the legend.

    Raises:
        ConfigError: there is nothing to draw.
    """
    if not curves:
        raise ConfigError("curves must hold at least one LedgerCurve, got none.")

    def paint(axes: Axes) -> None:
        for index, curve in enumerate(curves):
            points = zip(curve.steps, curve.epsilon, strict=True)
            finite = [(s, e) for s, e in points if math.isfinite(e)]
            endless = ": ∞, no guarantee" if len(finite) < len(curve.steps) else ""
            axes.plot(
                [s for s, _ in finite],
                [e for _, e in finite],
                markersize=3 if len(finite) > 20 else 5,
                linewidth=2,
                label=f"{curve.stage} ({curve.notion}){endless}",
                **fig.series_style(index, dashed=True),
            )
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        fig.step_axis(axes, "steps of the run")
        axes.set_ylabel("epsilon so far")
        fig.legend_below(axes)

    names = ", ".join(f"{c.stage} ({c.notion})" for c in curves)
    return fig.draw(paint, label=f"Epsilon over steps: {names}", height=3.2)


def budget_plot(lines: Sequence[BudgetLine]) -> str:
    """Draw what is spent, held and allowed, a bar for each notion with a guarantee.

    Returns:
        Nothing where no notion has one.
    """
    shown = [line for line in lines if math.isfinite(line.committed)]
    if not shown:
        return ""

    def paint(axes: Axes) -> None:
        for height, line in enumerate(reversed(shown)):
            _paint_budget(axes, line, height)
        names = [f"{x.notion}\n{x.relation.replace('_', ' ')}" for x in shown]
        axes.set_yticks(range(len(shown)), names[::-1])
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("epsilon of the units that were charged most")
        fig.legend_below(axes, columns=4)

    label = "Budget. " + ". ".join(
        f"{x.notion}: spent {epsilon(x.spent)}, of it tuning {epsilon(x.tuning)}, "
        f"with open runs {epsilon(x.committed)}, allowed "
        f"{'not granted' if x.allowance is None else lower(x.allowance)}"
        for x in shown
    )
    return fig.draw(paint, label=label, height=1.5 + 0.7 * len(shown))


def loss_plot(stage: StageReport) -> str:
    """Draw the training loss of a stage. A private diagnostic.

    Privacy: losses of training batches are private and carry no epsilon. This figure
    stays inside the trust boundary; no card and no comparison page holds it.
    """

    def paint(axes: Axes) -> None:
        axes.plot(
            [p.step for p in stage.curve],
            [p.loss for p in stage.curve],
            linewidth=1.8,
            markersize=3 if len(stage.curve) > 20 else 5,
            label=stage.stage,
            **fig.series_style(0),
        )
        fig.step_axis(axes, "steps of the stage")
        axes.set_ylabel("training loss (nats per token)")
        fig.legend_below(axes)

    return fig.draw(paint, label=f"Private training loss of {stage.stage}", height=3.2)


def clip_plot(report: ControllerReport) -> str:
    """Draw the clip norm of every pair over the steps, and their median."""
    steps = [point.step for point in report.trace]
    columns = list(zip(*(point.clip_norms for point in report.trace), strict=True))
    medians = [statistics.median(point.clip_norms) for point in report.trace]

    def paint(axes: Axes) -> None:
        for column in columns:
            axes.plot(steps, column, color=fig.SKY, linewidth=0.8, alpha=0.7)
        axes.plot([], [], color=fig.SKY, linewidth=0.8, label="one LoRA pair")
        axes.plot(steps, medians, color=fig.BLUE, linewidth=2.2, label="median")
        axes.set_yscale("log")
        _mark_warm_up(axes, report)
        axes.set_ylabel("clip norm (log scale)")
        fig.legend_below(axes)

    label = f"Clip norms of {len(report.pairs)} LoRA pairs over the steps"
    return fig.draw(paint, label=label)


def sigma_plot(report: ControllerReport) -> str:
    """Draw the noise multiplier that every step was granted."""
    steps = [point.step for point in report.trace]
    granted = [point.noise_multiplier for point in report.trace]
    first = report.start_noise

    def paint(axes: Axes) -> None:
        axes.step(steps, granted, where="mid", color=fig.VERMILION, linewidth=1.4)
        axes.axhline(first, color=fig.INK, lw=1, ls="--", label="where it started")
        _mark_warm_up(axes, report)
        axes.set_ylabel("noise multiplier")
        fig.legend_below(axes)

    label = f"Granted noise multipliers from {min(granted):.3g} to {max(granted):.3g}"
    return fig.draw(paint, label=label)


def _paints(calibration: Calibration, what_if: WhatIf) -> tuple[Paint, Paint, Paint]:
    """Paint noise over targets, and epsilon over epochs and over noise multipliers."""
    by_batch, by_noise = what_if.by_batch, what_if.by_noise
    return (
        _paint_targets(what_if),
        _paint_grid(
            calibration,
            by_batch,
            by_batch.epochs,
            [f"batch {size:,.0f}" for size in by_batch.rows],
            by_batch.epsilon,
            label="epochs, at the planned noise multiplier",
        ),
        _paint_grid(
            calibration,
            by_noise,
            by_noise.rows,
            [f"{number(epochs)} epochs" for epochs in by_noise.epochs],
            list(zip(*by_noise.epsilon, strict=True)),
            label="noise multiplier, at the planned batch size",
        ),
    )


def _paint_targets(what_if: WhatIf) -> Paint:
    """Paint noise against targets; the planned target is a dotted line."""
    targets = what_if.targets
    lines = {
        "record, add or remove": [(t.target_epsilon, t.add_or_remove) for t in targets],
        "record, replace; selective": [(t.target_epsilon, t.replace) for t in targets],
    }

    def paint(axes: Axes) -> None:
        for index, (name, choices) in enumerate(lines.items()):
            points = [(target, cost.run_noise) for target, cost in choices if cost]
            _line(axes, points, index=index, name=name)
        planned = [t.target_epsilon for t in targets if t.is_planned]
        if planned:
            axes.axvline(planned[0], color=fig.INK, lw=1, ls=":", label="planned")
        _log(axes, x=[t.target_epsilon for t in targets])
        axes.set_xlabel("target epsilon")
        axes.set_ylabel("noise per step, over C")
        fig.legend_below(axes, columns=3)

    return paint


def _paint_grid(
    calibration: Calibration,
    grid: EpsilonGrid,
    x: Sequence[float],
    names: Sequence[str],
    lines: Sequence[Sequence[float]],
    *,
    label: str,
) -> Paint:
    """Paint lines of epsilon; the plan is ringed, and the target a dotted line."""
    replace = calibration.relation == "replace_one"
    row, column = grid.planned
    value = grid.epsilon[row][column]
    planned = x[column if x is grid.epochs else row]

    def paint(axes: Axes) -> None:
        for index, (name, line) in enumerate(zip(names, lines, strict=True)):
            _line(axes, list(zip(x, line, strict=True)), index=index, name=name)
        if calibration.target_epsilon is not None:
            target = calibration.target_epsilon
            axes.axhline(target, color=fig.INK, lw=1, ls=":", label="target")
        if math.isfinite(value) and value > 0:
            axes.plot(
                [planned],
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
        _log(axes, x=x)
        axes.set_xlabel(label)
        axes.set_ylabel(f"epsilon ({'replace' if replace else 'add or remove'})")
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
        markersize=4.5,
        linewidth=1.8,
        label=name,
        **fig.series_style(index, dashed=True),
    )


def _log(axes: Axes, *, x: Sequence[float]) -> None:
    """Make both axes logarithmic; a tick at every x, and at 1, 2, 5, 10, ... of y."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [d * 10.0**p for p in powers for d in (1, 2, 5)]
    fig.plain_ticks(axes.xaxis, at=sorted(set(x)))
    fig.plain_ticks(axes.yaxis, at=[t for t in ticks if low <= t <= high])


def _mark_warm_up(axes: Axes, report: ControllerReport) -> None:
    """Draw where the warm-up ends."""
    axes.axvline(report.warmup_steps, color=fig.MUTED, linewidth=1, linestyle=":")
    axes.set_xlabel("step; the dotted line ends the warm-up")


def _paint_budget(axes: Axes, line: BudgetLine, height: int) -> None:
    """Draw one bar: spent, of it tuning, held by open runs, and what is allowed."""
    first = height == 0  # the others share its legend
    names = ("spent", "held by open runs", "of it tuning", "allowed")
    spent, held, tuning, allowed = names if first else (None,) * 4
    axes.barh(height, line.spent, height=0.5, color=fig.BLUE, label=spent)
    if line.committed > line.spent or first:
        axes.barh(
            height,
            line.committed - line.spent,
            left=line.spent,
            height=0.5,
            facecolor="white",
            edgecolor=fig.BLUE,
            hatch="///",
            label=held,
        )
    if line.tuning > 0:
        axes.barh(height, line.tuning, height=0.18, color=fig.ORANGE, label=tuning)
    if line.allowance is not None:
        axes.plot(
            [line.allowance] * 2,
            [height - 0.38, height + 0.38],
            color=fig.VERMILION,
            linewidth=3,
            label=allowed,
        )
