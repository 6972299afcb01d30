"""What a cached answer of a step follows from is in its key."""

import shutil

import pytest

import dptune
from dptune.detection import engine
from dptune.detection.recognizer import DEFAULT_RECOGNIZERS, OWN_RECOGNIZERS
from infra.source import library_digest
from infra.workspace import REPOSITORY

LEFT_OUT = {".md", ".pyi", ".typed", ".pyc"}
LIBRARY = REPOSITORY / "dptune"
KINDS = sorted({file.suffix for file in LIBRARY.rglob("*.*")} - LEFT_OUT)


def examples():
    """One file of the library for every kind that is in it."""
    return [
        min(f for f in LIBRARY.rglob(f"*{kind}") if f.is_file()).relative_to(LIBRARY)
        for kind in KINDS
    ]


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A library of one file of each kind."""
    for file in examples():
        (tmp_path / "dptune" / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(LIBRARY / file, tmp_path / "dptune" / file)
    monkeypatch.setattr(dptune, "__file__", str(tmp_path / "dptune" / "__init__.py"))
    return tmp_path / "dptune"


@pytest.mark.parametrize("file", examples(), ids=lambda file: file.suffix)
def test_change_of_any_kind_of_file_makes_answers_anew(copy, file):
    before = library_digest.__wrapped__()
    with (copy / file).open("ab") as stream:
        stream.write(b"\n")
    assert library_digest.__wrapped__() != before


def test_rules_words_and_weights_of_the_detector_are_among_them():
    assert {".toml", ".gz", ".safetensors", ".json", ".py"} <= set(KINDS)


def test_recognizers_that_are_cached_by_the_library_alone_are_its_own():
    assert frozenset(engine._BUILT_IN) | {"languages"} == OWN_RECOGNIZERS
    assert frozenset(DEFAULT_RECOGNIZERS) <= OWN_RECOGNIZERS
