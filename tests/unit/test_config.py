"""One loader for every file under configs/; what it refuses is in tests/unit/cli."""

import json
import math
from pathlib import Path

import pytest
import yaml

from dptune.config import TrainConfig
from dptune.configfile import (
    apply_overrides,
    load_train_config,
    read_yaml,
    validate,
)
from dptune.errors import ConfigError
from dptune.gates.policy import GatePolicy
from dptune.planning import plan_run
from dptune.recipes import Recipe

REPOSITORY = Path(__file__).resolve().parents[2]
CONFIGS = REPOSITORY / "configs"
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
TRAIN = sorted((CONFIGS / "train").glob("*.yaml"))
COMPARE = sorted((CONFIGS / "compare").glob("*.yaml"))  # loaded in test_comparing
RECIPES = sorted((CONFIGS / "recipes").glob("*.yaml"))
GATES = sorted((CONFIGS / "gates").glob("*.yaml"))


def name_of(path):
    return path.stem


def load(*overrides, path=TINY):
    return load_train_config(path, configs=CONFIGS, overrides=overrides)


def test_every_file_under_configs_has_a_schema_that_is_tested_here():
    found = {path for path in CONFIGS.rglob("*") if path.is_file()}
    known = {*TRAIN, *COMPARE, *RECIPES, *GATES}
    elsewhere = {"profiles", "stacks"}  # in tests/integration/test_profiles.py
    others = {path for path in found - known if path.parent.name not in elsewhere}
    assert others == set()
    assert len(TRAIN) >= 1
    assert len(COMPARE) >= 1
    assert len(RECIPES) >= 6
    assert len(GATES) >= 3


@pytest.mark.parametrize("path", TRAIN, ids=name_of)
@pytest.mark.parametrize("recipe", RECIPES, ids=name_of)
def test_every_training_loads_with_every_recipe(path, recipe):
    config = load(f"recipe={recipe.stem}", path=path)
    assert config.recipe.name == recipe.stem
    assert TrainConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize("path", TRAIN, ids=name_of)
@pytest.mark.parametrize("gate", GATES, ids=name_of)
def test_every_training_loads_with_every_gate(path, gate):
    assert load(f"gate={gate.stem}", path=path).gate.name == gate.stem


@pytest.mark.parametrize("path", RECIPES, ids=name_of)
def test_recipe_is_called_as_its_file(path):
    assert validate(Recipe, read_yaml(path)).name == path.stem


@pytest.mark.parametrize("path", GATES, ids=name_of)
def test_gate_is_called_as_its_file(path):
    assert validate(GatePolicy, read_yaml(path)).name == path.stem


@pytest.mark.parametrize("path", TRAIN, ids=name_of)
def test_training_is_called_as_its_file(path):
    assert load(path=path).name.replace("-", "_") == path.stem.replace("-", "_")


@pytest.mark.parametrize("path", [*TRAIN, *RECIPES, *GATES], ids=str)
def test_file_opens_with_the_command_that_runs_it(path):
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert "dptune " in first


@pytest.mark.parametrize("path", [*TRAIN, *RECIPES, *GATES], ids=str)
def test_file_holds_no_machine_path_and_no_seed(path):
    values = read_yaml(path)
    assert values.get("seed") is None
    for text in strings_in(values):
        assert not text.startswith(("/", "~")), text


def strings_in(value):
    if isinstance(value, dict):
        return [text for inner in value.values() for text in strings_in(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in strings_in(inner)]
    return [value] if isinstance(value, str) else []


def test_stage_settings_reach_the_chosen_recipe_only():
    jft, plain = load(), load("recipe=no_dp")
    assert [s.epochs for s in jft.recipe.stages] == [1, 2]
    assert [s.epochs for s in plain.recipe.stages] == [1]


def test_stage_settings_merge_and_keep_the_rest():
    config = load("stages.jft.private_finetune.optimizer.learning_rate=0.25")
    stage = config.recipe.stages[1]
    plain = load().recipe.stages[1]
    assert stage.optimizer.learning_rate == 0.25
    assert stage.optimizer.schedule == plain.optimizer.schedule
    assert stage.clipping == plain.clipping


def test_recipe_files_are_not_changed_by_stage_settings():
    before = read_yaml(CONFIGS / "recipes" / "jft.yaml")
    load("stages.jft.private_finetune.clipping.max_grad_norm=9.0")
    assert read_yaml(CONFIGS / "recipes" / "jft.yaml") == before


@pytest.mark.parametrize(
    ("override", "read"),
    [
        ("privacy.target_epsilon=4", lambda c: c.privacy.target_epsilon == 4.0),
        ("privacy.target_delta=1.0e-5", lambda c: c.privacy.target_delta == 1e-5),
        ("detection.tier=high_entity", lambda c: c.detection.tier == "high_entity"),
        ("detection={recognizers: [patterns]}", lambda c: len(c.detection.recognizers)),
        ("data.max_records=null", lambda c: c.data.max_records is None),
        ("canaries.template=a={secret}", lambda c: c.canaries.template == "a={secret}"),
        (" name = other ", lambda c: c.name == "other"),
    ],
)
def test_override_changes_one_setting(override, read):
    assert read(load(override))


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("drop_exact_duplicates", "duplicates: drop_exact"),
        ("drop_near_duplicates", "duplicates: keep"),
    ],
)
@pytest.mark.parametrize("value", ["true", "false"])
def test_old_keys_of_duplicates_are_refused_with_what_to_write_now(key, says, value):
    with pytest.raises(ConfigError, match=says) as caught:
        load(f"data.{key}={value}")
    assert key in str(caught.value)


