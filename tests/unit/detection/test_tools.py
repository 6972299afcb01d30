"""Names of functions and fields in calls of tools stay; nobody's name gets through."""

import json
import random
import re
import sys
from functools import lru_cache

import pytest
from faker.providers.person.en_US import Provider

from dptune.conversation import Turn, join_turns
from dptune.detection import tools, union
from dptune.detection.engine import build_engine
from dptune.detection.recognizer import Tier
from dptune.detection.tools import without_names_of_tools
from dptune.text import Span
from tests.support.growth import grows_in_proportion

PARAMETERS = {
    "type": "object",
    "properties": {"orderId": {"type": "integer"}, "phoneNumber": {"type": "string"}},
    "required": ["orderId"],
}
TOOL = {"name": "lookup_order", "description": "Find one.", "parameters": PARAMETERS}
CALL = {"name": "lookup_order", "arguments": {"orderId": 5, "phoneNumber": "x"}}


@lru_cache(maxsize=1)
def engine():
    return build_engine(tier=Tier.LOW_ENTITY)


def chat(*turns):
    return join_turns(Turn(role=role, content=content) for role, content in turns)


def masked(texts):
    """Return the code points of each text that are marked."""
    return [
        {i for span in spans for i in range(span.start, span.end)}
        for spans in engine().detect(texts)
    ]


def guess(text, value, **more):
    start = text.rindex(value)
    span = {"entity_type": "PERSON", "confidence": 0.9} | more
    return Span(start=start, end=start + len(value), **span)


DECLARED = ("system", f"<tools>\n{json.dumps(TOOL)}\n</tools>")


ASKED = ("user", "Where is my order?")
WRITTEN = {
    "Qwen": f"<tool_call>\n{json.dumps(CALL)}\n</tool_call>",
    "Hermes": f"I look.\n<tool_call>{json.dumps(CALL)}</tool_call>",
    "Llama": f"<|python_tag|>{json.dumps({'name': 'lookup_order', 'parameters': {}})}",
    "Llama_own": '<function=lookup_order>{"orderId": 5}</function>',
    "Mistral": f"[TOOL_CALLS] [{json.dumps(CALL | {'id': 'a1b2'})}]",
    "Mistral_newer": '[TOOL_CALLS]lookup_order[ARGS]{"orderId": 5}',
    "ShareGPT": json.dumps(CALL, indent=2),
    "fenced": f"```json\n{json.dumps(CALL)}\n```",
    "two": json.dumps([CALL, CALL]),
    "lines": f"{json.dumps(CALL)}\n{json.dumps(CALL)}",
    "older_OpenAI": json.dumps({"function_call": CALL}),
    "OpenAI": json.dumps(
        {
            "tool_calls": [
                {
                    "type": "function",
                    "function": CALL | {"arguments": json.dumps(CALL["arguments"])},
                }
            ]
        }
    ),
}


@pytest.mark.parametrize("way", WRITTEN)
@pytest.mark.parametrize("opening", [DECLARED, ASKED], ids=["declared", "not"])
def test_names_of_functions_and_fields_are_not_marked(way, opening):
    answer = json.dumps({"name": "lookup_order", "content": {"orderId": 5}})
    text = chat(
        opening,
        ("user", "Where is it?"),
        ("assistant", WRITTEN[way]),
        ("tool", f"<tool_response>\n{answer}\n</tool_response>"),
    )
    for name in ("lookup_order", "orderId", "phoneNumber"):
        for found in re.finditer(name, text):
            start, end = found.span()
            span = Span(start=start, end=end, entity_type="PERSON", confidence=0.9)
            assert without_names_of_tools([span], text) == [], found
    (marks,) = masked([text])
    for found in re.finditer("lookup_order|orderId|phoneNumber", text):
        assert marks.isdisjoint(range(*found.span()))


def test_a_mark_beyond_a_name_keeps_what_is_beyond():
    text = chat(DECLARED, ("assistant", '{"name": "lookup_order", "arguments": {}}'))
    start = text.rindex("name")
    long = Span(start=start, end=len(text) - 2, entity_type="ORG", confidence=0.5)
    left = without_names_of_tools([long], text)
    assert [text[s.start : s.end] for s in left] == ["name", "arguments"]


def called(name):
    return json.dumps({"name": name, "arguments": {}})


OTHER = called("send_mail")
NAMED = json.dumps(CALL | {"arguments": {"name": "night_owl", "maria_id": 3}})


