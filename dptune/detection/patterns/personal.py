"""Rules for what people say of themselves: age, family, work, money.

A word that is also said of things (`single`, `driver`) counts only next to somebody.
"""

import re

from dptune.detection.patterns.rules import Rule
from dptune.detection.patterns.validators import VOCABULARY, Range, digits_of
from dptune.detection.words import (
    GIVEN_NAME,
    LEXICAL,
    PERSONAL,
    reading_of,
    word_set,
)

_OF_PEOPLE = VOCABULARY["occupations"].replace(" ", "|")
_OF_ALL = f"{_OF_PEOPLE}|{VOCABULARY['occupations_of_things_too'].replace(' ', '|')}"
_TRADES = frozenset(
    trade + end for trade in _OF_ALL.split("|") for end in ("", "s")
) | word_set("job occupation profession trade")
_HIPAA = "45 CFR 164.514(b)(2)(i)"

_ONES = "one|two|three|four|five|six|seven|eight|nine"
_TEENS = (
    "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
)
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_FROM_TEN = (
    rf"(?:(?:{_TENS})(?:[ -](?:{_ONES}))?|{_TEENS}|(?:one"
    rf"|a) hundred(?: and (?:{_ONES}))?)"
)
_NUMBER = rf"(?:\d{{1,3}}|{_FROM_TEN}|{_ONES})"
_LIFE = (
    r"(?:died|dies|dead|passed away|deceased|married|marries|wed|retired|retires"
    r"|widowed|orphaned|divorced|emigrated|immigrated|graduated|diagnosed|pregnant"
    r"|gave birth|became a (?:father|mother|mum|mom|dad|widow|parent|grand[a-z]{6})"
    r"|left (?:home|school)|started school|adopted|enlisted|buried|had (?:me|my|her"
    r"|his))"
)
_NOT_OF_AGE = (
    r"(?!\w|[.,:/]\d|[ -]?(?:%|percent|degrees|°|am\b|pm\b|a\.m|p\.m|o'?clock|km|mph"
    r"|mm|cm"
    r"|kg|mb|gb|hz|bpm|hours?|min|sec|days?|weeks?|miles?|meters?|metres?|feet|ft\b"
    r"|dollars"
    r"|euros|pounds|points?|times|people|items|and \d|to \d|[a-z]+ (?:street|st|road"
    r"|rd|ave)))"
)


_WHO = (
    "patient|victim|driver|suspect|defendant|applicant|passenger|resident|man|woman|boy"
    "|girl|son|daughter|brother|sister|mother|father|husband|wife|widow|widower|child"
    "|toddler|grandson|granddaughter|nephew|niece|teenager|student"
)
_BEFORE_AGE = re.compile(
    r"(?:(?P<name>[A-Z][\w'’-]+\.? (?:[A-Z][\w'’.-]* ){0,2}?[A-Z][\w'’-]+)"
    rf"|\b(?i:{_WHO})),? [(\[]?\Z"
)
_NO_NAME = word_set(
    "figure table chapter section page volume article clause part step line row item "
    "exhibit annex appendix paragraph rule note unit lesson question verse episode "
    "version level grade type phase volumes one two three four five six"
)


def _refine_age_of_name(text: str, start: int, end: int) -> Range | None:
    """Keep `Ann Lee, 42, of Leeds` and `my son (8)`: somebody stands in front."""
    before = _BEFORE_AGE.search(text[max(0, start - 60) : start])
    if before is None:
        return None
    words = (before["name"] or "").lower().split()
    if not _NO_NAME.isdisjoint(words):
        return None
    goes_on = text[end : end + 2] == ", " or not words
    readings = [reading_of(word) for word in words]
    is_name = any(r & (GIVEN_NAME | PERSONAL) or not r & LEXICAL for r in readings)
    return (start, end) if goes_on or is_name else None


