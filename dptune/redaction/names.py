"""Invented names that fit together: part by part, with gender, initials and case.

Each word of a name is replaced by itself, so that `Ann Lee`, `Ann`, `Ms Lee`, `A. Lee`
and `ann.lee@...` name one invented person. Whether a word is a given name, and whose,
is looked up in the lists of Faker's locales. Within a unit all names that begin with
one letter get names that begin with one other, so that initials fit too.
"""

import importlib
import random
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from dptune.errors import ConfigError, DependencyError
from dptune.redaction.surrogates import in_shape, script_of
from dptune.spellings import is_particle, is_title, one_form

Role = Literal["female", "male", "family"]

_LOCALES: Final = (
    *("en_US", "en_GB", "de_DE", "fr_FR", "es_ES", "it_IT", "nl_NL", "pt_BR", "pl_PL"),
    *("tr_TR", "ru_RU", "zh_CN", "ja_JP", "ar_SA", "hi_IN"),
)
"""Lists that say what a word is in names."""
_LISTS: Final[Mapping[Role, tuple[str, ...]]] = {
    "female": ("first_names_female",),
    "male": ("first_names_male",),
    "family": ("last_names",),
}
_WORD: Final = "word"
_DIGITS: Final = "digits"
_ENOUGH: Final = 5
_SUFFIXES: Final = frozenset(["jr", "sr", "ii", "iii", "iv", "phd", "md", "esq"])
_DRAWS: Final = 50
_UNSPACED: Final = frozenset(["CJK", "HIRAGANA", "KATAKANA", "HANGUL"])


@lru_cache(maxsize=8)
def source_of(locale: str) -> Any:  # noqa: ANN401  # Faker has no useful types
    """Return Faker for a locale.

    Raises:
        DependencyError: Faker is not installed.
        ConfigError: it does not know the locale.
    """
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


@lru_cache(maxsize=32)
def _names(locale: str, role: Role) -> Mapping[str, float]:
    """Return names of a locale with their shares; empty where it has no list."""
    try:
        module = importlib.import_module(f"faker.providers.person.{locale}")
    except ImportError:
        return {}
    for attribute in _LISTS[role]:
        listed = getattr(module.Provider, attribute, ())
        weights = (
            listed if isinstance(listed, dict) else dict.fromkeys(_flat(listed), 1)
        )
        total = sum(weights.values()) or 1
        return {name: weight / total for name, weight in weights.items()}
    return {}


def _flat(listed: Iterable[Any]) -> Iterable[str]:
    """Yield names of a list, or of lists in it."""
    for item in listed:
        if isinstance(item, str):
            yield item
        else:
            yield from _flat(item)


@lru_cache(maxsize=1)
def _roles() -> Mapping[str, Role]:
    """Return for each known name what it is most often, by its normal form."""
    best: dict[str, tuple[float, Role]] = {}
    for role in _LISTS:
        for locale in _LOCALES:
            for name, share in _names(locale, role).items():
                plain = one_form(name)
                best[plain] = max(best.get(plain, (0.0, role)), (share, role))
    return {name: role for name, (_, role) in best.items()}


@lru_cache(maxsize=64)
def _pool(locale: str, role: Role) -> tuple[str, ...]:
    """Return names of one word to draw from; drawn by Faker where it has no list."""
    names = [n for n in _names(locale, role) if _is_word(n)]
    if len(names) < 2 * _ENOUGH:
        source = source_of(locale)
        source.seed_instance(0)
        draw = {"female": source.first_name_female, "male": source.first_name_male}
        more = (draw.get(role, source.last_name)() for _ in range(300))
        names += [name for name in more if _is_word(name)]
    return tuple(dict.fromkeys(names)) or (source_of(locale).last_name(),)


@lru_cache(maxsize=8)
def _initials(locale: str) -> tuple[str, ...]:
    """Return the letters that enough names of every kind begin with."""
    counts = [Counter(name[0] for name in _pool(locale, role)) for role in _LISTS]
    common = set.intersection(*map(set, counts))
    return tuple(sorted(c for c in common if all(n[c] >= _ENOUGH for n in counts)))


@lru_cache(maxsize=1024)
def _names_from(locale: str, role: Role, initial: str) -> tuple[tuple[str, str], ...]:
    """Return names that begin with a letter, or all, with their normal forms."""
    return tuple(
        (name, one_form(name))
        for name in _pool(locale, role)
        if name.startswith(initial)
    )


def _is_given(word: str) -> bool:
    """Whether a word is a given name, as `Don` and `Ben` are, whatever else it is."""
    return word[:1].isupper() and _roles().get(one_form(word)) in {"female", "male"}


