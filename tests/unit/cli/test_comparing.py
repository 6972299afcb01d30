"""What a comparison's last lines tell the reader to run."""

from cli.comparing import _changes
from dptune.comparing import CompareConfig


def test_training_of_one_recipe_takes_no_stages_of_the_others():
    config = CompareConfig.model_validate(
        {
            "name": "beside",
            "title": "Beside",
            "base": "quickstart",
            "set": {
                "data": {"max_records": 50},
                "stages": {
                    "jft": {"private_finetune": {"epochs": 2}},
                    "jft_light": {"private_finetune": {"epochs": 3}},
                },
            },
            "recipes": [
                {
                    "recipe": "jft",
                    "set": {"stages": {"jft": {"private_finetune": {"epochs": 4}}}},
                }
            ],
            "budgets": [8.0],
        }
    )
    assert _changes(config, config.recipes[0]) == {
        "recipe": "jft",
        "data.max_records": 50,
        "stages.jft.private_finetune.epochs": 4,
    }
