"""Figures of leakage, budget and utility as inline SVG, the same bytes every time.

All are readable at 700 pixels, on white so that they survive a dark page, and tell
series apart by color and by shape or dash.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dptune.errors import ConfigError
from dptune.reports import _figure as fig
from dptune.reports.formatting import number, share
from dptune.results import (
    CanaryExposure,
    ExposureReport,
    MembershipReport,
    MembershipSignal,
    StageReport,
)

NULL_MEAN = 1 / math.log(2)
NULL_LOW = -math.log2(0.975)
NULL_HIGH = -math.log2(0.025)


@dataclass(frozen=True, kw_only=True)
class EpsilonSeries:
    """Epsilon so far over the steps of one stage, under one notion.

    Args:
        stage: name of the stage.
        notion: what epsilon protects, such as `record`.
        steps: updates done, counted from the start of the run.
        epsilon: spent so far; infinite values are drawn as an arrow off the top.
    """

    stage: str
    notion: str
    steps: tuple[int, ...]
    epsilon: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ComparisonPoint:
    """One run on the trade-off figure.

    Args:
        label: name of the run.
        x: mean exposure in bits, or certified epsilon; may be infinite.
        perplexity: of the test split.
        passed: whether the gate let it through; those are filled.
    """

    label: str
    x: float
    perplexity: float
    passed: bool = False


def exposure_plot(report: ExposureReport) -> str:
    """Draw every canary's exposure in three rows: planted, held out, base model.

    The grey band holds 95 % of canaries that no model ever saw: with a uniform secret
    P(exposure > x) = 2^-x, so the mean is 1/ln 2 = 1.44 bits and the band
    [0.04, 5.32].

    Privacy: exposures of planted canaries come from the private model outside epsilon.
    """
    rows = (
        ("Planted, this model", report.planted(), fig.VERMILION, "o"),
        ("Held out, this model", report.held_out(), fig.BLUE, "s"),
        ("Planted, base model", report.base_planted(), fig.MUTED, "D"),
    )
    ceiling = math.log2(report.space_size)

    def paint(axes: Axes) -> None:
        axes.axvspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
        axes.axvline(NULL_MEAN, color=fig.MUTED, linewidth=1.2, linestyle="--")
        axes.axvline(ceiling, color=fig.INK, linewidth=1.2, linestyle=":")
        for height, (_, canaries, color, marker) in zip((2, 1, 0), rows, strict=True):
            _paint_row(axes, canaries, height=height, color=color, marker=marker)
        _explain_null(axes, ceiling)
        axes.set_yticks([2, 1, 0], [f"{name}\n{_tally(c)}" for name, c, _, _ in rows])
        axes.set_ylim(-0.5, 3.05)
        axes.set_xlim(-0.03 * ceiling, 1.06 * ceiling)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("exposure (bits): each bit halves the guesses that are left")

    label = "Exposure of canaries. " + ". ".join(
        f"{name}: {_tally(canaries)}" for name, canaries, _, _ in rows
    )
    return fig.draw(paint, label=label, height=3.5)


def roc_plot(report: MembershipReport) -> str:
    """Draw the attacks' ROC curves on log-log axes beside chance and the blind attack.

    Privacy: membership scores come from the private model outside epsilon.
    """
    floor = 0.5 / max(report.num_non_members, report.num_members, 2)
    best = report.strongest()
    others = [s for s in report.signals if s.name != best.name and s.roc_fpr]
    order = sorted(others, key=lambda s: -s.auc)[:4]

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        _paint_roc(axes, best, floor, color=fig.BLUE, width=2.6, role="strongest")
        _paint_roc(
            axes, report.blind, floor, color=fig.INK, width=1.6, role="blind, no model"
        )
        for place, signal in enumerate(order, start=1):
            _paint_roc(axes, signal, floor, color=fig.SERIES[place], width=1.2)
        axes.plot([floor, 1], [floor, 1], color=fig.MUTED, lw=1, ls=":", label="chance")
        axes.axvline(best.low_fpr, color=fig.MUTED, linewidth=0.9)
        axes.annotate(
            f"{share(best.low_fpr)} FPR",
            (best.low_fpr, 1.0),
            xytext=(4, -2),
            textcoords="offset points",
            va="top",
            fontsize=9.5,
            color=fig.MUTED,
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator(_decades(floor)))
            axis.set_major_formatter(FuncFormatter(lambda v, _: share(v)))
            axis.set_minor_locator(NullLocator())
        axes.set_xlim(floor, 1)
        axes.set_ylim(floor, 1.15)
        axes.set_xlabel("false-positive rate (log scale)")
        axes.set_ylabel("true-positive rate (log scale)")
        fig.legend_below(axes)

    label = (
        f"Membership ROC. Strongest attack {best.name}: AUC {number(best.auc)}, "
        f"{share(best.tpr_at_low_fpr)} true positives at {share(best.low_fpr)} false "
        f"positives; blind attack AUC {number(report.blind.auc)}"
    )
    return fig.draw(paint, label=label, height=4.6)


def epsilon_plot(
    series: Sequence[EpsilonSeries], *, target: float | None = None
) -> str:
    """Draw epsilon so far over the steps of a run, one line for each stage and notion.

    Args:
        series: at least one; infinite values are marked above the axes.
        target: the epsilon that was asked, drawn as a line.

    Raises:
        ConfigError: there is nothing to draw.
    """
    if not series:
        raise ConfigError("series must hold at least one EpsilonSeries, got none.")

    def paint(axes: Axes) -> None:
        for index, line in enumerate(series):
            _paint_epsilon(axes, line, index)
        if target is not None:
            axes.axhline(target, color=fig.INK, lw=1, ls=":", label="target")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("steps of the run")
        axes.set_ylabel("epsilon so far")
        fig.legend_below(axes)

    names = ", ".join(f"{s.stage} ({s.notion})" for s in series)
    return fig.draw(paint, label=f"Epsilon over steps: {names}", height=3.2)


def epsilon_series(
    stages: Sequence[StageReport], *, notion: str
) -> tuple[EpsilonSeries, ...]:
    """Read the epsilon curves of a run's stages, with steps counted through."""
    found = []
    start = 0
    for stage in stages:
        points = [p for p in stage.curve if p.epsilon is not None]
        if points:
            found.append(
                EpsilonSeries(
                    stage=stage.stage,
                    notion=notion,
                    steps=tuple(start + p.step for p in points),
                    epsilon=tuple(float(p.epsilon or 0.0) for p in points),
                )
            )
        start += stage.num_steps
    return tuple(found)


