"""Patterns, lists and types of a configuration."""

import pytest
import yaml

from dptune.config import DetectionSettings
from dptune.configfile import validate
from dptune.detection import own_rules
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.own_rules import OwnRulesFilter
from dptune.detection.recognizer import Tier
from dptune.detection.settings import OwnRules
from dptune.errors import ConfigError
from dptune.review.lists import ListKey, ReviewLists, extended, with_lists
from dptune.text import Span
from dptune.workflow.detect import engine_of

RULES = """
own_patterns:
  - {entity_type: BADGE, regex: '\\bB-[0-9]{4}\\b', score: 0.5, context: [badge, wing]}
  - {entity_type: ROOM, regex: '\\broom (?P<value>[0-9]{3})\\b', ignore_case: true}
  - {entity_type: KEY, regex: '\\bL[0-9]{2}\\b', context: [locker], needs_context: true}
deny_lists:
  PROJECT: [Blue Harbor, Falcon]
allow_list: [Acme, Privacy Policy]
"""


def marked(text, source=RULES, *, recognizers=("patterns",), **changes):
    values = {**yaml.safe_load(source), "recognizers": list(recognizers), **changes}
    engine = engine_of(validate(DetectionSettings, values))
    return [
        (text[s.start : s.end], s.entity_type, round(s.confidence, 2))
        for s in engine.detect([text])[0]
        if s.recognizer != "patterns"
    ]


HITS = [
    ("a B-1234 b", [("B-1234", "BADGE", 0.5)]),
    ("her badge B-1234", [("B-1234", "BADGE", 0.9)]),
    ("B-1234 is a Badge", [("B-1234", "BADGE", 0.9)]),
    ("the badges B-1234", [("B-1234", "BADGE", 0.5)]),
    ("Room 214 is free", [("214", "ROOM", 0.6)]),
    ("locker L17", [("L17", "KEY", 0.9)]),
    ("L17", []),
    ("XB-1234", []),
    ("B-12345", []),
    ("the blue-harbor team", [("blue-harbor", "PROJECT", 0.9)]),
    ("BLUE HARBOR", [("BLUE HARBOR", "PROJECT", 0.9)]),
    ("falcon's wing", [("falcon", "PROJECT", 0.9)]),
    ("falconry, blue harbors", []),
]


@pytest.mark.parametrize(("text", "wanted"), HITS)
def test_own_patterns_and_lists_find_what_they_say(text, wanted):
    assert marked(text, recognizers=["patterns"]) == wanted


def keep(spans, text, **how):
    settings = {"entity_types": {}, "allow_list": (), **how}
    return OwnRulesFilter(**settings).keep(spans, text)


def span(text, value, kind="ORG", confidence=0.5, recognizer="lexicon"):
    start = text.index(value)
    return Span(
        start=start,
        end=start + len(value),
        entity_type=kind,
        confidence=confidence,
        recognizer=recognizer,
    )


TEXT = "Ann Acme read the Privacy Policy of Acme"
ALLOWED = [
    (["Acme"], [("Acme", 0.5, "lexicon")], 0),
    (["Acme"], [("of Acme", 0.5, "lexicon")], 1),
    (["Ann Acme"], [("Acme", 0.5, "lexicon")], 0),
    (["acme"], [("Ann Acme", 0.5, "lexicon")], 1),
    (["privacy  policy"], [("Privacy", 0.5, "x"), ("Policy", 0.5, "x")], 0),
    (["Privacy"], [("Privacy Policy", 0.5, "x")], 1),
    (["Privacy Policy"], [("Privacy Policy", 0.96, "patterns")], 1),
    (["Privacy Policy"], [("Privacy Policy", 0.5, "deny_lists")], 1),
    (["Privacy Policy"], [("Privacy Policy", 0.5, "known_values")], 1),
    (["Policy of"], [("Privacy Policy", 0.5, "x")], 1),
]


@pytest.mark.parametrize(("allow", "spans", "left"), ALLOWED)
def test_allow_list_takes_back_whole_marks_that_nothing_demands(allow, spans, left):
    given = [
        span(TEXT, value, confidence=score, recognizer=by) for value, score, by in spans
    ]
    assert len(keep(given, TEXT, allow_list=tuple(allow))) == left


def test_twin_that_takes_back_what_is_demanded_is_caught(monkeypatch):
    monkeypatch.setattr("dptune.detection.recognizer.is_firm", lambda _span: False)
    wrong = 0
    for allow, spans, left in ALLOWED:
        given = [span(TEXT, v, confidence=c, recognizer=by) for v, c, by in spans]
        wrong += len(keep(given, TEXT, allow_list=tuple(allow))) != left
    assert wrong == 3


TYPES = [
    ({"ORG": False}, 0.9, "lexicon", "ORG", False),
    ({"ORG": True}, 0.1, "lexicon", "ORG", True),
    ({"ORG": 0.6}, 0.5, "lexicon", "ORG", False),
    ({"ORG": 0.6}, 0.6, "lexicon", "ORG", True),
    ({"ORG": False}, 1.0, "patterns", "ORG", False),
    ({"ORG": False}, 0.9, "lexicon", "PERSON", True),
    ({"ORG": False}, 0.9, "deny_lists", "ORG", True),
    ({"ORG": 0.99}, 0.75, "known_values", "ORG", True),
    ({"UNAVAILABLE": False}, 0.3, "llm", "UNAVAILABLE", True),
]


