"""The small part of a corpus that people can read (JFT, selective manual screening)."""

import hashlib
from collections.abc import Iterable

from datasets import Dataset

from dptune.errors import ConfigError, Problem
from dptune.recipes import Recipe
from dptune.settings import ScreenedSettings


def screened_units(
    units: Iterable[str], settings: ScreenedSettings, *, num_drawn: int
) -> frozenset[str]:
    """Draw the units that are to be read, by public coins.

    **Privacy**: the draw looks at ids alone, so that no secret decides it. Ids must not
    be hashes of texts, which `check_selective` refuses.

    Args:
        units: ids of all privacy units of the training split, in any order, each as
            often as it has records.
        settings: the public seed.
        num_drawn: how many, which follows from the planned number of units, as
            `settings.num_units` has it.

    References:
        Shi et al. (2022), "Just Fine-tune Twice", sections 3.1 and 6.2: 0.1 % there.
    """

    def coin(unit: str) -> bytes:
        return hashlib.sha256(f"{settings.public_seed} {unit}".encode()).digest()

    return frozenset(sorted(set(units), key=coin)[:num_drawn])


def rows_to_read(rows: Dataset, recipe: Recipe, *, num_units: int) -> frozenset[int]:
    """Return the rows of a corpus that people have to read for a recipe.

    Canaries come in later, as units of their own, and can only take the place of units
    that are drawn here.

    Args:
        rows: of the training split.
        recipe: with a stage that is screened.
        num_units: units that the run is planned for, canaries included.

    Raises:
        ConfigError: no stage is screened.
    """
    settings = [stage.screened for stage in recipe.stages if stage.screened is not None]
    if not settings:
        problem = Problem(
            path="recipe",
            message=f"must have a stage with screened to be read, got {recipe.name}.",
            next_step="Choose jft_screened.",
        )
        raise ConfigError([problem])
    units = rows["unit_id"]
    chosen: set[str] = set()
    for one in settings:
        chosen |= screened_units(units, one, num_drawn=one.num_units(num_units))
    return frozenset(i for i, unit in enumerate(units) if unit in chosen)


def screened_rows(
    rows: Dataset, settings: ScreenedSettings, *, num_drawn: int
) -> Dataset:
    """Return the records of the units that are to be read, in their order."""
    chosen = screened_units(rows["unit_id"], settings, num_drawn=num_drawn)
    places = [i for i, unit in enumerate(rows["unit_id"]) if unit in chosen]
    return rows.select(places)
