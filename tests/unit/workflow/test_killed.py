"""Detection and redaction that were killed go on where they were, and no further."""

import os
import signal
from multiprocessing import get_context

import pytest

from dptune import parts
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.labelling import detect_dataset
from dptune.detection.own_rules import OwnRulesFilter
from dptune.detection.recognizer import Tier, fingerprint_of
from dptune.files import locked
from dptune.redaction.operators import Operator, RedactionSettings
from dptune.results import ValidationReport
from dptune.text import Span
from dptune.workflow import redact
from dptune.workflow.redact import redact_corpus

KEY = b"k" * 32


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(parts, "PART_ROWS", 5)
    valid = ValidationReport(view="redacted", success=True, expectations=())
    monkeypatch.setattr(redact, "validate_redacted", lambda _: valid)


@pytest.fixture
def some(corpus):
    return corpus.with_dataset(corpus.dataset.select(range(40)))


class Reading:
    """Marks the first word of a text, and writes down what it was asked to read."""

    name = "reading"

    def __init__(self, kind="PERSON"):
        self.kind, self.read = kind, 0
        self.fingerprint = fingerprint_of(("reading", kind))

    def recognize(self, texts):
        self.read += len(texts)
        return [
            [Span(start=0, end=len(t.split()[0]), entity_type=self.kind)] for t in texts
        ]


def engine(*recognizers, **more):
    return DetectionEngine(tier=Tier.LOW_ENTITY, recognizers=recognizers, **more)


def killed(call, *, at, folder=None):
    """Call in a process that is killed when so many rows are done.

    With several processes a later part may be done before the first: given a folder,
    one must lie there. Its workers, who hold its lock too, end a moment later.
    """

    def on_progress(done):
        if done >= at and (folder is None or any(folder.rglob("*.arrow"))):
            os.kill(os.getpid(), signal.SIGKILL)

    process = get_context("fork").Process(target=call, args=(on_progress,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    if folder is not None:
        with locked(folder / parts.LOCK):
            pass


@pytest.mark.parametrize("num_proc", [1, 2])
def test_detection_that_was_killed_goes_on_behind_its_last_part(
    some, tmp_path, num_proc
):
    def detect(on_progress):
        detect_dataset(
            some.dataset,
            engine(Reading()),
            num_proc=num_proc,
            cache_dir=tmp_path,
            on_progress=on_progress,
        )

    killed(detect, at=23, folder=tmp_path)
    num_parts = len(list(tmp_path.rglob("*.arrow")))
    assert num_parts >= (4 if num_proc == 1 else 1)
    again = Reading()
    found = detect_dataset(some.dataset, engine(again), cache_dir=tmp_path)
    assert again.read <= 40 - 5 * num_parts
    whole = detect_dataset(some.dataset, engine(Reading()))
    assert found["spans"][:] == whole["spans"][:]
    other = Reading("ORG")
    changed = detect_dataset(some.dataset, engine(other), cache_dir=tmp_path)
    assert other.read == 40
    assert {s["entity_type"] for row in changed["spans"] for s in row} == {"ORG"}


def test_parts_of_another_filter_are_not_taken_and_twin_without_its_name_takes_them(
    some, tmp_path, monkeypatch
):
    off = OwnRulesFilter(entity_types={"PERSON": False}, allow_list=())
    kept, taken_back = engine(Reading()), engine(Reading(), span_filter=off)
    detect_dataset(some.dataset, kept, cache_dir=tmp_path / "a")
    found = detect_dataset(some.dataset, taken_back, cache_dir=tmp_path / "a")
    assert not any(found["spans"][:])
    monkeypatch.setattr(DetectionEngine, "fingerprint", "0" * 64)
    detect_dataset(some.dataset, kept, cache_dir=tmp_path / "b")
    twin = detect_dataset(some.dataset, taken_back, cache_dir=tmp_path / "b")
    assert all(twin["spans"][:])


@pytest.fixture(scope="module")
def labelled(corpus):
    rules = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "lexicon"))
    rows = corpus.dataset.select(range(40))
    return corpus.with_dataset(detect_dataset(rows, rules))