SOMEBODYS = {
    "plain_text": (json.dumps(CALL), "lookup_order"),
    "user": (chat(("user", json.dumps(CALL))), "lookup_order"),
    "key_of_a_user": (chat(("user", json.dumps(CALL))), "orderId"),
    "declared_of_a_user": (chat(DECLARED, ("user", json.dumps(CALL))), "lookup_order"),
    "value": (chat(("assistant", NAMED)), "night_owl"),
    "key_with_a_name": (chat(("assistant", NAMED)), "maria_id"),
    "prose": (chat(("assistant", f"You wrote {json.dumps(CALL)}.")), "lookup_order"),
    "not_declared": (chat(DECLARED, ("assistant", OTHER)), "send_mail"),
    "no_call": (chat(("assistant", '{"name": "lookup_order"}')), "lookup_order"),
    "function_of_a_name": (chat(("assistant", called("anna_lee"))), "anna_lee"),
    "function_of_one_word": (chat(("assistant", called("owl"))), "owl"),
    "returned": (chat(("tool", '{"name": "night_owl", "content": "x"}')), "night_owl"),
    "key_of_a_name": (chat(("tool", '{"maria": 3, "n": 1}')), "maria"),
    "key_of_two_names": (chat(("tool", '{"Maria Gonzalez": 3}')), "Maria Gonzalez"),
    "key_of_a_surname": (chat(("tool", '{"gonzalezId": 3}')), "gonzalezId"),
    "key_of_words": (chat(("tool", '{"night_owl": 3}')), "night_owl"),
    "key_of_a_number": (chat(("tool", '{"user_4155550": 3}')), "user_4155550"),
    "profile": (
        chat(("system", '{"name": "night_owl", "parameters": {}}')),
        "night_owl",
    ),
}


@pytest.mark.parametrize("place", SOMEBODYS)
def test_what_may_be_somebodys_stays_marked(place):
    text, value = SOMEBODYS[place]
    span = guess(text, value)
    assert without_names_of_tools([span], text) == [span]


@pytest.mark.parametrize(
    "more",
    [
        {"entity_type": "EMAIL"},
        {"entity_type": "USERNAME"},
        {"confidence": 1.0},
        {"recognizer": "known_values"},
        {"recognizer": "deny_lists"},
    ],
)
def test_only_guesses_are_taken_back(more):
    text = chat(DECLARED, ("assistant", json.dumps(CALL)))
    assert without_names_of_tools([guess(text, "lookup_order")], text) == []
    span = guess(text, "lookup_order", **more)
    assert without_names_of_tools([span], text) == [span]


def test_a_name_that_stands_elsewhere_is_no_field():
    key = '{"stone_id": 3}'
    text = chat(("user", "I am Jo Stone."), ("tool", key))
    person, field = guess(text, "Jo Stone"), guess(text, "stone_id")
    assert without_names_of_tools([field], text) == []
    assert without_names_of_tools([person, field], text) == [person, field]


def test_time_grows_with_the_conversation():
    def work(count):
        text = chat(DECLARED, *[("assistant", json.dumps(CALL))] * count)
        spans = [
            Span(start=m.start(), end=m.end(), entity_type="PERSON", confidence=0.5)
            for m in re.finditer(r"\w+", text)
        ]
        return without_names_of_tools(spans, text)

    assert grows_in_proportion(work, 50)


first_names, last_names = Provider.first_names, Provider.last_names
FIRST = ["maria", "john", "anna", "rose", "mark", "wei", "fatima", "olga", "pedro"]
LAST = ["gonzalez", "smith", "wood", "baker", "nguyen", "o'hara", "lee", "stone"]


def value_of(draw):
    """Draw something personal, as it may be written where a name of code stands."""
    first, last = draw.choice(FIRST), draw.choice(LAST)
    return draw.choice(
        [
            f"{first.title()} {last.title()}",
            f"{first}_{last}",
            f"{first}{last.title()}".replace("'", ""),
            f"{first.title()}{last.title()}".replace("'", ""),
            f"{first}-{last}",
            f"{first}.{last}@mail.example.org",
            f"{last}_{draw.randrange(100)}",
            f"get_{first}_{last}",
            f"{first}_id",
            first,
            last.title(),
            f"+1 415 555 {draw.randrange(1000, 10000)}",
            f"user_{draw.randrange(10**9, 10**10)}",
        ]
    )


