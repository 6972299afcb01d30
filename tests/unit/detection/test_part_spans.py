"""Labelled corpora are never labelled twice, and a changed recognizer runs alone."""

import datasets
import pytest

from dptune import parts
from dptune.detection.engine import DetectionEngine
from dptune.detection.labelling import detect_dataset
from dptune.detection.part_spans import spans_of
from dptune.detection.recognizer import UNAVAILABLE, Tier, fingerprint_of
from dptune.text import Span

TEXTS = [f"row {number} of Ann" for number in range(25)]


class Counting:
    """Finds one word, and writes down what it was asked to read."""

    def __init__(self, word, *, name="counting", version="1", kind="PERSON"):
        self.name = name
        self.word, self.kind = word, kind
        self.fingerprint = fingerprint_of((name, version, word))
        self.read = []

    def recognize(self, texts):
        self.read += texts
        return [
            [
                Span(
                    start=text.index(self.word),
                    end=text.index(self.word) + len(self.word),
                    entity_type=self.kind,
                    recognizer=self.name,
                    confidence=0.85,
                )
            ]
            for text in texts
        ]


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 10)


def corpus(texts):
    ids = [str(i) for i in range(len(texts))]
    return datasets.Dataset.from_dict({"id": ids, "text": texts})


def engine(*recognizers):
    return DetectionEngine(tier=Tier.LOW_ENTITY, recognizers=recognizers)


def covered(labelled):
    return [
        {(s.start, s.end, s.entity_type, s.recognizer) for s in spans_of(row)}
        for row in labelled["spans"]
    ]


@pytest.mark.usefixtures("small_parts")
def test_detect_dataset_unchanged_text_is_read_once(tmp_path):
    progress = []
    for run in range(2):
        one = Counting("Ann")
        labelled = detect_dataset(
            corpus(TEXTS), engine(one), cache_dir=tmp_path, on_progress=progress.append
        )
        assert len(one.read) == (0 if run else len(TEXTS))
        assert len(labelled) == len(TEXTS)
        assert labelled["text"] == TEXTS
    assert progress == [10, 20, 25] * 2


@pytest.mark.usefixtures("small_parts")
def test_detect_dataset_added_records_cost_their_block(tmp_path):
    detect_dataset(corpus(TEXTS[:20]), engine(Counting("Ann")), cache_dir=tmp_path)
    one = Counting("Ann")
    detect_dataset(corpus(TEXTS), engine(one), cache_dir=tmp_path)
    assert one.read == TEXTS[20:]


@pytest.mark.usefixtures("small_parts")
def test_detect_dataset_changed_recognizer_runs_alone(tmp_path):
    first = engine(Counting("Ann"), Counting("row", name="other"))
    before = detect_dataset(corpus(TEXTS), first, cache_dir=tmp_path)
    kept = Counting("Ann")
    changed = Counting("row", name="other", version="2", kind="ORG")
    after = detect_dataset(corpus(TEXTS), engine(kept, changed), cache_dir=tmp_path)
    assert kept.read == []
    assert changed.read == TEXTS
    fresh = detect_dataset(corpus(TEXTS), engine(Counting("Ann"), changed))
    assert covered(after) == covered(fresh) != covered(before)


def test_detect_dataset_changed_text_is_read_again(tmp_path):
    detect_dataset(corpus(TEXTS), engine(Counting("Ann")), cache_dir=tmp_path)
    one = Counting("Ann")
    detect_dataset(corpus(TEXTS[::-1]), engine(one), cache_dir=tmp_path)
    assert len(one.read) == len(TEXTS)


def test_detect_dataset_broken_file_is_made_anew(tmp_path):
    detect_dataset(corpus(TEXTS), engine(Counting("Ann")), cache_dir=tmp_path)
    (path,) = tmp_path.rglob("*.arrow")
    path.write_bytes(path.read_bytes()[:100])
    one = Counting("Ann")
    labelled = detect_dataset(corpus(TEXTS), engine(one), cache_dir=tmp_path)
    assert len(one.read) == len(labelled) == len(TEXTS)


def test_detect_dataset_unavailable_result_is_not_kept(tmp_path):
    class Remote(Counting):
        may_be_unavailable = True

    for _ in range(2):
        remote = Remote("Ann", kind=UNAVAILABLE)
        labelled = detect_dataset(corpus(TEXTS), engine(remote), cache_dir=tmp_path)
        assert len(remote.read) == len(TEXTS)
        assert labelled["spans"][0][0]["entity_type"] == UNAVAILABLE
    assert list(tmp_path.rglob("*.arrow")) == []


def test_detect_dataset_corpus_on_disk_keeps_labels_beside_it(tmp_path):
    corpus(TEXTS).save_to_disk(str(tmp_path / "c"))
    for run in range(2):
        one = Counting("Ann")
        loaded = datasets.load_from_disk(str(tmp_path / "c"))
        detect_dataset(loaded, engine(one))
        assert bool(one.read) is (run == 0)
    assert (tmp_path / "c" / "spans").stat().st_mode & 0o777


def test_detect_dataset_several_processes_equal_one(tmp_path):
    texts = TEXTS * 4
    one = detect_dataset(corpus(texts), engine(Counting("Ann")))
    progress = []
    two = detect_dataset(
        corpus(texts),
        engine(Counting("Ann")),
        num_proc=2,
        cache_dir=tmp_path,
        on_progress=progress.append,
    )
    assert covered(one) == covered(two)
    assert progress[-1] == len(texts)
    again = Counting("Ann")
    detect_dataset(corpus(texts), engine(again), cache_dir=tmp_path)
    assert again.read == []
