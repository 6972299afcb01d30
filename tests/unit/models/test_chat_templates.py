"""Chat templates that TRL ships for its models, against their own rendering."""

import json
import re
from importlib.resources import files

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

from dptune.data.messages import read_conversation
from dptune.errors import ModelError
from dptune.models.chat import ChatFormat
from dptune.models.chat_dates import without_today
from tests.unit.models.test_chat_calls import with_ids

SHIPPED = {
    file.name.removesuffix(".jinja"): without_today(file.read_text(encoding="utf-8"))
    for file in files("trl").joinpath("chat_templates").iterdir()
    if file.name.endswith(".jinja")
}
TEMPLATES = sorted(name for name in SHIPPED if not name.endswith("_training"))
WITHOUT_CHATS = {"glm4moe", "idefics3", "llava_next", "smolvlm"}
"""Contents are lists of parts; or a turn ends with the marker of the next one."""
WITHOUT_CALLS = {
    *("cohere", "cohere2", "deepseek_r1_distill", "gemma", "gemma3", "lfm2", "llama3"),
    *("phi3", "phi3_5", "qwen2_5_vl"),
}
NOT_LEARNT = {
    *("", "<｜Assistant｜>", "<|start|>assistant", "<think>", "<think>\n\n</think>"),
    "<|end|>",
}
"""What TRL learns and the library does not: what a prompt writes, and a second end."""
LEARNT = {"", "<|tool_response>"}
"""What the library learns and TRL does not: where Gemma stops for a result."""
MARKERS = re.compile(
    r"<\|[^|<>'\" \\]+\|>|<｜[^｜]+｜>|\[/?[A-Z_]{3,}\]|<[a-z_]+\|>|<\|[a-z_]+>"
    r"|<\|\"\|>|</?(?:s|bos|eos|start_of_turn|end_of_turn)>"
)
WORDS = re.compile(r"</?(?:think|tool_call|tool_response|tools|arg_key|arg_value)>")
FIRST = ("<|begin_of_text|>", "<bos>", "<s>", "<｜begin▁of▁sentence｜>", "<BOS_TOKEN>")
ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<eos>", "</s>", "<｜end▁of▁sentence｜>", "<|end|>"),
    *("<|END_OF_TURN_TOKEN|>", "<|return|>", "<turn|>", "<|eot|>"),
)
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks up an order",
        "parameters": {
            "type": "object",
            "properties": {"no": {"type": "integer", "description": "Its number"}},
            "required": ["no"],
        },
    },
}
CALL = {"function": {"name": "look_up", "arguments": {"no": 7, "to": "Ann\n<x>"}}}
ASKED = {"role": "user", "content": "Hi  there"}
SAID = {"role": "assistant", "content": "two\n\nlines"}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
FOUND = {"role": "tool", "content": "found it"}
CHATS = {
    "once": [ASKED, SAID],
    "twice": [ASKED, SAID, {"role": "user", "content": "😀 日本"}, SAID],
    "open": [ASKED, SAID, ASKED],
}
CALLS = {"answered": [ASKED, CALLED, FOUND, SAID], "last": [ASKED, CALLED]}


def tokenizer_for(template):
    markers = sorted(set(MARKERS.findall(template)))
    made = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokens(), clean_up_tokenization_spaces=False
    )
    found = [[t for t in known if t in markers] for known in (FIRST, ENDS)]
    bos, eos = (one[0] if one else None for one in found)
    made.add_special_tokens({"bos_token": bos or "<B>", "eos_token": eos or "<E>"})
    special = [AddedToken(t, normalized=False, special=True) for t in markers]
    made.add_special_tokens({"additional_special_tokens": special})
    plain = sorted(set(WORDS.findall(template)))
    made.add_tokens([AddedToken(t, normalized=False) for t in plain])
    made.chat_template = template
    return made


def byte_tokens():
    signs = sorted(pre.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={sign: i for i, sign in enumerate(signs)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def encoded(tokenizer, found, tools=None):
    read = read_conversation(found, learnt=["assistant"], tools=tools)
    assert not read.faults
    return ChatFormat.of(tokenizer).encode(read.text)


def own(tokenizer, found, *, tools=None, template=None):
    """The template's own rendering; DeepSeek's takes arguments that are text."""
    return tokenizer.apply_chat_template(
        with_ids(found),
        tools=tools,
        chat_template=template,
        return_dict=True,
        return_assistant_tokens_mask=template is not None,
    )


def as_text(found):
    """Write arguments as OpenAI's files have them."""
    given = dict(CALL["function"], arguments=json.dumps(CALL["function"]["arguments"]))
    call = {"type": "function", "function": given}
    return [m | {"tool_calls": [call]} if m is CALLED else m for m in found]


def check_learnt(tokenizer, name, found, got, tools=None):
    """What is learnt is what TRL learns, but for headers and blanks behind turns."""
    text = tokenizer.decode(got.ids[got.learnt])
    said = [m["content"] for m in found if m is SAID]
    said += ["look_up", "Ann"] if any("tool_calls" in m for m in found) else []
    assert all(one in text for one in said)
    if (marked := SHIPPED.get(f"{name}_training")) is None:
        return
    oracle = own(tokenizer, found, tools=tools, template=marked)
    if oracle["input_ids"] != got.ids.tolist():
        return  # it writes thoughts where the template does not
    theirs = np.array(oracle["assistant_masks"], bool)
    assert runs(tokenizer, got.ids, theirs & ~got.learnt) <= NOT_LEARNT
    assert runs(tokenizer, got.ids, got.learnt & ~theirs) <= LEARNT


def runs(tokenizer, ids, marks):
    edges = np.flatnonzero(np.diff(marks, prepend=False, append=False)).reshape(-1, 2)
    return {tokenizer.decode(ids[start:end]).strip() for start, end in edges}


def refuses(tokenizer, found, tools=None):
    try:
        encoded(tokenizer, found, tools)
    except ModelError:
        return True
    return False


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_equal_the_rendering_of_each_template(name):
    tokenizer = tokenizer_for(SHIPPED[name])
    if name in WITHOUT_CHATS:
        assert refuses(tokenizer, CHATS["once"])
        return
    for found in CHATS.values():
        got = encoded(tokenizer, found)
        assert got.ids.tolist() == own(tokenizer, found)["input_ids"]
        check_learnt(tokenizer, name, found, got)


@pytest.mark.parametrize("name", TEMPLATES)
def test_calls_equal_the_rendering_of_each_template(name):
    tokenizer = tokenizer_for(SHIPPED[name])
    if name in WITHOUT_CHATS | WITHOUT_CALLS:
        assert refuses(tokenizer, CALLS["answered"])
        return
    for found in CALLS.values():
        for tools in (None, [TOOL]):
            if tools and name == "deepseekv3":  # declares none
                assert refuses(tokenizer, found, tools)
                continue
            got = encoded(tokenizer, found, tools)
            given = found if name != "deepseekv3" else as_text(found)
            wanted = own(tokenizer, given, tools=tools)["input_ids"]
            assert got.ids.tolist() == wanted
            check_learnt(tokenizer, name, given, got, tools)
