"""Comparisons: recipes, budgets and seeds on one corpus, each combination a cell.

One file under `configs/compare/` names a training configuration and what is varied;
every cell is an ordinary `TrainConfig`.
"""

import hashlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from dptune.config import TrainConfig
from dptune.configfile import (
    apply_overrides,
    merge,
    named_file,
    read_yaml,
    train_config_of,
    validate,
)
from dptune.errors import ConfigError, Problem
from dptune.privacy import Purpose
from dptune.recipes import Recipe
from dptune.settings import Settings

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,60}$")]


class RecipeChoice(Settings):
    """One recipe of a comparison; a plain string is its name.

    Args:
        recipe: a file under `configs/recipes`.
        label: what tables call it, unique; the recipe's name by default.
        set: changes of the training configuration for this recipe alone.
    """

    recipe: str = Field(pattern=r"^[a-z][a-z0-9_]{0,40}$")
    label: str = Field(default="", max_length=60)
    set: dict[str, Any] = Field(default_factory=dict)

    @property
    def name(self: Self) -> str:
        """What tables call it."""
        return self.label or self.recipe


class MeasureSettings(Settings):
    """What is measured beside utility, exposure and membership, which always are.

    Args:
        extraction: what sampling draws out, which is slow.
        checkpoints: how often each stage is measured while it trains; null is
            `attack.num_checkpoints` of the base.
    """

    extraction: bool = False
    checkpoints: int | None = Field(default=None, ge=0, le=50)


class CompareConfig(Settings):
    """The schema of `configs/compare/<name>.yaml`.

    Args:
        intro: one or two sentences under the title.
        base: name of a file under `configs/train`, or such a configuration in place.
        set: changes of the base for all recipes.
        recipes: what is compared, in the order of the table.
        budgets: target epsilons. Recipes without noise, or with noise of their own,
            are trained once for all of them.
        seeds: numbers of the repetitions. They tell trainings apart and seed nothing:
            noise, batches and canaries are secret and fresh in each; corpus, split and
            base model are the same in all.
        baseline: label that time and memory are relative to; `no_dp` if it is there.
        reference: label that the others are paired with; by default the first recipe
            that takes a budget.
    """

    name: Name
    title: str = Field(min_length=1, max_length=120)
    intro: str = ""
    base: Name | dict[str, Any]
    set: dict[str, Any] = Field(default_factory=dict)
    recipes: tuple[RecipeChoice, ...] = Field(min_length=1)
    budgets: tuple[Annotated[float, Field(gt=0, le=1000)], ...] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = Field(default=(0,), min_length=1)
    measure: MeasureSettings = MeasureSettings()
    baseline: str | None = None
    reference: str | None = None

    @field_validator("recipes", mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if not isinstance(value, list | tuple):
            return value
        return [{"recipe": one} if isinstance(one, str) else one for one in value]

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        labels = [choice.name for choice in self.recipes]
        for name, values in (
            ("recipes", labels),
            ("budgets", self.budgets),
            ("seeds", self.seeds),
        ):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} must be different from one another")
        for name, label in (
            ("baseline", self.baseline),
            ("reference", self.reference),
        ):
            if label is not None and label not in labels:
                raise ValueError(f"{name} must be one of {', '.join(labels)}")
        return self


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of a comparison.

    Args:
        label: of its recipe.
        target_epsilon: its budget; None where the recipe takes none.
        seed: number of the repetition.
        config: what is run.
    """

    label: str
    target_epsilon: float | None
    seed: int
    config: TrainConfig

    @property
    def name(self: Self) -> str:
        """What a reader calls it."""
        budget = "" if self.target_epsilon is None else f", ε {self.target_epsilon:g}"
        return f"{self.label}{budget}, seed {self.seed}"

    def key(self: Self, *facts: str) -> str:
        """Name the cell's result: equal keys are the same training and measurement.

        Args:
            facts: what decides besides the configuration, such as the corpus.
        """
        decides = self.config.model_dump_json(exclude={"name", "budget", "registry"})
        text = "\n".join((decides, *facts))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A comparison with its cells, seed by seed: a first look needs one seed only."""

    config: CompareConfig
    cells: tuple[Cell, ...]

    @property
    def reference(self: Self) -> str | None:
        """Label that the others are paired with; None where no recipe is private."""
        if self.config.reference is not None:
            return self.config.reference
        return next((c.label for c in self.cells if c.target_epsilon), None)

    @property
    def baseline(self: Self) -> str | None:
        """Label that time and memory are relative to."""
        if self.config.baseline is not None:
            return self.config.baseline
        plain = [c.label for c in self.cells if c.config.recipe.name == "no_dp"]
        return plain[0] if plain else None


