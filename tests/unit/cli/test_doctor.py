"""What `doctor` says of models that can be trained privately, and of others."""

import json
import shutil
from functools import partial

import pytest
import torch
import yaml
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    XLNetConfig,
)
from transformers.models.llama.modeling_llama import LlamaMLP

from cli import doctor as cli_doctor
from dptune.config import PerformanceSettings
from dptune.configfile import read_yaml, train_config_of
from dptune.dpsgd import rules
from dptune.models.check import check_positions
from dptune.models.loading import load_model, save_model
from dptune.models.metadata import read_metadata
from dptune.models.source import PathSource
from dptune.models.tokenizer import train_tokenizer
from dptune.workflow import doctor
from infra.workspace import REPOSITORY

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL = ("--length", "16", "--batch", "2")
FORWARD = LlamaMLP.forward


@pytest.fixture(scope="session")
def saved(tmp_path_factory):
    """Save tiny random models, each once, with a tokenizer."""
    tokenizer = train_tokenizer(["The parcel came back to the agent."], vocab_size=300)
    folder = tmp_path_factory.mktemp("models")
    for name, kind, config in (
        ("llama", LlamaForCausalLM, LlamaConfig),
        ("bert", BertModel, BertConfig),
        ("three", BertForSequenceClassification, partial(BertConfig, num_labels=3)),
    ):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = kind(config(vocab_size=300, **SIZES))
        save_model(model, tokenizer, folder / name)
    return folder


