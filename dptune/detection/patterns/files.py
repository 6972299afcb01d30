"""Rules for numbers of cases, applications, files, dockets, invoices and the like.

Three ways to know one: a word that says what the number is of (`application no.`), a
word that says only that it is one (`no. 18403/91`), and a form that courts or offices
use (`3:18-cr-00123`, `[2019] EWHC 12 (Ch)`). A number with neither is a count.
"""

import re

from dptune.detection.patterns.rules import Rule
from dptune.detection.patterns.validators import Range, digits_of
from dptune.detection.words import word_set

_LAW = "45 CFR 164.514(b)(2)(i)(R), any other unique number; "
_NUMBER_WORD = (
    r"(?:ids?|identifiers?|numbers?|nos?|num|nrs?|nummer|n[uú]mero|nro|numer|№|n[°º]|#"
    r"|codes?|akt|ref)"
)
_GLUE = r"[\s(\[:#=.,\"'°º-]{0,4}"
_VALUE = (
    r"[a-z]{0,6}(?:[./-]{0,2}\d|\d)(?:[\w/–-]|[.,:_](?=\w)){0,38}"
    r"(?: ?\([a-z]{2,6}\)){0,2}"
)
_PARTS = (
    r"(?:(?!(?:in|of|to|at|on|by|for|and|or|was|is|an?|as|the|from|with|high|low|up|due"
    r"|set|than|over|all|no|see)\b)(?:\d{1,4}|[ivxlc]{1,5}|[a-z]{1,4}\.?"
    r"|[a-z]{1,3}-\d{1,3})"
    r"[ -]){0,3}"
)
_MORE = rf"(?:(?:,|;)?\s(?:(?:and|&|et|und|y)\s)?{_VALUE}){{0,8}}"
# What such a number is of. The second group is also said of things that are counted.
_OF = (
    "application|appl|docket|invoice|inv|reference|dossier|indictment|civil "
    "action|civ|crim|criminal|cause "
    "no|petition|appeal|writ|warrant|summons|citation|claim|filing|aktenzeichen|gesch["
    "aä]ftszeichen|gz|az|beschwerde|rechnung|vorgang|requ[eê]te|pourvoi|rôle|rg|r"
    "\\.g|facture|commande|sygn|sygnatura|sprawa|faktura|expediente|exp|procedimiento|"
    "autos|recurso|rec|factura|zaaknummer|zaak|rolnummer|factuur|mål|sag|processo|proc"
    "|ricorso|sentenza|fattura|purchase order|po|rma|quote|quotation|work "
    "order|service "
    "request|sr|tracking|booking|reservation|confirmation|receipt|shipment|incident|ti"
    "cket|our ref|your "
    "ref|ref|matter|w\\.p|s\\.l\\.p|crl|grievance|complaint|arbitration|inquest|inquir"
    "y|permit|deed|folio"
)
_ALSO_COUNTED = "case|file|order|record|action|contract|index|suit|bill|report|process"
_HAS_NUMBER_WORD = re.compile(rf"(?:\b{_NUMBER_WORD}|[#№°º])[\s.:)(#°º\"'=-]{{0,6}}\Z")
_IS_YEAR = re.compile(r"(?:1[89]|20)\d\d(?:s|[-/–]\d\d(?:\d\d)?)?")
_HAS_SIGN = re.compile(r"[a-z\d][/–-]\d|\d[/–-][a-z\d]")
_REFERENCE = re.compile(r"\b(?:https?|www)\b")


_OF_LAW = re.compile(
    r"\b(?:laws?|acts?|decrees?|regulations?|directives?|articles?|protocols?"
    r"|resolutions?"
    r"|conventions?|treaty|ordinances?|rules?|codes?|statutes?|constitution|§)\b"
    r"[^.;\d]{0,14}(?:nos?\.? ?)?\Z"
)
_LONGEST_LAW = 32


def _is_number(value: str, fewest: int) -> bool:
    """Tell whether a value has digits enough to be a number of something."""
    return len(digits_of(value)) >= fewest and not _IS_YEAR.fullmatch(value)


def _refine_labelled(text: str, start: int, end: int) -> Range | None:
    """Keep a number behind its label; a count (`case 2`, `order 66`) is none."""
    value = text[start:end]
    said = _HAS_NUMBER_WORD.search(text, max(0, start - 16), start) is not None
    if said:
        return (start, end) if len(digits_of(value)) > 1 else None
    fewest = 3 if _HAS_SIGN.search(value) else 4
    return (start, end) if _is_number(value, fewest) else None


def _refine_numbered(text: str, start: int, end: int) -> Range | None:
    """Keep `no. 18403/91` and `no. 20123`, not `no. 11` or `nos. 1 and 12`."""
    value = text[start:end]
    fewest = 3 if _HAS_SIGN.search(value) else 4
    is_law = _OF_LAW.search(text, max(0, start - _LONGEST_LAW), start)
    return (start, end) if _is_number(value, fewest) and not is_law else None


