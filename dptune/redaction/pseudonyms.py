"""Invented values of the same kind, keyed hashes and encryption, under a secret key.

An HMAC of the value under the key decides every draw, so that nobody without the key
can test a guess, and no table of values is stored. Within a unit, different values get
different ones while there are any: who comes first has the first draw. Over a corpus
two values may share one, since no unit's text may depend on what another one says.

What is invented fits together within a unit: a name part by part (`Ann Lee`, `A. Lee`,
`ann.lee@...`), with its gender; dates by one shift, so that intervals of whole dates
stay; numbers in their alphabet. Card numbers and IBANs have a valid checksum where the
original has one, and zeros where issuers have their number, so that they are nobody's;
addresses in networks use reserved names.
"""

import base64
import hashlib
import hmac
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from dptune.errors import ConfigError
from dptune.redaction.forms import form_of
from dptune.redaction.names import NameMaker, cased, source_of
from dptune.redaction.operators import Operator, Replace, Scope
from dptune.redaction.surrogates import (
    card_number,
    iban,
    in_shape,
    shifted,
    social_security,
)
from dptune.spellings import one_form
from dptune.text import MASK, Span

_LEAST_KEY: Final = 16
_YEAR: Final = 365
"""Pseudonyms of dates are more than a year off, so that a year alone moves too."""
_OWNER_BYTES: Final = 8
_PADDED_TO: Final = 16
_HASH_DIGITS: Final = 16
_ATTEMPTS: Final = 100
_FORMS: Final = r"(?:,? (?:and Sons|Inc|Ltd|LLC|PLC|Group))+$"
_ENCRYPTED: Final = re.compile(r"<([^<>]*):enc:([^<>\s]*)(>?)")
"""Whatever looks encrypted, also cut off or altered, so that it is counted."""
_LEGAL: Final = frozenset(
    "inc ltd llc llp plc corp co gmbh ag kg sa sas srl spa bv nv ab oy pty".split()  # noqa: SIM905 - read
)


