"""Pages about a detector: what it marks in a text, how good it is, what it missed.

**Privacy.** The pages of a text and of a review quote record text, for a person who may
read the corpus. They are never an artifact: the command line writes them where its user
says, for the user alone. The review page asks no network for anything (a content
security policy forbids it), keeps nothing in the browser, and what it saves are places
and numbers.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from dptune.reports.blocks import (
    Bullets,
    Page,
    Plot,
    facts,
    page,
    section,
    table_of,
)
from dptune.reports.figures import canvas as fig
from dptune.reports.formatting import count, interval, percent, words
from dptune.reports.render import TEMPLATES, environment
from dptune.review.crosscheck import CheckedSentence
from dptune.review.quality import Quality, Share
from dptune.review.sample import Excerpt, masked
from dptune.review.store import SampleRecord
from dptune.text import Span

# Light enough for dark ink on all of them, in a light page and in a dark one.
_COLORS: Final = (
    "#a9d3f5", "#ffd9a8", "#b9e6c9", "#e7c3ea", "#f6c1bd", "#cfd3f7", "#f3e59a",
    "#bfe7ea",
)  # fmt: skip
_MEANINGS: Final = {
    "low_entity": "names of persons, organizations and places, dates, and everything "
    "that identifies, such as addresses, numbers and ids.",
    "high_entity": "all names and numbers: persons, organizations, places, dates, "
    "times, amounts, products, events, works, laws, and everything that identifies.",
    "low_contextual": "all names and numbers, and also pronouns, subjects and objects.",
    "high_contextual": "all names and numbers, pronouns, subjects, objects, and verbs.",
}
_HINTS: Final = {
    "agree": "a language model lists nothing else",
    "disagree": "a language model lists what is underlined",
    "unavailable": "no language model could judge this sentence",
}
_MOST_TYPES: Final = 40


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Part of a text: one span, or what lies between two; hidden from `repr`."""

    text: str = field(repr=False)
    kind: str = ""
    color: str = ""
    note: str = ""


def pieces_of(text: str, spans: Sequence[Span]) -> list[Piece]:
    """Cut a text at its spans.

    Args:
        text: the text.
        spans: disjoint and sorted.
    """
    pieces: list[Piece] = []
    position = 0
    for span in spans:
        pieces.append(Piece(text=text[position : span.start]))
        pieces.append(
            Piece(
                text=text[span.start : span.end],
                kind=span.entity_type,
                color=color_of(span.entity_type),
                note=f"{span.recognizer}, confidence {span.confidence:.2f}",
            )
        )
        position = span.end
    pieces.append(Piece(text=text[position:]))
    return [piece for piece in pieces if piece.text]


def color_of(entity_type: str) -> str:
    """Return the color of a type: the same in every run."""
    return _COLORS[zlib.crc32(entity_type.encode()) % len(_COLORS)]


def detect_page(
    text: str, spans: Sequence[Span], *, tier: str, recognizers: Sequence[str]
) -> str:
    """Return the page as one self-contained HTML document, without any script."""
    marked = sum(span.end - span.start for span in spans) / max(len(text), 1)
    return (
        environment()
        .get_template("detect.html.j2")
        .render(
            pieces=pieces_of(text, spans),
            total=len(spans),
            masked=percent(marked),
            tier=words(tier),
            recognizers=", ".join(recognizers),
        )
    )


def quality_page(found: Quality, *, source: str, next_steps: Sequence[str]) -> Page:
    """Lay out recall, precision, masked fraction, and recall by type.

    Args:
        found: the measurement.
        source: name of the gold file.
        next_steps: one sentence each.
    """
    figures = {
        "Recall of gold spans": found.recall,
        "Precision of marks": found.precision,
        "Words masked": found.masked,
        "False-negative rate (missing rate, of all words)": found.missing,
    }
    return page(
        section(
            "In all",
            facts(
                *(
                    (
                        label,
                        percent(value.value),
                        (
                            f"{interval(value.interval, as_percent=True)}, of "
                            f"{count(value.count)}"
                        ),
                    )
                    for label, value in figures.items()
                )
            ),
        ),
        section(
            "By type",
            Plot(svg=quality_plot(found), caption="Recall with its interval."),
            table_of(
                found.types,
                ("Type", lambda row: row.entity_type),
                ("Gold spans", lambda row: count(row.recall.count)),
                ("Recall", lambda row: percent(row.recall.value)),
                (
                    "Interval",
                    lambda row: interval(row.recall.interval, as_percent=True),
                ),
                numeric=(1, 2),
            ),
        ),
        section("Next", Bullets(items=tuple(next_steps), ordered=True)),
        label="Detector",
        title=f"{', '.join(found.recognizers)} on {source}",
        subtitle=f"{count(found.num_texts)} texts, tier {words(found.tier)}. A span is "
        "found if all its letters and digits are covered, whatever it was called. "
        "Intervals take texts for clusters.",
    )


