"""Rules for dates and times, in digits and in words.

A date never keeps its day: whatever stands in front of a month (`on March 3, 2020`),
and whatever list or range it is a part of (`3, 4 and 5 May`), the days go with it.
"""

import re

from dptune.detection.patterns.rules import Rule
from dptune.detection.patterns.validators import Range
from dptune.detection.words import word_set

_MONTH = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november"
    r"|december|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
)
MONTHS = word_set(
    "january february march april may june july august september october november "
    "december jan feb mar apr jun jul aug sep sept oct nov dec"
)
_WEEKDAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?"
_COUNT = (
    r"(?:\d{1,4}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|fifteen|twenty|thirty|forty|fifty|sixty|ninety|several|few|many|couple(?: of)?"
    r"|hundreds? of|half an?)"
)
_LONG = r"(?:days?|weeks?|months?|years?|yrs?|decades?|centur(?:y|ies)|weekends?)"
_YEAR = r"(?:1[0-9]|20)\d\d"
_ONES = "one|two|three|four|five|six|seven|eight|nine"
_TEENS = (
    "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
)
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_YEAR_IN_WORDS = (
    r"(?:two thousand(?:,? (?:and )?(?:(?:twenty|thirty)[ -])?"
    rf"(?:{_ONES}|{_TEENS}|{_TENS})\b)?"
    rf"|(?:seventeen|eighteen|nineteen|twenty)[ -](?:hundred(?: and)?(?: (?:{_ONES}"
    rf"|{_TEENS}))?"
    rf"|o[h']?[ -](?:{_ONES})|(?:{_TEENS})|(?:{_TENS})(?:[ -](?:{_ONES}))?)\b)"
)
_ORDINAL = r"(?:st|nd|rd|th)"
_DAY_IN_WORDS = (
    r"(?:(?:twenty|thirty)[ -]?(?:first|second|third|fourth|fifth|sixth|seventh|eighth"
    r"|ninth)|first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh"
    r"|twelfth|thirteenth|fourteenth|fifteenth|sixteenth|seventeenth|eighteenth"
    r"|nineteenth|twentieth|thirtieth)"
)
_DAY = rf"(?:\d{{1,2}} ?{_ORDINAL}?(?!\w)|{_DAY_IN_WORDS}\b)"
_AND = (
    r"(?:\s{0,2}(?:-|/|,|&|;|@[-,]@)\s{0,2}(?:(?:and|or|to)\s)?|\s(?:and|or|to|till?"
    r"|until|through|thru)\s)(?:the )?"
)
_OF = r"(?:\s?(?:day )?of\s|[ .\-/,]{1,2}|\n)"
_WITH_YEAR = (
    rf"(?:[ ,.\-/]{{0,3}}(?:(?:of|in) )?(?:{_YEAR}(?!\w)|{_YEAR_IN_WORDS})"
    rf"|,?[ -]?['’]\d\d\b|[-/]\d\d\b)?"
)
_TIME_OF_DAY = (
    r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?:\s?[ap]\.?m\b\.?)?"
    r"(?:z\b|\s?[+-]\d\d:?\d\d\b"
    r"|\s?(?:utc|gmt|est|edt|cst|cdt|mst|mdt|pst|pdt|cet|cest|bst|ist)\b)?(?![\w:])"
)
_THEN_TIME = rf"(?:(?:t|,? |, at | at |\n){_TIME_OF_DAY})?"
_SMALL_FRACTION = re.compile(
    r"(?:[1-7]/[2-8]|1/1[026]|16/9|16/10|21/9|5/5|10/10|[0-9]/(?:5|10))\Z"
)
_SAYS_DATE = re.compile(
    r"(?:\b(?:on|by|since|from|until|till|due|before|after|dated?|dob|born|of|and|to"
    r"|the)"
    r"|[:(|\n])\s{0,2}\Z"
)
_BEFORE = 12


def _refine_short_date(text: str, start: int, end: int) -> Range | None:
    """Keep `3/14`; fractions and ratings need a word that says date."""
    value = text[start:end]
    if value == "24/7":
        return None
    if _SMALL_FRACTION.match(value):
        said = _SAYS_DATE.search(text, max(0, start - _BEFORE), start)
        after = text[end : end + 12].lstrip()
        is_share = after.startswith(("of", "cup", "inch", "star", "tsp", "tbsp", '"'))
        return (start, end) if said and not is_share else None
    day, _, month = value.partition("/")
    is_date = 0 < min(int(day), int(month)) <= 12 and max(int(day), int(month)) <= 31
    return (start, end) if is_date else None