def load_comparison(
    path: Path, *, configs: Path, overrides: Sequence[str] = ()
) -> Comparison:
    """Read a comparison and build every cell's training configuration.

    Args:
        path: the file under `configs/compare`.
        configs: the folder that holds `train/`, `recipes/` and `gates/`.
        overrides: `key=value` strings from the command line, keys of the comparison;
            `set.data.max_records=500` changes the base.

    Raises:
        ConfigError: with every problem of every cell at once.
    """
    values = apply_overrides(read_yaml(path), overrides)
    config = validate(CompareConfig, values)
    base = config.base
    if isinstance(base, str):
        base = read_yaml(named_file(configs / "train", base, "base"))
    found: dict[str, TrainConfig] = {}
    faults: dict[Problem, list[str]] = {}
    for choice in config.recipes:
        try:
            found[choice.name] = _train_config(config, choice, base, configs)
        except ConfigError as error:
            for problem in error.problems:
                faults.setdefault(problem, []).append(choice.name)
    if faults:
        raise ConfigError([_of_recipes(p, who, config) for p, who in faults.items()])
    return Comparison(config=config, cells=tuple(_cells(config, found)))


def takes_budget(recipe: Recipe) -> bool:
    """Whether a recipe's noise follows from a target."""
    noisy = [stage for stage in recipe.stages if stage.private]
    return any(not (s.noise and s.noise.noise_multiplier) for s in noisy)


def _train_config(
    config: CompareConfig, choice: RecipeChoice, base: Mapping[str, Any], configs: Path
) -> TrainConfig:
    """Build one recipe's configuration, without a budget and of no seed."""
    values = deepcopy(dict(base))
    for changes in (config.set, choice.set):
        merge(values, deepcopy(changes))
    measured: dict[str, Any] = {}
    if config.measure.checkpoints is not None:
        measured["num_checkpoints"] = config.measure.checkpoints
    if not config.measure.extraction:
        measured["extraction"] = None
    comparison = {
        "name": config.name,
        "recipe": choice.recipe,
        "privacy": {"target_epsilon": None},
        "budget": {"purpose": Purpose.TUNING.value, "sweep": config.name},
        "attack": measured,
    }
    merge(values, comparison)
    made = train_config_of(values, configs=configs)
    if made.seed is not None and len(config.seeds) > 1:
        raise ConfigError(
            [
                Problem(
                    path="seed",
                    message="must be null in a comparison of several seeds, whose "
                    f"results would all be the same, got {made.seed}.",
                    next_step="Delete it: noise is fresh in every repetition.",
                )
            ]
        )
    return made


def _cells(config: CompareConfig, found: Mapping[str, TrainConfig]) -> list[Cell]:
    """Multiply recipes, budgets and seeds out, without repeating what is the same."""
    return [
        _cell(choice.name, found[choice.name], budget, seed)
        for seed in config.seeds
        for choice in config.recipes
        for budget in (
            config.budgets if takes_budget(found[choice.name].recipe) else (None,)
        )
    ]


def _cell(label: str, base: TrainConfig, budget: float | None, seed: int) -> Cell:
    """Fill one combination in."""
    privacy = base.privacy.model_copy(update={"target_epsilon": budget})
    changes = {"privacy": privacy, "repetition": seed}
    return Cell(
        label=label,
        target_epsilon=budget,
        seed=seed,
        config=base.model_copy(update=changes),
    )


def _of_recipes(problem: Problem, who: list[str], config: CompareConfig) -> Problem:
    """Say which recipes a problem speaks of, unless it is all of them."""
    if len(who) == len(config.recipes) > 1:
        return problem
    return Problem(
        path=f"{problem.path} ({', '.join(who)})",
        message=problem.message,
        next_step=problem.next_step,
    )
