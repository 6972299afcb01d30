"""Span labels are exact for every kind of fast tokenizer."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoTokenizer

from dptune.detection.union import character_marks, token_labels
from dptune.errors import DetectionError
from dptune.text import Span

CORPUS = [
    "my name is Alice and my order is 9287191760",
    "naïve café 😀 Zoë’s e-mail",
] * 9


def byte_level(*, prefix):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=200, special_tokens=["[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=150, unk_token="<unk>", special_tokens=["<unk>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


TOKENIZERS = {
    "byte_level": byte_level(prefix=False),
    "byte_level_prefix": byte_level(prefix=True),
    "word_piece": word_piece(),
    "unigram": unigram(),
}
PIECES = [
    "Alice",
    " ",
    "\n",
    "😀",
    "né",
    "order #123",
    "…",
    "\u0301",
    "北京",
    "ﬁ",
    "I'm",
]


@st.composite
def cases(draw):
    text = "".join(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=12)))
    spans = []
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(text) - 1))
        end = draw(st.integers(start + 1, len(text)))
        spans.append(Span(start=start, end=end, entity_type="ID"))
    return text, spans


def honest(offsets, spans):
    """The slow definition: any code point of the token lies in any span."""
    marked = {i for span in spans for i in range(span.start, span.end)}
    return [any(i in marked for i in range(a, b)) for a, b in offsets]


def by_first_character(offsets, spans):
    """A broken twin: looks at the first code point of a token only."""
    marked = {i for span in spans for i in range(span.start, span.end)}
    return [b > a and a in marked for a, b in offsets]


@pytest.mark.parametrize("name", list(TOKENIZERS))
@given(case=cases())
@settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_token_labels_equal_the_definition(name, case):
    text, spans = case
    offsets = TOKENIZERS[name].encode(text).offsets
    labels = token_labels(offsets, len(text), spans)
    assert labels.dtype == np.bool_
    assert labels.tolist() == honest(offsets, spans)


def test_token_labels_definition_catches_a_first_character_rule():
    offsets = [(0, 4), (4, 10)]  # GPT-2 style: the blank belongs to the next token
    spans = [Span(start=5, end=10, entity_type="PERSON")]
    assert token_labels(offsets, 10, spans).tolist() == [False, True]
    assert by_first_character(offsets, spans) != honest(offsets, spans)


def test_token_labels_special_tokens_are_never_labelled():
    spans = [Span(start=0, end=3, entity_type="ID")]
    assert token_labels([(0, 0), (0, 3), (3, 3)], 3, spans).tolist() == [0, 1, 0]


def test_token_labels_no_tokens_gives_an_empty_array():
    assert token_labels([], 0, []).shape == (0,)


def test_token_labels_offset_outside_raises():
    with pytest.raises(DetectionError, match="offsets must lie in"):
        token_labels([(0, 9)], 3, [])


def test_character_marks_span_outside_raises():
    with pytest.raises(DetectionError, match="end=4, num_characters=3"):
        character_marks(3, [Span(start=0, end=4, entity_type="ID")])


def test_token_labels_gpt2_token_with_leading_blank(shared_data):
    tokenizer = AutoTokenizer.from_pretrained(str(shared_data / "gpt2_tokenizer"))
    text = "hear Alice is"
    encoded = tokenizer(text, return_offsets_mapping=True)
    spans = [Span(start=5, end=10, entity_type="PERSON")]
    labels = token_labels(encoded["offset_mapping"], len(text), spans)
    tokens = tokenizer.convert_ids_to_tokens(encoded["input_ids"])
    assert [t for t, kept in zip(tokens, labels, strict=True) if kept] == ["ĠAlice"]
