"""The `calibrate` command: what a run costs, before it trains."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from cli.runs import read_config
from dptune.config import TrainConfig
from dptune.errors import InfeasibleBudgetError
from dptune.privacy import NeighboringRelation
from dptune.recipes import RunPlan
from dptune.reports.formatting import epsilon as epsilon_text
from dptune.workflow.preflight import Checked, check_run, plan_for
from infra.workspace import data_root

_WHAT_IF_EPSILONS = (1.0, 2.0, 3.0, 4.0, 8.0)


def show_calibration(path: Path, overrides: Sequence[str]) -> None:
    """Print every stage's noise and cost, and what other targets would need."""
    console = Console(highlight=False)
    config = read_config(path, overrides)
    checked = check_run(config, data_root=data_root())
    console.print(_stage_table(checked.plan))
    console.print(_total(checked.plan))
    if config.recipe.private and config.privacy.target_epsilon is not None:
        console.print(_what_if_table(config, checked))
    console.print(f"next    python run.py train {path}", style="dim")


def _stage_table(plan: RunPlan) -> Table:
    """List the stages."""
    table = Table(title=f"recipe {plan.recipe}", title_justify="left")
    for column in ("stage", "view", "units", "batch", "rate", "steps", "C", "noise"):
        table.add_column(column)
    for stage in plan.stages:
        settings = stage.settings
        clip = settings.clipping
        noise = stage.noise_multiplier
        table.add_row(
            settings.name,
            settings.view.value,
            str(stage.num_units),
            str(settings.expected_batch_size),
            f"{stage.sample_rate:.4f}" if settings.private else "shuffled",
            str(stage.num_steps),
            f"{clip.max_grad_norm:g}" if clip else "-",
            f"{noise:.4f}" if noise else "none",
        )
    return table


def _total(plan: RunPlan) -> str:
    """Say what all noisy stages cost together."""
    relation = {
        NeighboringRelation.ADD_OR_REMOVE_ONE: "add or remove one unit",
        NeighboringRelation.REPLACE_ONE: "replace one unit",
    }[plan.relation]
    return (
        f"all noisy stages together: ε = {epsilon_text(plan.epsilon)} at "
        f"δ = {plan.target_delta:g}, {relation}. Stages without noise have no record "
        "guarantee, whatever they read."
    )


def _what_if_table(config: TrainConfig, checked: Checked) -> Table:
    """Show the noise that other targets would need, all else equal."""
    table = Table(title="what if the target were", title_justify="left")
    for column in ("target ε", "noise multiplier", "noise in the mean, per C"):
        table.add_column(column)
    for target in _WHAT_IF_EPSILONS:
        privacy = config.privacy.model_copy(update={"target_epsilon": target})
        try:
            plan = plan_for(config.recipe, privacy, num_units=checked.num_units)
        except InfeasibleBudgetError:
            table.add_row(f"{target:g}", "impossible", "")
            continue
        stage = next(s for s in plan.stages if s.settings.private)
        noise = stage.noise_multiplier or 0.0
        share = noise / stage.settings.expected_batch_size
        table.add_row(f"{target:g}", f"{noise:.3f}", f"{share:.5f}")
    return table
