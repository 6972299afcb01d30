"""Exit codes and error messages of every command.

| code | meaning |
|---|---|
| 0 | done; for `gate` and `train`: the version passed |
| 1 | a verdict: the gate refused the version |
| 2 | the input cannot be used; every problem is listed, nothing was created or spent |
| 3 | a crash: the trace is in the project folder's `logs/` |
"""

import logging
import sys
import warnings

from rich.console import Console
from rich.markup import escape

from cli.app import build_app
from cli.runs import STARTED, write_trace
from dptune.errors import DptuneError, GateFailedError, ProblemsError
from infra.stacks.local import isolate
from infra.workspace import current_workspace

REFUSED, BAD_INPUT, CRASH = 1, 2, 3


def main() -> int:
    """Run one command and return its exit code."""
    errors = Console(stderr=True, highlight=False)
    workspace = current_workspace()
    isolate(workspace)
    _be_quiet()
    try:
        build_app()()
    except GateFailedError as refusal:
        errors.print(f"[bold red]refused[/] {escape(str(refusal))}", soft_wrap=True)
        return REFUSED
    except DptuneError as error:
        _print_problems(errors, error)
        return BAD_INPUT
    except Exception as error:  # noqa: BLE001 - the last line of defence
        log = write_trace(workspace.root / "logs", error)
        errors.print(
            f"[bold red]crash[/] {type(error).__name__}. The trace is in {log}; it "
            "stays on this machine. Finished stages are kept: run the same command "
            "again."
        )
        return CRASH
    return 0


def _be_quiet() -> None:
    """Keep third-party chatter off the terminal; our own lines stay."""
    warnings.filterwarnings("ignore")
    logging.getLogger().setLevel(logging.WARNING)
    for name in ("alembic", "mlflow", "great_expectations", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
    logging.getLogger("zenml").setLevel(logging.CRITICAL)


def _print_problems(errors: Console, error: DptuneError) -> None:
    """Print every problem on a line of its own."""
    if not isinstance(error, ProblemsError):
        message = escape(str(error))
        errors.print(f"[bold red]cannot do that[/] {message}", soft_wrap=True)
        _print_cost(errors, error)
        return
    count = len(error.problems)
    errors.print(f"[bold red]{count} problem{'s' if count > 1 else ''}[/]")
    for problem in error.problems:
        line = f"  • [bold]{escape(problem.path)}[/] {escape(problem.message)}"
        errors.print(line, soft_wrap=True)
        if problem.next_step:
            step = escape(problem.next_step)
            errors.print(f"    {step}", style="dim", soft_wrap=True)
    _print_cost(errors, error)


def _print_cost(errors: Console, error: BaseException) -> None:
    """Say whether anything was created or spent before the error."""
    if STARTED in getattr(error, "__notes__", ()):
        errors.print(
            "The run had started: finished steps are kept and what was charged stays "
            "charged. Mend the cause and run the same command again.",
            style="dim",
        )
    else:
        errors.print("Nothing was created and no budget was spent.", style="dim")


if __name__ == "__main__":
    sys.exit(main())
