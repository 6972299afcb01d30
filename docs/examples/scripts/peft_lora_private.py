"""Train LoRA adapters of a causal language model, and save them alone.

python peft_lora.py --model gpt2 --train_file notes.jsonl --output_dir out
"""

import sys
from dataclasses import dataclass

from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    TrainingArguments,
)
from dptune.integrations.transformers import DPTrainer as Trainer, PrivacyArguments


@dataclass
class ScriptArguments:
    """What the script reads."""

    model: str
    train_file: str
    rank: int = 4


def main() -> None:
    """Adapt the model, train the adapters, and save them."""
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    script, training = parser.parse_args_into_dataclasses(sys.argv[1:])
    tokenizer = AutoTokenizer.from_pretrained(script.model)
    base = AutoModelForCausalLM.from_pretrained(script.model, dtype="float32")
    model = get_peft_model(base, LoraConfig(r=script.rank, task_type="CAUSAL_LM"))
    data = load_dataset("json", data_files=script.train_file, split="train")
    data = data.map(
        lambda row: tokenizer(row["text"], truncation=True, max_length=64),
        remove_columns=data.column_names,
    )
    trainer = Trainer(
        model=model,
        args=training,
        privacy=PrivacyArguments(target_epsilon=8, target_delta=1e-3, max_grad_norm=1),
        train_dataset=data,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train()
    model.save_pretrained(training.output_dir)


if __name__ == "__main__":
    main()
