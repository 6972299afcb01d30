"""Progress that a person reads: stage, epoch, speed, epsilon so far, time left.

On a terminal a live bar; elsewhere (a pod's log, CI) one line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from dptune.reports.formatting import duration
from infra.logs import log_event, wants_json

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BEFORE_SHOWN = 2.0


class Advance(Protocol):
    """Moves a progress display to `done` of its total, with a short note."""

    def __call__(self, done: int, note: str = "") -> None:
        """Show the new state."""
        ...


def console() -> Console:
    """Return a console on the real standard output, which ZenML may have wrapped."""
    return Console(file=sys.__stdout__, highlight=False)


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Show progress of one long piece of work.

    Args:
        title: what is being done, such as `stage private_finetune`.
        total: number of units of work.

    Yields:
        a function that takes the units done so far and a note.
    """
    terminal = console()
    if terminal.is_terminal:
        with _bar(terminal) as bar:
            task = bar.add_task(title, total=total, note="")

            def advance(done: int, note: str = "") -> None:
                bar.update(task, completed=done, note=note)

            yield advance
    else:
        yield _lines(title, total)


@contextmanager
def progress_of_many() -> Iterator[Callable[[str, int, int], None]]:
    """Show progress of pieces of work that follow each other, if they take long.

    Yields:
        a function that takes what is being done, and units done and in all.
    """
    with ExitStack() as stack:
        piece, began, advance = ("", 0), 0.0, None

        def tell(what: str, done: int, total: int) -> None:
            nonlocal piece, began, advance
            now = time.monotonic()
            if piece != (what, total):
                stack.close()
                piece, began, advance = (what, total), now, None
            elif advance is None and now - began >= SECONDS_BEFORE_SHOWN:
                advance = stack.enter_context(progress(what, total))
            if advance is not None:
                advance(done)

        yield tell


def _bar(terminal: Console) -> Progress:
    """Build the live bar."""
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("[cyan]{task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=terminal,
        transient=False,
    )


def _lines(title: str, total: int) -> Callable[..., None]:
    """Return an `Advance` that prints a line when some seconds have passed."""
    last = time.monotonic()
    terminal, first = console(), None

    def advance(done: int, note: str = "") -> None:
        nonlocal last, first
        now = time.monotonic()
        first = first or (now, done)
        if done >= total or now - last >= SECONDS_BETWEEN_LINES:
            last = now
            since, before = first
            if before < done < total:
                left = (now - since) / (done - before) * (total - done)
                note = f"{note} · about {duration(round(left))} left".lstrip(" ·")
            if wants_json():
                log_event(title, done=done, total=total, note=note)
            else:
                line = f"  {title}: {done}/{total} {note}"
                terminal.print(line, soft_wrap=True)  # a file has no width

    return advance


def say(message: str) -> None:
    """Print one line for a person to read."""
    if wants_json():
        log_event(message)
    else:
        console().print(f"  {message}", soft_wrap=True)
