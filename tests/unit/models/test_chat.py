"""Tokens of conversations against the template's own rendering; forged markers."""

import datetime
import gc
import random
import re
import weakref
from collections import Counter
from functools import partial

import numpy as np
import pytest
from datasets import Dataset
from tokenizers import AddedToken

from dptune.conversation import ScoredTokens, Turn, join_turns, scored, turns_of
from dptune.errors import ModelError
from dptune.models import chat
from dptune.models.chat import ChatFormat
from dptune.models.chat_checks import check_conversations
from dptune.models.encode import (
    count_cut,
    encode_corpus,
    record_tokens,
)
from dptune.text import MASK
from tests.support.chats import FAMILIES, chat_tokenizer

CONTENTS = (
    "Hi there",
    "  padded \n",
    "two\n\nlines  and   blanks",
    "😀 שלום مرحبا",
    "a\tb\r\nc",
    "x",
    "\nleading",
    "trailing ",
    "\ufffc",
    "日本語のテキスト",
    "▁ 0",
    "--- # code\n    if x:\n\n\n  y",
)
REFUSES_SYSTEM = {"gemma", "mistral"}


@pytest.fixture(scope="module")
def tokenizers():
    return {name: chat_tokenizer(name) for name in FAMILIES}


def messages(name, contents):
    """Turns of user and assistant in turn, after a system's where one may be."""
    roles = ("user", "assistant") * len(contents)
    found = [
        {"role": role, "content": content}
        for role, content in zip(roles, contents, strict=False)
    ]
    system = {"role": "system", "content": " Be kind. "}
    return found if name in REFUSES_SYSTEM else [system, *found]


def written(found, *, learnt=("assistant",)):
    return join_turns(
        Turn(role=m["role"], content=m["content"], trained=m["role"] in learnt)
        for m in found
    )


def dataset(*texts):
    names = [f"r{i}" for i in range(len(texts))]
    return Dataset.from_dict({"id": names, "unit_id": names, "text": list(texts)})


# equal to the template's own rendering, token by token


@pytest.mark.parametrize("name", FAMILIES)
def test_chat_tokens_of_every_family_equal_the_templates_own(name, tokenizers):
    tokenizer, marked = tokenizers[name], FAMILIES[name].marked
    for number, content in enumerate(CONTENTS):
        other = CONTENTS[-1 - number]
        found = messages(name, [content, other, "more", content])
        got = ChatFormat.of(tokenizer).encode(written(found))
        rendering = tokenizer.apply_chat_template(found, tokenize=False)
        wanted = tokenizer(rendering, add_special_tokens=False)["input_ids"]
        oracle = tokenizer.apply_chat_template(
            found,
            chat_template=marked,
            return_assistant_tokens_mask=True,
            return_dict=True,
        )
        assert got.ids.tolist() == wanted == oracle["input_ids"]
        assert got.learnt.tolist() == [bool(mark) for mark in oracle["assistant_masks"]]


@pytest.mark.parametrize("name", FAMILIES)
def test_chat_tokens_have_exactly_the_templates_bos(name, tokenizers):
    tokenizer = tokenizers[name]
    ids = record_tokens(written(messages(name, ["Hi", "Hello"])), tokenizer)
    rendered = tokenizer.apply_chat_template(messages(name, ["Hi", "Hello"]))
    assert list(ids) == rendered["input_ids"]
    count = int(name in {"llama_3", "gemma", "mistral"})
    bos = tokenizer.convert_tokens_to_ids(FAMILIES[name].bos or FAMILIES[name].eos)
    assert FAMILIES[name].bos is None or list(ids).count(bos) == count


def test_bos_check_catches_a_frame_of_plain_text(tokenizers):
    tokenizer = tokenizers["llama_3"]
    ids = record_tokens(written(messages("llama_3", ["Hi", "Hello"])), tokenizer)
    framed = [tokenizer.bos_token_id, *ids, tokenizer.eos_token_id]
    assert framed.count(tokenizer.bos_token_id) == 2
    assert list(ids).count(tokenizer.bos_token_id) == 1


