"""What the gate says in each of some 200 cases: `decision_book.json` is the book.

Of every case the book has the outcome and the criteria that are not those of the clean
evidence: verdict, what was compared with what, the reason, and what would change it.
Read it as a user would. `python tests/unit/gates/test_decision_book.py` writes it anew;
a verdict that changes there is a change of what may be promoted.
"""

import json
from pathlib import Path

import pytest

from dptune.gates.criterion import GateOutcome, Verdict
from dptune.gates.decision import decide
from tests.unit.gates.conftest import Make
from tests.unit.gates.decision_cases import PARTS

BOOK = Path(__file__).with_name("decision_book.json")


def said(decision):
    """Lay a decision out: verdict, figures, reason and next step of every criterion."""
    return {one.name: line(one) for one in decision.criteria}


def line(one):
    """Lay a criterion out."""
    interval = one.interval and [
        one.interval.low,
        one.interval.high,
        one.interval.confidence,
    ]
    figures = [one.measured, one.threshold, interval]
    return [one.verdict.value, *figures, one.reason, one.what_would_change_it]


def clean():
    return said(decide(Make.evidence(), Make.policy()))


def written(part):
    """Decide on the cases of one part."""
    usual, pages = clean(), {}
    for name, (evidence, policy) in part(Make).items():
        decision = decide(Make.evidence(**evidence), Make.policy(**policy))
        found = said(decision)
        differ = {key: one for key, one in found.items() if one != usual.get(key)}
        page = {"outcome": decision.outcome.value, "criteria": differ}
        gone = sorted(usual.keys() - found.keys())
        pages[name] = page | ({"not asked": gone} if gone else {})
    return pages


def flat(value, path=()):
    """Paths and leaves."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in pairs:
            yield from flat(child, (*path, key))
    else:
        yield path, value


def read():
    return json.loads(BOOK.read_text(encoding="utf-8"))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_gate_says_what_the_book_says(part):
    found = written(part) | {"clean": {"outcome": "PASS", "criteria": clean()}}
    book = read()
    expected, told = dict(flat({name: book[name] for name in found})), dict(flat(found))
    differ = {
        path: (value, told.get(path, "is not said"))
        for path, value in expected.items()
        if path not in told or not same(value, told[path])
    }
    assert differ == {}


def test_book_has_no_page_that_no_case_is_of():
    names = ["clean", *(name for part in PARTS for name in part(Make))]
    assert list(read()) == names


def same(value, found):
    """Whether a leaf is what it was; figures to nine digits."""
    if isinstance(value, float):
        return isinstance(found, float) and found == pytest.approx(
            value, rel=1e-9, abs=1e-12, nan_ok=True
        )
    return type(value) is type(found) and value == found


def test_book_has_every_outcome_and_every_verdict_and_explains_each_failure():
    book = read()
    assert {page["outcome"] for page in book.values()} == set(GateOutcome)
    criteria = [one for page in book.values() for one in page["criteria"].values()]
    assert {verdict for verdict, *_ in criteria} == set(Verdict)
    for verdict, *_, reason, change in criteria:
        assert reason.endswith(".")
        assert (verdict in ("PASS", "NOT_APPLICABLE")) == (change == "")


def printed(pages):
    """Write the book, a criterion a line."""
    rows = []
    for name, page in pages.items():
        criteria = ",\n".join(
            f"  {json.dumps(key)}: {json.dumps(one, ensure_ascii=False)}"
            for key, one in page["criteria"].items()
        )
        rest = {key: one for key, one in page.items() if key != "criteria"}
        head = json.dumps(rest, ensure_ascii=False)[:-1]
        rows.append(f' {json.dumps(name)}: {head}, "criteria": {{\n{criteria}}}}}')
    return "{\n" + ",\n".join(rows) + "\n}\n"


if __name__ == "__main__":
    whole = {"clean": {"outcome": "PASS", "criteria": clean()}}
    for one in PARTS:
        whole |= written(one)
    BOOK.write_text(printed(whole), encoding="utf-8")
