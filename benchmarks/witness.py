"""Beside a process that draws noise: every draw on the disk, and where it is."""

import hashlib
import multiprocessing.sharedctypes
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from dptune.accounting.chain import LedgerJournal
from dptune.dpsgd import trainer
from dptune.dpsgd.noise import IndependentNoise
from dptune.workflow import train_stage, whitebox

PHASES = ("start", "store", "journal", "noise", "step", "checkpoint", "model", "settle")
PHASE = multiprocessing.sharedctypes.RawValue("b", 0)
"""Where the running child is: survives its death, costs nothing."""


def watch(witness: Path) -> None:
    """Let the witness see every draw, and show in which phase the process is.

    A line is written down before noise is drawn, and after it a digest of that noise.
    """
    LedgerJournal.charge = phased("journal", LedgerJournal.charge)
    trainer.save_checkpoint = phased("checkpoint", trainer.save_checkpoint)
    train_stage._store = phased("model", train_stage._store)
    add = IndependentNoise.add
    file = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def witnessed(self: IndependentNoise, sums: Any, *, step: int) -> None:  # noqa: ANN401
        _tell(file, "draw")
        some = max(sums.values(), key=torch.numel).flatten()[:64]
        before = some.clone()
        add(self, sums, step=step)
        coarse = torch.round((some - before) * 1e3).to(torch.int32)  # noise alone
        _tell(file, hashlib.sha256(coarse.numpy().tobytes()).hexdigest())

    def unless_rehearsed(*arguments: Any, **keywords: Any) -> None:  # noqa: ANN401
        release = add if rehearsing else witnessed
        release(*arguments, **keywords)

    rehearsing: list[bool] = []
    audit = whitebox.audit_stage

    def rehearse(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        rehearsing.append(True)
        try:
            return audit(*arguments, **keywords)
        finally:
            rehearsing.pop()

    whitebox.audit_stage = rehearse  # draws noise that nobody is shown
    IndependentNoise.add = phased("noise", unless_rehearsed)


def seen(witness: Path) -> list[str]:
    """Read what the witness saw; a line that a kill cut short is none."""
    return witness.read_text("ascii").split("\n")[:-1] if witness.exists() else []


def is_reused(witness: Path) -> bool:
    """Whether any noise was drawn twice."""
    digests = [line for line in seen(witness) if line != "draw"]
    return len(set(digests)) < len(digests)


def phased(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Show that a function is running."""

    @wraps(function)
    def shown(*arguments: Any, **keywords: Any) -> Any:  # noqa: ANN401
        PHASE.value = PHASES.index(name)
        result = function(*arguments, **keywords)
        PHASE.value = PHASES.index("step")
        return result

    return shown


def _tell(file: int, line: str) -> None:
    """Write one line down to the disk."""
    os.write(file, f"{line}\n".encode("ascii"))
    os.fsync(file)
