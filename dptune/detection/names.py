"""Rules that find names in a text that is split into words."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from dptune.detection import words as w
from dptune.detection.kinds import is_told_of, kind_of_name

_STEM_BEFORE = re.compile(r"([^\W\d_][\w.]*)$")
_LETTERS = rf"[^\W\d_]+(?:[{w.JOINING}]+[^\W\d_]*)*"
TOKEN = re.compile(
    rf"{_LETTERS}(?:['’.\-&]{_LETTERS}){{0,8}}\.?|\d[\d.,]*|\n|[^\w\s]|_+"
)
_INTRODUCTION = re.compile(
    r"\b(?:name(?: is|'s|’s|\s?:)|names?\s(?:are)|pulled up for|this is|i am|i'm|i’m"
    r"|speaking with|regards,|sincerely,|dear|call me|signed,?|asks? for|c/o|attn:?"
    r"|fao:?)\s{0,3}",
    re.IGNORECASE,
)
_IS_CERTAIN = re.compile(r"name|pulled|call me", re.IGNORECASE)
SENTENCE_END = frozenset('.!?:\n"“”(;*•>-–—…')
_CONTRACTION = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m|t))$")
_ABBREVIATIONS = w.word_set(
    "inc corp co ltd llc bros plc dept univ assn jr sr esq st ste mt ft ave blvd rd "
    "gov sen rep gen col capt lt sgt prof dr mr mrs ms rev hon messrs vs no"
)
PARTICLES = w.word_set(
    "van von de der den del della di da du dos das la le ter ten bin ibn al el abu ben "
    "bint zu zur vom st san santa"
)
_OF_VIETNAM = w.word_set(
    "nguyễn nguyen trần tran lê phạm pham hoàng hoang huỳnh huynh phan vũ võ đặng dang "
    "bùi bui đỗ hồ ngô ngo dương duong lý đinh dinh trương truong lương luong đào mai"
)
"""The commonest family names."""
_BEFORE_STEM = (" ", "-", "'", "’")
_KINDS = ("PERSON", "GPE", "UNKNOWN")

_LONGEST_LABEL = 5
_MAY_BE_NAME = w.PLACE | w.PROPER_ONLY
"""Without these, a word that English knows is no name unless it has a capital."""
_KIN = w.word_set("aunt auntie aunty uncle grandma grandpa granny cousin")
_DETERMINERS = w.word_set("the a an my your his her our their this that there")
_NO_LABEL = w.PROPER_ONLY | w.PROPER_TOO | w.GIVEN_NAME | w.PLACE | w.TITLE

INTRODUCED = 0.8
"""Confidence of a name that the text itself calls one."""

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
    is_label: bool = False


def find_names(
    text: str, words: list[Word], judge: Callable[[list[Word]], None] | None = None
) -> list[Name]:
    """Mark the names among the words of a text, and join neighbors.

    Args:
        text: the text.
        words: its words; their `entity_type` is filled in.
        judge: marks more words, or takes back what follows from form alone.

    Returns:
        Disjoint, sorted ranges.
    """
    _mark_by_form(text, words)
    _mark_introduced(text, words)
    if judge is not None:
        judge(words)
        _mark_introduced(text, words)  # a second mark may introduce further ones
    _mark_auxiliaries(text, words)
    _mark_last_of_three(text, words)
    _propagate(words)
    _mark_particles(text, words)
    return list(_join(text, words))


def split_words(
    text: str, tokens: Iterable[tuple[int, str]] | None = None
) -> list[Word]:
    """Split a text into words with their readings and sentence starts.

    Args:
        text: the text.
        tokens: starts and strings of what `TOKEN` finds in it, where it was sought.
    """
    if tokens is None:
        tokens = [(match.start(), match.group()) for match in TOKEN.finditer(text)]
    words: list[Word] = []
    starts_sentence = True
    first_of_line = 0
    for start, token in tokens:
        if not token[0].isalpha():
            starts_sentence = starts_sentence or token in SENTENCE_END
            if token[0] == "\n":
                first_of_line = len(words)
            elif token[0] == ":" and words:
                _forgive_speaker(words[-1], start)
                if len(words) - first_of_line <= _LONGEST_LABEL:
                    _forgive_labels(words[first_of_line:], start)
            continue
        length, lower, reading, capital, shout = form(token)
        words.append(
            Word(start, start + length, lower, reading, capital, shout, starts_sentence)
        )
        starts_sentence = token[-1] == "." and length > 1 and not reading & w.TITLE
    return words


def _forgive_speaker(word: Word, colon: int) -> None:
    """Make the label of a speaker at the start of a line public."""
    if word.end == colon and word.starts_sentence and word.reading & w.SPEAKER:
        word.reading |= w.CLOSED | w.KNOWN


def _forgive_labels(line: list[Word], colon: int) -> None:
    """Note what stands before a colon as a label: `Date of Birth:`."""
    if not line or line[-1].end != colon:
        return
    if all(word.reading & w.KNOWN and not word.reading & _NO_LABEL for word in line):
        for word in line:
            word.is_label = True


@lru_cache(maxsize=262_144)
def form(token: str) -> tuple[int, str, int, bool, bool]:
    """Return length, lower case, reading, capital and shout of a token's stem."""
    stem = token[:-1] if token[-1] == "." else token
    lower = w.plain(stem).lower()
    reading = w.reading_of(lower)
    contraction = _CONTRACTION.search(lower) if not reading else None
    if contraction and contraction.start() > 0:
        stem = stem[: contraction.start() - len(lower)]
        lower = w.plain(stem).lower()
        reading = w.reading_of(lower)
    shout = len(stem) > 1 and stem.isupper()
    return len(stem), lower, reading, stem[0].isupper(), shout


