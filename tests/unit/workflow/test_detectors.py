"""Recognizers that a configuration names: built, checked, fingerprinted."""

import json
import re
import sys

import pytest
from pydantic import ValidationError

from dptune.config import DetectionSettings, ScoringSettings
from dptune.detection.endpoint import NO_ACCESS, LlmAccess
from dptune.errors import ConfigError, DependencyError
from dptune.workflow.detect import check_detector, engine_of
from dptune.workflow.score import check_judge
from tests.llm_server import reply, serving

TEXT = "my cousin rose wrote to ann@example.org."
GLINER = """
class GLiNER:
    def __init__(self, folder):
        self.folder = folder

    @classmethod
    def from_pretrained(cls, folder, *, local_files_only):
        assert local_files_only
        return cls(folder)

    def predict_entities(self, text, labels, *, threshold):
        at = text.find("rose")
        hit = {"start": at, "end": at + 4, "label": "person", "score": 0.5}
        return [hit] if at >= 0 and hit["score"] >= threshold else []
"""


def honest(message, _call):
    control = re.search(r"greet (\w+ \w+) from me", message)[1]
    listed = [control, *(["rose"] if "rose" in message else [])]
    rows = [{"text": text, "kind": "person"} for text in listed]
    return reply(json.dumps({"findings": rows}))


def asking(url, **changes):
    llm = {"base_url": url, "model": "m", "max_retries": 0, "timeout_s": 5}
    return DetectionSettings(recognizers=("patterns", "llm"), llm=llm | changes)


@pytest.fixture
def openai():
    return pytest.importorskip("openai", reason="needs the extra llm")


@pytest.fixture
def gliner(tmp_path, monkeypatch):
    """A stand-in for the package, and a folder as of a model."""
    (tmp_path / "gliner.py").write_text(GLINER)
    info = tmp_path / "gliner-9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: gliner\nVersion: 9\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights").write_bytes(b"1")
    yield model
    sys.modules.pop("gliner", None)


def test_llm_in_a_configuration_finds_what_the_others_left(openai, tmp_path):
    access = LlmAccess(cache_file=tmp_path / "answers.db")
    with serving(honest) as (url, seen):
        check_detector(asking(url), access)
        engine = engine_of(asking(url), access)
        (spans,) = engine.detect([TEXT])
        asked = len(seen)
        engine_of(asking(url), access).detect([TEXT])
    assert len(seen) == asked == 2
    assert ("llm", "rose") in {(s.recognizer, TEXT[s.start : s.end]) for s in spans}
    assert not any("ann@example.org" in body for body in seen)
    assert not any("rose" in body for body in seen[:1])  # the check sends public words


def test_llm_key_comes_from_the_environment_and_is_no_part_of_the_fingerprint(openai):
    hushed = asking("http://h/v1")
    with_key = engine_of(hushed, LlmAccess(keys={"DPTUNE_LLM_KEY": "hush"}))
    assert with_key.fingerprint == engine_of(hushed).fingerprint
    others = [
        asking("http://h/v1", model="other"),
        asking("http://other/v1"),
        asking("http://h/v1", max_characters=7),
    ]
    found = {engine_of(settings).fingerprint for settings in (hushed, *others)}
    assert len(found) == 4
    named = asking("http://h/v1", api_key="DPTUNE_LLM_KEY_MINE")
    with pytest.raises(ConfigError, match=r"detection\.llm\.api_key: must name"):
        check_detector(named, NO_ACCESS)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda m, c: 404, "status 404"),
        (lambda m, c: reply('{"findings": []}'), "not as asked"),
    ],
)
def test_llm_that_does_not_answer_is_a_problem_before_the_run(openai, answer, why):
    refused = pytest.raises(ConfigError, match=rf"detection\.llm: must be .*{why}")
    with serving(answer) as (url, _), refused:
        check_detector(asking(url), NO_ACCESS)


def test_llm_and_judge_without_the_package_say_what_to_install(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(DependencyError, match=r"pip install openai=="):
        check_detector(asking("http://h/v1"), NO_ACCESS)
    judge = ScoringSettings(judge={"base_url": "http://h/v1", "model": "m"}).judge
    with pytest.raises(DependencyError, match=r"pip install openai=="):
        check_judge(judge, NO_ACCESS)


def test_gliner_in_a_configuration_runs_from_its_folder(gliner):
    def settings(threshold):
        return DetectionSettings(
            recognizers=("patterns", "gliner"),
            gliner={"model": str(gliner), "threshold": threshold},
        )

    check_detector(settings(0.4), NO_ACCESS)
    engine = engine_of(settings(0.4))
    (spans,) = engine.detect([TEXT])
    assert ("gliner", "rose") in {(s.recognizer, TEXT[s.start : s.end]) for s in spans}
    strict = engine_of(settings(0.6))
    assert "gliner" not in {s.recognizer for s in strict.detect([TEXT])[0]}
    assert strict.fingerprint != engine.fingerprint
    (gliner / "weights").write_bytes(b"2")
    assert engine_of(settings(0.4)).fingerprint != engine.fingerprint


def test_gliner_without_package_or_model_is_a_problem_before_the_run(
    gliner, monkeypatch
):
    missing = {"model": str(gliner / "none")}
    settings = DetectionSettings(recognizers=("gliner",), gliner=missing)
    with pytest.raises(DependencyError, match="must hold files"):
        check_detector(settings, NO_ACCESS)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(DependencyError, match="pip install --no-deps gliner"):
        check_detector(settings, NO_ACCESS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"recognizers": ["patterns", "llm"]}, "llm must be set exactly"),
        ({"llm": {"base_url": "http://h/v1", "model": "m"}}, "llm must be set exactly"),
        ({"recognizers": ["gliner"]}, "gliner must be set exactly"),
        ({"gliner": {"model": "m"}}, "gliner must be set exactly"),
        (
            {
                "recognizers": ["llm"],
                "llm": {"base_url": "http://h/v1", "model": "m"},
            },
            "must list another one",
        ),
    ],
)
def test_detection_settings_need_what_their_recognizers_need(changes, message):
    with pytest.raises(ValidationError, match=message):
        DetectionSettings.model_validate(changes)
