"""Ways to write a value that is no name: mail addresses and telephone numbers."""

from collections.abc import Iterator
from typing import Final

_LEAST_PHONE: Final = 7


def ways_of_value(value: str, entity_type: str) -> Iterator[str]:
    """Yield the ways to write what is no name."""
    yield value
    if "@" in value:
        yield value.replace("@", " at ").replace(".", " dot ")
        yield value.replace("@", " at ")
    digits = "".join(filter(str.isdecimal, value))
    if entity_type == "PHONE" and len(digits) > _LEAST_PHONE:
        yield from _ways_of_phone(value.strip(), digits)


def _ways_of_phone(value: str, digits: str) -> Iterator[str]:
    """Yield a number with and without the code of its country."""
    if value.startswith(("+", "00")):
        bare = digits[2:] if value.startswith("00") else digits
        yield bare
        yield f"00{bare}"
        for size in (1, 2, 3):
            if len(bare) - size >= _LEAST_PHONE:
                yield bare[size:]
                yield f"0{bare[size:]}"
    elif digits.startswith("0"):
        yield digits[1:]