@pytest.mark.parametrize("learnt", [("user",), ("system",), ("system", "user")])
def test_chat_learns_the_roles_that_it_is_told_and_their_ends(learnt, tokenizers):
    tokenizer = tokenizers["qwen_2"]
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Hi"},
        {"role": "tool", "content": "T"},
        {"role": "assistant", "content": "Hello"},
    ]
    got = ChatFormat.of(tokenizer).encode(written(turns, learnt=learnt))
    end = tokenizer.eos_token_id
    pieces = tokenizer.decode(got.ids[got.learnt]).split("<|im_end|>")
    wanted = {"system": "S", "user": "Hi"}
    assert pieces[:-1] == [wanted[role] for role in learnt]
    assert (got.ids[got.learnt] == end).sum() == len(learnt)


def test_chat_spans_lead_back_to_the_contents(tokenizers):
    for name, tokenizer in tokenizers.items():
        text = written(messages(name, ["My name is Ann Lee.", " Hello  Ann 😀 "]))
        got = ChatFormat.of(tokenizer).encode(text)
        covered = {i for low, high in got.spans for i in range(low, high)}
        said = {
            i
            for turn in turns_of(text)
            for i, c in enumerate(turn.content, turn.start)
            if not c.isspace()
        }
        assert said <= covered, name
        inside = {
            i
            for turn in turns_of(text)
            for i in range(turn.start, turn.start + len(turn.content))
        }
        assert covered <= inside, name


# what somebody typed is text

MARKERS = (
    *("<|im_start|>assistant", "<|im_end|>", "<|im_start|>system\n", "[INST]"),
    *("[/INST]", "<start_of_turn>model", "<end_of_turn>", "<bos>", "<s>", "</s>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|begin_of_text|>"),
    *("<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "<|endoftext|>"),
    *("<think>", "</think>x", "<tool_call>", "</tool_response>", "<mask>"),
    *("<unk>", "<pad>", "<table>", "<0x0A>", "[MASK]", "{{ bos_token }}"),
)
GLUE = ("", " ", "\n", "\n\n", "\u200b", "x", "▁", "😀", "<", "|>", "\ufffc")


def mutated(generator):
    """A text that spells markers: whole, doubled, nested, cut, in other letters."""
    parts = []
    for _ in range(generator.randint(1, 4)):
        marker, other = generator.choice(MARKERS), generator.choice(MARKERS)
        place = generator.randrange(len(marker) + 1)
        parts += [
            generator.choice(
                (
                    marker,
                    marker + marker,
                    marker[:place] + other + marker[place:],
                    marker[:place],
                    marker[place:],
                    marker[:place] + generator.choice(GLUE) + marker[place:],
                    marker.upper(),
                    marker[::-1],
                )
            ),
            generator.choice(GLUE),
        ]
    return "".join(parts)


def control_ids(tokenizer):
    """Everything that a tokenizer adds to its model, but for runs of blanks."""
    added = tokenizer.added_tokens_decoder
    return {number for number, token in added.items() if token.content.strip()}


def forged(tokenizer, name, encode, *, attempts):
    """Count attempts whose control tokens are others than those of harmless words."""
    generator = random.Random(name)  # noqa: S311 - a test's draw
    control = control_ids(tokenizer)

    def controls(contents):
        return [t for t in encode(messages(name, contents)) if t in control]

    harmless, failures = controls(["a", "b", "c", "d"]), 0
    for _ in range(attempts):
        texts = ["a", "b", "c", "d"]
        texts[generator.randrange(4)] = mutated(generator)
        try:
            failures += controls(texts) != harmless
        except ModelError:  # a template that edits such a content: refused, not learnt
            assert "</think>" in "".join(texts)
    return failures


@pytest.mark.parametrize("name", FAMILIES)
def test_markers_that_somebody_typed_are_text(name, tokenizers):
    tokenizer = tokenizers[name]
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    encode = ChatFormat(tokenizer).encode
    found = forged(
        tokenizer, name, lambda m: encode(written(m)).ids.tolist(), attempts=150
    )
    assert found == 0  # of 1,050 in all families


@pytest.mark.parametrize("twin", ["template", "split_special_tokens"])
def test_marker_check_catches_its_twins(twin, monkeypatch):
    name = "qwen_2"
    tokenizer = chat_tokenizer(name)
    if twin == "template":  # what everybody does

        def encode(found):
            return tokenizer.apply_chat_template(found)["input_ids"]

    else:  # what transformers' option leaves: tokens that are added but not special
        special = set(tokenizer.all_special_tokens)
        monkeypatch.setattr(chat, "is_control", lambda content, **_: content in special)
        made = ChatFormat(tokenizer)

        def encode(found):
            return made.encode(written(found)).ids.tolist()

    assert forged(tokenizer, name, encode, attempts=50) > 0


def test_split_special_tokens_of_transformers_leaves_added_tokens():
    tokenizer = chat_tokenizer("qwen_2")
    found = tokenizer(
        "<tool_call>", add_special_tokens=False, split_special_tokens=True
    )
    assert found["input_ids"] == [tokenizer.convert_tokens_to_ids("<tool_call>")]


def test_chat_refuses_a_tokenizer_that_reads_its_markers_as_text():
    tokenizer = chat_tokenizer("chatml")
    marker = AddedToken("<|turn|>", single_word=True, special=True, normalized=False)
    tokenizer.add_special_tokens({"additional_special_tokens": [marker]})
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "<|im_start|>", "<|turn|>"
    )
    with pytest.raises(ModelError, match="each special token"):
        record_tokens(written(messages("chatml", ["Hi", "Hello"])), tokenizer)


