"""Rules for postal addresses, postal codes and coordinates; and amounts."""

import re

from dptune.detection.patterns import validators as v
from dptune.detection.patterns.rules import Rule
from dptune.detection.words import word_set

_STREET = (
    r"street|st|avenue|ave|road|rd|boulevard|blvd|drive|dr|lane|ln|terrace|ter"
    r"|parkway|pkwy|highway|hwy|turnpike|alley|crescent|mews|rue|strasse|straße"
)
# These are ordinary words too: they need a capital.
_STREET_WORDS = (
    r"Court|Ct|Place|Pl|Square|Sq|Way|Circle|Cir|Trail|Loop|Row|Close|Plaza|Pike|Run"
    r"|Pass|Ridge|Heights?|Hills?|Views?|Valleys?|Islands?|Springs?|Stations?|Crossing"
    r"|Burgs?|Estates?|Extensions?|Falls|Ferry|Fields?|Flats?|Fords?|Forest|Forges?"
    r"|Forks?|Fort|Freeway|Gardens?|Gateway|Glens?|Greens?|Groves?|Harbors?|Haven"
    r"|Hollow|Inlet|Junctions?|Keys?|Knolls?|Lakes?|Landing|Light|Locks|Lodge|Mall"
    r"|Manors?|Meadows?|Mews|Mills?|Mission|Motorway|Mount|Mountains?|Neck|Orchard"
    r"|Oval|Overpass|Parks?|Parkways?|Passage|Paths?|Pines?|Plains?|Points?|Ports?"
    r"|Prairie|Radial|Ramp|Ranch|Rapids?|Rest|River|Route|Shoals?|Shores?|Skyway"
    r"|Spurs?|Stravenue|Stream|Summit|Throughway|Trace|Track|Trafficway|Tunnel"
    r"|Underpass|Unions?|Via|Viaduct|Villages?|Ville|Vista|Walks?|Wall|Wells?|Bayou"
    r"|Beach|Bend|Bluffs?|Bottom|Branch|Bridge|Brooks?|Bypass|Camp|Canyon|Cape"
    r"|Causeway|Centers?|Circles?|Cliffs?|Club|Common|Corners?|Courts|Coves?|Creek"
    r"|Crest|Curve|Dale|Dam|Divide|Drives?"
)
_STATE = (
    r"a[aelkpzr]|c[aot]|d[ce]|fl|ga|hi|i[adln]|k[sy]|la|m[adeinost]|n[cdehjmvy]"
    r"|o[hkr]|p[ar]|ri|s[cd]|t[nx]|ut|v[ait]|w[aivy]"
)
_STREET_FIRST = (
    r"rue|r[uú]a|via|viale|calle|avenida|avenue|av|avda|piazza|piazzale|corso|largo"
    r"|pra[cç]a|travessa|plaza|paseo|camino|chemin|all[eé]e|quai|cours|impasse|ulica|ul"
    r"|ulice|strada|place|boulevard|estrada|carrer|λεωφ[οό]ρος|οδ[οό]ς"
)
_STREET_ENDS = tuple(
    sorted(
        word_set(
            "strasse straße str. weg gasse platz allee straat laan gatan vägen väg "
            "vej gade vegen veien vegur katu tie utca ulica tee u. út tér trg tn"
        )
    )
)
_STREET_FIRST_WORDS = word_set(
    "rue rua rúa via viale calle avenida avenue av avda piazza piazzale corso largo "
    "praça "
    "praca travessa plaza paseo camino chemin allée allee quai cours impasse ulica ul "
    "ulice strada place boulevard estrada carrer λεωφόρος λεωφορος οδός οδος"
)
_UNIT = (
    r"(?:,?\s{1,6}(?:apt|apartment|suite|ste|unit|floor|room|#)\b\.?\s{0,2}#?\w{1,8})?"
)
_CITY = (
    rf"(?:[,\s]{{1,8}}(?:[a-z][\w.'’-]{{1,24}}[,\s]{{1,8}}){{1,3}}(?:{_STATE})"
    r"(?:,?\s{1,6}\d{5}(?:-\d{4})?)?\b)?"
)
_MIDDLE = r"(?:[\w.'’-]{1,24}\s{1,2}){0,4}?"
_HOUSE = r"(?<![\w$£€¥.,-])(?:\d{1,6}\s{1,2})?\d{1,6}[a-z]{0,2}\s{1,2}"

