"""Messages as chat templates take them, and the parts of turns that they say."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from dptune.conversation import AS_TYPED, CALL, TOOLS, Turn, call_of
from dptune.declarations import said_places
from dptune.errors import ModelError
from dptune.json_places import json_in

Form = Literal["object", "text", "one by one"]
"""How a template writes arguments: an object of JSON, JSON that is text, or each."""

Arguments = Literal["object", "text"] | tuple[str, ...]
"""Arguments of a call: the whole, or the kind of each value of those one by one."""

Shape = tuple[tuple[str, int, tuple[Arguments, ...]], ...]
"""Role, number of texts and calls of each message."""

HOLE: Final = "\ufdd6"
_KEY: Final = "\ufdd7"
_DIGITS: Final = "8130955217704"
"""Begins numbers that stand for others, of a length that nobody writes by chance."""

HOLES: Final = re.compile(f"{HOLE}([0-9]+){HOLE}")
_NUMBER: Final = re.compile(f"{_DIGITS}([0-9]{{6}})")
_OBJECT: Final = re.compile(
    rf'\{{\s*"{_KEY}([0-9]+){_KEY}"\s*:\s*0\s*\}}|\[\s*"{_KEY}([0-9]+){_KEY}"\s*\]'
)
_CALL: Final = re.compile(
    r'\{"name": "((?:[^"\\]|\\.)*)", "arguments": (\{.*\})\}', re.DOTALL
)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call of a tool, as a message makes it.

    Args:
        parts: its name; and its arguments, or their names and values in turn.
        arguments: what those are.
    """

    parts: list[Turn] = field(repr=False)
    arguments: Arguments


@dataclass(frozen=True, kw_only=True)
class Message:
    """What one message of a conversation says.

    Args:
        role: as templates know it.
        owner: number of its first turn.
        texts: parts of turns, written as its content.
        calls: of tools.
    """

    role: str
    owner: int
    texts: list[Turn] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    @property
    def parts(self) -> list[Turn]:
        """All that it says, in the order in which templates write it."""
        return [*self.texts, *(part for call in self.calls for part in call.parts)]

    @property
    def learnt(self) -> bool:
        """Whether something of it is."""
        return any(part.trained for part in self.parts)

    @property
    def answers(self) -> bool:
        """Whether it is an answer of the model that is learnt."""
        return self.learnt and self.role == "assistant"


