"""Exit codes and error messages of every command.

| code | meaning |
|---|---|
| 0 | done; for `gate` and `train`: the version passed |
| 1 | a verdict: the gate refused the version |
| 2 | the input cannot be used; every problem is listed |
| 3 | a crash: the trace is in the project folder's `logs/` |
| 4 | a fault of the machine: disk, memory, rights, a database or server |
| 128 + n | ended by signal n: 130 Ctrl-C, 143 SIGTERM, 129 SIGHUP; 141, no reader |

Every one but 0 and 1 says what was created and spent.
"""

import io
import logging
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress

from rich.console import Console
from rich.markup import escape

from cli import account
from cli.account import STARTED
from cli.app import build_app
from cli.faults import (
    Fault,
    Stopped,
    fault_of,
    full_disk,
    is_closed_pipe,
    signals_raised,
    take_signals,
    write_trace,
)
from dptune.errors import ConfigError, DptuneError, GateFailedError, ProblemsError
from infra.private import drop_temporary_files
from infra.workspace import current_workspace

REFUSED, BAD_INPUT, CRASH, FAULT = 1, 2, 3, 4
_CLOSED_PIPE = 128 + signal.SIGPIPE


def main() -> int:
    """Run one command and return its exit code."""
    errors = Console(stderr=True, highlight=False)
    account.forget()
    try:
        return _answered(_command, errors)
    finally:
        drop_temporary_files()


def _command() -> None:
    """Do what the arguments say."""
    take_signals()
    _be_quiet()
    _print_anywhere()
    _refuse_bytes(sys.argv[1:])
    sys.argv[0] = "dptune"  # as usage calls it
    build_app()()
    sys.stdout.flush()


def _print_anywhere() -> None:
    """Write what a terminal's encoding lacks as escapes: an `ε` must end nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse_bytes(arguments: Sequence[str]) -> None:
    """Refuse arguments that no database, file or page of ours can hold.

    Raises:
        ConfigError: one is not in the encoding of the system.
    """
    for number, argument in enumerate(arguments, 1):
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ConfigError.at(
                f"argument {number}",
                "must be text in the encoding of the system, but is other bytes.",
                "Rename the file, or correct the locale (`LC_ALL=C.UTF-8`).",
            ) from None


def _answered(command: Callable[[], None], errors: Console) -> int:
    """Run a command, and turn whatever ends it into a message and an exit code."""
    raised: Sequence[Stopped] = ()
    try:
        with signals_raised() as raised:
            command()
    except SystemExit as end:
        if is_closed_pipe(end.__context__):
            return _CLOSED_PIPE
        raise
    except GateFailedError as refusal:
        with suppress(OSError):
            errors.print(f"[bold red]refused[/] {_told(str(refusal))}", soft_wrap=True)
        return REFUSED
    except (Exception, KeyboardInterrupt, Stopped) as failure:  # noqa: BLE001
        error = _cause(failure, raised)
        for note in () if error is failure else getattr(failure, "__notes__", ()):
            error.add_note(note)
        with suppress(OSError):  # standard error may be what is full
            _explain(errors, error)
        return _exit_code(error)
    return 0


def _cause(failure: BaseException, raised: Sequence[Stopped]) -> BaseException:
    """Blame a signal for what failed after it; ZenML answers some that we ignore."""
    if raised:
        return raised[-1]
    by_zenml = type(failure).__name__ == "RunInterruptedException"
    return Stopped(signal.SIGINT) if by_zenml else failure


def _exit_code(error: BaseException) -> int:
    """Choose the code of an end that is no verdict."""
    if isinstance(error, Stopped):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if is_closed_pipe(error):
        return _CLOSED_PIPE
    if _fault(error) is not None:
        return FAULT
    return BAD_INPUT if isinstance(error, DptuneError) else CRASH


def _explain(errors: Console, error: BaseException) -> None:
    """Say in one message what happened, what is there and what was spent."""
    if isinstance(error, Stopped | KeyboardInterrupt):
        name = error.signal.name if isinstance(error, Stopped) else "SIGINT"
        errors.print(f"[bold red]stopped[/] by {name}.")
    elif isinstance(error, DptuneError):
        _print_problems(errors, error)
    elif is_closed_pipe(error):
        return
    elif (fault := _fault(error)) is not None:
        _print_fault(errors, fault, error)
    else:
        _print_crash(errors, error)
    started = STARTED in getattr(error, "__notes__", ())
    errors.print(account.statement(started=started), style="dim")


def _fault(error: BaseException) -> Fault | None:
    """Find the machine's part in an error; libraries may drop what they met."""
    return fault_of(error) or full_disk(current_workspace().root)


def _print_fault(errors: Console, fault: Fault, error: BaseException) -> None:
    """Say what the machine did, and keep the trace where there is room for it."""
    errors.print(
        f"[bold red]stopped[/] {_told(fault.what)}. {_told(fault.advice)}",
        soft_wrap=True,
    )
    if current_workspace().root.is_dir():
        with suppress(OSError):
            write_trace(current_workspace().root / "logs", error)


def _print_crash(errors: Console, error: BaseException) -> None:
    """Name the kind of an error that is ours to mend; its text may quote data."""
    name = type(error).__name__
    try:
        log = write_trace(current_workspace().root / "logs", error)
    except OSError:
        errors.print(f"[bold red]crash[/] {name}. Its trace could not be written.")
        return
    errors.print(
        f"[bold red]crash[/] {name}. The trace is in {_told(str(log))}; it stays on "
        "this machine. Finished stages are kept: run the same command again."
    )


def _told(text: str) -> str:
    """Escape what the console would read as markup, and what a terminal would obey."""
    from dptune.reports.formatting import visible

    return escape(visible(text))


def _be_quiet() -> None:
    """Keep third-party chatter off the terminal; our own lines stay."""
    warnings.filterwarnings("ignore")
    logging.getLogger().setLevel(logging.WARNING)
    for name in ("alembic", "great_expectations", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    for name in ("mlflow", "zenml"):  # print traces of what they raise as well
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _print_problems(errors: Console, error: DptuneError) -> None:
    """Print every problem on a line of its own."""
    if not isinstance(error, ProblemsError):
        message = _told(str(error))
        errors.print(f"[bold red]cannot do that[/] {message}", soft_wrap=True)
        return
    count = len(error.problems)
    errors.print(f"[bold red]{count} problem{'s' if count > 1 else ''}[/]")
    for problem in error.problems:
        where = f"[bold]{_told(problem.path)}[/] " if problem.path else ""
        line = f"  • {where}{_told(problem.message).lstrip()}"
        errors.print(line, soft_wrap=True)
        if problem.next_step:
            step = _told(problem.next_step)
            errors.print(f"    {step}", style="dim", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
