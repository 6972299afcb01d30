"""Train again what was finished: the earlier result is put aside, its charge stays."""

import shutil
from pathlib import Path

_MARK = "retrained_by"


def start_again(home: Path, *, run: str = "") -> None:
    """Put an earlier training aside, unless it is the given run's own.

    A step that is killed is started again with the same arguments. Without its mark it
    would put aside what it had just paid for, and pay for it once more.

    Args:
        home: of the training.
        run: that trains again, by an id that no other has; empty for none, which
            always starts from nothing.
    """
    mark = home / _MARK
    if run and mark.is_file() and mark.read_text(encoding="utf-8") == run:
        return
    _put_aside(home)
    home.mkdir(parents=True)
    mark.write_text(run, encoding="utf-8")


def _put_aside(home: Path) -> None:
    """Keep the journal of a finished training; its weights live in the registry."""
    if not home.is_dir():
        return
    shutil.rmtree(home / "checkpoint", ignore_errors=True)
    shutil.rmtree(home / "model", ignore_errors=True)
    number = sum(1 for _ in home.parent.glob(f"{home.name}.*"))
    home.rename(home.with_name(f"{home.name}.{number + 1}"))