def messages_to_write(turns: Sequence[Turn], *, form: Form) -> list[Message]:
    """Put calls to the messages that make them; blank text beside other parts goes.

    A call that redaction made something else of is text of its message. Functions that
    are declared come first, as a message that is nobody's.

    Args:
        turns: of a conversation.
        form: in which the template writes arguments.
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
            name, given = (_part(turn, *call.span(group)) for group in (1, 2))
            found[-1].calls.append(_call(name, given, form))
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
            hole = text_hole(number) if is_text else f"{_DIGITS}{number:06d}"
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


def _part(turn: Turn, start: int, end: int) -> Turn:
    """Cut something out of a turn."""
    return replace(turn, content=turn.content[start:end], start=turn.start + start)


def _call(name: Turn, given: Turn, form: Form) -> Call:
    """Cut arguments into what the template writes; strings without their quotes."""
    if form != "one by one":
        return Call(parts=[name, given], arguments=form)
    (node,) = json_in(given.content)
    parts, kinds = [name], list[str]()
    for key, value in zip(node.keys, node.values, strict=True):
        is_text = value.kind == "string"
        parts.append(_part(given, key.start + 1, key.end - 1))
        parts.append(_part(given, value.start + is_text, value.end - is_text))
        kinds.append(value.kind)
    return Call(parts=parts, arguments=tuple(kinds))


def shape_of(messages: Sequence[Message]) -> Shape:
    """Tell what a template writes around contents of messages, whatever they say."""
    return tuple(
        (m.role, len(m.texts), tuple(call.arguments for call in m.calls))
        for m in messages
    )


def all_written(shape: Shape, order: Sequence[int], *, first: int) -> bool:
    """Tell whether every part is written, and but for names of functions once.

    Args:
        shape: of the messages.
        order: numbers of parts, as a template writes them.
        first: number of the first part that must be written.
    """
    is_name = list[bool]()
    for _, num_texts, calls in shape:
        is_name += [False] * num_texts
        for arguments in calls:
            num_values = 1 if isinstance(arguments, str) else 2 * len(arguments)
            is_name += [True] + [False] * num_values
    counts = Counter(order)
    return all(
        counts[number] == 1 or (counts[number] > 1 and is_name[number])
        for number in range(first, len(is_name))
    )


def placed_parts(
    parts: Sequence[tuple[Message, Turn]],
    order: Sequence[int],
    calling: Mapping[int, tuple[Sequence[str], Sequence[int]]],
) -> list[tuple[Message, Turn]]:
    """Return what is written in its order, and the message that each is of.

    Results of tools may repeat the name of the function that was called: it is nobody's
    there, and not learnt.

    Args:
        parts: of messages.
        order: in which a template writes them.
        calling: what is written up to each message with calls, by its owner: literals,
            and the order of parts.
    """
    found, seen = list[tuple[Message, Turn]](), Counter[int]()
    for number in order:
        message, part = parts[number]
        seen[number] += 1
        own = calling[message.owner][1].count(number) if message.calls else 1
        if seen[number] > own:
            message = Message(role="tool", owner=-1)
            part = replace(part, trained=False)
        found.append((message, part))
    return found


def given_messages(
    shape: Shape,
    text: Callable[[int], str],
    value: Callable[[int, str], Any],
) -> list[dict[str, Any]]:
    """Make the messages that a template is given.

    Args:
        shape: of the messages.
        text: returns the part of a number that is a text of a message, or a name.
        value: returns the part of a number that is a value of JSON, by its kind.
    """
    found, number, calls, answered = [], 0, 0, 0
    for role, num_texts, made in shape:
        if role == TOOLS:
            number += num_texts
            continue
        texts = [text(number + i) for i in range(num_texts)]
        number += num_texts
        message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        if role == "tool":  # of a call that redaction made text of, too
            message["tool_call_id"] = _id(min(answered, max(calls - 1, 0)))
            answered += 1
        answered = calls if made else answered
        for arguments in made:
            name, number = text(number), number + 1
            given: Any = None
            if arguments == "text":
                given, number = text(number), number + 1
            elif isinstance(arguments, str):
                given, number = value(number, arguments), number + 1
            else:
                places = range(number, number + 2 * len(arguments), 2)
                given = {
                    value(at, "string"): value(at + 1, kind)
                    for at, kind in zip(places, arguments, strict=True)
                }
                number = places.stop
            call = {"name": name, "arguments": given}
            one = {"type": "function", "id": _id(calls), "function": call}
            message.setdefault("tool_calls", []).append(one)
            calls += 1
        found.append(message)
    return found


def _id(number: int) -> str:
    """Name a call as some templates want it, nine letters and digits."""
    return f"call{number:05d}"


def text_hole(number: int) -> str:
    """Return a text that stands for that of a number."""
    return f"{HOLE}{number}{HOLE}"


def value_hole(number: int, kind: str) -> Any:  # noqa: ANN401 - of any kind
    """Return a value that stands for that of a number, of the same kind of JSON."""
    key = f"{_KEY}{number}{_KEY}"
    if kind == "string":
        return text_hole(number)
    if kind == "bare":
        return int(f"{_DIGITS}{number:06d}")
    return {key: 0} if kind == "object" else [key]


def value_of(part: Turn, number: int, kind: str) -> Any:  # noqa: ANN401 - of any kind
    """Read a value; what JSON would spell otherwise has its hole instead."""
    said = part.said()[0]
    if kind == "string":
        return json.loads(f'"{said}"')
    made = json.loads(said)
    is_alike = json.dumps(made, ensure_ascii=False) == said
    return made if is_alike else value_hole(number, kind)


def form_of_calls(apply: Callable[[list[dict[str, Any]]], str]) -> Form:
    """Tell how a template writes arguments; where it knows no calls it is all one.

    Args:
        apply: renders messages.
    """
    forms: tuple[Literal["object", "text"], ...] = ("object", "text")
    for form in forms:
        shape: Shape = (("user", 1, ()), ("assistant", 0, (form,)))
        try:
            written = apply(given_messages(shape, text_hole, value_hole))
        except ModelError:  # it takes arguments that are text, or no calls
            continue
        is_whole = _OBJECT.search(written) or _KEY not in written
        return form if is_whole else "one by one"
    return "object"


def fill_objects(rendered: str, write: Callable[[int], str]) -> str | None:
    """Write arguments and numbers in their places; None if one is written otherwise."""
    filled = _OBJECT.sub(lambda hole: write(int(hole[1] or hole[2])), rendered)
    filled = _NUMBER.sub(lambda hole: write(int(hole[1])), filled)
    return None if _KEY in filled else filled