_AGE_RULES = (
    Rule(
        entity_type="AGE",
        pattern=re.compile(
            rf"\b{_NUMBER}(?: and a half)?[ -]?(?:years?|yrs?|months?|weeks?|days?)[ -]"
            r"(?:old|of age|young)\b"
            r"|\b\d{1,3}[ -]?y\.?[/-]?o\b\.?"
            r"|\b\d{1,3} ?y\.? (?=male\b|female\b|[mf]\b)"
            r"|(?<![\w/])\d{2}/[mf](?=[/,)])"
            r"|\b(?:i'?m|i am) (?P<value_im>\d{2}) ?/?[mf]\b"
            r"|\b(?P<value_day>\d{1,3}(?:st|nd|rd|th)) birthday\b"
            r"|\b(?:i|me|him|her|he|she|[a-z]*friend|husband|wife|mother|father|mom"
            r"|mum|dad"
            r"|brother|sister|son|daughter|boss|bf|gf|so|ex|partner|fianc[eé]e?|cousin"
            r"|kid)"
            r" ?[(\[](?P<value_tag>\d{2}/?[mf]|[mf]/?\d{2})[)\]]"
            rf"|\bage[ds]?(?:\s(?:is|was|of|just|only|about|around"
            rf"|between))?[:=\s]{{1,3}}"
            rf"(?P<value>{_NUMBER}(?:\s?(?:-|to|and|or|,)\s?{_NUMBER}){{0,3}}\b)"
        ),
        citation=f"{_HIPAA}(C)",
        confidence=0.9,
        anchors=word_set("old age aged ages young yo y o f m birthday"),
        reach=60,
    ),
    Rule(
        entity_type="AGE",
        pattern=re.compile(
            r"\bin (?:his|her|their|my|your|our) (?P<value>(?:very )?(?:early "
            r"|mid[- ]?|late )?"
            r"(?:teens|twenties|thirties|forties|fifties|sixties|seventies|eighties"
            r"|nineties"
            r"|[2-9]0'?s))\b"
            rf"|\b(?:turn(?:s|ed|ing)?|celebrat(?:ed|ing) (?:his|her"
            rf"|my)) (?P<value_turned>{_NUMBER}"
            rf"(?:th|st|nd|rd)?)\b(?! (?:to|of|into|out|[a-z]{{3,}}s)\b)"
            rf"|\b{_LIFE}[^.,;:!?\d\n]{{0,30}}? at (?P<value_at>{_NUMBER}){_NOT_OF_AGE}"
            rf"|\bat (?P<value_then>{_NUMBER}),? (?=(?:he|she|i|they|we|my|his|her)\b)"
            rf"|\b(?:man|woman|boy|girl|lady|gentleman|child|lad|lass|guy|male"
            rf"|female|widow|widower) of "
            rf"(?P<value_of>{_NUMBER}){_NOT_OF_AGE}"
            rf"|\b(?:i'?m|i am|he is|she is|he's|she's|(?:i|he|she) was|(?:i|he"
            rf"|she) (?:just )?turned|who (?:is|was))"
            rf" (?:now |only |just |almost |nearly |about |over "
            rf"|already )?(?P<value_being>\d{{1,3}}|{_FROM_TEN})"
            r"(?=\s{0,2}(?:[.,;:!?)]|$|\n|(?:and|now|but|so|when|then|years?|with|this"
            r"|next|at|or)\b))"
            r"(?!\s?[.,:]\d)"
        ),
        citation=f"{_HIPAA}(C)",
        confidence=0.85,
        anchors=word_set(
            "at he she i who man woman boy girl lady gentleman child lad lass guy male "
            "female widow widower turn turns turned turning celebrated celebrating "
            "teens twenties "
            "thirties forties fifties sixties seventies eighties nineties his her "
            "their "
            "my your our"
        ),
        gate=re.compile(
            rf"\bat (?:\d|{_FROM_TEN}|{_ONES})|\b(?:in (?:his|her|their|my|your"
            rf"|our) (?:[a-z]{{3,5}}[ -]?)?(?:teens|[a-z]{{3,5}}ties|\d0)"
            rf"|(?:'?m|am|is|was|'s|turn\w{{0,3}}|ed|ly|only|just|about|over|of|his"
            rf"|her|my) (?:\d|{_FROM_TEN}|{_ONES}))"
        ),
    ),
    Rule(
        entity_type="AGE",
        pattern=re.compile(
            r"(?<=[a-z]), (?P<value>[1-9]\d?|10\d)"
            r"(?=, (?:[a-z]|[A-Z])|[.;!?]?(?:\s|\Z))"
            r"(?!, (?:\d|and \d)|[.;]? ?\d| (?!and |from |who |is |was )[a-z])"
            r"|(?<=[a-z]) [(\[](?P<value_in>[1-9]\d?|10\d)[)\]]"
        ),
        citation=f"{_HIPAA}(C), behind a name",
        confidence=0.7,
        refine=_refine_age_of_name,
        cased=True,
        needs_digit=True,
        reach=10,
    ),
)


