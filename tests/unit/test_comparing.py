"""Comparisons: which cells a file comes to, and what is refused before any of them."""

from pathlib import Path

import pytest
import yaml

from dptune.comparing import CompareConfig, load_comparison, takes_budget
from dptune.config import TrainConfig
from dptune.errors import ConfigError

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
TINY = yaml.safe_load((REPOSITORY / "tests" / "configs" / "tiny.yaml").read_text())
COMPARE = sorted((CONFIGS / "compare").glob("*.yaml"))


@pytest.fixture
def load(tmp_path):
    def read(*overrides, **changes):
        values = {
            "name": "small",
            "title": "Small",
            "base": TINY,
            "recipes": ["no_dp", "jft"],
            "budgets": [2.0, 8.0],
        }
        file = tmp_path / "small.yaml"
        file.write_text(yaml.safe_dump(values | changes))
        return load_comparison(file, configs=CONFIGS, overrides=overrides)

    return read


def names(comparison):
    return [cell.name for cell in comparison.cells]


def problems(error):
    return {problem.path for problem in error.value.problems}


@pytest.mark.parametrize("path", COMPARE, ids=lambda path: path.stem)
def test_every_file_loads_and_is_called_as_its_name(path):
    comparison = load_comparison(path, configs=CONFIGS)
    assert comparison.config.name == path.stem
    assert f"configs/compare/{path.name}" in path.read_text().splitlines()[0]
    for cell in comparison.cells:
        values = cell.config.model_dump(mode="json")
        assert TrainConfig.model_validate(values) == cell.config


def test_recipes_without_noise_are_not_repeated_per_budget(load):
    assert names(load(seeds=[0, 1])) == [
        "no_dp, seed 0",
        "jft, ε 2, seed 0",
        "jft, ε 8, seed 0",
        "no_dp, seed 1",
        "jft, ε 2, seed 1",
        "jft, ε 8, seed 1",
    ]


def test_recipes_with_noise_of_their_own_take_no_budget(load):
    stages = {"dp_sgd": {"private_finetune": {"noise": {"noise_multiplier": 2.0}}}}
    recipes = [{"recipe": "dp_sgd", "label": "sigma 2", "set": {"stages": stages}}]
    (cell,) = load(recipes=recipes).cells
    assert not takes_budget(cell.config.recipe)
    assert (cell.label, cell.config.privacy.target_epsilon) == ("sigma 2", None)


def test_cells_are_trials_of_one_sweep_on_the_data_set_of_the_base(load):
    for cell in load(seeds=[3, 4]).cells:
        assert cell.config.budget.sweep == "small"
        assert cell.config.budget.purpose == "tuning"
        assert (cell.config.repetition, cell.config.seed) == (cell.seed, None)


def test_changes_are_merged_into_the_base_and_then_per_recipe(load):
    own = {"stages": {"jft": {"private_finetune": {"epochs": 9}}}}
    comparison = load(
        recipes=["no_dp", {"recipe": "jft", "set": own}],
        set={"data": {"min_records": 50}},
    )
    for cell in comparison.cells:
        assert cell.config.data.min_records == 50
        assert cell.config.data.source.num_records == 260
    assert comparison.cells[1].config.recipe.stages[1].epochs == 9
    assert comparison.cells[1].config.recipe.stages[0].epochs == 1


def test_command_line_changes_the_comparison_and_its_base(load):
    comparison = load("seeds=[7]", "set.data.min_records=60")
    assert {cell.seed for cell in comparison.cells} == {7}
    assert comparison.cells[0].config.data.min_records == 60


def test_what_is_measured_reaches_every_cell(load):
    attack = load(measure={"checkpoints": 4}).cells[0].config.attack
    assert (attack.num_checkpoints, attack.extraction) == (4, None)
    assert load(measure={"extraction": True}).cells[0].config.attack.extraction


def test_keys_tell_trainings_apart_and_nothing_else(load):
    first, second = (load(seeds=[0, 1]).cells[i] for i in (1, 4))
    assert first.key("corpus") == load().cells[1].key("corpus")
    assert len({first.key("a"), first.key("b"), second.key("a")}) == 3
    renamed = load(name="other").cells[1]
    assert renamed.key("corpus") == first.key("corpus")


def test_baseline_and_reference_are_found(load):
    comparison = load(recipes=["jft", "dp_adam", "no_dp"])
    assert (comparison.baseline, comparison.reference) == ("no_dp", "jft")
    assert load(recipes=["jft", "dp_adam"], reference="dp_adam").reference == "dp_adam"
    assert load(recipes=["redacted"]).baseline is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"recipes": ["jft", "jft"]}, "different"),
        ({"budgets": [2, 2]}, "different"),
        ({"seeds": [0, 0]}, "different"),
        ({"baseline": "dp_sgd"}, "one of"),
        ({"budgets": []}, "at least 1"),
        ({"budgets": [0]}, "greater than 0"),
        ({"measures": {}}, "no such key"),
        ({"recipes": "jft"}, "list"),
    ],
)
def test_schema_refuses(load, changes, word):
    with pytest.raises(ConfigError, match=word):
        load(**changes)


def test_schema_tells_all_faults_at_once(load):
    with pytest.raises(ConfigError) as error:
        load(budgets=[-1.0], seeds=[-2], title="", recipes=[{"recipe": "JFT"}])
    assert {"budgets.0", "seeds.0", "title", "recipes.0.recipe"} <= problems(error)


def test_faults_of_cells_are_told_at_once_and_name_their_recipes(load):
    no_seed = {"data": {"seed": -1}}
    both = [{"recipe": name, "set": no_seed} for name in ("redacted", "jft")]
    with pytest.raises(ConfigError) as error:
        load(
            recipes=["no_dp", "jfft", *both],
            set={"performance": {"block_size": 0}},
        )
    assert problems(error) == {
        "recipe (jfft)",
        "data.seed (redacted, jft)",
        "performance.block_size",
    }


def test_faults_of_the_base_are_told_once(load):
    with pytest.raises(ConfigError) as error:
        load(set={"data": {"min_records": 1}})
    assert problems(error) == {"data.min_records"}


def test_base_that_is_not_there_is_named(load):
    with pytest.raises(ConfigError, match="nowhere"):
        load(base="nowhere")


def test_known_seed_with_several_repetitions_is_refused(load):
    with pytest.raises(ConfigError, match="must be null"):
        load(base=TINY | {"seed": 3}, seeds=[0, 1])
    assert load(base=TINY | {"seed": 3}).cells[0].config.seed == 3


def test_schema_round_trips():
    values = {
        "name": "a",
        "title": "A",
        "base": "quickstart",
        "recipes": ["no_dp"],
        "budgets": [1],
    }
    config = CompareConfig.model_validate(values)
    assert CompareConfig.model_validate(config.model_dump()) == config