def _mark_by_form(text: str, words: list[Word]) -> None:
    """Mark words that are names by their form, line by line."""
    if "\n" not in text:
        _mark_line(text, words)
        return
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
        if following is not None and not following.capital:
            following = None
        if following is not None and _qualifies_label(text, word, following):
            word.is_label = True
        reading = word.reading
        if not (word.capital or word.shout or reading & _MAY_BE_NAME) and (
            reading & w.LEXICAL
        ):
            word.entity_type = previous_type = ""
            continue
        precedes_capital = following is not None and _is_adjacent(text, word, following)
        is_label = word.is_label or word.reading & w.LABEL
        kind = (
            ""
            if is_label
            else _type_by_form(
                word, is_shouted=is_shouted, precedes_capital=precedes_capital
            )
        )
        if not kind and _is_initial(text, word) and precedes_capital:
            kind = "ENTITY"
        elif previous_type and word.capital and word.reading & w.STATE:
            kind = "GPE"
        word.entity_type = previous_type = kind


def _qualifies_label(text: str, word: Word, following: Word) -> bool:
    """Tell whether a known word stands before the head of a label: `Policy Number`."""
    reading = word.reading
    is_plain = reading & w.KNOWN and not reading & _NO_LABEL
    is_head = following.reading & w.LABEL and following.capital
    return bool(is_plain and is_head) and _is_adjacent(text, word, following)


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
    if reading & w.MONTH_OR_DAY or (word.shout and reading & w.COMMON):
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
    starts: dict[int, int] = {}
    for match in _INTRODUCTION.finditer(text):
        starts = starts or {word.start: place for place, word in enumerate(words)}
        position = starts.get(match.end())
        if position is not None:
            is_certain = _IS_CERTAIN.match(match.group()) is not None and not (
                _says_what_a_name_is(text, match.start(), words[position])
            )
            _mark_person(text, words[position : position + 3], is_certain=is_certain)
    for position, word in enumerate(words[:-1]):
        if not (word.reading & w.TITLE or (word.capital and word.lower in _KIN)):
            continue
        following = words[position + 1]
        if not _is_adjacent(text, word, following):
            continue
        if following.entity_type or following.capital:
            word.entity_type = "PERSON"
            if _is_closed_name(word, following, words[max(0, position - 1)]):
                following.entity_type, following.confidence = "PERSON", INTRODUCED
            _mark_person(text, words[position + 1 : position + 3], is_certain=False)


def _is_closed_name(title: Word, word: Word, before: Word) -> bool:
    """Tell whether a function word behind a title is a name: `Mr Do`, `Ms So`."""
    is_said = word.capital and not word.shout and title.capital
    reading = word.reading
    return (
        is_said
        and bool(reading & w.CLOSED)
        and not reading & (w.PRONOUN | w.PERSONAL)
        and before.lower not in _DETERMINERS
    )


def _mark_auxiliaries(text: str, words: list[Word]) -> None:
    """Mark `Will` and `May` where they are no auxiliaries.

    An auxiliary has a capital at the start of a sentence and in headings alone, and
    something to say behind it there: in `Regards, Will` and `Will: yes` it is a name.
    What is a name in one place is one wherever no subject stands behind it.
    """
    found = [
        (position, word)
        for position, word in enumerate(words)
        if word.lower in w.NAMES_TOO and word.capital and not word.shout
    ]
    named = {word.lower for _, word in found if word.confidence >= INTRODUCED}
    for position, word in found:
        if _is_no_auxiliary(text, words, position):
            word.entity_type, word.confidence = "PERSON", INTRODUCED
            named.add(word.lower)
    for position, word in found:
        if word.lower in named and not _has_subject(words, position):
            word.entity_type, word.confidence = "PERSON", INTRODUCED


