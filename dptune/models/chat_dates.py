"""Dates that chat templates write: of one day, so that tokens do not change."""

import re
from datetime import date
from typing import Final

_A_DAY: Final = date(2024, 7, 26)
_TODAY = re.compile(r"strftime_now\s*\(\s*('[^']*'|\"[^\"]*\")\s*\)")
_OTHER_DAY = re.compile(r"strftime_now(?!\s+is\b)")


def without_today(template: str) -> str:
    """Write what a chat template asks for of today as it was on one day."""
    return _TODAY.sub(lambda call: repr(_A_DAY.strftime(call[1][1:-1])), template)


def asks_for_today(template: str) -> bool:
    """Tell whether a template asks for a date that `without_today` leaves."""
    return bool(_OTHER_DAY.search(template))
