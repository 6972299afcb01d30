"""Checkpoints of a script: those that were written to their end."""

import re
from pathlib import Path
from typing import Final

from transformers.trainer_callback import TrainerState

from dptune.errors import ConfigError

_LAST_WRITTEN: Final = "trainer_state.json"
_NAME: Final = re.compile(r"checkpoint-(\d+)")


def checkpoint_to_resume(resume: object, output: Path) -> Path | None:
    """Find what to resume from, as transformers does; a kill leaves half ones behind.

    Args:
        resume: what a script says: a folder, or whether to take the newest one.
        output: folder of the script's results.

    Raises:
        ConfigError: there is none that is whole.
    """
    if resume is None or resume is False:
        return None
    if resume is True:
        return _newest(output)
    folder = Path(str(resume))
    if not (folder / _LAST_WRITTEN).is_file():
        raise ConfigError(
            f"resume_from_checkpoint must name a whole checkpoint, but {folder.name} "
            f"has no {_LAST_WRITTEN}: it is none, or was cut off while it was written. "
            "Say True for the newest whole one."
        )
    return folder


def ended_with(checkpoint: Path, *, best: bool) -> tuple[TrainerState, Path]:
    """Return how a training ended, and the checkpoint whose weights it ended with.

    Args:
        checkpoint: of its last step.
        best: whether it took the best of its checkpoints at the end.
    """
    state = TrainerState.load_from_json(str(checkpoint / _LAST_WRITTEN))
    chosen = (best and state.best_model_checkpoint) or checkpoint
    return state, checkpoint.parent / Path(chosen).name  # a folder may have moved


def _newest(output: Path) -> Path:
    """Find the newest whole checkpoint."""
    found = {
        int(named[1]): folder
        for folder in output.glob("checkpoint-*")
        if (named := _NAME.fullmatch(folder.name))
        and (folder / _LAST_WRITTEN).is_file()
    }
    if not found:
        raise ConfigError(
            "resume_from_checkpoint must name a checkpoint, got none in output_dir "
            "that is whole. Train without it: what was paid stays counted."
        )
    return found[max(found)]
