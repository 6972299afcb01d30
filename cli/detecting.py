"""What `detect` does: texts, files, folders, corpora; shown, as JSON, or redacted."""

import json
import sys
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cli.detection import DetectorChoice, collecting, new_file_problems
from cli.printing import speaker
from cli.runs import read_config
from dptune.config import TrainConfig
from dptune.conversation import CALL, TOOLS, messages_of, num_said, tools_of, turns_of
from dptune.data.source import learnt_roles
from dptune.detection.engine import DetectionEngine
from dptune.detection.labelling import detect_dataset
from dptune.errors import ConfigError, Problem
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import Operator, RedactionSettings
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.reports.formatting import count, percent
from dptune.reports.pages.detector import detect_page, pieces_of
from dptune.review.store import write_private
from dptune.text import Span
from dptune.workflow.ingest import read_corpus
from dptune.workflow.redact import pseudonyms_of
from infra.workspace import (
    current_workspace,
    data_root,
    ensure_budget_key,
    read_redaction_key,
)

_MOST_CHARACTERS = 5_000_000
_MOST_PROBLEMS = 20
_TEXT_FILES = {".txt", ".json", ".jsonl", ".csv", ".tsv", ".log", ".gz"}
_OF_CONFIG = "config"


@dataclass(frozen=True, kw_only=True)
class DetectOptions:
    """What is done with what was found.

    Args:
        html: a new page for one text.
        as_json: print a JSON object a text instead.
        redact: name of an operator, or `config` for what the configuration says.
        output: a new file, or for a folder a new folder, for the redacted texts.
    """

    html: Path | None
    as_json: bool
    redact: str | None
    output: Path | None


@dataclass(frozen=True, kw_only=True)
class _Read:
    """One text, hidden from `repr`, its name, whose it is, and what was found."""

    name: str
    text: str = field(repr=False)
    unit: str
    split: str = ""
    spans: tuple[Span, ...] = ()


def detect_command(
    source: str | None, choice: DetectorChoice, options: DetectOptions
) -> None:
    """Show what the detector marks; write only what was asked for.

    Raises:
        ConfigError: with everything that is wrong, before anything is read.
    """
    problems = _option_problems(source, choice, options)
    engine, config, redact = None, None, None
    with collecting(problems):
        engine = choice.build()
    if choice.config is not None:
        with collecting(problems):
            config = read_config(choice.config)
    with collecting(problems):
        redact = _redactor(options.redact, config)
    names = _sources(source, problems)
    if problems or engine is None:
        raise ConfigError(list(dict.fromkeys(problems)))
    if source is None and config is not None:
        rows = _marked_corpus(config, engine)
    else:
        rows = _marked(names, engine)
    learnt = learnt_roles(config.data.source) if config else ()
    if options.output is not None and redact is not None:
        _write_redacted(rows, redact, source, options.output, learnt)
    elif options.as_json:
        for row in rows:
            typer.echo(_as_json(row, redact, learnt))
    elif redact is not None:
        for row in rows:
            typer.echo(redact(row))
    elif source is not None and len(names) == 1 and not Path(source).is_dir():
        _show(next(iter(rows)), engine, options.html)
    else:
        _show_many(rows, engine)


def _option_problems(
    source: str | None, choice: DetectorChoice, options: DetectOptions
) -> list[Problem]:
    """Find options that contradict each other."""
    several = source is None or _is_folder(source)
    problems = new_file_problems("--html", options.html)
    problems += new_file_problems("--output", options.output)
    rules = [
        ("TEXT", source is None and choice.config is None,
         "must be a text, a file or a folder, or --config must name a corpus."),
        ("--html", options.html is not None and several,
         "must be left out for a folder or a corpus: it shows one text."),
        ("--html", options.html is not None and options.redact is not None,
         "must be left out beside --redact: it shows the text as it is."),
        ("--output", options.output is not None and options.redact is None,
         "must stand beside --redact: it is for redacted texts."),
        ("--output", options.output is None and several and options.redact is not None
         and not options.as_json, "must name a new place for redacted texts."),
        ("--json", options.as_json and options.output is not None,
         "must be left out beside --output."),
    ]  # fmt: skip
    return problems + [
        Problem(path=path, message=message)
        for path, is_wrong, message in rules
        if is_wrong
    ]


_Redact = Callable[[_Read], str]


def _redactor(name: str | None, config: TrainConfig | None) -> _Redact | None:
    """Return how a text is redacted; None where it is not.

    Raises:
        ConfigError: no such operator, or it lacks its key.
    """
    if name is None:
        return None
    known = [*(operator.value for operator in Operator), _OF_CONFIG]
    if name not in known or (name == _OF_CONFIG and config is None):
        message = f"must be one of {', '.join(known)} (beside --config), got {name!r}."
        raise ConfigError.at("--redact", message)
    settings = (
        RedactionSettings(operator=Operator(name)) if name != _OF_CONFIG else None
    )
    settings = settings or (config.redaction if config else RedactionSettings())
    if Operator.ENCRYPT in settings.used:
        read_redaction_key(settings.encryption_key)  # refused before a key is made

    @cache
    def keys() -> Pseudonyms | None:
        return pseudonyms_of(
            settings, lambda: ensure_budget_key(current_workspace()), read_redaction_key
        )

    def redact(row: _Read) -> str:
        return _redacted(row, settings, keys())

    return redact


