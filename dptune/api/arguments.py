"""Arguments of public functions: every fault of a call at once, before anything else.

```python
given = Arguments()
num_steps = given.whole("num_steps", num_steps, least=1)
given.kind("model", model, nn.Module)
given.check()
```

Whole numbers and numbers of numpy are taken as Python's. Truth values and text are
none, though Python would calculate with the one and compare the other.
"""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, TypeGuard, TypeVar, cast

from dptune.data.public_units import round_units
from dptune.errors import ConfigError, Problem

Word = TypeVar("Word", bound=str)
LARGEST: Final = 10**12
"""Most that anything is counted to; an accountant composes no more steps."""


class Arguments:
    """Collects what is wrong with the arguments of one call."""

    def __init__(self) -> None:
        self._problems: list[Problem] = []

    def check(self) -> None:
        """Go on if nothing was wrong.

        Raises:
            ConfigError: with every problem.
        """
        if self._problems:
            raise ConfigError(self._problems)

    def refuse(self, name: str, message: str, next_step: str = "") -> None:
        """Note that an argument is wrong."""
        problem = Problem(path=name, message=message, next_step=next_step)
        self._problems.append(problem)

    def whole(
        self,
        name: str,
        value: Any,  # noqa: ANN401 - whatever was given
        *,
        least: int = 0,
        most: int = LARGEST,
    ) -> int:
        """Return a whole number, or note that it is none in this range."""
        if not isinstance(value, bool) and isinstance(value, Integral):
            if least <= int(value) <= most:
                return int(value)
            shown = f"{int(value):.6g}" if abs(int(value)) < 1e300 else "more"
        else:
            shown = _shown(value)
        span = f"from {least} to {most}" if most < LARGEST else f"at least {least}"
        self.refuse(name, f"must be a whole number, {span}, got {shown}.")
        return least

    def number(
        self,
        name: str,
        value: Any,  # noqa: ANN401 - whatever was given
        *,
        above: float = -math.inf,
        least: float = -math.inf,
        below: float = math.inf,
        most: float = math.inf,
    ) -> float:
        """Return a finite number, or note that it is none in this range."""
        found = math.nan
        if not isinstance(value, bool) and isinstance(value, Real):
            try:
                found = float(value)
            except OverflowError:
                found = math.inf
        if above < found < below and least <= found <= most:
            return found
        low = f"({above:g}" if above >= least else f"[{least:g}"
        high = f"{below:g})" if below <= most else f"{most:g}]"
        shown = _shown(value) if math.isnan(found) else f"{found:g}"
        self.refuse(name, f"must be a number in {low}, {high}, got {shown}.")
        return 1.0

    def choice(
        self, name: str, value: object, known: Sequence[Word], *, next_step: str = ""
    ) -> Word:
        """Return one of some words, or note that it is none of them."""
        if isinstance(value, str) and value in list(known):
            return known[list(known).index(value)]
        shown = ascii(value)[:60] if isinstance(value, str) else _shown(value)
        words = ", ".join(map(str, known))
        self.refuse(name, f"must be one of {words}, got {shown}.", next_step)
        return known[0]

    def kind(self, name: str, value: object, *kinds: type) -> None:
        """Note that an argument is of no kind that it may be."""
        if not isinstance(value, kinds):
            words = " or ".join("None" if k is NoneType else k.__name__ for k in kinds)
            self.refuse(name, f"must be a {words}, got {_shown(value)}.")

    def functions(self, **values: object) -> None:
        """Note the arguments that are neither a function nor left out."""
        for name, value in values.items():
            if value is not None and not callable(value):
                self.refuse(name, f"must be a function, got {_shown(value)}.")

    def place(
        self,
        name: str,
        value: Any,  # noqa: ANN401 - whatever was given
        *,
        what: Literal["file", "folder"],
    ) -> Path:
        """Return the path of a file or folder, which need not be there yet."""
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not isinstance(text, str) or not text or "\0" in text or not _is_text(text):
            self.refuse(name, f"must be the path of a {what}, got {_shown(value)}.")
            return Path()
        path = Path(text)
        if path.exists() and not (
            path.is_dir() if what == "folder" else path.is_file()
        ):
            self.refuse(name, f"must be the path of a {what}, got something else.")
        return path

    def texts(self, name: str, value: object) -> None:
        """Note that an argument is no list of texts; one text is none."""
        if isinstance(value, str):
            message = "must be a list of texts, got one."
            self.refuse(name, message, "Put it into a list.")
        elif not is_list(value):
            self.refuse(name, f"must be a list of texts, got {_shown(value)}.")
        else:
            found = cast("Iterable[object]", value)
            others = {_shown(text) for text in found if not isinstance(text, str)}
            for other in sorted(others)[:3]:
                self.refuse(name, f"must hold texts alone, got {other}.")

    @contextmanager
    def also(self) -> Iterator[None]:
        """Collect the problems of a `ConfigError` that is raised inside."""
        try:
            yield
        except ConfigError as error:
            self._problems += error.problems

    def public_units(self, value: object) -> int | None:
        """Return the public number of units, None where the exact one is taken."""
        if value is None:
            return None
        found = self.whole("public_units", value, least=1)
        if found != round_units(found):
            self.refuse(
                "public_units",
                f"must have at most two significant digits, got {found}: more of them "
                "tell who joined or left.",
                f"Say {round_units(found)}, or leave it out.",
            )
        return found


def is_list(value: object) -> TypeGuard[Sized]:
    """Whether a value has a length and an order, as lists and columns have.

    A text, bytes and a mapping have both, and are none.
    """
    is_one = isinstance(value, str | bytes | Mapping)
    return isinstance(value, Sized) and hasattr(value, "__getitem__") and not is_one


def _is_text(text: str) -> bool:
    """Whether a text can be written: halves of characters cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _shown(value: object) -> str:
    """Name a value without its content: numbers as they are, anything else by type."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, Real):
        return str(value)[:30]
    return f"a {type(value).__name__}"
