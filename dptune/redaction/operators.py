"""What a sensitive span is replaced with.

Pseudonyms are invented values of the same kind, the same one for equal values. An HMAC
of the value under a secret key seeds every draw, so that nobody without the key can
test a guess, and no table of values is kept. Invented numbers keep the shape of the
original and never carry a valid checksum; addresses in networks use reserved names.
"""

import hashlib
import hmac
import random
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any

from dptune.errors import ConfigError, DependencyError
from dptune.identifiers import is_luhn_valid
from dptune.text import MASK, Span

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


_STATELESS: dict[Operator, Replace] = {
    Operator.MASK: lambda _span, _value: MASK,
    Operator.TYPED: lambda span, _value: f"<{span.entity_type}>",
    Operator.DELETE: lambda _span, _value: "",
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

    >>> normalized("O'Brien "), normalized("-")
    ('obrien', '-')

    A value of separators only is its own normal form.
    """
    folded = unicodedata.normalize("NFKC", value).casefold()
    return "".join(filter(str.isalnum, folded)) or folded


_LEAST_KEY = 16


class Scope(StrEnum):
    """Within what equal values get equal pseudonyms.

    * `UNIT`: within one privacy unit; units cannot be linked by their pseudonyms.
    * `CORPUS`: everywhere under one key.
    """

    UNIT = "unit"
    CORPUS = "corpus"


@dataclass(frozen=True, kw_only=True)
class Pseudonyms:
    """How to invent values.

    **Privacy.** Pseudonyms tell which values are equal, and a holder of the key can
    test guesses: the result is personal data (GDPR art. 4(5)), not anonymous text.

    Args:
        key: secret, at least 16 bytes; hidden from `repr`.
        scope: within what equal values get equal pseudonyms.
        locale: of names and places, such as `en_US`.

    Raises:
        ConfigError: the key is too short.
    """

    key: bytes = field(repr=False)
    scope: Scope = Scope.UNIT
    locale: str = "en_US"

    def __post_init__(self) -> None:
        """Refuse keys that can be guessed."""
        if len(self.key) < _LEAST_KEY:
            raise ConfigError(
                f"key must have at least {_LEAST_KEY} bytes, got {len(self.key)}. "
                "Draw one with `secrets.token_bytes(32)` and keep it secret."
            )

    def replacement(self, unit_id: str | None) -> Replace:
        """Return the replacement rule for the records of one unit.

        Raises:
            ConfigError: the scope is the unit, but no unit is given.
            DependencyError: Faker is not installed.
        """
        if self.scope is Scope.UNIT and unit_id is None:
            raise ConfigError(
                "unit_id must be given for pseudonyms within a unit, got None. Pass "
                "the record's unit, or choose scope=corpus."
            )
        owner = (unit_id or "") if self.scope is Scope.UNIT else ""
        source = _source(self.locale)

        def replace(span: Span, value: str) -> str:
            bare = value.strip()
            if not bare:
                return value
            made = _invent(source, self.key, owner, span.entity_type, bare)
            return value.replace(bare, made)

        return replace


def _invent(source: Any, key: bytes, owner: str, kind: str, value: str) -> str:  # noqa: ANN401
    """Draw until the result is not the value itself."""
    plain = normalized(value)
    for attempt in range(100):
        message = "\0".join((owner, kind, plain, str(attempt))).encode()
        seed = hmac.new(key, message, hashlib.sha256).digest()
        source.seed_instance(int.from_bytes(seed, "big"))
        made = _MAKERS.get(kind, _same_shape)(source, value)
        if normalized(made) != plain:
            return made
    return f"<{kind}>"  # a value whose shape leaves nothing to draw


@lru_cache(maxsize=8)
def _source(locale: str) -> Any:  # noqa: ANN401  # Faker has no useful types
    try:
        import faker  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise DependencyError(
            "pseudonyms need the package Faker, which is not installed. Run "
            "`pip install faker==40.54.0`, or choose another operator."
        ) from error
    try:
        return faker.Faker(locale)
    except AttributeError:
        raise ConfigError(
            f"locale must be one that Faker knows, got locale={locale}. Use en_US."
        ) from None


def _cased(made: str, value: str) -> str:
    """Write an invented value in the case of the original."""
    if value.islower():
        return made.lower()
    return made.upper() if len(value) > 1 and value.isupper() else made


def _person(source: Any, value: str) -> str:  # noqa: ANN401
    whole = len(value.split()) > 1
    made = f"{source.first_name()} {source.last_name()}" if whole else None
    return _cased(made or str(source.first_name()), value)


def _organization(source: Any, value: str) -> str:  # noqa: ANN401
    return _cased(str(source.company()), value)


def _place(source: Any, value: str) -> str:  # noqa: ANN401
    return _cased(str(source.city()), value)


def _address(source: Any, value: str) -> str:  # noqa: ANN401
    return _cased(str(source.street_address()), value)


def _people(source: Any, value: str) -> str:  # noqa: ANN401
    names = ("Arlonian", "Belvarian", "Corvish", "Dalmaran", "Estrovian", "Fenlandic")
    return _cased(str(source.random_element(names)), value)


def _email(source: Any, value: str) -> str:  # noqa: ANN401
    name = f"{source.first_name()}.{source.last_name()}{source.random_int(1, 99)}"
    return _cased(f"{name.lower()}@mail.invalid", value)


def _url(source: Any, value: str) -> str:  # noqa: ANN401
    scheme, sign, _ = value.partition("://")
    head = scheme + sign if sign else ""
    return f"{head}{source.domain_word()}.invalid"


def _username(source: Any, value: str) -> str:  # noqa: ANN401
    return ("@" if value.startswith("@") else "") + str(source.user_name())


def _card(source: Any, value: str) -> str:  # noqa: ANN401
    """Keep the shape; break the checksum by raising the last digit if it is valid."""
    made = _same_shape(source, value)
    digits = "".join(filter(str.isdecimal, made))
    if digits and is_luhn_valid(digits):
        last = max(i for i, c in enumerate(made) if c.isdecimal())
        made = f"{made[:last]}{(int(digits[-1]) + 1) % 10}{made[last + 1 :]}"
    return made


def _ssn(source: Any, value: str) -> str:  # noqa: ANN401
    """Keep the shape; area 000 is never issued."""
    made, position = list(_same_shape(source, value)), 0
    for index, character in enumerate(made):
        if character.isdecimal() and position < 3:
            made[index] = "0"
            position += 1
    return "".join(made)


def _iban(source: Any, value: str) -> str:  # noqa: ANN401
    """Keep the shape; no country has the code XX."""
    return "XX" + _same_shape(source, value)[2:]


def _ip(source: Any, value: str) -> str:  # noqa: ANN401
    """Draw from the ranges for documentation: RFC 5737 and RFC 3849."""
    if ":" in value:
        return f"2001:db8::{source.random_int(1, 65535):x}"
    return f"203.0.113.{source.random_int(1, 254)}"


def _same_shape(source: Any, value: str) -> str:  # noqa: ANN401
    """Redraw every letter and digit in place; signs and blanks stay."""
    draw: random.Random = source.random
    letters = "abcdefghijklmnopqrstuvwxyz"
    made = []
    for character in value:
        if character.isdecimal():
            made.append(draw.choice("0123456789"))
        elif character.isalpha():
            letter = draw.choice(letters)
            made.append(letter.upper() if character.isupper() else letter)
        else:
            made.append(character)
    return "".join(made)


def _date(source: Any, value: str) -> str:  # noqa: ANN401
    """Write another date: digits only where the original has digits only."""
    day = source.date_between("-60y", "-1y")
    if not any(map(str.isalpha, value)):
        for form in ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y"):
            if form[2] in value and len(value) >= 8:
                return str(day.strftime(form))
        return str(day.year)
    return _cased(f"{day:%B} {day.day}", value)


_MAKERS: dict[str, Callable[[Any, str], str]] = {
    "PERSON": _person,
    "ENTITY": _person,
    "UNKNOWN": _person,
    "PROPN": _person,
    "ORG": _organization,
    "GPE": _place,
    "LOC": _place,
    "FAC": _place,
    "NORP": _people,
    "ADDRESS": _address,
    "EMAIL": _email,
    "URL": _url,
    "USERNAME": _username,
    "CREDIT_CARD": _card,
    "SSN": _ssn,
    "IBAN": _iban,
    "IP": _ip,
    "DATE": _date,
}
