r"""A conversation as one text, so that it travels as every other record does.

```
U+FDD0 user U+FDD2 What is my code? U+FDD1 assistant U+FDD2 It is 417302.
```

Every turn is a mark, its role, a mark, and its content as it was written: `U+FDD1`
opens turns that are trained on, `U+FDD0` the others. Unicode keeps `U+FDD0` to `U+FDEF`
for use inside of programs: contents and plain texts that hold one are refused, so that
nobody can spell a mark, and no text becomes a conversation when what stands before a
mark is deleted. Spans, redaction, canaries, fingerprints and copies are those of any
text; the tokens are made turn by turn, by `dptune.models.chat`.

A call of a tool is a turn of its own behind the one in which the assistant makes it:

```
U+FDD0 assistant U+FDD2  U+FDD1 call U+FDD2 {"name": "orders", "arguments": {"id": 7}}
```

Functions that may be called are declared before all else, each in a turn of `tools`.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, Self, SupportsIndex, get_args, overload

from dptune.declarations import said_places
from dptune.jsons import parse_json
from dptune.text import MASK, Span

Role = Literal["system", "user", "assistant", "tool"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
CALL: Final = "call"
"""Who says a call of a tool: the assistant, in a form of its own."""
TOOLS: Final = "tools"
"""Who declares a function: the system, in a form of its own."""
RESERVED: Final = re.compile("[\ufdd0-\ufdef]")
"""What no content may hold."""

_READ, _LEARNT, _SAYS = "\ufdd0", "\ufdd1", "\ufdd2"
AS_TYPED: Final = "\ufdd3"
"""Stands for nothing in a content, and keeps what is around it from being a mask."""

_HEADER = re.compile(f"[{_READ}{_LEARNT}]([a-z]+){_SAYS}")
_DECLARED = re.compile(f"{_READ}{TOOLS}{_SAYS}[^{_READ}{_LEARNT}]*")
_TYPED_MASK = MASK[:1] + AS_TYPED + MASK[1:]


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """What somebody says in a conversation.

    Args:
        role: of `ROLES`, `CALL` or `TOOLS`.
        content: hidden from `repr`.
        trained: whether its content, and the token that ends it, are learnt.
        start: code point of the conversation's text at which the content begins.
        masks: code points of the content at which masks of redaction stand, for
            `join_turns`; others were typed.
    """

    role: str
    content: str = field(repr=False)
    trained: bool = False
    start: int = 0
    masks: tuple[int, ...] = ()

    @property
    def speaker(self) -> str:
        """Whose turn it is, of `ROLES`."""
        return {CALL: "assistant", TOOLS: "system"}.get(self.role, self.role)

    def said(self) -> tuple[str, tuple[int, ...]]:
        """Return the content as it was typed, and the code point each comes from."""
        places = tuple(
            i for i, c in enumerate(self.content, self.start) if c != AS_TYPED
        )
        return self.content.replace(AS_TYPED, ""), places


def join_turns(turns: Iterable[Turn]) -> str:
    """Write a conversation as one text; a mask that somebody typed is no mask.

    >>> text = join_turns([Turn(role="user", content="Hi <mask>")])
    >>> turns_of(text)[0].said()[0], "<mask>" in text
    ('Hi <mask>', False)
    """
    return "".join(
        f"{_LEARNT if turn.trained else _READ}{turn.role}{_SAYS}" + _written(turn)
        for turn in turns
    )


def _written(turn: Turn) -> str:
    """Return a content whose typed masks are told from those of redaction."""

    def written(mask: re.Match[str]) -> str:
        return MASK if mask.start() in turn.masks else _TYPED_MASK

    return re.sub(MASK, written, turn.content)


def is_conversation(text: str) -> bool:
    """Tell a conversation from plain text."""
    return _HEADER.match(text) is not None


def turns_of(text: str) -> tuple[Turn, ...]:
    """Return the turns of a conversation; of plain text none."""
    if not is_conversation(text):
        return ()
    headers = list(_HEADER.finditer(text))
    ends = [*(h.start() for h in headers[1:]), len(text)]
    return tuple(
        Turn(
            role=header.group(1),
            content=text[header.end() : end],
            trained=header.group().startswith(_LEARNT),
            start=header.end(),
        )
        for header, end in zip(headers, ends, strict=True)
    )


def without_training(text: str) -> str:
    """Return what a record is known by: which turns are learnt is no part of it."""
    return text.replace(_LEARNT, _READ) if is_conversation(text) else text


def without_empty_targets(text: str) -> str:
    """Return a text in which no blank turn is learnt, as none is that was read so.

    Redaction may leave such turns: nothing of them is left to learn but their end.
    """
    for turn in turns_of(text):
        if turn.trained and not turn.said()[0].strip():
            mark = turn.start - len(turn.role) - 2
            text = f"{text[:mark]}{_READ}{text[mark + 1 :]}"
    return text


def contents_only(text: str) -> str:
    r"""Return a text of the same length without roles and marks; plain text as it is.

    Line ends stand in their place, so that what looks for words, names or languages
    sees contents alone, at their own code points.

    >>> contents_only(join_turns([Turn(role="user", content="Hi")])).strip()
    'Hi'
    """
    if not is_conversation(text):
        return text
    return _HEADER.sub(lambda header: "\n" * len(header.group()), text)


def said_in_turns(text: str) -> str:
    """Return contents alone, for what tells languages and near duplicates.

    Functions that are declared are left out: many conversations declare the same.
    """
    return contents_only(_DECLARED.sub("", text) if is_conversation(text) else text)


def within_contents(spans: Iterable[Span], text: str) -> tuple[Span, ...]:
    """Cut spans of a conversation at its marks, so that roles stay; sorted.

    So do names, keys and bounds in declarations of functions. Pieces without anything
    but blanks go. Spans of plain text stay as they are.
    """
    turns = turns_of(text)
    if not turns:
        return tuple(spans)
    places = [place for turn in turns for place in _said_places(turn)]
    ends = [end for _, end in places]
    return tuple(
        piece
        for span in sorted(spans)
        for piece in _pieces(span, places, ends)
        if not text[piece.start : piece.end].isspace()
    )


def learnt_spans(spans: Iterable[Span], text: str) -> tuple[Span, ...]:
    """Leave out spans of turns that are not learnt; those of plain text all stay."""
    turns = turns_of(text)
    if not turns:
        return tuple(spans)
    starts = [turn.start for turn in turns]
    return tuple(s for s in spans if turns[bisect_right(starts, s.start) - 1].trained)


def _said_places(turn: Turn) -> Iterator[tuple[int, int]]:
    """Yield in order where a turn says what may be somebody's."""
    places = said_places(turn.content) if turn.role == TOOLS else None
    for start, end in ((0, len(turn.content)),) if places is None else places:
        yield turn.start + start, turn.start + end


