"""Which values of a type are one value: what operators that tell values apart ask."""

import re
import unicodedata
from typing import Final

from dptune.spellings import one_form

_SIGNED: Final = frozenset(["IP", "DATE", "AMOUNT", "AGE"])
"""Types whose values differ by their signs: `1.1.11.1`, `11.1.1.1`; `1/12`, `11/2`."""


def form_of(kind: str, value: str) -> str:
    """Return one form for values of a type that are taken for equal.

    >>> form_of("PHONE", "12-34"), form_of("IP", "1.1.11.1")
    ('1234', '1.1.11.1')
    """
    if kind not in _SIGNED:
        return one_form(value)
    seen = "".join(c for c in value if unicodedata.category(c) != "Cf")
    parts = re.split(r"([./:-]+)(?=\w)", seen)
    return "".join(
        "." * len(part) if place % 2 else part and one_form(part)
        for place, part in enumerate(parts)
    )
