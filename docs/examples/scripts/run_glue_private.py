"""Fine-tune a classifier on sentences with a class, and evaluate it.

python run_glue.py --model bert-base-cased --train_file a.jsonl --test_file b.jsonl
"""

import sys
from dataclasses import dataclass

import numpy as np
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    HfArgumentParser,
    TrainingArguments,
)
from dptune.integrations.transformers import DPTrainer as Trainer, PrivacyArguments


@dataclass
class ScriptArguments:
    """What the script reads."""

    model: str
    train_file: str
    test_file: str
    num_labels: int = 2


def accuracy(found: EvalPrediction) -> dict[str, float]:
    """Return the share of rows whose class was found."""
    return {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))}


def main() -> None:
    """Train on one file, evaluate on the other."""
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    script, training = parser.parse_args_into_dataclasses(sys.argv[1:])
    tokenizer = AutoTokenizer.from_pretrained(script.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        script.model, num_labels=script.num_labels, dtype="float32"
    )
    model.config.pad_token_id = tokenizer.pad_token_id
    files = {"train": script.train_file, "test": script.test_file}
    data = load_dataset("json", data_files=files)
    data = data.map(
        lambda row: tokenizer(row["sentence"], truncation=True, max_length=64),
        remove_columns=["sentence"],
    )
    trainer = Trainer(
        model=model,
        args=training,
        privacy=PrivacyArguments(target_epsilon=8, target_delta=1e-3, max_grad_norm=1),
        train_dataset=data["train"],
        eval_dataset=data["test"],
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    trainer.train()
    trainer.save_metrics("eval", trainer.evaluate())


if __name__ == "__main__":
    main()