@pytest.fixture
def llama(saved, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(saved / "llama", tmp_path / "llama")


@pytest.fixture(autouse=True)
def no_collection(monkeypatch):
    """Peaks are not looked at here, and to look for garbage takes most of the time."""
    monkeypatch.setattr("dptune.workflow.device.gc.collect", lambda: 0)


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def own_text(settings):
    """The configuration that users copy, with settings in the place of its own."""
    values = read_yaml(REPOSITORY / "configs/train/own_text.yaml") | settings
    return train_config_of(values, configs=REPOSITORY / "configs")


def pasted(outcome):
    """The YAML that a command printed, from its first key to the last words."""
    lines = outcome.out.splitlines()
    start = next(
        i for i, ln in enumerate(lines) if ln.startswith(("model:", "performance:"))
    )
    ends = ("next", "Paths of")
    stop = next(i for i, ln in enumerate(lines) if i > start and ln.startswith(ends))
    return yaml.safe_load("\n".join(lines[start:stop]))


def test_sound_model_is_measured_both_ways_and_nothing_is_written(
    llama, run_cli, tmp_path
):
    earlier = tmp_path / "home" / "runs" / "earlier"
    earlier.mkdir(parents=True)
    (earlier / "ledger.jsonl").write_text("{}\n")
    (tmp_path / "home" / "budget.db").write_bytes(b"what was spent")
    before = contents(tmp_path), sorted(tmp_path.rglob("*"))
    outcome = run_cli("doctor", llama, "--json", *SMALL)
    assert outcome.code == 0, outcome.err
    found = json.loads(outcome.out)
    assert [stage["trains"] for stage in found["stages"]] == ["full", "lora"]
    for stage in found["stages"]:
        assert stage["refusals"] == []
        assert 0 <= stage["distance"] <= doctor.MOST_APART
        assert [rows for rows, _ in stage["need"]["steps"]] == [2, 4]
        assert stage["speed"]["private"] > 0
    assert own_text(found["settings"])
    assert (contents(tmp_path), sorted(tmp_path.rglob("*"))) == before


def test_settings_that_are_printed_make_a_configuration_that_doctor_accepts(
    llama, run_cli, write_config
):
    outcome = run_cli("doctor", llama, "--adapters", *SMALL)
    assert outcome.code == 0, outcome.err
    settings = pasted(outcome)
    config = own_text(settings)
    assert config.model.max_tokens == 16
    assert settings["stages"]["dp_lora"]["private_finetune"]["lora"]["rank"] == 8
    assert config.recipe.stages[-1].lora.rank == 8
    for words in ("by LoRA\n", "0.0 million weights in float32", "single records"):
        assert words in outcome.out
    performance = settings.pop("performance")
    again = run_cli("doctor", configuration(write_config, settings, **performance))
    assert again.code == 0, again.err
    assert "privately and exactly by LoRA\n" in again.out
    assert set(pasted(again)) == {"performance"}
    assert PerformanceSettings(**pasted(again)["performance"])
    assert "calibrate" in again.out
    assert not again.home.exists()


def test_model_of_few_positions_is_examined_at_a_length_that_fits(llama, run_cli):
    config = json.loads((llama / "config.json").read_text())
    short = json.dumps(config | {"max_position_embeddings": 24})
    (llama / "config.json").write_text(short)
    outcome = run_cli("doctor", llama, "--full", "--batch", "2")
    assert outcome.code == 0, outcome.err
    assert "rows of 24 tokens" in outcome.out
    assert "max_tokens: 24" in outcome.out


def test_encoder_is_taken_for_a_classifier(saved, run_cli):
    outcome = run_cli("doctor", saved / "bert", "--adapters", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "as sequence_classification" in outcome.out
    model = pasted(outcome)["model"]
    assert model["labels"] == [0, 1]
    settings = read_yaml(REPOSITORY / "configs/train/own_text.yaml")
    settings["data"]["source"]["label_column"] = "label"
    settings["gate"] = "classifier"
    settings["canaries"] = {"num_planted": 0, "num_held_out": 0}
    assert own_text(settings | {"model": model}).model.class_names == ("0", "1")


def test_classifier_is_taken_with_the_classes_that_it_has(saved, run_cli):
    outcome = run_cli("doctor", saved / "three", "--adapters", *SMALL)
    assert outcome.code == 0, outcome.err
    assert pasted(outcome)["model"]["labels"] == [0, 1, 2]


def mixes_rows(self, x):
    return FORWARD(self, x) + x.mean(0, keepdim=True)


def reads_padding(self, x):
    return FORWARD(self, x) + x.mean(1, keepdim=True)


def configuration(write_config, settings, **performance):
    """Write the configuration that users copy, with settings in place of its own."""
    whole = yaml.safe_load((REPOSITORY / "configs/train/own_text.yaml").read_text())
    return write_config(whole | settings | {"performance": performance})


def test_model_whose_rows_reach_each_other_is_refused_by_name(
    llama, run_cli, monkeypatch, write_config
):
    monkeypatch.setattr(LlamaMLP, "forward", mixes_rows)
    model = {"source": {"kind": "path", "path": "llama"}, "max_tokens": 16}
    file = configuration(write_config, {"model": model}, physical_batch_size=2)
    outcome = run_cli("doctor", file)
    outcome.assert_refused(
        "1 problem",
        "private_finetune, in full",
        "LlamaForCausalLM",
        "physical_batch_size to 1",
        "Nothing was created and no budget was spent.",
    )
    assert outcome.out.startswith("cannot be trained privately and exactly in full")
    assert "physical_batch_size:" not in outcome.out


def test_model_whose_rows_reach_each_other_runs_them_one_by_one_where_it_may(
    llama, run_cli, monkeypatch
):
    monkeypatch.setattr(LlamaMLP, "forward", mixes_rows)
    outcome = run_cli("doctor", llama, "--adapters", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "by LoRA one row at a time: the loss of a record must not" in outcome.out
    assert pasted(outcome)["performance"]["physical_batch_size"] == 1


def test_padding_that_reaches_a_loss_gets_fixed_shapes_unless_they_are_given(
    llama, run_cli, monkeypatch, write_config
):
    monkeypatch.setattr(LlamaMLP, "forward", reads_padding)
    outcome = run_cli("doctor", llama, "--adapters", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "by LoRA in fixed shapes: padding must not reach" in outcome.out
    settings = pasted(outcome)
    assert settings["performance"]["fixed_shapes"] is True
    file = configuration(write_config, settings, physical_batch_size=2)
    refused = run_cli("doctor", file)
    refused.assert_refused("padding must not reach", "fixed_shapes to true")


def test_wrong_gradient_rule_is_refused_by_the_check_and_by_the_loop(
    llama, run_cli, monkeypatch
):
    kind, rule = nn.Linear, rules._RULES[nn.Linear]

    def wrong(module, inputs, grad):
        return rule(module, inputs, 1.1 * grad)

    monkeypatch.setitem(rules._RULES, kind, wrong)
    checked = run_cli("doctor", llama, "--full", *SMALL)
    assert "one row at a time: the per-unit gradient of" in checked.out
    assert "differs from autograd" in checked.out
    monkeypatch.setattr(doctor, "check_private", lambda *a, **k: None)
    looped = run_cli("doctor", llama, "--full", *SMALL)
    looped.assert_refused("must be that of a loop over single records")


def test_step_that_does_not_fit_is_refused_though_the_weights_do(
    llama, run_cli, monkeypatch
):
    monkeypatch.setattr(doctor, "memory_there", lambda device: 100_000_000)
    outcome = run_cli("doctor", llama, "--adapters", "--length", "16", "--batch", "4")
    outcome.assert_refused("a private step of 4 sequences", "must fit into memory")


def test_recipe_and_its_clip_are_those_of_the_configuration(
    llama, run_cli, write_config
):
    model = {"source": {"kind": "path", "path": "llama"}, "max_tokens": 16}
    file = configuration(write_config, {"model": model}, physical_batch_size=8)
    for recipe in ("rldp", "geoclip"):
        outcome = run_cli("doctor", file, "--set", f"recipe={recipe}")
        assert outcome.code == 0, (recipe, outcome.err)
    none = run_cli("doctor", file, "--set", "recipe=no_dp")
    none.assert_refused("must have a stage that clips", "recipe=dp_default")
    longer = run_cli("doctor", file, "--set", "model.max_tokens=80")
    longer.assert_refused("model.max_tokens must be at most 64")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--batch", "0"), "greater than or equal to 1"),
        (("--length", "-5"), "greater than or equal to 8"),
        (("--length", "80"), "--length must be at most 64"),
        (("--quantization", "4"), "bitsandbytes"),
        (("--quantization", "4", "--full"), "must be left out with --full"),
        (("--quantization", "3"), "3"),
        (("--task", "translation"), "translation"),
        (("--set", "recipe=dp_lora"), "must be left out for a model"),
    ],
)
def test_wrong_option_is_refused(arguments, says, llama, run_cli, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    run_cli("doctor", llama, *arguments).assert_refused(says)


def test_options_beside_a_configuration_are_refused_all_at_once(
    run_cli, values, write_config
):
    arguments = ("--full", "--length", "16", "--batch", "2")
    outcome = run_cli("doctor", write_config(values), *arguments)
    outcome.assert_refused("3 problems", "--adapters or --full", "--length", "--set")


def without_weights(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"never read")


def cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def without_a_shard(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"w": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def without_tokenizer(folder):
    for file in folder.glob("tokenizer*"):
        file.unlink()


def with_an_adapter(folder):
    (folder / "adapter_config.json").write_text("{}")


def without_a_configuration(folder):
    (folder / "config.json").unlink()


def of_an_unknown_kind(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "new"}))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (without_weights, "pickled weights only"),
        (cut_off, "weights that can be read"),
        (without_a_shard, "weights that can be read"),
        (without_tokenizer, "tokenizer"),
        (with_an_adapter, "holds an adapter, not a model"),
        (without_a_configuration, "config.json"),
        (of_an_unknown_kind, "transformers can load"),
    ],
)
def test_damaged_folder_is_refused_in_words(damage, says, llama, run_cli):
    damage(llama)
    run_cli("doctor", llama).assert_refused(says)


