"""Rules that find names in a text that is split into words, and say whose they are.

Person, organization, place or people is told by form and neighbors. Coverage never
depends on it: the type only decides how a span is scored and replaced. What nothing
tells apart is a person, the most sensitive reading.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

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
    if _is_people(words[0]) and (len(words) == 1 or name[0].islower()):
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


def _is_people(word: str) -> bool:
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


_TOKEN = re.compile(r"[^\W\d_]+(?:['’.\-&][^\W\d_]+){0,8}\.?|\d[\d.,]*|\n|[^\w\s]|_+")
_INTRODUCTION = re.compile(
    r"\b(?:name(?: is|'s|’s|\s?:)|names?\s(?:are)|pulled up for|this is|i am|i'm|i’m"
    r"|speaking with|regards,|sincerely,|dear|call me|signed,?)\s{0,3}",
    re.IGNORECASE,
)
_IS_CERTAIN = re.compile(r"name|pulled|call me", re.IGNORECASE)
_SENTENCE_END = frozenset('.!?:\n"“”(;*•>-–—…')
_CONTRACTION = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m|t))$")
_ABBREVIATIONS = w.word_set(
    "inc corp co ltd llc bros plc dept univ assn jr sr esq st ste mt ft ave blvd rd "
    "gov sen rep gen col capt lt sgt prof dr mr mrs ms rev hon messrs vs no"
)
_KINDS = ("PERSON", "GPE", "UNKNOWN")

Name = tuple[int, int, str, float]
"""Start, end, entity type, confidence."""


@dataclass(slots=True)
class Word:
    """One word: the range of its stem, and what the rules made of it."""

    start: int
    end: int
    lower: str
    reading: int
    capital: bool
    shout: bool
    starts_sentence: bool
    entity_type: str = ""
    confidence: float = 0.5


def find_names(text: str, words: list[Word]) -> list[Name]:
    """Mark the names among the words of a text, and join neighbors.

    Args:
        text: the text.
        words: its words; their `entity_type` is filled in.

    Returns:
        Disjoint, sorted ranges.
    """
    _mark_by_form(text, words)
    _mark_introduced(text, words)
    _propagate(words)
    return list(_join(text, words))


def split_words(text: str) -> list[Word]:
    """Split a text into words with their readings and sentence starts."""
    words: list[Word] = []
    starts_sentence = True
    for match in _TOKEN.finditer(text):
        token = match.group()
        if not token[0].isalpha():
            starts_sentence = starts_sentence or token in _SENTENCE_END
            if text.startswith(":", match.start()) and words:
                _forgive_speaker(words[-1], match.start())
            continue
        word = _word(match.start(), token, starts_sentence=starts_sentence)
        ends_sentence = token[-1] == "." and word.end - word.start > 1
        starts_sentence = ends_sentence and not word.reading & w.TITLE
        words.append(word)
    return words


def _forgive_speaker(word: Word, colon: int) -> None:
    """Make the label of a speaker at the start of a line public."""
    if word.end == colon and word.starts_sentence and word.reading & w.SPEAKER:
        word.reading |= w.CLOSED | w.KNOWN


def _word(start: int, token: str, *, starts_sentence: bool) -> Word:
    length, lower, reading, capital, shout = _form(token)
    return Word(
        start=start,
        end=start + length,
        lower=lower,
        reading=reading,
        capital=capital,
        shout=shout,
        starts_sentence=starts_sentence,
    )


@lru_cache(maxsize=262_144)
def _form(token: str) -> tuple[int, str, int, bool, bool]:
    """Return length, lower case, reading, capital and shout of a token's stem."""
    stem = token[:-1] if token[-1] == "." else token
    lower = stem.lower()
    reading = w.reading_of(lower)
    contraction = _CONTRACTION.search(lower) if not reading else None
    if contraction and contraction.start() > 0:
        stem = stem[: contraction.start()]
        lower = stem.lower()
        reading = w.reading_of(lower)
    shout = len(stem) > 1 and stem.isupper()
    return len(stem), lower, reading, stem[0].isupper(), shout


