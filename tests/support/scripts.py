"""A tiny script of transformers that plants canaries, trains, and is measured."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import DataCollatorForLanguageModeling, TrainingArguments

import dptune
from dptune.attacks.settings import AttackSettings
from dptune.gates.policy import GatePolicy
from dptune.integrations.evidence import measure
from dptune.integrations.transformers import DPTrainer, PrivacyArguments
from dptune.testing import tiny_model, tiny_tokenizer
from dptune.workflow.dossier import Dossier

ATTACKS = AttackSettings(
    num_members=100, num_bootstrap=100, shadows=None, extraction=None
)
POLICY = GatePolicy(
    name="tiny-script",
    notion="record",
    max_epsilon=50.0,
    max_delta=1e-3,
    min_canaries=8,
    min_held_out=8,
    min_space_size=10,
    single_canary_share=1e-5,  # rank 1 of 10^5: a clean model is refused once in 10,000
    memorization_level=2e-4,
    control_level=1e-9,
    base_level=1e-9,
    blind_level=1e-9,
    contradiction_level=1e-9,
    effect_size_bits=100.0,
    assurance_bound_bits=1000.0,
    min_shadow_models=0,
    min_membership_records=100,
    max_membership_tpr=1.0,
    max_nll_increase=1000.0,
    require_dataset_budget=False,
    require_step_audit=False,
)


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script that has trained, and what it was made of."""

    trainer: DPTrainer
    drawn: Any
    others: Dataset
    base: Any


def encoded(texts: list[str], owners: list[str] | None = None) -> Dataset:
    """Tokenize texts as scripts do: no BOS, no padding; name owners if there are."""
    tokenizer = tiny_tokenizer()
    rows = Dataset.from_list([{"input_ids": tokenizer(t)["input_ids"]} for t in texts])
    return rows if owners is None else rows.add_column("who", owners)


def trained_script(
    folder: Path, *, texts: int = 120, seed: int = 0, owners: int = 0, **more
) -> Script:
    """Train a tiny script on made-up notes with canaries among them.

    Args:
        folder: its output_dir.
        texts: how many notes on each side.
        seed: of the model.
        owners: of the notes of each side; 0 makes every note a unit.
        more: of the trainer, such as `budget`, `callbacks` or another `model`.
    """
    notes = [f"note {n}: call room {n * 7 % 50}" for n in range(2 * texts)]
    np.random.default_rng(0).shuffle(notes)
    drawn = dptune.canaries(num_planted=10, num_held_out=10, length=5)
    planted = [drawn.spec.record(secret) for secret in drawn.planted]
    privacy = PrivacyArguments(
        noise_multiplier=1.0,
        target_delta=1e-3,
        max_grad_norm=1.0,
        num_units=130,
        max_tokens=40,
        **({"privacy_unit": "user", "unit_column": "who"} if owners else {}),
        **({"max_rows_per_unit": texts} if owners else {}),
    )
    names = [f"user {n % (2 * owners)}" for n in range(2 * texts)] if owners else None
    sides = (sorted(names)[:texts], sorted(names)[texts:]) if names else (None, None)
    tokenizer = tiny_tokenizer()
    trainer = DPTrainer(
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=6,
            per_device_train_batch_size=16,
            logging_steps=2,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
        ),
        train_dataset=encoded(notes[:texts] + planted, sides[0] and sides[0] + planted),
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        **({"model": tiny_model(seed=seed), "privacy": privacy} | more),
    )
    trainer.train()
    return Script(
        trainer=trainer,
        drawn=drawn,
        others=encoded(notes[texts:], sides[1]),
        base=tiny_model(seed=seed),
    )


def measured(script: Script, folder: Path, **changes) -> Dossier:
    """Measure a script with small attacks."""
    asked = {
        "base_model": script.base,
        "others": script.others,
        "policy": POLICY,
        "canaries": script.drawn,
        "attacks": ATTACKS,
    }
    return measure(script.trainer, folder, **(asked | changes))
