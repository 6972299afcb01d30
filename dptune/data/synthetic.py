"""Generate customer-service dialogues with exact gold spans of personal data.

The public half speaks of products, prices and policies and names nobody; the private
half holds people, addresses and numbers. Every value is invented.
"""

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dptune.data import synthetic_public as public
from dptune.data import synthetic_templates as templates
from dptune.data.source import SyntheticSource
from dptune.data.synthetic_values import (
    ENTITY_TYPES,
    FRESH_PERSONAL,
    KEPT_IN_TOPIC,
    PUBLIC,
    Draw,
    personal_values,
)
from dptune.errors import ConfigError
from dptune.text import Span

MIN_WORDS = 40
MAX_WORDS = 90
_LOWER_CASE_SHARE = 0.08
_DIALOGUES_PER_CUSTOMER = (1, 2, 1, 3, 1, 1, 4, 2)
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticRecord:
    """One dialogue.

    Args:
        id: stable for one seed and half, whatever the number of records.
        text: turns that start with `SYS: ` or `USR: `, one a line.
        unit_id: the invented customer; some own several dialogues.
        spans: exact places of all personal data, in order.
    """

    id: str
    text: str = field(repr=False)
    unit_id: str
    spans: tuple[Span, ...]


def generate_dialogues(
    *, num_records: int, private: bool, seed: int
) -> list[SyntheticRecord]:
    """Generate dialogues of 40 to 90 words.

    Record `i` depends on `seed`, `private` and `i` alone, so that more records extend
    fewer, in every process and Python version.

    Args:
        num_records: at least 1.
        private: dialogues with personal data, or the public half that has none.
        seed: at least 0.

    Returns:
        Records in order; entity types are `PERSON`, `EMAIL`, `PHONE`, `ADDRESS`,
        `ORDER_ID`, `ACCOUNT_ID` and `DATE`.

    Raises:
        ConfigError: an argument is out of range.
    """
    if num_records < 1 or seed < 0:
        raise ConfigError(
            "num_records must be at least 1 and seed at least 0, got "
            f"num_records={num_records}, seed={seed}."
        )
    make = _private_dialogue if private else _public_dialogue
    half = "private" if private else "public"
    records = []
    for number in range(num_records):
        draw = Draw(f"dptune/{seed}/{half}/{number}")
        customer = _customer_number(number) if private else number
        unit_id = f"synthetic-{seed}-{half}-unit-{customer:06d}"
        values = personal_values(unit_id) if private else {}
        text, spans = _fitting(make, draw, values)
        records.append(
            SyntheticRecord(
                id=f"synthetic-{seed}-{half}-{number:06d}",
                text=text,
                unit_id=unit_id,
                spans=spans,
            )
        )
    return records


def gold_spans(source: SyntheticSource) -> dict[str, tuple[Span, ...]]:
    """Return the exact spans of a synthetic source by record id.

    Args:
        source: the one that the corpus was built from.
    """
    dialogues = generate_dialogues(
        num_records=source.num_records, private=source.private, seed=source.seed
    )
    return {dialogue.id: dialogue.spans for dialogue in dialogues}


def _customer_number(number: int) -> int:
    """Give customers one to four consecutive dialogues."""
    cycle, rest = divmod(number, sum(_DIALOGUES_PER_CUSTOMER))
    customer = cycle * len(_DIALOGUES_PER_CUSTOMER)
    for size in _DIALOGUES_PER_CUSTOMER:
        if rest < size:
            break
        rest -= size
        customer += 1
    return customer


_Maker = Callable[[Draw, Mapping[str, str]], tuple[str, tuple[Span, ...]]]