def _titles(pieces: Sequence[tuple[str, str]]) -> set[int]:
    """Return the places of titles: before a name or a comma's, or suffixes behind it.

    `Lord` is one in `Lord Byron`, not in `John Lord`.
    """
    found: set[int] = set()
    leads, is_first, before_comma = True, True, list[int]()
    for place, (kind, text) in enumerate(pieces):
        if kind != _WORD:
            if "," in text:
                leads, is_first = True, False
            continue
        if is_first:
            before_comma.append(place)
        if not is_title(text) or _is_given(text):
            leads = False
        elif leads or text.casefold() in _SUFFIXES:
            found.add(place)
    if found.issuperset(before_comma):  # nobody is called by titles alone
        found -= {*before_comma[-1:]}
    return found


def _pieces(value: str) -> Iterator[tuple[str, str]]:
    """Cut a name into words, with their marks and apostrophes, digits, and signs."""
    start = 0
    while start < len(value):
        kind, end = _kind(value[start]), start + 1
        while end < len(value) and (
            _kind(value[end]) == kind
            or (
                kind == _WORD and value[end] in "'’" and _kind(value[end + 1 : end + 2])
            )
        ):
            end += 1
        yield kind, value[start:end]
        start = end


def _kind(character: str) -> str:
    """Tell letters, with the marks on them, from digits and signs."""
    if character.isalpha() or unicodedata.category(character or " ")[0] == "M":
        return _WORD
    return _DIGITS if character.isnumeric() else ""


def _is_word(name: str) -> bool:
    """Whether a name is one word, which many scripts cannot write without marks."""
    return all(_kind(character) == _WORD for character in name)


@dataclass(frozen=True, kw_only=True)
class NameMaker:
    """Writes invented names of one owner.

    Args:
        locale: of the names.
        draw: returns the draws that belong to the words that it is given.
        choose: returns for a word's form the first candidate that is no other word's.
    """

    locale: str
    draw: Callable[..., random.Random]
    choose: Callable[[str, Iterable[str]], str]

    def name(self, value: str, attempt: int) -> str:
        """Replace every word and digit of a name; signs, blanks and titles stay.

        Particles of family names go, since they tell where a name is from.
        """
        seen = (c for c in value if unicodedata.category(c) != "Cf")
        pieces = list(_pieces(unicodedata.normalize("NFKC", "".join(seen))))
        only = all(is_particle(text) for kind, text in pieces if kind == _WORD)
        titles = _titles(pieces)
        digits = self.draw("digits", one_form(value), str(attempt))
        made: list[str] = []
        follows_particle = False
        for place, (kind, text) in enumerate(pieces):
            if follows_particle and text.isspace():
                continue
            follows_particle = False
            if kind == _DIGITS:
                made.append(in_shape(digits, text))
            elif kind != _WORD or place in titles:
                made.append(text)
            elif is_particle(text) and not only and (place or not _is_given(text)):
                follows_particle = True
            else:
                made.append(self._word(text))
        return "".join(made)

    def _word(self, word: str) -> str:
        """Invent one word; other words of the owner get others, while there are any."""
        plain = one_form(word)
        script = script_of(word)
        if script != script_of(_pool(self.locale, "family")[0]):
            return self.choose(
                plain,
                (in_shape(self.draw(plain, str(n)), word) for n in range(_DRAWS)),
            )
        if script in _UNSPACED and len(word) > 1:
            return self.choose(plain, self._unspaced(plain))
        initial = self._initial(word)
        if len(word) == 1 and initial:
            return cased(initial, word)
        role = _roles().get(plain, "family")
        return cased(self.choose(plain, self._names(role, initial, plain)), word)

    def _names(self, role: Role, initial: str, plain: str) -> Iterator[str]:
        """Yield all names of a role, those with the initial first."""
        draw = self.draw(role, plain)
        for letter in dict.fromkeys((initial, "")):
            names = [n for n, p in _names_from(self.locale, role, letter) if p != plain]
            yield from draw.sample(names, len(names))

    def _unspaced(self, plain: str) -> Iterator[str]:
        """Draw whole names of scripts without blanks."""
        draw = self.draw(plain)
        for _ in range(_DRAWS):
            given: Role = draw.choice(("female", "male"))
            parts = (_pool(self.locale, "family"), _pool(self.locale, given))
            yield "".join(draw.choice(pool) for pool in parts)

    def _initial(self, word: str) -> str:
        """Return the letter that names of this letter begin with, never itself."""
        letters = list(_initials(self.locale))
        first = one_form(word)[:1].upper()
        if len(letters) < 2:
            return ""
        self.draw("initials").shuffle(letters)
        place = ord(first[:1] or "A") % len(letters)
        found = letters[place]
        return letters[(place + 1) % len(letters)] if found == first else found


def cased(made: str, value: str) -> str:
    """Write an invented value in the case of the original."""
    if value.islower():
        return made.lower()
    return made.upper() if len(value) > 1 and value.isupper() else made
