"""What a script asks for, as a plan: the same as a configuration of one stage gets."""

from typing import Final

from pydantic import ValidationError

from dptune.errors import ConfigError
from dptune.integrations.arguments import PrivacyArguments
from dptune.planning import RunPlan, plan_run
from dptune.privacy import NeighboringRelation, Notion, UnitsFrom
from dptune.recipes import Recipe, StageSettings, View
from dptune.settings import (
    ClippingSettings,
    LossSettings,
    NoiseSettings,
    OptimizerSettings,
)

RECIPE: Final = "script"
STAGE: Final = "train"


def plan_script(
    privacy: PrivacyArguments,
    *,
    num_units: int,
    batch_size: int,
    epochs: float,
    max_steps: int = 0,
    learning_rate: float = 1e-3,
) -> RunPlan:
    """Find rate, steps and noise of a script's training, as `plan_run` does.

    Args:
        privacy: what the script asks for.
        num_units: that the data has; a public number in `privacy` takes its place.
        batch_size: units per step, in expectation.
        epochs: passes over the data, in expectation.
        max_steps: steps in place of `epochs`, if above 0.
        learning_rate: for the reader: the script's optimizer has its own.

    Raises:
        ConfigError: the numbers contradict one another (all problems at once).
        InfeasibleBudgetError: no noise reaches the target; the message has the best.

    >>> asked = PrivacyArguments(target_epsilon=8, target_delta=1e-5, max_grad_norm=1.0)
    >>> plan = plan_script(asked, num_units=1000, batch_size=50, epochs=3)
    >>> plan.stages[0].num_steps, plan.stages[0].sample_rate, plan.epsilon <= 8
    (60, 0.05, True)
    """
    number = privacy.num_units or num_units
    if max_steps > 0:
        epochs = max_steps * batch_size / number
    try:
        recipe = _recipe(
            privacy, batch_size=batch_size, epochs=epochs, learning_rate=learning_rate
        )
    except ValidationError as error:
        places = [".".join(map(str, fault["loc"])) for fault in error.errors()]
        raise ConfigError(
            f"the numbers of the script must make a stage, got bad ones at "
            f"{', '.join(places)}. Check batch size, steps and learning rate."
        ) from None
    return plan_run(
        recipe,
        num_units=number,
        notion=Notion.RECORD,
        relation=NeighboringRelation(privacy.relation),
        target_epsilon=privacy.target_epsilon,
        target_delta=privacy.target_delta,
        units_from=UnitsFrom.EXACT if privacy.num_units is None else UnitsFrom.DECLARED,
    )


def _recipe(
    privacy: PrivacyArguments, *, batch_size: int, epochs: float, learning_rate: float
) -> Recipe:
    """Describe a script as a recipe of one stage."""
    stage = StageSettings(
        name=STAGE,
        view=View.ORIGINAL,
        epochs=epochs,
        expected_batch_size=batch_size,
        optimizer=OptimizerSettings(learning_rate=learning_rate),
        loss=LossSettings(normalizer=privacy.loss_normalizer),
        clipping=ClippingSettings(max_grad_norm=privacy.max_grad_norm),
        noise=NoiseSettings(noise_multiplier=privacy.noise_multiplier),
    )
    return recipe_of(stage)


def recipe_of(stage: StageSettings) -> Recipe:
    """Describe a stage as a recipe of nothing else."""
    return Recipe(name=RECIPE, title="A script of one's own", stages=(stage,))
