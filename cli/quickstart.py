"""The `quickstart` command: one corpus, two recipes, one page."""

import time

from rich.console import Console

from cli.printing import say_next, speaker
from cli.runs import CONFIGS, FinishedRun, read_config, run_training
from cli.training import cell_of, next_steps, print_tables, write_page
from dptune.errors import GateFailedError

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
    console = speaker()
    started = time.monotonic()
    runs = [_run(console, recipe, seed=seed, retrain=retrain) for recipe in _RECIPES]
    from dptune.reports.comparison import ComparisonReport

    cells = tuple(cell_of(run, label=run.config.recipe.title) for run in runs)
    commands = next_steps(runs[-1].config.registry.model_name)
    report = ComparisonReport(
        name="quickstart" if seed == 0 else f"quickstart-seed-{seed}",
        title="One corpus, two recipes",
        intro=_INTRO,
        baseline=cells[0].label,
        cells=cells,
    )
    console.print()
    print_tables(console, report)
    for cell in cells:
        failed = cell.decision.failed() if cell.decision else ()
        why = f"({', '.join(c.name for c in failed)})" if failed else ""
        console.print(f"{cell.label}: [bold]{cell.outcome}[/] {why}")
    console.print(f"\nreport  {write_page(report.name, report, commands)}")
    say_next(console, *commands)
    console.print(f"took    {time.monotonic() - started:.0f} s", style="dim")
    if cells[-1].outcome != "PASS":
        raise GateFailedError(
            f"the protected model was not promoted ({cells[-1].outcome}); the "
            "report says why. Chance can do that: the noise is fresh in every run."
        )


def _run(console: Console, recipe: str, *, seed: int, retrain: bool) -> FinishedRun:
    """Run the quickstart's configuration with one recipe."""
    config = read_config(
        CONFIGS / "train" / "quickstart.yaml",
        [f"recipe={recipe}", f"data.source.seed={seed}"],
    )
    console.print(f"\n[bold]{config.recipe.title}[/] ({recipe})")
    return run_training(config, retrain=retrain)