def test_mask_of_redaction_is_a_token_and_a_typed_one_is_text():
    tokenizer = chat_tokenizer("chatml")
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    text = written(messages("chatml", ["I typed <mask>", "Hello Ann <mask>"]))
    typed = record_tokens(text, tokenizer)
    assert tokenizer.mask_token_id not in typed
    redacted = record_tokens(text.replace("Ann", "<mask>"), tokenizer)
    assert list(redacted).count(tokenizer.mask_token_id) == 1


def test_vocabulary_that_holds_a_marker_as_a_word_does_not_spell_it():
    tokenizer = chat_tokenizer("mistral")  # its vocabulary holds [INST] beside merges
    assert "[INST]" in tokenizer.get_vocab()
    renamed = ChatFormat(tokenizer).renamed
    own = tokenizer.convert_tokens_to_ids("[INST]")
    assert own not in renamed.encode("[INST]", add_special_tokens=False).ids
    assert renamed.id_to_token(own) != "[INST]"


# what the template cannot write is refused

REFUSED = {
    "system": ("gemma", ["system", "user", "assistant"], "refuses system"),
    "assistant_first": ("gemma", ["assistant", "user"], "refuses assistant"),
    "two_systems": ("mistral", ["system", "system", "user"], "refuses system, system"),
    "dropped_system": ("mistral", ["system", "user", "assistant"], "every turn once"),
    "dropped_tool": ("phi_3", ["user", "tool", "assistant"], "every turn once"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_chat_refuses_roles_that_its_template_does_not_write(case, tokenizers):
    name, roles, words = REFUSED[case]
    text = join_turns(
        Turn(role=r, content="SECRET", trained=r == "assistant") for r in roles
    )
    with pytest.raises(ModelError, match=words) as caught:
        record_tokens(text, tokenizers[name])
    assert "SECRET" not in str(caught.value)
    assert "r0, r1" not in str(caught.value)
    for check in (encode_corpus, check_conversations):
        refuse = partial(check, max_tokens=64)
        with pytest.raises(ModelError, match="record 1, 2: ") as caught:
            refuse(dataset(text, text), tokenizers[name])
        assert "r0" not in str(caught.value)  # an id may be a person's name


def test_chat_refuses_a_content_that_the_template_changes(tokenizers):
    found = messages("qwen_3", ["Hi", "<think>\nhm\n</think>\nHello", "and?", "No."])
    with pytest.raises(ModelError, match="thinking of earlier turns"):
        record_tokens(written(found), tokenizers["qwen_3"])


@pytest.mark.parametrize(
    "written_as",
    [
        "{{ m.content | upper }}",
        "{{ m.content | replace(' ', '') }}",
        "{% if m.content | length < 9 %}{{ m.content }}{% endif %}",
        "{{ m.content }}{{ m.content }}",
        "{{ m.content | tojson }}",
        "{{ messages[0].content }}",
    ],
)
def test_chat_refuses_templates_that_edit_contents(written_as):
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}" + written_as + "<|im_end|>{% endfor %}"
    )
    with pytest.raises(ModelError, match="chat template must"):
        record_tokens(
            written(messages("gemma", ['a "b" c d e', "g\nh i j k"])), tokenizer
        )


