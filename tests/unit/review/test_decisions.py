"""A file of decisions is checked as a whole, and never quoted."""

import json

import numpy as np
import pytest

from dptune.errors import DataError
from dptune.review.decisions import check_decisions, read_decisions
from dptune.review.sample import draw_sample, masked

SAMPLE = "0123456789abcdef"


@pytest.fixture
def excerpts(labelled, key):
    return draw_sample(
        labelled, key=key, generator=np.random.default_rng(0), size=20
    ).excerpts


def written(decisions, **changes):
    values = {
        "format": "dptune-review-decisions",
        "version": 1,
        "sample": SAMPLE,
        "view": "original",
        "decisions": decisions,
    } | changes
    return json.dumps(values).encode()


def check(excerpts, decisions, **changes):
    file = read_decisions(written(decisions, **changes))
    return check_decisions(file, [e.sentence for e in excerpts])


def test_decisions_become_verdicts_of_marks(excerpts):
    flagged = next(e for e in excerpts if e.sentence.marks)
    (mark,) = flagged.sentence.marks
    alarm = {"start": mark.start, "end": mark.end}
    decisions = [{"id": e.sentence.id} for e in excerpts if e is not flagged]
    decisions.append(
        {
            "id": flagged.sentence.id,
            "missed": [{"start": 0, "end": 5}],
            "false_alarms": [alarm],
        }
    )
    verdicts = check(excerpts, decisions)
    assert len(verdicts) == 20
    assert verdicts[flagged.sentence.id].false_alarms == (0,)
    assert verdicts[flagged.sentence.id].missed == ((0, 5),)


def test_masked_view_is_carried_back(excerpts):
    flagged = next(e for e in excerpts if e.sentence.marks)
    shown = masked(flagged).text
    at = shown.index("today")
    decision = {
        "id": flagged.sentence.id,
        "missed": [{"start": at, "end": at + 5}],
    }
    verdict = check(excerpts, [decision], view="masked")[flagged.sentence.id]
    ((start, end),) = verdict.missed
    assert flagged.text[start:end] == "today"


def test_every_problem_is_told_at_once_and_none_quotes_the_file(excerpts):
    one = excerpts[0].sentence
    decisions = [
        {"id": "f" * 32},
        {"id": one.id, "missed": [{"start": 5, "end": 5}, {"start": 0, "end": 9999}]},
        {"id": one.id},
        {"id": excerpts[1].sentence.id, "false_alarms": [{"start": 0, "end": 1}]},
    ]
    with pytest.raises(DataError) as refused:
        check(excerpts, decisions)
    paths = [problem.path for problem in refused.value.problems]
    assert paths == [
        "decisions[0].id",
        "decisions[1].id",
        "decisions[1].missed[0]",
        "decisions[1].missed[1]",
        "decisions[2].id",
        "decisions[3].false_alarms[0]",
    ]
    assert "f" * 32 not in str(refused.value)


def test_checksum_marks_cannot_be_false_alarms(excerpts):
    flagged = next(e for e in excerpts if e.sentence.marks)
    mark = flagged.sentence.marks[0]
    firm = flagged.sentence.model_copy(
        update={"marks": (mark.model_copy(update={"firm": True}),)}
    )
    alarm = {"start": mark.start, "end": mark.end}
    file = read_decisions(written([{"id": firm.id, "false_alarms": [alarm]}]))
    with pytest.raises(DataError, match="valid checksum"):
        check_decisions(file, [firm])


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"not json about Ann Lee",
        b"[" * 100_000,
        b"null",
        b'"Ann Lee"',
        written([], version=2),
        written([], sample="Ann Lee"),
        written([], format="Ann Lee"),
        written([], extra="Ann Lee"),
        written([{"id": "Ann Lee"}]),
        written([{"id": "0" * 32, "Ann Lee": 1}]),
        written([{"id": "0" * 32, "missed": [{"start": -1, "end": "Ann Lee"}]}]),
        written([{"id": "0" * 32, "missed": [{"start": True, "end": 2.5}]}]),
        written([{"id": "0" * 32, "missed": [{"start": 0, "end": 10**400}]}]),
        written([]).replace(b"{", b'{"sample": "Ann Lee", ', 1),
    ],
    ids=lambda content: repr(content[:24]),
)
def test_broken_files_are_refused_without_quoting_them(content):
    with pytest.raises(DataError) as refused:
        read_decisions(content)
    assert refused.value.problems
    assert "Ann" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_no_decision_at_all_is_refused(excerpts):
    with pytest.raises(DataError, match="at least one"):
        check(excerpts, [])