def _mark_by_form(text: str, words: list[Word]) -> None:
    """Mark words that are names by their form, line by line."""
    first = 0
    for position in range(1, len(words) + 1):
        is_end = position == len(words)
        if is_end or "\n" in text[words[position - 1].end : words[position].start]:
            _mark_line(text, words[first:position])
            first = position


def _mark_line(text: str, line: list[Word]) -> None:
    """Mark names of one line; in a shouted line capitals carry no signal."""
    is_shouted = len(line) >= 4 and sum(word.shout for word in line) > 0.8 * len(line)
    previous_type = ""
    for position, word in enumerate(line):
        following = line[position + 1] if position + 1 < len(line) else None
        precedes_capital = (
            following is not None
            and following.capital
            and _is_adjacent(text, word, following)
        )
        kind = _type_by_form(
            word, is_shouted=is_shouted, precedes_capital=precedes_capital
        )
        if not kind and _is_initial(text, word) and precedes_capital:
            kind = "ENTITY"
        elif previous_type and word.capital and word.reading & w.STATE:
            kind = "GPE"
        word.entity_type = previous_type = kind


def _is_initial(text: str, word: Word) -> bool:
    """Tell whether a word is `A.`."""
    is_letter = word.capital and len(word.lower) == 1
    return is_letter and text[word.end : word.end + 1] == "."


def _type_by_form(word: Word, *, is_shouted: bool, precedes_capital: bool) -> str:
    """Return the type of a name, or an empty string."""
    reading = word.reading
    if reading & w.CLOSED:
        is_acronym = word.shout and reading & w.ACRONYM
        is_article = word.lower == "the" and word.capital and precedes_capital
        return "ENTITY" if (is_acronym or is_article) and not is_shouted else ""
    if reading & w.PLACE and (word.capital or not reading & w.KNOWN):
        return "GPE"
    if reading & w.PROPER_ONLY:
        return "ENTITY"
    if not reading & w.LEXICAL:
        return "ENTITY" if word.capital else "UNKNOWN" if len(word.lower) > 2 else ""
    if not word.capital:
        return ""
    return _type_of_capital(
        word, is_shouted=is_shouted, precedes_capital=precedes_capital
    )


def _type_of_capital(word: Word, *, is_shouted: bool, precedes_capital: bool) -> str:
    """Return the type of a known word that is written with a capital."""
    reading = word.reading
    if reading & (w.LABEL | w.MONTH_OR_DAY) or (word.shout and reading & w.COMMON):
        return ""
    if reading & w.GIVEN_NAME:
        return "PERSON"
    if is_shouted:
        return "ENTITY" if reading & w.PROPER_TOO else ""
    is_name = (
        not word.starts_sentence
        or precedes_capital
        or reading & w.PROPER_TOO
        or (word.shout and len(word.lower) <= 6)
    )
    return "ENTITY" if is_name else ""


def _mark_introduced(text: str, words: list[Word]) -> None:
    """Mark up to three words after `my name is` and two after a title as a person."""
    starts = {word.start: position for position, word in enumerate(words)}
    for match in _INTRODUCTION.finditer(text):
        position = starts.get(match.end())
        if position is not None:
            is_certain = _IS_CERTAIN.match(match.group()) is not None
            _mark_person(text, words[position : position + 3], is_certain=is_certain)
    for position, word in enumerate(words[:-1]):
        following = words[position + 1]
        if not word.reading & w.TITLE or not _is_adjacent(text, word, following):
            continue
        if following.entity_type or following.capital:
            word.entity_type = "PERSON"
            _mark_person(text, words[position + 1 : position + 3], is_certain=False)


def _mark_person(text: str, words: list[Word], *, is_certain: bool) -> None:
    """Mark consecutive words; words that are no name by form only if it is certain."""
    for word in words:
        if word.reading & w.CLOSED or not (is_certain or word.entity_type):
            return
        if word.reading & w.PEOPLE and not is_certain:
            return
        word.entity_type = "PERSON"
        word.confidence = 0.8
        after = text[word.end : word.end + 2]
        if not after.startswith(" ") and after != ". ":
            return


