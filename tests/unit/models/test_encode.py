"""Records of text to records of tokens."""

import gzip
import json

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dptune.errors import DataError, ModelError
from dptune.models import encode
from dptune.models.encode import encode_corpus, record_tokens
from dptune.models.loading import load_tokenizer
from dptune.models.tokens import add_mask_token


def _corpus(texts):
    return Dataset.from_dict(
        {
            "id": [f"r{i}" for i in range(len(texts))],
            "text": texts,
            "unit_id": [f"u{i // 2}" for i in range(len(texts))],
        }
    )


@pytest.fixture
def bare():
    """A tokenizer with neither beginning nor end of record."""
    words = {"[UNK]": 0, "a": 1, "b": 2, "c": 3, "d": 4}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]")


def test_encode_short_record_has_the_documented_layout(tokenizer):
    rows = encode_corpus(_corpus(["the old house"]), tokenizer, max_tokens=32)
    body = tokenizer.encode("the old house")
    assert rows.column_names == ["id", "unit_id", "input_ids", "loss_weights"]
    assert rows[0]["input_ids"] == [0, *body, 0]
    assert rows[0]["loss_weights"] == [0.0] + [1.0] * (len(body) + 1)
    assert rows.features["input_ids"].feature.dtype == "int32"
    assert rows.features["loss_weights"].feature.dtype == "float32"


def test_encode_is_the_layout_of_record_tokens(tokenizer):
    texts = ["the old house", "order 4711", "né – 東京"]
    rows = encode_corpus(_corpus(texts), tokenizer, max_tokens=64)
    assert list(rows["input_ids"]) == [record_tokens(t, tokenizer) for t in texts]
    open_ended = record_tokens(texts[0], tokenizer, open_ended=True)
    assert open_ended == record_tokens(texts[0], tokenizer)[:-1]


@pytest.mark.parametrize("max_tokens", [3, 4, 5, 7, 11, 12, 13, 14, 20])
def test_encode_split_keeps_every_token_and_the_unit(tokenizer, max_tokens):
    texts = ["the old house by the river", "order 47", "parcel 1"]
    rows = encode_corpus(_corpus(texts), tokenizer, max_tokens=max_tokens)
    for i, text in enumerate(texts):
        mine = rows.filter(lambda row, wanted=f"r{i}": row["id"] == wanted)
        assert set(mine["unit_id"]) == {f"u{i // 2}"}
        chunks = list(mine["input_ids"])
        assert all(len(chunk) <= max_tokens for chunk in chunks)
        assert all(chunk[0] == 0 and len(chunk) >= 2 for chunk in chunks)
        joined = [token for chunk in chunks for token in chunk[1:]]
        assert joined in (
            [*tokenizer.encode(text), 0],
            tokenizer.encode(text),  # the end would have stood alone
        )
        weights = list(mine["loss_weights"])
        assert all(w[0] == 0 and set(w[1:]) == {1.0} for w in weights)


def test_encode_end_of_record_never_stands_alone(tokenizer):
    body = tokenizer.encode("the old house by")
    full = len(body) + 1
    rows = encode_corpus(_corpus(["the old house by"]), tokenizer, max_tokens=full)
    assert list(rows["input_ids"]) == [[0, *body]]


def test_encode_truncate_keeps_one_row_per_record(tokenizer):
    texts = ["the old house by the river", "a"]
    rows = encode_corpus(
        _corpus(texts), tokenizer, max_tokens=4, long_records="truncate"
    )
    assert list(rows["id"]) == ["r0", "r1"]
    assert rows[0]["input_ids"] == [0, *tokenizer.encode(texts[0])[:3]]
    assert rows[1]["input_ids"] == record_tokens("a", tokenizer)


def test_encode_ignored_target_has_no_weight(make_gpt2, tokenizer):
    mask = add_mask_token(make_gpt2(), tokenizer)
    text = "the <mask> house <mask>"
    rows = encode_corpus(
        _corpus([text]), tokenizer, max_tokens=64, ignore_token_id=mask
    )
    ids, weights = (np.array(rows[0][c]) for c in ("input_ids", "loss_weights"))
    assert (ids == mask).sum() == 2
    assert (weights[ids == mask] == 0).all()
    assert (weights[1:][ids[1:] != mask] == 1).all()


