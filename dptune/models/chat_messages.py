"""Messages as chat templates take them, and the parts of turns that they say."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dptune.conversation import AS_TYPED, CALL, TOOLS, Turn, call_of
from dptune.declarations import said_places
from dptune.errors import ModelError

Shape = tuple[tuple[str, int, int], ...]
"""Role, number of texts and number of calls of each message."""

HOLE: Final = "\ufdd6"
_KEY: Final = "\ufdd7"
_DIGITS: Final = "8130955217704"
"""Begins numbers that stand for others, of a length that nobody writes by chance."""

HOLES: Final = re.compile(f"{HOLE}([0-9]+){HOLE}")
_NUMBER: Final = re.compile(f"{_DIGITS}([0-9]{{6}})")
_OBJECT: Final = re.compile(rf'\{{\s*"{_KEY}([0-9]+){_KEY}"\s*:\s*0\s*\}}')
_CALL: Final = re.compile(
    r'\{"name": "((?:[^"\\]|\\.)*)", "arguments": (\{.*\})\}', re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Message:
    """What one message of a conversation says.

    Args:
        role: as templates know it.
        owner: number of its first turn.
        texts: parts of turns, written as its content.
        calls: names of functions and their arguments, which are objects of JSON.
    """

    role: str
    owner: int
    texts: list[Turn] = field(default_factory=list)
    calls: list[tuple[Turn, Turn]] = field(default_factory=list)

    @property
    def parts(self) -> list[Turn]:
        """All that it says, in the order in which templates write it."""
        return [*self.texts, *(part for call in self.calls for part in call)]

    @property
    def learnt(self) -> bool:
        """Whether something of it is."""
        return any(part.trained for part in self.parts)

    @property
    def answers(self) -> bool:
        """Whether it is an answer of the model that is learnt."""
        return self.learnt and self.role == "assistant"


def messages_to_write(turns: Sequence[Turn]) -> list[Message]:
    """Put calls to the messages that make them; blank text beside other parts goes.

    A call that redaction made something else of is text of its message. Functions that
    are declared come first, as a message that is nobody's.
    """
    found: list[Message] = []
    if turns and turns[0].role == TOOLS:
        said = [part for turn in turns if turn.role == TOOLS for part in _said(turn)]
        found.append(Message(role=TOOLS, owner=-1, texts=said))
    for number, turn in enumerate(turns):
        if turn.role == TOOLS:
            continue
        is_call = turn.role == CALL
        if not is_call or not found or found[-1].role != turn.speaker:
            found.append(Message(role=turn.speaker, owner=number))
        call = _CALL.fullmatch(turn.content) if is_call else None
        if call and call_of(turn.said()[0]):
            found[-1].calls.append((_part(turn, call, 1), _part(turn, call, 2)))
        else:
            found[-1].texts.append(turn)
    for message in found:
        if len(message.parts) > 1 and message.role != TOOLS:
            message.texts[:] = [t for t in message.texts if t.said()[0].strip()]
    return found


def _said_in(content: str) -> list[tuple[int, int]]:
    """Return where a declaration says something; what was deleted says nothing."""
    places = said_places(content) or ()
    return [(s, e) for s, e in places if content[s:e].replace(AS_TYPED, "")]


def _said(turn: Turn) -> Iterator[Turn]:
    """Cut out of a declaration what it says."""
    for start, end in _said_in(turn.content):
        yield replace(turn, content=turn.content[start:end], start=turn.start + start)


def declared_in(turns: Sequence[Turn]) -> str:
    """Write the functions that are declared as one list, with holes where they say.

    Texts are holes within their quotes, and numbers are others.
    """
    found, number = list[str](), 0
    for turn in turns:
        if turn.role != TOOLS:
            continue
        text, position = "", 0
        for start, end in _said_in(turn.content):
            is_text = turn.content[start - 1] == '"'
            hole = f"{HOLE}{number}{HOLE}" if is_text else f"{_DIGITS}{number:06d}"
            text += turn.content[position:start] + hole
            position, number = end, number + 1
        found.append((text + turn.content[position:]).replace(AS_TYPED, ""))
    return f"[{', '.join(found)}]" if found else ""


def fill_declared(tools: str, said: Sequence[str]) -> str:
    """Write into what `declared_in` returns what is said.

    A number that JSON would spell otherwise is written as it is by `fill_objects`.
    """

    def number(hole: re.Match[str]) -> str:
        one = said[int(hole[1])]
        return one if json.dumps(json.loads(one)) == one else hole[0]

    return _NUMBER.sub(number, HOLES.sub(lambda hole: said[int(hole[1])], tools))


def check_declared(
    tools: str, written: str, without: str, special: re.Pattern[str]
) -> None:
    """Refuse declared functions that a template does not name, or that spell markers.

    Args:
        tools: as `declared_in` writes them.
        written: a conversation with them.
        without: the same without them.
        special: finds special tokens.

    Raises:
        ModelError: it does not, or they do.
    """
    names = [one["function"]["name"] for one in json.loads(tools)]
    if any(written.count(name) <= without.count(name) for name in names):
        raise ModelError(
            "the chat template must write the functions that tools declare, but does "
            "not. Leave tools_column out, write them into a system turn, or choose "
            "another model."
        )
    if special.search(HOLES.sub("", tools)):
        raise ModelError(
            "tools must not name functions and parameters as special tokens of the "
            "tokenizer. Rename them, or leave tools_column out."
        )


def _part(turn: Turn, call: re.Match[str], group: int) -> Turn:
    """Cut the name or the arguments out of a call."""
    start, end = call.span(group)
    return replace(turn, content=turn.content[start:end], start=turn.start + start)


def shape_of(messages: Sequence[Message]) -> Shape:
    """Tell what a template writes around contents of messages, whatever they say."""
    return tuple((m.role, len(m.texts), len(m.calls)) for m in messages)


def given_messages(
    shape: Shape,
    text: Callable[[int], str],
    arguments: Callable[[int], dict[str, Any]],
) -> list[dict[str, Any]]:
    """Make the messages that a template is given.

    Args:
        shape: of the messages.
        text: returns the part of a number that is text.
        arguments: returns the part of a number that is an object.
    """
    found, number, calls, answered = [], 0, 0, 0
    for role, num_texts, num_calls in shape:
        if role == TOOLS:
            number += num_texts
            continue
        texts = [text(number + i) for i in range(num_texts)]
        number += num_texts
        message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if role == "tool":  # of a call that redaction made text of, too
            message["tool_call_id"] = _id(min(answered, max(calls - 1, 0)))
            answered += 1
        answered = calls if num_calls else answered
        for _ in range(num_calls):
            call = {"name": text(number), "arguments": arguments(number + 1)}
            one = {"type": "function", "id": _id(calls), "function": call}
            message.setdefault("tool_calls", []).append(one)
            number, calls = number + 2, calls + 1
        found.append(message)
    return found


def _id(number: int) -> str:
    """Name a call as some templates want it, nine letters and digits."""
    return f"call{number:05d}"


def object_hole(number: int) -> dict[str, Any]:
    """Return arguments that stand for those of a number."""
    return {f"{_KEY}{number}{_KEY}": 0}


def object_of(part: Turn) -> dict[str, Any] | None:
    """Read arguments that a template writes as they are; None of others."""
    said = part.said()[0]
    made: dict[str, Any] = json.loads(said)
    return made if json.dumps(made, ensure_ascii=False) == said else None


def fill_objects(rendered: str, write: Callable[[int], str]) -> str | None:
    """Write arguments and numbers in their places; None if one is written otherwise."""
    filled = _OBJECT.sub(lambda hole: write(int(hole[1])), rendered)
    filled = _NUMBER.sub(lambda hole: write(int(hole[1])), filled)
    return None if _KEY in filled else filled
