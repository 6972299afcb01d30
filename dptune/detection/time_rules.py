"""Rules for dates, times and amounts."""

import re

from dptune.detection.rules import Rule

_MONTH = (
    r"(?:january|february|march|april|may|june|july|august|september|october|november"
    r"|december|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
)
_MONTH_STEMS = tuple(re.findall("[a-z]{3}", "janfebmaraprmayjunjulaugsepoctnovdec"))
_DAY = r"(?:mon|tues|wednes|thurs|fri|satur|sun)days?"
_COUNT = (
    r"(?:\d{1,4}|an?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|fifteen|twenty|thirty|forty|fifty|sixty|ninety|several|few|many|couple(?: of)?"
    r"|hundreds? of|half an?)"
)
_LONG = r"(?:days?|weeks?|months?|years?|yrs?|decades?|centur(?:y|ies)|weekends?)"
_ORDINAL = r"(?:st|nd|rd|th)"
_YEAR = r"(?:1[0-9]|20)\d\d"

DATE_RULES = (
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            r"(?<![\w.-])\d{4}[-/.]\d{1,2}[-/.]\d{1,2}(?:(?=t\d)|(?![\w-]))"
            r"|(?<![\w.-])\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d\d)(?![\w-]|\.\d)"
            r"|(?<![\w./-])\d{1,2}/\d{1,2}(?![\w/])"
        ),
        citation="ISO 8601-1, 5.2; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.9,
        needs_digit=True,
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"\b(?:the )?\d{{1,2}}{_ORDINAL}?(?: of)?[ -]{_MONTH}\b\.?"
            rf"(?:,?[ -](?:{_YEAR}|'\d\d))?"
            rf"|\b{_MONTH}\b\.?,? ?(?:the )?\d{{1,2}}{_ORDINAL}?\b(?: ?- ?\d{{1,2}}\b)?"
            rf"(?: ?, ?{_YEAR}\b| {_YEAR}\b)?"
            rf"|\b{_MONTH}\b\.?,? (?:of )?{_YEAR}\b"
            r"|\b(?:january|february|april|june|july|august|september|october|november"
            r"|december|(?:in|on|of|by|since|until|last|next|this|early|late|mid) "
            r"(?:march|may|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec))\b"
        ),
        citation="OntoNotes 5.0 DATE; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.85,
        needs=_MONTH_STEMS,
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"\b(?:(?:last|next|this|every|each|on) )?{_DAY}\b"
            r"|\b(?:mon|tues?|wed|thurs?|fri|sat)\b\.?(?=,? (?:\d|the \d))"
        ),
        citation="OntoNotes 5.0 DATE",
        confidence=0.85,
        needs=("day", "mon", "tue", "wed", "thu", "fri", "sat"),
    ),
    Rule(
        entity_type="DATE",
        pattern=re.compile(
            rf"(?<![\w.,$£€¥#-])(?:the )?(?:early |late |mid-?)?{_YEAR}(?:'?s)?"
            rf"(?:\s?[-–/]\s?(?:{_YEAR}|\d\d))?(?![\w%]|[.,:]\d|-\d)|(?<!\w)'\d\ds?\b"
        ),
        citation="ISO 8601-1, 5.2.2.2; 45 CFR 164.514(b)(2)(i)(C)",
        confidence=0.8,
        needs_digit=True,
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
            rf"\b{_COUNT}(?:(?:-| to | or |\s)\d{{1,4}})?[ -](?:business |calendar )?"
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
            r"(?<![\w:.])\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:\s?[ap]\.?m\b\.?)?"
            r"(?:\s?(?:utc|gmt|est|edt|cst|cdt|mst|mdt|pst|pdt|cet|cest)\b)?(?![\w:])"
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

AMOUNT_RULES = (
    Rule(
        entity_type="MONEY",
        pattern=re.compile(
            r"(?:\b(?:us|ca|au|c|a|nz|hk))?[$£€¥₹]\s?\d[\d,]{0,20}(?:\.\d{1,4})?"
            r"(?:\s?(?:k|m|bn|million|billion|thousand|trillion)\b)?"
            r"|(?<![\w.])\d[\d,]{0,20}(?:\.\d{1,4})?\s?(?:[$£€¥₹]"
            r"|(?:(?:million|billion|thousand|hundred) )?(?:dollars?|bucks|euros?|usd"
            r"|eur|gbp|cents?|pounds sterling|yen|rupees?|francs?)\b)"
        ),
        citation="ISO 4217; OntoNotes 5.0 MONEY",
        confidence=0.9,
        needs_digit=True,
    ),
    Rule(
        entity_type="PERCENT",
        pattern=re.compile(
            r"(?<![\w.])\d{1,9}(?:[.,]\d{1,6})?\s?(?:%|percent\b|per cent\b)"
        ),
        citation="OntoNotes 5.0 PERCENT",
        confidence=0.9,
        needs=("%", "percent", "per cent"),
    ),
    Rule(
        entity_type="QUANTITY",
        pattern=re.compile(
            r"(?<![\w.])\d[\d,]{0,20}(?:\.\d{1,6})?[\s-]?(?:km|kilomet(?:er|re)s?|miles?"
            r"|mi|m|met(?:er|re)s?|cm|mm|feet|foot|ft|inch(?:es)?|yards?|kg|kilograms?"
            r"|grams?|mg|lbs?|pounds?|tons?|tonnes?|oz|ounces?|mph|km/h|acres?"
            r"|hectares?|(?:square|sq|cubic) (?:feet|ft|miles|met(?:er|re)s|km|yards)"
            r"|lit(?:er|re)s?|gallons?|[kmgt]b|degrees?|°[cf]?)(?!\w)"
        ),
        citation="ISO 80000-1; OntoNotes 5.0 QUANTITY",
        confidence=0.8,
        needs_digit=True,
    ),
    Rule(
        entity_type="ORDINAL",
        pattern=re.compile(
            rf"\b\d{{1,9}}{_ORDINAL}\b|\b(?:first|second|third|fourth|fifth|sixth"
            r"|seventh|eighth|ninth|tenth|twentieth)\b"
        ),
        citation="OntoNotes 5.0 ORDINAL",
        confidence=0.55,
    ),
    Rule(
        entity_type="CARDINAL",
        pattern=re.compile(
            r"(?<![\w.])\d[\d,]{0,40}(?:\.\d{1,20})?(?![\w])|\b(?:(?:at least|about"
            r"|around|more than|over) )?(?:one|two|three|four|five|six|seven|eight|nine"
            r"|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen"
            r"|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundreds?"
            r"|thousands?|millions?|billions?|dozens?)\b"
        ),
        citation="OntoNotes 5.0 CARDINAL",
        confidence=0.5,
    ),
)
