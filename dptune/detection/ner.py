"""Recognizer that runs a trained spaCy pipeline, for the tiers exactly as published."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import spacy
import spacy.about

from dptune.detection.recognizer import (
    Tier,
    code_digest,
    digest_of_files,
    entity_types,
    fingerprint_of,
)
from dptune.errors import DependencyError, DetectionError
from dptune.text import Span

_CONFIDENCE = 0.7
_BATCH_SIZE = 1  # company changes the last bits of scores, and so marks near a tie
_CHUNK = 100_000  # characters; spaCy refuses texts of more than a million


class SpacyRecognizer:
    """Finds what a spaCy pipeline calls an entity and, in contextual tiers, the rest.

    Low entity keeps PERSON, ORG, DATE and places; high entity all types. Low contextual
    adds PROPN and PRON by part of speech, and subjects and objects by dependency; high
    contextual adds VERB and the roots. Only the pipes that a tier needs are run.

    Args:
        pipeline: an installed package such as `en_core_web_sm`, or a local folder.
        tier: what counts as sensitive.

    References:
        Shi, Shea, Chen, Zhang, Jia, Yu (2022), "Just Fine-tune Twice", section 4.
    """

    name = "spacy"

    def __init__(self, *, pipeline: str, tier: Tier) -> None:
        self._pipeline = pipeline
        self._tier = tier
        self._kept = entity_types(tier)
        self._language: Any = None
        self._fingerprint: str | None = None

    @property
    def fingerprint(self) -> str:
        """Digest of tier, spaCy, and the pipeline's name, version, config, weights."""
        if self._fingerprint is None:
            language = self._load()
            meta = language.meta
            self._fingerprint = fingerprint_of(
                (
                    self.name,
                    self._tier,
                    code_digest("ner"),
                    spacy.about.__version__,
                    f"{meta.get('lang')}_{meta.get('name')}-{meta.get('version')}",
                    language.config.to_str(),
                    digest_of_files(Path(language.path)),
                )
            )
        return self._fingerprint

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text; entities and words may overlap.

        Raises:
            DependencyError: the pipeline is not installed.
            DetectionError: the pipeline lacks a pipe that the tier needs.
        """
        language = self._load()
        found: list[list[Span]] = [[] for _ in texts]
        chunks = (
            (text[offset : offset + _CHUNK], (position, offset))
            for position, text in enumerate(texts)
            for offset in _cuts(text)
        )
        stream = language.pipe(chunks, as_tuples=True, batch_size=_BATCH_SIZE)
        for document, (position, offset) in stream:
            found[position] += self._spans(document, offset)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded pipeline behind when a worker process gets a copy."""
        return {**self.__dict__, "_language": None}

    def _load(self) -> Any:  # noqa: ANN401  # spaCy has no types
        """Load the pipeline on first use and enable only what the tier needs."""
        if self._language is None:
            self._language = _load_pipeline(self._pipeline)
            _enable(self._language, self._pipeline, self._tier)
        return self._language

    def _spans(self, document: Any, offset: int) -> Iterator[Span]:  # noqa: ANN401
        for entity in document.ents:
            if entity.label_ in self._kept:
                yield self._span(
                    entity.start_char, entity.end_char, entity.label_, offset
                )
        if self._tier.is_contextual:
            is_high = self._tier is Tier.HIGH_CONTEXTUAL
            for token in document:
                kind = _contextual_type(token, is_high=is_high)
                if kind and not token.is_space and not token.is_punct:
                    yield self._span(token.idx, token.idx + len(token), kind, offset)

    def _span(self, start: int, end: int, entity_type: str, offset: int) -> Span:
        return Span(
            start=start + offset,
            end=end + offset,
            entity_type=entity_type,
            recognizer=self.name,
            confidence=_CONFIDENCE,
        )


def _contextual_type(token: Any, *, is_high: bool) -> str:  # noqa: ANN401
    """Return PROPN, PRON, NOUN (subject or object), VERB, or nothing."""
    if token.pos_ in ("PROPN", "PRON"):
        return str(token.pos_)
    if "subj" in token.dep_ or "obj" in token.dep_:
        return "NOUN"
    if is_high and (token.pos_ == "VERB" or token.dep_ == "ROOT"):
        return "VERB"
    return ""


def _load_pipeline(pipeline: str) -> Any:  # noqa: ANN401
    try:
        return spacy.load(pipeline)
    except OSError as error:
        raise DependencyError(
            f"the spaCy pipeline {Path(pipeline).name} is not installed. Run "
            f"`python -m spacy download {Path(pipeline).name}`; without a network, set "
            "spacy_pipeline to a local folder that holds an unpacked pipeline."
        ) from error


def _enable(language: Any, pipeline: str, tier: Tier) -> None:  # noqa: ANN401
    """Disable the pipes that a tier does not need; refuse if one is missing."""
    needed = ["ner", "tagger", "parser"] if tier.is_contextual else ["ner"]
    missing = [pipe for pipe in needed if pipe not in language.pipe_names]
    if missing:
        raise DetectionError(
            f"the pipeline must have {', '.join(needed)} for tier={tier}, but "
            f"{Path(pipeline).name} lacks {', '.join(missing)}. Use a full pipeline "
            "such as en_core_web_sm."
        )
    if not tier.is_contextual:
        shared = ["transformer", *(["tok2vec"] if _ner_listens(language) else [])]
        enabled = [p for p in language.pipe_names if p == "ner" or p in shared]
        language.select_pipes(enable=enabled)


def _ner_listens(language: Any) -> bool:  # noqa: ANN401
    """True if the entity pipe reads the vectors of a shared `tok2vec` pipe."""
    model = language.config["components"]["ner"].get("model", {})
    architecture = str(model.get("tok2vec", {}).get("@architectures", ""))
    return "Listener" in architecture


def _cuts(text: str) -> Iterator[int]:
    """Yield offsets of chunks; one for texts of ordinary length."""
    yield from range(0, max(len(text), 1), _CHUNK)
