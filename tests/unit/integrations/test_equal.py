"""A script's training is the run's own, and without noise and clip the script's own."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2ForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from dptune.accounting.ledger import PrivacyLedger
from dptune.config import PerformanceSettings
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.source import SyntheticSource
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import PoissonSampler
from dptune.integrations.script_plan import plan_script
from dptune.models.loading import load_model, model_digest, save_model
from dptune.models.source import ArchitectureSource, ModelBundle
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.workflow.inputs import StageInputs
from dptune.workflow.train_stage import run_stage
from tests.support import models
from tests.unit.integrations.conftest import asked, make_rows, pad

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"  # peft asks
)

STEPS, BATCH = 50, 4
BATCHES = np.random.default_rng(1).integers(0, 40, size=(STEPS, BATCH))


class Losses(TrainerCallback):
    def __init__(self):
        self.values = []

    def on_log(self, args, state, control, logs=None, **named):
        if "loss" in logs:
            self.values.append(logs["loss"])


class InOrder(Trainer):
    """The plain trainer, on batches that are given."""

    def _get_train_sampler(self, dataset=None):
        return [int(index) for index in BATCHES.flatten()]


def plain_curve(rows, model, folder):
    told = Losses()
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        logging_steps=1,
        learning_rate=1e-2,
        max_grad_norm=0,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        report_to="none",
    )
    data = Dataset.from_list(rows)
    InOrder(model, args, pad, data, callbacks=[told]).train()
    return told.values


def private_curve(script, monkeypatch, rows, model, *, noise=0.0, **changes):
    """Train with our door, on the same batches, without noise and clip."""
    honest = GradientPlan.noise_stddev
    steps = iter(BATCHES)
    monkeypatch.setattr(
        GradientPlan, "noise_stddev", lambda self, **k: noise * honest(self, **k)
    )
    monkeypatch.setattr(PoissonSampler, "sample", lambda self, generator: next(steps))
    told = Losses()
    trainer = script(
        rows=rows,
        model=model,
        privacy=asked(max_grad_norm=1e6, rows_are_single_units=True),
        parts={"callbacks": [told]},
        per_device_train_batch_size=2,
        max_steps=STEPS,
        save_strategy="no",
        **changes,
    )
    trainer.train()
    return told.values


def classifier():
    config = GPT2Config(
        vocab_size=29, n_positions=24, n_embd=16, n_layer=1, n_head=2, pad_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, num_labels=2,
    )  # fmt: skip
    torch.manual_seed(0)
    return GPT2ForSequenceClassification(config)


def adapted():
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    return get_peft_model(models.tiny_llama(), config)


CASES = {
    "texts": (models.tiny_llama, {"length": 8}),
    "classes": (classifier, {"labels": 2}),
    "adapters": (adapted, {"length": 8}),
}
"""Not GPT-2 for texts: transformers divides its loss by one token too many."""


@pytest.mark.parametrize("case", CASES)
def test_curve_without_noise_is_that_of_the_plain_trainer(
    script, monkeypatch, tmp_path, case
):
    make, kind = CASES[case]
    rows = make_rows(**kind)
    expected = plain_curve(rows, make(), str(tmp_path / "plain"))
    found = private_curve(script, monkeypatch, rows, make())
    assert len(found) == STEPS
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_curve_with_a_little_noise_is_another(script, monkeypatch, tmp_path):
    rows = make_rows(length=8)
    expected = plain_curve(rows, CASES["texts"][0](), str(tmp_path / "plain"))
    found = private_curve(script, monkeypatch, rows, CASES["texts"][0](), noise=1e-7)
    assert not np.allclose(found, expected, rtol=1e-4)


@pytest.fixture(scope="module")
def run_of_our_own(tmp_path_factory):
    """What `run.py train` computes from, on a few dozen records."""
    folder = tmp_path_factory.mktemp("own")
    corpus = build_corpus(
        SyntheticSource(num_records=40, seed=2),
        privacy_unit=PrivacyUnit.RECORD,
        duplicates=Duplicates.AUTO,
    )
    loaded = load_model(
        ArchitectureSource(
            kind="architecture",
            num_layers=1,
            num_heads=2,
            hidden_size=16,
            max_tokens=32,
            vocab_size=258,
            tokenizer={"kind": "trained"},
        )
    )
    save_model(loaded.model, loaded.tokenizer, folder / "model")
    return folder, corpus


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_certificate_is_that_of_a_run_of_the_same_plan(
    script, run_of_our_own, relation
):
    folder, corpus = run_of_our_own
    privacy = asked(relation=relation.value, target_epsilon=3.0, noise_multiplier=None)
    texts = corpus.split("train")["text"]
    plan = plan_script(privacy, num_units=len(texts), batch_size=8, epochs=1)
    inputs = StageInputs(
        model=ModelBundle(path=folder / "model", digest=model_digest(folder / "model")),
        corpus=corpus,
        plan=plan.stages[0],
        recipe=plan.recipe,
        max_tokens=24,
        max_sequences_per_unit=1,
        seed=None,
    )
    performance = PerformanceSettings(physical_batch_size=8, block_size=2, device="cpu")
    done = run_stage(
        inputs, PrivacyLedger(), folder=folder / relation.value, performance=performance
    )
    own = done.ledger.certificate(
        Notion.RECORD, delta=privacy.target_delta, relation=relation
    )
    trainer = script(
        rows=make_rows(len(texts)),
        model=models.tiny_gpt2(num_layers=1, vocabulary=258, positions=32),
        privacy=asked(
            relation=relation.value,
            target_epsilon=3.0,
            noise_multiplier=None,
            rows_are_single_units=True,
        ),
        num_train_epochs=1,
    )
    trainer.train()
    assert trainer.certificate == own
    assert own.epsilon <= 3.0
