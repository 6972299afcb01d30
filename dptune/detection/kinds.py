"""Whose name it is: a person's, an organization's, a place's or a people's.

It is told by form and neighbors. Coverage never depends on it: the type only decides
how a span is scored and replaced. What nothing tells apart is a person, the most
sensitive reading.
"""

import re

from dptune.detection import words as w

_ORGANIZATION = w.word_set(
    "agency airlines airways alliance army associates association bank brothers bureau "
    "capital church club co coalition college commission committee company "
    "consulting corp corporation council court credit data department dynamics "
    "electric electronics energy enterprises federation finance financial force "
    "foundation fund gmbh group holding holdings hospital inc incorporated industries "
    "information institute insurance international investments labs laboratories "
    "limited llc llp logistics ltd ltda management markets media microsystems ministry "
    "motors navy network networks news oy oyj orchestra organisation organization oil "
    "partners partnership party petroleum pharma pharmaceuticals plc "
    "police press productions properties publishing quarterly records research "
    "resources sa school schools sciences securities senate services software "
    "solutions sons spa studio studios systems team technologies technology "
    "telecom times trust union university ventures weekly works ag ab asa nv bv "
    "pty analytics bioscience biosciences therapeutics interactive digital healthcare "
    "health house congress parliament"
)
_PLACE_HEAD = w.word_set(
    "bay beach canyon city coast county creek desert falls gulf harbor harbour hills "
    "island islands lake mountain mountains ocean peninsula province republic river "
    "sea state states strait territory valley village kingdom"
)
_PLACE_BEFORE = w.word_set(
    "in near throughout across outside within around inside toward towards"
)
_MOTION = w.word_set(
    "flew fly flies flying moved move moves moving travel travelled traveled traveling "
    "trip trips went go goes going come came drive drove driving relocated relocate "
    "ship shipped return returned returning flight flights way visit visited visiting "
    "welcome headed back sailed sail bus train road north south east west "
    "northern southern eastern western central downtown city town capital "
    "village province state country republic"
)
_ORIGIN = w.word_set("is am are was were i'm m here originally comes live")
_WORK_BEFORE = w.word_set(
    "work works worked working job employed employee ceo cfo cto director president "
    "chairman founder analyst manager shares stock company firm startup support "
    "joined join hired partner"
)
_CAMEL = re.compile(r"[a-z][A-Z]")
_WORDS = re.compile(r"[^\W\d_]+")
_LAST_TWO = re.compile(r"([^\W\d_]+)[^\w\n.!?;,]+(?:the )?([^\W\d_]+)[ \t]+$")
_LAST = re.compile(r"([^\W\d_]+)[ \t]+$")
_POSTCODE_AFTER = re.compile(r"[ \t]{1,3}\d{4,6}\b|,? [A-Z]{2}\b(?:,? \d{4,6})")
_ALONE_BEFORE = re.compile(
    r"\d[^\n]{0,60}\n\W{0,6}$|,[ \t]*\n\W{0,6}$|[^\W\d_]{6,} \d{1,4},[ \t]$"
    r"|\d{1,5}[^\W\d_]?(?: [A-Z][\w'.]*){1,4},[ \t]$"
)


def kind_of_name(text: str, start: int, end: int) -> str:
    """Return PERSON, ORG, GPE, LOC or NORP for a name at `[start, end)`.

    Args:
        text: the text.
        start: first code point of the name.
        end: one past its last code point.
    """
    name = text[start:end]
    words = _WORDS.findall(name.lower())
    before, last = _words_before(text, start)
    if words[-1] in _ORGANIZATION or (len(words) > 1 and words[0] in _ORGANIZATION):
        return "ORG"
    if is_people(words[0]) and (len(words) == 1 or name[0].islower()):
        return "NORP"
    if len(words) > 1 and (words[-1] in _PLACE_HEAD or words[0] in _PLACE_HEAD):
        return "LOC"
    if _is_place(text, start, end, before, last):
        return "GPE"
    if _is_organization(name, words, before, last):
        return "ORG"
    return "PERSON"


def _words_before(text: str, start: int) -> tuple[str, str]:
    """Return the last two words before a name, lower-cased, if nothing parts them."""
    window = text[max(0, start - 40) : start]
    if match := _LAST_TWO.search(window):
        return match[1].lower(), match[2].lower()
    match = _LAST.search(window)
    return "", match[1].lower() if match else ""


def is_people(word: str) -> bool:
    """Tell whether a word or its singular is a people, a faith, or their adjective."""
    forms = (word, word.removesuffix("s"), word.removesuffix("es"))
    return any(w.reading_of(form) & w.PEOPLE for form in forms)


def _is_place(text: str, start: int, end: int, before: str, last: str) -> bool:
    """Tell whether what stands around a name says that it is a place."""
    if last in _PLACE_BEFORE:
        return True
    if last in {"to", "from", "of", "for"} and before in _MOTION:
        return True
    if last == "from" and before in _ORIGIN:
        return True
    if last in {"visit", "visited", "visiting", "downtown"}:
        return True
    after = text[end : end + 16]
    if _POSTCODE_AFTER.match(after):
        return True
    is_line = after[:1] in ("\n", ",", "") and _ALONE_BEFORE.search(
        text, max(0, start - 80), start
    )
    return bool(is_line)


def _is_organization(name: str, words: list[str], before: str, last: str) -> bool:
    """Tell whether form and context say that a name is an organization."""
    if len(words) == 1 and (_CAMEL.search(name) or (name.isupper() and len(name) < 6)):
        return len(name) > 1
    if " & " in name:
        return len(words) >= 2
    if last in {"the", "by", "with", "at", "for", "of", "as"}:
        return last == "the" or before in _WORK_BEFORE
    return last in _WORK_BEFORE


_TELLS = re.compile(
    r"(?: [A-Z][\w'’-]{1,24})?"
    r"(?:\s{0,3}(?:\n|\Z)|[ \t]{0,2}[,(:;<|/–—]|['’]s\b|\.(?:\s|\Z)"
    r"|,? (?:is|was|has|had|isn't|wasn't|will|would|who|and|does|did|said|says|came"
    r"|went|took|gave|told|wrote|saw|got|left|met|kept|made|sent|paid|bought|sold|ran"
    r"|felt|thought|knew|spoke|heard|lost|won|drove|fell|[a-z]{2,12}ed|(?:live|work|say"
    r"|want|need|call|ask|report|deni|state|agree|play|teach|own|owe|run|go)e?s)\b)"
)


def is_told_of(text: str, end: int) -> bool:
    """Tell whether what stands behind words is said of them as of a name.

    An auxiliary that opens a sentence (`Will Apple buy it?`) has a plain verb behind
    its subject; a name (`Will Stone lives here`, a line of its own) has another.
    """
    return _TELLS.match(text, end) is not None