@pytest.fixture
def made(monkeypatch):
    """Rows that were redacted, not read from a part that lay there."""
    counts = []

    def counted(rows, **more):
        counts.append(len(rows))
        return real(rows, **more)

    real = redact.redact_dataset
    monkeypatch.setattr(redact, "redact_dataset", counted)
    return counts


def redacted(labelled, folder=None, *, key=KEY, on_progress=None, **settings):
    return redact_corpus(
        labelled,
        RedactionSettings(**settings),
        key=lambda: key,
        folder=folder,
        on_progress=on_progress,
    )


@pytest.mark.parametrize("num_processes", [1, 2])
def test_redaction_that_was_killed_goes_on_behind_its_last_part(
    labelled, tmp_path, made, num_processes
):
    def call(on_progress):
        redacted(
            labelled, tmp_path, num_processes=num_processes, on_progress=on_progress
        )

    killed(call, at=23, folder=tmp_path)
    num_parts = len(list(tmp_path.rglob("*.arrow")))
    assert num_parts >= (4 if num_processes == 1 else 1)
    found, report = redacted(labelled, tmp_path)
    assert sum(made) <= 40 - 5 * num_parts
    whole, expected = redacted(labelled)
    assert found.dataset.to_list() == whole.dataset.to_list()
    assert report == expected
    assert list(tmp_path.rglob("*.arrow")) == []


def test_parts_redacted_otherwise_are_not_taken_and_twin_without_their_name_takes_them(
    labelled, tmp_path, made, monkeypatch
):
    def left_behind():
        killed(lambda tell: redacted(labelled, tmp_path, on_progress=tell), at=40)

    def taken(**other):
        """Rows that another redaction took over, and whether its texts are right."""
        left_behind()
        made.clear()
        found, _ = redacted(labelled, tmp_path, **other)
        number = 40 - sum(made)
        expected, _ = redacted(labelled, **other)
        return number, found.dataset["text"][:] == expected.dataset["text"][:]

    assert taken() == (40, True)
    assert taken(operator=Operator.TYPED) == (0, True)
    assert taken(merge_adjacent=False) == (0, True)
    mine = tmp_path / "of another program"
    with monkeypatch.context() as other:
        other.setattr(redact, "program_digest", lambda: "another program")
        killed(lambda tell: redacted(labelled, mine, on_progress=tell), at=40)
    made.clear()
    redacted(labelled, mine)
    assert sum(made) == 40
    named = redact._PartRedactor._name
    monkeypatch.setattr(
        redact._PartRedactor,
        "_name",
        lambda self, part: named(
            redact.replace(self, settings=RedactionSettings()), part
        ),
    )
    left_behind()
    twin, _ = redacted(labelled, tmp_path, operator=Operator.TYPED)
    assert twin.dataset["text"][:] == redacted(labelled)[0].dataset["text"][:]


@pytest.mark.parametrize("operator", [Operator.HASH, Operator.PSEUDONYM])
def test_parts_of_another_key_are_not_taken(labelled, tmp_path, operator):
    killed(
        lambda tell: redacted(labelled, tmp_path, operator=operator, on_progress=tell),
        at=40,
    )
    other = b"o" * 32
    found, _ = redacted(labelled, tmp_path, operator=operator, key=other)
    expected, _ = redacted(labelled, operator=operator, key=other)
    assert found.dataset["text"][:] == expected.dataset["text"][:]


def test_two_redactions_at_once_do_not_remove_each_others_parts(labelled, tmp_path):
    first, _ = redacted(
        labelled,
        tmp_path,
        on_progress=lambda done: done == 20 and redacted(labelled, tmp_path),
    )
    assert first.dataset["text"][:] == redacted(labelled)[0].dataset["text"][:]
