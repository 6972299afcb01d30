"""What is known of things that a stack needs: the lines of `stack check`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

SECONDS: Final = 4.0
"""How long whoever is asked may take for an answer."""


class State(StrEnum):
    """What is known of one thing that the stack needs."""

    OK = "ok"
    MISSING = "missing"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the table.

    Args:
        name: what is needed.
        state: whether it is there; unknown where nobody could be asked.
        found: what was seen.
        how: how to get it; empty where it is there.
    """

    name: str
    state: State
    found: str
    how: str = ""
