"""What a command has created and spent so far: the last line of every bad end."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from infra.private import is_project_open

if TYPE_CHECKING:  # takes long to import, and --help is to be quick
    from dptune.config import TrainConfig

STARTED: Final = "dptune: the run had started"
"""The note on an error that says so."""


@dataclass(frozen=True, kw_only=True)
class _Run:
    """A run that began, and where its budget is kept."""

    url: str
    config: "TrainConfig"
    fingerprint: str


_began: list[_Run] = []
"""The runs of this command, in order; a command is a process."""
_AGAIN = "the same command"
_completes: list[str] = []
"""What completes this command, where saying the same again would not."""


def begin(config: "TrainConfig", fingerprint: str, *, url: str) -> None:
    """Say that from now on a run creates and spends.

    Args:
        config: of the run.
        fingerprint: of its corpus.
        url: of the budget store.
    """
    _began.append(_Run(url=url, config=config, fingerprint=fingerprint))


def forget() -> None:
    """Begin a command anew."""
    _began.clear()
    _completes.clear()


def completes(command: str) -> None:
    """Say which command completes this one, if it is not the same."""
    _completes.append(f"`dptune {command}`")


def statement(*, started: bool) -> str:
    """Say what this command has created and spent.

    Args:
        started: whether the error says that a run had started.
    """
    if _began:
        return (
            f"The run had started: finished steps are kept. {_spent(_began[-1])} What "
            "was charged stays charged. Mend the cause and run the same command again: "
            "it goes on from there, and pays again for a block that was cut off."
        )
    if started:
        return (
            "The run had started: finished steps are kept and what was charged stays "
            "charged. Mend the cause and run the same command again."
        )
    if is_project_open():
        return (
            "No budget was spent. What was recorded so far stays; the cause mended, "
            f"{_completes[-1] if _completes else _AGAIN} completes it."
        )
    return "Nothing was created and no budget was spent."


def _spent(run: _Run) -> str:
    """Ask the budget store about one run."""
    from dptune.errors import DptuneError
    from dptune.workflow.budget import charged_so_far

    try:
        return charged_so_far(run.url, run.config, run.fingerprint)
    except DptuneError:
        return (
            "The budget store does not answer now: `dptune budget show` will "
            "say what was spent."
        )