PLACE_RULES = (
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(rf"{_HOUSE}{_MIDDLE}(?:{_STREET})\b\.?{_UNIT}{_CITY}"),
        citation="USPS Publication 28, 2 and appendix C1; 45 CFR 164.514(b)(2)(i)(B)",
        confidence=0.85,
        refine=v.refine_street,
        needs_digit=True,
        reach=160,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"(?<![\w$£€¥.,:-])\d{1,6}[A-Za-z]?\s{1,2}(?:[A-Z0-9][\w.'’-]{0,24}\s{1,2})"
            rf"{{1,4}}?(?:{_STREET_WORDS})\b\.?{_UNIT}(?:[,\s]{{1,8}}"
            r"(?:[A-Z][\w.'’-]{1,24}[,\s]{1,8}){1,3}[A-Z]{2}(?:,?\s{1,6}\d{5})?\b)?"
        ),
        citation="USPS Publication 28, appendix C1; 45 CFR 164.514(b)(2)(i)(B)",
        confidence=0.85,
        refine=v.refine_street,
        cased=True,
        needs_digit=True,
        reach=160,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"\b(?:p\.?\s?o\.?\s?box|postbox|(?:psc|unit|cmr)\s\d{1,5},?\s{1,2}box"
            r"|us[nc]?[sgn]?[sc]?\s[\w.'’-]{1,24}\s{1,4}(?=[fad]po))\s{0,4}\d{0,6}"
            r"(?:[,\s]{1,4}[afd]po\s{1,2}a[aep]\s{1,2}\d{5})?"
            r"|\b[afd]po,?\s{1,2}a[aep]\s{1,2}\d{5}\b"
        ),
        citation="USPS Publication 28, 25 and 28",
        confidence=0.9,
        needs=("box", "po "),
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"\b(?:apt|apartment|suite|ste|flat)\b\.?\s{0,2}#?\d{1,5}[a-z]?\b"
        ),
        citation="USPS Publication 28, appendix C2",
        confidence=0.8,
        refine=v.refine_unit,
        anchors=word_set("apt apartment suite ste flat"),
        reach=160,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"(?<![\w.,$£€¥:-])\d{1,6}(?:,?\s{1,2}(?:[^\W\d_][\w.'’-]{0,30}"
            r"|\d{1,4}\b\.?))"
            r"{0,4}\s(?:[^\W\d_](?:[^\W_]|[.'’-]){3,30})\s\d{1,4}\b(?![.,:]\d|%)"
        ),
        citation="UPU S42, house number after the street; 45 CFR 164.514(b)(2)(i)(B)",
        confidence=0.6,
        refine=v.refine_foreign_street,
        needs_digit=True,
        reach=160,
        cased=True,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"\b(?:[A-ZÀ-Þ][\w.'’-]{1,30}\s){0,2}[A-ZÀ-Þ][\w.'’-]{0,30}(?:stra(?:ss|ß)e"
            r"|str\.|weg|gasse|platz|allee|straat|laan|gatan|vägen|vej|gade|vegen|katu"
            r"|tie|utca|ulica|tee)\s\d{1,4}[a-z]?\b"
        ),
        citation="UPU S42, house number after the street",
        confidence=0.85,
        needs=_STREET_ENDS,
        cased=True,
        needs_digit=True,
        reach=160,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"(?:(?<![\w.,$£€¥:-])\d{1,6},? )?\b(?:[^\W\d_]{3,24} ?|[^\W\d_]{2,24})(?:"
            r"stra(?:ss|ß)e|gasse|platz|allee|straat|laan|gatan|vägen|vej|gade|vegen"
            r"|katu"
            r"|utca|ulica|gata|braut|weg|plein|kade|gracht|singel|graben|stien|vangur"
            r"|brücke|damm|ufer|steig) \d{1,4}[a-z]?\b"
        ),
        citation="UPU S42, house number after the street, in lower case",
        confidence=0.8,
        refine=v.refine_compound_street,
        gate=re.compile(
            r"(?:sse|ße|platz|allee|aat|laan|gatan|vägen|vej|gade|vegen|katu|utca|ulica"
            r"|gata|braut|weg|plein|kade|gracht|singel|graben|stien|vangur|brücke|damm"
            r"|ufer"
            r"|steig) \d"
        ),
        needs_digit=True,
        reach=160,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            rf"(?:(?<![\w.,$£€¥:-])\d{{1,6}},? )?\b(?:{_STREET_FIRST})\b\.? "
            r"(?:[^\W\d_][\w.'’-]{0,24},? ){1,5}?\d{1,5}[a-z]?\b"
        ),
        citation="UPU S42, kind of street before its name",
        confidence=0.85,
        refine=v.refine_street,
        anchors=_STREET_FIRST_WORDS,
        needs_digit=True,
        reach=160,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"(?:(?<![\w.,$£€¥:-])\d{1,6},? )?(?:[A-ZÀ-Þ][\w.'’-]{1,24} ){1,3}"
            r"(?:u\.|út|utca|tér|tee|tie|väg|gatan|veien|vegur|trg|tn\.?) \d{1,5}\b\.?"
        ),
        citation="UPU S42, house number after the street",
        confidence=0.85,
        needs=_STREET_ENDS,
        cased=True,
        needs_digit=True,
        reach=160,
    ),
    Rule(
        entity_type="ADDRESS",
        pattern=re.compile(
            r"\b(?:the )?(?:corner|intersection) of\s[^\n,;!?]{2,60}?\s(?:and|&)\s"
            r"[\w.'’-]{1,24}\s[\w.'’-]{1,24}"
        ),
        citation="USPS Publication 28, 29; 45 CFR 164.514(b)(2)(i)(B)",
        confidence=0.8,
        needs=("corner", "intersection"),
    ),
    Rule(
        entity_type="ZIP",
        pattern=re.compile(
            rf"\b(?=[a-z]{{2}},?\s{{1,4}}\d)(?:{_STATE}),?\s{{1,4}}(?P<value>\d{{5}}(?"
            rf":-\d{{4}})?)(?!\w)"
            r"|(?<![\w-])\d{5}-\d{4}(?![\w-])"
        ),
        citation="USPS Publication 28, 22; 45 CFR 164.514(b)(2)(i)(B)",
        confidence=0.9,
        gate=re.compile(r"\d{5}"),
        needs_digit=True,
        reach=160,
    ),
    Rule(
        entity_type="ZIP",
        pattern=re.compile(
            r"\b(?:zip|postal|post)\s?(?:code)?s?(?:\s(?:is|was))?[:\s]{1,4}"
            r"(?P<value>[a-z]{0,2}\d[\w]{0,5}(?:[ -]\d[a-z0-9]{1,3})?)\b"
        ),
        citation="UPU S42; 45 CFR 164.514(b)(2)(i)(B)",
        confidence=0.9,
        needs=("zip", "post"),
    ),
    Rule(
        entity_type="ZIP",
        pattern=re.compile(
            r"\b(?:[A-Z]{1,2}\d[A-Z\d]? \d[A-Z]{2}|(?!T\dN\dM)[A-Z]\d[A-Z] ?\d[A-Z]\d)"
            r"\b"
        ),
        citation="BS 7666 (United Kingdom); Canada Post addressing guidelines, 5.5",
        confidence=0.9,
        cased=True,
        needs_digit=True,
    ),
    Rule(
        entity_type="ZIP",
        pattern=re.compile(
            r"(?m)^\W{0,6}(?:[^\W\d_]{2,24} ){1,3}"
            r"(?P<value>\d{3} ?\d{2,3}|\d{4})\W{0,3}$"
            r"|\b[A-Z]{2} (?P<after>\d{4,6})(?!\w)"
        ),
        citation="UPU S42, postcode after the place",
        confidence=0.65,
        cased=True,
        needs_digit=True,
    ),
)


