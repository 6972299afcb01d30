"""What a sensitive span is replaced with, by entity type.

| operator | writes | reads off the secret |
|---|---|---|
| `mask`, `delete` | `<mask>`, nothing | nothing, if every type has the same one |
| `typed`, `numbered` | `<PERSON>`, `<PERSON_1>` | its type; which are equal |
| `pseudonym` | an invented value | which are equal, shape, gender, intervals |
| `hash` | `<PERSON:9f2c...>` | which are equal |
| `encrypt` | `<PERSON:enc:...>` | which are equal, about how long; all, with the key |
| `shift_dates` | the date some days off | intervals, format, time of day |
| `partial` | `**** **** **** 1234` | what is kept, and the shape |
| `keep` | the value itself | everything |

Two operators in one corpus tell types apart, which a detector reads off the secrets: a
selective claim needs `mask` or `delete` for all of them.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from dptune.settings import Settings
from dptune.text import Span

Replace = Callable[[Span, str], str]
"""Returns the replacement of a span whose text is given."""


class Operator(StrEnum):
    """How to replace sensitive text.

    * `MASK`: `<mask>`; adjacent masks become one unless their number must stay.
    * `TYPED`: the entity type, `<PERSON>`.
    * `NUMBERED`: type and number, `<PERSON_1>`; equal values of one record get equal
      numbers.
    * `PSEUDONYM`: an invented value of the same kind; equal values of one unit, or of
      the corpus, get equal ones. Needs a key, as all below but the last two.
    * `HASH`: a keyed hash, likewise equal for equal values.
    * `ENCRYPT`: what whoever has the key can turn back.
    * `SHIFT_DATES`: dates a constant number of days off, the same for all of a unit.
    * `PARTIAL`: some letters and digits stay, such as the last four.
    * `KEEP`: the value itself.
    * `DELETE`: nothing.
    """

    MASK = "mask"
    TYPED = "typed"
    NUMBERED = "numbered"
    PSEUDONYM = "pseudonym"
    HASH = "hash"
    ENCRYPT = "encrypt"
    SHIFT_DATES = "shift_dates"
    PARTIAL = "partial"
    KEEP = "keep"
    DELETE = "delete"


ENCRYPTION_KEY: Final = "DPTUNE_REDACTION_KEY"
"""Environment variables that hold encryption keys begin so; no other can be named."""

KEYED: Final = frozenset(
    {Operator.PSEUDONYM, Operator.HASH, Operator.ENCRYPT, Operator.SHIFT_DATES}
)
"""Operators whose result depends on a key, and within units on whose a value is."""


class Scope(StrEnum):
    """Within what equal values get equal pseudonyms, hashes, ciphers and date shifts.

    * `UNIT`: within one privacy unit; units cannot be linked by their pseudonyms.
    * `CORPUS`: everywhere under one key.
    """

    UNIT = "unit"
    CORPUS = "corpus"


class OperatorSettings(Settings):
    """What replaces the values of one type.

    Args:
        operator: its name.
        keep_first, keep_last: letters and digits that `partial` leaves at either end;
            never more than half of a value.
        character: what `partial` writes for each of the others.
        max_days: how far `shift_dates` goes at most.
    """

    operator: Operator
    keep_first: int = Field(default=0, ge=0, le=32)
    keep_last: int = Field(default=4, ge=0, le=32)
    character: str = Field(default="*", pattern=r"^[^\w\s<>]$")
    max_days: int = Field(default=365, ge=1, le=36_500)

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        owned = {
            Operator.PARTIAL: {"keep_first", "keep_last", "character"},
            Operator.SHIFT_DATES: {"max_days"},
        }
        known = {"operator", *owned.get(self.operator, ())}
        wrong = [
            name
            for name, about in type(self).model_fields.items()
            if name not in known and getattr(self, name) != about.default
        ]
        if wrong:
            raise ValueError(
                f"{', '.join(sorted(wrong))} must be left out for operator "
                f"{self.operator}"
            )
        return self


def _from_name(value: object) -> object:
    """Let the name of an operator stand for its settings."""
    return {"operator": value} if isinstance(value, str) else value


TypeOperator = Annotated[OperatorSettings, BeforeValidator(_from_name)]
_EntityType = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,40}$")]


def operators_name(default: Operator, by_type: Mapping[str, OperatorSettings]) -> str:
    """Name all operators of a redaction: one name only where all types have the same.

    >>> operators_name(Operator.MASK, {"ORG": OperatorSettings(operator="keep")})
    'keep+mask'
    """
    return "+".join(
        sorted({default.value, *(s.operator.value for s in by_type.values())})
    )


class RedactionSettings(Settings):
    """What replaces a marked span.

    Args:
        operator: what is written in its place.
        operators: others, by entity type: a name, or a mapping with its settings.
            Where two types differ, the text shows which is which: no selective claim.
        merge_adjacent: join masks that only blanks part.
        pseudonym_scope: within what equal values get equal pseudonyms, hashes, ciphers
            and date shifts.
        pseudonym_locale: of invented names and places.
        encryption_key: name of the environment variable (or, with `_FILE` behind it,
            of the one that names a file) that holds the key of `encrypt`.
        num_processes: that redact parts of the corpus side by side; pseudonyms within
            units take one.
    """

    operator: Operator = Operator.MASK
    operators: Mapping[_EntityType, TypeOperator] = Field(default_factory=dict)
    merge_adjacent: bool = True
    pseudonym_scope: Scope = Scope.UNIT
    pseudonym_locale: str = Field(default="en_US", pattern=r"^[a-z]{2}_[A-Z]{2}$")
    encryption_key: str = Field(
        default=ENCRYPTION_KEY, pattern=rf"^{ENCRYPTION_KEY}(_[A-Z0-9]{{1,40}})?$"
    )
    num_processes: int = Field(
        default=1, ge=1, le=64, exclude_if=lambda number: number == 1
    )

    @property
    def name(self: Self) -> str:
        """What reports and ledgers call it: every operator in it."""
        return operators_name(self.operator, self.operators)

    @property
    def used(self: Self) -> frozenset[Operator]:
        """Every operator in it."""
        return frozenset(map(Operator, self.name.split("+")))

    @property
    def kept(self: Self) -> frozenset[str]:
        """Types that are to stay as they are."""
        named = self.operators.items()
        return frozenset(k for k, s in named if s.operator is Operator.KEEP)