@pytest.mark.parametrize("name", ["pretraining.source", "public_text"])
def test_public_text_that_is_a_file_of_the_private_data_is_refused(name):
    private = {"kind": "jsonl", "path": "people/./all.jsonl", "id_column": "id"}
    public = {"kind": "text", "path": "people/all.jsonl"}
    source = f"data.source={json.dumps(private)}"
    with pytest.raises(ConfigError, match="must be public text"):
        load(source, f"model.{name}={json.dumps(public)}")
    public["path"] = "public/all.txt"
    assert load(source, f"model.{name}={json.dumps(public)}")


def test_later_override_wins():
    assert load("data.seed=1", "data.seed=2").data.seed == 2


def test_overrides_leave_the_values_they_were_given_as_they_were():
    values = {"a": {"b": 1}}
    assert apply_overrides(values, ["a.b=2", "a.c.d=3"]) == {
        "a": {"b": 2, "c": {"d": 3}}
    }
    assert values == {"a": {"b": 1}}


def test_all_broken_overrides_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        apply_overrides({"a": 1}, ["b", "a.b=2", "=1"])
    assert len(caught.value.problems) == 3
    assert "goes through a" in str(caught.value)


def test_all_problems_of_all_parts_are_told_at_once():
    with pytest.raises(ConfigError) as caught:
        load(
            "privacy.target_epsilon=0",
            "privacy.nothing=1",
            "recipe={name: x, title: X, stages: []}",
            "stages.jft={}",
            "stages.jtf={}",
            "gate={name: g}",
        )
    paths = [problem.path for problem in caught.value.problems]
    wanted = ("target_epsilon", "nothing", "stages", "jtf", "notion", "max_epsilon")
    for word in wanted:
        assert any(word in path for path in paths), word


def test_error_of_a_value_never_quotes_a_mapping():
    with pytest.raises(ConfigError) as caught:
        load("canaries={template: [Zebediah], num_planted: 1, num_held_out: 1}")
    assert "Zebediah" not in str(caught.value)


def test_repeated_key_is_refused_at_any_depth(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a:\n  - b: 1\n    c: {d: 1, d: 2}\n")
    with pytest.raises(ConfigError, match="got d twice"):
        read_yaml(path)


@pytest.mark.parametrize("last", ["name: *a9", "&b [*a9, *b]"])
def test_aliases_that_nobody_could_unfold_are_refused(tmp_path, last):
    """A policy of ten lines took all memory of the machine to say what was wrong."""
    path = tmp_path / "a.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    path.write_text("\n".join([*lines, last if ":" in last else f"b: {last}"]))
    with pytest.raises(ConfigError, match="repeat more than"):
        read_yaml(path)


def test_aliases_that_repeat_a_little_and_long_lists_stay(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: &a {b: [1, 2]}\nc: *a\nd: {<<: *a, e: *a}\n")
    assert read_yaml(path)["d"] == {"b": [1, 2], "e": {"b": [1, 2]}}
    path.write_text(f"a: {[1] * 100_001}")
    assert len(read_yaml(path)["a"]) == 100_001


@pytest.mark.parametrize("number", ["010", "-017", "0x10", "0b11", "1:30", "1:30.5"])
def test_number_that_means_another_one_is_refused(tmp_path, number):
    """A policy with `max_epsilon: 010` let 8 pass, and one with `1:30` let 90."""
    path = tmp_path / "a.yaml"
    path.write_text(f"name: a\nmax_epsilon: {number}\n")
    with pytest.raises(ConfigError, match=rf"line 2: .* got {number}\. Put"):
        read_yaml(path)
    with pytest.raises(ConfigError, match=r"--set gate\.max_epsilon: .* decimal"):
        apply_overrides({}, [f"gate.max_epsilon={number}"])


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("-0.5", -0.5), ("1_000", 1000), ("1.0e-5", 1e-5), ("'010'", "010")],
)
def test_number_in_decimal_digits_is_what_it_says(tmp_path, text, value):
    path = tmp_path / "a.yaml"
    path.write_text(f"a: {text}\n")
    assert read_yaml(path) == {"a": value}


