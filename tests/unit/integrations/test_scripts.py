"""Scripts in the manner of official examples: few lines change, and both forms run."""

import difflib
import json
import random
import runpy
import sys

import pytest
import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast

from dptune.accounting.certificates import Certificate
from dptune.accounting.chain import LedgerJournal
from dptune.privacy import NeighboringRelation, Notion
from infra.workspace import REPOSITORY
from tests.support import models

SCRIPTS = REPOSITORY / "docs" / "examples" / "scripts"
PAIRS = sorted(path.stem for path in SCRIPTS.glob("*.py") if "private" not in path.stem)
MOST_CHANGED = 3
WORDS = [
    "a",
    "at",
    "day",
    "fever",
    "he",
    "home",
    "letter",
    "long",
    "night",
    "note",
    "nurse",
    "she",
    "short",
    "the",
    "to",
    "was",
]

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::FutureWarning"
    ),  # of libraries among themselves
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:fan_in_fan_out"),
]


def changed_lines(before, after):
    """Lines that are new or other in the second text, or gone from the first."""
    matcher = difflib.SequenceMatcher(a=before.splitlines(), b=after.splitlines())
    return sum(
        max(j - i, q - p) for tag, i, j, p, q in matcher.get_opcodes() if tag != "equal"
    )


def test_all_scripts_have_a_private_form():
    assert PAIRS == ["peft_lora", "run_clm", "run_glue", "sft", "torch_loop"]


@pytest.mark.parametrize("name", PAIRS)
def test_script_changes_in_few_lines(name):
    before = (SCRIPTS / f"{name}.py").read_text()
    after = (SCRIPTS / f"{name}_private.py").read_text()
    assert 0 < changed_lines(before, after) <= MOST_CHANGED


def test_count_of_changed_lines_sees_more_of_them():
    before = "a\nb\nc\nd\ne"
    assert changed_lines(before, "a\nB\nc\nd\ne\nf\ng\nh") == 4
    assert changed_lines(before, before) == 0


@pytest.fixture(scope="module")
def things(tmp_path_factory):
    """A tiny model with a tokenizer on disk, and files of records."""
    folder = tmp_path_factory.mktemp("script")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    inner = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
    model = models.tiny_gpt2(num_layers=1, positions=64)
    model.config.pad_token_id = 0
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    rng = random.Random(0)  # noqa: S311 - no secret

    def text():
        return " ".join(rng.choices(WORDS, k=rng.randint(3, 9)))

    rows = [
        {"text": text(), "sentence": text(), "label": i % 2, "prompt": text()}
        | {"completion": text()}
        for i in range(48)
    ]
    columns = {
        "texts": ["text"],
        "pairs": ["prompt", "completion"],
        "train": ["sentence", "label"],
    }
    for name, kept in columns.items():
        lines = [json.dumps({k: row[k] for k in kept}) for row in rows[:40]]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    lines = [json.dumps({k: r[k] for k in columns["train"]}) for r in rows[40:]]
    (folder / "test.jsonl").write_text("\n".join(lines))
    return folder


FILES = {
    "peft_lora": ["--train_file", "texts.jsonl"],
    "run_clm": ["--train_file", "texts.jsonl"],
    "run_glue": ["--train_file", "train.jsonl", "--test_file", "test.jsonl"],
    "sft": ["--train_file", "pairs.jsonl", "--bf16", "False", "--max_length", "24"],
    "torch_loop": ["--train_file", "texts.jsonl", "--batch_size", "20"],
}
OF_TRAINER = [
    *("--max_steps", "2", "--use_cpu", "--per_device_train_batch_size", "4"),
    *("--report_to", "none", "--disable_tqdm", "True", "--save_strategy", "no"),
]


@pytest.mark.parametrize("form", ["", "_private"])
@pytest.mark.parametrize("name", PAIRS)
def test_script_runs(name, form, things, tmp_path, monkeypatch):
    files = [str(things / v) if v.endswith("jsonl") else v for v in FILES[name]]
    of_trainer = [] if name == "torch_loop" else OF_TRAINER
    common = ["--model", str(things / "model"), "--output_dir", str(tmp_path / "out")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", [name, *files, *common, *of_trainer])
    runpy.run_path(str(SCRIPTS / f"{name}{form}.py"), run_name="__main__")
    stored = tmp_path / "out" / "privacy" / "certificate.json"
    journal = tmp_path / "ledger.jsonl"
    assert (stored.exists() or journal.exists()) == bool(form)
    if stored.exists():
        certificate = Certificate.model_validate_json(stored.read_text())
        assert 0 < certificate.epsilon <= 8
    if journal.exists():
        ledger = LedgerJournal(journal).read()
        relation = NeighboringRelation.ADD_OR_REMOVE_ONE
        certificate = ledger.certificate(Notion.RECORD, delta=1e-3, relation=relation)
        assert 7.9 < certificate.epsilon <= 8
    assert torch.get_float32_matmul_precision() == "highest"
