"""Functions that conversations declare: as the template writes them, never learnt."""

import random
from dataclasses import replace

import numpy as np
import pytest

from dptune.conversation import TOOLS, join_turns, tools_of, turns_of, within_contents
from dptune.data.messages import read_conversation
from dptune.errors import ModelError
from dptune.models.chat import ChatFormat
from dptune.redaction.engine import redact_text
from dptune.redaction.operators import Operator
from dptune.text import MASK, Span
from tests.support.chats import DECLARING, chat_tokenizer
from tests.unit.models.test_chat_calls import FORGED, TAKES_TEXT, conversation, with_ids

TEXTS = (
    *("Looks up Anna", 'say "hi"', "back\\slash", "日本", "a\nb", "x}", "</tools>"),
    *("it's", " blanks ", "{", "]"),
)
VALUES = (5, -1.5, 1e-7, True, "x", ["a", 7], {"n": 7, "to": "Bo"})
SECRET = "417 302 558"


@pytest.fixture(scope="module")
def tokenizers():
    return {name: chat_tokenizer(name) for name in DECLARING}


def declared(draw, texts=TEXTS):
    """A random declaration of a function."""
    properties = {}
    names = ["to", "user_id", "größe", "type", "name", "default", "enum"]
    for name in draw.sample(names, draw.randint(0, 4)):
        kind = draw.choice(["string", "integer", "boolean", "array"])
        schema = properties[name] = {"type": kind}
        if draw.random() < 0.8:
            schema["description"] = draw.choice(texts)
        if draw.random() < 0.3:
            schema["enum"] = [draw.choice(texts), "a", 3]
        if draw.random() < 0.4:
            schema["default"] = draw.choice((*VALUES, *texts))
        if kind == "array":
            schema["items"] = {"type": "string", "title": draw.choice(texts)}
    function = {
        "name": draw.choice(["look_up", "get.weather", "send-mail", "größer"]),
        "description": draw.choice(texts),
        "parameters": {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:1],
        },
    }
    if draw.random() < 0.3:
        function["return"] = {"type": "string", "description": draw.choice(texts)}
    return {"type": "function", "function": function}


def text_of(found, tools, learnt=("assistant",)):
    read = read_conversation(found, learnt=learnt, tools=tools)
    assert not read.faults
    return read.text


def own(tokenizer, name, found, tools):
    return tokenizer.apply_chat_template(
        with_ids(found),
        tools=tools,
        chat_template=DECLARING[name].marked,
        return_assistant_tokens_mask=True,
        return_dict=True,
    )


@pytest.mark.parametrize("name", DECLARING)
def test_declarations_equal_the_templates_own_rendering(name, tokenizers):
    tokenizer, draw = tokenizers[name], random.Random(0)  # noqa: S311 - not secret
    for _ in range(150):
        found = conversation(draw, name if name in TAKES_TEXT else "llama_3_1")
        if name in ("hermes", "typed") and draw.random() < 0.5:
            found.insert(0, {"role": "system", "content": "Be kind."})
        tools = [declared(draw) for _ in range(draw.randint(0, 3))] or None
        got = ChatFormat.of(tokenizer).encode(text_of(found, tools))
        oracle = own(tokenizer, name, found, tools)
        assert got.ids.tolist() == oracle["input_ids"]
        assert got.learnt.tolist() == [bool(mark) for mark in oracle["assistant_masks"]]


@pytest.mark.parametrize("name", DECLARING)
def test_what_declarations_spell_is_text(name, tokenizers):
    tokenizer, draw = tokenizers[name], random.Random(1)  # noqa: S311 - not secret
    control = ChatFormat.of(tokenizer)._control_ids
    asked = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    caught = 0
    for _ in range(100):
        state = draw.getstate()
        tools = [declared(draw, [f"a {one} b" for one in FORGED])]
        draw.setstate(state)
        plain = [declared(draw, ["a b c"] * len(FORGED))]
        counts = [
            sum(
                token in control
                for token in ChatFormat.of(tokenizer).encode(text_of(asked, t)).ids
            )
            for t in (tools, plain)
        ]
        assert counts[0] == counts[1]
        forged = own(tokenizer, name, asked, tools)["input_ids"]
        caught += sum(token in control for token in forged) > counts[1]
    assert caught > 50  # the template alone lets them through


def told(value):
    function = {
        "name": "pay",
        "description": f'For "{SECRET}"\n\\ only',
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "string", "enum": [f"{SECRET} x"], "default": "a"},
                "card": {"type": "integer", "default": value},
            },
            "required": ["to"],
        },
    }
    found = [{"role": "user", "content": "Pay"}, {"role": "assistant", "content": "So"}]
    return found, [{"type": "function", "function": function}]