_PAIR = re.compile(r"([+-]?\d{1,3}\.(\d+))\D+?([+-]?\d{1,3}\.(\d+))\W*$")


def _refine_coordinates(text: str, start: int, end: int) -> v.Range | None:
    """Refuse pairs of decimals that are no place on earth, or have no sign of one."""
    value = text[start:end]
    pair = _PAIR.fullmatch(value)
    if pair is None:
        return start, end
    first, second = abs(float(pair[1])), abs(float(pair[3]))
    is_place = first <= 90 and second <= 180 and max(first, second) >= 10
    is_exact = min(len(pair[2]), len(pair[4])) >= 4
    return (start, end) if is_place and is_exact else None


GEO_RULES = (
    Rule(
        entity_type="LOC",
        pattern=re.compile(
            r"(?<![\w.])[+-]?\d{1,3}\.\d{3,12}°?\s?[ns]?\s?(?:,|;|/"
            r"|\s)\s{0,3}[+-]?\d{1,3}\.\d{3,12}°?(?:\s?[ew]\b)?(?![\w.])"
            r"|(?<![\w.])\d{1,3}(?:\.\d{1,8})?\s?(?:°|º|deg(?:rees)?)\s?(?:\d{1,2}(?:"
            r"\.\d{1,8})?\s?['’′]\s?(?:\d{1,2}(?:\.\d{1,6})?\s?(?:[\"”″]|''"
            r"|’’)\s?)?)?[nsew]\b"
            r"(?:[,;/\s]{1,3}\d{1,3}(?:\.\d{1,8})?\s?(?:°|º"
            r"|deg(?:rees)?)\s?(?:\d{1,2}(?:\.\d{1,8})?\s?['’′]\s?(?:\d{1,2}(?:\.\d{1,"
            r"6})?\s?(?:[\"”″]|''|’’)\s?)?)?[nsew]\b)?"
            r"|(?<![\w.])[ns] ?\d{1,2}(?:\.\d{2,8}|° ?\d{1,2}(?:\.\d{1,6})?['’′]?)[,;/"
            r"\s]{1,3}[ew] ?\d{1,3}(?:\.\d{2,8}|° ?\d{1,2}(?:\.\d{1,6})?['’′]?)"
            r"|\b(?:lat(?:itude)?|lon(?:g(?:itude)?)?|lng)\b(?:\s(?:is|was"
            r"|of))?[\"'\s:=]{1,5}(?P<value>[+-]?\d{1,3}\.\d{1,12})"
            r"|\bgeo:(?P<value_uri>[+-]?\d{1,3}(?:\.\d{1,12})?,[+-]?\d{1,3}(?:\.\d{1,1"
            r"2})?)"
            r"|\b[2-9cfghjmpqrvwx]{4,8}\+[2-9cfghjmpqrvwx]{2,3}\b"
            r"|\b\d{1,2}[c-x] ?(?:[a-z]{2} ?)?\d{4,6}(?:\.\d{1,3})? \d{4,7}(?:\.\d{1,3"
            r"})?\b"
        ),
        citation="45 CFR 164.514(b)(2)(i)(B); ISO 6709; RFC 5870; Open Location Code",
        confidence=0.9,
        refine=_refine_coordinates,
        gate=re.compile(
            r"\d[.°º]\d|\d ?(?:°|º|deg)|[2-9cfghjmpqrvwx]\+[2-9c]"
            r"|\d ?[c-x] ?\d"
        ),
        needs_digit=True,
        min_digits=3,
    ),
    Rule(
        entity_type="LOC",
        pattern=re.compile(r"///[a-z]{3,20}\.[a-z]{3,20}\.[a-z]{3,20}\b"),
        citation="45 CFR 164.514(b)(2)(i)(B), three words",
        confidence=0.9,
        needs=("///",),
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
            r"(?<![\w.])\d[\d,]{0,20}(?:\.\d{1,6})?[\s-]?(?:km|kilomet(?:er|re)s?"
            r"|miles?"
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
            r"\b\d{1,9}(?:st|nd|rd|th)\b|\b(?:first|second|third|fourth|fifth|sixth"
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
