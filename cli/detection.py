"""Which detector a command asks for, and what `evaluate-detector` does."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from cli.printing import say_next, speaker
from cli.runs import read_config
from dptune.config import DetectionSettings
from dptune.data.gold import read_gold
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.recognizer import Tier
from dptune.detection.settings import TokenClassifierSettings
from dptune.errors import ConfigError, DependencyError, Problem, ProblemsError
from dptune.reports.formatting import count, interval, percent
from dptune.reports.pages.detector import quality_page, quality_plot, quality_png
from dptune.reports.render import page_html
from dptune.review.lists import ListKey, with_lists
from dptune.review.quality import Quality, Share, measure_quality, misses_text
from dptune.review.store import ReviewStore, write_private
from dptune.settings import BudgetSettings
from dptune.workflow.detect import engine_of
from infra.workspace import current_workspace, llm_access, read_review_key

_BATCH = 256


@contextmanager
def collecting(problems: list[Problem]) -> Iterator[None]:
    """Note what is wrong inside, so that all of it is told at once."""
    try:
        yield
    except ProblemsError as error:
        problems += error.problems
    except DependencyError as error:
        problems.append(Problem(path="", message=str(error)))


@dataclass(frozen=True, kw_only=True)
class DetectorChoice:
    """Which detector a command asks for.

    Args:
        config: a training configuration; the other choices are its own then.
        tier, recognizers, spacy_pipeline, gliner_model, token_classifier: None and
            empty by default. What is named adds to the default recognizers.
        only: leave the default ones out.
        use_lists: apply the lists of imported reviews.
    """

    config: Path | None
    tier: Tier | None
    recognizers: tuple[str, ...]
    only: bool
    spacy_pipeline: str | None
    gliner_model: str | None
    token_classifier: str | None
    use_lists: bool

    def build(self) -> DetectionEngine:
        """Build the detector.

        Raises:
            ConfigError: the choices contradict each other, or name nothing.
            DependencyError: what they name is not installed.
        """
        named = (self.spacy_pipeline, self.gliner_model, self.token_classifier)
        if self.config is not None and any(
            (self.tier, self.recognizers, self.only, *named)
        ):
            message = "must stand alone: it says tier and recognizers itself."
            raise ConfigError.at("--config", message)
        if self.only and not any((self.recognizers, *named)):
            message = "must stand beside a recognizer that is named."
            raise ConfigError.at("--only", message)
        data_set = BudgetSettings().data_set
        if self.config is not None:
            config = read_config(self.config)
            data_set = config.budget.data_set
            # valid answers quote the text: a run keeps them, nobody else
            access = replace(llm_access(), cache_file=None)
            engine = engine_of(config.detection, access)
        else:
            engine = self._build()
        workspace = current_workspace()
        key = read_review_key(workspace) if self.use_lists else None
        if key is None or not workspace.review.is_dir():
            return engine
        state = ReviewStore(workspace.review).read(ListKey(secret=key))
        return with_lists(engine, state.lists.acting_on(data_set), state.key)

    def _build(self) -> DetectionEngine:
        """Build what the options name, beside the default recognizers."""
        default = () if self.only else DetectionSettings().recognizers
        model = self.token_classifier
        return build_engine(
            tier=self.tier or Tier.LOW_ENTITY,
            recognizers=(*default, *self.recognizers),
            spacy_pipeline=self.spacy_pipeline,
            gliner_model=self.gliner_model,
            token_classifier=TokenClassifierSettings(model=model) if model else None,
        )


def evaluate_command(
    gold: Path,
    choice: DetectorChoice,
    *,
    output: Path | None,
    misses: Path | None,
    as_json: bool,
) -> None:
    """Measure the detector, print the table, write page, figures and misses."""
    problems = _output_problems(output) + new_file_problems("--misses", misses)
    rows, engine = [], None
    with collecting(problems):
        rows = read_gold(gold)
    with collecting(problems):
        engine = choice.build()
    if problems or engine is None:
        raise ConfigError(problems)
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
    if misses is not None:
        gold_spans = [row.spans for row in rows]
        write_private(misses, misses_text(texts, gold_spans, found))
    steps = _next_steps(quality)
    if as_json:
        typer.echo(quality.model_dump_json(indent=2))
    if output is not None or not as_json:
        target = output or _default_output(gold)
        _write(target, quality, source=gold.name, steps=steps)
        if not as_json:
            _print_quality(speaker(), quality, target, steps)
    if misses is not None and not as_json:
        typer.echo(f"misses  {misses}  (restricted: it quotes the texts)")


def new_file_problems(option: str, file: Path | None) -> list[Problem]:
    """Find what keeps a private file from being written: none is ever replaced."""
    if file is None or (not file.exists() and file.parent.is_dir()):
        return []
    message = f"must be a new file in a folder that exists, got {str(file)!r}."
    return [Problem(path=option, message=message)]


def _output_problems(output: Path | None) -> list[Problem]:
    """Find what keeps the report from being written."""
    if output is None:
        return []
    problems = []
    if output.suffix != ".html":
        message = f"must end in .html, got {output.name!r}."
        problems.append(Problem(path="--output", message=message))
    if not output.parent.is_dir():
        message = f"must be in a folder that exists, got {str(output)!r}."
        problems.append(Problem(path="--output", message=message))
    return problems


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
    say_next(console, *steps)


def _cells(value: Share) -> tuple[str, str, str]:
    measured = interval(value.interval, as_percent=True)
    return percent(value.value), measured, count(value.count)


def _next_steps(quality: Quality) -> list[str]:
    """Say what would help most."""
    steps = []
    worst = min(quality.types, key=lambda row: row.recall.value, default=None)
    if worst is not None and worst.recall.value < 0.95:
        steps.append(
            f"{worst.entity_type} is missed most: read what is missed (--misses FILE), "
            "add a recognizer (--token-classifier, --spacy-pipeline, --gliner-model, "
            "--recognizer presidio), or a wider --tier"
        )
    if quality.masked.value > 0.4:
        steps.append("much is masked: a narrower --tier keeps more of the text")
    steps.append("measure it on your own text: dptune review export CONFIG --html FILE")
    return steps
