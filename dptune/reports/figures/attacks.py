"""Figures of leakage: exposure of canaries, membership, what sampling extracts.

All are readable at 700 pixels, on white so that they survive a dark page, and tell
series apart by color and by shape or dash. The same input gives the same bytes.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from dptune.reports.figures import canvas as fig
from dptune.reports.figures.canvas import NULL_HIGH, NULL_LOW, NULL_MEAN
from dptune.reports.formatting import number, percent
from dptune.results import (
    CanaryExposure,
    DiscoverableShare,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    MembershipSignal,
)

Curve = Sequence[tuple[float, float]]


def exposure_plot(report: ExposureReport, *, title: str = "") -> str:
    """Draw every canary's exposure in three rows: planted, held out, base model.

    The grey band holds 95 % of canaries that no model ever saw: with a uniform secret
    P(exposure > x) = 2^-x, so the mean is 1/ln 2 = 1.44 bits and the band
    [0.04, 5.32].

    Args:
        report: the canaries and their controls.
        title: names the model, for people who cannot see the figure.

    Privacy: exposures of planted canaries come from the private model outside epsilon.
    """
    rows = (
        ("Planted, this model", report.planted(), fig.VERMILION, "o"),
        ("Held out, this model", report.held_out(), fig.BLUE, "s"),
        ("Planted, base model", report.base_planted(), fig.MUTED, "D"),
    )
    names = [f"{name}\n{_counted(canaries)}" for name, canaries, _, _ in rows]
    ceiling = max(1.0, math.log2(report.space_size))

    def paint(axes: Axes) -> None:
        axes.axvspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
        axes.axvline(NULL_MEAN, color=fig.MUTED, linewidth=1.2, linestyle="--")
        axes.axvline(ceiling, color=fig.INK, linewidth=1.2, linestyle=":")
        for height, (_, canaries, color, marker) in zip((2, 1, 0), rows, strict=True):
            _paint_row(axes, canaries, height=height, color=color, marker=marker)
        fig.note(axes, "95 % of never-seen canaries", NULL_LOW, 0.985)
        fig.note(axes, f"mean if never seen {number(NULL_MEAN)}", NULL_MEAN, 0.9)
        known = f"known by heart {number(ceiling)}"
        fig.note(axes, known, ceiling, 0.985, left=True)
        axes.set_yticks([2, 1, 0], names)
        axes.set_ylim(-0.5, 3.05)
        axes.set_xlim(-0.03 * ceiling, 1.06 * ceiling)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("exposure (bits): each bit halves the guesses that are left")

    shown = ". ".join(name.replace("\n", ": ") for name in names)
    label = f"{_of(title)}Exposure of canaries. {shown}"
    return fig.draw(paint, label=label, height=3.5)


def discoverable_plot(report: ExtractionReport) -> str:
    """Draw the fraction of texts that n trials generate with a chance of one half.

    Args:
        report: canaries and records, each with controls.

    Privacy: chances come from the private model outside epsilon.
    """
    groups = [
        (name, tuple(s for s in found if s.chance == 0.5))
        for name, found in (("canaries", report.canaries), ("records", report.records))
        if found
    ]

    def paint(axes: Axes) -> None:
        for index, (name, found) in enumerate(groups):
            _paint_discoverable(axes, name, found, index)
        axes.set_xscale("log")
        trials = [s.trials for s in groups[0][1]]
        fig.plain_ticks(axes.xaxis, at=trials, form=lambda n: f"{int(n):,}")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: percent(float(v))))
        axes.set_xlim(0.5 * trials[0], 2 * trials[-1])
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("trials")
        axes.set_ylabel("fraction that is generated")
        fig.legend_below(axes, columns=2)

    shown = ". ".join(
        f"{name}, {s.trials} trials: trained on {percent(s.members)}, "
        f"controls {percent(s.controls)}"
        for name, found in groups
        for s in found
    )
    label = f"Texts generated at least once with chance 50 %. {shown}"
    return fig.draw(paint, label=label, height=3.4)


def roc_plot(report: MembershipReport, *, title: str = "") -> str:
    """Draw the attacks' ROC curves on log-log axes beside chance and the blind attack.

    Args:
        report: all attacks and the blind one.
        title: names the model, for people who cannot see the figure.

    Privacy: membership scores come from the private model outside epsilon.
    """
    floor = 0.5 / max(report.num_non_members, report.num_members, 2)
    decades = [10.0**k for k in range(math.ceil(math.log10(floor) - 1e-9), 1)]
    best = report.strongest()
    others = [s for s in report.signals if s.name != best.name and s.roc_fpr]
    order = sorted(others, key=lambda s: -s.auc)[:4]

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        strongest = f"{best.name} (strongest)"
        blind = f"{report.blind.name} (blind, no model)"
        _paint_roc(axes, best, floor, strongest, color=fig.BLUE, width=2.6)
        _paint_roc(axes, report.blind, floor, blind, color=fig.INK, width=1.6)
        for place, signal in enumerate(order, start=1):
            color = fig.SERIES[place]
            _paint_roc(axes, signal, floor, signal.name, color=color, width=1.2)
        axes.plot([floor, 1], [floor, 1], color=fig.MUTED, lw=1, ls=":", label="chance")
        axes.axvline(best.low_fpr, color=fig.MUTED, linewidth=0.9)
        fig.note(axes, f"{percent(best.low_fpr)} FPR", best.low_fpr, 0.985)
        for axis in (axes.xaxis, axes.yaxis):
            fig.plain_ticks(axis, at=decades, form=percent)
        axes.set_xlim(floor, 1)
        axes.set_ylim(floor, 1.15)
        axes.set_xlabel("false-positive rate (log scale)")
        axes.set_ylabel("true-positive rate (log scale)")
        fig.legend_below(axes)

    label = (
        f"{_of(title)}Membership ROC. Strongest attack {best.name}: AUC "
        f"{number(best.auc)}, {percent(best.tpr_at_low_fpr)} true positives at "
        f"{percent(best.low_fpr)} false positives; blind attack AUC "
        f"{number(report.blind.auc)}"
    )
    return fig.draw(paint, label=label, height=4.6)


def exposure_curves(curves: Mapping[str, Curve], *, title: str) -> str:
    """Draw exposure against perplexity, checkpoint by checkpoint.

    Args:
        curves: (perplexity, exposure) of every checkpoint, by name of the training.
        title: of whose tokens the perplexities are.
    """

    def paint(axes: Axes) -> None:
        axes.axhspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
        for index, (name, points) in enumerate(curves.items()):
            style = fig.series_style(index)
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(xs, ys, label=name, linewidth=1.3, markersize=4, **style)
            axes.plot(xs[-1:], ys[-1:], markersize=9, **style)
        axes.set_xscale("log")
        fig.plain_ticks(axes.xaxis)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("perplexity (log scale)")
        axes.set_ylabel("mean exposure, planted (bits)")
        fig.legend_below(axes, columns=3)

    label = f"Exposure against perplexity, {title.lower()}: " + "; ".join(
        f"{name} ends at {number(p[-1][0])}, {number(p[-1][1])} bits"
        for name, p in curves.items()
    )
    return fig.draw(paint, label=label, height=4.0)


def _of(title: str) -> str:
    """Begin a label with what it is about."""
    return f"{title}: " if title else ""


def _counted(canaries: Sequence[CanaryExposure]) -> str:
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


def _paint_roc(
    axes: Axes,
    signal: MembershipSignal,
    floor: float,
    name: str,
    *,
    color: str,
    width: float,
) -> None:
    """Draw one ROC curve, or its one known point where no curve was kept."""
    text = f"{name}, AUC {number(signal.auc)}"
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


def _paint_discoverable(
    axes: Axes, name: str, found: Sequence[DiscoverableShare], index: int
) -> None:
    """Draw one group of texts and its controls, each with intervals."""
    color = (fig.VERMILION, fig.BLUE)[index % 2]
    sides = (
        ("trained on", [(s.trials, s.members, s.members_interval) for s in found], 1),
        ("controls", [(s.trials, s.controls, s.controls_interval) for s in found], 0),
    )
    for side, points, filled in sides:
        known = [(x, y, i) for x, y, i in points if y is not None and i is not None]
        if not known:
            continue
        shift = 0.92 + 0.16 * filled + 0.05 * index
        axes.errorbar(
            [shift * x for x, _, _ in known],
            [y for _, y, _ in known],
            yerr=(
                [max(y - i.low, 0.0) for _, y, i in known],
                [max(i.high - y, 0.0) for _, y, i in known],
            ),
            color=color,
            linestyle="-" if filled else ":",
            marker=fig.MARKERS[index],
            markersize=7,
            markerfacecolor=color if filled else "white",
            linewidth=1.6,
            capsize=3,
            label=f"{name}, {side}",
        )
