"""The trained byte-level tokenizer."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.errors import ModelError
from dptune.models.tokenizer import train_tokenizer

from .conftest import TEXTS

BYTES_ONLY = train_tokenizer([], vocab_size=258)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(derandomize=True, deadline=None)
@given(UNICODE)
def test_tokenizer_any_unicode_round_trips(text):
    ids = BYTES_ONLY(text)["input_ids"]
    assert BYTES_ONLY.decode(ids) == text


@settings(derandomize=True, deadline=None)
@given(text=UNICODE)
def test_trained_tokenizer_any_unicode_round_trips(trained_tokenizer, text):
    assert trained_tokenizer.decode(trained_tokenizer(text)["input_ids"]) == text


def test_tokenizer_same_texts_give_same_tokenizer(trained_tokenizer):
    again = train_tokenizer(iter(TEXTS), vocab_size=300)
    before = trained_tokenizer.backend_tokenizer.to_str()
    assert again.backend_tokenizer.to_str() == before
    assert len(again) == 300


def test_tokenizer_without_text_has_one_token_per_byte():
    assert len(BYTES_ONLY) == 258
    assert len(BYTES_ONLY("né")["input_ids"]) == 3


def test_tokenizer_special_tokens_are_named(trained_tokenizer):
    assert trained_tokenizer.bos_token_id == trained_tokenizer.eos_token_id == 0
    assert trained_tokenizer.pad_token_id == 1
    assert trained_tokenizer.unk_token is None


def test_tokenizer_every_digit_is_one_token():
    tokenizer = train_tokenizer(["order 341752 and 341752"] * 9, vocab_size=400)
    assert tokenizer.tokenize("pin 341752") == [*tokenizer.tokenize("pin "), *"341752"]


def test_tokenizer_offsets_cover_the_text_without_holes(trained_tokenizer):
    text = "The old house, order 47 – né"
    spans = trained_tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    covered = {i for start, end in spans for i in range(start, end)}
    assert covered == set(range(len(text)))
    assert text[slice(*spans[1])].startswith(" ")


def test_tokenizer_too_small_for_bytes_is_refused():
    with pytest.raises(ModelError, match="vocab_size must be at least 258"):
        train_tokenizer([], vocab_size=257)