@dataclass(frozen=True, kw_only=True)
class Pseudonyms:
    """How to invent, hash, encrypt and shift values.

    **Privacy.** All of these tell which values are equal, and a holder of the key can
    test guesses: the result is personal data (GDPR art. 4(5)), not anonymous text.

    Args:
        key: secret, at least 16 bytes; hidden from `repr`.
        scope: within what equal values get equal pseudonyms.
        locale: of names and places, such as `en_US`; `en_US` reads `3/4` as 4 March.
        encryption_key: secret that turns encrypted values back; needed by `ENCRYPT`.

    Raises:
        ConfigError: a key is too short.
    """

    key: bytes = field(repr=False)
    scope: Scope = Scope.UNIT
    locale: str = "en_US"
    encryption_key: bytes | None = field(default=None, repr=False)
    _taken: dict[tuple[str, ...], str] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse keys that can be guessed."""
        for name, key in (("key", self.key), ("encryption_key", self.encryption_key)):
            if key is not None and len(key) < _LEAST_KEY:
                raise ConfigError(
                    f"{name} must have at least {_LEAST_KEY} bytes, got {len(key)}. "
                    "Draw one with `secrets.token_bytes(32)` and keep it secret."
                )

    @property
    def digest(self) -> str:
        """A digest of the keys that tells nothing of them, to name results by."""
        keys = (self.key, self.encryption_key or b"")
        names = [hmac.digest(key, b"dptune parts", "sha256").hex() for key in keys]
        return f"{names} {self.scope} {self.locale}"

    def replacement(
        self,
        unit_id: str | None,
        *,
        operator: Operator = Operator.PSEUDONYM,
        max_days: int = 365,
    ) -> Replace:
        """Return the replacement rule for the records of one unit.

        Args:
            unit_id: whose records they are.
            operator: one that needs a key.
            max_days: how far dates are shifted at most.

        Raises:
            ConfigError: the scope is the unit, but no unit is given; or there is no
                encryption key.
            DependencyError: Faker is not installed.
        """
        if self.scope is Scope.UNIT and unit_id is None:
            raise ConfigError(
                f"unit_id must be given for {operator} within a unit, got None. Pass "
                "the record's unit, or choose scope=corpus."
            )
        owner = (unit_id or "") if self.scope is Scope.UNIT else ""
        match operator:
            case Operator.HASH:
                return _bare(partial(_hashed, self.key, owner))
            case Operator.ENCRYPT:
                return self._encryption(owner)
            case Operator.SHIFT_DATES:
                shift = partial(self._shifted, days=_days(self.key, owner, max_days))
                return _bare(lambda _kind, value: shift(value) or MASK)
        source_of(self.locale)  # refuse one that nobody knows, and a missing package
        inventor = _Inventor(
            key=self.key,
            owner=owner,
            locale=self.locale,
            taken=self._taken if self.scope is Scope.UNIT else None,
            shift=partial(
                self._shifted, days=_days(self.key, owner, _YEAR, least=_YEAR + 1)
            ),
        )
        return _bare(inventor.invent)

    def _shifted(self, value: str, *, days: int) -> str | None:
        return shifted(value, days, month_first=self.locale == "en_US")

    def _encryption(self, owner: str) -> Replace:
        if self.encryption_key is None:
            raise ConfigError(
                "encryption_key must be given for operator=encrypt, got None. Set the "
                "variable that redaction.encryption_key names."
            )
        return _bare(partial(encrypted, _cipher(self.encryption_key), owner))


def _bare(make: Callable[[str, str], str]) -> Replace:
    """Leave blanks around a value as they are."""

    def replace(span: Span, value: str) -> str:
        bare = value.strip()
        if not bare:
            return value
        before, _, after = value.partition(bare)
        return f"{before}{make(span.entity_type, bare)}{after}"

    return replace


def _digest(key: bytes, *parts: str) -> bytes:
    """Return an HMAC-SHA256 of parts that no other parts share."""
    message = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (part.encode("utf-8", "surrogatepass") for part in parts)
    )
    return hmac.digest(key, message, "sha256")


def _days(key: bytes, owner: str, max_days: int, *, least: int = 1) -> int:
    """Draw the shift of a unit, forward or back: `max_days` numbers from the least."""
    drawn = int.from_bytes(_digest(key, "shift", owner), "big")
    days = least + drawn // 2 % max_days
    return days if drawn % 2 else -days


def _hashed(key: bytes, owner: str, kind: str, value: str) -> str:
    """Write a keyed hash of the form that all spellings of a value have."""
    digest = _digest(key, "hash", owner, kind, form_of(kind, value)).hex()
    return f"<{kind}:{digest[:_HASH_DIGITS]}>"


@lru_cache(maxsize=4)
def _cipher(key: bytes) -> AESSIV:
    """Derive the key of AES-256-SIV."""
    return AESSIV(hmac.digest(key, b"dptune encryption of values", "sha512"))


def encrypted(cipher: AESSIV, owner: str, kind: str, value: str) -> str:
    """Encrypt a value; equal values of one owner and type have equal ciphers.

    The owner is part of what is encrypted, so that units cannot be linked. Values are
    padded to 16 bytes, so that their length shows only roughly.

    References:
        RFC 5297, synthetic initialization vector: deterministic and authenticated.

    Raises:
        ConfigError: the type has a sign that ends what is written.
    """
    if {"<", ">"} & {*kind}:
        raise ConfigError(
            f"entity_type must have no < and no > for operator=encrypt, got {kind!r}. "
            "Rename the type; what is encrypted could not be found again."
        )
    named = hashlib.sha256(owner.encode("utf-8", "surrogatepass")).digest()
    data = value.encode("utf-8", "surrogatepass")
    padding = -len(data) % _PADDED_TO
    message = bytes([padding]) + named[:_OWNER_BYTES] + data + bytes(padding)
    sealed = cipher.encrypt(message, [kind.encode("utf-8", "surrogatepass")])
    return f"<{kind}:enc:{base64.urlsafe_b64encode(sealed).rstrip(b'=').decode()}>"


@dataclass(frozen=True, kw_only=True)
class Decrypted:
    """A text with its encrypted values turned back, hidden from `repr`.

    Args:
        text: what could not be read stays as it was.
        num_read, num_failed: values; those of another key, altered ones, and those
            that are cut off fail.
    """

    text: str = field(repr=False)
    num_read: int
    num_failed: int


def decrypt_text(text: str, key: bytes) -> Decrypted:
    """Turn the values of a text back that `ENCRYPT` wrote.

    >>> keys = Pseudonyms(key=bytes(16), encryption_key=bytes(16))
    >>> span = Span(start=0, end=3, entity_type="PERSON")
    >>> written = keys.replacement("u", operator=Operator.ENCRYPT)(span, "Ann")
    >>> decrypt_text(f"Hi {written}!", bytes(16)).text
    'Hi Ann!'

    Args:
        text: with values such as `<PERSON:enc:...>`.
        key: the encryption key of the redaction.
    """
    counts = {True: 0, False: 0}

    def back(match: re.Match[str]) -> str:
        value = _opened(_cipher(key), match[1], match[2]) if match[3] else None
        counts[value is not None] += 1
        return match[0] if value is None else value

    written = _ENCRYPTED.sub(back, text)
    return Decrypted(text=written, num_read=counts[True], num_failed=counts[False])


def _opened(cipher: AESSIV, kind: str, written: str) -> str | None:
    """Decrypt one value; None if it was altered or is of another key."""
    try:
        padded = written + "=" * (-len(written) % 4)
        sealed = base64.b64decode(padded, altchars=b"-_", validate=True)
        message = cipher.decrypt(sealed, [kind.encode("utf-8", "surrogatepass")])
    except (InvalidTag, ValueError):
        return None
    data = message[1 + _OWNER_BYTES :]
    return data[: len(data) - message[0]].decode("utf-8", "surrogatepass")


@dataclass(frozen=True, kw_only=True)
class _Inventor:
    """Invents values for one owner."""

    key: bytes = field(repr=False)
    owner: str
    locale: str
    shift: Callable[[str], str | None]
    taken: dict[tuple[str, ...], str] | None = field(repr=False)

    def invent(self, kind: str, value: str) -> str:
        """Draw until the result is neither the value itself nor another one's."""
        plain = form_of(kind, value)
        if kind == "DATE":
            return self.shift(value) or MASK
        maker = _MAKERS.get(kind, _number)
        drawn = (maker(self, value, attempt) for attempt in range(_ATTEMPTS))
        # a shape may leave nothing to draw
        form = partial(form_of, kind)
        return self.choose("value", plain, drawn, form=form) or f"<{kind}>"

    def choose(
        self,
        what: str,
        plain: str,
        candidates: Iterable[str],
        *,
        form: Callable[[str], str] = one_form,
    ) -> str:
        """Return the first candidate that is free, else the first that is not itself.

        Args:
            what: among what candidates must differ.
            plain: the form of what they stand for, which has each of them to itself.
            candidates: in order of preference.
            form: of a candidate.
        """
        shared = ""
        for made in candidates:
            drawn = form(made)
            if drawn == plain or not made.strip():
                continue
            if self.taken is None:
                return made
            if self.taken.setdefault((self.owner, what, drawn), plain) == plain:
                return made
            shared = shared or made
        return shared

    def random(self, *parts: str) -> random.Random:
        """Return the draws that belong to something of this owner."""
        return random.Random(_digest(self.key, self.owner, *parts))  # noqa: S311 - keyed

    def source(self, *parts: str) -> Any:  # noqa: ANN401  # Faker has no useful types
        """Return Faker, seeded for something of this owner."""
        source = source_of(self.locale)
        seed = _digest(self.key, self.owner, *parts)
        source.seed_instance(int.from_bytes(seed, "big"))
        return source

    def names(self) -> NameMaker:
        """Return how names of this owner are written."""
        return NameMaker(
            locale=self.locale,
            draw=partial(self.random, "name"),
            choose=partial(self.choose, "word"),
        )


