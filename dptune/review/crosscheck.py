"""A second opinion of a language model on sentences, which can only add caution.

What the detector marked is replaced before anything is sent. The model lists what it
thinks is left; nothing that it says ever takes a mark back. A sentence is agreed on
only if a valid, whole answer with its control lists nothing; whatever else happens, it
stays sensitive as a whole:

* AGREE: a valid answer that lists nothing of the sentence.
* DISAGREE: a valid answer that lists something, with where it stands.
* UNAVAILABLE: no connection, time-out, refusal, bad JSON, an answer that was cut off,
  lists what is not there or lacks the control; or the text speaks to a model, and is
  not even sent.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from dptune.detection.endpoint import Endpoint
from dptune.detection.llm import LlmRecognizer, requests_of
from dptune.detection.recognizer import (
    UNAVAILABLE,
    Recognizer,
    Tier,
    fingerprint_of,
)
from dptune.detection.union import union_fingerprint, unite
from dptune.review.sample import Excerpt
from dptune.text import Span

# A text that gives orders to its reader may talk a model into silence, so no answer
# about it counts. Too wide is safe: such a sentence stays sensitive.
_ADDRESSES_A_MODEL: Final = re.compile(
    r"(?is)\b(?:ignore|disregard|forget|override|bypass)\b.{0,60}\b(?:instruct\w*|prompt"
    r"|rules?|above|previous|prior|everything|told)\b"
    r"|\b(?:system|assistant|developer)\s*(?:prompt|message|role|:)"
    r"|\byou are (?:now |an? )?(?:\w+ )?(?:ai|assistant|model|chatbot|bot)\b"
    r"|\b(?:respond|reply|answer|output|return|print)\b.{0,40}\b(?:json|only|empty|"
    r"nothing|findings|list)\b"
    r"|\bfindings\b|<\|[a-z_]+\|>|\[/?inst\]|```|###\s*(?:instruction|system)"
    r"|\b(?:list|mention|report)\b.{0,30}\b(?:no|none|nothing|only)\b"
)


class Opinion(StrEnum):
    """What came of asking about one sentence."""

    AGREE = "agree"
    DISAGREE = "disagree"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, kw_only=True)
class CheckedSentence:
    """One sentence of a text and the opinion on it.

    Args:
        start, end: code points of the text.
        opinion: anything but `AGREE` keeps the sentence sensitive.
        doubts: what the model lists, in code points of the text.
    """

    start: int
    end: int
    opinion: Opinion
    doubts: tuple[tuple[int, int], ...] = ()


def check_excerpt(checker: "CrossCheck", excerpt: Excerpt) -> CheckedSentence:
    """Ask about a sampled sentence; its marks are replaced before anything is sent.

    A sentence that the checker reads as several has the worst of their opinions.
    """
    marks = [
        Span(start=m.start, end=m.end, entity_type=m.entity_type)
        for m in excerpt.sentence.marks
    ]
    parts = checker.check(excerpt.text, marks)
    worst = max((part.opinion for part in parts), key=_ORDER.index)
    return CheckedSentence(
        start=0,
        end=len(excerpt.text),
        opinion=worst,
        doubts=tuple(doubt for part in parts for doubt in part.doubts),
    )


_ORDER: Final = (Opinion.AGREE, Opinion.DISAGREE, Opinion.UNAVAILABLE)


class _Given:
    """Stands in for recognizers that have run already: gives the marks of one text."""

    name = "given"
    fingerprint = "given"

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the marks for the one text that is asked about."""
        return [list(self.spans) for _ in texts]


class CrossCheck:
    """Marks every sentence on which a language model does not agree.

    It is a recognizer: added to a detector it can only widen what is marked.

    Args:
        endpoint: whom to ask.
        tier: what counts as sensitive.
        known: recognizers whose marks are replaced before anything is sent.
    """

    name = "cross_check"
    may_be_unavailable = True

    def __init__(
        self, *, endpoint: Endpoint, tier: Tier, known: Sequence[Recognizer]
    ) -> None:
        asked = LlmRecognizer(endpoint=endpoint, tier=tier, known=known)
        self._known = tuple(known)
        self._given = _Given()
        self._model = LlmRecognizer(endpoint=endpoint, tier=tier, known=[self._given])
        self.fingerprint = fingerprint_of(
            (
                self.name,
                asked.fingerprint,
                union_fingerprint(),
                fingerprint_of((_ADDRESSES_A_MODEL.pattern, "1")),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return whole sentences that are not agreed on."""
        found = [recognizer.recognize(texts) for recognizer in self._known]
        return [
            [
                Span(
                    start=one.start,
                    end=one.end,
                    entity_type=UNAVAILABLE,
                    recognizer=self.name,
                    confidence=0.3,
                )
                for one in self.check(text, [s for row in rows for s in row])
                if one.opinion is not Opinion.AGREE
            ]
            for text, *rows in zip(texts, *found, strict=True)
        ]

    def check(self, text: str, marks: Sequence[Span]) -> list[CheckedSentence]:
        """Ask about every sentence of a text that holds letters outside its marks.

        Args:
            text: the text; only what lies outside the marks is sent.
            marks: spans that are known to be sensitive.
        """
        known = unite(marks, text)
        whole = _ADDRESSES_A_MODEL.search(text) is not None
        checked = []
        for start, end in requests_of(text, known, 1):
            own = text[start:end]
            if not any(map(str.isalnum, own)):
                continue
            if whole:
                unasked = Opinion.UNAVAILABLE
                checked.append(CheckedSentence(start=start, end=end, opinion=unasked))
                continue
            inside = [s for s in known if s.start >= start and s.end <= end]
            checked.append(self._ask(own, inside, start, end))
        return checked

    def _ask(
        self, own: str, marks: Sequence[Span], start: int, end: int
    ) -> CheckedSentence:
        """Ask about one sentence."""
        self._given.spans = [
            replace(span, start=span.start - start, end=span.end - start)
            for span in marks
        ]
        (listed,) = self._model.recognize([own])
        doubts = tuple((s.start + start, s.end + start) for s in listed)
        opinion = Opinion.DISAGREE if listed else Opinion.AGREE
        if any(span.entity_type == UNAVAILABLE for span in listed):
            opinion, doubts = Opinion.UNAVAILABLE, ()
        return CheckedSentence(start=start, end=end, opinion=opinion, doubts=doubts)