def test_what_is_no_model_is_refused(run_cli, tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("hello")
    run_cli("doctor", tmp_path / "notes.txt").assert_refused("must be a model's folder")
    run_cli("doctor", tmp_path / "absent").assert_refused("must be a model's folder")
    run_cli("doctor", tmp_path / "a.yaml").assert_refused("must be an existing file")
    run_cli("doctor", "").assert_refused("must be a model's folder")
    run_cli("doctor", "nobody/has-this").assert_refused("not in the local cache")
    (tmp_path / "nobody").mkdir()
    monkeypatch.chdir(tmp_path)
    run_cli("doctor", "nobody/has-this").assert_refused("nobody/ holds no such folder")


def test_model_that_cannot_fit_is_refused_before_it_is_loaded(
    llama, run_cli, monkeypatch
):
    monkeypatch.setattr(doctor, "memory_there", lambda device: 10_000)
    monkeypatch.setattr(doctor, "load_source", None)  # nothing may call it
    run_cli("doctor", llama).assert_refused("must fit into memory", "a larger machine")


def test_large_model_on_a_cpu_is_asked_with_fewer_rows_and_adapters_alone(
    llama, monkeypatch
):
    small = list(cli_doctor._of_model(str(llama), cli_doctor.Asked()))
    monkeypatch.setattr(doctor, "_CHEAP", 1)
    monkeypatch.setattr(cli_doctor, "pick_device", lambda _: "cpu")
    monkeypatch.setattr(doctor.Examination, "device", "cpu")
    large = list(cli_doctor._of_model(str(llama), cli_doctor.Asked()))
    own = list(cli_doctor._of_model(str(llama), cli_doctor.Asked(batch=8)))
    rows = [
        [one.performance.physical_batch_size for one in asked]
        for asked in (small, large, own)
    ]
    assert rows == [[4, 4], [2], [8]]


def test_weights_are_counted_as_the_model_counts_them(llama):
    source = {"kind": "path", "path": "llama"}
    metadata = read_metadata(PathSource(**source), data_root=llama.parent)
    assert metadata.num_weights == load_model(llama).model.num_parameters()
    assert metadata.types == ("float32",)


def test_model_without_a_limit_of_positions_takes_any_length():
    check_positions(XLNetConfig(), max_tokens=4096)