def _redacted(row: _Read, settings: RedactionSettings, keys: Pseudonyms | None) -> str:
    return redact_text(
        row.text,
        row.spans,
        settings.operator,
        by_type=settings.operators,
        merge_adjacent=settings.merge_adjacent,
        pseudonyms=keys,
        unit_id=row.unit,
    ).text


def _sources(source: str | None, problems: list[Problem]) -> dict[str, str | Path]:
    """Name the texts of a source: a text itself, or files, which are looked at here.

    Args:
        source: a text, a file, a folder, `-`, or None for a corpus.
        problems: where what cannot be read is noted.
    """
    if source is None:
        return {}
    if not _is_folder(source):
        # A text as it is given would stand in logs.
        name = Path(source).name if _is_file(source) else "text"
        single: dict[str, str | Path] = {}
        with collecting(problems):
            single[name] = _read_text(source)
        return single
    folder = Path(source)
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }
    if not files:
        message = "must hold a file, but has none that is not hidden."
        problems.append(Problem(path=folder.name, message=message))
    found: list[Problem] = []
    for name, path in files.items():
        try:
            _read_text(str(path), may_be_empty=True)
        except ConfigError as error:
            message = error.problems[0].message
            found.append(Problem(path=name, message=message))
    problems += found[:_MOST_PROBLEMS]
    if len(found) > _MOST_PROBLEMS:
        message = f"has {len(found) - _MOST_PROBLEMS} files more that cannot be read."
        problems.append(Problem(path=folder.name, message=message))
    return dict(files)


def _marked(names: dict[str, str | Path], engine: DetectionEngine) -> Iterator[_Read]:
    """Read and mark one text after another."""
    for name, given in names.items():
        text = (
            given
            if isinstance(given, str)
            else _read_text(str(given), may_be_empty=True)
        )
        (spans,) = engine.detect([text])
        yield _Read(name=name, text=text, unit=name, spans=spans)


def _marked_corpus(config: TrainConfig, engine: DetectionEngine) -> Iterator[_Read]:
    """Read and mark the corpus of a configuration; known values of units included."""
    with current_workspace().work() as folder:
        corpus = read_corpus(
            config.data, data_root=data_root(), validate=False, folder=folder
        )
    labelled = detect_dataset(
        corpus.dataset, engine, num_proc=config.detection.num_processes
    )
    for row in labelled:
        yield _Read(
            name=row["id"],
            text=row["text"],
            unit=row["unit_id"],
            split=row["split"],
            spans=tuple(map(Span.from_row, row["spans"])),
        )


def _as_json(row: _Read, redact: _Redact | None, learnt: Collection[str]) -> str:
    """Write what was found in a text as one JSON object; never the text itself."""
    found = {
        "source": row.name,
        "num_characters": num_said(row.text),
        "spans": [_in_message(span, row.text) for span in row.spans],
    }
    if redact is not None:
        redacted = redact(row)
        found["redacted"] = messages_of(redacted, learnt=learnt) or redacted
        found |= _declared(redacted)
    return json.dumps(found, ensure_ascii=False)


def _in_message(span: Span, text: str) -> dict[str, object]:
    """Write a span; of a conversation as a place in a message, and its number."""
    found: dict[str, object] = asdict(span)
    number = call = -1
    num_tools = sum(turn.role == TOOLS for turn in turns_of(text))
    for place, turn in enumerate(turns_of(text), start=-num_tools):
        is_call = turn.role == CALL
        number, call = (number, call + 1) if is_call else (number + (place >= 0), -1)
        if turn.start <= span.start < turn.start + len(turn.content):
            _, places = turn.said()
            start, end = (bisect_left(places, at) for at in (span.start, span.end))
            inside = {"message": number} if place >= 0 else {"tool": num_tools + place}
            found |= {**inside, "start": start, "end": end}
            found |= {"tool_call": call} if is_call else {}
    return found


def _said(text: str, learnt: Collection[str]) -> dict[str, object]:
    """Write a record as its source has it: a text, or messages."""
    messages = messages_of(text, learnt=learnt)
    return {"messages": messages, **_declared(text)} if messages else {"text": text}


def _declared(text: str) -> dict[str, object]:
    """Write the functions that a conversation declares, if it does."""
    tools = tools_of(text)
    return {"tools": tools} if tools else {}


def _write_redacted(
    rows: Iterator[_Read],
    redact: _Redact,
    source: str | None,
    output: Path,
    learnt: Collection[str],
) -> None:
    """Write redacted texts for their owner alone: a file, a folder, or JSON lines."""
    if source is None:
        lines = (
            json.dumps(
                {
                    "id": r.name,
                    "unit_id": r.unit,
                    "split": r.split,
                    **_said(redact(r), learnt),
                },
                ensure_ascii=False,
            )
            for r in rows
        )
        write_private(output, "\n".join([*lines, ""]))
        typer.echo(f"records {output}  (restricted)")
        return
    if not _is_folder(source):
        write_private(output, redact(next(rows)))
        typer.echo(f"text    {output}  (restricted)")
        return
    number = 0
    for row in rows:
        target = output / row.name
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(target, redact(row))
        number += 1
    typer.echo(f"{count(number)} files {output}  (restricted)")


