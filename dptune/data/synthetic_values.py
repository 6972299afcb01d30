"""Invent names, addresses, numbers, prices and dates from a seeded stream."""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from dptune.data import synthetic_words as words

_T = TypeVar("_T")


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

    def chance(self, probability: float) -> bool:
        """Draw true with a probability."""
        return self._random() < probability

    def digits(self, count: int) -> str:
        """Draw digits."""
        return f"{self.below(10**count):0{count}d}"


def personal_values(unit_id: str) -> dict[str, str]:
    """Invent what stays the same in all dialogues of a customer."""
    draw = Draw(unit_id)
    first, last = draw.choice(words.FIRST_NAMES), draw.choice(words.LAST_NAMES)
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
    return f"{local}@{draw.choice(words.MAIL_DOMAINS)}"


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
    street = f"{draw.choice(words.STREETS)} {draw.choice(words.STREET_TYPES)}"
    unit = f" Apt {draw.between(1, 60)}" if draw.chance(0.2) else ""
    number = draw.between(1, 9999)
    place = f"{draw.choice(words.TOWNS)}, {draw.choice(words.STATES)}"
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
    name = words.MONTHS[month]
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
        f"{draw.choice(words.FIRST_NAMES)} {draw.choice(words.LAST_NAMES)}"
    ),
}
ENTITY_TYPES = {"FIRST": "PERSON", "OTHER_PERSON": "PERSON"}
PUBLIC: Mapping[str, Callable[[Draw], str]] = {
    "product": lambda draw: draw.choice(words.PRODUCTS),
    "other_product": lambda draw: draw.choice(words.PRODUCTS),
    "color": lambda draw: draw.choice(words.COLORS),
    "material": lambda draw: draw.choice(words.MATERIALS),
    "other_material": lambda draw: draw.choice(words.MATERIALS),
    "item": lambda draw: draw.digits(draw.between(4, 9)),
    "other_item": lambda draw: draw.digits(draw.between(4, 9)),
    "weekday": lambda draw: draw.choice(words.WEEKDAYS),
    "weather": lambda draw: draw.choice(words.WEATHER),
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
