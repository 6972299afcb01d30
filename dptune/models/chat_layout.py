"""Where contents are in what a chat template writes, code point by code point."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dptune.conversation import CALL, TOOLS, Turn
from dptune.json_places import signs_of

_Ints = NDArray[np.int32]
_Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A conversation as its template writes it, special tokens under other names.

    Args:
        text: for the tokenizer of `ChatFormat.renamed`.
        plain: as the template writes it, for the tokenizer as it is; None where a
            content spells a special token, which is text here, or holds a mask.
        places: code point of the conversation's text that each comes from, -1 for what
            the template wrote.
        learnt: which code points have a loss.
        owners: number of the turn that each is of, as its content or its end, -1 for
            the rest of what the template wrote.
    """

    text: str = field(repr=False)
    plain: str | None = field(repr=False)
    places: _Ints = field(repr=False)  # (len(text),)
    learnt: _Bools = field(repr=False)  # (len(text),)
    owners: _Ints = field(repr=False)  # (len(text),)


class Canvas:
    """A rendering that grows; `owner` is the turn that is being written."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._places: list[_Ints] = []
        self._learnt: list[_Bools] = []
        self._owners: list[_Ints] = []
        self.owner = -1

    def _put(self, text: str, places: _Ints, learnt: _Bools, num_own: int) -> None:
        self._texts.append(text)
        self._places.append(places)
        self._learnt.append(learnt)
        owners = np.where(np.arange(len(text)) < num_own, self.owner, -1)
        self._owners.append(owners.astype(np.int32))

    def add(self, literal: str, *, num_own: int = 0, is_learnt: bool = False) -> None:
        """Add what the template wrote, whose beginning may end a turn."""
        learnt = np.arange(len(literal)) < num_own * is_learnt
        self._put(literal, np.full(len(literal), -1, np.int32), learnt, num_own)

    def learn_last(self, count: int) -> None:
        """Learn the end of what was added last."""
        if count:
            self._learnt[-1][-count:] = True

    def copy(self, turn: Turn, start: int, end: int, *, spelt: "Spelling") -> None:
        """Add a part of a content."""
        part = Turn(
            role=turn.role, content=turn.content[start:end], start=turn.start + start
        )
        text, said = part.said()
        places = np.asarray(said, np.int32)
        if spelt == "read":
            text, signs = signs_of(f'"{text}"', -1)
            places = places[signs[:-1]]
        elif spelt == "python":
            text = _PYTHON[text]
        elif spelt == "escaped":
            written = list(map(_escaped, text))
            text, places = "".join(written), np.repeat(places, list(map(len, written)))
        self._put(text, places, np.full(len(text), turn.trained), len(text))

    def mark(self, name: str, start: int, end: int, learnt: bool) -> None:  # noqa: FBT001
        """Add a token that stands for code points of a content."""
        places = np.full(len(name), start, np.int32)
        places[-1] = end - 1
        self._put(name, places, np.full(len(name), learnt), len(name))

    def rendered(self, *, plain: str | None) -> Rendered:
        """Return the whole."""
        return Rendered(
            plain=plain,
            text="".join(self._texts),
            places=np.concatenate(self._places),
            learnt=np.concatenate(self._learnt),
            owners=np.concatenate(self._owners),
        )


Spelling = Literal["typed", "escaped", "read", "python"]
"""As it is, as strings of JSON have it, what one says, or a word as Python has it."""
_PYTHON: Final = {"true": "True", "false": "False", "null": "None"}


class Kept(NamedTuple):
    """What a template writes of a content: a range, and how."""

    first: int
    last: int
    spelt: Spelling = "typed"

    def of(self, content: str) -> str:
        """Return it."""
        said = content[self.first : self.last]
        if self.spelt == "read":
            return signs_of(f'"{said}"', 0)[0]
        if self.spelt == "python":
            return _PYTHON.get(said, said)
        return _escaped(said) if self.spelt == "escaped" else said


_ELSE: Final[dict[str, tuple[Spelling, ...]]] = {
    "tool": ("escaped",),
    TOOLS: ("read",),
    CALL: ("read", "python"),
}


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def kept_contents(
    real: str, literals: Sequence[str], said: Sequence[tuple[str, str]]
) -> list[Kept] | None:
    """Find contents in a rendering, blanks around them stripped where it strips them.

    Args:
        real: the rendering.
        literals: what the template writes around contents.
        said: roles and contents, in its order. Results of tools may be escaped, and
            escapes of what declares or calls them read.

    Returns:
        What was written of each content; None if the rendering is not made of the
        literals and contents in turn.
    """
    if not real.startswith(literals[0]):
        return None
    position, found = len(literals[0]), list[Kept]()
    pairs = zip(said, literals[1:], strict=True)
    for number, ((role, content), literal) in enumerate(pairs):
        other = [Kept(0, len(content), spelt) for spelt in _ELSE.get(role, ())]
        is_last = number == len(said) - 1
        for kept in (*_cuts(content), *other):
            piece = kept.of(content) + literal
            whole = not is_last or position + len(piece) == len(real)
            if whole and real.startswith(piece, position):
                found.append(kept)
                position += len(piece)
                break
        else:
            return None
    return found


def _cuts(content: str) -> list[Kept]:
    """The content as it is, and without blanks at one end or both."""
    first = len(content) - len(content.lstrip())
    last = len(content.rstrip())
    if not content.strip():
        return [Kept(0, len(content)), Kept(0, 0)]
    ends = (0, len(content)), (first, last), (first, len(content)), (0, last)
    return [Kept(*each) for each in ends]


def behind_prompt(
    written: str, prompt: str, *, marker: re.Match[str] | None
) -> str | None:
    """Return what is written behind a prompt; None if it is not written.

    A prompt that opens a thought is written in part where there is none.

    Args:
        written: by the template, before what the assistant says.
        prompt: what it writes to make the assistant answer.
        marker: that the prompt begins with, if it does.
    """
    if prompt and prompt in written:
        return written[written.rindex(prompt) + len(prompt) :]
    if marker is None or (found := written.rfind(marker.group())) < 0:
        return None
    return written[found + num_alike(written[found:], prompt) :]


def num_alike(one: str, other: str) -> int:
    """Count the code points with which two texts begin alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def touched(offsets: NDArray[np.int64], marks: _Bools) -> _Bools:
    """Tell the tokens that cover a marked code point, or stand before one if empty."""
    before = np.concatenate(([0], np.cumsum(marks)))
    ends = np.maximum(offsets[:, 1], np.minimum(offsets[:, 0] + 1, len(marks)))
    return np.asarray(before[ends] > before[offsets[:, 0]])


def reached(
    offsets: NDArray[np.int64], own: _Bools, values: _Ints, *, none: int
) -> tuple[_Ints, _Ints]:
    """Values at the first and at the last code point of each token that is `own`.

    Args:
        offsets: code points that each token covers, `(tokens, 2)`.
        own: which code points count.
        values: of code points.
        none: for tokens that cover none that counts.
    """
    at, size = np.arange(len(own)), len(own)
    following = np.minimum.accumulate(np.where(own, at, size)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(own, at, -1))
    low = np.append(following, size)[offsets[:, 0]]
    high = np.append(-1, before)[offsets[:, 1]]
    inside = (low < offsets[:, 1]) & (high >= offsets[:, 0])
    padded = np.append(values, none)
    first, last = (np.where(inside, padded[place], none) for place in (low, high))
    return first.astype(np.int32), last.astype(np.int32)