def _is_adjacent(text: str, first: Word, second: Word) -> bool:
    """Tell whether only blanks or a full stop part two words."""
    return text[first.end : second.start].strip(" .") == ""


def _propagate(words: list[Word]) -> None:
    """Mark further mentions of the names of the same text."""
    persons = {
        word.lower for word in words if word.confidence >= 0.8 and len(word.lower) > 1
    }
    capitals = {word.lower for word in words if word.entity_type and word.capital}
    for word in words:
        if word.reading & w.CLOSED:
            continue
        if word.lower in persons:
            word.entity_type = "PERSON"
        elif not word.entity_type and word.capital and word.lower in capitals:
            word.entity_type = "ENTITY"


def _join(text: str, words: list[Word]) -> Iterator[Name]:
    """Join neighboring names and the connectors between them."""
    run: list[Word] = []
    connectors: list[Word] = []
    for word in words:
        gap = text[run[-1].end : word.start] if run else ""
        if run and not connectors and _ends_name(run[-1], word, gap):
            word.entity_type = run[-1].entity_type
        if word.entity_type:
            if run and not _is_joint(text, gap, word, connectors):
                yield _close(text, run)
                run = []
            run.append(word)
            connectors = []
        elif run and len(gap) <= 12 and len(connectors) < 2 and _may_connect(word):
            connectors.append(word)
        elif run:
            yield _close(text, run)
            run, connectors = [], []
    if run:
        yield _close(text, run)


def _ends_name(last: Word, word: Word, gap: str) -> bool:
    """Tell whether a word is a detached `s` or a lower-case head such as `bay`."""
    if word.lower == "s" and gap in (" ", " '", " ’"):
        return True
    return bool(word.reading & w.HEAD) and gap == " " and last.capital


def _may_connect(word: Word) -> bool:
    """Tell whether a word may stand within a name: `of`, `van`, a single letter."""
    return len(word.lower) == 1 or bool(word.reading & w.CONNECTOR)


def _is_joint(text: str, gap: str, word: Word, connectors: list[Word]) -> bool:
    """Tell whether two names are one: only blanks, joints and connectors between."""
    if len(gap) > 12 or _ends_sentence(text, gap, word, connectors):
        return False
    if gap == ", " and word.reading & w.ORGANIZATION and word.capital:
        return True
    for connector in connectors:
        gap = gap.replace(text[connector.start : connector.end], "", 1)
    is_blank = gap.replace("'s", "").replace("’s", "").strip(" .&-'’") == ""
    has_words = any(len(connector.lower) > 1 for connector in connectors)
    return is_blank and (word.capital or not has_words)


def _ends_sentence(text: str, gap: str, word: Word, connectors: list[Word]) -> bool:
    """Tell whether a full stop after a whole word parts two names."""
    if connectors or not gap.startswith((". ", ".\n")):
        return False
    before = text[max(0, word.start - len(gap) - 4) : word.start - len(gap)]
    return before.isalpha() and before.islower()


def _is_abbreviation(stem: str) -> bool:
    """Tell whether a full stop behind a word belongs to it: `U.S.`, `Inc.`."""
    return "." in stem or stem.lower() in _ABBREVIATIONS


def _close(text: str, run: list[Word]) -> Name:
    """Type a run by its strongest word, else by its form and its neighbors."""
    kinds = {word.entity_type for word in run}
    start, end = run[0].start, run[-1].end
    if text.startswith(".", end) and _is_abbreviation(text[run[-1].start : end]):
        end += 1
    confidence = max(word.confidence for word in run)
    if "PERSON" in kinds or kinds == {"GPE"} or (kinds == {"UNKNOWN"} and len(run) < 2):
        kind = next(kind for kind in _KINDS if kind in kinds)
    else:
        kind = kind_of_name(text, start, end)
    return start, end, kind, confidence
