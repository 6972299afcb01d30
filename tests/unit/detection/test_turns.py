"""Detection and redaction of conversations: contents alone, roles as they are."""

import re

import pytest
from datasets import Dataset

from dptune.conversation import (
    Turn,
    contents_only,
    join_turns,
    turns_of,
    within_contents,
)
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.labelling import detect_dataset, detection_report
from dptune.detection.recognizer import Tier
from dptune.detection.settings import OwnRules
from dptune.detection.union import unite_kept
from dptune.errors import ConfigError
from dptune.models.encode import record_tokens
from dptune.redaction.engine import redact_dataset, redact_text
from dptune.redaction.operators import Operator
from dptune.redaction.residual import residual_spellings, residual_values
from dptune.reports.card.statements import DetectionStatement
from dptune.review.lists import ListKey, ReviewLists, with_lists
from dptune.text import Span
from tests.support.chats import chat_tokenizer
from tests.support.growth import grows_in_proportion


class Everything:
    """A recognizer that marks whole texts, as for languages that nobody reads."""

    name = "everything"
    fingerprint = "0" * 8

    def recognize(self, texts):
        return [
            [Span(start=0, end=len(t), entity_type="UNKNOWN", recognizer=self.name)]
            for t in texts
        ]


def chat(*contents):
    return join_turns(
        Turn(role=("user", "assistant")[i % 2], content=c, trained=bool(i % 2))
        for i, c in enumerate(contents)
    )


def roles_of(text):
    return [(turn.role, turn.trained) for turn in turns_of(text)]


@pytest.mark.parametrize("operator", [Operator.MASK, Operator.DELETE, Operator.TYPED])
def test_redaction_of_whole_conversations_keeps_every_role(operator):
    text = chat("I am Ann", "Hi", " ", "OK Ann")
    (spans,) = DetectionEngine(tier=Tier.LOW_ENTITY, recognizers=[Everything()]).detect(
        [text]
    )
    redacted = redact_text(text, spans, operator).text
    assert [role for role, _ in roles_of(redacted)] == [r for r, _ in roles_of(text)]
    assert [learnt for _, learnt in roles_of(redacted)] == (
        [False] * 4 if operator is Operator.DELETE else [False, True, False, True]
    )
    assert "Ann" not in redacted
    assert turns_of(redact_text(text, [], operator).text) == turns_of(text)


@pytest.mark.parametrize("operator", [Operator.DELETE, Operator.TYPED])
def test_typed_pieces_of_a_mask_do_not_become_one(operator):
    text = chat("<maAnnsk> Ann", "<mAnnask>, <Ann<mask>")
    spans = [
        Span(start=m.start(), end=m.end(), entity_type="PERSON")
        for m in re.finditer("Ann", text)
    ]
    redacted = redact_text(text, spans, operator).text
    assert "<mask>" not in redacted
    tokenizer = chat_tokenizer("chatml")
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    ids = record_tokens(redacted, tokenizer)
    assert tokenizer.mask_token_id not in ids
    if operator is Operator.DELETE:
        said = [turn.said()[0] for turn in turns_of(redacted)]
        assert said == ["<mask> ", "<mask>, <<mask>"]
        assert "\ufdd3" not in tokenizer.decode(list(ids))


def test_role_check_catches_detection_that_reads_the_markers():
    text = chat("I am Ann", "OK Ann")
    (found,) = Everything().recognize([text])
    redacted = redact_text(text, unite_kept([found], text, None), Operator.MASK).text
    assert roles_of(redacted) != roles_of(text)


def test_detection_finds_in_conversations_what_it_finds_in_their_contents():
    text = chat("My mail is ann.lee@web.de, I am Ann Lee", "Thanks Ann, +49 30 901820")
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "tagger"))
    (found,) = engine.detect([text])
    alone = engine.detect([contents_only(text)])[0]
    assert found == alone
    values = {text[s.start : s.end] for s in found}
    assert "ann.lee@web.de" in values
    rows = Dataset.from_dict({"text": [text], "unit_id": ["u"]})
    labelled = detect_dataset(rows, engine)
    assert [Span.from_row(s).start for s in labelled[0]["spans"]] == [
        s.start for s in found
    ]
    (redacted,) = redact_dataset(labelled, operator=Operator.MASK)["text"]
    assert roles_of(redacted) == roles_of(text)
    assert "ann.lee" not in redacted


