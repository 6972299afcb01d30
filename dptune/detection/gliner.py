"""Recognizer that runs a GLiNER model from a local folder."""

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
from dptune.errors import DependencyError
from dptune.settings import Settings
from dptune.text import Span

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
_CHUNK = re.compile(r"(?s).{1,1200}(?:\s|$)|.{1200}|.+")


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
                _version(),
                str(threshold),
                code_digest("gliner"),
                digest_of_files(Path(model)),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text."""
        if self._model is None:
            self._model = _load(self._folder)
        return [list(self._spans(text)) for text in texts]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded model behind when a worker process gets a copy."""
        return {**self.__dict__, "_model": None}

    def _spans(self, text: str) -> Iterator[Span]:
        for chunk in _CHUNK.finditer(text):
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


def _version() -> str:
    try:
        return importlib.metadata.version("gliner")
    except importlib.metadata.PackageNotFoundError as error:
        raise DependencyError(
            "the recognizer gliner needs the package gliner, which is not installed. "
            "Its release 0.2.29 asks for transformers below 5.17: run "
            "`pip install --no-deps gliner==0.2.29 sentencepiece`."
        ) from error


def _load(folder: str) -> Any:  # noqa: ANN401  # an extra without types
    from gliner import GLiNER  # noqa: PLC0415  # an extra, slow to import

    return GLiNER.from_pretrained(folder, local_files_only=True)
