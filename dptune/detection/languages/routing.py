"""Who reads what: texts go to the recognizers of their language.

A recognizer of one language is given the parts of a text in that language, the rest as
blanks, so that places stay what they are. What is in no language that can be told
stays with English, whose lexicon masks every word that it does not know.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from dptune.detection.languages.identify import (
    UNDETERMINED,
    Part,
    language_of,
    parts_of,
)
from dptune.detection.languages.tables import LANGUAGES, data_bytes
from dptune.detection.recognizer import Recognizer, Tier, code_digest, fingerprint_of
from dptune.detection.settings import UnknownLanguage
from dptune.text import Span

_ENGLISH_READERS = frozenset({"lexicon", "tagger"})
_NO_PIPELINES: Mapping[str, str] = MappingProxyType({})


def languages_read(
    recognizers: Sequence[str],
    *,
    spacy_pipeline: str | None = None,
    spacy_pipelines: Mapping[str, str] = _NO_PIPELINES,
    declared: Sequence[str] = (),
) -> frozenset[str]:
    """Return the languages that a detector reads.

    >>> sorted(languages_read(["patterns", "lexicon"], declared=["sv"]))
    ['en', 'sv']

    Args:
        recognizers: their names.
        spacy_pipeline: of the recognizer `spacy`; its name begins with its language.
        spacy_pipelines: pipelines by language.
        declared: what the others read, on somebody's word.
    """
    read = {"en", *spacy_pipelines, *declared}
    if "languages" in recognizers:
        read.update(LANGUAGES)
    if spacy_pipeline is not None:
        read.add(Path(spacy_pipeline).name.partition("_")[0])
    return frozenset(read)


def routed(
    recognizers: Sequence[Recognizer],
    *,
    tier: Tier,
    known: frozenset[str],
    unknown: UnknownLanguage,
    spacy_pipeline: str | None = None,
    spacy_pipelines: Mapping[str, str] = _NO_PIPELINES,
) -> list[Recognizer]:
    """Give readers of English what is theirs, and add pipelines of other languages.

    In contextual tiers the rules of other languages do not take the lexicon's place:
    they find names and values, not the words around them.

    Args:
        recognizers: as they were named.
        tier: what counts as sensitive.
        known: languages that any recognizer reads.
        unknown: what happens to texts in other ones.
        spacy_pipeline: of the recognizer `spacy`; its name begins with its language.
        spacy_pipelines: pipelines by language.
    """
    others = frozenset(spacy_pipelines)
    if "languages" in {r.name for r in recognizers} and not tier.is_contextual:
        others |= frozenset(LANGUAGES)
    unread = unknown is UnknownLanguage.KEEP
    is_english = Path(spacy_pipeline or "").name.startswith("en_")
    readers = _ENGLISH_READERS | ({"spacy"} if is_english else set())
    found = [
        ForLanguages(r, others=others, unread=unread, known=known)
        if r.name in readers and (others or unread)
        else r
        for r in recognizers
    ]
    return [*found, *_pipelines_of(spacy_pipelines, tier)]


def _pipelines_of(spacy_pipelines: Mapping[str, str], tier: Tier) -> list[Recognizer]:
    """Build the spaCy pipelines that read one language each."""
    if not spacy_pipelines:
        return []
    from dptune.detection.third_party import SpacyRecognizer  # noqa: PLC0415  # slow

    return [
        ForLanguages(SpacyRecognizer(pipeline=pipeline, tier=tier), only=language)
        for language, pipeline in sorted(spacy_pipelines.items())
    ]


class ForLanguages:
    """Gives a recognizer the parts of a text that are its own, the rest as blanks.

    Args:
        inner: reads what is left.
        others: languages that it does not judge; everything else is its own.
        only: the one language that it judges; the others then count for nothing.
        unread: whether texts in a language that nobody knows are kept from it too.
        known: languages that any recognizer of the detector knows.
    """

    def __init__(
        self,
        inner: Recognizer,
        *,
        others: frozenset[str] = frozenset(),
        only: str = "",
        unread: bool = False,
        known: frozenset[str] = frozenset(),
    ) -> None:
        self.inner = inner
        self._others = others
        self._only = only
        self._unread = unread
        self._known = known

    @property
    def name(self) -> str:
        """Name of the recognizer that reads."""
        return self.inner.name

    @property
    def fingerprint(self) -> str:
        """Digest of the recognizer and of what it is given."""
        own = (self._only, str(self._unread), *sorted(self._others))
        tables = (code_digest("languages/identify", "languages/tables"), *data_bytes())
        return fingerprint_of((self.inner.fingerprint, *own, *tables))

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text."""
        return self.inner.recognize([self._own(text) for text in texts])

    def _own(self, text: str) -> str:
        """Blank what another recognizer judges."""
        parts = parts_of(text)
        if self._unread and language_of(text) not in (self._known | {UNDETERMINED}):
            return ""
        if all(map(self._is_own, parts)):
            return text
        return "".join(
            text[p.start : p.end] if self._is_own(p) else _blank(text[p.start : p.end])
            for p in parts
        )

    def _is_own(self, part: Part) -> bool:
        if self._only:
            return part.language == self._only
        return part.language not in self._others


def _blank(text: str) -> str:
    """Return blanks of equal length; lines end where they did."""
    return "".join("\n" if character == "\n" else " " for character in text)
