"""What was measured while a stage trained: exposure against perplexity, in figures."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from dptune.reports import _figure as fig
from dptune.reports._paint import NULL_HIGH, NULL_LOW
from dptune.reports.attack_pages import OUTSIDE_EPSILON
from dptune.reports.blocks import Block, Plot, Plots, Section, table
from dptune.reports.formatting import count, number, share
from dptune.results import TracePoint

Curve = Sequence[tuple[float, float]]

KINDS = (
    ("Sensitive tokens", "sensitive_perplexity"),
    ("Other tokens", "ordinary_perplexity"),
)
"""Titles of the two figures, and what of a point they draw."""

_COLUMNS = (
    ("Accuracy", "accuracy"),
    ("Perplexity", "perplexity"),
    *KINDS,
    ("Exposure, planted", "exposure"),
    ("held out", "held_out_exposure"),
)


def trace_section(trace: Sequence[TracePoint]) -> Section:
    """Show the checkpoints of one stage, sensitive and other tokens apart.

    References:
        Yu et al. (ATDP), figure 2, which draws the perplexities alone.
    """
    shown = [
        (head, key)
        for head, key in _COLUMNS
        if any(getattr(point, key) is not None for point in trace)
    ]
    rows = table(
        ("Step", *(head for head, _ in shown)),
        (
            (count(point.step), *(_figure(point, key) for _, key in shown))
            for point in trace
        ),
        caption=f"On some held-out records; exposure in bits. {OUTSIDE_EPSILON}",
    )
    plots = exposure_plots({trace[0].stage: trace} if trace else {})
    blocks: tuple[Block, ...] = (rows, Plots(items=plots)) if plots else (rows,)
    return Section(title="While it trained", blocks=blocks)


def exposure_plots(traces: Mapping[str, Sequence[TracePoint]]) -> tuple[Plot, ...]:
    """Draw exposure against the perplexity of either kind of token.

    Args:
        traces: points of each training, by its name.
    """
    plots = []
    for title, key in KINDS:
        curves = {name: _curve(points, key) for name, points in traces.items()}
        drawn = {name: curve for name, curve in curves.items() if curve}
        if drawn:
            plots.append(
                Plot(
                    svg=_exposure_curves(drawn, title=title),
                    title=f"Exposure against perplexity: {title.lower()}",
                    caption="One mark per checkpoint, the last one larger. Lower left "
                    "is better. ATDP (figure 2) draws the perplexities alone.",
                )
            )
    return tuple(plots)


def plain_ticks(axis: Axis, *, digits: Sequence[float] = (1.0, 2.0, 3.0, 5.0)) -> None:
    """Write a logarithmic axis in plain numbers, a few for each decade.

    Args:
        axis: x or y.
        digits: those that numbers may begin with.
    """
    axis.set_major_locator(LogLocator(subs=digits, numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))
    axis.set_minor_locator(NullLocator())


def series_style(index: int) -> dict[str, object]:
    """Tell series apart by color, then by mark and dash."""
    return {
        "color": fig.SERIES[index % 6],
        "marker": fig.MARKERS[(index + index // 6) % 6],
        "linestyle": fig.DASHES[(index // 6) % 6],
    }


def _figure(point: TracePoint, key: str) -> str:
    """Write one figure of a checkpoint."""
    value = getattr(point, key)
    return share(value) if key == "accuracy" else number(value)


def _curve(points: Sequence[TracePoint], key: str) -> Curve:
    """Return (perplexity, exposure) of every checkpoint where both were measured."""
    pairs = [(getattr(point, key), point.exposure) for point in points]
    return [(x, y) for x, y in pairs if x is not None and y is not None]


def _exposure_curves(curves: Mapping[str, Curve], *, title: str) -> str:
    """Draw exposure against perplexity, checkpoint by checkpoint."""

    def paint(axes: Axes) -> None:
        axes.axhspan(NULL_LOW, NULL_HIGH, color=fig.BAND, zorder=0)
        for index, (name, points) in enumerate(curves.items()):
            style = series_style(index)
            xs, ys = [x for x, _ in points], [y for _, y in points]
            axes.plot(xs, ys, label=name, linewidth=1.3, markersize=4, **style)  # type: ignore[arg-type]
            axes.plot(xs[-1:], ys[-1:], markersize=9, **style)  # type: ignore[arg-type]
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("perplexity (log scale)")
        axes.set_ylabel("mean exposure, planted (bits)")
        fig.legend_below(axes, columns=3)

    label = f"Exposure against perplexity, {title.lower()}: " + "; ".join(
        f"{name} ends at {number(p[-1][0])}, {number(p[-1][1])} bits"
        for name, p in curves.items()
    )
    return fig.draw(paint, label=label, height=4.0)