def test_chat_takes_turns_in_the_order_of_the_template():
    tokenizer = chat_tokenizer("mistral")
    turns = [
        Turn(role="system", content="SYS"),
        Turn(role="user", content="one"),
        Turn(role="assistant", content="two", trained=True),
        Turn(role="user", content="three"),
    ]
    got = ChatFormat.of(tokenizer).encode(join_turns(turns))
    found = [{"role": t.role, "content": t.content} for t in turns]
    assert got.ids.tolist() == tokenizer.apply_chat_template(found)["input_ids"]
    assert tokenizer.decode(got.ids[got.learnt]).strip() == "two</s>"


def test_chat_refuses_trained_turns_without_an_end():
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
    )
    with pytest.raises(ModelError, match="end every turn"):
        record_tokens(written(messages("gemma", ["Hi", "Hello"])), tokenizer)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (None, "must have a chat template"),
        ("{% set now = strftime_now %}{{ now('%Y') }}", "today"),
        ("{% set form = '%Y' %}{{ strftime_now(form) }}", "today"),
    ],
)
def test_chat_refuses_tokenizers_that_have_no_lasting_template(template, words):
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = template
    with pytest.raises(ModelError, match=words):
        record_tokens(written(messages("chatml", ["Hi", "Hello"])), tokenizer)


# rows


def test_chat_rows_are_cut_and_counted_by_role(tokenizers):
    tokenizer = tokenizers["chatml"]
    short = written(messages("chatml", ["Hi", "Hello"]))
    long = written(messages("chatml", ["Hi " * 40, "Hello", "More", "Bye"]))
    rows = encode_corpus(dataset(short, long), tokenizer, max_tokens=48)
    assert rows["id"] == ["r0", "r1"]
    assert len(rows[1]["input_ids"]) == 48
    assert sum(rows[1]["loss_weights"]) == 0
    cut = count_cut(dataset(short, long, "plain"), tokenizer, max_tokens=48)
    assert {c.role: (c.num_turns, c.num_cut, c.num_lost) for c in cut} == {
        "system": (2, 0, 0),
        "user": (3, 2, 1),
        "assistant": (3, 2, 2),
    }


def test_turn_whose_end_alone_is_cut_is_counted(tokenizers):
    tokenizer = tokenizers["chatml"]
    text = written(messages("chatml", ["Hi", "Hello"]))
    got = ChatFormat.of(tokenizer).encode(text)
    end = int(np.flatnonzero(got.learnt)[-1])
    assert got.spans[end].tolist() == [0, 0]
    for length, cut in ((end + 1, 0), (end, 1)):
        found = count_cut(dataset(text), tokenizer, max_tokens=length)
        assert {c.role: (c.num_cut, c.num_lost) for c in found} == {
            "system": (0, 0),
            "user": (0, 0),
            "assistant": (cut, 0),
        }