def quality_plot(found: Quality) -> str:
    """Draw recall by type as inline SVG."""
    rows = _rows(found)
    return fig.draw(
        lambda axes: _paint(axes, rows),
        label=f"Recall of {len(rows)} types with intervals",
        height=1.0 + 0.3 * len(rows),
    )


def quality_png(found: Quality) -> bytes:
    """Draw recall by type as a PNG."""
    rows = _rows(found)
    return fig.draw_png([lambda axes: _paint(axes, rows)], height=1.0 + 0.3 * len(rows))


def review_page(
    record: SampleRecord,
    excerpts: Sequence[Excerpt],
    *,
    opinions: Mapping[str, CheckedSentence] | None = None,
) -> str:
    """Return the page as one self-contained HTML document.

    Args:
        record: the sample.
        excerpts: its sentences, in the order in which they are shown.
        opinions: of a language model, by sentence; a hint, which decides nothing.
    """
    script = (TEMPLATES / "review.js").read_text(encoding="utf-8")
    css = (TEMPLATES / "review.css").read_text(encoding="utf-8")
    # the page's own script and style, by their hashes, and nothing else
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src "
        f"'{_digest(css)}'; base-uri 'none'; form-action 'none'"
    )
    template = environment().get_template("review.html.j2")
    return template.render(
        policy=policy,
        css=Markup(css),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        data=Markup(_data(record, excerpts, opinions or {})),  # noqa: S704 - JSON without `<`
        count=len(excerpts),
        config=record.config,
        sample=record.id,
        recognizers=", ".join(record.recognizers),
        tier=record.tier.replace("_", " "),
        meaning=_MEANINGS[record.tier],
    )


def masked_lines(excerpts: Sequence[Excerpt]) -> Iterator[str]:
    """Yield one JSON line for each sentence, with placeholders for what was marked.

    **Formal guarantee.** No code point of a mark is in a line. What the detector missed
    is: that is what readers look for, so the lines are as private as the corpus.
    """
    for excerpt in excerpts:
        shown = masked(excerpt)
        yield json.dumps(
            {
                "id": excerpt.sentence.id,
                "stratum": excerpt.sentence.stratum,
                "text": shown.text,
                "marks": [
                    {"start": start, "end": end}
                    for (start, end), _ in shown.placeholders
                ],
            },
            ensure_ascii=False,
        )


def _rows(found: Quality) -> list[tuple[str, Share]]:
    """Take the types, worst first, and all together."""
    ordered = sorted(found.types, key=lambda row: row.recall.value)[:_MOST_TYPES]
    return [*((r.entity_type, r.recall) for r in ordered), ("all", found.recall)]


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


def _digest(source: str) -> str:
    """Return the hash of a script or style, as a policy names it."""
    digest = hashlib.sha256(source.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _data(
    record: SampleRecord,
    excerpts: Sequence[Excerpt],
    opinions: Mapping[str, CheckedSentence],
) -> str:
    """Write the sentences as JSON that cannot end its element."""
    values: dict[str, Any] = {
        "sample": record.id,
        "items": [
            {
                "id": excerpt.sentence.id,
                "text": excerpt.text,
                "before": excerpt.before[-400:],
                "after": excerpt.after[:400],
                "marks": [
                    [mark.start, mark.end, mark.entity_type, mark.firm]
                    for mark in excerpt.sentence.marks
                ],
                "hint": _HINTS[found.opinion] if found else "",
                "doubts": [list(d) for d in found.doubts] if found else [],
            }
            for excerpt in excerpts
            for found in [opinions.get(excerpt.sentence.id)]
        ],
    }
    return json.dumps(values).replace("<", "\\u003c")