def test_encode_offsets_point_into_the_record(tokenizer):
    text = "The old né house, order 4711 – 東京"
    rows = encode_corpus(_corpus([text]), tokenizer, max_tokens=6, with_offsets=True)
    seen = set()
    for row in rows:
        columns = ("input_ids", "token_starts", "token_ends")
        for token, start, end in zip(*(row[c] for c in columns), strict=True):
            if token == 0:
                assert (start, end) == (0, 0)
                continue
            seen |= set(range(start, end))
            piece = tokenizer.decode([token])
            if "\ufffd" not in piece:  # not a part of a longer character
                assert text[start:end] == piece
    assert seen == set(range(len(text)))


def test_encode_without_special_tokens_works(bare):
    rows = encode_corpus(_corpus(["a b c d", "d"]), bare, max_tokens=3)
    assert list(rows["input_ids"]) == [[1, 2, 3], [4], [4]]
    assert list(rows["loss_weights"]) == [[0, 1, 1], [0], [0]]
    assert record_tokens("a b", bare) == [1, 2]


@pytest.mark.parametrize(
    ("identifier", "name"),
    [("4711", r"record 2 \(id 4711\): "), ("ann@example.org", "record 2: ")],
)
def test_encode_record_without_any_token_is_refused_by_number(bare, identifier, name):
    corpus = _corpus(["a", ""]).remove_columns("id").add_column("id", ["x", identifier])
    with pytest.raises(DataError, match=f"{name}must give at least one token"):
        encode_corpus(corpus, bare, max_tokens=8)


def test_encode_counts_records_on_from_batch_to_batch(bare, monkeypatch):
    monkeypatch.setattr(encode, "_BATCH_SIZE", 2)
    with pytest.raises(DataError, match="record 4: must give at least one token"):
        encode_corpus(_corpus(["a", "b", "c", "", "d"]), bare, max_tokens=8)


def test_encode_empty_text_is_its_frame(tokenizer):
    rows = encode_corpus(_corpus([""]), tokenizer, max_tokens=8)
    assert rows[0]["input_ids"] == [0, 0]


def test_encode_empty_corpus_keeps_its_columns(tokenizer):
    rows = encode_corpus(_corpus(["a"]).select([]), tokenizer, max_tokens=8)
    assert len(rows) == 0
    assert rows.column_names == ["id", "unit_id", "input_ids", "loss_weights"]


def test_encode_truncation_left_on_by_a_caller_is_not_used(tokenizer):
    tokenizer("the old house", truncation=True, max_length=2, padding=True)
    text = "the old house by the river"
    assert len(record_tokens(text, tokenizer)) > 6


def test_encode_follows_a_selection_and_changes_nothing(tokenizer):
    corpus = _corpus([f"order {i}" for i in range(2500)])
    before = list(corpus["text"])
    chosen = corpus.select(range(2400, 0, -1))
    rows = encode_corpus(chosen, tokenizer, max_tokens=32)
    assert list(rows["id"]) == list(chosen["id"])
    assert rows[0]["input_ids"] == record_tokens("order 2400", tokenizer)
    assert list(corpus["text"]) == before


def test_encode_long_record_gives_no_warning(tokenizer, caplog):
    tokenizer.model_max_length = 4
    encode_corpus(_corpus(["the old house by the river"]), tokenizer, max_tokens=4)
    assert not caplog.records


@pytest.mark.parametrize("change", [{"max_tokens": 2}, {"long_records": "drop"}])
def test_encode_impossible_arguments_are_refused(tokenizer, change):
    arguments = {"max_tokens": 8} | change
    with pytest.raises(ModelError, match=next(iter(change))):
        encode_corpus(_corpus(["a"]), tokenizer, **arguments)


def test_encode_missing_column_is_named(tokenizer):
    corpus = _corpus(["a"]).remove_columns("unit_id")
    with pytest.raises(DataError, match="unit_id"):
        encode_corpus(corpus, tokenizer, max_tokens=8)


def test_encode_character_model_maps_newline_to_unknown(babyllama):
    tokenizer = babyllama.tokenizer
    tokens = record_tokens("a\nb", tokenizer)
    assert tokens[0] == tokenizer.bos_token_id
    assert tokens[-1] == tokenizer.eos_token_id
    assert tokens.count(tokenizer.unk_token_id) == 1


def test_encode_a_thousand_dialogues(shared_data):
    path = shared_data / "customersim" / "train.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(next(lines))["text"] for _ in range(1000)]
    tokenizer = load_tokenizer(shared_data / "gpt2_tokenizer")
    corpus = _corpus(texts)
    rows = encode_corpus(corpus, tokenizer, max_tokens=64)
    assert len(rows) > 1000
