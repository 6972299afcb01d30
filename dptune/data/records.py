"""Records on their way from a file to a corpus."""

import re
from dataclasses import dataclass
from typing import Final


class _Missing:
    """A column that a row does not have, unlike one that is null."""

    def __repr__(self) -> str:
        """Name it in messages."""
        return "missing"


MISSING: Final = _Missing()
_SHORT_NUMBER = re.compile(r"[0-9]{1,8}")
_MAX_NAMED_ID = 10**8


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RawRecord:
    """A record as its source gives it, unchecked: any field may be of any type.

    Args:
        file: name of the file, for messages.
        row: line or row number in the file, from 1.
        text: hidden from `repr`, as are all values.
        id: `MISSING` where the source has no ids.
        unit: owner named by the source, `MISSING` if it names none.
        document: file or document that the record is part of, None if it is its own.
        split: `None` if the source decides no splits.
        label: `MISSING` where the source has no labels.
    """

    file: str
    row: int
    text: object
    id: object = MISSING
    unit: object = MISSING
    document: str | None = None
    split: object = None
    label: object = MISSING

    def location(self) -> str:
        """Name the row by file and number, and by id where that tells nothing else.

        An id may be a person's name, so only whole numbers below 100 million, too short
        for a phone or social security number, are shown.
        """
        number = self.id
        if isinstance(number, str) and _SHORT_NUMBER.fullmatch(number):
            number = int(number)
        is_shown = type(number) is int and 0 <= number < _MAX_NAMED_ID
        suffix = f" (id {number})" if is_shown else ""
        return f"{self.file} row {self.row}{suffix}"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Record:
    """A checked record. Its text is hidden from `repr`.

    Args:
        draw_key: what draws of splits and samples go by: the unit; where that is known
            by a hash of its content, the hash without the number that tells copies
            apart, which follows from how many others there are.
    """

    id: str
    text: str
    unit_id: str
    draw_key: str
    split: str | None
    label: int | str | None
    location: str