_SOMEBODY = (
    r"(?:i'?m|i am|i was|he'?s|he is|he was|she'?s|she is|she was|we are|we're|we were"
    r"|they are|they're|they were|who (?:is|was)|(?:applicant|patient|client|defendant"
    r"|plaintiff|claimant|husband|wife|mother|father|son|daughter|brother|sister|mom"
    r"|mum"
    r"|dad|boss|friend|uncle|aunt|partner|neighbou?r|employee|witness|couple|parents"
    r"|cousin|customer|caller|suspect|victim)(?:'s)? (?:is|was|are|were))"
)
_ADVERB = (
    r"(?:(?:now|still|currently|recently|happily|legally|never|already|not|also"
    r"|just|both|newly|been|formerly|once|twice) ){0,2}"
)
_STATUS = (
    r"(?:married|unmarried|divorced|divorcing|divorc[eé]e|widowed|widow|widower"
    r"|remarried"
    r"|engaged to|engaged|cohabiting|in a civil (?:partnership|union)|separated|single"
    r"|a (?:single|divorced|widowed|married) (?:mother|father|mum|mom|dad|parent|man"
    r"|woman"
    r"|guy|lady)|a widow(?:er)?|a divorc[eé]e|a bachelor|a spinster)"
)
_FAMILY_RULES = (
    Rule(
        entity_type="MARITAL_STATUS",
        pattern=re.compile(
            rf"\b{_SOMEBODY} {_ADVERB}(?P<value>{_STATUS})\b(?! (?:in the|file|out of"
            rf"|by a))"
            r"|\b(?:(?:marital|civil|relationship|family) status|marriage)(?: is"
            r"| was)?\s?[:=]?\s{0,2}"
            r"(?P<value_status>married|single|divorced|widowed|widower?|separated"
            r"|engaged|unmarried"
            r"|never married|cohabiting|remarried|civil (?:partnership|union)"
            r"|domestic partner(?:ship)?|in a relationship|common[- ]law)\b"
            r"|\b(?P<value_once>(?:got|get|getting|was|were|been) (?:married|divorced"
            r"|widowed|remarried))\b"
            r"|\b(?P<value_married>(?:married|divorced|remarried|separated from"
            r"|widow of|widower of|engaged to)) "
            r"(?:(?:to )?(?:him|her|his|my)\b|to (?:an?|the|my|his|her)\b|with (?:one"
            r"|two|three|four|five|six|\d|no|a) (?:kid|child|son|daughter|boy|girl)"
            r"|(?:mother|father|mum|mom|dad|man|woman) of)"
            r"|\b(?P<value_single>(?:single|divorced|widowed|unmarried) (?:mother"
            r"|father|mum|mom|dad|parent))\b"
            r"|\b(?:my|his|her) (?P<value_ex>ex-?(?:husband|wife)|late (?:husband"
            r"|wife)|fianc[eé]e?|estranged (?:husband|wife))\b"
        ),
        citation="GDPR art. 4(1), social identity; NIST SP 800-122, 2.2",
        confidence=0.8,
        anchors=word_set(
            "married unmarried divorced divorcing divorcee divorcée widowed widow "
            "widower "
            "remarried engaged cohabiting civil separated single bachelor spinster "
            "common never domestic relationship ex exhusband exwife late fiance "
            "fiancee "
            "fiancé fiancée estranged"
        ),
    ),
)