def _is_no_auxiliary(text: str, words: list[Word], position: int) -> bool:
    """Tell whether a capital stands where no auxiliary has one."""
    word = words[position]
    if (behind := text[word.end : word.end + 3].lstrip(" \t")[:1]).isdigit():
        return False
    if word.starts_sentence:
        last = words[min(position + 1, len(words) - 1)]
        is_whole = last.capital and last.entity_type and is_told_of(text, last.end)
        return not behind.isalnum() or bool(is_whole)
    before = words[position - 1]
    is_beside = before.capital and not text[before.end : word.start].strip()
    return not (is_beside and not before.entity_type and behind.isupper())


def _mark_last_of_three(text: str, words: list[Word]) -> None:
    """Mark `An` in `Nguyễn Văn An`: English has words for how names of Vietnam end."""
    for family, middle, word in zip(words, words[1:], words[2:], strict=False):
        if (
            word.reading & w.CLOSED
            and family.lower in _OF_VIETNAM
            and (
                (family.capital and middle.capital and word.capital)
                or middle.lower in {"văn", "thị"}
            )
            and _is_adjacent(text, family, middle)
            and _is_adjacent(text, middle, word)
        ):
            for one in (family, middle, word):
                one.entity_type, one.confidence = "PERSON", INTRODUCED


def _has_subject(words: list[Word], position: int) -> bool:
    """Tell whether a word behind may be what an auxiliary at the start speaks of."""
    if not words[position].starts_sentence or position + 1 == len(words):
        return False
    following = words[position + 1]
    return (
        following.capital
        or following.lower in _DETERMINERS
        or bool(following.reading & (w.PRONOUN | w.PERSONAL))
    )


def _says_what_a_name_is(text: str, start: int, word: Word) -> bool:
    """Tell whether `is` is followed by a plain adjective or verb: `is required`."""
    reading = word.reading
    is_plain = reading & w.KNOWN and not reading & (w.NOUN | _NO_LABEL)
    is_own = text[max(0, start - 3) : start].lower() == "my "
    return bool(is_plain) and not word.capital and not is_own


def _mark_person(text: str, words: list[Word], *, is_certain: bool) -> None:
    """Mark consecutive words; words that are no name by form only if it is certain."""
    for word in words:
        is_closed = word.reading & w.CLOSED and word.confidence < INTRODUCED
        if is_certain and word is words[0] and word.lower in w.NAMES_TOO:
            is_closed = text[word.end : word.end + 4].lower() in (" be ", " not")
        if is_closed or not (is_certain or word.entity_type):
            return
        if word.reading & w.PEOPLE and not is_certain:
            return
        word.entity_type = "PERSON"
        word.confidence = INTRODUCED
        after = text[word.end : word.end + 2]
        if not after.startswith(" ") and after != ". ":
            return


def _is_adjacent(text: str, first: Word, second: Word) -> bool:
    """Tell whether only blanks or a full stop part two words."""
    return text[first.end : second.start].strip(" .") == ""


def _mark_particles(text: str, words: list[Word]) -> None:
    """Let a small `van` or `de la` before a name be a part of it."""
    for word, following in reversed([*pairwise(words)]):
        if (
            word.lower in PARTICLES
            and not word.entity_type
            and following.entity_type
            and (
                following.capital
                or following.confidence >= INTRODUCED
                or following.lower in PARTICLES
            )
            and text[word.end : following.start] in _BEFORE_STEM
        ):
            word.entity_type = following.entity_type
            word.confidence = following.confidence


def _propagate(words: list[Word]) -> None:
    """Mark further mentions of the names of the same text."""
    introduced = {word.lower for word in words if word.confidence >= INTRODUCED}
    persons = {word for word in introduced if len(word) > 1}
    capitals = {word.lower for word in words if word.entity_type and word.capital}
    if not persons and not capitals:
        return
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
        if not run and not word.entity_type:
            continue
        gap = text[run[-1].end : word.start] if run else ""
        if run and not connectors and _ends_name(run[-1], word, gap):
            word.entity_type = run[-1].entity_type
        if word.entity_type:
            if run and not _is_joint(text, gap, word, connectors):
                yield _close(text, run)
                run = []
            run.append(word)
            connectors = []
        elif run and len(connectors) < 2 and _connects(text, run, gap, word):
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


def _connects(text: str, run: list[Word], gap: str, word: Word) -> bool:
    """Tell whether a word may stand in a name: `of`, a letter, `and` of a company."""
    is_company = any(one.reading & w.ORGANIZATION for one in run)
    is_listed = is_company or text.startswith(", ", max(0, run[0].start - 2))
    is_let = word.lower != "and" or word.capital or is_listed
    is_connector = len(word.lower) == 1 or (is_let and word.reading & w.CONNECTOR)
    return bool(is_connector) and len(gap) <= 12


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
    end = word.start - len(gap)
    stem = _STEM_BEFORE.search(text, max(0, end - 24), end)
    return stem is not None and len(stem[1]) > 1 and not _is_abbreviation(stem[1])


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
