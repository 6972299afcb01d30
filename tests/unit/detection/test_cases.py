"""Tables of text, one for each kind: what must be masked, and what must stay."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dptune.detection import patterns, union
from dptune.detection.engine import build_engine
from dptune.detection.patterns import PatternRecognizer
from dptune.detection.recognizer import Tier

FOLDER = Path(__file__).parent / "cases"
TABLES = {
    path.stem: yaml.safe_load(path.read_text("utf8")) for path in FOLDER.glob("*.yaml")
}
ENGINE = build_engine(tier=Tier.LOW_ENTITY)
RULES = PatternRecognizer(tier=Tier.LOW_ENTITY)
MARKED = [(name, line) for name, table in TABLES.items() for line in table["masked"]]
STAYS = [(name, line) for name, table in TABLES.items() for line in table["stay"]]


def parse(line):
    """Return a text without its brackets, and the positions that must be masked."""
    text, wanted = "", set()
    for number, part in enumerate(re.split("[⟦⟧]", line)):
        if number % 2:
            inside = range(len(text), len(text) + len(part))
            wanted |= {i for i, c in zip(inside, part, strict=True) if c.isalnum()}
        text += part
    return text, wanted


def covered(spans):
    return {i for span in spans for i in range(span.start, span.end)}


@pytest.mark.parametrize(("name", "line"), MARKED)
def test_detect_value_is_masked_as_a_whole(name, line):
    text, wanted = parse(line)
    assert wanted <= covered(ENGINE.detect([text])[0])


@pytest.mark.parametrize(("name", "line"), STAYS)
def test_recognize_near_miss_stays(name, line):
    assert not RULES.recognize([line])[0]


@pytest.mark.parametrize(
    "line", [line for name, line in (*MARKED, *STAYS) if name == "labels"]
)
def test_detect_label_of_a_value_stays(line):
    text, wanted = parse(line)
    masked = {i for i in covered(ENGINE.detect([text])[0]) if text[i].isalnum()}
    assert masked <= wanted


def test_every_kind_has_sixty_lines_and_as_many_near_misses():
    for name, table in TABLES.items():
        assert min(map(len, table.values())) >= 60, name


def missed(engine, name):
    """Count the lines of a table of which something is left."""
    lines = [parse(line) for line in TABLES[name]["masked"]]
    return sum(
        not wanted <= covered(engine.detect([text])[0]) for text, wanted in lines
    )


def test_twin_that_reads_the_month_first_keeps_days(monkeypatch):
    """The rule as it was: `on March` won over `March 3`, since it begins earlier."""
    month = re.compile(
        r"(?:\b(?:in|on|of|by|since|from) )?\b(?:march|may|jan|aug|june)\b"
    )
    engine = build_engine(tier=Tier.LOW_ENTITY)
    assert missed(engine, "dates") == 0
    recognizer = next(p.inner for p in engine.parts if p.name == "patterns")
    twins = [
        replace(rule, pattern=month, refine=None, gate=None)
        if "january" in rule.anchors
        else rule
        for rule in recognizer._rules
    ]
    monkeypatch.setattr(recognizer, "_rules", tuple(twins))
    assert missed(engine, "dates") > 20


def test_twin_without_labels_masks_them(monkeypatch):
    def masked(text):
        wanted = parse(text)[1]
        spans = ENGINE.detect([parse(text)[0]])[0]
        return any(parse(text)[0][i].isalnum() for i in covered(spans) - wanted)

    lines = [line for part in TABLES["labels"].values() for line in part]
    assert not any(masked(line) for line in lines)
    monkeypatch.setattr(union, "without_labels", lambda spans, _text: spans)
    assert sum(masked(line) for line in lines) > 20


def test_twin_that_reads_no_fields_misses_values(monkeypatch):
    assert missed(ENGINE, "fields") == 0
    monkeypatch.setattr(patterns, "field_values", lambda _text: iter(()))
    assert missed(ENGINE, "fields") > 20


def test_twin_that_reads_signs_as_a_part_misses_values(monkeypatch):
    """Every text read once, as it is written."""
    engine = build_engine(tier=Tier.LOW_ENTITY)
    assert missed(engine, "touching") == 0
    monkeypatch.setattr(patterns, "without_glue", lambda text: text)
    assert missed(engine, "touching") >= len(TABLES["touching"]["masked"]) / 3