def _pieces(
    span: Span, places: Sequence[tuple[int, int]], ends: Sequence[int]
) -> Iterator[Span]:
    """Yield what of a span lies in places, which end at `ends`."""
    for low, high in places[bisect_right(ends, span.start) :]:
        if low >= span.end:
            return
        start, end = max(span.start, low), min(span.end, high)
        if start < end:
            yield replace(span, start=start, end=end)


def messages_of(text: str, *, learnt: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return a conversation as `dptune.data.messages` reads it; of plain text nothing.

    Args:
        text: as `join_turns` writes it.
        learnt: roles whose turns are learnt, unless a message has `weight: 0`.

    Returns:
        Roles and contents; `weight: 0` where a turn of `learnt` is not; `masks`, the
        code points of the content at which masks of redaction stand, if any do, or of
        the JSON of a call. Calls are `tool_calls` of the message that makes them, or
        text of it where they could not be read back as they are.
    """
    found: list[dict[str, Any]] = []
    for turn in turns_of(text):
        if turn.role == TOOLS:
            continue
        content, masks = _with_masks(turn)
        is_call = turn.role == CALL and bool(found) and found[-1]["role"] == "assistant"
        again = _call_again(content, masks) if is_call else None
        if again is not None:
            found[-1].setdefault("tool_calls", []).append(again)
        else:
            if is_call:
                said = found[-1]["content"]
                content = f"{said}\n{content}" if said.strip() else content
                moved = len(content) - len(turn.said()[0])
                masks = [*found[-1].get("masks", ()), *(at + moved for at in masks)]
            else:
                found.append({"role": turn.speaker})
            found[-1] |= {"content": content} | ({"masks": masks} if masks else {})
        if turn.speaker in learnt and not turn.trained and content.strip():
            found[-1]["weight"] = 0
    return found


def tools_of(text: str) -> list[dict[str, Any]]:
    """Return the functions that a conversation declares, as they are read.

    Returns:
        Declarations, with `masks` as calls have them.
    """
    return [
        declared | (_masks_again(declared, *_with_masks(turn)) or {})
        for turn in turns_of(text)
        if turn.role == TOOLS
        for declared in [parse_json(turn.said()[0])]
    ]


def _with_masks(turn: Turn) -> tuple[str, list[int]]:
    """Return what a turn says, and where masks of redaction stand in it."""
    content, places = turn.said()
    starts = [turn.start + m.start() for m in re.finditer(MASK, turn.content)]
    return content, [bisect_left(places, start) for start in starts]


def _call_again(content: str, masks: Sequence[int]) -> dict[str, Any] | None:
    """Write a call for whoever reads it; None if it would not be read."""
    call = call_of(content)
    moved = None if call is None else _masks_again(call, content, masks)
    return None if moved is None else {"type": "function", "function": call} | moved


def _masks_again(
    value: Mapping[str, Any], content: str, masks: Sequence[int]
) -> dict[str, list[int]] | None:
    """Say where masks stand in the JSON of a value; None if that is not to be told.

    Numbers may be spelt otherwise when they are read (`1.50`), and move masks.
    """
    spelt = json.dumps(value, ensure_ascii=False)
    before, behind = (
        [m.start() for m in re.finditer(MASK, t)] for t in (content, spelt)
    )
    if len(before) != len(behind):
        return None
    moved = [behind[before.index(at)] for at in masks]
    return {"masks": moved} if moved else {}


def names_function(name: object) -> bool:
    """Tell whether JSON and templates write a name alike, redacted ones too."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and name == name.strip() != ""
        and not {'"', "\\"} & set(name)
    )


