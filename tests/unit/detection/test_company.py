"""What is marked in a text follows from that text alone, whoever is read beside it."""

from itertools import permutations
from types import SimpleNamespace

import pytest

from dptune.detection import names
from dptune.detection import third_party as ner
from dptune.detection.engine import READ_ONE_TEXT, build_engine
from dptune.detection.recognizer import DEFAULT_RECOGNIZERS, Tier
from dptune.detection.third_party import SpacyRecognizer

TEXTS = (
    "My name is frank rose and I live here.",
    "frank rose was not there. Neither was rose.",
    "Dear Zed, call 555-0134 or write to zed@example.org.",
    "the zed was late; the May meeting is in Berlin",
    "SPEAKER: I AM ANN LEE OF LEEDS",
    "ann told lee that may comes after april",
    "nothing at all",
)


def marks(engine, texts):
    return dict(zip(texts, engine.detect(texts), strict=True))


def changed_by_company(engine, alone):
    """Count texts that are marked otherwise beside others than alone."""
    found = set()
    for others in (*permutations(TEXTS, 2), TEXTS, TEXTS[::-1]):
        found |= {t for t, spans in marks(engine, others).items() if spans != alone[t]}
    return len(found)


@pytest.mark.parametrize("recognizers", [DEFAULT_RECOGNIZERS, ("patterns", "lexicon")])
def test_no_name_is_followed_into_another_text(recognizers):
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=recognizers)
    assert set(engine.recognizers) <= READ_ONE_TEXT
    alone = {text: engine.detect([text])[0] for text in TEXTS}
    assert changed_by_company(engine, alone) == 0


def test_rules_and_lexicon_follow_no_name_into_another_text(monkeypatch):
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "lexicon"))
    alone = {text: engine.detect([text])[0] for text in TEXTS}
    assert changed_by_company(engine, alone) == 0
    plain, known = names._mark_by_form, set()

    def remember(text, words):
        plain(text, words)
        for word in words:
            word.entity_type = word.entity_type or ("PERSON" * (word.lower in known))
        known.update(w.lower for w in words if w.entity_type)

    monkeypatch.setattr(names, "_mark_by_form", remember)
    assert changed_by_company(engine, alone) > 0, (
        "the twin remembers names of other texts"
    )


class _Company:
    """Stands in for a pipeline whose scores hang on what is computed together."""

    pipe_names = ("ner",)

    def pipe(self, chunks, *, as_tuples, batch_size):
        rows = list(chunks)
        assert as_tuples
        for first in range(0, len(rows), batch_size):
            batch = rows[first : first + batch_size]
            longest = max(len(text) for text, _ in batch)
            for text, context in batch:
                entity = SimpleNamespace(label_="PERSON", start_char=0, end_char=1)
                ents = [entity] if len(text) == longest else []
                yield SimpleNamespace(ents=ents), context


@pytest.mark.parametrize(("size", "is_sound"), [(ner._BATCH_SIZE, True), (128, False)])
def test_spacy_computes_every_text_by_itself(monkeypatch, size, is_sound):
    monkeypatch.setattr(ner, "_BATCH_SIZE", size)
    recognizer = SpacyRecognizer(pipeline="none", tier=Tier.LOW_ENTITY)
    monkeypatch.setattr(recognizer, "_load", _Company)
    alone = [recognizer.recognize([text])[0] for text in TEXTS]
    assert (recognizer.recognize(TEXTS) == alone) is is_sound