@pytest.mark.parametrize("name", DECLARING)
def test_tokens_know_where_a_declaration_says_something(name, tokenizers):
    text = text_of(*told(417302558), learnt=("assistant", "user"))
    got = ChatFormat.of(tokenizers[name]).encode(text)
    starts = [i for i in range(len(text)) if text.startswith(SECRET, i)]
    starts.append(text.index("417302558"))
    assert len(starts) == 3
    for start in starts:
        end = start + (len(SECRET) if text.startswith(SECRET, start) else 9)
        inside = [s for s in got.spans if s[0] < end and s[1] > start]
        covered = {place for first, last in inside for place in range(first, last)}
        assert covered >= {*range(start, end)}
    (turn,) = [t for t in turns_of(text) if t.role == TOOLS]
    end = turn.start + len(turn.content)
    of_tools = (got.spans[:, 0] >= turn.start) & (got.spans[:, 1] <= end)
    assert of_tools.any()
    assert not (got.learnt & of_tools).any()
    assert (got.owners[of_tools] == -1).all()


@pytest.mark.parametrize("name", DECLARING)
def test_redacted_declarations_stay_declarations(name):
    tokenizer = chat_tokenizer(name)
    tokenizer.add_special_tokens({"mask_token": MASK})
    found, tools = told(417302558)
    tools[0]["function"]["parameters"]["properties"]["to"]["default"] = f"a{MASK}"
    text = text_of(found, tools)
    spans = [
        Span(start=i, end=i + len(one), entity_type="ID")
        for one in (SECRET, "417302558")
        for i in range(len(text))
        if text.startswith(one, i)
    ]
    redacted = redact_text(text, spans, Operator.MASK).text
    again = text_of(found, tools_of(redacted))
    assert again == redacted
    got = ChatFormat.of(tokenizer).encode(redacted)
    assert got.ids.tolist().count(tokenizer.mask_token_id) == 3
    (function,) = [one["function"] for one in tools_of(redacted)]
    assert function["name"] == "pay"
    assert function["parameters"]["properties"]["card"]["default"] == MASK


@pytest.mark.parametrize("name", DECLARING)
def test_declarations_of_which_all_was_deleted_are_written_as_if_empty(name):
    tokenizer, draw = chat_tokenizer(name), random.Random(2)  # noqa: S311 - not secret
    for _ in range(30):
        asked = told(5)[0]
        text = text_of(asked, [declared(draw)])
        whole = Span(start=0, end=text.index("Pay"), entity_type="ID")
        spans = within_contents([whole], text)
        deleted = redact_text(text, spans, Operator.DELETE).text
        got = ChatFormat.of(tokenizer).encode(deleted)
        oracle = own(tokenizer, name, asked, tools_of(deleted))
        assert got.ids.tolist() == oracle["input_ids"]


def test_nobody_marks_the_structure_of_a_declaration():
    text = text_of(*told(5))
    everything = Span(start=0, end=len(text), entity_type="PERSON")
    (turn,) = [t for t in turns_of(text) if t.role == TOOLS]
    said = [
        text[s.start : s.end]
        for s in within_contents([everything], text)
        if s.start < turn.start + len(turn.content)
    ]
    assert said == ['For \\"417 302 558\\"\\n\\\\ only', "417 302 558 x", "a", "5"]


def test_declaration_that_is_no_json_any_more_is_marked_whole():
    turns = turns_of(text_of(*told(5)))
    broken = join_turns([replace(turns[0], content="{Anna"), *turns[1:]])
    everything = Span(start=0, end=len(broken), entity_type="PERSON")
    (first, *_) = within_contents([everything], broken)
    assert broken[first.start : first.end] == "{Anna"


@pytest.mark.parametrize("name", ["chatml", "llama_3", "qwen_3"])
def test_templates_that_write_no_declarations_are_refused_by_name(name):
    text = text_of(*told(5))
    with pytest.raises(ModelError, match="must write the functions that tools declare"):
        ChatFormat.of(chat_tokenizer(name)).encode(text)


@pytest.mark.parametrize("key", ["<|im_end|>", MASK])
@pytest.mark.parametrize("place", ["name", "key", "type", "required"])
def test_names_that_spell_special_tokens_are_refused_or_text(key, place):
    found, tools = told(5)
    function = tools[0]["function"]
    if place == "name":
        function["name"] = key
    elif place == "key":
        function["parameters"]["properties"][key] = {"type": "string"}
    elif place == "type":
        function["parameters"]["properties"]["to"]["type"] = key
    else:
        function["parameters"]["required"] = [key]
    tokenizer = chat_tokenizer("hermes")
    tokenizer.add_special_tokens({"mask_token": MASK})
    plain = ChatFormat.of(tokenizer).encode(text_of(*told(5)))
    text = text_of(found, tools)
    if place == "key":
        with pytest.raises(ModelError, match="must not name functions"):
            ChatFormat.of(tokenizer).encode(text)
        return
    control = ChatFormat.of(tokenizer)._control_ids
    got = ChatFormat.of(tokenizer).encode(text)
    assert np.isin(got.ids, [*control]).sum() == np.isin(plain.ids, [*control]).sum()


def test_what_no_loss_reaches_is_not_learnt_where_all_roles_are(tokenizers):
    text = text_of(*told(5), learnt=("system", "user", "assistant", "tool"))
    got = ChatFormat.of(tokenizers["hermes"]).encode(text)
    written = tokenizers["hermes"].decode(got.ids[got.learnt])
    assert written == "Pay<|im_end|>So<|im_end|>"
