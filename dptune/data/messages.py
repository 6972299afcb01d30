"""Conversations as sources give them, checked and written as one text each."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dptune.conversation import RESERVED, ROLES, Turn, join_turns
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
    *("tool_calls", "function_call", "functions", "tools", "documents"),
    *("reasoning", "reasoning_content", "reasoning_details", "thinking", "thought"),
    *("refusal", "text", "parts", "image", "images", "audio", "video", "videos"),
)
"""What a message says beside its content: refused, or it would be lost."""

_NAMED_KEYS: Final = (
    *("from", "value", "name", "id", "tool_call_id", "message_id", "timestamp"),
    *("created_at", "date", "language", "model", "metadata", "score", "label"),
)
"""Keys that messages may name; any other might be somebody's text."""

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


def read_conversation(*given: object, learnt: Collection[str]) -> ReadConversation:
    """Read a list of messages, or a prompt and a completion.

    A message is a mapping of `role` and `content`, or of `from` and `value`. Its key
    `weight` may be 0, which keeps a turn from being learnt, or 1; a blank one is never
    learnt. `masks` are the code points of the content at which redaction wrote a mask:
    others were typed, and are text. Nothing else reaches the model, so that nothing
    does that detection has not read: keys that say something are refused, the rest is
    counted.

    >>> from dptune.conversation import turns_of
    >>> hello = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    >>> text = read_conversation(hello, learnt=["assistant"]).text
    >>> [(turn.role, turn.trained) for turn in turns_of(text)]
    [('user', False), ('assistant', True)]

    Args:
        given: messages, or JSON of them; or what a user asks and the assistant says.
        learnt: roles whose turns have a loss.

    Returns:
        The text, or every fault.
    """
    messages = _messages(given)
    if isinstance(messages, ReadConversation):
        return messages
    faults = dict.fromkeys(f for message in messages for f in _message_faults(message))
    if not faults:
        turns = [_turn(message, learnt) for message in messages]
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
    return first


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
    return role, content


def _unread(message: Mapping[str, object]) -> Iterator[str]:
    """Name the keys of a message that hold something and are not read."""
    spelling = {"role", "content"}
    if message.get("role") is None and message.get("content") is None:
        spelling = {"from", "value"}
    for key, value in message.items():
        is_empty = value is None or value in ("", [], {})
        if not is_empty and key not in {*spelling, "weight", "masks"}:
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
                "Write calls into content as the model's template would, or drop it.",
            )
        )
    if not isinstance(content, str):
        faults.append(
            (
                f"every content must be a string, got {_kind(content)}.",
                "Write parts and calls as one string, or leave the message out.",
            )
        )
    elif RESERVED.search(content):
        faults.append(
            (
                "no content may hold U+FDD0 to U+FDEF, which are no characters.",
                "Check encoding, or remove them.",
            )
        )
    weight = message.get("weight")
    if weight is not None and weight not in (0, 1):
        faults.append(("weight must be 0 or 1, got another value.", "Correct it."))
    masks = message.get("masks") or []
    if not isinstance(masks, list) or not all(
        type(start) is int and start >= 0 and str(content).startswith(MASK, start)
        for start in masks
    ):
        faults.append(
            (
                f"masks must be where the content holds {MASK}, got other places.",
                "Leave masks out: what was typed is text.",
            )
        )
    return faults


def _turn(message: Mapping[str, object], learnt: Collection[str]) -> Turn:
    """Read one message without faults."""
    name, content = _role_and_content(message)
    role = ALIASES[str(name)]
    is_learnt = role in learnt and message.get("weight") != 0
    is_blank = not str(content).strip()  # nothing to learn
    masks = message.get("masks")
    return Turn(
        role=role,
        content=str(content),
        trained=is_learnt and not is_blank,
        masks=tuple(masks) if isinstance(masks, list) else (),
    )
