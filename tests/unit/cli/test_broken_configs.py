"""Configurations that cannot be used: exit 2, words that help, nothing created."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

DELETE = object()
NOISELESS = {
    "name": "s",
    "view": "original",
    "epochs": 1,
    "expected_batch_size": 8,
    "optimizer": {"learning_rate": 0.1},
}
NOISY = NOISELESS | {"clipping": {"max_grad_norm": 1.0}, "noise": {}}
RECORD = {"privacy.notion": "record"}
JSONL = {"kind": "jsonl", "path": "a.jsonl", "id_column": "id"}


def recipe(*stages: object) -> dict[str, object]:
    """Write a recipe in place; `stages` of the tiny configuration would not fit it."""
    mapping = {"name": "r", "title": "R", "stages": list(stages)}
    return {"recipe": mapping, "stages": DELETE}


@dataclass(frozen=True, kw_only=True)
class Broken:
    """One change that breaks the tiny configuration.

    Args:
        edit: dotted key to new value, or DELETE.
        says: pieces of the message.
        write: makes files in the data root.
    """

    edit: Mapping[str, Any]
    says: tuple[str, ...]
    write: Callable[[Path], object] = field(default=lambda folder: None)


def unknown(key: str, *says: str) -> Broken:
    """A key that is nowhere in the schema, or in another place of it."""
    return Broken(edit={key: 1}, says=(key, "no such key", *says))


def wrong(key: str, value: object, *says: str, **more: object) -> Broken:
    """A value that its key cannot take; the message names the key."""
    return Broken(edit={key: value, **more}, says=(key, "must", *says))


def missing(key: str) -> Broken:
    """A required key that is absent."""
    return Broken(edit={key: DELETE}, says=(key, "must be set"))


def write_rows(folder: Path, count: int = 300, name: str = "a.jsonl", **fields) -> None:
    """Write different records with ids."""
    rows = [
        {"id": f"{name}-{i}", "text": f"{name} row {i}: mail a{i}@example.com, {i**3}"}
        for i in range(count)
    ]
    lines = [json.dumps(row | fields) for row in rows]
    (folder / name).write_text("\n".join(lines) + "\n")


def pickled_model(folder: Path) -> None:
    """A model directory with nothing but pickled weights."""
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "m" / "pytorch_model.bin").write_bytes(b"\x80\x04")


PATH_MODEL = {
    "model.source": {"kind": "path", "path": "m"},
    "model.pretraining": DELETE,
}

BROKEN = {
    # unknown keys at every depth
    "unknown top-level key": unknown("nmae"),
    "unknown data key": unknown("data.privacy_units", "'privacy_unit'"),
    "unknown source key": unknown("data.source.sead"),
    "unknown splits key": unknown("data.splits.tset", "'test'"),
    "unknown canary key": unknown("canaries.lenght", "'length'"),
    "unknown detection key": unknown("detection.teir", "'tier'"),
    "unknown redaction key": unknown("redaction.operater", "'operator'"),
    "unknown model key": unknown("model.max_token", "'max_tokens'"),
    "unknown architecture key": unknown("model.source.num_layer"),
    "unknown pretraining key": unknown("model.pretraining.epoch", "'epochs'"),
    "unknown privacy key": unknown("privacy.epsilon", "'target_epsilon'"),
    "key of another place": unknown(
        "physical_batch_size", "'performance.physical_batch_size'"
    ),
    "unknown attack key": unknown("attack.members"),
    "unknown gate key": unknown("gate.max_epsilons", "'max_epsilon'"),
    "unknown registry key": unknown("registry.model_names", "'model_name'"),
    "unknown performance key": unknown("performance.gpu"),
    "unknown stage key": Broken(
        edit={"stages.jft.private_finetune.sigma": 1.0},
        says=("recipe.stages.1.sigma", "no such key"),
    ),
    "unknown optimizer key": Broken(
        edit={"stages.jft.private_finetune.optimizer": {"lr": 0.1}},
        says=("recipe.stages.1.optimizer.lr", "no such key"),
    ),
    # wrong types
    "text for a number": wrong("model.max_tokens", "many", "valid integer"),
    "number for a mapping": wrong("data.splits", 3),
    "list for a mapping": wrong("privacy", [1, 2]),
    "null for a mapping": wrong("canaries", None),
    "fraction for a whole number": wrong("data.seed", 1.5),
    "YAML 1e-4 is text": wrong("privacy.target_delta", "1e-4x", "valid number"),
    "recipe is a number": wrong("recipe", 3),
    "gate is a list": wrong("gate", ["default"]),
    "stages is a list": wrong("stages", ["jft"], "map recipe names"),
    "stage override is a number": Broken(
        edit={"stages.jft.private_finetune": 3},
        says=("stages.jft.private_finetune", "must be a mapping"),
    ),
    # ranges
    "zero epsilon": wrong("privacy.target_epsilon", 0, "greater than 0"),
    "negative epsilon": wrong("privacy.target_epsilon", -1.0, "greater than 0"),
    "infinite epsilon": wrong("privacy.target_epsilon", float("inf"), "finite"),
    "NaN epsilon": wrong("privacy.target_epsilon", float("nan"), "finite"),
    "zero delta": wrong("privacy.target_delta", 0, "greater than 0"),
    "delta of one": wrong("privacy.target_delta", 1, "less than 1"),
    "too few tokens": wrong("model.max_tokens", 1, "greater than or equal to 8"),
    "too large a test split": wrong("data.splits.test", 0.6, "less than 0.5"),
    "no test split": wrong("data.splits.test", 0, "greater than 0"),
    "too few members": wrong("attack.num_members", 3, "greater than or equal to 50"),
    "zero epochs": Broken(
        edit={"stages.jft.private_finetune.epochs": 0},
        says=("recipe.stages.1.epochs", "greater than 0"),
    ),
    "negative learning rate": Broken(
        edit={"stages.jft.private_finetune.optimizer": {"learning_rate": -1}},
        says=("recipe.stages.1.optimizer.learning_rate", "greater than 0"),
    ),
    "missing rate above one": wrong(
        "detection.missing_rate", 2, **{"detection.missing_rate_upper": 1.0}
    ),
    "bad run name": wrong("name", "My Run!", "pattern"),
    "bad model name": wrong("registry.model_name", "a b", "pattern"),
    "unknown notion": wrong("privacy.notion", "strong", "'record'"),
    "unknown relation": wrong("privacy.relation", "swap", "'replace_one'"),
    "unknown tier": wrong("detection.tier", "all"),
    "unknown operator": wrong("redaction.operator", "burn"),
    "unknown source kind": wrong("data.source.kind", "xml"),
    "unknown dtype": wrong("performance.dtype", "float16", "'bfloat16'"),
    "small vocabulary": wrong("model.source.vocab_size", 10),
    # required keys
    "no name": missing("name"),
    "no data": missing("data"),
    "no canaries": missing("canaries"),
    "no model": missing("model"),
    "no recipe": missing("recipe"),
    "no privacy": missing("privacy"),
    "no gate": missing("gate"),
    "no registry": missing("registry"),
    "no notion": missing("privacy.notion"),
    "no relation": missing("privacy.relation"),
    "no target epsilon": missing("privacy.target_epsilon"),
    "no target delta": missing("privacy.target_delta"),
    "no privacy unit": missing("data.privacy_unit"),
    "no gate epsilon": missing("gate.max_epsilon"),
    "no source kind": missing("model.source.kind"),
    # settings that contradict one another
    "noise without a clip": Broken(
        edit=recipe(NOISELESS | {"noise": {}}), says=("clipping and noise must both",)
    ),
    "a clip without noise": Broken(
        edit=recipe(NOISELESS | {"clipping": {"max_grad_norm": 1.0}}),
        says=("clipping and noise must both",),
    ),
    "LoRA without its sizes": Broken(
        edit=recipe(NOISELESS | {"trains": "lora"}), says=("lora must be set exactly",)
    ),
    "LoRA sizes without LoRA": Broken(
        edit=recipe(NOISELESS | {"lora": {"rank": 2, "alpha": 4}}),
        says=("lora must be set exactly",),
    ),
    "two stages of one name": Broken(
        edit=recipe(NOISELESS, NOISY), says=("stage names must be unique",)
    ),
    "a recipe without stages": Broken(edit=recipe(), says=("recipe.stages", "must")),
    "selective with add or remove": Broken(
        edit={"privacy.relation": "add_or_remove_one"},
        says=("privacy", "relation must be replace_one"),
    ),
    "selective gate with add or remove": Broken(
        edit={"gate.relation": "add_or_remove_one"},
        says=("gate", "relation must be replace_one"),
    ),
    "gate that accepts measurements": Broken(
        edit={"gate.accepted_statuses": ["empirical"]},
        says=("gate.accepted_statuses", "certified, conditional"),
    ),
    "spaCy without a pipeline": Broken(
        edit={"detection": {"recognizers": ["spacy"]}}, says=("spacy_pipeline must",)
    ),
    "a pipeline without spaCy": Broken(
        edit={"detection": {"spacy_pipeline": "en_core_web_sm"}},
        says=("spacy_pipeline must be set exactly",),
    ),
    "a missing rate without its bound": Broken(
        edit={"detection": {"missing_rate": 0.01}}, says=("must be set together",)
    ),
    "a unit larger than a pass": Broken(
        edit={"performance": {"physical_batch_size": 2, "sharding": "fsdp"}},
        says=("performance.physical_batch_size must be at least", "got 2"),
    ),
    "codes under a stage that trains everything": Broken(
        edit={"model.quantization": 4},
        says=("model.quantization must be null unless", "adapters"),
    ),
    "heads that do not divide the width": Broken(
        edit={"model.source.num_heads": 5}, says=("hidden_size must be a multiple",)
    ),
    "sequences longer than the model": Broken(
        edit={"model.max_tokens": 128}, says=("model", "max_tokens", "96")
    ),
    "pre-training of finished weights": Broken(
        edit={"model.source": {"kind": "path", "path": "m"}},
        says=("pretraining must", "architecture"),
    ),
    "template without a secret": Broken(
        edit={"canaries.template": "no place"}, says=("canaries.template", "{secret}")
    ),
    "more canaries than candidates": Broken(
        edit={
            "canaries.alphabet": "digits",
            "canaries.length": 1,
            "canaries.num_planted": 9,
        },
        says=("canaries", "at most the number of candidates"),
    ),
    "no target and no noise": Broken(
        edit={"privacy.target_epsilon": None},
        says=("privacy.target_epsilon", "noisy stage has no noise_multiplier"),
    ),
    "a target and all noise": Broken(
        edit=recipe(NOISY | {"noise": {"noise_multiplier": 1.0}}),
        says=("privacy.target_epsilon", "must be null"),
    ),
    "delta of one over n": Broken(
        edit={"privacy.target_delta": 0.01},
        says=("privacy.target_delta", "1 / number of privacy units"),
    ),
    "impossible budget": Broken(
        edit={"privacy.target_epsilon": 1e-7, "privacy.target_delta": 1e-12},
        says=("target_epsilon",),
    ),
    "batch larger than the corpus": Broken(
        edit={"stages.jft.private_finetune.expected_batch_size": 5000},
        says=("stages.private_finetune.expected_batch_size", "at most the number"),
    ),
    "deduplication and a selective claim": Broken(
        edit={"data.duplicates": "drop_exact"},
        says=("data.duplicates", "must be keep for a selective guarantee"),
    ),
    "hashes as ids and a selective claim": Broken(
        write=write_rows,
        edit={
            "data.source": {"kind": "jsonl", "path": "a.jsonl"},
            "data.allow_content_hash_ids": True,
        },
        says=("data.source.id_column", "must be set for a selective guarantee"),
    ),
    # names that are nowhere
    "unknown recipe": wrong("recipe", "jtf", "must be one of", "'jtf'"),
    "unknown gate": wrong("gate", "lax", "must be one of", "'lax'"),
    "recipe name that climbs": wrong("recipe", "../train/quickstart", "one of"),
    "stage that is not in the recipe": Broken(
        edit={"stages.jft.third_finetune": {"epochs": 1}},
        says=("stages.jft.third_finetune", "redacted_finetune, private_finetune"),
    ),
    "stages of an unknown recipe": Broken(
        edit={"stages.jtf": {}}, says=("stages.jtf", "must be the name of a recipe")
    ),
    # things that are not there
    "missing data file": Broken(
        edit={"data.source": JSONL}, says=("must exist", "a.jsonl")
    ),
    "missing public file": Broken(
        edit={"model.pretraining.source": JSONL}, says=("must exist", "a.jsonl")
    ),
    "missing text of the tokenizer": Broken(
        edit={
            "model.source.tokenizer": {"kind": "trained", "public_text": ["p.txt"]},
            "model.pretraining": DELETE,
        },
        says=("p.txt",),
    ),
    "missing directory of the tokenizer": Broken(
        edit={
            "model.source.tokenizer": {"kind": "path", "path": "t"},
            "model.source.vocab_size": DELETE,
            "model.pretraining": DELETE,
        },
        says=("directory", "does not exist"),
    ),
    "missing model directory": Broken(edit=PATH_MODEL, says=("m",)),
    "pickled weights": Broken(
        edit=PATH_MODEL, write=pickled_model, says=("safetensors",)
    ),
    "absolute model path": Broken(
        edit=PATH_MODEL | {"model.source": {"kind": "path", "path": "/m"}},
        says=("model.source", "inside the data root"),
    ),
    "hub model without a network": Broken(
        edit=PATH_MODEL | {"model.source": {"kind": "hub", "id": "nobody/nothing"}},
        says=("nobody/nothing",),
    ),
    "hub data without a network": Broken(
        edit={
            "data.source": {
                "kind": "hub",
                "name": "nobody/nothing",
                "split": "train",
                "id_column": "id",
            }
        },
        says=("nobody/nothing",),
    ),
    "missing spaCy pipeline": Broken(
        edit={
            "detection": {
                "recognizers": ["patterns", "spacy"],
                "spacy_pipeline": "xx_no_such_pipeline",
            }
        },
        says=("xx_no_such_pipeline",),
    ),
}

TEXTS = {
    "empty file": ("", "mapping"),
    "comments only": ("# nothing\n", "mapping"),
    "a list": ("- a\n- b\n", "mapping"),
    "a word": ("hello\n", "mapping"),
    "open bracket": ("name: [1, 2\n", "valid YAML"),
    "tabs": ("data:\n\tsource: x\n", "valid YAML"),
    "a key twice": ("name: a\nname: b\n", "must give each key once, got name"),
    "a deep key twice": ("data:\n  seed: 1\n  seed: 2\n", "must give each key once"),
    "two documents": ("name: a\n---\nname: b\n", "valid YAML"),
    "a Python object": ("name: !!python/name:os.system\n", "valid YAML"),
    "an unknown alias": ("name: *a\n", "valid YAML"),
    "a mapping as key": ("{a: 1}: 2\n", "valid YAML"),
    "not UTF-8": (b"name: caf\xe9\n", "UTF-8"),
    "bytes": (bytes(range(256)), "UTF-8"),
    "control characters": ("name: a\x00b\n", "valid YAML"),
    "numbers as keys": ("1: 2\n", "keys are words"),
}


def set_key(values: dict[str, Any], key: str, value: object) -> None:
    """Set or delete a dotted key."""
    *path, last = key.split(".")
    for part in path:
        values = values.setdefault(part, {})
    if value is DELETE:
        values.pop(last, None)
    else:
        values[last] = value


def broken(values: dict[str, Any], edit: Mapping[str, Any]) -> dict[str, Any]:
    """Return changed values."""
    changed = copy.deepcopy(values)
    for key, value in edit.items():
        set_key(changed, key, value)
    return changed


def test_table_is_as_large_as_the_bar_asks():
    assert len(BROKEN) + len(TEXTS) >= 60


@pytest.mark.parametrize("name", BROKEN)
def test_train_with_a_broken_config_creates_nothing(
    name, values, write_config, run_cli, tmp_path
):
    case = BROKEN[name]
    case.write(tmp_path)
    outcome = run_cli("train", write_config(broken(values, case.edit)))
    outcome.assert_refused(*case.says, "Nothing was created and no budget was spent")


@pytest.mark.parametrize("name", TEXTS)
def test_train_with_a_broken_file_creates_nothing(name, write_config, run_cli):
    content, says = TEXTS[name]
    run_cli("train", write_config(content)).assert_refused(says)


@pytest.mark.parametrize("name", ["zero epsilon", "impossible budget", "no gate"])
def test_calibrate_with_a_broken_config_creates_nothing(
    name, values, write_config, run_cli
):
    case = BROKEN[name]
    outcome = run_cli("calibrate", write_config(broken(values, case.edit)))
    outcome.assert_refused(*case.says)


def test_unknown_recipe_and_gate_are_told_with_every_other_problem(
    values, write_config, run_cli
):
    edit = {"recipe": "jtf", "gate": "defualt", "privacy.target_epsilon": -1}
    outcome = run_cli("train", write_config(broken(values, edit | {"stages": {}})))
    outcome.assert_refused("3 problems", "'jtf'", "'defualt'", "target_epsilon")


@pytest.mark.parametrize(
    ("units", "says"),
    [
        (4123, "data.public_units must have at most two significant digits"),
        ("many", "data.public_units must be a valid integer"),
        ({"number": 41}, "data.public_units.noise_multiplier must be set"),
    ],
)
def test_number_of_units_that_is_wrong_is_one_problem(
    units, says, values, write_config, run_cli
):
    outcome = run_cli(
        "train", write_config(broken(values, {"data.public_units": units}))
    )
    outcome.assert_refused("1 problem", says)
    assert "valid dictionary" not in outcome.err


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("budget", 3, "budget must be a mapping, got 3"),
        ("data.source", 3, "data.source must be a mapping, got 3"),
        ("detection.recognizers", 3, "detection.recognizers must be a list, got 3"),
        (
            "model.public_text",
            {"kind": "text", "path": 3},
            "path must be a path, got 3",
        ),
    ],
)
def test_shape_of_a_value_is_told_in_words_of_the_file(
    key, value, says, values, write_config, run_cli
):
    outcome = run_cli("train", write_config(broken(values, {key: value})))
    outcome.assert_refused("1 problem", says)


def test_stage_that_is_wrong_is_not_called_missing(values, write_config, run_cli):
    edit = {"stages.jft.private_finetune.epochs": 0}
    outcome = run_cli("train", write_config(broken(values, edit)))
    outcome.assert_refused("1 problem", "recipe.stages.1.epochs")


def test_every_problem_is_told_at_once(values, write_config, run_cli):
    edit = {
        "nmae": 1,
        "privacy.target_epsilon": -1,
        "model.max_tokens": "many",
        "gate.max_epsilons": 1,
        "registry": DELETE,
        "stages.jft.third": {},
    }
    outcome = run_cli("train", write_config(broken(values, edit)))
    outcome.assert_refused(
        "6 problems", "nmae", "target_epsilon", "max_tokens", "registry", "third"
    )


def test_problems_of_several_parts_are_told_at_once(values, write_config, run_cli):
    edit = PATH_MODEL | {
        "data.duplicates": "drop_exact",
        "privacy.target_delta": 0.5,
        "detection": {"recognizers": ["spacy"], "spacy_pipeline": "xx_none"},
    }
    outcome = run_cli("train", write_config(broken(values, edit)))
    outcome.assert_refused("xx_none", "target_delta", "data.duplicates", "directory")


@pytest.mark.parametrize("override", ["privacy", "=4", "privacy.target_epsilon.x=4"])
def test_broken_override_is_refused(override, values, write_config, run_cli):
    outcome = run_cli("train", write_config(values), "--set", override)
    outcome.assert_refused("--set")


def test_override_that_is_no_yaml_is_refused(values, write_config, run_cli):
    outcome = run_cli("train", write_config(values), "--set", "name=[1, 2")
    outcome.assert_refused("--set name")


def test_missing_config_is_refused(run_cli, tmp_path):
    run_cli("train", tmp_path / "none.yaml").assert_refused("existing file")


def test_folder_as_config_is_refused(run_cli, tmp_path):
    run_cli("train", tmp_path).assert_refused("existing file")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has one")
def test_absent_accelerator_is_refused_before_anything(values, write_config, run_cli):
    outcome = run_cli("train", write_config(values), "--set", "performance.device=cuda")
    outcome.assert_refused("performance.device")


def test_project_folder_of_an_earlier_run_stays_as_it_was(
    values, write_config, run_cli, tmp_path
):
    folder = tmp_path / "home" / "runs"
    folder.mkdir(parents=True)
    (folder / "kept").write_text("x")
    outcome = run_cli("train", write_config(broken(values, {"gate": "lax"})))
    assert (outcome.code, outcome.created) == (2, ["runs", "runs/kept"])