def call_of(content: str) -> dict[str, Any] | None:
    """Read what a turn of `CALL` says; None where that is no call any more.

    Masks may have made one key of two, of which a reader would keep the last alone.

    >>> call_of('{"name": "orders", "arguments": {"id": 7}}')
    {'name': 'orders', 'arguments': {'id': 7}}
    """
    try:
        call = parse_json(content)
    except ValueError:
        return None
    is_call = isinstance(call, dict) and list(call) == ["name", "arguments"]
    is_call = is_call and names_function(call["name"])
    return call if is_call and isinstance(call["arguments"], dict) else None


def num_said(text: str) -> int:
    """Count the code points of a text, of a conversation those of its contents."""
    turns = turns_of(text)
    return sum(len(turn.content) for turn in turns) if turns else len(text)


class ScoredTokens(list[int]):
    """Tokens of a record of which some only have a loss, as in training.

    Args:
        tokens: ids.
        scored: whether each has a loss; the first never does.
    """

    def __init__(self, tokens: Iterable[int], scored: Iterable[bool]) -> None:
        super().__init__(tokens)
        self.scored = list(scored)

    @overload
    def __getitem__(self, place: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> Self: ...
    def __getitem__(self, place: SupportsIndex | slice) -> int | Self:
        """Return one token, or a cut that still knows what is scored."""
        if isinstance(place, slice):
            return type(self)(super().__getitem__(place), self.scored[place])
        return super().__getitem__(place)


def scored(tokens: Sequence[int]) -> list[bool]:
    """Tell which tokens of a sequence have a loss: of plain text all but the first."""
    if isinstance(tokens, ScoredTokens):
        return tokens.scored
    return [place > 0 for place in range(len(tokens))]
