"""Recognizer without a model: capitals, unknown words, readings of an English lexicon.

It finds a superset of what a trained pipeline would: a word is a name if it is
capitalized in mid-sentence or unknown to the lexicon; in the contextual tiers a word
stays public only if its class is closed or it has no reading as a noun (high: or verb).
"""

import re
from collections.abc import Sequence

from dptune.detection.grammar import contextual_type
from dptune.detection.names import find_names, split_words
from dptune.detection.recognizer import Tier, code_digest, fingerprint_of
from dptune.detection.words import load_lexicon
from dptune.text import Span

_MODULES = ("lexicon", "names", "kinds", "grammar", "words")
_WORD_CONFIDENCE = 0.4
_HOLDS_DIGIT = re.compile(r"\b\w{0,40}\d\w{0,40}")
_HAS_LETTER = re.compile(r"[^\W\d_]")


class LexiconRecognizer:
    """Finds names, and in contextual tiers the words around them.

    Names that a text introduces (`my name is ...`, `Dr. ...`) and members of
    capitalized runs are sensitive everywhere in the same text.

    Args:
        tier: both entity tiers behave alike.
    """

    name = "lexicon"

    def __init__(self, *, tier: Tier) -> None:
        self._tier = tier
        self.fingerprint = fingerprint_of(
            (self.name, tier, load_lexicon().digest, code_digest(*_MODULES))
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text, disjoint and sorted."""
        return [self._spans(text) for text in texts]

    def _spans(self, text: str) -> list[Span]:
        if not _HAS_LETTER.search(text):
            return []
        words = split_words(text)
        spans = [self._span(*name) for name in find_names(text, words)]
        if self._tier.is_contextual:
            is_high = self._tier is Tier.HIGH_CONTEXTUAL
            spans += [
                self._span(word.start, word.end, kind, _WORD_CONFIDENCE)
                for position, word in enumerate(words)
                if not word.entity_type
                and (kind := contextual_type(text, words, position, is_high=is_high))
            ]
            spans += [
                self._span(*match.span(), "CARDINAL", _WORD_CONFIDENCE)
                for match in _HOLDS_DIGIT.finditer(text)
            ]
            spans.sort()
        return spans

    def _span(self, start: int, end: int, entity_type: str, confidence: float) -> Span:
        return Span(
            start=start,
            end=end,
            entity_type=entity_type,
            recognizer=self.name,
            confidence=confidence,
        )
