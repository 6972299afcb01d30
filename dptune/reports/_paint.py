"""How marks, lines and notes of the figures are painted on matplotlib axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from dptune.reports import _figure as fig
from dptune.reports.formatting import number
from dptune.results import (
    BudgetLine,
    CanaryExposure,
    DiscoverableShare,
    Interval,
    MembershipSignal,
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


def tally(canaries: Sequence[CanaryExposure]) -> str:
    """Return how many canaries a row has, and their mean."""
    if not canaries:
        return "none"
    mean = sum(c.exposure for c in canaries) / len(canaries)
    return f"n = {len(canaries)}, mean {number(mean)}"


def paint_row(
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


def explain_null(axes: Axes, ceiling: float) -> None:
    """Write what the band, the mean and the right edge are."""
    note(axes, "95 % of never-seen canaries", NULL_LOW, 0.985)
    note(axes, f"mean if never seen {number(NULL_MEAN)}", NULL_MEAN, 0.9)
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


def note(axes: Axes, text: str, x: float, height: float) -> None:
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


def paint_roc(
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


def paint_discoverable(
    axes: Axes, name: str, shares: Sequence[DiscoverableShare], index: int
) -> None:
    """Draw one group of texts and its controls, each with intervals."""
    color = (fig.VERMILION, fig.BLUE)[index % 2]
    sides = (
        ("trained on", [(s.trials, s.members, s.members_interval) for s in shares], 1),
        ("controls", [(s.trials, s.controls, s.controls_interval) for s in shares], 0),
    )
    for side, points, filled in sides:
        known = [(x, y, i) for x, y, i in points if y is not None and i is not None]
        if not known:
            continue
        nudge = 0.92 + 0.16 * filled + 0.05 * index
        axes.errorbar(
            [nudge * x for x, _, _ in known],
            [y for _, y, _ in known],
            yerr=_error_bars(known),
            color=color,
            linestyle="-" if filled else ":",
            marker=fig.MARKERS[index],
            markersize=7,
            markerfacecolor=color if filled else "white",
            linewidth=1.6,
            capsize=3,
            label=f"{name}, {side}",
        )


def _error_bars(
    points: Sequence[tuple[int, float, Interval]],
) -> tuple[list[float], list[float]]:
    """Return how far intervals reach below and above."""
    below = [max(y - i.low, 0.0) for _, y, i in points]
    above = [max(i.high - y, 0.0) for _, y, i in points]
    return below, above


def decades(floor: float) -> list[float]:
    """Return powers of ten in [floor, 1]."""
    lowest = math.ceil(math.log10(floor) - 1e-9)
    return [10.0**power for power in range(lowest, 1)]


def paint_epsilon(axes: Axes, line: EpsilonSeries, index: int) -> None:
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


def paint_budget(axes: Axes, line: BudgetLine, height: int) -> None:
    """Draw one bar: spent, of it tuning, held by open runs, and what is allowed."""
    first = height == 0
    bars: tuple[tuple[float, float, dict[str, Any]], ...] = (
        (0.0, line.spent, {"color": fig.BLUE, "label": "spent"}),
        (
            line.spent,
            line.committed,
            {
                "facecolor": "white",
                "edgecolor": fig.BLUE,
                "hatch": "///",
                "label": "held by open runs",
            },
        ),
    )
    for start, end, how in bars:
        if end > start or first:
            options = how if first else {k: v for k, v in how.items() if k != "label"}
            axes.barh(height, end - start, left=start, height=0.5, **options)
    if line.tuning > 0:
        axes.barh(
            height,
            line.tuning,
            height=0.18,
            color=fig.ORANGE,
            label="of it tuning" if first else None,
        )
    if line.allowance is not None:
        axes.plot(
            [line.allowance] * 2,
            [height - 0.38, height + 0.38],
            color=fig.VERMILION,
            linewidth=3,
            label="allowed",
        )


def paint_point(axes: Axes, point: ComparisonPoint, index: int, edge: float) -> None:
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


def label_points(axes: Axes, points: Sequence[ComparisonPoint], edge: float) -> None:
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
