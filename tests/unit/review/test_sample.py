"""Samples are stratified, named by content, and found again."""

import json

import numpy as np
import pytest

from dptune.errors import ConfigError
from dptune.reports.pages.detector import masked_lines
from dptune.review.lists import ListKey
from dptune.review.sample import (
    Excerpt,
    Mark,
    SampledSentence,
    draw_sample,
    masked,
    placeholders_of,
    reread,
    to_original,
)


def draw(labelled, key, *, seed=0, **wanted):
    return draw_sample(
        labelled, key=key, generator=np.random.default_rng(seed), **wanted
    )


def test_half_is_flagged_and_sizes_are_of_the_corpus(labelled, key):
    drawn = draw(labelled, key, size=40)
    assert drawn.sizes == {"flagged": 60, "unflagged": 180}
    strata = [e.sentence.stratum for e in drawn.excerpts]
    assert strata.count("flagged") == strata.count("unflagged") == 20
    assert strata != sorted(strata), "the order tells no stratum"


@pytest.mark.parametrize(("size", "expected"), [(200, 200), (10_000, 240)])
def test_what_one_stratum_lacks_the_other_gives(size, expected, labelled, key):
    assert len(draw(labelled, key, size=size).excerpts) == expected


def test_share_is_of_all_sentences_and_small_corpora_give_a_few_more(labelled, key):
    assert len(draw(labelled, key, share=0.5).excerpts) == 120
    assert len(draw(labelled, key).excerpts) == 20


@pytest.mark.parametrize("wanted", [{"share": 0.0}, {"share": 1.5}, {"size": 3}])
def test_impossible_samples_are_refused(wanted, labelled, key):
    with pytest.raises(ConfigError, match="share must be"):
        draw(labelled, key, **wanted)


def test_marks_and_text_of_a_sentence_agree(labelled, key):
    for excerpt in draw(labelled, key, size=60).excerpts:
        for mark in excerpt.sentence.marks:
            assert excerpt.text[mark.start : mark.end] in ("Ann Lee", "Bo Kim", "May")
        assert excerpt.text == excerpt.text.strip()
        assert excerpt.text not in repr(excerpt)
        assert excerpt.text not in excerpt.sentence.model_dump_json()


def test_sample_is_found_again_and_changed_text_or_key_is_not(labelled, key):
    drawn = draw(labelled, key, size=20)
    sentences = [e.sentence for e in drawn.excerpts]
    again = reread(labelled, sentences, key)
    assert [e.text for e in again] == [e.text for e in drawn.excerpts]
    other = labelled.map(
        lambda row: {"text": row["text"].replace("weather", "wxather")}
    )
    for corpus, secret in ((other, key), (labelled, ListKey(secret=bytes(32)))):
        with pytest.raises(
            ConfigError, match="sentence is not where it was"
        ) as refused:
            reread(corpus, sentences, secret)
        assert "Hello" not in str(refused.value)


def test_masked_lines_hold_no_code_point_of_a_mark(labelled, key):
    lines = list(masked_lines(draw(labelled, key, size=60).excerpts))
    assert not any(name in line for line in lines for name in ("Ann", "Bo Kim", "May"))
    for line in lines:
        row = json.loads(line)
        for mark in row["marks"]:
            assert row["text"][mark["start"] : mark["end"]] == "[PERSON_1]"


def test_ranges_of_the_masked_text_come_back(key):
    marks = (
        Mark(start=3, end=6, entity_type="PERSON"),
        Mark(start=10, end=30, entity_type="ID"),
    )
    text = "ab Ann cd " + "x" * 20 + " zed end"
    sentence = SampledSentence(
        id="0" * 32, row=0, start=0, end=len(text), num_words=6, marks=marks
    )
    shown = masked(Excerpt(sentence=sentence, text=text))
    assert shown.placeholders == placeholders_of(marks)
    for word in ("ab", "cd", "zed", "end"):
        at = shown.text.index(word)
        start, end = to_original((at, at + len(word)), marks)
        assert text[start:end] == word
    at = shown.text.index("PERSON")
    assert to_original((at, at + 2), marks) == (3, 6)
    at = shown.text.index("cd")
    assert to_original((at, shown.text.index("ID_2")), marks) == (7, 30)
