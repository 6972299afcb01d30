"""The `quickstart` command: one corpus, two recipes, one page."""

import time
from typing import TYPE_CHECKING

from rich.console import Console

from cli.runs import CONFIGS, FinishedRun, read_config, run_training
from cli.training import next_steps, print_comparison, summarize, write_report
from dptune.errors import GateFailedError

if TYPE_CHECKING:
    from dptune.reports.page import RunSummary

_RECIPES = ("no_dp", "jft")
_INTRO = (
    "Invented customer-service dialogues with planted canaries, fine-tuned twice from "
    "one model that was pre-trained on public text: without protection, and by Just "
    "Fine-tune Twice. Every verdict below follows from what was measured."
)


def run_quickstart(*, seed: int, retrain: bool) -> None:
    """Train without and with protection, and show both side by side.

    Args:
        seed: decides the invented corpus; noise and canaries stay secret.
        retrain: train again instead of using finished runs.

    Raises:
        GateFailedError: the protected model was refused.
    """
    console = Console(highlight=False)
    started = time.monotonic()
    runs = [_run(console, recipe, seed=seed, retrain=retrain) for recipe in _RECIPES]
    summaries = [summarize(run, title=run.config.recipe.title) for run in runs]
    model_name = runs[-1].config.registry.model_name
    commands = next_steps(model_name)
    report = write_report(
        "quickstart" if seed == 0 else f"quickstart-seed-{seed}",
        title="One corpus, two recipes",
        runs=summaries,
        intro=_INTRO,
        next_steps=commands,
    )
    console.print()
    print_comparison(console, summaries)
    for summary in summaries:
        console.print(f"{summary.title}: [bold]{summary.outcome}[/] {_why(summary)}")
    console.print(f"\nreport  {report}")
    for line in commands:
        console.print(f"next    {line}", style="dim")
    console.print(f"took    {time.monotonic() - started:.0f} s", style="dim")
    if summaries[-1].outcome != "PASS":
        raise GateFailedError(
            f"the protected model was not promoted ({summaries[-1].outcome}); the "
            "report says why. Chance can do that: the noise is fresh in every run."
        )


def _why(summary: "RunSummary") -> str:
    """Name the criteria that stand in the way."""
    failed = summary.decision.failed() if summary.decision else ()
    return f"({', '.join(c.name for c in failed)})" if failed else ""


def _run(console: Console, recipe: str, *, seed: int, retrain: bool) -> FinishedRun:
    """Run the quickstart's configuration with one recipe."""
    config = read_config(
        CONFIGS / "train" / "quickstart.yaml",
        [f"recipe={recipe}", f"data.source.seed={seed}"],
    )
    console.print(f"\n[bold]{config.recipe.title}[/] ({recipe})")
    return run_training(config, retrain=retrain)
