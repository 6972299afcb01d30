"""A judge may raise a score; a failure of it never changes one."""

import json
import re
import time

import pytest

from dptune.detection.endpoint import Endpoint
from dptune.detection.llm import NOT_ASKED, judge_types
from dptune.detection.scoring import known_types, public_counts, score_entity_types
from tests.llm_server import reply, serving

pytest.importorskip("openai", reason="needs the extra llm")

BUILT_IN = score_entity_types(public_counts(), counts_are_public=True)
CONTROLS = {"TAXPAYER_NUMBER": (True, True), "PUNCTUATION_MARK": (False, False)}


def names(message):
    return re.findall(r"^\d\. (\w+): ", message, re.MULTILINE)


def verdicts(*pairs):
    rows = [
        {"number": n, "linkable": a, "legally_protected": b}
        for n, (a, b) in enumerate(pairs, 1)
    ]
    return json.dumps({"verdicts": rows})


def saying(said, **controls):
    """A model that is right about the controls and says `said` of every type."""
    known = CONTROLS | controls
    return lambda m, c: reply(verdicts(*(known.get(n, said) for n in names(m))))


def judged(url, *, may_lower=False, descriptions=None, **options):
    endpoint = Endpoint(base_url=url, model="m", **{"max_retries": 0, **options})
    return judge_types(endpoint, may_lower=may_lower, descriptions=descriptions)


def scored(judgement):
    return score_entity_types(
        public_counts(), counts_are_public=True, judgement=judgement
    )


def without_judge(table):
    """The rows of a table as they would be without a judge."""
    return {row.model_copy(update={"judged": "no"}) for row in table.rows}


def test_judge_sends_names_and_public_words_of_all_types_and_nothing_else():
    with serving(saying((True, True))) as (url, seen):
        judged(url, descriptions={"BADGE": "number on a badge"})
    kinds = known_types() | {"BADGE": "number on a badge"}
    assert len(seen) == len(kinds)
    allowed = {f"{name}: {words}" for name, words in kinds.items()}
    for body in seen:
        lines = json.loads(body)["messages"][1]["content"].splitlines()
        own = [line[3:] for line in lines if names(line)[0] not in CONTROLS]
        assert len(lines) == 3
        assert len(own) == 1
        assert own[0] in allowed
    places = {
        names(json.loads(b)["messages"][1]["content"]).index(n)
        for b, n in zip(seen, kinds, strict=True)
    }
    assert places == {0, 1, 2}


def test_judge_raises_what_the_table_calls_harmless():
    with serving(saying((True, True))) as (url, _):
        table = scored(judged(url))
    rows = {row.entity_type: row for row in table.rows}
    before = {row.entity_type: row for row in BUILT_IN.rows}
    for name, row in rows.items():
        assert (row.linkable, row.legally_protected) == (True, True)
        assert row.score >= before[name].score
    assert rows["CARDINAL"].judged == "raised"
    assert rows["PERSON"].judged == "same"
    assert table.judge.num_answered == table.judge.num_asked == len(known_types())


def test_judge_lowers_only_where_it_may():
    with serving(saying((False, False))) as (url, _):
        held, lowered = judged(url), judged(url, may_lower=True)
    assert without_judge(scored(held)) == set(BUILT_IN.rows)
    rows = {row.entity_type: row for row in scored(lowered).rows}
    kept = {row.entity_type: row.judged for row in scored(held).rows}
    assert (kept["PERSON"], kept["CARDINAL"]) == ("held", "same")
    assert rows["PERSON"].judged == "lowered"
    assert rows["PERSON"].score == pytest.approx(0.4 * rows["PERSON"].rarity)


FAILURES = {
    "error": (lambda m, c: 500, "status 500"),
    "refused": (lambda m, c: 403, "status 403"),
    "no json": (lambda m, c: reply("they are all harmless"), "not as asked"),
    "empty": (lambda m, c: reply(""), "not as asked"),
    "bytes": (lambda m, c: b"<html>", "cannot be read"),
    "cut off": (
        lambda m, c: reply(verdicts((False, False)), reason="length"),
        "cut off",
    ),
    "all harmless": (
        lambda m, c: reply(verdicts(*3 * [(False, False)])),
        "not as asked",
    ),
    "all sensitive": (
        lambda m, c: reply(verdicts(*3 * [(True, True)])),
        "not as asked",
    ),
    "one missing": (
        lambda m, c: reply(verdicts(*2 * [(False, False)])),
        "not as asked",
    ),
    "words for booleans": (
        lambda m, c: reply(verdicts(*3 * [("no", "no")])),
        "not as asked",
    ),
    "controls swapped": (
        saying(
            (False, False),
            TAXPAYER_NUMBER=(False, False),
            PUNCTUATION_MARK=(True, True),
        ),
        "not as asked",
    ),
    "slow": (lambda m, c: time.sleep(0.3) or reply(""), "no answer in time"),
}


@pytest.mark.parametrize("case", FAILURES.values(), ids=FAILURES)
def test_judge_that_fails_changes_no_score_and_the_report_says_so(case):
    answer, why = case
    with serving(answer) as (url, seen):
        found = judged(url, may_lower=True, timeout_s=0.1 if "time" in why else 5.0)
    table = scored(found)
    assert table.rows == BUILT_IN.rows
    assert table.judge.num_answered == 0
    assert sum(table.judge.failures.values()) == len(known_types())
    assert any(why in kind for kind in table.judge.failures)
    if NOT_ASKED in table.judge.failures:  # nobody answered: it was given up
        assert len(seen) <= 4


def test_judge_down_is_given_up_after_three_requests():
    found = judged("http://127.0.0.1:9/v1", timeout_s=1.0)
    assert found.failures == {
        "no connection": 3,
        NOT_ASKED: len(known_types()) - 3,
    }
    assert scored(found).rows == BUILT_IN.rows


def test_judge_answers_are_kept_by_type_and_model_and_failures_are_not(tmp_path):
    file = tmp_path / "cache" / "answers.db"

    def sometimes(message, call):
        if "PHONE" in names(message) and call < 100:
            return reply("what?")
        return saying((True, True))(message, call)

    with serving(sometimes) as (url, seen):
        first = judged(url, cache_file=file)
        assert first.failures == {"an answer that is not as asked": 1}
        assert "PHONE" not in first.verdicts
        asked = len(seen)
        judged(url, cache_file=file)
        assert len(seen) == asked + 1
        judge_types(Endpoint(base_url=url, model="other", cache_file=file))
        assert len(seen) == 2 * asked + 1
    assert file.stat().st_mode & 0o077 == 0


def test_score_unlisted_type_stays_most_sensitive_unless_a_described_one_is_lowered():
    counts = {"BADGE": 1, "OTHER": 1}
    with serving(saying((False, False))) as (url, _):
        found = judged(url, may_lower=True, descriptions={"BADGE": "badge number"})
    table = score_entity_types(counts, counts_are_public=True, judgement=found)
    rows = {row.entity_type: row for row in table.rows}
    assert rows["BADGE"].score == pytest.approx(0.2)
    assert rows["OTHER"].score == pytest.approx(0.8)
    assert rows["OTHER"].judged == "no"
