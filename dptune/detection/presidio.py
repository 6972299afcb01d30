"""Recognizer that runs the pattern recognizers of Microsoft Presidio.

Only those that need no model and no network: the e-mail and web address recognizers
fetch a list of suffixes, so the rules of `patterns` stand in for them.
"""

import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any

from dptune.detection.recognizer import (
    Tier,
    code_digest,
    entity_types,
    fingerprint_of,
)
from dptune.errors import DependencyError
from dptune.text import Span

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
        countries: two-letter codes whose identifiers are looked for; None takes all.
        min_score: weaker hits are dropped; Presidio raises scores by context words only
            with a language model, so a bare pattern scores low.
    """

    name = "presidio"

    def __init__(
        self,
        *,
        tier: Tier,
        countries: Sequence[str] | None = None,
        min_score: float = 0.4,
    ) -> None:
        self._kept = entity_types(tier)
        self._countries = None if countries is None else sorted(countries)
        self._min_score = min_score
        self._recognizers: list[Any] | None = None
        self.fingerprint = fingerprint_of(
            (
                self.name,
                tier,
                _version(),
                str(self._countries),
                str(min_score),
                code_digest("presidio"),
            )
        )

    def recognize(self, texts: Sequence[str]) -> list[list[Span]]:
        """Return the spans of each text; spans of different recognizers may overlap."""
        if self._recognizers is None:
            self._recognizers = list(_load(self._countries))
        return [list(self._spans(text, self._recognizers)) for text in texts]

    def __getstate__(self) -> dict[str, Any]:
        """Leave the loaded recognizers behind when a worker process gets a copy."""
        return {**self.__dict__, "_recognizers": None}

    def _spans(self, text: str, recognizers: list[Any]) -> Iterator[Span]:
        for recognizer in recognizers:
            hits = recognizer.analyze(text, recognizer.supported_entities, None)
            for hit in hits or ():
                kind = _TYPES.get(hit.entity_type, "NATIONAL_ID")
                if (
                    hit.score >= self._min_score
                    and hit.start < hit.end
                    and kind in self._kept
                ):
                    yield Span(
                        start=hit.start,
                        end=hit.end,
                        entity_type=kind,
                        recognizer=self.name,
                        confidence=min(1.0, float(hit.score)),
                    )


def _version() -> str:
    try:
        return importlib.metadata.version("presidio-analyzer")
    except importlib.metadata.PackageNotFoundError as error:
        raise DependencyError(
            "the recognizer presidio needs the package presidio-analyzer, which is not "
            "installed. Run `pip install presidio-analyzer==2.2.366`."
        ) from error


def _load(countries: list[str] | None) -> Iterator[Any]:
    """Yield Presidio's recognizers that work on text alone."""
    from presidio_analyzer import (  # noqa: PLC0415  # an extra, slow to import
        PatternRecognizer,
        RecognizerRegistry,
    )

    registry = RecognizerRegistry()
    registry.load_predefined_recognizers(languages=["en"], countries=countries)
    for recognizer in registry.recognizers:
        kind = type(recognizer).__name__
        is_plain = (
            isinstance(recognizer, PatternRecognizer) or kind == "PhoneRecognizer"
        )
        if is_plain and kind not in _FETCHES:
            yield recognizer
