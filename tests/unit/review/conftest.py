"""A small labelled corpus, a key, and reviewers that always answer the same."""

import datasets
import pytest

from dptune.detection.engine import DetectionEngine
from dptune.detection.labelling import detect_dataset
from dptune.detection.recognizer import Tier, fingerprint_of
from dptune.review.lists import ListKey
from dptune.text import Span

NAMES = ("Ann Lee", "Bo Kim", "May")


class Fixed:
    """Marks a few given strings; `firm` ones as if they had a checksum."""

    name = "fixed"

    def __init__(self, *strings, firm=()):
        self.strings, self.firm = strings, firm
        self.fingerprint = fingerprint_of((*strings, "|", *firm))
        self.calls = 0

    def recognize(self, texts):
        self.calls += len(texts)
        return [
            [
                Span(
                    start=at,
                    end=at + len(s),
                    entity_type="IBAN" if s in self.firm else "PERSON",
                    recognizer=self.name,
                    confidence=1.0 if s in self.firm else 0.6,
                )
                for s in (*self.strings, *self.firm)
                for at in range(len(text))
                if text.startswith(s, at)
            ]
            for text in texts
        ]


def engine_of(*recognizers):
    return DetectionEngine(tier=Tier.LOW_ENTITY, recognizers=recognizers)


def corpus_of(texts):
    return datasets.Dataset.from_dict(
        {
            "id": [f"r{i}" for i in range(len(texts))],
            "text": list(texts),
            "unit_id": [f"u{i}" for i in range(len(texts))],
            "split": ["train"] * len(texts),
        }
    )


@pytest.fixture
def key():
    return ListKey(secret=bytes(range(32)))


@pytest.fixture
def labelled():
    texts = [
        f"Hello {NAMES[i % 3]}, how are you today? The weather is fine {i}. "
        "I met Zed Quill. Bye!"
        for i in range(60)
    ]
    return detect_dataset(corpus_of(texts), engine_of(Fixed(*NAMES)))
