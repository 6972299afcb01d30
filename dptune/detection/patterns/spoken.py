"""Rules for digits that are read out: in words, or one by one."""

import re
from itertools import pairwise

from dptune.detection.patterns.rules import Rule
from dptune.detection.patterns.validators import Range

_HIPAA = "45 CFR 164.514(b)(2)(i)"
_ONES = "one|two|three|four|five|six|seven|eight|nine"
_DIGIT_WORD = (
    rf"(?:(?:double|triple|treble) )?(?:zero|oh|o|nought|{_ONES}|\d)(?: hundred)?"
)
_SPOKEN = re.compile(rf"\b(?:{_ONES}|zero|oh|o|nought)\b|\d")
_VALUES = {w: i for i, w in enumerate(["zero", *_ONES.split("|")])} | {
    "oh": 0,
    "o": 0,
    "nought": 0,
}
_TWICE = re.compile(r"\b(?:double|triple|treble)\b")
_NUMBER_OF = re.compile(
    r"\b(?:phone|mobile|cell|tel|telephone|fax|number|pin|code|ssn|security|account"
    r"|acct|card|id|passport|mrn"
    r"|licen[cs]e|otp|call|text|dial|reach|extension|zip|postcode|digits|iban|cvv"
    r"|passcode)\b[^.!?\n]{0,30}\Z"
)
_UNLABELLED_WORDS, _LABELLED_WORDS, _UNLABELLED_DIGITS = 6, 3, 9


def _refine_spoken(text: str, start: int, end: int) -> Range | None:
    """Keep digits that are read out; counting up or down is none."""
    value = text[start:end]
    said = _SPOKEN.findall(value)
    values = [_VALUES[word] if word in _VALUES else int(word) for word in said]
    count = len(values) + len(_TWICE.findall(value))
    if _NUMBER_OF.search(text, max(0, start - 60), start):
        return (start, end) if count >= _LABELLED_WORDS else None
    is_plain = value.replace(" ", "").isdigit()
    fewest = _UNLABELLED_DIGITS if is_plain else _UNLABELLED_WORDS
    steps = {b - a for a, b in pairwise(values)}
    is_varied = len(steps) > 1 and len(set(values)) > 2
    return (start, end) if count >= fewest and is_varied else None


SPOKEN_RULES = (
    Rule(
        entity_type="ID",
        pattern=re.compile(
            rf"\b{_DIGIT_WORD}(?:(?:,? |-|\. | - ){_DIGIT_WORD}\b){{3,40}}"
        ),
        citation=f"{_HIPAA}(R), read out digit by digit",
        confidence=0.8,
        refine=_refine_spoken,
        anchors=frozenset(["zero", "oh", "nought", *_ONES.split("|")]),
        gate=re.compile(
            rf"\b(?:zero|oh|nought|{_ONES})[ ,.-]{{1,3}}(?:zero|oh|double|triple"
            rf"|nought|{_ONES}|\d\b)"
        ),
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"(?<![\w.,-])\d(?:[ ._-]{1,2}\d){3,30}(?![\w,]|[.-]\d"
            r"|[ ]\d)"
        ),
        citation=f"{_HIPAA}(R), digit by digit",
        confidence=0.8,
        refine=_refine_spoken,
        gate=re.compile(r"\b\d[ ._-]{1,2}\d[ ._-]{1,2}\d[ ._-]{1,2}\d\b"),
        needs_digit=True,
        min_digits=4,
    ),
)