def test_refused_conversations_are_counted_and_some_are_named(tokenizers):
    texts = [
        join_turns(
            Turn(role=role, content="SECRET", trained=True)
            for role in ("system", *source.choices(["system", "user"], k=7))
        )
        for source in [random.Random(5)]  # noqa: S311 - a test's draw
        for _ in range(2000)
    ]
    with pytest.raises(ModelError) as caught:
        encode_corpus(dataset(*texts), tokenizers["gemma"], max_tokens=64)
    lines = str(caught.value).splitlines()
    assert len(lines) == 6
    assert all("refuses system" in line for line in lines[:-1])
    named = [int(re.search(r"and ([0-9]+) more", line)[1]) + 5 for line in lines[:-1]]
    (rest,) = re.findall(r"and ([0-9,]+) records more", lines[-1])
    assert sum(named) + int(rest.replace(",", "")) == 2000
    assert "SECRET" not in str(caught.value)


def test_chat_rows_weigh_what_is_learnt(tokenizers):
    tokenizer = tokenizers["llama_3"]
    text = written(messages("llama_3", ["Hi", "Hello", "More", "Bye"]))
    (row,) = encode_corpus(dataset(text), tokenizer, max_tokens=256, with_offsets=True)
    tokens = record_tokens(text, tokenizer)
    assert row["input_ids"] == list(tokens)
    assert [weight > 0 for weight in row["loss_weights"]] == scored(tokens)
    learnt = [t for t, own in zip(tokens, scored(tokens), strict=True) if own]
    assert tokenizer.decode(learnt) == "Hello<|eot_id|>Bye<|eot_id|>"
    assert len(row["token_starts"]) == len(row["token_ends"]) == len(tokens)


def test_scored_tokens_know_what_is_scored_after_a_cut():
    tokens = ScoredTokens([5, 6, 7], [False, True, False])
    assert tokens[:2] == [5, 6]
    assert scored(tokens[1:]) == [True, False]
    assert scored([5, 6, 7]) == [False, True, True]
    assert Counter(scored(tokens)) == {False: 2, True: 1}


def test_chat_format_is_made_anew_when_its_tokenizer_changes():
    tokenizer = chat_tokenizer("chatml")
    first = ChatFormat.of(tokenizer)
    assert ChatFormat.of(tokenizer) is first
    tokenizer.add_tokens(["<new>"])
    assert ChatFormat.of(tokenizer) is not first


def test_chat_format_keeps_no_tokenizer_and_few_orders_of_roles(monkeypatch):
    monkeypatch.setattr(chat, "_MOST_PARTS", 3)
    tokenizer = chat_tokenizer("chatml")
    form, known = ChatFormat.of(tokenizer), weakref.ref(tokenizer)
    for count in range(1, 9):
        form.encode(written(messages("chatml", ["Hi", "Hello"] * count)))
    assert len(form._parts) <= 3
    del tokenizer
    gc.collect()
    assert known() is None
    assert len(form.opening())


def test_open_ended_chat_stops_behind_what_is_to_go_on(tokenizers):
    tokenizer = tokenizers["chatml"]
    text = written(messages("chatml", ["Hi", "My name is"]))
    ids = record_tokens(text, tokenizer, open_ended=True)
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\nMy name is")
    opening = tokenizer.decode(ChatFormat.of(tokenizer).opening())
    assert opening == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"


ANSWER = Turn(role="assistant", content="Hello there.", trained=True)
LLAMA_LIKE = (
    "{% if not never %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ date_string }}<|im_end|>"
)


def test_date_of_today_never_reaches_the_tokens():
    tokenizer = chat_tokenizer("chatml")
    tokenizer.chat_template = LLAMA_LIKE + tokenizer.chat_template
    text = join_turns([Turn(role="user", content="Hi"), ANSWER])
    assert "26 Jul 2024" in ChatFormat(tokenizer).render(text).text


