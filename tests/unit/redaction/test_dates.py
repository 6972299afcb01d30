"""Dates are moved in their own format, intervals stay, and what is no date is none."""

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.redaction import pseudonyms, surrogates
from dptune.redaction.operators import Operator
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.redaction.surrogates import shifted
from dptune.text import Span

TABLE = json.loads(
    (Path(__file__).parents[2] / "tables" / "shifted_dates.json").read_text("utf8")
)
KEYS = Pseudonyms(key=bytes(16))


@pytest.mark.parametrize(("value", "wanted"), TABLE["us"])
def test_shifted_date_keeps_its_format(value, wanted):
    assert shifted(value, 40, month_first=True) == wanted


@pytest.mark.parametrize("value", TABLE["none"])
def test_shifted_of_what_is_no_date_or_moves_nowhere_is_none(value):
    assert shifted(value, 40, month_first=True) is None or value == "mar"


@given(st.dates(date(1930, 1, 1), date(2090, 1, 1)), st.integers(-999, 999))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_shifted_whole_dates_move_by_the_days(day, days):
    if days:
        moved = day + timedelta(days=days)
        assert shifted(f"{day}", days, month_first=False) == f"{moved}"
        written = f"{day:%A}, {day.day} {day:%B} {day.year}"
        wanted = f"{moved:%A}, {moved.day} {moved:%B} {moved.year}"
        assert shifted(written, days, month_first=False) == wanted


def shift(value, unit="u", operator=Operator.SHIFT_DATES, **how):
    span = Span(start=0, end=len(value), entity_type="DATE")
    return KEYS.replacement(unit, operator=operator, **how)(span, value)


@pytest.mark.parametrize("operator", [Operator.SHIFT_DATES, Operator.PSEUDONYM])
def test_dates_of_a_unit_keep_their_intervals_and_others_move_elsewhere(operator):
    days = {}
    for unit in map(str, range(30)):
        one, two = (
            date.fromisoformat(shift(v, unit, operator))
            for v in ("2020-01-10", "2020-03-01")
        )
        assert (two - one).days == 51
        days[unit] = (one - date(2020, 1, 10)).days
        low, high = (1, 365) if operator is Operator.SHIFT_DATES else (366, 730)
        assert low <= abs(days[unit]) <= high
        if operator is Operator.PSEUDONYM:
            assert int(shift("1998", unit, operator)) - 1998 in {-2, -1, 1, 2}
    assert len(set(days.values())) > 20


def test_shift_is_at_most_what_was_asked_and_no_date_becomes_a_mask():
    for unit in map(str, range(50)):
        moved = date.fromisoformat(shift("2020-01-10", unit, max_days=3))
        assert 1 <= abs((moved - date(2020, 1, 10)).days) <= 3
    assert shift("sometime soon") == "<mask>"
    assert shift(" 2020-01-10 ").strip() == shift("2020-01-10")


UNREAD = [
    *(
        "20200303",
        "03-Mar-20",
        "2020年3月3日",
        "3. März 2020",
        "Monday",
        "12:30",
        "mai 2020",
    ),
    *(
        "30 February 2020",
        "yesterday",
        "Q3 2020",
        "٣ مارس",
        "March 3 2020 at noon",
        "5th",
    ),
]


@pytest.mark.parametrize("operator", [Operator.SHIFT_DATES, Operator.PSEUDONYM])
@pytest.mark.parametrize("value", UNREAD)
def test_dates_that_nobody_reads_become_a_mask(operator, value):
    """A date that is drawn stands at another distance from the others than it did."""
    assert {shift(value, str(unit), operator) for unit in range(5)} == {"<mask>"}


def test_dates_twin_that_draws_what_it_cannot_read_is_caught(monkeypatch):
    monkeypatch.setattr(
        pseudonyms,
        "shifted",
        lambda value, days, *, month_first: str(1960 + len(value)),
    )
    with pytest.raises(AssertionError):
        test_dates_that_nobody_reads_become_a_mask(Operator.PSEUDONYM, UNREAD[0])


@pytest.mark.parametrize(
    "value", ["3/1", "12/25", "March 3", "2020-03-03", "May", "1998"]
)
def test_dates_of_no_unit_stay(value):
    for unit in map(str, range(800)):
        assert shift(value, unit, Operator.PSEUDONYM) != value


def test_days_without_a_year_are_a_day_off_at_most():
    """They are read in a common year, as documented; the true one may have a 29 Feb."""
    off = set()
    for unit in map(str, range(60)):
        for year in range(2016, 2024):
            whole = shift(f"{year}-03-03", unit, Operator.PSEUDONYM)
            bare = shift("3/3", unit, Operator.PSEUDONYM)
            if bare != "<mask>":
                month, day = map(int, bare.split("/"))
                moved = date.fromisoformat(whole)
                years = (date(moved.year + n, month, 1) for n in (-1, 0, 1))
                near = (moved - first - timedelta(days=day - 1) for first in years)
                off.add(min(abs(gap.days) for gap in near))
    assert off == {0, 1}


def test_time_of_day_stays_as_documented():
    assert shift("2020-03-03T23:59:59Z").endswith("T23:59:59Z")


STAYING = [
    *(("1/10", 365), ("3/1", 366), ("01/1", 365), ("March 3", 731), ("Sept 2019", 3)),
    *(
        ("Sept 4", 366),
        ("Monday, May 1", 366),
        ("the 5th of January", -365),
        ("Sept", 1),
    ),
    *(("1998", 9), ("10.1.", 365), ("2/29", 1461), ("MAY", -3), ("Feb 29", -1461)),
]


@pytest.mark.parametrize(("value", "days"), STAYING)
def test_shifted_date_that_would_say_the_same_is_none(value, days):
    """A year's shift brings a day without a year back to itself."""
    assert shifted(value, days, month_first=True) is None


def test_shifted_twin_that_compares_texts_alone_is_caught(monkeypatch):
    plain = surrogates._worded

    def twin(match, days):
        return plain(match, days) or match[0].replace("Sept", "Sep")

    monkeypatch.setattr(surrogates, "_worded", twin)
    with pytest.raises(AssertionError):
        test_shifted_date_that_would_say_the_same_is_none("Sept 2019", 3)