def test_known_values_of_a_unit_are_no_role():
    text = chat("ask for Tool here", "Hello TOOL")
    text += join_turns([Turn(role="tool", content="none")])
    rows = Dataset.from_dict(
        {
            "text": [text],
            "unit_id": ["u"],
            "known_values": [[{"value": "Tool", "entity_type": "PERSON"}]],
        }
    )
    engine = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns",))
    labelled = detect_dataset(rows, engine)
    (redacted,) = redact_dataset(labelled, operator=Operator.MASK)["text"]
    assert roles_of(redacted) == roles_of(text)
    assert [t.said()[0] for t in turns_of(redacted)] == [
        "ask for <mask> here",
        "Hello <mask>",
        "none",
    ]


def test_tiers_may_differ_by_role():
    text = chat(
        "I paid on 3 May in Paris at 5 pm", "You paid on 3 May in Paris at 5 pm"
    )
    settings = {"tier": Tier.HIGH_ENTITY, "recognizers": ("patterns",)}
    wide = build_engine(**settings)
    rules = OwnRules(role_tiers={"assistant": Tier.LOW_ENTITY})
    narrow = build_engine(**settings, rules=rules)
    user, assistant = turns_of(text)
    for engine, expected in ((wide, True), (narrow, False)):
        (found,) = engine.detect([text])
        kinds = {
            turn.role: {
                s.entity_type
                for s in found
                if turn.start <= s.start < turn.start + len(turn.content)
            }
            for turn in (user, assistant)
        }
        assert "TIME" in kinds["user"]
        assert ("TIME" in kinds["assistant"]) is expected
        assert "DATE" in kinds["assistant"]
    assert wide.fingerprint != narrow.fingerprint


def test_tiers_of_roles_that_nobody_looks_for_are_refused():
    with pytest.raises(ConfigError, match="role_tiers: must name tiers"):
        build_engine(
            tier=Tier.LOW_ENTITY,
            rules=OwnRules(role_tiers={"user": Tier.HIGH_ENTITY}),
        )


def test_what_is_left_of_values_is_not_looked_for_in_roles():
    text = chat("user is my name", "fine")
    start = turns_of(text)[0].start
    span = Span(start=start, end=start + 4, entity_type="PERSON")
    redacted = redact_text(text, [span], Operator.MASK).text
    assert residual_values(text, [span], redacted) == {}
    assert residual_spellings(text, [span]).spellings == {}


def test_spans_are_cut_at_turns_and_plain_ones_stay():
    text = chat("ab", "cd")
    whole = Span(start=0, end=len(text), entity_type="PERSON")
    assert ["".join(text[s.start : s.end]) for s in within_contents([whole], text)] == [
        "ab",
        "cd",
    ]
    assert within_contents([whole], "x" * len(text)) == (whole,)


def test_report_names_the_tiers_of_roles():
    rules = OwnRules(role_tiers={"assistant": "low_entity"})
    engine = build_engine(tier=Tier.HIGH_ENTITY, rules=rules)
    found = detect_dataset(Dataset.from_dict({"text": [chat("Hi", "Bye")]}), engine)
    report = detection_report(found, engine, fingerprint="0" * 64)
    assert report.role_tiers == {"assistant": "low_entity"}


def test_report_names_what_is_taken_back_also_beside_lists_of_reviewers():
    rules = OwnRules(
        role_tiers={"assistant": "low_entity"},
        entity_types={"AGE": False, "PERSON": 0.8, "DATE": True},
        allow_list=["Great Western"],
    )
    engine = build_engine(tier=Tier.HIGH_ENTITY, rules=rules)
    key = ListKey(secret=b"k" * 32)
    lists = ReviewLists(key_check=key.check, allow=(key.allow_name("Ann"),))
    found = detect_dataset(Dataset.from_dict({"text": [chat("Hi", "Bye")]}), engine)
    for one, count in ((engine, 1), (with_lists(engine, lists, key), 2)):
        report = detection_report(found, one, fingerprint="0" * 64)
        assert report.role_tiers == {"assistant": "low_entity"}
        assert report.taken_back == (
            "AGE is off",
            "PERSON below confidence 0.8",
            f"{count} phrases of allow lists",
        )
    statement = DetectionStatement.of(report, source="")
    assert statement.taken_back == report.taken_back
    assert "Great Western" not in repr(report)


def test_time_grows_with_turns_alone():
    engine = build_engine(
        tier=Tier.HIGH_ENTITY, rules=OwnRules(role_tiers={"user": "low_entity"})
    )
    (span_filter,) = [engine.span_filter]

    def work(size):
        text = chat(*["My name is Grace."] * size)
        spans = [
            Span(start=t.start, end=t.start + 2, entity_type="PERSON", recognizer="r")
            for t in turns_of(text)
        ]
        span_filter.keep(spans, text)
        within_contents(spans, text)

    assert grows_in_proportion(work, 200, times=20)
