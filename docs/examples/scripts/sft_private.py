"""Fine-tune a chat model on prompts and completions with TRL.

python sft.py --model Qwen/Qwen3-0.6B --train_file pairs.jsonl --output_dir out
"""

import sys
from dataclasses import dataclass

from datasets import load_dataset
from transformers import HfArgumentParser
from trl import SFTConfig
from dptune.integrations.trl import DPSFTTrainer as SFTTrainer, PrivacyArguments


@dataclass
class ScriptArguments:
    """What the script reads."""

    model: str
    train_file: str


def main() -> None:
    """Train on the completions of all prompts, and save."""
    parser = HfArgumentParser((ScriptArguments, SFTConfig))
    script, training = parser.parse_args_into_dataclasses(sys.argv[1:])
    training.model_init_kwargs = {"dtype": "float32"}
    trainer = SFTTrainer(
        model=script.model,
        args=training,
        privacy=PrivacyArguments(target_epsilon=8, target_delta=1e-3, max_grad_norm=1),
        train_dataset=load_dataset("json", data_files=script.train_file, split="train"),
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