def _refine_slashed(text: str, start: int, end: int) -> Range | None:
    """Keep `18403/91`, not the season `1998/99` or a size."""
    value = text[start:end]
    if _IS_YEAR.fullmatch(value) or "%" in text[end : end + 2]:
        return None
    if _OF_LAW.search(text, max(0, start - _LONGEST_LAW), start):
        return None
    return start, end


FILE_RULES = (
    Rule(
        entity_type="ID",
        pattern=re.compile(
            rf"\b(?:{_OF}|{_ALSO_COUNTED})\b{_GLUE}(?:{_NUMBER_WORD}(?![a-z]){_GLUE})"
            rf"{{0,2}}"
            rf"(?:(?:is|was)\s)?(?P<value>{_PARTS}{_VALUE}{_MORE})"
        ),
        citation=_LAW + "labelled",
        confidence=0.9,
        refine=_refine_labelled,
        needs_digit=True,
        min_digits=2,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"(?:\b(?:nos?|nrs?|num|numbers?|nummer|n[uú]mero|nro|numer)\b|№|\bn[°º])"
            rf"{_GLUE}(?P<value>{_VALUE}{_MORE})"
        ),
        citation=_LAW + "said to be a number",
        confidence=0.8,
        refine=_refine_numbered,
        needs=("no", "nr", "num", "n°", "nº", "№", "núm"),
        needs_digit=True,
        min_digits=3,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"\b(?:\d{1,2}:)?\d{2,4}[ -]?(?:civ|crim?|cv|mc|mj|md|ap|bk|misc|mag|cf|dr"
            r"|pr|sc)"
            r"\b\.?[ -]?\d{2,8}(?:-[a-z]{1,5}){0,4}(?: ?\([a-z]{2,5}\)){0,2}"
            r"|\b(?:19|20)\d\d (?:scc|onca|bcca|abca|qcca|fca|fc|onsc|bcsc) \d{1,5}\b"
            r"|\becli:[a-z]{2}:\w{1,10}:\d{4}:[\w.]{1,30}|\beu:[ctf]:\d{4}:\d{1,5}\b"
        ),
        citation=_LAW + "28 U.S.C. 2071, local rules; ECLI, OJ 2011/C 127/01",
        confidence=0.9,
        anchors=word_set(
            "civ cri crim cv cr mc mj md ap bk misc mag cf dr pr sc scc onca bcca abca "
            "qcca fca fc onsc bcsc ecli eu eu"
        ),
        reach=40,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"\[(?:19|20)\d\d\] (?:\d )?[a-z]{2,6}(?: [a-z]{2,6})? \d{1,5}"
            r"(?: \([a-z]{1,8}\))?"
            r"|\b(?:no\.?|appeal|petition|[a-z]{1,4}\.|[a-z]{2,4}) \d{1,6} of (?:19"
            r"|20)\d\d\b"
        ),
        citation=_LAW + "neutral citation, [2001] 1 WLR 194",
        confidence=0.9,
        needs=("[19", "[20", " of 19", " of 20"),
        needs_digit=True,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"\b\d{7}-\d{2}\.\d{4}\.\d\.\d{2}\.\d{4}\b"
            r"|\bc/\d\d/\d{5,6}(?: ?/ ?[a-z]{2,4} [a-z]{2,4} \d\d-\d{1,5})?"
            r"|\b\d[a-f]_\d{1,4}/\d{4}\b|\b\d{3}\.\d{3}\.\d{3}/\d\d\b"
        ),
        citation=_LAW + "Resolução CNJ 65/2008; numbers of courts",
        confidence=0.9,
        gate=re.compile(r"\d{7}-\d\d\.|c/\d\d/|\d[a-f]_|\d{3}\.\d{3}\.\d"),
        needs_digit=True,
        min_digits=5,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"(?<![\w/])(?:[IVX]{1,4}|\d{1,3}|[IVX]{1,4}-\d{1,3}) (?:[A-Z][A-Za-z]{0,5}"
            r"(?:[ -][A-Z][A-Za-z]{0,3})?|[a-z]{1,2}) \d{1,6}/\d{2,4}[a-z]?(?![\w/])"
            r"|\b[CTFE][-‑]\d{1,4}/\d{2}(?: P| PPU| RENV)?\b"
            r"|(?<![\w./-])[A-Z]{1,5}[/-]\d{2,7}/\d{2,4}(?![\w/])"
        ),
        citation=_LAW + "Aktenordnung; Rules of Procedure of the Court of Justice",
        confidence=0.85,
        cased=True,
        needs=("/",),
        needs_digit=True,
        min_digits=3,
    ),
    Rule(
        entity_type="ID",
        pattern=re.compile(
            r"(?<![\w./:,-])(?:\d{4,7}/\d{2}|\d{2,7}/(?:19|20)\d\d)(?![\w/]|[.,]\d|-\d)"
        ),
        citation=_LAW + "Rules of Court of the ECHR, number and year",
        confidence=0.75,
        refine=_refine_slashed,
        needs=("/",),
        needs_digit=True,
        min_digits=4,
    ),
)