def _refine_lone_day(text: str, start: int, end: int) -> Range | None:
    """Refuse `from the 14th to the 16th century`."""
    rest = re.split(r"[.!?\n]", text[end : end + 40], maxsplit=1)[0]
    return None if "centur" in rest or "floor" in rest else (start, end)


_NUMERIC = (
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"(?<![\w.-])\d{{4}}(?P<s>[-/.])\d{{1,2}}(?P=s)\d{{1,2}}(?:(?=t\d)"
            rf"|(?![\w-]))"
            rf"{_THEN_TIME}"
            r"|(?<![\w.-])\d{1,2}(?P<u>[-/.])\d{1,2}(?P=u)(?:\d{4}|\d\d)(?![\w-]|\.\d)"
            rf"{_THEN_TIME}"
            r"|(?<![\w.-])\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d\d)(?![\w-]|\.\d)"
            r"|(?<![\w.-])\d{1,2}[./-](?:i{1,3}|iv|vi{0,3}|ix|xi{0,2})[./-](?:\d{4}"
            r"|\d\d)"
            r"(?![\w-])"
            r"|(?<![\w.-])\d{1,2}\. \d{1,2}\. (?:\d{4}|\d\d)(?![\w-]|\.\d)"
            r"|(?<![\w./-])(?:0?[1-9]|1[0-2])[-/](?:19|20)\d\d(?![\w/-])"
            r"|(?<![\w./-])(?:19|20)\d\d[-/](?:0[1-9]|1[0-2])(?![\w/-])"
            r"|(?<![\w./-])(?:0[1-9]|[12]\d|3[01]) (?:0[1-9]|1[0-2]) (?:19"
            r"|20)\d\d(?![\w-])"
        ),
        citation="ISO 8601-1, 5.2 and 5.4; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.9,
        gate=re.compile(r"\d[-/.][\divx]|\d\. \d|\d\d \d\d \d{4}"),
        needs_digit=True,
        min_digits=4,
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(r"(?<![\w./-])\d{1,2}/\d{1,2}(?![\w/]|\.\d)"),
        citation="ISO 8601-1, 5.2; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.9,
        refine=_refine_short_date,
        needs=("/",),
        needs_digit=True,
    ),
)

_WITH_MONTH = (
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"\b(?:the )?(?:{_DAY}(?:{_OF}{_MONTH}\b\.?)?{_AND}){{0,4}}"
            rf"(?:the )?{_DAY}{_OF}(?:the month of )?{_MONTH}\b\.?{_WITH_YEAR}"
            rf"{_THEN_TIME}"
            rf"|\b\d{{1,2}}{_MONTH}(?:\d\d(?:\d\d)?)?\b{_THEN_TIME}"
        ),
        citation="OntoNotes 5.0 DATE; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.85,
        anchors=MONTHS,
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"\b{_MONTH}(?:[ .,\-/]{{0,3}}|\n)(?:the )?{_DAY}"
            rf"(?:{_AND}(?:{_MONTH}\b\.? ?)?{_DAY}){{0,5}}{_WITH_YEAR}{_THEN_TIME}"
            rf"|\b{_MONTH}\b[.,]{{0,2}}(?: ?[-/,] ?| )(?:of )?{_YEAR}\b"
            rf"|\b{_MONTH}\b\.?,? ['’]\d\d\b"
        ),
        citation="OntoNotes 5.0 DATE; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.85,
        anchors=MONTHS,
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            r"\b(?:january|february|april|june|july|august|september|october|november"
            r"|december)\b|\b(?:(?:in|on|of|by|since|until|last|next|this|early|late"
            r"|mid) )"
            r"(?P<value>march|may|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b"
        ),
        citation="OntoNotes 5.0 DATE; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.85,
        anchors=MONTHS,
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            r"\b(?:on|by|until|till|before|after|since|from|for|around|due|through|to"
            r"|and|is"
            r"|was|ides of|night of|morning of|evening of) "
            rf"(?P<value>the (?:\d{{1,2}}{_ORDINAL}|{_DAY_IN_WORDS})(?: of (?:this"
            rf"|next|last"
            r"|the|that|each|every) month| (?:inst|ult"
            r"|prox)\b)?)(?=\s{0,2}(?:[.,;:!?)\"]|$|\n"
            r"|(?:and|at|in|i|we|he|she|they|you|it|is|was|or|because|when|but|so|if"
            r"|then"
            r"|as|please|morning|afternoon|evening|night|my|our|inst|ult|to)\b"
            rf"|(?:the )?\d{{1,2}}{_ORDINAL}))"
        ),
        citation="OntoNotes 5.0 DATE; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.75,
        refine=_refine_lone_day,
        gate=re.compile(
            rf"\bthe (?:\d{{1,2}}{_ORDINAL}|[a-z-]{{4,15}}(?:th|st|nd|rd))\b"
        ),
    ),
)

