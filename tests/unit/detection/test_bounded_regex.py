"""Expressions of a configuration take bounded time, or are refused before they run."""

import itertools
import json
import random
import re
import time
from pathlib import Path

import pytest

from dptune.detection import bounded_regex
from dptune.detection.bounded_regex import MAX_STEPS, compiled

TABLE = json.loads(
    (Path(__file__).parents[2] / "tables" / "own_patterns.json").read_text("utf8")
)


@pytest.mark.parametrize("source", TABLE["accepted"])
def test_bounded_expression_is_accepted(source):
    compiled(source, ignore_case=False)


@pytest.mark.parametrize("source", TABLE["refused"])
def test_expression_without_a_bound_or_a_meaning_is_refused(source):
    with pytest.raises(ValueError, match="must"):
        compiled(source, ignore_case=False)


def _drawn(draw, depth):
    """Draw an expression of letters, classes, choices and repeats."""
    kinds = ["letter", "class", "any"] + ["group", "choice", "repeat"] * (depth > 0)
    kind = draw.choice(kinds)
    match kind:
        case "letter":
            return draw.choice("ab")
        case "class":
            return draw.choice(["[ab]", "[^a]", r"\w", "[a-c]"])
        case "any":
            return "."
        case "choice":
            return f"(?:{_drawn(draw, depth - 1)}|{_drawn(draw, depth - 1)})"
        case "repeat":
            low = draw.randint(0, 2)
            item = f"(?:{_drawn(draw, depth - 1)})"
            sign = draw.choice(["", "", "?", "+"])
            return f"{item}{{{low},{low + draw.randint(1, 12)}}}{sign}"
    return _drawn(draw, depth - 1) + _drawn(draw, depth - 1)


HOSTILE = ["a" * 600, "ab" * 300, "a" * 599 + "!", "b" * 300 + "a" * 300, "abc" * 200]


def _slowest(source):
    """Time the worst of some hostile texts, per character."""
    expression = re.compile(source)
    worst = 0.0
    for text in HOSTILE:
        start = time.process_time()
        for _ in itertools.islice(expression.finditer(text), 10_000):
            if time.process_time() - start > 1:
                break
        worst = max(worst, (time.process_time() - start) / len(text))
    return worst


def test_expressions_that_are_accepted_take_no_more_time_than_their_bound():
    """2,000 steps take a tenth of a millisecond; a hundred times that is no step."""
    draw = random.Random(7)  # noqa: S311
    accepted = 0
    for _ in range(400):
        source = _drawn(draw, 4) + "[c!]"
        try:
            compiled(source, ignore_case=False)
        except ValueError:
            continue
        accepted += 1
        assert _slowest(source) < 1e-2, source
    assert accepted > 100


def test_twin_that_takes_any_repeat_for_determined_lets_slow_ones_in(monkeypatch):
    slow = "(?:a{1,30}a{1,30}a{1,30}a{1,30})b"
    with pytest.raises(ValueError, match="steps"):
        compiled(slow, ignore_case=False)
    monkeypatch.setattr(bounded_regex, "_is_determined", lambda *_: True)
    compiled(slow, ignore_case=False)


def test_case_is_part_of_what_a_class_matches():
    """Without case `a` may go on what `[A-Z]` begins: the ways multiply."""
    source = "(?:[a-z]{1,60}[A-Z]{1,60}[a-z]{1,60})1"
    compiled(source, ignore_case=False)
    with pytest.raises(ValueError, match=f"{MAX_STEPS:,} steps"):
        compiled(source, ignore_case=True)
