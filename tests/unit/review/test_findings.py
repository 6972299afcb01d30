"""The rate is weighted back, and its lists never flatter it."""

import unicodedata

import numpy as np
import pytest

from dptune.errors import ConfigError
from dptune.review.decisions import (
    Verdict,
    _whole_words,
    best_upper_bound,
    findings,
)
from dptune.review.lists import DenyRecognizer, ReviewLists, extended
from dptune.review.sample import draw_sample


@pytest.fixture
def drawn(labelled, key):
    return draw_sample(labelled, key=key, generator=np.random.default_rng(0), size=80)


def judge(drawn, key, *, missed=(), alarms=()):
    """Review a sample by rule: strings that were missed, marks that are no names."""
    verdicts = {}
    for excerpt in drawn.excerpts:
        text = excerpt.text
        verdicts[excerpt.sentence.id] = Verdict(
            missed=tuple(
                (text.index(s), text.index(s) + len(s)) for s in missed if s in text
            ),
            false_alarms=tuple(
                i
                for i, mark in enumerate(excerpt.sentence.marks)
                if text[mark.start : mark.end] in alarms
            ),
        )
    return findings(drawn.excerpts, verdicts, sizes=drawn.sizes, key=key)


def test_rate_is_weighted_back_to_the_corpus(drawn, key):
    found = judge(drawn, key, missed=["Zed Quill"])
    # 60 records of 16 words, 2 of them missed: 2 / 16.
    assert found.rate == pytest.approx(2 / 16, abs=0.03)
    assert found.interval.low < 2 / 16 < found.interval.high
    assert found.num_missed == 2 * sum("Zed" in e.text for e in drawn.excerpts)


def test_unweighted_rate_is_another_one(drawn, key):
    found = judge(drawn, key, missed=["Zed Quill"])
    words = sum(len(e.text.split()) for e in drawn.excerpts)
    assert abs(found.num_missed / words - found.rate) > 0.02


def test_missed_phrases_come_onto_the_deny_list_as_whole_words(drawn, key):
    found = judge(drawn, key, missed=["ed Quil"])
    lists = extended(ReviewLists(), key, deny=found.deny)
    (spans,) = DenyRecognizer(lists, key).recognize(["so Zed Quill it is"])
    assert [(s.start, s.end) for s in spans] == [(3, 12)]


@pytest.mark.parametrize("part", ["Jose", "\u0301 Pen", "ose\u0301 P"])
def test_missed_phrase_keeps_the_marks_of_its_letters(part, key):
    text = unicodedata.normalize("NFD", "so José Peña came")
    start = text.index(part)
    entries = [key.deny_entry(_whole_words(text, start, start + len(part)))]
    wanted = "José" if part == "Jose" else "José Peña"
    assert entries == [key.deny_entry(wanted)]


def test_deny_list_is_no_credit_to_the_rate_it_was_read_off(drawn, key):
    assert judge(drawn, key, missed=["Zed Quill"]).rate > 0


def test_false_alarm_that_others_left_marked_counts_as_missed(drawn, key):
    quiet = judge(drawn, key)
    assert (quiet.rate, quiet.allow) == (0.0, ())
    verdicts = {e.sentence.id: Verdict() for e in drawn.excerpts}
    may = [e for e in drawn.excerpts if "May" in e.text]
    assert len(may) > 2
    verdicts[may[0].sentence.id] = Verdict(false_alarms=(0,))
    found = findings(drawn.excerpts, verdicts, sizes=drawn.sizes, key=key)
    assert found.allow == (key.allow_name("May"),)
    assert found.num_charged == len(may) - 1
    assert found.rate > 0
    everyone = judge(drawn, key, alarms=["May"])
    assert everyone.num_charged == 0
    assert everyone.rate == 0.0


def test_missed_word_under_a_mark_that_is_taken_back_counts_as_missed(drawn, key):
    """The mark goes with its false alarm: nothing covers the word any more."""
    verdicts = {e.sentence.id: Verdict() for e in drawn.excerpts}
    (one, *_) = (e for e in drawn.excerpts if "Ann Lee" in e.text)
    (mark,) = one.sentence.marks
    said = Verdict(missed=((mark.start, mark.end),), false_alarms=(0,))
    verdicts[one.sentence.id] = said
    others = [e for e in drawn.excerpts if "Ann Lee" in e.text and e is not one]
    found = findings(drawn.excerpts, verdicts, sizes=drawn.sizes, key=key)
    assert found.num_missed == 2
    assert found.num_charged == 2 * len(others)


def test_open_sentence_gives_no_rate(drawn, key):
    with pytest.raises(ConfigError, match="every sentence must be decided, got 79"):
        findings(
            drawn.excerpts,
            {drawn.excerpts[0].sentence.id: Verdict()},
            sizes=drawn.sizes,
            key=key,
        )


def test_best_bound_is_the_one_of_a_review_without_a_miss(drawn, key):
    sentences = [e.sentence for e in drawn.excerpts]
    bound = best_upper_bound(sentences, drawn.sizes)
    assert bound == judge(drawn, key).interval.high
    assert 0 < bound < 0.2
