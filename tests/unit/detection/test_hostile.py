"""No text breaks the rules: no wrong place, no half of a run, no endless time."""

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection import union
from dptune.detection.engine import build_engine
from dptune.detection.patterns import fields as tables
from dptune.detection.recognizer import Tier
from tests.support.growth import grows_in_proportion

ENGINE = build_engine(tier=Tier.LOW_ENTITY)
PIECES = [
    *(
        "name: ",
        '{"first_name":"',
        "<name>",
        "</name>",
        "\n",
        "\t",
        ",",
        ";",
        "|",
        "= ",
    ),
    *("rose young", "Linda", "1962", "van ", "[10:32] ", "<a> ", "no. 12/34, ", "Az. "),
    *(
        "March 3, ",
        "3 and ",
        "the 3rd ",
        "ssn ",
        "1 2 3 4 5 6 7 8 9",
        "five five ",
        "①",
    ),
    *(
        "\u200b",
        "\u0301",
        "\u20e3",
        "电话",
        "क्",
        "İ",
        "ß",
        "👍🏽",
        "\ud7ff",
        "\x00",
        "\u202e",
    ),
    *(
        "@",
        "a@b.org",
        "http://",
        "12 Elm St",
        "apt 4",
        "\\",
        "'",
        '"',
        "^",
        "(",
        "[",
        "{",
    ),
    *(
        "in his ",
        "works as a nurse",
        "salary is $5",
        "51.5074, -0.1278",
        "user ",
        "/home/",
    ),
]
WORDS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


def is_sound(text, spans):
    """Tell whether spans are in the text, apart, and cut no run of plain letters."""
    ends = [(span.start, span.end) for span in spans]
    marked = {i for start, end in ends for i in range(start, end)}
    runs = [set(range(*m.span())) for m in re.finditer(r"[A-Za-z0-9]+", text)]
    return (
        all(0 <= start < end <= len(text) for start, end in ends)
        and all(a[1] <= b[0] for a, b in pairwise(ends))
        and not any(run & marked and not run <= marked for run in runs)
    )


@given(st.one_of(st.text(max_size=80), WORDS))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_detect_any_text_gives_whole_runs_inside_it(text):
    assert is_sound(text, ENGINE.detect([text])[0])


@pytest.mark.parametrize(
    "text",
    ["Grace Hill \ud83d wrote", "\ud800" * 50, "Grace\ud800 Hill", "gr\ud800ce@b.org"],
)
def test_detect_lone_surrogates_are_no_error_and_hide_no_name(text):
    spans = ENGINE.detect([text])[0]
    masked = {i for span in spans for i in range(span.start, span.end)}
    assert all(text[i] in "\ud800\ud83d wrote" for i in {*range(len(text))} - masked)
    assert is_sound(text, spans)


def num_cells_compared(find):
    """Count how often cells are looked for in rows of 400 lines about persons."""
    count = 0

    class Row(list):
        __hash__ = None

        def __eq__(self, other):
            nonlocal count
            count += 1
            return super().__eq__(other)

    line = "rose\tyoung\t34\n"
    rows = [
        Row([(at, at + 4), (at + 5, at + 10), (at + 11, at + 13)])
        for at in range(0, 400 * len(line), len(line))
    ]
    assert len(list(find(line * 400, rows))) == 800
    return count


def test_rows_about_persons_are_not_compared_with_one_another():
    assert num_cells_compared(tables._headless) == 0


def test_rows_count_of_comparisons_catches_a_search_in_a_list():
    def slow(text, rows):
        found = list(tables._headless(text, rows))
        return found if all(row in rows for row in rows[::-1]) else []

    assert num_cells_compared(slow) > 50_000


def test_detect_law_catches_a_union_that_leaves_halves(monkeypatch):
    text = "the user Linda1962 wrote"
    assert is_sound(text, ENGINE.detect([text])[0])
    monkeypatch.setattr(union, "_goes_on", lambda _text, _position: False)
    assert not is_sound(text, ENGINE.detect([text])[0])


@pytest.mark.parametrize(
    "piece",
    [
        *("name: ", "name=", '"name":"', "<a>", "\na,1,b", "| a |\n", "a: ", "a\t1\n"),
        *(
            "nos. 12/34, ",
            "3 and ",
            "march 3, 4, ",
            "one two ",
            "1 2 ",
            "①",
            "电",
            "a\u0301",
        ),
        *(
            "nurse ",
            "at 5 ",
            "1 a apt ",
            "rue a ",
            "van ",
            "SSN: ",
            "ab",
            "a1",
            "'",
            "^a",
        ),
        *("user a ", "12.3456 ", "name\n", "a-mac-", "insert into a (b) values ('c'),"),
        *("_", "-", "a__", "_1", "·1", "a,1 "),
        *("[10:32] <ann> hi\n", "curl -u ", "pass: ", "-----BEGIN PRIVATE KEY-----\n"),
        *("seed ", "<mask> Ann ", "\x00", "\x1b[1m"),
    ],
)
def test_detect_ten_times_the_text_takes_about_ten_times_as_long(piece):
    assert grows_in_proportion(
        lambda length: ENGINE.detect([piece * (length // len(piece))]), 2_000
    )


def test_the_law_of_growth_catches_work_that_is_quadratic():
    def quadratic(size):
        return sum(1 for _ in range(size * size // 30))

    assert not grows_in_proportion(quadratic, 3_000)
