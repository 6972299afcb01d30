"""What reviewers said must be marked, and what need not be, as keyed hashes.

A list holds no plain text: each entry is an HMAC of a normalized phrase. Who has the
file but not the key can neither read it nor test a guess. What is matched is the phrase
as a whole: words are compared without case, compatibility forms and separators.
"""

import hmac
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import Field

from dptune.detection.engine import DetectionEngine
from dptune.detection.escapes import EscapeReader
from dptune.detection.recognizer import chained, fingerprint_of, without_allowed
from dptune.detection.union import unite
from dptune.errors import ConfigError
from dptune.results import Report
from dptune.text import Span

KEY_BYTES: Final = 32
MAX_WORDS: Final = 12
_KEY_SIZES: Final = range(16, 65)
_MARKS: Final = "\u0300-\u036f\u0653-\u0655\u3099\u309a"
"""What NFD writes behind a letter, and NFC as one with it."""
_WORD: Final = re.compile(rf"\w[\w{_MARKS}]*")
_CUT_WORD: Final = re.compile(r"\w+")
"""As words were taken before: a mark ended one."""
_HAS_MARK: Final = re.compile(f"[{_MARKS}]")
_LETTERS: Final = re.compile(r"[^\W_]")
_DIGITS: Final = 32
_MOST_REMEMBERED: Final = 500_000


class DenyEntry(Report):
    """One phrase that must be marked wherever it stands.

    Args:
        name: keyed hash of the whole phrase.
        head: keyed hash of its first word, so that others are passed over quickly.
        num_words: how many words it has.
        entity_type: what to call it.
    """

    name: str = Field(pattern=r"^[0-9a-f]{32}$")
    head: str = Field(pattern=r"^[0-9a-f]{32}$")
    num_words: int = Field(ge=1, le=MAX_WORDS)
    entity_type: str = Field(default="UNKNOWN", pattern=r"^[A-Z][A-Z0-9_]{0,40}$")