@pytest.mark.parametrize("text", ["a: 2026-13-45", "a: !!int b", "[" * 9000])
def test_value_that_cannot_be_read_is_no_yaml(tmp_path, text):
    """It ended in a crash."""
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="valid YAML"):
        read_yaml(path)


def test_merge_keys_and_anchors_are_plain_yaml(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("base: &b {x: 1, y: 2}\nother:\n  <<: *b\n  y: 3\n")
    assert read_yaml(path)["other"] == {"x": 1, "y": 3}


def test_yaml_never_builds_objects(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: !!python/object/apply:os.getcwd []\n")
    with pytest.raises(ConfigError, match="valid YAML"):
        read_yaml(path)


def test_scientific_notation_without_a_point_is_a_number_for_the_schema():
    values = yaml.safe_load(TINY.read_text())
    assert isinstance(yaml.safe_load("1e-4"), str)
    assert load("privacy.target_delta=1e-4").privacy.target_delta == 1e-4
    assert values["privacy"]["target_delta"] == 1e-4


def test_every_setting_is_frozen():
    config = load()
    with pytest.raises(ValueError, match="frozen"):
        config.privacy.target_epsilon = 100.0


READER = "stages.jft_screened.redacted_finetune.screened.screened_by"


@pytest.mark.parametrize("name", ["'  '", '"\\u200b"', "'...'"])
def test_reader_of_a_screened_part_has_a_name(name):
    """A blank one took the place of a detector that misses nothing."""
    with pytest.raises(ConfigError, match="screened_by"):
        load("recipe=jft_screened", f"{READER}={name}")


def test_what_a_reader_of_a_screened_part_found_is_masked():
    asked = ("recipe=jft_screened", f"{READER}='A. Reader'")
    assert load(*asked)
    with pytest.raises(ConfigError, match="use_review must be true"):
        load(*asked, "detection.use_review=false")
    assert load("recipe=jft_screened", "detection.use_review=false")


def test_base_model_is_not_pretrained_on_the_private_source():
    values = load(path=CONFIGS / "train" / "quickstart.yaml").model_dump(mode="json")
    values["model"]["pretraining"]["source"] = values["data"]["source"]
    with pytest.raises(ValueError, match="must be public text"):
        TrainConfig.model_validate(values)


@pytest.mark.parametrize("sigma", [2.0, 3.0])
def test_noise_of_dp_sgd_can_be_given_in_the_place_of_a_target(sigma):
    noise = f"stages.dp_sgd.private_finetune.noise.noise_multiplier={sigma}"
    run = load("recipe=dp_sgd", noise, "privacy.target_epsilon=null")
    made = plan_run(
        run.recipe,
        num_units=1000,
        notion=run.privacy.notion,
        relation=run.privacy.relation,
        target_epsilon=run.privacy.target_epsilon,
        target_delta=1e-5,
        mode=run.privacy.mode,
    )
    (only,) = made.stages
    assert only.noise_multiplier == sigma
    assert math.isfinite(made.epsilon)
    assert only.nominal_epsilon is not None


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("stages.no_dp.finetune.epochs=.nan", "stages.no_dp.finetune.epochs"),
        ("stages.no_dp.finetune.epochs=.inf", "stages.no_dp.finetune.epochs"),
        ("stages.no_dp.finetune.epocs=1", "stages.no_dp.finetune.epocs"),
        ("stages.no_dp.finetun.epochs=1", "stages.no_dp.finetun"),
        (
            "stages.dp_adam.private_finetune.clipping.max_grad_norm=.nan",
            "stages.dp_adam.private_finetune.clipping.max_grad_norm",
        ),
    ],
)
def test_settings_of_a_recipe_that_is_not_chosen_are_checked(override, path):
    with pytest.raises(ConfigError) as refusal:
        load(override)
    assert [problem.path for problem in refusal.value.problems] == [path]


def test_twin_that_looks_at_the_chosen_recipe_only_is_caught(monkeypatch):
    monkeypatch.setattr("dptune.configfile._problems_of_changes", lambda *_: [])
    load("stages.no_dp.finetune.epochs=.nan")
