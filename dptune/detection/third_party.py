"""Recognizers that run others' models and rules: spaCy, Presidio and GLiNER.

Of Presidio only pattern recognizers run that need no model and no network: those of
e-mail and web addresses fetch a list of suffixes, so the rules of `patterns` stand in.
Packages and models load on first use, from this machine alone.
"""

import importlib.metadata
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from dptune.detection.recognizer import (
    Tier,
    code_digest,
    digest_of_files,
    entity_types,
    fingerprint_of,
)
from dptune.errors import DependencyError, DetectionError
from dptune.settings import Settings
from dptune.text import Span

_CONFIDENCE = 0.7
_BATCH_SIZE = 1  # company changes the last bits of scores, and so marks near a tie
_CHUNK = 100_000  # characters; spaCy refuses texts of more than a million


_OTHER_LABELS = {
    "PER": "PERSON",
    "MISC": "ENTITY",
    "persName": "PERSON",
    "orgName": "ORG",
    "placeName": "GPE",
    "geogName": "LOC",
    "date": "DATE",
    "time": "TIME",
}
"""Labels of pipelines that were not trained on OntoNotes, such as those of WikiNER."""


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
                    code_digest("third_party"),
                    importlib.metadata.version("spacy"),
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
            for offset in range(0, max(len(text), 1), _CHUNK)
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
            import spacy  # noqa: PLC0415  # slow to import

            try:
                self._language = spacy.load(self._pipeline)
            except OSError as error:
                name = Path(self._pipeline).name
                raise DependencyError(
                    f"the spaCy pipeline {name} is not installed. Run `python -m spacy "
                    f"download {name}`; without a network, set spacy_pipeline to a "
                    "local folder that holds an unpacked pipeline."
                ) from error
            _enable(self._language, self._pipeline, self._tier)
        return self._language

    def _spans(self, document: Any, offset: int) -> Iterator[Span]:  # noqa: ANN401
        found = [
            (entity.start_char, entity.end_char, kind)
            for entity in document.ents
            if (kind := _OTHER_LABELS.get(entity.label_, entity.label_)) in self._kept
        ]
        if self._tier.is_contextual:
            is_high = self._tier is Tier.HIGH_CONTEXTUAL
            for token in document:
                kind = _contextual_type(token, is_high=is_high)
                if kind and not token.is_space and not token.is_punct:
                    found.append((token.idx, token.idx + len(token), kind))
        for start, end, kind in found:
            yield Span(
                start=start + offset,
                end=end + offset,
                entity_type=kind,
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


_LEAST_SCORE = 0.4
"""Presidio raises scores by context words only with a language model, so that a bare
pattern scores low; what scores lower still is dropped."""
_FETCHES = frozenset(["EmailRecognizer", "UrlRecognizer"])
_TYPES = {
    "CREDIT_CARD": "CREDIT_CARD",
    "CRYPTO": "CRYPTO",
    "DATE_TIME": "DATE",
    "IBAN_CODE": "IBAN",
    "IP_ADDRESS": "IP",
    "MAC_ADDRESS": "MAC",
    "MEDICAL_LICENSE": "LICENSE",
    "PHONE_NUMBER": "PHONE",
    "US_BANK_NUMBER": "ACCOUNT_ID",
    "US_DRIVER_LICENSE": "LICENSE",
    "US_PASSPORT": "PASSPORT",
    "US_SSN": "SSN",
    "UUID": "UUID",
}


class PresidioRecognizer:
    """Finds what Presidio's pattern recognizers call personal data.

    Args:
        tier: what counts as sensitive.
    """

    name = "presidio"

    def __init__(self, *, tier: Tier) -> None:
        self._kept = entity_types(tier)
        self._recognizers: list[Any] | None = None
        self.fingerprint = fingerprint_of(
            (
                self.name,
                tier,
                _version(
                    "presidio-analyzer", "`pip install presidio-analyzer==2.2.366`."
                ),
                code_digest("third_party"),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text; spans of different recognizers may overlap."""
        if self._recognizers is None:
            self._recognizers = list(_presidio_recognizers())
        return [list(self._spans(text, self._recognizers)) for text in texts]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded recognizers behind when a worker process gets a copy."""
        return {**self.__dict__, "_recognizers": None}

    def _spans(self, text: str, recognizers: list[Any]) -> Iterator[Span]:
        for recognizer in recognizers:
            hits = recognizer.analyze(text, recognizer.supported_entities, None)
            for hit in hits or ():
                kind = _TYPES.get(hit.entity_type, "NATIONAL_ID")
                is_likely = hit.score >= _LEAST_SCORE and hit.start < hit.end
                if is_likely and kind in self._kept:
                    yield Span(
                        start=hit.start,
                        end=hit.end,
                        entity_type=kind,
                        recognizer=self.name,
                        confidence=min(1.0, float(hit.score)),
                    )


def _presidio_recognizers() -> Iterator[Any]:
    """Yield Presidio's recognizers that work on text alone."""
    from presidio_analyzer import (  # noqa: PLC0415  # an extra, slow to import
        PatternRecognizer,
        RecognizerRegistry,
    )

    registry = RecognizerRegistry()
    registry.load_predefined_recognizers(languages=["en"])
    for recognizer in registry.recognizers:
        kind = type(recognizer).__name__
        is_plain = (
            isinstance(recognizer, PatternRecognizer) or kind == "PhoneRecognizer"
        )
        if is_plain and kind not in _FETCHES:
            yield recognizer


_LABELS = {
    "person": "PERSON",
    "organization": "ORG",
    "location": "GPE",
    "address": "ADDRESS",
    "date": "DATE",
    "phone number": "PHONE",
    "email": "EMAIL",
    "username": "USERNAME",
    "password": "SECRET",
    "identification number": "ID",
    "account number": "ACCOUNT_ID",
    "nationality or religion": "NORP",
    "medical condition": "HEALTH",
}
_GLINER_CHUNK = re.compile(r"(?s).{1,1200}(?:\s|$)|.{1200}|.+")


class GlinerSettings(Settings):
    """A GLiNER model, as it stands in a configuration.

    Args:
        model: local folder with the model's files; nothing is downloaded.
        threshold: least score of a hit.
    """

    model: str = Field(min_length=1)
    threshold: float = Field(default=0.3, gt=0, lt=1)


class GlinerRecognizer:
    """Finds what a GLiNER model calls by one of thirteen labels.

    Args:
        model: local folder with the model's files; nothing is downloaded.
        tier: what counts as sensitive.
        threshold: least score of a hit, in (0, 1).

    References:
        Zaratiana et al. (2024), "GLiNER", NAACL, https://arxiv.org/abs/2311.08526
    """

    name = "gliner"

    def __init__(self, *, model: str, tier: Tier, threshold: float = 0.3) -> None:
        self._folder = model
        self._kept = entity_types(tier) | {"HEALTH"}
        self._threshold = threshold
        self._model: Any = None
        self.fingerprint = fingerprint_of(
            (
                self.name,
                tier,
                _version(
                    "gliner",
                    "`pip install --no-deps gliner==0.2.29 sentencepiece`: release "
                    "0.2.29 asks for transformers below 5.17.",
                ),
                str(threshold),
                code_digest("third_party"),
                digest_of_files(Path(model)),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text."""
        if self._model is None:
            from gliner import GLiNER  # noqa: PLC0415  # an extra, slow to import

            self._model = GLiNER.from_pretrained(self._folder, local_files_only=True)
        return [list(self._spans(text)) for text in texts]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded model behind when a worker process gets a copy."""
        return {**self.__dict__, "_model": None}

    def _spans(self, text: str) -> Iterator[Span]:
        for chunk in _GLINER_CHUNK.finditer(text):
            if not chunk.group().strip():
                continue
            hits = self._model.predict_entities(
                chunk.group(), list(_LABELS), threshold=self._threshold
            )
            for hit in hits:
                kind = _LABELS[hit["label"]]
                if kind in self._kept and hit["start"] < hit["end"]:
                    yield Span(
                        start=chunk.start() + hit["start"],
                        end=chunk.start() + hit["end"],
                        entity_type=kind,
                        recognizer=self.name,
                        confidence=min(1.0, float(hit["score"])),
                    )


def _version(package: str, command: str) -> str:
    """Return the version of an optional package.

    Raises:
        DependencyError: it is not installed; the message has the command.
    """
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise DependencyError(
            f"the recognizer needs the package {package}, which is not installed. "
            f"Run {command}"
        ) from error
