"""The common ground of all figures: size, colors, type, axes, and inline SVG out.

Figures are drawn with matplotlib's object API, never through `pyplot`, so that nothing
is left behind in the process. Text stays text: it can be selected, searched and read
aloud, and takes the fonts of the page around it.
"""

import hashlib
import html
import io
import math
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure, FigureBase
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullLocator,
)

from dptune.reports.formatting import number, visible

# Okabe & Ito (2008): eight colors that the color-blind can tell apart.
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
GREEN: Final = "#009E73"
PURPLE: Final = "#AA4499"
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
INK: Final = "#1C2530"
MUTED: Final = "#5B6673"
RULE: Final = "#D9DEE4"
BAND: Final = "#EEF1F4"
SERIES: Final = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)
MARKERS: Final = ("o", "s", "D", "^", "v", "P")
DASHES: Final = ("-", "--", "-.", (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)), (0, (8, 2)))

NULL_MEAN: Final = 1 / math.log(2)
"""Mean exposure in bits of canaries that no model ever saw: P(exposure > x) = 2^-x."""
NULL_LOW: Final = -math.log2(0.975)
NULL_HIGH: Final = -math.log2(0.025)
"""Between them lie 95 % of such canaries."""

_FONTS: Final = "system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif"
_STYLE: Final[dict[Any, Any]] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dptune",
    "font.family": "DejaVu Sans",
    "font.size": 11.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 11.0,
    "axes.labelpad": 6.0,
    "axes.unicode_minus": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.minor.visible": False,
    "ytick.minor.visible": False,
    "text.color": INK,
    "text.parse_math": False,
    "legend.frameon": False,
    "legend.fontsize": 10.0,
    "path.simplify": True,
}


def draw(
    paint: Callable[[Axes], None],
    *,
    label: str,
    height: float = 3.4,
    width: float = 6.4,
) -> str:
    """Paint one pair of axes and return it as an inline `<svg>` element.

    The same input gives the same bytes. Identifiers inside are made unique by content,
    so that several figures can share one page.

    Args:
        paint: draws on the axes it is given.
        label: what the figure shows, for people who cannot see it.
        height: inches.
        width: inches; 6.4 is 461 points, and the page scales it.
    """
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.patch.set_facecolor("white")
        FigureCanvasSVG(figure)
        paint(figure.add_subplot())
        sink = io.StringIO()
        figure.savefig(sink, format="svg", metadata={"Date": None, "Creator": None})
    return _inline(sink.getvalue(), label=label)


def draw_png(paints: Sequence[Callable[[Axes], None]], *, height: float = 3.8) -> bytes:
    """Paint several pairs of axes side by side and return them as a PNG.

    Args:
        paints: at least one; each draws on the axes it is given, 6.4 inches wide.
        height: inches.
    """
    with rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        size = (6.4 * len(paints), height)
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        FigureCanvasAgg(figure)
        parts = figure.subfigures(1, len(paints), squeeze=False)[0]
        for paint, part in zip(paints, parts, strict=True):
            paint(part.add_subplot())
        sink = io.BytesIO()
        figure.savefig(sink, format="png", dpi=120, metadata={"Software": None})
    return sink.getvalue()


def legend_below(axes: Axes, *, columns: int = 2) -> None:
    """Put the legend under the axes, where it covers no data."""
    handles, _ = axes.get_legend_handles_labels()
    figure = axes.get_figure()
    if handles and isinstance(figure, FigureBase):
        figure.legend(loc="outside lower left", ncols=min(columns, len(handles)))


def note(axes: Axes, text: str, x: float, height: float, *, left: bool = False) -> None:
    """Write a small note beside `x`, near the top of the axes.

    Args:
        axes: to write on.
        text: of the note.
        x: in data units.
        height: of the axes, 1 at the top.
        left: write it at the left of `x`.
    """
    axes.annotate(
        text,
        (x, height),
        xycoords=("data", "axes fraction"),
        xytext=(-4 if left else 4, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="top",
        fontsize=9.5,
        color=MUTED,
    )


def series_style(index: int, *, dashed: bool = False) -> dict[str, Any]:
    """Tell series apart by color, then by mark and dash.

    Args:
        index: of the series.
        dashed: give each a dash of its own, where lines may lie on each other.
    """
    return {
        "color": SERIES[index % 6],
        "marker": MARKERS[(index if dashed else index + index // 6) % 6],
        "linestyle": DASHES[(index if dashed else index // 6) % 6],
    }


def step_axis(axes: Axes, label: str) -> None:
    """Count steps on the x axis."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(label)


def plain_ticks(
    axis: Axis,
    *,
    digits: Sequence[float] = (1.0, 2.0, 3.0, 5.0),
    at: Sequence[float] | None = None,
    form: Callable[[float], str] = number,
) -> None:
    """Write an axis in plain numbers, a logarithmic one with a few for each decade.

    Args:
        axis: x or y.
        digits: those that numbers may begin with.
        at: where the ticks are, instead.
        form: how a number is written.
    """
    place = LogLocator(subs=digits, numticks=8) if at is None else FixedLocator(at)
    axis.set_major_locator(place)
    axis.set_major_formatter(FuncFormatter(lambda value, _: form(float(value))))
    axis.set_minor_locator(NullLocator())


def _inline(svg: str, *, label: str) -> str:
    """Strip the XML prologue and metadata; add a label and unique ids."""
    body = visible(svg[svg.index("<svg") :].strip())
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(r"<!--.*?-->\s*", "", body, flags=re.DOTALL)
    body = re.sub(r' xmlns:xlink="[^"]*"', "", body)
    body = body.replace("xlink:href=", "href=")
    body = re.sub(r"'DejaVu Sans'(, [^;\"]*)?", _FONTS, body)
    used = set(re.findall(r'href="#([^"]+)"', body))
    used |= set(re.findall(r"url\(#([^)]+)\)", body))
    prefix = "f" + hashlib.sha256((label + body).encode()).hexdigest()[:8] + "-"
    body = re.sub(
        r' id="([^"]+)"',
        lambda m: f' id="{prefix}{m[1]}"' if m[1] in used else "",
        body,
    )
    body = body.replace('href="#', f'href="#{prefix}')
    body = body.replace("url(#", f"url(#{prefix}")
    head = f'<svg class="plot" role="img" aria-label="{html.escape(visible(label))}"'
    return body.replace("<svg", head, 1)
