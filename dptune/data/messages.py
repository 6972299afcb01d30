"""Conversations as sources give them, checked and written as one text each."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dptune.conversation import (
    CALL,
    RESERVED,
    ROLES,
    TOOLS,
    Turn,
    join_turns,
    names_function,
)
from dptune.declarations import said_places
from dptune.jsons import RepeatedKeyError, parse_json
from dptune.text import MASK

ALIASES: Final[dict[str, str]] = {
    **{role: role for role in ROLES},
    "human": "user",
    "gpt": "assistant",
    "function_call": "assistant",
    "model": "assistant",
    "function": "tool",
    "observation": "tool",
}
"""Names of roles: those of templates, and what ShareGPT and others call them."""

_NOT_RENDERED: Final = (
    *("function_call", "functions", "tools", "documents"),
    *("reasoning", "reasoning_content", "reasoning_details", "thinking", "thought"),
    *("refusal", "text", "parts", "image", "images", "audio", "video", "videos"),
)
"""What a message says beside its content: refused, or it would be lost."""

_NAMED_KEYS: Final = (
    *("from", "value", "name", "id", "tool_call_id", "message_id", "timestamp"),
    *("created_at", "date", "language", "model", "metadata", "score", "label"),
)
"""Keys that messages may name; any other might be somebody's text."""

_OF_CALLS: Final = frozenset(
    ["id", "type", "index", "function", "masks", "name", "arguments"]
)

OTHER_KEYS: Final = "others"
_Fault = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ReadConversation:
    """A conversation of a source, told from plain text that looks like one.

    Args:
        text: as `join_turns` writes it; None if there are faults.
        faults: what is wrong and what to do next, without text.
        unread: keys of messages that hold something and are not read, once for each
            message that has them.
    """

    text: str | None = field(default=None, repr=False)
    faults: tuple[_Fault, ...] = ()
    unread: tuple[str, ...] = ()


def read_conversation(
    *given: object, learnt: Collection[str], tools: object = None
) -> ReadConversation:
    """Read a list of messages, or a prompt and a completion.

    A message is a mapping of `role` and `content`, or of `from` and `value`. Its key
    `weight` may be 0, which keeps a turn from being learnt, or 1; a blank one is never
    learnt. `masks` are the code points of the content at which redaction wrote a mask:
    others were typed, and are text. `tool_calls` are turns of their own, as JSON, and
    so are functions that are declared, which are never learnt.
    Nothing else reaches the model, so that nothing does that detection has not read:
    keys that say something are refused, the rest is counted.

    >>> from dptune.conversation import turns_of
    >>> hello = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    >>> text = read_conversation(hello, learnt=["assistant"]).text
    >>> [(turn.role, turn.trained) for turn in turns_of(text)]
    [('user', False), ('assistant', True)]

    Args:
        given: messages, or JSON of them; or what a user asks and the assistant says.
        learnt: roles whose turns have a loss.
        tools: functions that may be called, or JSON of them; None are none.

    Returns:
        The text, or every fault.
    """
    messages = _messages(given)
    if isinstance(messages, ReadConversation):
        return messages
    declared = list[tuple[str, object]]()
    faults = dict.fromkeys(f for message in messages for f in _message_faults(message))
    try:
        declared = _declarations(tools)
    except ValueError as error:
        faults[f"tools {error}.", "Correct them, or leave them out."] = None
    if not faults:
        turns = [
            *(Turn(role=TOOLS, content=t, masks=_places(m)) for t, m in declared),
            *(turn for message in messages for turn in _turns(message, learnt)),
        ]
        if any(turn.trained for turn in turns):
            unread = (key for message in messages for key in _unread(message))
            return ReadConversation(text=join_turns(turns), unread=tuple(unread))
        roles = " or ".join(learnt)
        return _bad(
            f"a conversation must have a turn of {roles} to learn, got none.",
            "Leave the row out, or set train_on to roles that it has.",
        )
    return ReadConversation(faults=tuple(faults))


