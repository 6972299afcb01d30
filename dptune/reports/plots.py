"""Figures of leakage, budget and utility as inline SVG, the same bytes every time.

All are readable at 700 pixels, on white so that they survive a dark page, and tell
series apart by color and by shape or dash.
"""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from dptune.errors import ConfigError
from dptune.reports import _figure as fig
from dptune.reports._paint import (
    NULL_HIGH,
    NULL_LOW,
    NULL_MEAN,
    ComparisonPoint,
    EpsilonSeries,
    decades,
    explain_null,
    label_points,
    note,
    paint_budget,
    paint_discoverable,
    paint_epsilon,
    paint_point,
    paint_roc,
    paint_row,
    tally,
)
from dptune.reports.formatting import number, share
from dptune.results import (
    BudgetLine,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    StageReport,
)

__all__ = [
    "NULL_HIGH",
    "NULL_LOW",
    "NULL_MEAN",
    "ComparisonPoint",
    "EpsilonSeries",
    "budget_plot",
    "comparison_plot",
    "discoverable_plot",
    "epsilon_plot",
    "epsilon_series",
    "exposure_plot",
    "loss_plot",
    "roc_plot",
]


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
    ceiling = max(1.0, math.log2(report.space_size))

    def paint(axes: Axes) -> None:
        axes.axvspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
        axes.axvline(NULL_MEAN, color=fig.MUTED, linewidth=1.2, linestyle="--")
        axes.axvline(ceiling, color=fig.INK, linewidth=1.2, linestyle=":")
        for height, (_, canaries, color, marker) in zip((2, 1, 0), rows, strict=True):
            paint_row(axes, canaries, height=height, color=color, marker=marker)
        explain_null(axes, ceiling)
        axes.set_yticks([2, 1, 0], [f"{name}\n{tally(c)}" for name, c, _, _ in rows])
        axes.set_ylim(-0.5, 3.05)
        axes.set_xlim(-0.03 * ceiling, 1.06 * ceiling)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("exposure (bits): each bit halves the guesses that are left")

    label = f"{title}: " if title else ""
    label += "Exposure of canaries. " + ". ".join(
        f"{name}: {tally(canaries)}" for name, canaries, _, _ in rows
    )
    return fig.draw(paint, label=label, height=3.5)


def discoverable_plot(report: ExtractionReport, *, title: str = "") -> str:
    """Draw shares of texts that n trials draw with a chance of one half.

    Args:
        report: canaries and records, each with controls.
        title: names the model, for people who cannot see the figure.

    Privacy: chances come from the private model outside epsilon.
    """
    groups = [
        (name, tuple(s for s in shares if s.chance == 0.5))
        for name, shares in (("canaries", report.canaries), ("records", report.records))
        if shares
    ]

    def paint(axes: Axes) -> None:
        for index, (name, shares) in enumerate(groups):
            paint_discoverable(axes, name, shares, index)
        axes.set_xscale("log")
        trials = [s.trials for s in groups[0][1]]
        axes.xaxis.set_major_locator(FixedLocator(trials))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{int(v):,}"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: share(float(v))))
        axes.set_xlim(0.5 * trials[0], 2 * trials[-1])
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("trials")
        axes.set_ylabel("share that is drawn")
        fig.legend_below(axes, columns=2)

    label = f"{title}: " if title else ""
    label += "Share of texts drawn at least once with chance 50 %. " + ". ".join(
        f"{name}, {s.trials} trials: trained on {share(s.members)}, "
        f"controls {share(s.controls)}"
        for name, shares in groups
        for s in shares
    )
    return fig.draw(paint, label=label, height=3.4)


def roc_plot(report: MembershipReport, *, title: str = "") -> str:
    """Draw the attacks' ROC curves on log-log axes beside chance and the blind attack.

    Args:
        report: all attacks and the blind one.
        title: names the model, for people who cannot see the figure.

    Privacy: membership scores come from the private model outside epsilon.
    """
    floor = 0.5 / max(report.num_non_members, report.num_members, 2)
    best = report.strongest()
    others = [s for s in report.signals if s.name != best.name and s.roc_fpr]
    order = sorted(others, key=lambda s: -s.auc)[:4]

    def paint(axes: Axes) -> None:
        axes.set_xscale("log")
        axes.set_yscale("log")
        paint_roc(axes, best, floor, color=fig.BLUE, width=2.6, role="strongest")
        paint_roc(
            axes, report.blind, floor, color=fig.INK, width=1.6, role="blind, no model"
        )
        for place, signal in enumerate(order, start=1):
            paint_roc(axes, signal, floor, color=fig.SERIES[place], width=1.2)
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
            axis.set_major_locator(FixedLocator(decades(floor)))
            axis.set_major_formatter(FuncFormatter(lambda v, _: share(v)))
            axis.set_minor_locator(NullLocator())
        axes.set_xlim(floor, 1)
        axes.set_ylim(floor, 1.15)
        axes.set_xlabel("false-positive rate (log scale)")
        axes.set_ylabel("true-positive rate (log scale)")
        fig.legend_below(axes)

    label = f"{title}: " if title else ""
    label += (
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
            paint_epsilon(axes, line, index)
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
            paint_budget(axes, line, height)
        names = [f"{x.notion}\n{x.relation.replace('_', ' ')}" for x in shown]
        axes.set_yticks(range(len(shown)), names[::-1])
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_xlim(left=0)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("epsilon of the units that were charged most")
        fig.legend_below(axes, columns=4)

    label = "Budget. " + ". ".join(
        f"{x.notion}: spent {number(x.spent)}, of it tuning {number(x.tuning)}, with "
        f"open runs {number(x.committed)}, allowed "
        f"{'not granted' if x.allowance is None else number(x.allowance)}"
        for x in shown
    )
    return fig.draw(paint, label=label, height=1.5 + 0.7 * len(shown))


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
            note(axes, "95 % of never-seen canaries", NULL_LOW, 0.98)
        if len(finite) < len(points):
            axes.axvline(0.93 * edge, color=fig.MUTED, linewidth=0.9, linestyle=":")
            note(axes, "∞", 0.945 * edge, 0.98)
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
            paint_point(axes, point, index, edge)
        axes.set_xlim(-0.02 * edge, 1.1 * edge)
        axes.margins(y=0.22)
        axes.autoscale_view(scalex=False)
        label_points(axes, points, edge)
        if len(finite) < len(points):
            axes.set_xticks([t for t in axes.get_xticks() if 0 <= t <= 0.9 * edge])
        axes.set_xlabel(x_label)
        axes.set_ylabel("test perplexity (lower is better)")
        fig.legend_below(axes, columns=3)

    label = f"Perplexity against {x_label}: " + "; ".join(
        f"{p.label} {number(p.perplexity)} at {number(p.x)}" for p in points
    )
    return fig.draw(paint, label=label, height=4.0)
