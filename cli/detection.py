"""What `detect` and `evaluate-detector` do."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.runs import read_config
from dptune.config import BudgetSettings
from dptune.data.gold import read_gold
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.recognizer import Tier
from dptune.errors import ConfigError, Problem
from dptune.reports.formatting import count, interval, percent
from dptune.reports.pages.detector import (
    detect_page,
    pieces_of,
    quality_page,
    quality_plot,
    quality_png,
)
from dptune.reports.render import page_html
from dptune.review.lists import ListKey, with_lists
from dptune.review.quality import Quality, Share, measure_quality
from dptune.review.store import ReviewStore, write_private
from dptune.text import Span
from dptune.workflow.detect import engine_of
from infra.workspace import current_workspace, llm_access, read_review_key

_MOST_CHARACTERS = 5_000_000
_BATCH = 256


@dataclass(frozen=True, kw_only=True)
class DetectorChoice:
    """Which detector a command asks for.

    Args:
        config: a training configuration; the other choices are its own then.
        tier, recognizers, spacy_pipeline, gliner_model: None and empty by default.
        use_lists: apply the lists of imported reviews.
    """

    config: Path | None
    tier: Tier | None
    recognizers: tuple[str, ...]
    spacy_pipeline: str | None
    gliner_model: str | None
    use_lists: bool

    def build(self) -> DetectionEngine:
        """Build the detector."""
        given = (
            self.tier,
            self.recognizers,
            self.spacy_pipeline,
            self.gliner_model,
        )
        if self.config is not None and any(given):
            message = "must stand alone: it says tier and recognizers itself."
            raise ConfigError([Problem(path="--config", message=message)])
        data_set = BudgetSettings().data_set
        if self.config is not None:
            config = read_config(self.config)
            data_set = config.budget.data_set
            engine = engine_of(config.detection, llm_access())
        else:
            engine = build_engine(
                tier=self.tier or Tier.LOW_ENTITY,
                recognizers=self.recognizers or ("patterns", "lexicon"),
                spacy_pipeline=self.spacy_pipeline,
                gliner_model=self.gliner_model,
            )
        workspace = current_workspace()
        key = read_review_key(workspace) if self.use_lists else None
        if key is None or not workspace.review.is_dir():
            return engine
        state = ReviewStore(workspace.review).read(ListKey(secret=key))
        return with_lists(engine, state.lists.acting_on(data_set), state.key)


def detect_command(source: str, choice: DetectorChoice, *, html: Path | None) -> None:
    """Print a text with its spans, and write the page that was asked for."""
    text = _read_text(source)
    _check_page(html)
    engine = choice.build()
    (spans,) = engine.detect([text])
    console = Console(highlight=False)
    console.print(_colored(text, spans), soft_wrap=True)
    console.print()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("type", "spans", "found by"):
        table.add_column(column, justify="right" if column == "spans" else "left")
    kinds = Counter(span.entity_type for span in spans)
    for kind, number in sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0])):
        finders = sorted({s.recognizer for s in spans if s.entity_type == kind})
        table.add_row(kind, count(number), ", ".join(finders))
    console.print(table)
    masked = sum(span.end - span.start for span in spans) / max(len(text), 1)
    console.print(
        f"{', '.join(engine.recognizers)}, tier {engine.tier.replace('_', ' ')}: "
        f"{len(spans):,} spans, {percent(masked)} of the characters masked",
        style="dim",
    )
    if html is not None:
        page = detect_page(
            text, spans, tier=engine.tier, recognizers=engine.recognizers
        )
        write_private(html, page)
        console.print(f"page    {html}  (restricted: it quotes the text)")


def evaluate_command(
    gold: Path, choice: DetectorChoice, *, output: Path | None, as_json: bool
) -> None:
    """Measure the detector, print the table, write page and figures."""
    if output is not None and output.suffix != ".html":
        message = f"must end in .html, got {output.name!r}."
        raise ConfigError([Problem(path="--output", message=message)])
    if output is not None and not output.parent.is_dir():
        message = f"must be in a folder that exists, got {str(output)!r}."
        raise ConfigError([Problem(path="--output", message=message)])
    rows = read_gold(gold)
    engine = choice.build()
    texts = [row.text for row in rows]
    with Console(stderr=True).status("marking personal data"):
        found = [
            spans
            for first in range(0, len(texts), _BATCH)
            for spans in engine.detect(texts[first : first + _BATCH])
        ]
        quality = measure_quality(
            texts,
            [row.spans for row in rows],
            found,
            tier=engine.tier,
            recognizers=engine.recognizers,
        )
    steps = _next_steps(quality)
    if as_json:
        typer.echo(quality.model_dump_json(indent=2))
    if output is not None or not as_json:
        target = output or _default_output(gold)
        _write(target, quality, source=gold.name, steps=steps)
        if not as_json:
            _print_quality(Console(highlight=False), quality, target, steps)


def _read_text(source: str) -> str:
    """Read a text as it is given, from a file, or from standard input.

    Raises:
        ConfigError: it is empty, too long, or no UTF-8.
    """
    try:
        if source == "-":
            text = sys.stdin.buffer.read(_MOST_CHARACTERS * 4).decode("utf-8")
        elif _is_file(source):
            text = Path(source).read_bytes().decode("utf-8")
        else:
            text = source
    except UnicodeDecodeError:
        raise _unusable("must be UTF-8, but is not.") from None
    if not text.strip():
        raise _unusable("must hold some text, but is empty.")
    if len(text) > _MOST_CHARACTERS:
        raise _unusable(f"must have at most {_MOST_CHARACTERS:,} characters.")
    return text


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except (OSError, ValueError):  # a long text is no file name
        return False


def _unusable(message: str) -> ConfigError:
    return ConfigError([Problem(path="TEXT", message=message)])


def _check_page(html: Path | None) -> None:
    if html is not None and (html.exists() or not html.parent.is_dir()):
        message = f"must be a new file in a folder that exists, got {str(html)!r}."
        raise ConfigError([Problem(path="--html", message=message)])


def _colored(text: str, spans: Sequence[Span]) -> Text:
    """Color the spans; the type stands behind each, for terminals without color."""
    shown = Text()
    for piece in pieces_of(text, spans):
        if piece.kind:
            style = f"#17202b on {piece.color}"
            shown.append(piece.text, style=style)
            shown.append(f"⟨{piece.kind}⟩", style="dim")
        else:
            shown.append(piece.text)
    return shown


def _default_output(gold: Path) -> Path:
    folder = current_workspace().reports
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"detector-{gold.name.partition('.')[0]}.html"


def _write(target: Path, quality: Quality, *, source: str, steps: list[str]) -> None:
    page = quality_page(quality, source=source, next_steps=steps)
    target.write_text(page_html(page), encoding="utf-8")
    target.with_suffix(".png").write_bytes(quality_png(quality))
    target.with_suffix(".svg").write_text(_standalone(quality), encoding="utf-8")


def _standalone(quality: Quality) -> str:
    """Return the figure as a file of its own."""
    svg = quality_plot(quality)
    if "xmlns=" in svg.partition(">")[0]:
        return svg
    return svg.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)


def _print_quality(
    console: Console, quality: Quality, target: Path, steps: list[str]
) -> None:
    """Print the table of the page."""
    console.print(
        f"{quality.num_texts:,} texts, {', '.join(quality.recognizers)}, tier "
        f"{quality.tier.replace('_', ' ')}"
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("", "value", "interval", "of"):
        table.add_column(column, justify="left" if not column else "right")
    totals = (
        ("recall of gold spans", quality.recall),
        ("precision of marks", quality.precision),
        ("words masked", quality.masked),
        ("missing rate (of all words)", quality.missing),
    )
    for name, value in totals:
        table.add_row(name, *_cells(value))
    table.add_section()
    for row in quality.types:
        table.add_row(row.entity_type, *_cells(row.recall))
    console.print(table)
    console.print(f"report  {target}", soft_wrap=True)
    for suffix in (".png", ".svg"):
        console.print(f"figure  {target.with_suffix(suffix)}", soft_wrap=True)
    for step in steps:
        console.print(f"next    {step}", style="dim", soft_wrap=True)


def _cells(value: Share) -> tuple[str, str, str]:
    measured = interval(value.interval, as_percent=True)
    return percent(value.value), measured, count(value.count)


def _next_steps(quality: Quality) -> list[str]:
    """Say what would help most."""
    steps = []
    worst = min(quality.types, key=lambda row: row.recall.value, default=None)
    if worst is not None and worst.recall.value < 0.95:
        steps.append(
            f"{worst.entity_type} is missed most: add a recognizer (--spacy-pipeline, "
            "--recognizer presidio, --gliner-model), or a wider --tier"
        )
    if quality.masked.value > 0.4:
        steps.append("much is masked: a narrower --tier keeps more of the text")
    steps.append(
        "measure it on your own text: python run.py review export CONFIG --html FILE"
    )
    return steps
