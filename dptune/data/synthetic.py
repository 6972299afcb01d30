"""Generate customer-service dialogues with exact gold spans of personal data.

The public half speaks of products, prices and policies and names nobody; the private
half holds people, addresses and numbers. Every value is invented, from the turns and
words of `synthetic.json`.
"""

import functools
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, TypeVar

from dptune.data.source import SyntheticSource
from dptune.errors import ConfigError
from dptune.text import Span

_T = TypeVar("_T")
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

    >>> (record,) = generate_dialogues(num_records=1, private=True, seed=0)
    >>> first = record.spans[0]
    >>> first.entity_type, record.text[first.start : first.end]
    ('PERSON', 'Elias Reyes')
    """
    return list(iter_dialogues(num_records=num_records, private=private, seed=seed))


def iter_dialogues(
    *, num_records: int, private: bool, seed: int
) -> Iterator[SyntheticRecord]:
    """Generate one after another; see `generate_dialogues`.

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
    for number in range(num_records):
        draw = Draw(f"dptune/{seed}/{half}/{number}")
        customer = _customer_number(number) if private else number
        unit_id = f"synthetic-{seed}-{half}-unit-{customer:06d}"
        values = personal_values(unit_id) if private else {}
        text, spans = _fitting(make, draw, values)
        yield SyntheticRecord(
            id=f"synthetic-{seed}-{half}-{number:06d}",
            text=text,
            unit_id=unit_id,
            spans=spans,
        )


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


@functools.cache
def _content() -> dict[str, Any]:
    """Read the turns and words that dialogues are made of."""
    source = resources.files("dptune.data").joinpath("synthetic.json")
    return dict(json.loads(source.read_text("utf8")))