def attempt(draw):
    """Draw a conversation with a value where it might pass for structure."""
    value = value_of(draw)
    call = {"name": value, draw.choice(["arguments", "parameters", "input"]): {"n": 1}}
    fields = draw.choice(
        [{value: draw.randrange(9)}, {"name": value}, {"id": 1, value: {}}]
    )
    schema = {"type": "object", "properties": {value: {"type": "string"}}}
    place = draw.randrange(11)
    role, said = "assistant", {"name": "lookup_order", "arguments": fields}
    if place == 0:
        role, said = "user", call
    elif place == 1:
        role, said = "user", TOOL | {"name": value, "parameters": schema}
    elif place == 2:
        said["arguments"] = json.dumps(fields, ensure_ascii=draw.random() < 0.5)
    elif place == 3:
        role, said = "tool", fields
    elif place == 4:
        role, said = "tool", {"name": value, "content": {"n": 1}, "role": "tool"}
    elif place == 5:
        said = call
    elif place == 6:
        said["arguments"] = {"tool": call, "call": TOOL | {"parameters": schema}}
    elif place == 7:
        said = [CALL, {"function": call}]
    elif place == 8:
        role, said = "system", {"customer": {"name": value, "parameters": {"n": 1}}}
    elif place == 9:
        role, said = "tool", {"rows": [fields, {"x": json.dumps(json.dumps(fields))}]}
    written = json.dumps(said, indent=draw.choice([None, 1]))
    if draw.random() < 0.2:  # some letters as escapes
        written = written.replace("a", r"\u0061", draw.randrange(3))
    before, behind = draw.choice(
        [
            ("", ""),
            ("<tool_call>\n", "\n</tool_call>"),
            ("<tool_response>", "</tool_response>"),
            ("[TOOL_CALLS] ", ""),
            ("<tools>", "</tools>"),
            ("Here: ", " so."),
            ("```json\n", "\n```"),
        ]
    )
    turns = [DECLARED] if draw.random() < 0.5 else []
    turns.append(("user", draw.choice(["Please help.", "What is the weather?"])))
    turns.append((role, before + written + behind))
    if draw.random() < 0.3:
        turns.append(("assistant", f"<tool_call>{json.dumps(CALL)}</tool_call>"))
    text = written if place == 10 else chat(*turns)
    letters = [re.escape(c) if c != "a" else r"(?:a|\\+u0061)" for c in value]
    return text, [m.span() for m in re.finditer("".join(letters), text)]


def let_through(attempts, monkeypatch, **twin):
    """Count the attempts with a value that was marked and is marked no more."""
    texts = [text for text, _ in attempts]
    with monkeypatch.context() as patched:
        for name, broken in twin.items():
            patched.setattr(tools, name, broken)
        now = masked(texts)
        patched.setattr(union, "without_names_of_tools", lambda spans, _text: spans)
        before = masked(texts)
    values = [{i for a, b in places for i in range(a, b)} for _, places in attempts]
    lost = [b & v - n for b, n, v in zip(before, now, values, strict=True)]
    were_marked = [bool(b & v) for b, v in zip(before, values, strict=True)]
    assert sum(were_marked) > 0.7 * len(texts)
    return [text for text, one in zip(texts, lost, strict=True) if one]


def test_no_value_gets_through_in_a_thousand_attempts(monkeypatch):
    draw = random.Random(7)  # noqa: S311 - a seed
    attempts = [attempt(draw) for _ in range(1000)]
    assert let_through(attempts, monkeypatch) == []


def test_names_of_a_country_are_no_structure_though_all_are_marked(monkeypatch):
    """Whatever a recognizer makes of them; keys such as `hector_id` are the rest."""
    monkeypatch.setattr(sys.modules[__name__], "FIRST", [*map(str.lower, first_names)])
    monkeypatch.setattr(sys.modules[__name__], "LAST", [*map(str.lower, last_names)])
    draw = random.Random(204)  # noqa: S311 - a seed
    num_passed = 0
    for text, places in (attempt(draw) for _ in range(9000)):
        spans = [
            Span(start=a, end=b, entity_type="PERSON", confidence=0.9)
            for a, b in places
        ]
        num_passed += without_names_of_tools(spans, text) != spans
    assert num_passed < 9


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_is_plain", lambda _word: True),
        ("_is_key", lambda *_: True),
        ("_is_function", lambda *_: True),
    ],
)
def test_the_attempts_catch_rules_that_trust_a_place(name, broken, monkeypatch):
    draw = random.Random(7)  # noqa: S311 - a seed
    attempts = [attempt(draw) for _ in range(300)]
    assert len(let_through(attempts, monkeypatch, **{name: broken})) > 3