def _person(inventor: _Inventor, value: str, attempt: int) -> str:
    return inventor.names().name(value, attempt)


def _organization(inventor: _Inventor, value: str, _attempt: int) -> str:
    """Invent a company; `Acme` and `Acme Inc.` are one."""
    words = value.split()
    tail: list[str] = []
    while len(words) > 1 and one_form(words[-1]) in _LEGAL:
        tail.insert(0, words.pop())
    plain = one_form(" ".join(words))
    drawn = (
        inventor.source("company", plain, str(attempt)).company()
        for attempt in range(_ATTEMPTS)
    )
    bare = (re.sub(_FORMS, "", company) for company in drawn)
    made = inventor.choose("company", plain, bare)
    return " ".join([cased(made, " ".join(words)), *tail])


def _place(inventor: _Inventor, value: str, attempt: int) -> str:
    source = inventor.source("city", one_form(value), str(attempt))
    return cased(str(source.city()), value)


def _address(inventor: _Inventor, value: str, attempt: int) -> str:
    source = inventor.source("address", one_form(value), str(attempt))
    return cased(str(source.street_address()), value)


def _people(inventor: _Inventor, value: str, attempt: int) -> str:
    names = ("Arlonian", "Belvarian", "Corvish", "Dalmaran", "Estrovian", "Fenlandic")
    drawn = inventor.random("people", one_form(value), str(attempt))
    return cased(drawn.choice(names), value)