class Draw:
    """Choices from `random()` alone, whose stream Python promises to keep."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed).random  # noqa: S311 - nothing is secret

    def below(self, limit: int) -> int:
        """Draw from 0 to `limit - 1`."""
        return int(self._random() * limit)

    def between(self, low: int, high: int) -> int:
        """Draw from `low` to `high`, both included."""
        return low + self.below(high - low + 1)

    def choice(self, options: Sequence[_T]) -> _T:
        """Draw one option."""
        return options[self.below(len(options))]

    def word(self, kind: str) -> str:
        """Draw one word of a list."""
        words: list[str] = _content()["words"][kind]
        return self.choice(words)

    def chance(self, probability: float) -> bool:
        """Draw true with a probability."""
        return self._random() < probability

    def digits(self, count: int) -> str:
        """Draw digits."""
        return f"{self.below(10**count):0{count}d}"


def personal_values(unit_id: str) -> dict[str, str]:
    """Invent what stays the same in all dialogues of a customer."""
    draw = Draw(unit_id)
    first, last = draw.word("first_names"), draw.word("last_names")
    initial = f" {chr(65 + draw.below(26))}." if draw.chance(0.08) else ""
    return {
        "FIRST": first,
        "PERSON": f"{first}{initial} {last}",
        "EMAIL": _email(draw, first, last),
        "PHONE": _phone(draw),
        "ADDRESS": _address(draw),
        "ACCOUNT_ID": _account_id(draw),
    }


def _email(draw: Draw, first: str, last: str) -> str:
    """Invent an address at a reserved domain."""
    first, last = first.lower(), last.lower()
    local = draw.choice(
        (
            f"{first}.{last}",
            f"{first[0]}{last}{draw.between(1, 99)}",
            f"{last}_{first}",
            f"{first}{draw.between(1950, 2005)}",
            f"{first}{last}",
        )
    )
    return f"{local}@{draw.word('mail_domains')}"


def _phone(draw: Draw) -> str:
    """Invent a number in the fictional range 555-01xx."""
    area, line = draw.between(201, 989), f"01{draw.digits(2)}"
    return draw.choice(
        (
            f"({area}) 555-{line}",
            f"{area}-555-{line}",
            f"{area}.555.{line}",
            f"+1 {area} 555 {line}",
            f"{area}555{line}",
        )
    )


def _address(draw: Draw) -> str:
    """Invent a postal address."""
    street = f"{draw.word('streets')} {draw.word('street_types')}"
    unit = f" Apt {draw.between(1, 60)}" if draw.chance(0.2) else ""
    number = draw.between(1, 9999)
    place = f"{draw.word('towns')}, {draw.word('states')}"
    return f"{number} {street}{unit}, {place} {draw.between(501, 99950):05d}"


def _account_id(draw: Draw) -> str:
    """Invent an account id."""
    if draw.chance(0.3):
        return f"AC-{draw.digits(6)}"
    alphabet = "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789"
    head = "".join(draw.choice(alphabet) for _ in range(8))
    return f"{draw.choice(alphabet[:24])}{head}{draw.below(10)}"


def _order_id(draw: Draw) -> str:
    """Invent an order number."""
    return draw.choice(
        (
            f"{draw.digits(3)}-{draw.digits(5)}-{draw.digits(4)}",
            f"{draw.between(10**9, 10**10 - 1)}",
            f"#{draw.between(10**6, 10**8)}",
            f"ORD-{draw.digits(6)}",
        )
    )


def _date(draw: Draw) -> str:
    """Invent a date."""
    day, month, year = draw.between(1, 28), draw.below(12), draw.between(2021, 2025)
    name = _content()["words"]["months"][month]
    return draw.choice(
        (
            f"{name} {day}",
            f"{name} {day}, {year}",
            f"{day} {name} {year}",
            f"{year}-{month + 1:02d}-{day:02d}",
            f"{month + 1:02d}/{day:02d}/{year}",
            f"{name[:3]} {day}",
        )
    )


FRESH_PERSONAL: Mapping[str, Callable[[Draw], str]] = {
    "ORDER_ID": _order_id,
    "DATE": _date,
    "OTHER_PERSON": lambda draw: (
        f"{draw.word('first_names')} {draw.word('last_names')}"
    ),
}
ENTITY_TYPES = {"FIRST": "PERSON", "OTHER_PERSON": "PERSON"}
PUBLIC: Mapping[str, Callable[[Draw], str]] = {
    "product": lambda draw: draw.word("products"),
    "other_product": lambda draw: draw.word("products"),
    "color": lambda draw: draw.word("colors"),
    "material": lambda draw: draw.word("materials"),
    "other_material": lambda draw: draw.word("materials"),
    "item": lambda draw: draw.digits(draw.between(4, 9)),
    "other_item": lambda draw: draw.digits(draw.between(4, 9)),
    "weekday": lambda draw: draw.word("weekdays"),
    "weather": lambda draw: draw.word("weather"),
    "price": lambda draw: f"${draw.between(2, 899)}.{draw.digits(2)}",
    "fee": lambda draw: f"${draw.between(1, 39)}.{draw.digits(2)}",
    "percent": lambda draw: str(draw.between(3, 97)),
    "days": lambda draw: str(draw.between(2, 60)),
    "hours": lambda draw: str(draw.between(2, 48)),
    "months": lambda draw: str(draw.between(3, 60)),
    "quantity": lambda draw: str(draw.between(2, 480)),
    "size": lambda draw: f"{draw.between(10, 250)}.{draw.below(10)}",
    "points": lambda draw: str(draw.between(100, 99_999)),
    "degrees": lambda draw: str(draw.between(2, 40)),
    "rating": lambda draw: f"{draw.between(1, 4)}.{draw.below(10)}",
    "time": lambda draw: (
        f"{draw.between(1, 12)}:{draw.below(6)}0 {draw.choice(('am', 'pm'))}"
    ),
}
KEPT_IN_TOPIC = ("product", "color", "material", "item", "other_item")


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
    private = _content()["private"]
    dialogue = _Dialogue(draw, personal)
    issues, answers = draw.choice(tuple(private["personal_topics"].values()))
    dialogue.say("SYS", draw.choice(private["greetings"]))
    dialogue.say("USR", draw.choice(issues))
    dialogue.say("SYS", draw.choice(private["ask_name"]))
    dialogue.say("USR", draw.choice(private["give_name"]))
    kinds = list(private["details"])
    for _ in range(2 if draw.chance(0.4) else 1):
        asks, gives = private["details"][kinds.pop(draw.below(len(kinds)))]
        dialogue.say("SYS", draw.choice(asks))
        dialogue.say("USR", draw.choice(gives))
    dialogue.say("SYS", draw.choice(answers))
    return _finish(dialogue, draw, private["closings"])


def _public_dialogue(
    draw: Draw, personal: Mapping[str, str]
) -> tuple[str, tuple[Span, ...]]:
    """Write a dialogue about goods and rules."""
    dialogue = _Dialogue(draw, personal)
    dialogue.say("SYS", draw.choice(_content()["private"]["greetings"]))
    for _ in range(draw.between(1, 2)):
        _say_public(dialogue, draw)
    return _finish(dialogue, draw, _content()["public"]["public_closings"])


def _say_public(dialogue: _Dialogue, draw: Draw) -> None:
    """Add a question and its answer."""
    questions, answers = draw.choice(_content()["public"]["public_topics"])
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
