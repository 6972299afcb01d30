"""Fine-tune a causal language model on records of a JSON Lines file.

python run_clm.py --model gpt2 --train_file notes.jsonl --output_dir out
"""

import sys
from dataclasses import dataclass

from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForLanguageModeling,
    HfArgumentParser,
    TrainingArguments,
)
from transformers import Trainer


@dataclass
class ScriptArguments:
    """What the script reads."""

    model: str
    train_file: str
    block_size: int = 64


def main() -> None:
    """Tokenize every record by itself, train, and save."""
    parser = HfArgumentParser((ScriptArguments, TrainingArguments))
    script, training = parser.parse_args_into_dataclasses(sys.argv[1:])
    tokenizer = AutoTokenizer.from_pretrained(script.model)
    model = AutoModelForCausalLM.from_pretrained(script.model, dtype="float32")
    data = load_dataset("json", data_files=script.train_file, split="train")
    data = data.map(
        lambda row: tokenizer(
            row["text"], truncation=True, max_length=script.block_size
        ),
        remove_columns=data.column_names,
    )
    trainer = Trainer(
        model=model,
        args=training,
        train_dataset=data,
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    )
    trainer.train(resume_from_checkpoint=training.resume_from_checkpoint)
    trainer.save_model()


if __name__ == "__main__":
    main()