def _email(inventor: _Inventor, value: str, attempt: int) -> str:
    """Invent an address whose names are those of the unit's persons."""
    local, sign, domain = value.rpartition("@")
    if not sign:
        return _number(inventor, value, attempt)
    made = _user(inventor, local, attempt)
    return cased(f"{made}@{_domain(inventor, domain)}", value)


def _domain(inventor: _Inventor, domain: str) -> str:
    """Invent a reserved domain (RFC 2606), the same for e-mail and web."""
    bare = one_form(domain.casefold().removeprefix("www."))
    drawn = (
        inventor.source("domain", bare, str(attempt)).domain_word()
        for attempt in range(_ATTEMPTS)
    )
    return f"{inventor.choose('domain', bare, drawn)}.invalid"


def _url(inventor: _Inventor, value: str, attempt: int) -> str:
    """Invent a host; a path tells what else stands on it apart."""
    scheme, sign, rest = value.partition("://")
    host = re.split(r"[/?#:]", rest if sign else value, maxsplit=1)[0]
    made = f"{scheme + sign if sign else ''}{_domain(inventor, host)}"
    if not attempt:
        return made
    path = in_shape(inventor.random("path", one_form(value), str(attempt)), "page")
    return f"{made}/{path}"


def _user(inventor: _Inventor, value: str, attempt: int) -> str:
    """Invent a user name from the names in it."""
    return inventor.names().name(value, attempt)


def _number(inventor: _Inventor, value: str, attempt: int) -> str:
    """Draw a number that begins with a zero only if the original does."""
    draw = inventor.random("shape", one_form(value), str(attempt))
    made = in_shape(draw, value)
    while _begins_with_zero(made) and not _begins_with_zero(value):
        made = in_shape(draw, value)
    return made


def _begins_with_zero(value: str) -> bool:
    return value.lstrip("+-")[:1] == "0"


def _numbered(make: Callable[[random.Random, str], str]) -> "_Maker":
    """Make what is invented from a number's shape alone."""

    def maker(inventor: _Inventor, value: str, attempt: int) -> str:
        draw = inventor.random("shape", one_form(value), str(attempt))
        return make(draw, value)

    return maker


def _ip(inventor: _Inventor, value: str, attempt: int) -> str:
    """Draw from what is nobody's: for documents (RFC 5737, 3849), for tests (2544)."""
    draw = inventor.random("ip", form_of("IP", value), str(attempt))
    if ":" in value:
        return f"2001:db8::{draw.randint(1, 65535):x}:{draw.randint(1, 65535):x}"
    if attempt < 3:
        return f"203.0.113.{draw.randint(1, 254)}"
    return f"198.{draw.randint(18, 19)}.{draw.randint(0, 255)}.{draw.randint(1, 254)}"


_Maker = Callable[[_Inventor, str, int], str]
_MAKERS: dict[str, _Maker] = {
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
    "USERNAME": _user,
    "CREDIT_CARD": _numbered(card_number),
    "SSN": _numbered(social_security),
    "IBAN": _numbered(iban),
    "IP": _ip,
}