class _Dialogue:
    """Text under construction, with the spans of what was filled in."""

    def __init__(self, draw: Draw, personal: Mapping[str, str]) -> None:
        self._draw = draw
        self._values = dict(personal)
        self._topic: dict[str, str] = {}
        self._parts: list[str] = []
        self._length = 0
        self._spans: list[Span] = []
        self.num_words = 0

    def change_topic(self) -> None:
        """Forget which product the last turns were about."""
        self._topic = {}

    def say(self, speaker: str, template: str) -> None:
        """Add a turn, filling the slots of its template."""
        self._append(f"{speaker}: " if not self._parts else f"\n{speaker}: ")
        is_lower = speaker == "USR" and self._draw.chance(_LOWER_CASE_SHARE)
        start = len(self._parts)
        for literal, slot in _compiled(template):
            self._append(literal.lower() if is_lower else literal)
            if slot:
                self._fill(slot, is_lower=is_lower)
        turn = "".join(self._parts[start:])
        self.num_words += len(turn.split()) + 1

    def result(self) -> tuple[str, tuple[Span, ...]]:
        """Return text and spans."""
        return "".join(self._parts), tuple(self._spans)

    def _fill(self, slot: str, *, is_lower: bool) -> None:
        """Append a value, and its span if it is personal."""
        if slot.islower():
            value = self._topic.get(slot) or PUBLIC[slot](self._draw)
            if slot in KEPT_IN_TOPIC:
                self._topic[slot] = value
            self._append(value)
            return
        value = self._values.get(slot) or FRESH_PERSONAL[slot](self._draw)
        if slot == "ORDER_ID":
            self._values[slot] = value
        start = self._length
        self._append(value.lower() if is_lower else value)
        self._spans.append(
            Span(
                start=start,
                end=self._length,
                entity_type=ENTITY_TYPES.get(slot, slot),
                recognizer="gold",
            )
        )

    def _append(self, part: str) -> None:
        """Append text."""
        self._parts.append(part)
        self._length += len(part)


@functools.cache
def _compiled(template: str) -> tuple[tuple[str, str], ...]:
    """Cut a template into pairs of literal and slot, the last slot empty."""
    pieces = [*_SLOT.split(template), ""]
    return tuple(zip(pieces[::2], pieces[1::2], strict=True))


def _fitting(
    make: _Maker, draw: Draw, personal: Mapping[str, str]
) -> tuple[str, tuple[Span, ...]]:
    """Write dialogues until one has a fitting length."""
    while True:
        text, spans = make(draw, personal)
        if MIN_WORDS <= len(text.split()) <= MAX_WORDS:
            return text, spans


def _private_dialogue(
    draw: Draw, personal: Mapping[str, str]
) -> tuple[str, tuple[Span, ...]]:
    """Write a dialogue in which a customer says who they are."""
    dialogue = _Dialogue(draw, personal)
    issues, answers = draw.choice(tuple(templates.PERSONAL_TOPICS.values()))
    dialogue.say("SYS", draw.choice(templates.GREETINGS))
    dialogue.say("USR", draw.choice(issues))
    dialogue.say("SYS", draw.choice(templates.ASK_NAME))
    dialogue.say("USR", draw.choice(templates.GIVE_NAME))
    kinds = list(templates.DETAILS)
    for _ in range(2 if draw.chance(0.4) else 1):
        asks, gives = templates.DETAILS[kinds.pop(draw.below(len(kinds)))]
        dialogue.say("SYS", draw.choice(asks))
        dialogue.say("USR", draw.choice(gives))
    dialogue.say("SYS", draw.choice(answers))
    return _finish(dialogue, draw, templates.CLOSINGS)


def _public_dialogue(
    draw: Draw, personal: Mapping[str, str]
) -> tuple[str, tuple[Span, ...]]:
    """Write a dialogue about goods and rules."""
    dialogue = _Dialogue(draw, personal)
    dialogue.say("SYS", draw.choice(templates.GREETINGS))
    for _ in range(draw.between(1, 2)):
        _say_public(dialogue, draw)
    return _finish(dialogue, draw, public.PUBLIC_CLOSINGS)


def _say_public(dialogue: _Dialogue, draw: Draw) -> None:
    """Add a question and its answer."""
    questions, answers = draw.choice(public.PUBLIC_TOPICS)
    dialogue.change_topic()
    dialogue.say("USR", draw.choice(questions))
    dialogue.say("SYS", draw.choice(answers))


def _finish(
    dialogue: _Dialogue, draw: Draw, closings: Sequence[tuple[str, str]]
) -> tuple[str, tuple[Span, ...]]:
    """Chat until there are enough words, then say goodbye."""
    while dialogue.num_words < MIN_WORDS:
        _say_public(dialogue, draw)
    thanks, farewell = draw.choice(closings)
    dialogue.say("USR", thanks)
    dialogue.say("SYS", farewell)
    return dialogue.result()
