"""A classifier through a stage and its attacks: labels in, accuracy out."""

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    Gemma2Config,
    Gemma2ForSequenceClassification,
)

from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.settings import AttackSettings
from dptune.config import DetectionSettings
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.source import CsvSource
from dptune.data.splitting import SplitSettings
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import DataError
from dptune.models.build import seeded
from dptune.models.loading import load_saved, save_model
from dptune.models.source import ModelBundle, PathSource
from dptune.privacy import PrivacyUnit
from dptune.workflow.attack import attack_model, measure_utility
from dptune.workflow.inputs import StageInputs
from dptune.workflow.prepare_model import load_base
from dptune.workflow.shadows import NO_EXPOSURE
from dptune.workflow.shared_job import read_units, write_units
from dptune.workflow.train_stage import run_stage
from tests.support.encoders import word_tokenizer

from .conftest import PERFORMANCE, run_plan, stage

WORDS = ("good", "bad", "film", "the", "was", "very", "and", "long")
MAX_TOKENS = 12


def write_reviews(file, count=60):
    """Reviews whose class is which of two words they hold."""
    generator = np.random.default_rng(3)
    lines = ["id,text,label"]
    for number in range(count):
        label = number % 2
        filler = generator.choice(WORDS[2:], size=4)
        words = [*filler[:2], WORDS[label], *filler[2:]]
        lines.append(f"{number},{' '.join(words)},{('yes', 'no')[label]}")
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reviews")
    write_reviews(folder / "reviews.csv")
    return build_corpus(
        CsvSource(path="reviews.csv", id_column="id", label_column="label"),
        data_root=folder,
        privacy_unit=PrivacyUnit.RECORD,
        splits=SplitSettings(validation=0.0, test=0.4),
        min_records=10,
        duplicates=Duplicates.KEEP,
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    config = BertConfig(
        vocab_size=16,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
    )
    with seeded(0):
        bert = BertModel(config)
    save_model(bert, word_tokenizer(WORDS), folder / "bert")
    return load_base(
        PathSource(kind="path", path="bert"),
        data_root=folder,
        folder=folder / "cache",
        class_names=("yes", "no"),
    )


def trained(reviews, base, folder, *, seed=None, **changes):
    settings = stage(optimizer={"name": "adamw", "learning_rate": 0.01}, **changes)
    plan = run_plan(settings, num_units=reviews.report.num_units["train"])
    inputs = StageInputs(
        model=base,
        corpus=reviews,
        plan=plan.stages[0],
        recipe="r",
        max_tokens=MAX_TOKENS,
        max_sequences_per_unit=1,
        seed=seed,
    )
    return run_stage(inputs, PrivacyLedger(), folder=folder, performance=PERFORMANCE)


def attacked(reviews, base, model, folder):
    spec = CanarySpec(num_planted=0, num_held_out=0)
    return attack_model(
        model,
        base,
        reviews,
        draw_canaries(spec, seed=1),
        trained=(),
        max_tokens=MAX_TOKENS,
        max_sequences_per_unit=1,
        attacks=AttackSettings(num_members=50, num_bootstrap=100),
        detection=DetectionSettings(),
        performance=PERFORMANCE,
        cache=folder,
    )


def test_classifier_learns_its_labels_and_is_measured_beside_them(
    reviews, base, tmp_path
):
    plain = {"clipping": None, "noise": None, "epochs": 12}
    outcome = trained(reviews, base, tmp_path, seed=5, **plain)
    found = attacked(reviews, base, outcome.bundle, tmp_path)
    assert found.utility.accuracy > 0.9 > found.utility.majority_accuracy
    assert found.exposure.not_measurable == NO_EXPOSURE
    assert found.exposure.canaries == ()
    assert {s.name for s in found.membership.signals} >= {"loss", "calibrated_loss"}
    again = measure_utility(
        outcome.bundle,
        base,
        reviews,
        max_tokens=MAX_TOKENS,
        performance=PERFORMANCE,
    )
    assert again == found.utility.model_copy(update={"measured_at": None})


def test_classifier_in_16_bits_is_measured_as_one_in_32_bits(reviews, tmp_path):
    """transformers rounds the scale of Gemma's embeddings with the weights."""
    config = Gemma2Config(
        vocab_size=16,
        hidden_size=24,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        pad_token_id=0,
        id2label={0: "no", 1: "yes"},
    )
    with seeded(0):
        model = Gemma2ForSequenceClassification(config).to(torch.bfloat16)
        model.score.weight.data *= 50
    digest = save_model(model, word_tokenizer(WORDS), tmp_path / "gemma")
    bundle = ModelBundle(path=tmp_path / "gemma", digest=digest)
    found = attacked(reviews, bundle, bundle, tmp_path).utility
    assert found.base_record_nll == found.record_nll


def test_classifier_is_attacked_on_what_training_kept(reviews, base, tmp_path):
    of_users = reviews.dataset.map(
        lambda row: {
            "unit_id": f"user {int(row['id']) % 7}"
            if row["split"] == "train"
            else row["id"]
        },
        load_from_cache_file=False,
    )
    corpus = reviews.with_dataset(of_users)
    rows, test = corpus.split("train"), corpus.split("test")["text"]
    first = dict(zip(rows["unit_id"][::-1], rows["text"][::-1], strict=True))
    found = attacked(corpus, base, base, tmp_path).membership
    assert found.num_members == sum(t not in test for t in first.values()) <= 7
    fresh = sum(text not in rows["text"] for text in test)
    assert found.num_non_members == fresh < len(test)


def test_classifier_trains_privately_and_keeps_its_class_names(reviews, base, tmp_path):
    outcome = trained(reviews, base, tmp_path)
    assert outcome.ledger.entries[0].noise_multiplier == 1.0
    assert load_saved(outcome.bundle.path).class_names == ("yes", "no")


def test_other_labels_are_another_stage(reviews, base, tmp_path):
    swap = {"yes": "no", "no": "yes"}
    swapped = reviews.dataset.map(
        lambda row: {"label": swap[row["label"]]}, load_from_cache_file=False
    )
    plan = run_plan(stage(), num_units=reviews.report.num_units["train"]).stages[0]
    keys = {
        StageInputs(
            model=base,
            corpus=corpus,
            plan=plan,
            recipe="r",
            max_tokens=MAX_TOKENS,
            max_sequences_per_unit=1,
            seed=None,
        ).key()
        for corpus in (reviews, reviews.with_dataset(swapped))
    }
    assert len(keys) == 2


def test_corpus_without_labels_is_refused_before_training(reviews, base, tmp_path):
    bare = reviews.with_dataset(reviews.dataset.remove_columns("label"))
    with pytest.raises(DataError, match="label_column"):
        trained(bare, base, tmp_path)


def test_labels_reach_the_processes_of_a_stage(tmp_path):
    data = UnitDataset.from_columns(
        [[1, 2], [3]],
        [[1.0, 1.0], [1.0]],
        ["a", "b"],
        max_sequences_per_unit=1,
        labels=[1, 0],
    )
    write_units(data, tmp_path / "units")
    assert read_units(tmp_path / "units").digest() == data.digest()