def _messages(
    given: Sequence[object],
) -> Sequence[Mapping[str, object]] | ReadConversation:
    """Return the messages of a row."""
    if len(given) > 1:
        pairs = zip(("user", "assistant"), given, strict=True)
        return [{"role": role, "content": content} for role, content in pairs]
    first = given[0]
    if isinstance(first, str):
        try:
            first = parse_json(first)
        except RepeatedKeyError:
            return _bad("a message must name every key once, got one twice.", _LEAVE)
        except ValueError:
            return _bad("messages must be a list or JSON of one, got text.", _USE_TEXT)
    if not isinstance(first, list) or not first:
        got = "an empty list" if isinstance(first, list) else _kind(first)
        return _bad(f"messages must be a list of messages, got {got}.", _USE_TEXT)
    if not all(isinstance(message, dict) for message in first):
        return _bad("every message must have role and content, got none.", _USE_TEXT)
    return [_with_calls(message) for message in first]


_LEAVE = "Leave one of the two values."
_USE_TEXT = "Choose another messages_column, or text_column for plain text."


def _bad(message: str, next_step: str) -> ReadConversation:
    return ReadConversation(faults=((message, next_step),))


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _role_and_content(message: Mapping[str, object]) -> tuple[object, object]:
    """Read either spelling; tables give absent keys as null."""
    role, content = message.get("role"), message.get("content")
    if role is None and content is None:
        return message.get("from"), message.get("value")
    if content is None and message.get("tool_calls"):
        return role, ""
    return role, _one_text(content)


def _one_text(content: object) -> object:
    """Join parts that are texts alone; return anything else as it is."""
    if not isinstance(content, list) or not content:
        return content
    texts = [
        part["text"]
        for part in content
        if isinstance(part, dict)
        and part.get("type") == "text"
        and isinstance(part.get("text"), str)
        and not any(part[key] for key in part.keys() - {"type", "text"})
    ]
    return "".join(texts) if len(texts) == len(content) else content


def _calls(message: Mapping[str, object]) -> list[tuple[str, object]]:
    """Read calls of tools: the JSON that is read of each, and where masks stand in it.

    Raises:
        ValueError: they are none, with what is wrong.
    """
    given = message.get("tool_calls") or []
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise ValueError("must be a list of calls")
    return [(_call(one), one.get("masks")) for one in given]


def _with_calls(message: Mapping[str, object]) -> Mapping[str, object]:
    """Read what others call a call: the key of OpenAI's past, and ShareGPT's turn."""
    role, content = _role_and_content(message)
    given: Any = message.get("function_call")
    if role == "function_call" and not message.get("masks"):
        try:
            said = parse_json(str(content))
            given = (said if isinstance(said, list) else [said]) or [None]
            for one in given:
                _call(one)
        except (ValueError, TypeError, AttributeError):
            return message  # text, as others write it
        role, content = "assistant", ""
    elif isinstance(given, dict) and not message.get("tool_calls"):
        given = [given]
    else:
        return message
    read = {"from", "value", "function_call"}
    rest = {key: value for key, value in message.items() if key not in read}
    return {**rest, "role": role, "content": content, "tool_calls": given}


def _call(given: Mapping[str, object]) -> str:
    """Write one call as JSON, as `json.dumps` does."""
    inner = given.get("function")
    function = inner if isinstance(inner, dict) else given
    keys = {k for one in (given, function) for k, value in one.items() if value}
    if keys - _OF_CALLS:
        raise ValueError("must have a name and arguments and nothing else to learn")
    name, arguments = function.get("name"), function.get("arguments")
    if not names_function(name):
        raise ValueError("must name a function in one line, without quotes or \\")
    try:
        if isinstance(arguments, str):
            arguments = parse_json(arguments or "{}")
        if isinstance(arguments, dict):
            call = {"name": name, "arguments": arguments}
            text = json.dumps(call, ensure_ascii=False, allow_nan=False)
            text.encode()  # half of a pair of surrogates is no character
            return text
    except (ValueError, RecursionError):
        pass
    raise ValueError("must have arguments that are an object of JSON")


def _declarations(given: object) -> list[tuple[str, object]]:
    """Read declared functions: the JSON of each, and where masks stand in it.

    Raises:
        ValueError: they are none, with what is wrong.
    """
    try:
        if isinstance(given, str):
            given = parse_json(given or "[]")
    except ValueError:
        given = [None]
    given = [] if given is None else given
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise ValueError("must be a list of declarations, or JSON of one")
    return [(_declaration(one), one.get("masks")) for one in given]


