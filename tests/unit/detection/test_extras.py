"""Recognizers of other packages: an entry point, Presidio, GLiNER."""

import sys

import pytest

from dptune.detection.engine import build_engine
from dptune.detection.recognizer import Tier, digest_of_files
from dptune.errors import ConfigError, DependencyError

MODULE = """
from dptune.detection.recognizer import fingerprint_of
from dptune.text import Span


class Shouting:
    name = "shouting"

    def __init__(self, *, tier):
        self.fingerprint = fingerprint_of((self.name, tier))

    def recognize(self, texts):
        return [
            [Span(start=0, end=len(t), entity_type="ID", recognizer=self.name)]
            if t.isupper()
            else []
            for t in texts
        ]
"""


def test_build_engine_takes_a_recognizer_from_an_entry_point(tmp_path, monkeypatch):
    (tmp_path / "shouting_package.py").write_text(MODULE)
    info = tmp_path / "shouting_package-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: shouting-package\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[dptune.recognizers]\nshouting = shouting_package:Shouting\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "shouting"))
    assert engine.recognizers == ("patterns", "shouting")
    assert [s.entity_type for s in engine.detect(["HELP"])[0]] == ["ID"]
    sys.modules.pop("shouting_package")


@pytest.mark.parametrize(
    ("name", "setting"),
    [("spacy", "spacy_pipeline"), ("gliner", "gliner_model"), ("llm", "llm_endpoint")],
)
def test_build_engine_recognizer_without_its_setting_is_refused(name, setting):
    with pytest.raises(ConfigError, match=f"{setting} must be given"):
        build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", name))


def test_presidio_finds_country_ids():
    pytest.importorskip("presidio_analyzer", reason="needs presidio-analyzer")
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("presidio",))
    texts = ["SIN 046-454-286", "call +41 44 668 18 00", "nothing here"]
    first, second, third = engine.detect(texts)
    assert first
    assert "PHONE" in {s.entity_type for s in second}
    assert third == ()


@pytest.mark.parametrize("name", ["presidio", "gliner"])
def test_build_engine_missing_extra_says_what_to_install(name, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # no package can be found
    (tmp_path / "weights").write_bytes(b"x")
    with pytest.raises(DependencyError, match="pip install"):
        build_engine(
            tier=Tier.LOW_ENTITY,
            recognizers=(name,),
            gliner_model=str(tmp_path) if name == "gliner" else None,
        )


def test_digest_of_files_follows_names_and_contents(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    first = digest_of_files(tmp_path)
    (tmp_path / "a").write_bytes(b"2")
    second = digest_of_files(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert len({first, second, digest_of_files(tmp_path)}) == 3
    with pytest.raises(DependencyError, match="must hold files"):
        digest_of_files(tmp_path / "none")
