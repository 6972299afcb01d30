"""No cell of an exported table is a formula."""

import csv
import io

import pytest

from dptune.reports import tables

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1")


def cells(values):
    text = tables._csv(["head"], [values])
    return list(csv.reader(io.StringIO(text, newline="")))[1]


@pytest.mark.parametrize("text", FORMULAS)
def test_text_that_begins_a_formula_is_made_plain(text):
    plain = text.replace("\r", " ")
    assert cells([text, "a=1"]) == [f"'{plain}", "a=1"]


def test_text_cannot_begin_a_row_of_its_own():
    assert cells(["a\r=1+1", "b"]) == ["a =1+1", "b"]


def test_numbers_and_what_is_absent_stay():
    assert cells([-1.5, 3, None, "", float("-inf")]) == ["-1.5", "3", "", "", "-inf"]


def test_twin_that_writes_text_as_it_is_is_caught(monkeypatch):
    monkeypatch.setattr(tables, "_cell_text", lambda value: value)
    assert cells(["=1+1"]) == ["=1+1"]