class ReviewLists(Report):
    """Phrases that must be marked (`deny`), and false alarms (`allow`).

    Args:
        key_check: tells two keys apart and nothing else; empty while nothing is listed.
        allow: keyed hashes, sorted.
        deny: sorted by name.
    """

    key_check: str = ""
    allow: tuple[str, ...] = ()
    deny: tuple[DenyEntry, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Digest of all entries; empty where nothing is listed."""
        if not self.allow and not self.deny:
            return ""
        return fingerprint_of((self.model_dump_json(),))


@dataclass(frozen=True, kw_only=True)
class ListKey:
    """The secret under which phrases are hashed; hidden from `repr`.

    Raises:
        ConfigError: it is too short or too long.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse a key that is no secret."""
        if len(self.secret) not in _KEY_SIZES:
            raise ConfigError(
                f"review key must be 16 to 64 bytes, got {len(self.secret)} bytes. "
                "Make one with secrets.token_bytes(32) and keep it beside the lists."
            )

    @property
    def check(self) -> str:
        """What a list remembers of its key."""
        return self.name("check", "")

    def name(self, purpose: str, phrase: str) -> str:
        """Hash a phrase for one purpose (HMAC-SHA256, RFC 2104, 128 bits)."""
        message = f"{purpose}\x1f{phrase}".encode()
        return hmac.digest(self.secret, message, "sha256").hex()[:_DIGITS]

    def deny_entry(self, phrase: str) -> DenyEntry:
        """Name a phrase that must be marked.

        Raises:
            ConfigError: it has no letter or digit, or more than `MAX_WORDS` words.
        """
        words = _words(phrase)
        if not 1 <= len(words) <= MAX_WORDS:
            raise ConfigError(
                f"a phrase must have 1 to {MAX_WORDS} words, got {len(words)}. Mark "
                "the name alone, not the sentence."
            )
        return DenyEntry(
            name=self.name("deny", "".join(words)),
            head=self.name("head", words[0]),
            num_words=len(words),
            entity_type="UNKNOWN",
        )

    def allow_name(self, phrase: str) -> str:
        """Name a phrase that need not be marked."""
        return self.name("allow", _normalized(phrase))


def extended(
    lists: ReviewLists,
    key: ListKey,
    *,
    allow: Iterable[str] = (),
    deny: Iterable[DenyEntry] = (),
) -> ReviewLists:
    """Add entries; what is denied is no longer allowed, whoever said it first.

    Raises:
        ConfigError: the lists were made with another key.
    """
    check_key(lists, key)
    more = ReviewLists(key_check=key.check, allow=tuple(allow), deny=tuple(deny))
    return united(lists, more)


def united(one: ReviewLists, other: ReviewLists) -> ReviewLists:
    """Put two lists of one key together."""
    denied = {entry.name: entry for entry in (*one.deny, *other.deny)}
    return ReviewLists(
        key_check=one.key_check or other.key_check,
        allow=tuple(sorted({*one.allow, *other.allow})),
        deny=tuple(denied[name] for name in sorted(denied)),
    )


def check_key(lists: ReviewLists, key: ListKey) -> None:
    """Refuse another key than the lists', under which no entry would ever match.

    Raises:
        ConfigError: it is another one.
    """
    if lists.key_check and lists.key_check != key.check:
        raise ConfigError(
            "the review key must be the one that the lists were made with, but it is "
            "another. Restore the key file; without it the lists match nothing."
        )


class DenyRecognizer:
    """Marks every phrase on the deny list.

    Args:
        lists: made with `key`.
        key: their secret.
    """

    name = "deny_list"

    def __init__(self, lists: ReviewLists, key: ListKey) -> None:
        check_key(lists, key)
        self._key = key
        self._heads: dict[str, set[int]] = {}
        for entry in lists.deny:
            self._heads.setdefault(entry.head, set()).add(entry.num_words)
        self._types = {(e.name, e.num_words): e.entity_type for e in lists.deny}
        self._lengths: dict[str, tuple[int, ...]] = {}
        entries = (entry.model_dump_json() for entry in lists.deny)
        self.fingerprint = fingerprint_of((key.check, _WORD.pattern, *entries))

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text that are on the list."""
        return [list(self._found(text)) for text in texts]

    def _found(self, text: str) -> Iterator[Span]:
        """Look for words with their marks, and for those of lists of before."""
        yield from self._spans(text, _WORD)
        if _HAS_MARK.search(text):
            yield from self._spans(text, _CUT_WORD)

    def _spans(self, text: str, word_of: re.Pattern[str]) -> Iterator[Span]:
        words = [
            (m.start(), m.end(), _normalized(m[0]))
            for m in word_of.finditer(text)
            if _LETTERS.search(m[0])
        ]
        for first, (start, _, word) in enumerate(words):
            for length in self._lengths_of(word):
                part = words[first : first + length]
                name = self._key.name("deny", "".join(w for *_, w in part))
                kind = self._types.get((name, len(part)))
                if kind is not None:
                    yield Span(
                        start=start,
                        end=part[-1][1],
                        entity_type=kind,
                        recognizer=self.name,
                        confidence=0.9,
                    )

    def _lengths_of(self, word: str) -> tuple[int, ...]:
        """Lengths of the phrases that begin with a word; each word is hashed once."""
        known = self._lengths.get(word)
        if known is None:
            head = self._key.name("head", word)
            known = tuple(sorted(self._heads.get(head, ())))
            if len(self._lengths) < _MOST_REMEMBERED:
                self._lengths[word] = known
        return known


class AllowFilter:
    """Takes back spans whose whole text a reviewer called a false alarm.

    **Formal guarantee.** A span stays if its confidence is at least
    `CHECKSUM_CONFIDENCE`, if a deny entry found it, if a recognizer could not judge its
    text, or if it reaches beyond every allowed range. A name inside a longer span is
    never cut out of it.
    """

    def __init__(self, lists: ReviewLists, key: ListKey) -> None:
        check_key(lists, key)
        self._key = key
        self._allowed = frozenset(lists.allow)
        self._known: dict[str, bool] = {}
        self.fingerprint = fingerprint_of(("allow", key.check, *lists.allow))

    def keep(self, spans: Sequence[Span], text: str) -> list[Span]:
        """Return the spans that stay."""
        if not spans:
            return []
        ranges = {(s.start, s.end) for s in (*spans, *unite(spans, text))}
        allowed = [r for r in ranges if self._is_allowed(text[r[0] : r[1]])]
        return without_allowed(spans, allowed)

    def _is_allowed(self, value: str) -> bool:
        """Look a phrase up; each is hashed once."""
        phrase = _normalized(value)
        known = self._known.get(phrase)
        if known is None:
            known = self._key.name("allow", phrase) in self._allowed
            if len(self._known) < _MOST_REMEMBERED:
                self._known[phrase] = known
        return known


def with_lists(
    engine: DetectionEngine, lists: ReviewLists, key: ListKey
) -> DetectionEngine:
    """Return the engine as reviewers corrected it; the same where nothing is listed."""
    recognizers = [r for r in engine.parts if r.name != DenyRecognizer.name]
    if lists.deny:
        recognizers.append(EscapeReader(DenyRecognizer(lists, key)))
    return DetectionEngine(
        tier=engine.tier,
        recognizers=recognizers,
        span_filter=chained(
            engine.span_filter, AllowFilter(lists, key) if lists.allow else None
        ),
        rules=engine.rules,
        num_allowed=engine.num_allowed + len(lists.allow),
    )


def is_of_a_word(character: str) -> bool:
    """Whether a word goes on with a character: a letter, a digit, or a mark on one."""
    return character.isalnum() or _HAS_MARK.match(character) is not None


def _normalized(value: str) -> str:
    """Fold case, compatibility forms and separators; marks of other scripts stay.

    Accents stay where Unicode has a letter with them. An allow list must not take
    `Rosé` for `Rose`, nor one Hindi name for another.
    """
    form = unicodedata.normalize("NFKC", value).casefold()
    return "".join(filter(_is_said, form)) or form


def _is_said(character: str) -> bool:
    is_mark = unicodedata.category(character)[0] == "M"
    return character.isalnum() or (is_mark and not 0x300 <= ord(character) <= 0x36F)


def _words(phrase: str) -> list[str]:
    """Normalize the words of a phrase."""
    return [_normalized(m) for m in _WORD.findall(phrase) if _LETTERS.search(m)]