def loss_plot(stages: Sequence[StageReport]) -> str:
    """Draw the training loss of a run's stages. A private diagnostic.

    Privacy: losses of training batches are private and carry no epsilon. This figure
    stays inside the trust boundary; no card and no comparison page holds it.

    Raises:
        ConfigError: there is nothing to draw.
    """
    if not stages:
        raise ConfigError("stages must hold at least one StageReport, got none.")

    def paint(axes: Axes) -> None:
        start = 0
        for index, stage in enumerate(stages):
            axes.plot(
                [start + p.step for p in stage.curve],
                [p.loss for p in stage.curve],
                color=fig.SERIES[index % 6],
                linestyle=fig.DASHES[index % 6],
                linewidth=1.8,
                marker=fig.MARKERS[index % 6],
                markersize=3 if len(stage.curve) > 20 else 5,
                label=stage.stage,
            )
            start += stage.num_steps
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("steps of the run")
        axes.set_ylabel("training loss (nats per token)")
        fig.legend_below(axes, columns=3)

    names = ", ".join(s.stage for s in stages)
    return fig.draw(paint, label=f"Private training loss of {names}", height=3.2)


def comparison_plot(
    points: Sequence[ComparisonPoint],
    *,
    x_label: str = "mean exposure of planted canaries (bits)",
    base_perplexity: float | None = None,
    null_band: bool = True,
) -> str:
    """Draw what each run pays (perplexity) for what it leaks or promises.

    Lower left is better. Runs with an infinite x stand at the right edge, past a break.

    Args:
        points: at least one.
        x_label: what x is, with its unit.
        base_perplexity: before fine-tuning, drawn as a line.
        null_band: shade [0.04, 5.32] bits; turn off where x is an epsilon.

    Raises:
        ConfigError: there is nothing to draw.
    """
    if not points:
        raise ConfigError("points must hold at least one ComparisonPoint, got none.")
    finite = [p.x for p in points if math.isfinite(p.x)]
    edge = 1.25 * max([*finite, NULL_HIGH if null_band else 1.0])

    def paint(axes: Axes) -> None:
        if null_band:
            axes.axvspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
            _note(axes, "95 % of never-seen canaries", NULL_LOW, 0.98)
        if len(finite) < len(points):
            axes.axvline(0.93 * edge, color=fig.MUTED, linewidth=0.9, linestyle=":")
            _note(axes, "∞", 0.945 * edge, 0.98)
        if base_perplexity is not None and math.isfinite(base_perplexity):
            axes.axhline(base_perplexity, color=fig.MUTED, lw=1, ls="--")
            axes.annotate(
                f"base model {number(base_perplexity)}",
                (edge * 1.1, base_perplexity),
                xytext=(0, 3),
                textcoords="offset points",
                ha="right",
                fontsize=9.5,
                color=fig.MUTED,
            )
        for index, point in enumerate(points):
            _paint_point(axes, point, index, edge)
        axes.set_xlim(-0.02 * edge, 1.1 * edge)
        axes.margins(y=0.22)
        axes.autoscale_view(scalex=False)
        _label_points(axes, points, edge)
        if len(finite) < len(points):
            axes.set_xticks([t for t in axes.get_xticks() if 0 <= t <= 0.9 * edge])
        axes.set_xlabel(x_label)
        axes.set_ylabel("test perplexity (lower is better)")
        fig.legend_below(axes, columns=3)

    label = f"Perplexity against {x_label}: " + "; ".join(
        f"{p.label} {number(p.perplexity)} at {number(p.x)}" for p in points
    )
    return fig.draw(paint, label=label, height=4.0)


