"""A script at tiny size: rows of tokens, a collator, arguments, a trainer."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers import models as tokenizer_models
from transformers import PreTrainedTokenizerFast, TrainingArguments

from dptune.accounting.chain import LedgerJournal
from dptune.integrations.transformers import DPTrainer, PrivacyArguments
from tests.support import models

WORDS = [f"w{i}" for i in range(20)]


def make_rows(num_rows=40, *, seed=0, length=None, labels=None):
    """Rows of made-up tokens, of lengths that differ unless one is given."""
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(num_rows):
        size = length or int(rng.integers(4, 12))
        ids = rng.integers(1, models.VOCABULARY, size=size).tolist()
        label = ids if labels is None else index % labels
        rows.append({"input_ids": ids, "attention_mask": [1] * size, "labels": label})
    return rows


def make_prompts():
    """Prompts of two to six words, and what is to be learnt behind them."""
    return [
        {"prompt": " ".join(WORDS[: 2 + i % 5]), "completion": f" w{i % 20} w{i // 20}"}
        for i in range(40)
    ]


def word_tokenizer():
    """A tokenizer of whole words."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *WORDS])}
    inner = Tokenizer(tokenizer_models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
    )


def pad(rows):
    """Collate rows as DataCollatorForSeq2Seq does, without a tokenizer."""
    longest = max(len(row["input_ids"]) for row in rows)

    def column(name, filler):
        return torch.tensor(
            [row[name] + [filler] * (longest - len(row[name])) for row in rows]
        )

    is_text = isinstance(rows[0]["labels"], list)
    return {
        "input_ids": column("input_ids", 0),
        "attention_mask": column("attention_mask", 0),
        "labels": column("labels", -100)
        if is_text
        else torch.tensor([row["labels"] for row in rows]),
    }


def asked(**changes):
    """Privacy at a noise that is given, so that no accountant has to look for it."""
    values = {
        "noise_multiplier": 1.0,
        "target_delta": 1e-3,
        "max_grad_norm": 0.5,
        "block_size": 4,
    }
    return PrivacyArguments(**(values | changes))


@pytest.fixture
def script(tmp_path):
    """Make the trainer of a script of 15 steps, with changes."""

    def make(
        *,
        privacy=None,
        cls=DPTrainer,
        model=None,
        rows=None,
        collator=pad,
        folder="out",
        train_dataset=None,
        args_class=TrainingArguments,
        budget=None,
        parts=None,
        **changes,
    ):
        args = args_class(
            **{
                "output_dir": str(tmp_path / folder),
                "per_device_train_batch_size": 4,
                "gradient_accumulation_steps": 2,
                "num_train_epochs": 3,
                "learning_rate": 1e-2,
                "save_steps": 5,
                "logging_steps": 1,
                "report_to": "none",
                "use_cpu": True,
                "disable_tqdm": True,
            }
            | changes
        )
        return cls(
            model=model if model is not None else models.tiny_gpt2(num_layers=1),
            args=args,
            data_collator=collator,
            train_dataset=train_dataset
            if train_dataset is not None
            else Dataset.from_list(rows or make_rows()),
            privacy=privacy or asked(),
            **({"budget": budget} if budget else {}),
            **(parts or {}),
        )

    return make


@pytest.fixture
def paid(tmp_path):
    """Read what a script's journal has been charged, as (steps of each block)."""

    def read(folder="out"):
        journal = LedgerJournal(tmp_path / folder / "privacy" / "ledger.jsonl")
        return [entry.num_steps for entry in journal.read().entries]

    return read
