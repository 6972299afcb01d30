"""Every error that dptune raises on purpose.

```
DptuneError                     one of ours: the message says what to do next
├── ConfigError                 a configuration cannot be used (holds every problem)
├── DataError                   a corpus cannot be used (rows are named by number)
├── DependencyError             an optional package, pipeline or model is not installed
├── PrivacyError                a claim could not be kept
│   ├── InfeasibleBudgetError   no noise reaches the target epsilon
│   ├── BudgetExceededError     the data set has no budget left
│   └── UnsupportedEventError   an accountant does not know this mechanism
├── DetectionError              a detector failed or found what it cannot find
├── ModelError                  a model or tokenizer cannot be trained or attacked
├── ArtifactError               a stored file is not what its name says
│   └── MalformedEvidenceError  what a decision rests on cannot be read
└── GateFailedError             the gate refused a version (a verdict, not a fault)
```

No message may hold record text, canaries or tokens: only offsets, types, counts,
numbers of rows, and ids as `id_suffix` shows them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Final, Self, get_args

_SHORT_NUMBER: Final = re.compile(r"[0-9]{1,8}")
_MAX_NAMED_ID: Final = 10**8


def id_suffix(identifier: object) -> str:
    """Add an id to the number of a row where it tells nothing else.

    An id may be a person's name, so only whole numbers below 100 million, too short for
    a phone or social security number, are shown.

    >>> id_suffix("4711"), id_suffix("ann@example.org")
    (' (id 4711)', '')
    """
    number = identifier
    if isinstance(number, str) and _SHORT_NUMBER.fullmatch(number):
        number = int(number)
    is_shown = type(number) is int and 0 <= number < _MAX_NAMED_ID
    return f" (id {number})" if is_shown else ""


class DptuneError(Exception):
    """Root of the tree: a fault that the user can act on."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, and what to do about it.

    Args:
        path: where it is, such as `privacy.target_delta` or `row 17 (id 4711)`.
        message: `must be <constraint>, got <value>`, never with record text.
        next_step: one sentence in the imperative.
    """

    path: str
    message: str
    next_step: str = ""

    def __str__(self) -> str:
        """Render as one line."""
        return f"{self.path}: {self.message} {self.next_step}".rstrip()


class ProblemsError(DptuneError):
    """An error that reports all its problems at once."""

    def __init__(self, problems: Sequence[Problem] | str) -> None:
        if isinstance(problems, str):
            problems = (Problem(path="", message=problems),)
        self.problems = tuple(problems)
        lines = [str(problem).removeprefix(": ") for problem in self.problems]
        super().__init__("\n".join(lines))

    @classmethod
    def at(cls, path: str, message: str, next_step: str = "") -> Self:
        """Make an error of one problem.

        >>> print(ConfigError.at("model.id", "must be given, got nothing."))
        model.id: must be given, got nothing.

        Args:
            path: see `Problem`.
            message: likewise.
            next_step: likewise.
        """
        return cls([Problem(path=path, message=message, next_step=next_step)])

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[Problem, ...]]]:
        """Let another process hand the problems over one by one, as they are here."""
        return type(self), (self.problems,)


def of_other_kinds(
    wanted: Mapping[str, tuple[object, type | UnionType]],
) -> Iterator[Problem]:
    """Name arguments that are of another type than they must be."""
    for name, (given, kind) in wanted.items():
        if not isinstance(given, kind):
            wish = getattr(kind, "__name__", "") or str(get_args(kind)[0].__name__)
            message = f"must be a {wish}, got {type(given).__name__}."
            yield Problem(path=name, message=message)


class ConfigError(ProblemsError):
    """A configuration cannot be used."""


class DataError(ProblemsError):
    """A corpus cannot be used."""


class DependencyError(DptuneError):
    """An optional package, pipeline or model is not installed."""


class PrivacyError(DptuneError):
    """A privacy claim could not be kept."""


class InfeasibleBudgetError(PrivacyError):
    """No noise reaches the target epsilon."""


class BudgetExceededError(PrivacyError):
    """The data set has no budget left for what was asked."""


class UnsupportedEventError(PrivacyError):
    """An accountant does not know this mechanism."""


class DetectionError(DptuneError):
    """A detector failed, or found nothing where it must find something."""


class ModelError(DptuneError):
    """A model or tokenizer cannot be loaded, trained or attacked."""


class ArtifactError(DptuneError):
    """A stored file is not what its name says."""


class MalformedEvidenceError(ArtifactError):
    """What a decision rests on cannot be read: the version is INVALID."""


class GateFailedError(DptuneError):
    """The gate refused a version."""