_STOP = (
    r"(?:of|the|to|with|for|and|or|in|on|at|an?|my|your|his|her|their|our|that|this|not"
    r"|by|from|as|than|like|but|is|was|are|so|very|only|if)"
)
_MIDDLE = rf"(?:(?!{_STOP}\b)[a-z][\w'’/-]{{0,20}},? ){{0,3}}?"
_TRADE = rf"(?:{_MIDDLE}(?:{_OF_ALL})s?)"
_TRADE_OF_PEOPLE = rf"(?:{_MIDDLE}(?:{_OF_PEOPLE})s?)"
_WORK_RULES = (
    Rule(
        entity_type="OCCUPATION",
        pattern=re.compile(
            rf"\b(?:{_SOMEBODY}|(?:i|he|she|who|they) (?:became|become|becomes))"
            rf" {_ADVERB}(?:an? |the )?(?P<value>{_TRADE})\b"
            rf"|\b(?:works?|worked|working|employed|hired|serves|served|job|career"
            rf"|position|role|post|trained"
            rf"|qualified|practi[cs]es|practi[cs]ing) (?:[^.,;:!?\n]{{0,40}}? )?as (?:"
            rf"an? |the )?(?P<value_work>{_TRADE_OF_PEOPLE})\b"
            rf"|\b(?:employed|hired|(?:work|works|worked|working|job|position|post"
            rf"|career) (?:for|at|with|in) [^.,;:!?\n]{{1,40}}?) as (?:an? "
            rf"|the )?(?P<value_at>{_TRADE})\b"
            rf"|\b(?:i|he|she|who|they) (?:works?|worked|(?:have|has|had) worked"
            rf"|retired) as (?:an? |the )?(?P<value_other>{_TRADE})\b"
            rf"|\b(?:my|his|her|their) (?:job|occupation|profession|trade|job title) "
            rf"(?:is|was) (?:an? |the )?(?P<value_trade>{_TRADE})\b"
            rf"|\b(?:my|his|her|their) (?:occupation|profession|job title) (?:is|was) "
            rf"(?:an? |the )?(?P<value_title>[a-z-]{{3,20}}(?: [a-z-]{{3,20}})?)\b"
            rf"|\b(?:an? |the )?(?P<value_by>{_TRADE}) by (?:trade|profession"
            rf"|occupation|training)\b"
            rf"|\bretired (?P<value_retired>{_TRADE_OF_PEOPLE})\b"
        ),
        citation="GDPR art. 4(1), economic identity; NIST SP 800-122, 2.2, employment",
        confidence=0.75,
        anchors=_TRADES,
    ),
    Rule(
        entity_type="OCCUPATION",
        pattern=re.compile(
            rf"(?<=\n)[ \t>*-]{{0,6}}(?P<value>(?:(?!(?i:{_STOP})\b)[A-Za-z][\w'’/-]{{"
            rf"0,20}},?"
            rf" (?:and )?){{0,6}}(?i:{_OF_ALL}))(?=[ \t]{{0,3}}(?:\n|\Z))"
            rf"|(?:[A-Z][a-z'’-]{{1,20}}),? (?:is |was |became |- |– |\()?(?:an? "
            rf"|the )(?P<value_who>(?i:{_TRADE}))\b(?=,|\.|\)| (?:at|from|in|with|who"
            rf"|for|said|of)\b)"
        ),
        citation="GDPR art. 4(1), economic identity; NIST SP 800-122, 2.2, employment",
        confidence=0.7,
        cased=True,
        anchors=_TRADES,
        reach=160,
    ),
)

