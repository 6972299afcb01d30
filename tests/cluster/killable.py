"""Pipelines for pods: a step that a kill interrupts once, and one that looks first."""

import os
import signal
from pathlib import Path
from typing import Annotated

from zenml import pipeline, step

from steps._scheduling import stop_if_done


@step(enable_cache=False)
def interrupted(folder: str) -> Annotated[int, "attempts"]:
    """Return how often it was started; the first time it is killed like a lost node."""
    attempts = Path(folder) / "attempts"
    with attempts.open("a") as log:
        log.write("x")
    count = len(attempts.read_text())
    if count == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return count


@step(enable_cache=False)
def after(attempts: int) -> Annotated[int, "seen"]:
    """Return what the step before said."""
    return attempts


@pipeline(name="killable", enable_step_logs=False)
def killable_pipeline(folder: str) -> None:
    """Wire both."""
    after(interrupted(folder=folder))


@step(enable_cache=False)
def look(fingerprint: str) -> Annotated[int, "looked"]:
    """Stop the run if a completed one was on the same data, as `ingest` does."""
    stop_if_done("digest", fingerprint)
    return 1


@pipeline(name="looking", enable_step_logs=False)
def looking_pipeline(fingerprint: str) -> None:
    """Wire a look and what follows it."""
    after(look(fingerprint=fingerprint))
