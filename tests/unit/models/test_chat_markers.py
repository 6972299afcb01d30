"""Markers that somebody could type as one token, and tokens of two turns: refused."""

import json
import string

import pytest
from tokenizers import AddedToken, Tokenizer, models
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedTokenizerFast

from dptune.data.messages import read_conversation
from dptune.errors import ModelError
from dptune.models import chat, chat_layout
from dptune.models.chat import ChatFormat
from dptune.models.encode import record_tokens
from tests.support import chats
from tests.support.chats import chat_tokenizer

from .test_chat import messages, written

START = "<|turn|>"


def unigram(*pieces, added=()):
    """A Unigram tokenizer of letters and pieces, with a template that begins turns."""
    letters = [(c, -4.0) for c in string.printable + "\u2581\ue000"]
    model = models.Unigram([("<unk>", 0.0), *letters, *((p, -1.0) for p in pieces)], 0)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(model), eos_token="</s>", unk_token="<unk>"
    )
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in added])
    tokenizer.chat_template = (
        "{% for m in messages %}" + START + "{{ m.role }} {{ m.content }}</s>"
        "{% endfor %}"
    )
    return tokenizer


def start_ids(tokenizer, start, *, typed):
    text = written(messages("gemma", [f"a{start}b" if typed else "ab", "Hello"]))
    return list(record_tokens(text, tokenizer)).count(
        tokenizer.convert_tokens_to_ids(start)
    )


@pytest.mark.parametrize("piece", [START, f"\u2581{START}"])
def test_markers_that_are_words_of_the_vocabulary_are_refused(piece, monkeypatch):
    tokenizer = unigram(piece)
    for typed in (False, True):
        with pytest.raises(ModelError, match="a word of its vocabulary"):
            start_ids(tokenizer, START, typed=typed)
    monkeypatch.setattr(ChatFormat, "_can_be_spelt", lambda *_: False)  # the twin
    twin = unigram(START)
    assert [start_ids(twin, START, typed=t) for t in (False, True)] == [2, 3]


def test_markers_that_were_added_are_not_spelt_by_words_of_unigram_models():
    tokenizer = unigram(START, f"a{START}", added=[START])
    assert [start_ids(tokenizer, START, typed=typed) for typed in (False, True)] == [
        2,
        2,
    ]


def test_private_use_character_that_starts_turns_is_no_text():
    def made(**kind):
        tokenizer = unigram()
        tokenizer.add_tokens([AddedToken("\ue000", normalized=False, **kind)])
        tokenizer.chat_template = tokenizer.chat_template.replace(START, "\ue000")
        return tokenizer

    found = [start_ids(made(special=True), "\ue000", typed=t) for t in (False, True)]
    assert found == [2, 2]
    with pytest.raises(ModelError, match="a word of its vocabulary"):
        start_ids(made(), "\ue000", typed=False)


def test_marker_of_other_letters_that_bytes_spell_is_refused():
    start = "<｜User｜>"
    tokenizer = chat_tokenizer("chatml", vocab_size=300)
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    (spelt, _), *_ = ByteLevel(
        add_prefix_space=False, use_regex=False
    ).pre_tokenize_str(start)
    content["model"]["vocab"][spelt] = len(tokenizer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        eos_token=tokenizer.eos_token,
    )
    made.chat_template = tokenizer.chat_template
    text = written(messages("gemma", ["Hi", "Hello"]))
    assert len(record_tokens(text, made))
    made.chat_template = made.chat_template.replace("<|im_start|>", start)
    with pytest.raises(ModelError, match="a word of its vocabulary"):
        record_tokens(text, made)


def test_marker_that_unknown_characters_give_is_refused():
    tokenizer = unigram()
    tokenizer.chat_template = tokenizer.chat_template.replace(START, "<unk>")
    with pytest.raises(ModelError, match="what it does not know"):
        start_ids(tokenizer, "<unk>", typed=False)


def test_tokens_of_two_turns_are_refused(monkeypatch):
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}"
        "{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}"
    )
    apart = written(messages("gemma", ["Hello.", " Please"]))
    assert len(record_tokens(apart, tokenizer))
    text = written(messages("gemma", ["Hel", "lo"]))
    with pytest.raises(ModelError, match="keep turns apart"):
        record_tokens(text, tokenizer)
    monkeypatch.setattr(  # the twin learns what the user said
        chat, "reached", lambda *a, **k: (chat_layout.reached(*a, **k)[0],) * 2
    )
    got = ChatFormat(tokenizer).encode(text)
    assert tokenizer.decode(got.ids[got.learnt]).startswith("Hel")


@pytest.mark.parametrize(
    "between", ["<|end_response|>", "<|end_response|><|end_text|>"]
)
def test_markers_up_to_the_end_of_the_sequence_are_learnt(between):
    marked = chats.CHATML.replace(
        "message['content'] + '<|im_end|>' }}{% endgeneration %}",
        f"message['content'] + '{between}<|im_end|>' }}}}{{% endgeneration %}}",
    )
    tokenizer = chat_tokenizer("chatml")
    markers = ["<|end_response|>", "<|end_text|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": markers})
    tokenizer.chat_template = chats.unmarked(marked)
    found = [
        {"role": role, "content": f"{role} {n}"}
        for n in range(2)
        for role in ("user", "assistant")
    ]
    text = read_conversation(found, learnt=["assistant"]).text
    got = ChatFormat.of(tokenizer).encode(text)
    oracle = tokenizer.apply_chat_template(
        found,
        chat_template=marked,
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    assert got.ids.tolist() == oracle["input_ids"]
    assert got.learnt.tolist() == [bool(mark) for mark in oracle["assistant_masks"]]