def _show(row: _Read, engine: DetectionEngine, html: Path | None) -> None:
    """Print a text with its spans, and write the page that was asked for."""
    console = speaker()
    console.print(_colored(row.text, row.spans), soft_wrap=True)
    console.print()
    _print_types(console, row.spans)
    _print_sum(console, engine, len(row.spans), _share([row]))
    if html is not None:
        page = detect_page(
            row.text, row.spans, tier=engine.tier, recognizers=engine.recognizers
        )
        write_private(html, page)
        console.print(f"page    {html}  (restricted: it quotes the text)")


def _show_many(rows: Iterator[_Read], engine: DetectionEngine) -> None:
    """Print a row for each file or record that has marks, and the types of all."""
    console = speaker()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("source", "spans", "masked"):
        table.add_column(column, justify="left" if column == "source" else "right")
    number = masked = characters = 0
    spans: list[Span] = []
    for row in rows:
        number += 1
        characters += len(row.text)
        masked += sum(span.end - span.start for span in row.spans)
        spans += row.spans
        if row.spans:
            table.add_row(Text(row.name), count(len(row.spans)), percent(_share([row])))
    console.print(table)
    _print_types(console, spans)
    console.print(f"{count(number)} texts", style="dim")
    _print_sum(console, engine, len(spans), masked / max(characters, 1))


def _share(rows: Sequence[_Read]) -> float:
    masked = sum(span.end - span.start for row in rows for span in row.spans)
    return masked / max(sum(len(row.text) for row in rows), 1)


def _print_types(console: Console, spans: Sequence[Span]) -> None:
    """Print how many spans there are of each type, and who found them."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("type", "spans", "found by"):
        table.add_column(column, justify="right" if column == "spans" else "left")
    kinds = Counter(span.entity_type for span in spans)
    for kind, number in sorted(kinds.items(), key=lambda pair: (-pair[1], pair[0])):
        finders = sorted({s.recognizer for s in spans if s.entity_type == kind})
        table.add_row(kind, count(number), ", ".join(finders))
    console.print(table)


def _print_sum(
    console: Console, engine: DetectionEngine, number: int, masked: float
) -> None:
    console.print(
        f"{', '.join(engine.recognizers)}, tier {engine.tier.replace('_', ' ')}: "
        f"{number:,} spans, {percent(masked)} of the characters masked",
        style="dim",
    )


def _read_text(source: str, *, may_be_empty: bool = False) -> str:
    """Read a text as it is given, from a file, or from standard input.

    Args:
        source: a text, a file, or `-`.
        may_be_empty: it is one of several, which are worth a look without it.

    Raises:
        ConfigError: it is empty and may not be, too long, no UTF-8, or names a file
            that is not there.
    """
    if _names_absent_file(source):
        raise ConfigError.at(
            "TEXT",
            "must be a file that exists, got a path that leads nowhere.",
            "If this is the text itself, give it on standard input: -",
        )
    try:
        if source == "-":
            text = sys.stdin.buffer.read(_MOST_CHARACTERS * 4).decode("utf-8")
        elif _is_file(source):
            with Path(source).open("rb") as stream:
                text = stream.read(_MOST_CHARACTERS * 4 + 1).decode("utf-8")
        else:
            text = source
    except UnicodeDecodeError:
        raise _unusable(
            "must be UTF-8, but is not. Of a table or another encoding say in a "
            "configuration what to read, and give it by --config."
        ) from None
    except OSError as error:
        raise _unusable(f"must be readable, got: {error.strerror}.") from None
    if not text.strip() and not may_be_empty:
        raise _unusable("must hold some text, but is empty.")
    if len(text) > _MOST_CHARACTERS:
        raise _unusable(f"must have at most {_MOST_CHARACTERS:,} characters.")
    return text


def _is_file(source: str) -> bool:
    try:
        return Path(source).is_file()
    except (OSError, ValueError):  # a long text is no file name
        return False


def _names_absent_file(source: str) -> bool:
    """Whether it reads as a path and leads nowhere: "0 spans" would clear that file."""
    if any(sign.isspace() for sign in source) or "@" in source or "://" in source:
        return False
    path = Path(source)
    try:
        is_path = path.suffix.lower() in _TEXT_FILES or (
            len(path.parts) > 1 and path.parent.is_dir()
        )
        return is_path and not path.exists()
    except (OSError, ValueError):  # a long text is no file name
        return False


def _is_folder(source: str) -> bool:
    try:
        return bool(source.strip()) and Path(source).is_dir()
    except (OSError, ValueError):
        return False


def _unusable(message: str) -> ConfigError:
    return ConfigError.at("TEXT", message)


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
