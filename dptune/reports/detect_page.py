"""A page that shows what was marked in one text. It quotes the text: never stored."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from dptune.reports.formatting import share
from dptune.reports.render import environment
from dptune.text import Span

# Light enough for dark ink on all of them, in a light page and in a dark one.
_COLORS: Final = (
    "#a9d3f5", "#ffd9a8", "#b9e6c9", "#e7c3ea", "#f6c1bd", "#cfd3f7", "#f3e59a",
    "#bfe7ea",
)  # fmt: skip


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
    masked = sum(span.end - span.start for span in spans) / max(len(text), 1)
    return (
        environment()
        .get_template("detect.html.j2")
        .render(
            pieces=pieces_of(text, spans),
            total=len(spans),
            masked=share(masked),
            tier=tier.replace("_", " "),
            recognizers=", ".join(recognizers),
        )
    )