@pytest.mark.parametrize(("types", "score", "by", "kind", "stays"), TYPES)
def test_types_are_switched_and_have_thresholds(types, score, by, kind, stays):
    given = [span("of Acme", "Acme", kind, score, by)]
    assert bool(keep(given, "of Acme", entity_types=types)) is stays


def test_type_that_is_off_stays_where_another_type_is_on():
    engine = engine_of(validate(DetectionSettings, {"entity_types": {"EMAIL": False}}))
    found = engine.detect(["write to x@y.org"])[0]
    assert "EMAIL" not in {span.entity_type for span in found}
    both = [span("of Acme", "Acme", "ORG"), span("of Acme", "Acme", "PERSON")]
    assert len(keep(both, "of Acme", entity_types={"ORG": False})) == 1


WRONG = [
    ("own_patterns: [{entity_type: B, regex: '(a+)+'}]", "own_patterns.0"),
    ("own_patterns: [{entity_type: b, regex: 'a'}]", "entity_type"),
    ("own_patterns: [{entity_type: B}]", "regex"),
    ("own_patterns: [{entity_type: B, regex: a, score: 2}]", "score"),
    ("own_patterns: [{entity_type: B, regex: a, needs_context: true}]", "context"),
    (
        "own_patterns: [{entity_type: B, regex: a, context: [x], context_score: 0.1}]",
        "context_score",
    ),
    ("own_patterns: [{entity_type: B, regex: a, scor: 1}]", "no such key"),
    ("deny_lists: {B: [x]}", "two letters"),
    ("deny_lists: {B: ['']}", "at least 1 character"),
    ("allow_list: ['--']", "two letters"),
    ("{deny_lists: {B: [Acme]}, allow_list: [acme]}", "no phrase of deny_lists"),
    ("entity_types: {EMIAL: off}", "EMIAL"),
    ("entity_types: {EMAIL: maybe}", "EMAIL"),
    ("entity_types: {EMAIL: 1.5}", "EMAIL"),
    ("entity_types: {EMAIL: 0}", "EMAIL"),
    ("entity_types: {UNAVAILABLE: off}", "UNAVAILABLE"),
]


@pytest.mark.parametrize(("source", "says"), WRONG)
def test_rules_that_cannot_be_used_are_refused(source, says):
    with pytest.raises(ConfigError, match=says):
        engine_of(validate(DetectionSettings, yaml.safe_load(source)))


def test_all_that_is_wrong_is_told_at_once():
    source = "own_patterns: [{entity_type: b, regex: '('}, {entity_type: B, regex: a+}]"
    with pytest.raises(ConfigError) as raised:
        validate(DetectionSettings, yaml.safe_load(source))
    assert len(raised.value.problems) >= 2


SETTINGS = [
    {"own_patterns": [{"entity_type": "B", "regex": "a"}]},
    {"own_patterns": [{"entity_type": "B", "regex": "a", "score": 0.7}]},
    {"deny_lists": {"B": ["Acme"]}},
    {"deny_lists": {"C": ["Acme"]}},
    {"allow_list": ["Acme"]},
    {"entity_types": {"ORG": False}},
    {"entity_types": {"ORG": 0.5}},
]


def test_every_rule_is_part_of_the_fingerprint(monkeypatch):
    def fingerprint(**values):
        rules = OwnRules.model_validate(values)
        return build_engine(tier=Tier.LOW_ENTITY, rules=rules).fingerprint

    found = {fingerprint(), *(fingerprint(**values) for values in SETTINGS)}
    assert len(found) == 1 + len(SETTINGS)
    monkeypatch.setattr(own_rules, "fingerprint_of", lambda parts: "same")
    twin = {fingerprint(**values) for values in SETTINGS}
    assert len(twin) < len(SETTINGS)


def test_filters_of_configuration_and_review_act_one_after_another():
    key = ListKey(secret=bytes(32))
    lists = extended(ReviewLists(), key, allow=[key.allow_name("Wanda")])
    rules = OwnRules.model_validate({"allow_list": ["Zelda"]})
    base = build_engine(tier=Tier.LOW_ENTITY, rules=rules)
    engine = with_lists(base, lists, key)
    text = "Wanda met Zelda"
    assert [(s.start, s.end) for s in base.detect([text])[0]] == [(0, 5)]
    assert not engine.detect([text])[0]
    assert isinstance(engine, DetectionEngine)
    assert engine.fingerprint != base.fingerprint


def test_rules_survive_being_written_out():
    """A run is handed its configuration as plain values, with every default in it."""
    values = {
        **yaml.safe_load(RULES),
        "entity_types": {"MONEY": False, "ORG": 0.6, "DATE": True},
        "known_values": {"file": "values.txt", "digest": "0" * 64},
        "token_classifier": {"model": "folder", "labels": {"MISC": None}},
        "recognizers": ["patterns", "token_classifier"],
    }
    one = validate(DetectionSettings, values)
    assert DetectionSettings.model_validate(one.model_dump(mode="json")) == one
    assert DetectionSettings.model_validate_json(one.model_dump_json()) == one