def _tally(canaries: Sequence[CanaryExposure]) -> str:
    """Return how many canaries a row has, and their mean."""
    if not canaries:
        return "none"
    mean = sum(c.exposure for c in canaries) / len(canaries)
    return f"n = {len(canaries)}, mean {number(mean)}"


def _paint_row(
    axes: Axes,
    canaries: Sequence[CanaryExposure],
    *,
    height: float,
    color: str,
    marker: str,
) -> None:
    """Scatter one row; a fixed golden-ratio shift keeps points apart."""
    values = sorted(c.exposure for c in canaries)
    if not values:
        return
    shifts = [0.5 * ((0.618034 * i) % 1.0 - 0.5) for i in range(1, len(values) + 1)]
    axes.scatter(
        values,
        [height + s for s in shifts],
        s=26 if len(values) <= 60 else 12,
        marker=marker,
        color=color,
        alpha=0.75,
        linewidths=0,
        zorder=3,
    )
    mean = sum(values) / len(values)
    span = [height - 0.36, height + 0.36]
    axes.plot([mean, mean], span, color="white", linewidth=5, zorder=4)
    axes.plot([mean, mean], span, color=color, linewidth=2.4, zorder=5)


def _explain_null(axes: Axes, ceiling: float) -> None:
    """Write what the band, the mean and the right edge are."""
    _note(axes, "95 % of never-seen canaries", NULL_LOW, 0.985)
    _note(axes, f"mean if never seen {number(NULL_MEAN)}", NULL_MEAN, 0.9)
    axes.annotate(
        f"known by heart {number(ceiling)}",
        (ceiling, 0.985),
        xycoords=("data", "axes fraction"),
        xytext=(-4, 0),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=9.5,
        color=fig.MUTED,
    )


