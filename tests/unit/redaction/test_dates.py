"""Dates are moved in their own format, intervals stay, and what is no date is none."""

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.redaction.dates import shifted
from dptune.redaction.operators import Operator
from dptune.redaction.pseudonyms import Pseudonyms
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
