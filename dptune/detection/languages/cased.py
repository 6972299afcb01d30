"""Names in languages with capitals: German, French, Spanish, Italian, Dutch and so on.

A word with a capital that no sentence begins with is a name, unless the tables say
otherwise. German writes all nouns so: there a word is a noun if an article stands
before it, if it ends in a noun or in an ending of nouns. Words that begin a sentence,
and words of a text without any capitals, are names if a list, a title or a phrase such
as "je m'appelle" says so.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dptune.detection.languages.tables import CASED, Language, load, read_data
from dptune.detection.languages.values import Found, age_beside, any_of

_TOKEN = re.compile(r"[^\W\d_](?:[^\W\d_]|[’'´.&-](?=[^\W\d_])){0,80}")
_START = re.compile(r"(?:^|[.!?…:;¿¡«»\"“”„‚(\[\n•*|>]|[-–—]\s)\s{0,4}['\"«“„(]{0,2}$")
_ABBREVIATION = re.compile(r"\b[^\W\d_]{1,4}\.\s{0,2}$")
_OF_PEOPLE = frozenset(["PERSON", "ENTITY"])
_INITIALS_BEFORE = re.compile(r"(?<![\w.])(?:[^\W\d_a-zß-ÿ]\.[ -]?){1,3}$")
_INITIALS_AFTER = re.compile(r"(?: (?:v\. ?)?[A-ZÀ-ÖØ-ÞŁŚŻŹĆİŞÇĞ]\.){1,3}")
_ACADEMIC = frozenset(["dr", "prof", "dott", "doç", "ing", "mag", "mgr", "inż"])
_ELIDED = re.compile(r"(?i:(?<=\s)(?:[dlmn]|(?:d|n|s)[aeu]ll|degl|sant)['’])\Z")
_CAPITAL_MONTHS = frozenset(["de", "tr"])
_AND = frozenset(["und", "et", "y", "e", "ed", "en", "i", "oraz", "ve", "ile"])
_MOST_AFTER_CUE = 4
_LOWER_AFTER_CUE = 2
_LONG_NOUN = 4
_NOUN_CASES = ("n", "en", "e", "s", "es", "er")
_ORG_REACH = 4
_ORG_TAIL = re.compile(
    r",? (?:sp\. ?z ?o\. ?o\.?|s\. ?p\. ?a\.?|s\. ?r\. ?l\.?|s\. ?l\.?|s\. ?a\.?"
    r"|b\. ?v\.?|n\. ?v\.?|(?:(?:san|tic|paz|inş|ith|ihr|ve)\.? ){0,6}"
    r"(?:a\. ?ş\.?|ltd\. şti\.?))(?!\w)",
    re.IGNORECASE,
)


@dataclass(kw_only=True)
class _Token:
    start: int
    end: int
    lower: str
    is_capital: bool
    is_acronym: bool
    begins: bool
    kind: str = ""
    confidence: float = 0.0

    def mark(self, kind: str, confidence: float) -> None:
        """Call it a name; the stronger reason says of what."""
        if confidence > self.confidence:
            self.kind, self.confidence = kind, confidence


@dataclass(frozen=True, kw_only=True)
class _Words:
    """The word lists of a language, joined as the rules need them."""

    language: Language
    persons: frozenset[str]
    given: frozenset[str]
    public: frozenset[str]
    titles: frozenset[str]
    roles: frozenset[str]
    cue: re.Pattern[str]
    weak: re.Pattern[str]
    long_place: re.Pattern[str]
    articles: frozenset[str]
    nouns: frozenset[str]
    also_words: frozenset[str]
    rare_given: frozenset[str]
    noun_endings: tuple[str, ...]


@lru_cache
def _given_anywhere() -> frozenset[str]:
    """Return given names of all languages with capitals: people move."""
    return frozenset(
        name
        for code in CASED
        for name in load(code).words("given") - load(code).words("ambiguous")
        if len(name) > 3
    )


@lru_cache
def _words(code: str) -> _Words:
    language = load(code)
    lists = language.words
    public = lists("stop") | lists("greet") | lists("labels") | lists("label_words")
    public |= frozenset(word.lower() for word in lists("common"))
    if code in _CAPITAL_MONTHS:
        public |= lists("weekdays") | lists("months")
    return _Words(
        language=language,
        persons=lists("given") | lists("surnames") | _given_anywhere(),
        given=lists("given"),
        public=public,
        titles=lists("titles"),
        roles=lists("roles"),
        cue=re.compile(rf"(?<!\w)(?:{any_of(language.phrases('cues'))})(?!\w)[\s,:]*"),
        weak=re.compile(
            rf"(?<!\w)(?:{any_of(language.phrases('weak'))})(?!\w)\s{{1,2}}"
        ),
        long_place=re.compile(
            rf"(?<!\w)(?:{any_of(language.phrases('long_places'))})(?!\w)"
        ),
        articles=lists("articles"),
        nouns=lists("nouns"),
        also_words=lists("nouns") | lists("also_words"),
        rare_given=lists("given") - lists("nouns") - lists("also_words"),
        noun_endings=tuple(sorted(lists("noun_endings"))),
    )


def find_cased_names(text: str, lowered: str, code: str) -> Iterator[Found]:
    """Yield the names of a text in a language with capitals.

    Args:
        text: in composed characters.
        lowered: the same in lower case, of equal length.
        code: the language.
    """
    words = _words(code)
    tokens = _tokens(text, lowered, words)
    letters = [c for c in text if c.isalpha()]
    num_upper = sum(map(str.isupper, letters))
    has_case = num_upper > 0 and 2 * num_upper < len(letters)
    for position, token in enumerate(tokens):
        _mark_by_lists(tokens, position, words, has_case=has_case)
        if has_case and token.is_capital:
            _mark_by_case(text, tokens, position, words)
    _mark_after_phrases(text, lowered, tokens, words, has_case=has_case)
    _mark_joined(text, tokens, words)
    for match in words.long_place.finditer(lowered):
        yield *match.span(), "GPE", 0.8
    for found in _runs(text, tokens, words):
        yield found
        if found[2] in _OF_PEOPLE:
            yield from age_beside(text, found[1])


def _tokens(text: str, lowered: str, words: _Words) -> list[_Token]:
    """Split into words; elided articles and suffixes behind an apostrophe go."""
    tokens = []
    for match in _TOKEN.finditer(text):
        start, end = match.span()
        cut = max(text.find("'", start, end), text.find("’", start, end))
        if cut > 0 and words.language.code == "tr":
            end = cut
        elif cut > 0 and words.language.code in {"fr", "it"}:
            head = lowered[start:cut].replace("’", "'") + "'"
            if head in words.language.words("stop") or cut - start < 2:
                start = cut + 1
        before = text[max(0, start - 12) : start]
        begins = _START.search(before) is not None and not (
            _ABBREVIATION.search(before) and _is_abbreviation(before, words)
        )
        form = text[start:end]
        tokens.append(
            _Token(
                start=start,
                end=end,
                lower=lowered[start:end],
                is_capital=form[:1].isupper(),
                is_acronym=form.isupper() and len(form) > 1,
                begins=begins or (start == 0),
            )
        )
    return tokens


def _is_abbreviation(before: str, words: _Words) -> bool:
    """Tell whether the full stop before a word belongs to a title or an initial."""
    last = before.rstrip(" .").rpartition(" ")[2].lower().lstrip("(")
    return len(last) == 1 or last in words.titles


def _mark_by_lists(
    tokens: Sequence[_Token], position: int, words: _Words, *, has_case: bool
) -> None:
    """Mark given names and places; surnames beside a name, or with a capital."""
    token = tokens[position]
    if token.lower in words.public:
        return
    lists = words.language.words
    is_sure = token.lower not in lists("ambiguous")
    usual = words.also_words if has_case or words.language.code == "tr" else words.nouns
    is_rare = len(token.lower) > 3 and token.lower not in usual
    if has_case and not token.is_capital:
        is_given = _is_listed(token.lower, words.rare_given, words, is_capital=False)
        if is_sure and is_rare and is_given:
            token.mark("PERSON", 0.55)
        return
    if _is_listed(token.lower, lists("given"), words, is_capital=token.is_capital):
        if is_sure and len(token.lower) > 2 and (has_case or is_rare):
            token.mark("PERSON", 0.75)
    elif (
        is_sure
        and token.lower in words.persons - words.public
        and (
            token.lower in _given_anywhere() and not _is_common(tokens, position, words)
        )
    ):
        token.mark("PERSON", 0.65)
    elif _is_listed(token.lower, lists("surnames"), words):
        beside = position > 0 and bool(tokens[position - 1].kind)
        if beside or (has_case and is_sure and not _is_common(tokens, position, words)):
            token.mark("PERSON", 0.7)
    elif is_sure and token.lower in lists("places") and not token.is_acronym:
        token.mark("GPE", 0.7)


def _is_listed(
    word: str, names: frozenset[str], words: _Words, *, is_capital: bool = True
) -> bool:
    """Look a name up, whole, by its parts, or without an ending of its case."""
    if word in names or any(p in names for p in word.split("-") if len(p) > 2):
        return True
    if words.language.code == "de" and word[-1:] == "s" and len(word) > 4:
        return word[:-1] in names
    unsure = words.language.words("ambiguous")
    if not is_capital:
        unsure |= words.also_words
    for ending in words.language.words("endings"):
        stem = word.removesuffix(ending)
        forms = (
            {stem, stem + "a", stem + "i"} if words.language.code == "pl" else {stem}
        )
        if len(stem) > 2 and stem != word and not forms.isdisjoint(names - unsure):
            return True
    return False


def _is_common(tokens: Sequence[_Token], position: int, words: _Words) -> bool:
    """Tell whether a capitalized German word is a noun."""
    if words.language.code != "de":
        return False
    word = tokens[position].lower
    before = tokens[position - 1].lower if position > 0 else ""
    if before in words.articles:
        return True
    lists = words.language.words
    if before in lists("place_signs") and word not in words.nouns | lists(
        "place_endings"
    ):
        ends = word.endswith(tuple(lists("place_endings")))
        return _is_noun(word, words) and not ends
    return _is_noun(word, words)


def _is_noun(word: str, words: _Words) -> bool:
    """Look a German noun up, in the singular, by its last part or its ending."""
    last = word.rpartition("-")[2]
    for form in (last, *(last.removesuffix(e) for e in _NOUN_CASES)):
        if form in words.nouns:
            return True
        if any(form[-n:] in words.nouns for n in range(_LONG_NOUN, len(form) - 1)):
            return True
    return len(last) > 5 and last.endswith(words.noun_endings)


def _mark_by_case(
    text: str, tokens: Sequence[_Token], position: int, words: _Words
) -> None:
    """Mark a capitalized word in mid-sentence, or at its start beside another one."""
    token = tokens[position]
    if _ends_name(text, tokens, position, words):
        token.mark("PERSON", 0.65)
        return
    no_names = (words.public, words.titles, words.roles)
    if token.kind or any(token.lower in listed for listed in no_names):
        return
    if token.is_acronym and (
        token.lower in read_data("en")["acronyms"].split()
        or token.end - token.start > 5
    ):
        return
    before = tokens[position - 1] if position else None
    if (
        before
        and before.kind in {"PERSON", "ENTITY"}
        and text[before.end : token.start] == " "
    ):
        token.mark("PERSON", 0.65)
        return
    if len(token.lower) < 2 or _is_common(tokens, position, words):
        return
    after = tokens[position + 1] if position + 1 < len(tokens) else None
    if after and after.kind == "PERSON" and text[token.end : after.start] == ", ":
        token.mark("PERSON", 0.55)
    if not token.begins:
        token.mark("ORG" if token.is_acronym else "ENTITY", 0.6)
        return
    if (
        after is not None
        and after.is_capital
        and not after.is_acronym
        and text[token.end : after.start] in (" ", "-")
        and after.lower not in words.public
        and after.lower not in words.language.words("given")
        and not _is_common(tokens, position + 1, words)
    ):
        token.mark("ENTITY", 0.55)


def _ends_name(
    text: str, tokens: Sequence[_Token], position: int, words: _Words
) -> bool:
    """Tell whether particles join a word to a name: `Jan van der Meer`.

    A German noun has a capital too: only `von` joins, and no word of the list.
    """
    token, first = tokens[position], position
    while first and tokens[first - 1].lower in words.language.words("particles"):
        first -= 1
    joined = [other.lower for other in tokens[first:position]]
    if not joined or not first or tokens[first - 1].kind != "PERSON":
        return False
    if words.language.code == "de" and (
        joined not in (["von"], ["van"]) or token.lower in words.nouns
    ):
        return False
    between = text[tokens[first - 1].end : token.start].lower()
    return between == f" {' '.join(joined)} "


def _mark_after_phrases(
    text: str, lowered: str, tokens: list[_Token], words: _Words, *, has_case: bool
) -> None:
    """Mark what follows a title or a phrase, and what stands before `Bey`."""
    by_start = {token.start: i for i, token in enumerate(tokens)}
    after_titles = words.language.words("after_titles")
    for position, token in enumerate(tokens):
        is_short = token.end - token.start < 3
        is_title = token.lower in words.titles and not token.kind
        is_title |= has_case and token.lower in words.roles
        if is_title and is_short and text[token.end : token.end + 1] != ".":
            is_title = token.is_capital and has_case
        if is_title:
            if token.lower in _ACADEMIC and text.startswith(".", token.end):
                token.mark("PERSON", 0.5)
            _mark_from(text, tokens, position + 1, words, has_case=has_case, reach=3)
        if token.lower in after_titles and position > 0:
            tokens[position - 1].mark("PERSON", 0.85)
    for match in words.cue.finditer(lowered):
        first = by_start.get(match.end())
        if first is not None:
            _mark_from(
                text, tokens, first, words, has_case=has_case, reach=_MOST_AFTER_CUE
            )
    if not has_case:
        for match in words.weak.finditer(lowered):
            first = by_start.get(match.end(), -1)
            if first >= 0 and tokens[first].lower in words.persons:
                tokens[first].mark("PERSON", 0.7)


def _mark_from(
    text: str,
    tokens: list[_Token],
    first: int,
    words: _Words,
    *,
    has_case: bool,
    reach: int,
) -> None:
    """Mark a name from a place on; without capitals, up to two words of no class."""
    particles = words.language.words("particles")
    marked = 0
    for position in range(first, min(first + reach + 2, len(tokens))):
        token = tokens[position]
        gap = text[tokens[position - 1].end : token.start] if position else ""
        if position > first and gap.strip(" .") != "":
            return
        if position > first and "." in gap and token.begins:
            return
        if token.lower in words.titles:
            if has_case and not marked and text.startswith(".", token.end):
                token.mark("PERSON", 0.5)
            continue
        if token.lower in particles:
            if not marked and has_case:
                token.mark("PERSON", 0.5)
            continue
        is_word = token.lower in words.public
        if is_word or (has_case and marked and not token.is_capital):
            return
        if not token.is_capital and marked >= _LOWER_AFTER_CUE:
            return
        if has_case and not token.is_capital and token.lower not in words.persons:
            return
        token.mark("PERSON", 0.85)
        marked += 1
        if marked >= reach:
            return


def _mark_joined(text: str, tokens: Sequence[_Token], words: _Words) -> None:
    """Mark a name that is a word too beside a name it is joined to: `Paz y Ana`."""
    unsure = words.language.words("ambiguous")
    for first, link, last in zip(tokens, tokens[1:], tokens[2:], strict=False):
        is_joined = link.lower in _AND and last.is_capital and last.kind in _OF_PEOPLE
        if not is_joined or first.kind or not first.is_capital:
            continue
        is_name = first.lower in words.persons or first.lower in unsure
        if is_name and text[first.end : last.start] == f" {link.lower} ":
            first.mark("PERSON", 0.55)


def _runs(text: str, tokens: Sequence[_Token], words: _Words) -> Iterator[Found]:
    """Join neighbors to one name, particles and heads of organizations with them."""
    orgs = words.language.words("orgs")
    particles = words.language.words("particles")
    _mark_organizations(text, tokens, words)
    run: list[_Token] = []
    held: list[_Token] = []
    for position, token in enumerate(tokens):
        gap = text[run[-1].end : token.start] if run else ""
        for other in held:
            gap = gap.replace(text[other.start : other.end], "", 1)
        gap = _ELIDED.sub("", gap)
        is_near = bool(run) and len(gap) < 6 and not gap.strip(" .&'’-")
        is_near = is_near and not ("." in gap and token.begins)
        is_initial = token.is_capital and len(token.lower) < 2
        is_capital_particle = (
            token.is_capital and not token.begins and token.lower in words.public
        )
        if token.kind:
            if run and not is_near:
                yield _close(text, run, orgs)
                run = []
            before = tokens[position - 1] if position else None
            if not run and before and before.lower in particles and before.is_capital:
                run = [before]
            run.append(token)
            held = []
        elif (
            run
            and len(held) < 3
            and (token.lower in particles or is_initial or is_capital_particle)
        ):
            held.append(token)
        elif run:
            yield _close(text, run, orgs)
            run, held = [], []
    if run:
        yield _close(text, run, orgs)


def _mark_organizations(text: str, tokens: Sequence[_Token], words: _Words) -> None:
    """Mark a head such as `GmbH` or `Banco` with the capitals beside it."""
    orgs = words.language.words("orgs")
    for position, token in enumerate(tokens):
        if token.lower not in orgs and token.lower + "." not in orgs:
            continue
        found = [token]
        for step in (-1, 1):
            other = position + step
            if step < 0 and not token.is_capital:
                continue
            while 0 <= other < len(tokens) and abs(other - position) <= _ORG_REACH:
                low, high = sorted((other, other - step))
                gap = text[tokens[low].end : tokens[high].start]
                is_name = tokens[other].is_capital and (
                    tokens[other].lower not in words.public
                    and tokens[other].lower not in words.titles
                )
                if not is_name or gap.strip(" .&-") or ". " in gap:
                    break
                found.append(tokens[other])
                other += step
        for one in found if len(found) > 1 else ():
            one.mark("ORG", 0.6)


def _close(text: str, run: Sequence[_Token], orgs: frozenset[str]) -> Found:
    """Type a run by its strongest word."""
    strongest = max(run, key=lambda token: token.confidence)
    is_org = any(token.lower in orgs for token in run)
    end = run[-1].end
    tail = _ORG_TAIL.match(text, end)
    if tail and strongest.kind in {"ORG", "ENTITY"}:
        end, is_org = tail.end(), True
    elif text.startswith(".", end) and run[-1].lower + "." in orgs:
        end += 1
    kind = "ORG" if is_org else strongest.kind
    start = run[0].start
    if kind in _OF_PEOPLE:
        if before := _INITIALS_BEFORE.search(text, max(0, start - 12), start):
            start = before.start()
        head = _ELIDED.search(text, max(0, start - 8), start)
        if head and head.group()[0].isupper() and not run[0].begins:
            start = head.start()
        if after := _INITIALS_AFTER.match(text, end):
            end = after.end()
    return start, end, kind, strongest.confidence