def _note(axes: Axes, text: str, x: float, height: float) -> None:
    """Write a small note at the right of `x`, near the top of the axes."""
    axes.annotate(
        text,
        (x, height),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        va="top",
        fontsize=9.5,
        color=fig.MUTED,
    )


def _paint_roc(
    axes: Axes,
    signal: MembershipSignal,
    floor: float,
    *,
    color: str,
    width: float,
    role: str = "",
) -> None:
    """Draw one ROC curve, or its one known point where no curve was kept."""
    text = f"{signal.name}{f' ({role})' if role else ''}, AUC {number(signal.auc)}"
    if not signal.roc_fpr:
        point = (signal.low_fpr, max(signal.tpr_at_low_fpr, floor))
        axes.plot(*point, marker="o", color=color, linestyle="none", label=text)
        return
    dash = fig.DASHES[fig.SERIES.index(color)] if color in fig.SERIES else "--"
    axes.plot(
        np.maximum(np.asarray(signal.roc_fpr), floor),
        np.maximum(np.asarray(signal.roc_tpr), floor),
        color=color,
        linewidth=width,
        linestyle=dash,
        drawstyle="steps-post",
        zorder=2 + width,
        label=text,
    )


def _decades(floor: float) -> list[float]:
    """Return powers of ten in [floor, 1]."""
    lowest = math.ceil(math.log10(floor) - 1e-9)
    return [10.0**power for power in range(lowest, 1)]


def _paint_epsilon(axes: Axes, line: EpsilonSeries, index: int) -> None:
    """Draw the finite part of one line; say where it is infinite."""
    finite = [
        (s, e)
        for s, e in zip(line.steps, line.epsilon, strict=True)
        if math.isfinite(e)
    ]
    endless = len(finite) < len(line.steps)
    axes.plot(
        [s for s, _ in finite],
        [e for _, e in finite],
        color=fig.SERIES[index % 6],
        linestyle=fig.DASHES[index % 6],
        marker=fig.MARKERS[index % 6],
        markersize=3 if len(finite) > 20 else 5,
        linewidth=2,
        label=f"{line.stage} ({line.notion}){': ∞, no guarantee' if endless else ''}",
    )


def _paint_point(axes: Axes, point: ComparisonPoint, index: int, edge: float) -> None:
    """Draw one run: filled if the gate passed it, hollow if not."""
    color = fig.SERIES[index % 6]
    verdict = "passed" if point.passed else "not passed"
    axes.plot(
        [point.x if math.isfinite(point.x) else edge],
        [point.perplexity],
        marker=fig.MARKERS[index % 6],
        markersize=11,
        markeredgewidth=2.2,
        markeredgecolor=color,
        markerfacecolor=color if point.passed else "white",
        linestyle="none",
        label=f"{point.label} ({verdict})",
    )


def _label_points(axes: Axes, points: Sequence[ComparisonPoint], edge: float) -> None:
    """Write each run's name beside its point, pushed up where two would collide."""
    low, high = axes.get_ylim()
    step = 0.07 * (high - low)
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda p: (p.perplexity, p.x)):
        x = point.x if math.isfinite(point.x) else edge
        y = point.perplexity
        while any(abs(x - u) < 0.3 * edge and abs(y - v) < step for u, v in taken):
            y += 0.25 * step
        taken.append((x, y))
        right = x > 0.8 * edge
        axes.annotate(
            point.label,
            (x, y),
            xytext=(-11 if right else 11, 0),
            textcoords="offset points",
            ha="right" if right else "left",
            va="center",
            fontsize=10,
        )
