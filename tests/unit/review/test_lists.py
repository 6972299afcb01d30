"""Lists match phrases under a key, hold no text, and never unmask a checksum."""

import json
import unicodedata

import pytest

from dptune.detection.labelling import detect_dataset
from dptune.detection.recognizer import UNAVAILABLE
from dptune.errors import ConfigError
from dptune.review.lists import (
    AllowFilter,
    DenyEntry,
    DenyRecognizer,
    ListKey,
    ReviewLists,
    extended,
    with_lists,
)
from dptune.text import Span
from tests.unit.review.conftest import Fixed, corpus_of, engine_of


def lists_of(key, *, deny=(), allow=()):
    return extended(
        ReviewLists(),
        key,
        deny=[key.deny_entry(phrase) for phrase in deny],
        allow=[key.allow_name(phrase) for phrase in allow],
    )


def found(text, engine):
    return [text[s.start : s.end] for s in engine.detect([text])[0]]


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("so zed quill called", ["zed quill"]),
        ("ZED  QUILL!", ["ZED  QUILL"]),
        ("Zed-Quill here", ["Zed-Quill"]),
        ("zed, then quill", []),
        ("Zed Quillan", []),
        ("Zed", []),
        ("USR:Zed Quill", ["Zed Quill"]),
        ("Ｚｅｄ Ｑｕｉｌｌ", ["Ｚｅｄ Ｑｕｉｌｌ"]),
    ],
)
def test_denied_phrase_is_marked_however_it_is_written(text, marked, key):
    lists = lists_of(key, deny=["Zed Quill"])
    engine = engine_of(DenyRecognizer(lists, key))
    assert found(text, engine) == marked


@pytest.mark.parametrize(
    "name", ["José Peña", "Nguyễn Thị Ánh", "ΜΑΡΊΑ", "İpek", "ガガ", "أحمد"]
)
@pytest.mark.parametrize("read", ["NFC", "NFD"])
@pytest.mark.parametrize("written", ["NFC", "NFD"])
def test_denied_phrase_is_marked_in_every_form_of_unicode(name, read, written, key):
    """A mark that stands by itself ended the word, so that no entry matched."""
    lists = lists_of(key, deny=[unicodedata.normalize(read, name)])
    there = unicodedata.normalize(written, name)
    engine = engine_of(DenyRecognizer(lists, key))
    assert found(f"so {there} called", engine) == [there]


def test_entries_of_words_that_ended_at_a_mark_still_match(key):
    parts = ("jose", "pen", "a")
    old = DenyEntry(
        name=key.name("deny", "".join(parts)),
        head=key.name("head", parts[0]),
        num_words=len(parts),
    )
    lists = extended(ReviewLists(), key, deny=[old])
    there = unicodedata.normalize("NFD", "José Peña")
    assert found(f"so {there}!", engine_of(DenyRecognizer(lists, key))) == [there]


def test_denied_phrases_of_several_lengths_all_match(key):
    lists = lists_of(key, deny=["zed", "zed quill", "quill of the east"])
    text = "zed quill of the east"
    pieces = found(text, engine_of(DenyRecognizer(lists, key)))
    assert "".join(pieces) == text


def test_lists_hold_no_text_and_another_key_learns_nothing(key):
    lists = lists_of(key, deny=["Zed Quill"], allow=["Monday"])
    written = lists.model_dump_json().lower()
    assert not any(word in written for word in ("zed", "quill", "monday"))
    other = ListKey(secret=bytes(32))
    assert other.deny_entry("Zed Quill").name not in written
    assert other.allow_name("Monday") not in written
    for make in (DenyRecognizer, AllowFilter):
        with pytest.raises(ConfigError, match="key"):
            make(lists, other)


def test_key_is_hidden_and_must_be_a_secret(key):
    assert key.secret.hex() not in repr(key)
    assert str(key.secret) not in repr(key)
    with pytest.raises(ConfigError, match="16 to 64"):
        ListKey(secret=b"short")


@pytest.mark.parametrize("phrase", ["", "--", "a " * 13])
def test_phrase_without_words_or_with_too_many_is_refused_unquoted(phrase, key):
    with pytest.raises(ConfigError) as refused:
        key.deny_entry(phrase)
    assert "1 to 12" in str(refused.value)
    assert "a a" not in str(refused.value)


def test_allowed_phrase_is_no_longer_marked_but_a_longer_name_is(key):
    base = engine_of(Fixed("May", "May Jones"))
    engine = with_lists(base, lists_of(key, allow=["may"]), key)
    assert found("It was May.", base) == ["May"]
    assert found("It was May.", engine) == []
    assert found("It was May Jones.", engine) == ["May Jones"]


def test_allowed_union_of_overlapping_spans_is_taken_back(key):
    base = engine_of(Fixed("Great Western", "Western"))
    engine = with_lists(base, lists_of(key, allow=["Great Western"]), key)
    assert found("the Great Western line", engine) == []
    assert found("a Western line", engine) == ["Western"]


def test_allow_never_unmasks_a_checksum_hit(key):
    base = engine_of(Fixed("DE89", firm=("DE89",)))
    engine = with_lists(base, lists_of(key, allow=["DE89"]), key)
    assert found("pay DE89 now", engine) == ["DE89"]


def test_allow_that_forgets_confidence_is_caught(key, monkeypatch):
    monkeypatch.setattr("dptune.detection.recognizer.is_firm", lambda _span: False)
    base = engine_of(Fixed("DE89", firm=("DE89",)))
    engine = with_lists(base, lists_of(key, allow=["DE89"]), key)
    assert found("pay DE89 now", engine) == []


def test_what_nobody_could_judge_and_what_is_denied_stays(key):
    lists = lists_of(key, allow=["zed quill"], deny=["zed quill"])
    text = "zed quill"
    unjudged = Span(start=0, end=9, entity_type=UNAVAILABLE, confidence=0.3)
    assert AllowFilter(lists, key).keep([unjudged], text) == [unjudged]
    assert found(text, with_lists(engine_of(Fixed("zed quill")), lists, key)) == [text]


def test_lists_change_the_fingerprint_and_rerun_only_themselves(key, tmp_path):
    known = Fixed("Ann")
    corpus = corpus_of(["Ann and Zed", "nobody", "Zed Quill"])
    base = engine_of(known)
    detect_dataset(corpus, base, cache_dir=tmp_path)
    assert known.calls == 3
    engine = with_lists(base, lists_of(key, deny=["Zed"], allow=["Ann"]), key)
    assert engine.fingerprint != base.fingerprint
    again = detect_dataset(corpus, engine, cache_dir=tmp_path)
    assert known.calls == 3, "the recognizer's own column was in the cache"
    assert [len(row) for row in again["spans"]] == [1, 0, 1]
    assert with_lists(base, ReviewLists(), key).fingerprint == base.fingerprint


def test_lists_survive_json_and_extending_is_a_union(key):
    lists = lists_of(key, deny=["a b", "c"], allow=["d"])
    assert ReviewLists.model_validate_json(lists.model_dump_json()) == lists
    more = extended(lists, key, deny=[key.deny_entry("c")], allow=[key.allow_name("e")])
    assert len(more.deny) == 2
    assert len(more.allow) == 2
    assert lists.fingerprint != more.fingerprint
    assert ReviewLists().fingerprint == ""
    assert json.loads(lists.model_dump_json())["key_check"] == key.check
