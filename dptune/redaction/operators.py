"""What a sensitive span is replaced with."""

import unicodedata
from collections.abc import Callable
from enum import StrEnum

from dptune.errors import ConfigError
from dptune.text import Span

MASK = "<mask>"

Replace = Callable[[Span, str], str]
"""Returns the replacement of a span whose text is given."""


class Operator(StrEnum):
    """How to replace sensitive text.

    * `MASK`: `<mask>`; adjacent masks become one unless their number must stay.
    * `TYPED`: the entity type, `<PERSON>`.
    * `NUMBERED`: type and number, `<PERSON_1>`; equal values of one record get equal
      numbers.
    * `PSEUDONYM`: an invented value of the same kind; equal values of one unit, or of
      the corpus, get equal ones. Needs a key, see `pseudonyms.Pseudonyms`.
    * `DELETE`: nothing.
    """

    MASK = "mask"
    TYPED = "typed"
    NUMBERED = "numbered"
    PSEUDONYM = "pseudonym"
    DELETE = "delete"


def replacement(operator: Operator) -> Replace:
    """Return the replacement rule of an operator for one record.

    Call it once per record: `NUMBERED` counts from 1 in each.

    Raises:
        ConfigError: `PSEUDONYM`, whose rule needs a key.
    """
    if operator is Operator.PSEUDONYM:
        raise ConfigError(
            "pseudonyms must be given for operator=pseudonym, got None. Pass "
            "Pseudonyms(key=...) with a secret key."
        )
    if operator is Operator.NUMBERED:
        return _numbered()
    return _STATELESS[operator]


def _mask(_span: Span, _value: str) -> str:
    return MASK


def _typed(span: Span, _value: str) -> str:
    return f"<{span.entity_type}>"


def _delete(_span: Span, _value: str) -> str:
    return ""


_STATELESS: dict[Operator, Replace] = {
    Operator.MASK: _mask,
    Operator.TYPED: _typed,
    Operator.DELETE: _delete,
}


def _numbered() -> Replace:
    """Number the values of each type in order of appearance."""
    numbers: dict[str, dict[str, int]] = {}

    def replace(span: Span, value: str) -> str:
        seen = numbers.setdefault(span.entity_type, {})
        number = seen.setdefault(normalized(value), len(seen) + 1)
        return f"<{span.entity_type}_{number}>"

    return replace


def normalized(value: str) -> str:
    """Fold case, compatibility forms and separators: `O'Brien ` equals `obrien`.

    A value of separators only is its own normal form.
    """
    folded = unicodedata.normalize("NFKC", value).casefold()
    return "".join(filter(str.isalnum, folded)) or folded
