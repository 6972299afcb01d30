"""What does a step cost in a script of transformers, over a step of our own loop?

    PYTHONPATH=. python benchmarks/script_steps.py [--steps 30] [--rounds 5]
    PYTHONPATH=. python benchmarks/script_steps.py --larger --steps 10

Both loops train the same small GPT-2 by the same plan and on the same draws (a step of
three passes is not one of two), in turns and on one thread; the figure is the median
CPU time of a step, the first ones left out, in milliseconds. The plain trainer, without
privacy, stands beside them, with full weights and adapters.
Small steps show what Python takes, larger ones (six layers of width 256, 128 tokens)
what a script takes.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.trainer import train_stage
from dptune.integrations.script_plan import plan_script
from dptune.integrations.transformers import DPTrainer, PrivacyArguments
from dptune.workflow.job import optimizer_of

NUM_ROWS, BATCH, PIECE, SKIPPED = 256, 32, 16, 3
PRIVACY = PrivacyArguments(
    noise_multiplier=1.0,
    target_delta=1e-4,
    max_grad_norm=1.0,
    rows_are_single_units=True,
)


@dataclass(frozen=True)
class Shape:
    """Of the model and its rows."""

    layers: int = 4
    width: int = 128
    length: int = 32
    vocabulary: int = 512


class Clock(TrainerCallback):
    """Reads the CPU clock at the end of every step."""

    def __init__(self) -> None:
        self.times = [time.process_time()]

    def tick(self, _: object = None) -> None:
        """Note the time."""
        self.times.append(time.process_time())

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note the time."""
        self.tick()

    def milliseconds(self) -> list[float]:
        """Return what steps took, the first ones left out."""
        return [1e3 * t for t in np.diff(self.times)[SKIPPED:]]


def make_model(shape: Shape, *, adapters: bool) -> torch.nn.Module:
    """Return a small GPT-2."""
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(config)
    if not adapters:
        return model
    chosen = LoraConfig(r=8, target_modules=["c_attn"], fan_in_fan_out=True)
    return get_peft_model(model, chosen)


def own_loop(
    rows: list[list[int]], steps: int, *, shape: Shape, adapters: bool, seed: int
) -> list[float]:
    """Time steps of `train_stage`."""
    data = UnitDataset.from_columns(
        rows,
        [[1.0] * shape.length] * NUM_ROWS,
        range(NUM_ROWS),
        max_sequences_per_unit=1,
    )
    plan = plan_script(
        PRIVACY, num_units=NUM_ROWS, batch_size=BATCH, epochs=1, max_steps=steps
    ).stages[0]
    clock = Clock()
    train_stage(
        make_model(shape, adapters=adapters),
        data,
        plan=plan.training_plan(),
        num_steps=plan.num_steps,
        optimizer=optimizer_of(plan),
        physical_batch_size=PIECE,
        pad_token_id=0,
        loss_normalizer=1.0,
        record_loss=CausalLoss(loss_normalizer=None),
        checkpoint_dir=None,
        block_size=PRIVACY.block_size,
        charge=lambda *_: None,
        on_step=clock.tick,
        seed=seed,
    )
    return clock.milliseconds()


def script(
    rows: list[list[int]],
    steps: int,
    *,
    shape: Shape,
    adapters: bool,
    seed: int,
    private: bool,
) -> list[float]:
    """Time steps of a script, privately or not."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            output_dir=str(Path(folder)),
            per_device_train_batch_size=PIECE,
            gradient_accumulation_steps=BATCH // PIECE,
            max_steps=steps,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        given: dict[str, Any] = {
            "model": make_model(shape, adapters=adapters),
            "args": args,
            "train_dataset": Dataset.from_list(
                [{"input_ids": row, "labels": row} for row in rows]
            ),
            "callbacks": [clock],
        }
        if private:
            DPTrainer(**given, privacy=replace(PRIVACY, seed=seed)).train()
        else:
            Trainer(**given).train()
    return clock.milliseconds()


def main() -> None:
    """Measure in turns and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--larger", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    shape = Shape(6, 256, 128, 8192) if asked.larger else Shape()
    size = NUM_ROWS, shape.length
    rows = np.random.default_rng(0).integers(1, shape.vocabulary, size=size).tolist()
    loops: dict[str, Callable[..., list[float]]] = {
        "own loop": own_loop,
        "DPTrainer": lambda *a, **k: script(*a, private=True, **k),
        "Trainer without privacy": lambda *a, **k: script(*a, private=False, **k),
    }
    for adapters in (False, True):
        times: dict[str, list[float]] = {name: [] for name in loops}
        for number in range(asked.rounds):
            for name, loop in loops.items():
                options = {"shape": shape, "adapters": adapters}
                times[name] += loop(rows, asked.steps, seed=number, **options)
        medians = {name: statistics.median(found) for name, found in times.items()}
        private = medians["DPTrainer"]
        print("adapters" if adapters else "full weights")
        for name, median in medians.items():
            print(
                f"  {name:24} {median:8.2f} ms   DPTrainer / it {private / median:.3f}"
            )


if __name__ == "__main__":
    main()