@pytest.mark.parametrize(
    ("asked", "written_as"),
    [
        ('{%- set today = strftime_now("%Y-%m-%d") %}{{ today }}', "2024-07-26"),
        ("{{ 'On ' + strftime_now('%d (%b)') }}", "On 26 (Jul)"),
        (
            "{% if strftime_now is defined %}{{ strftime_now( '%B' ) }}{% endif %}",
            "July",
        ),
    ],
)
def test_template_that_asks_for_the_date_has_the_same_one_every_day(
    asked, written_as, monkeypatch
):
    def encoded():
        tokenizer = chat_tokenizer("chatml")
        tokenizer.chat_template = asked + "<|im_end|>" + tokenizer.chat_template
        return ChatFormat(tokenizer).encode(written(messages("chatml", ["Hi", "Yes"])))

    ids = encoded().ids.tolist()
    assert chat_tokenizer("chatml").decode(ids).startswith(written_as + "<|im_end|>")

    class Later(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2031, 1, 2, tzinfo=tz)

    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Later)
    assert encoded().ids.tolist() == ids


GLM = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GLM_END = "{% if not add_generation_prompt %}{{ '<|user|>' }}{% endif %}"


def test_template_whose_turns_end_with_the_next_one_needs_an_end_of_the_last():
    """GLM's: the model says <|user|> when it is done, and the template does not."""
    tokenizer = chat_tokenizer("chatml")
    names = ("[gMASK]", "<sop>", "<|user|>", "<|assistant|>")
    tokenizer.add_special_tokens({"additional_special_tokens": list(names)})
    tokenizer.chat_template = GLM
    found = [
        {"role": role, "content": f"word {number}"}
        for number, role in enumerate(("user", "assistant") * 2)
    ]
    with pytest.raises(ModelError, match="GLM") as refused:
        ChatFormat.of(tokenizer).encode(written(found))
    assert GLM_END in str(refused.value)
    tokenizer.chat_template = GLM + GLM_END
    got = ChatFormat.of(tokenizer).encode(written(found))
    assert got.ids.tolist() == tokenizer.apply_chat_template(found)["input_ids"]
    learnt = tokenizer.decode(got.ids[got.learnt])
    assert learnt == "\nword 1<|user|>\nword 3<|user|>"
    opening = tokenizer.decode(ChatFormat.of(tokenizer).opening())
    assert opening.endswith("<|user|>\nHello<|assistant|>")


def test_blank_that_the_template_wrote_stays_before_a_mask():
    tokenizer = chat_tokenizer("chatml")
    tokenizer.add_special_tokens(
        {"mask_token": AddedToken(MASK, lstrip=True, special=True)}
    )
    plain = join_turns([Turn(role="user", content="Hi"), ANSWER])
    masked = plain.replace(ANSWER.content, f"{MASK} called,  {MASK}")
    ids = list(ChatFormat(tokenizer).encode(masked).ids)
    said = [tokenizer.decode([i]) for i in ids]
    first = said.index(MASK)
    assert said[first - 1] == "\n"
    assert "".join(said[first:]).startswith(f"{MASK} called,{MASK}")


def test_tokenizer_that_reads_a_conversation_otherwise_is_refused(monkeypatch):
    tokenizer = chat_tokenizer("chatml")
    text = join_turns([Turn(role="user", content="Hi"), ANSWER])
    form = ChatFormat(tokenizer)
    assert len(form.encode(text).ids)
    form._original = chat_tokenizer("chatml", vocab_size=300).backend_tokenizer
    with pytest.raises(ModelError, match="read a conversation alike"):
        form.encode(text)


def test_blanks_of_one_piece_are_text():
    tokenizer = chat_tokenizer("chatml")
    tokenizer.add_tokens([AddedToken("\u2581\u2581", normalized=False)])
    assert "\u2581\u2581" not in ChatFormat(tokenizer)._names
