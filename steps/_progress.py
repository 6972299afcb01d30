"""Progress that a person reads: stage, epoch, speed, epsilon so far, time left.

On a terminal a live bar; elsewhere (a pod's log, CI) one line now and then.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

from infra.logs import log_event, wants_json

SECONDS_BETWEEN_LINES = 10.0


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
    last = [time.monotonic()]
    terminal = console()

    def advance(done: int, note: str = "") -> None:
        now = time.monotonic()
        if done >= total or now - last[0] >= SECONDS_BETWEEN_LINES:
            last[0] = now
            if wants_json():
                log_event(title, done=done, total=total, note=note)
            else:
                terminal.print(f"  {title}: {done}/{total} {note}")

    return advance


def say(message: str) -> None:
    """Print one line for a person to read."""
    if wants_json():
        log_event(message)
    else:
        console().print(f"  {message}")
