"""Records in several languages: what stops a run, what is dropped, figures of each."""

import json
from pathlib import Path

import numpy as np
import pytest

from dptune.accounting.assumptions import Assumption
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.planting import plant
from dptune.config import DataSettings, DetectionSettings
from dptune.configfile import load_train_config
from dptune.detection.engine import build_engine
from dptune.detection.labelling import detect_dataset
from dptune.detection.languages import identify, records
from dptune.detection.languages.records import Languages
from dptune.detection.recognizer import Tier
from dptune.errors import DetectionError
from dptune.reports.pages.data import detection_page
from dptune.reports.render import page_html
from dptune.review.decisions import findings
from dptune.review.lists import ListKey
from dptune.review.sample import draw_sample
from dptune.workflow.detect import check_languages, label_corpus
from dptune.workflow.dossier import _by_language
from dptune.workflow.ingest import read_corpus

REPOSITORY = Path(__file__).parents[3]
ENGLISH = "Hello, I am Ann Lee and this is letter number {} about the bill."
GERMAN = "Mein Name ist Lena Hoffmann, und das ist Brief Nummer {} wegen der Rechnung."
SWEDISH = "Hej, jag har inte fått min beställning ännu och undrar var paket {} är nu."
KEY = ListKey(secret=bytes(range(32)))
CANARIES = CanarySpec(
    template="USR: my code is {secret}.",
    num_planted=2,
    num_held_out=2,
    insertions=1,
    length=4,
)


def corpus_of(folder, texts, **changes):
    rows = [{"id": f"r{i}", "text": text.format(i)} for i, text in enumerate(texts)]
    lines = "\n".join(json.dumps(row) for row in rows)
    (folder / "corpus.jsonl").write_text(lines + "\n")
    found = load_train_config(
        REPOSITORY / "tests" / "configs" / "tiny.yaml", configs=REPOSITORY / "configs"
    )
    data = found.data.model_dump(mode="json") | changes
    data["source"] = {"kind": "jsonl", "path": "corpus.jsonl", "id_column": "id"}
    data |= {"near_duplicate_threshold": None, "min_records": 10}
    settings = DataSettings.model_validate(data)
    return read_corpus(settings, data_root=folder, validate=False)


def labelled(corpus, **changes):
    canaries = draw_canaries(CANARIES, seed=1)
    return label_corpus(
        corpus.with_dataset(plant(corpus.dataset, canaries)),
        canaries,
        DetectionSettings(use_review=False, **changes),
        corpus_is_public=False,
        data_set="default",
    )


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    texts = [ENGLISH] * 60 + [GERMAN] * 30 + [SWEDISH] * 10
    return corpus_of(tmp_path_factory.mktemp("mixed"), texts)


def test_language_that_nobody_reads_stops_a_run_and_says_how_many(mixed):
    with pytest.raises(DetectionError, match=r"sv: 10\)") as caught:
        labelled(mixed)
    assert "paket" not in str(caught.value)


def test_twin_that_takes_every_language_for_known_lets_a_record_through(
    mixed, monkeypatch
):
    monkeypatch.setattr(records, "language_of", lambda _: identify.UNDETERMINED)
    check_languages(Languages.of(mixed.dataset), DetectionSettings())
    monkeypatch.undo()
    with pytest.raises(DetectionError):
        check_languages(Languages.of(mixed.dataset), DetectionSettings())


@pytest.mark.parametrize(
    "settings",
    [{"known_languages": ("sv",)}, {"unknown_language": "mask"}],
    ids=["declared", "masked"],
)
def test_language_with_an_answer_does_not_stop_a_run(mixed, settings):
    check_languages(Languages.of(mixed.dataset), DetectionSettings(**settings))


def test_masked_language_is_masked_whole_and_figures_are_by_language(mixed):
    corpus, report = labelled(mixed, unknown_language="mask")
    shares = {s.language: s for s in report.languages}
    assert {code: s.num_records for code, s in shares.items()} == {
        "en": 62,  # with two canaries
        "de": 30,
        "sv": 10,
    }
    assert shares["sv"].masked_character_share == 1.0
    assert shares["de"].masked_character_share < 0.4
    assert Assumption.UNREAD_LANGUAGES not in corpus.report.marks_assume


def test_page_and_certificate_say_what_is_masked_in_each_language(mixed):
    _, report = labelled(mixed, unknown_language="mask")
    page = page_html(detection_page(report))
    assert "By language" in page
    assert "not measured" in page
    assert "sv: 100% masked, misses not measured" in _by_language(report)


def test_kept_language_weakens_selective_claims(mixed):
    corpus, report = labelled(mixed, unknown_language="keep")
    swedish = next(s for s in report.languages if s.language == "sv")
    assert swedish.masked_character_share < 0.1
    assert Assumption.UNREAD_LANGUAGES in corpus.report.marks_assume


def test_other_languages_are_dropped_and_the_claim_says_so(tmp_path):
    texts = [ENGLISH] * 60 + [GERMAN] * 30 + [SWEDISH] * 10
    corpus = corpus_of(tmp_path, texts, languages=["en", "de"])
    assert len(corpus.dataset) == 90
    assert corpus.report.num_other_languages == 10
    assert Assumption.LANGUAGE_IS_PUBLIC in corpus.report.assumes
    check_languages(Languages.of(corpus.dataset), DetectionSettings())


def test_review_draws_each_language_and_measures_it(mixed):
    engine = build_engine(tier=Tier.LOW_ENTITY, unknown_language="mask")
    marked = detect_dataset(mixed.dataset, engine)
    drawn = draw_sample(marked, key=KEY, generator=np.random.default_rng(0), size=40)
    codes = [e.sentence.language for e in drawn.excerpts]
    assert {code: codes.count(code) >= 10 for code in set(codes)} == {
        "en": True,
        "de": True,
        "sv": True,
    }
    verdicts = {e.sentence.id: _verdict(e) for e in drawn.excerpts}
    found = findings(drawn.excerpts, verdicts, sizes=drawn.sizes, key=KEY)
    assert found.by_language["de"][0] > 0
    assert found.by_language["en"][0] == 0
    assert found.by_language["de"][2] == codes.count("de")


def _verdict(excerpt):
    """Somebody who takes the first word of every other German sentence for missed."""
    from dptune.review.decisions import Verdict  # noqa: PLC0415

    is_missed = excerpt.sentence.language == "de" and excerpt.sentence.row % 2
    return Verdict(missed=((0, 4),) if is_missed else ())