DATE_RULES = (
    *_NUMERIC,
    *_WITH_MONTH,
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"\b(?:(?:last|next|this|every|each|on) )?{_WEEKDAY}\b"
            r"|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?"
            r"|sun)(?:day)?\b\.?,? "
            rf"(?:the )?\d{{1,2}}{_ORDINAL}\b|\b\d{{1,2}}{_ORDINAL} (?:inst|ult|prox)\b"
            r"|\b(?:mon|tues?|wed|thurs?|fri|sat)\b\.?(?=,? (?:\d|the \d))"
        ),
        citation="OntoNotes 5.0 DATE",
        confidence=0.85,
        needs=(
            *("day", "mon", "tue", "wed", "thu", "fri", "sat", "sun"),
            *("inst", "ult", "prox"),
        ),
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"(?<![\w.,$£€¥#-])(?:the )?(?:early |late |mid-?)?{_YEAR}(?:'?s)?"
            rf"(?:\s?[-–/]\s?(?:{_YEAR}|\d\d))?(?![\w%]|[.,:]\d|-[\da-z])"
            rf"|(?<!\w)'\d\ds?\b"
        ),
        citation="ISO 8601-1, 5.2.2.2; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.8,
        needs_digit=True,
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"\b(?:in|since|of|born|year|until|till|by|from|to|around|and) "
            rf"(?P<value>{_YEAR_IN_WORDS})"
            r"|\b(?:in|of|by|until|since|during) the (?:early |late )?"
            rf"(?:spring|summer|autumn|fall|winter) of (?:{_YEAR}|{_YEAR_IN_WORDS})"
        ),
        citation="OntoNotes 5.0 DATE, in words; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.8,
        needs=(
            *("two thousand", "seventeen", "eighteen", "nineteen", "twenty"),
            *("spring of", "summer of", "autumn of", "fall of", "winter of"),
        ),
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            r"\b(?:today|yesterday|tomorrow)(?:'s)?\b|\bthe day (?:before|after)\b"
            r"|\b(?:last|next|this|past|previous|following|coming) (?:few |couple )?"
            r"(?:weeks?|weekend|months?|years?|spring|summer|autumn|fall|winter|quarter"
            r"|decades?|century|semester|season)\b"
        ),
        citation="OntoNotes 5.0 DATE",
        confidence=0.8,
        needs=("day", "tomorrow", "last", "next", "this", "past", "ous", "ing"),
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"\b(?!an? [a-z]+\b(?! (?:ago|old|later|earlier)))"
            rf"{_COUNT}(?:(?:-| to | or |\s)\d{{1,4}})?[ -](?:business |calendar )?"
            rf"{_LONG}\b(?:[ -](?:ago|old|later|earlier))?"
        ),
        citation="OntoNotes 5.0 DATE",
        confidence=0.75,
        needs=("day", "week", "month", "year", "yr", "decade", "centur"),
    ),
)

TIME_RULES = (
    Rule(
        entity_type="TIME",
        pattern=re.compile(
            rf"(?<![\w:.]){_TIME_OF_DAY}"
            r"|\b\d{1,2}\s?[ap]\.?m\b\.?|\b\d{1,2} ?o'?clock\b"
        ),
        citation="ISO 8601-1, 5.3",
        confidence=0.9,
        needs_digit=True,
    ),
    Rule(
        entity_type="TIME",
        pattern=re.compile(
            r"\b(?:noon|midnight|tonight|last night|(?:this|tomorrow|yesterday) "
            r"(?:morning|afternoon|evening|night))\b"
            rf"|\b{_COUNT}(?:(?:-| to | or )\d{{1,4}})?[ -]"
            r"(?:seconds?|secs?|minutes?|mins?|hours?|hrs?)\b"
        ),
        citation="OntoNotes 5.0 TIME",
        confidence=0.8,
    ),
)
