"""The pages for those who come from elsewhere: examples run, and tables hold."""

import difflib
import doctest
import re
import runpy

import pytest

import dptune
from dptune.detection import third_party
from dptune.detection.recognizer import LOW_ENTITY_TYPES
from infra.workspace import REPOSITORY

PAGES = REPOSITORY / "docs" / "migration"
SCRIPTS = REPOSITORY / "docs" / "examples" / "migration"
FOUND = {
    "PERSON": "ask Grace Hill",
    "LOCATION": "she lives in Berlin",
    "ORGANIZATION": "she works at Siemens AG",
    "NRP": "a German customer",
    "EMAIL_ADDRESS": "write to grace.hill@example.org",
    "URL": "see https://example.org/grace-hill",
    "CREDIT_CARD": "paid with 4111 1111 1111 1111",
    "DATE_TIME": "born on 3 March 1984",
    "IBAN_CODE": "to DE89 3704 0044 0532 0130 00",
    "IP_ADDRESS": "from 192.168.14.7",
    "MAC_ADDRESS": "device 00:1b:44:11:3a:b7",
    "PHONE_NUMBER": "call +44 113 496 0123",
    "US_SSN": "SSN 536-90-4399",
    "UUID": "id 123e4567-e89b-42d3-a456-426614174000",
}
"""A text of each type that the default recognizers find."""


def table():
    """Types of Presidio, and what they are called here, as the page has them."""
    text = (PAGES / "presidio.md").read_text().split("<!-- types")[1].split("\n\n")[1]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines()[2:]]
    return {theirs: ours.split(", ") for theirs, ours in rows}


def test_types_are_those_of_the_recognizer_that_runs_presidio():
    listed = table()
    *_, (others, default) = listed.items()
    assert others.startswith("any other")
    assert default == ["NATIONAL_ID"]
    assert {t: listed[t] for t in third_party._TYPES} == {
        theirs: [ours] for theirs, ours in third_party._TYPES.items()
    }
    assert {ours for names in listed.values() for ours in names} <= LOW_ENTITY_TYPES


@pytest.mark.parametrize("theirs", FOUND)
def test_type_is_found_under_the_name_that_the_page_says(theirs):
    (spans,) = dptune.detect([FOUND[theirs]], tier="low_entity")
    assert {span.entity_type for span in spans} & set(table()[theirs])


def test_examples_of_the_pages_run():
    attempted = 0
    for page in PAGES.glob("*.md"):
        result = doctest.testfile(str(page), module_relative=False)
        assert result.failed == 0
        attempted += result.attempted
    assert attempted >= 4


@pytest.mark.filterwarnings("ignore")  # Opacus warns of its own
@pytest.mark.parametrize("form", ["before", "after"])
def test_script_of_opacus_runs_before_and_after(form, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(SCRIPTS / f"opacus_{form}.py"), run_name="__main__")
    assert 0 < float(capsys.readouterr().out.split()[-1]) <= 8.0


def test_page_shows_what_differs_between_the_scripts():
    page = (PAGES / "opacus.md").read_text()
    shown = re.search(r"(?s)```diff\n(.*?)```", page)[1].splitlines()
    before, after = (
        (SCRIPTS / f"opacus_{form}.py").read_text().splitlines()
        for form in ("before", "after")
    )
    differs = set(difflib.ndiff(before, after))
    marked = {line[0] + " " + line[1:] for line in shown if line[0] in "+-"}
    assert marked
    assert marked <= differs
