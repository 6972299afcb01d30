"""Blocks and figures for a detector's quality against gold spans: counts, no text."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from dptune.reports import _figure as fig
from dptune.reports.blocks import Bullets, Page, Plot, Section, facts, table
from dptune.reports.formatting import count, interval, share, words
from dptune.review.quality import Quality, Share, TypeRecall

_MOST_TYPES = 40


def quality_page(found: Quality, *, source: str, next_steps: Sequence[str]) -> Page:
    """Lay out recall, precision, masked share, and recall by type.

    Args:
        found: the measurement.
        source: name of the gold file.
        next_steps: one sentence each.
    """
    return Page(
        kicker="Detector",
        title=f"{', '.join(found.recognizers)} on {source}",
        lede=f"{count(found.num_texts)} texts, tier {words(found.tier)}. A span is "
        "found if all its letters and digits are covered, whatever it was called. "
        "Intervals take texts for clusters.",
        sections=(
            Section(
                title="In all",
                blocks=(
                    facts(
                        _fact("Recall of gold spans", found.recall),
                        _fact("Precision of marks", found.precision),
                        _fact("Words masked", found.masked),
                        _fact("Missing rate (of all words)", found.missing),
                    ),
                ),
            ),
            Section(
                title="By type",
                blocks=(
                    Plot(svg=quality_plot(found), caption="Recall with its interval."),
                    table(
                        ("Type", "Gold spans", "Recall", "Interval"),
                        (
                            (
                                row.entity_type,
                                count(row.recall.count),
                                share(row.recall.value),
                                interval(row.recall.interval, as_share=True),
                            )
                            for row in found.types
                        ),
                        numeric=(1, 2),
                    ),
                ),
            ),
            Section(
                title="Next", blocks=(Bullets(items=tuple(next_steps), ordered=True),)
            ),
        ),
    )


def quality_plot(found: Quality) -> str:
    """Draw recall by type as inline SVG."""
    rows = _rows(found)
    return fig.draw(
        lambda axes: _paint(axes, rows),
        label=f"Recall of {len(rows)} types with intervals",
        height=_height(rows),
    )


def quality_png(found: Quality) -> bytes:
    """Draw recall by type as a PNG."""
    rows = _rows(found)
    return fig.draw_png([lambda axes: _paint(axes, rows)], height=_height(rows))


def _rows(found: Quality) -> list[tuple[str, Share]]:
    """Take the types, worst first, and all together."""
    ordered = sorted(found.types, key=_recall_of)[:_MOST_TYPES]
    return [*((r.entity_type, r.recall) for r in ordered), ("all", found.recall)]


def _recall_of(row: TypeRecall) -> float:
    return row.recall.value


def _height(rows: Sequence[tuple[str, Share]]) -> float:
    return 1.0 + 0.3 * len(rows)


def _paint(axes: Axes, rows: Sequence[tuple[str, Share]]) -> None:
    """Draw a dot and its interval for each row, the first on top."""
    for place, (name, value) in enumerate(reversed(rows)):
        color = fig.INK if name == "all" else fig.BLUE
        ends = (value.interval.low, value.interval.high)
        axes.plot(ends, (place, place), color=color, linewidth=2.0)
        axes.plot(value.value, place, marker="o", color=color, markersize=5.5)
    names = [f"{name} ({value.count:,})" for name, value in reversed(rows)]
    axes.set_yticks(range(len(rows)), labels=names)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{100 * x:.0f} %"))
    axes.set_xlabel("recall, 95 % interval (gold spans in brackets)")


def _fact(label: str, value: Share) -> tuple[str, str, str]:
    return (
        label,
        share(value.value),
        f"{interval(value.interval, as_share=True)}, of {count(value.count)}",
    )