def _declaration(given: Mapping[str, object]) -> str:
    """Write one declaration as JSON; tables give absent keys as null."""
    one = {key: value for key, value in given.items() if key != "masks"}
    one = one if "function" in one else {"type": "function", "function": one}
    inner = one["function"]
    if not isinstance(inner, dict) or not names_function(inner.get("name")):
        raise ValueError("must name functions in one line, without quotes or \\")
    try:
        text = json.dumps(_without_nulls(one), ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, RecursionError):
        text = ""
    if said_places(text) is None or RESERVED.search(text):
        raise ValueError(
            "must be of JSON that nests less than 200 levels, without half a pair of "
            "surrogates and U+FDD0 to U+FDEF, which are no characters"
        )
    if not _are_masks(given.get("masks") or [], text):
        raise ValueError(f"must have masks where they hold {MASK}, got other places")
    return text


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    return [_without_nulls(v) for v in value] if isinstance(value, list) else value


def _unread(message: Mapping[str, object]) -> Iterator[str]:
    """Name the keys of a message that hold something and are not read."""
    spelling = {"role", "content"}
    if message.get("role") is None and message.get("content") is None:
        spelling = {"from", "value"}
    for key, value in message.items():
        is_empty = value is None or value in ("", [], {})
        if not is_empty and key not in {*spelling, "weight", "masks", "tool_calls"}:
            yield key if key in _NAMED_KEYS else OTHER_KEYS


def _message_faults(message: Mapping[str, object]) -> list[_Fault]:
    """Find what is wrong with one message."""
    role, content = _role_and_content(message)
    faults = []
    if not isinstance(role, str) or role not in ALIASES:
        faults.append(
            (
                f"every role must be one of {', '.join(ALIASES)}, got another.",
                "Rename roles, or leave such messages out.",
            )
        )
    extra = [key for key in _NOT_RENDERED if message.get(key)]
    if extra:
        faults.append(
            (
                f"no message may have {', '.join(extra)}, which would not be learnt.",
                "Write what is to be learnt into content or tool_calls, or drop it.",
            )
        )
    calls: list[tuple[str, object]] = []
    try:
        calls = _calls(message)
    except ValueError as error:
        faults.append((f"tool_calls {error}.", "Correct them, or leave them out."))
    if message.get("tool_calls") and ALIASES.get(str(role)) != "assistant":
        faults.append(
            ("tool_calls must be of the assistant, got another role.", "Correct it.")
        )
    if not isinstance(content, str):
        faults.append(
            (
                f"every content must be a string, got {_kind(content)}.",
                "Write it as one string, or leave the message out.",
            )
        )
    if any(RESERVED.search(one) for one in (str(content), *(c for c, _ in calls))):
        faults.append(
            (
                "no content may hold U+FDD0 to U+FDEF, which are no characters.",
                "Check encoding, or remove them.",
            )
        )
    weight = message.get("weight")
    if weight is not None and weight not in (0, 1):
        faults.append(("weight must be 0 or 1, got another value.", "Correct it."))
    if not all(
        _are_masks(masks or [], text)
        for text, masks in ((str(content), message.get("masks")), *calls)
    ):
        faults.append(
            (
                f"masks must be where the content holds {MASK}, got other places.",
                "Leave masks out: what was typed is text.",
            )
        )
    return faults


def _are_masks(masks: object, text: str) -> bool:
    """Tell whether masks of redaction stand where it is said."""
    return isinstance(masks, list) and all(
        type(start) is int and start >= 0 and text.startswith(MASK, start)
        for start in masks
    )


def _turns(message: Mapping[str, object], learnt: Collection[str]) -> Iterator[Turn]:
    """Read one message without faults: what it says, and each call that it makes."""
    name, content = _role_and_content(message)
    role = ALIASES[str(name)]
    is_learnt = role in learnt and message.get("weight") != 0
    is_blank = not str(content).strip()  # nothing to learn
    yield Turn(
        role=role,
        content=str(content),
        trained=is_learnt and not is_blank,
        masks=_places(message.get("masks")),
    )
    for call, masks in _calls(message):
        yield Turn(role=CALL, content=call, trained=is_learnt, masks=_places(masks))


def _places(masks: object) -> tuple[int, ...]:
    return tuple(masks) if isinstance(masks, list) else ()