_CURRENCY = (
    "usd|eur|gbp|chf|cad|aud|nzd|inr|jpy|cny|rmb|sek|nok|dkk|pln|czk|huf|ron|zar|sgd|h"
    "kd|mxn|brl|krw|rub|aed|sar|try|thb|php|idr|myr|ngn|kes|rs\\.?|kr\\.?|zł|ft|lakhs?"
    "|crores?"
)
_AMOUNT = (
    rf"(?:(?:[$£€¥₹₩₽]|\b(?:{_CURRENCY}) ?)\s?\d[\d,.' ]{{0,16}}\d?(?:\s?(?:k|m|bn"
    rf"|million|thousand|lakhs?|crores?)\b)?"
    rf"|\d[\d,.']{{0,16}}(?:\s?(?:k|m|million|thousand|hundred|lakhs?|crores?)\b)?"
    rf"(?:\s?(?:[$£€¥₹₩₽]|(?:{_CURRENCY}|dollars?|euros?|pounds?|bucks|yen|rupees"
    rf"|francs?|kroner|kronor|pesos)\b))?"
    rf"|(?:(?:{_TENS}|{_TEENS}|{_ONES}|hundred|and|a)[ -]){{1,5}}(?:thousand|million"
    rf"|hundred|dollars|pounds|euros)(?: (?:dollars|pounds|euros))?)"
)


_IS_PRICE = re.compile(
    r"[ -]?(?:/ ?|(?:a|an|per|each|every) )(?:yr|year|month|mo|week|annum)"
)


def _refine_amount(text: str, start: int, end: int) -> Range | None:
    """Refuse the small counts that a month or an hour holds."""
    value = text[start:end]
    has_sign = re.search(
        rf"[$£€¥₹₩₽]|\b(?:{_CURRENCY}|[a-z]*(?:dollar|euro|pound|buck"
        rf"|yen|rupee|franc|kron|peso)[a-z]*)\b|thousand|million|lakh"
        rf"|crore",
        value,
    )
    digits = len(digits_of(value))
    is_wage = (
        digits >= 4
        or "thousand" in value
        or "million" in value
        or re.search(r"\d\s?k\b", value) is not None
    )
    if _IS_PRICE.match(text, end) and not is_wage:
        return None
    is_amount = has_sign is not None or is_wage
    return (start, end) if is_amount else None


_MONEY_RULES = (
    Rule(
        entity_type="AMOUNT",
        pattern=re.compile(
            r"\b(?:salary|wages?|income|net worth|(?:i|he|she|they|we|who"
            r"|and) (?:[a-z]+ )?earn(?:s|ed)?|earning"
            r"|pension|take-home(?: pay)?"
            r"|bonus|alimony|paycheck|owe[sd]?|fined (?:him|her|them|me)|child support"
            r"|life savings|credit limit|credit score"
            r"|mortgage|(?:account|current|available) balance"
            r"|savings? of|debts? of|rent|inherited|inheritance)\b"
            r"(?:\s(?:is|was|of|about|around|over|under|roughly|at|to|only|just|nearly"
            r"|currently|rose|up|a|per|year|month|annual|balance|total|before|tax"
            r"|gross|net)){0,4}"
            rf"[\s:=\"']{{1,4}}(?P<value>{_AMOUNT})"
            rf"|(?P<value_per>{_AMOUNT})[ -]?(?:/ ?(?:yr|year|month|mo|hour|hr|week)"
            rf"|p\.?a\b\.?|(?:a|per|an|each|every) (?:year|annum|month|hour|week)"
            rf"|annually|monthly|yearly|salary|in debt)"
        ),
        citation="NIST SP 800-122, 2.2, financial information",
        confidence=0.85,
        refine=_refine_amount,
        anchors=word_set(
            "salary wage wages income worth earn earns earned earning earnings "
            "pension pay "
            "owe owes owed paycheck fined home bonus alimony support savings limit "
            "score mortgage balance debt "
            "debts "
            "rent inherited inheritance yr year month mo hour hr week annum annually "
            "monthly yearly p pa"
        ),
        gate=re.compile(r"\d|thousand|million|hundred"),
    ),
)

PERSONAL_RULES = (*_AGE_RULES, *_FAMILY_RULES, *_WORK_RULES, *_MONEY_RULES)
