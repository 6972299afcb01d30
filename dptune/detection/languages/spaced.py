"""Names in Arabic and Hindi, which have blanks between words and no capitals.

A name is what a list knows, what stands behind a title or a phrase such as "my name
is", and what stands beside a name. Words that are names and ordinary words at once
need such a neighbor.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dptune.detection.languages.namelike import likeness
from dptune.detection.languages.tables import Language, load
from dptune.detection.languages.values import Found, age_beside, any_of

_TOKENS = {
    "ar": re.compile("[\u0620-\u064a\u066e-\u06d3]{1,40}"),
    "hi": re.compile("[\u0900-\u0963\u0970-\u097f]{1,40}"),
}
_ARABIC_PREFIXES = ("وال", "بال", "فال", "كال", "لل", "و", "ف", "ب", "ل", "ك")
_REACH = 3
_VERB = ("ي", "ت", "سي", "ست")
_SIGNS = (",", "।", "(", "،", ".", ")", "-", ":")
_ENDS = (*_SIGNS, "!", "?", "؟", ";", "؛")
_MARKS_OF_CASE = frozenset(["ने", "को"])
_PLURAL = ("ों", "ओं", "ियां", "ता", "ते", "ती", "ना", "ने", "नी", "कर", "गा", "गी", "गे")
_CLASSES = (
    *("stop", "titles", "labels", "label_words", "roles", "nouns", "orgs", "doing"),
    *("orgs_before", "months", "weekdays", "of_people", "vocatives", "particles"),
    *("street_prefix", "street_suffix", "after_titles", "dwelling", "case_markers"),
)
_LIKENESS = {"hi": -35, "ar": 5}
_EASIER = 40
_SHORTEST = 3
_HOUSE = re.compile(r"[،,]?\s?(?:رقم\s)?\d{1,5}")


_INITIALS = {
    "ar": re.compile(
        r"(?<!\w)(?:[\u0621-\u064a]\.\s?){2,3}(?<!ص\.ب\.)(?:[\u0621-\u064a]{3,20}(?!\w))?"
        r"|(?<!\w)[ب-خذ-شض-ي]\.\s[\u0621-\u064a]{2,20}(?!\w)"
    ),
    "hi": re.compile(
        r"(?<![\u0900-\u097f])(?:(?:ए|बी|सी|डी|ई|एफ|जी|एच|आई|जे|के|एल|एम|एन|ओ|पी|क्यू|आर|एस|टी"
        r"|यू|वी|डब्ल्यू|एक्स|वाई|जेड|[अ-ह])\.\s?){1,3}(?:(?<=\.\s)|(?<=\.))"
        r"(?:[\u0900-\u097f]{2,20}(?![\u0900-\u097f]))?"
    ),
}
_AREA = "[^،,.;।؛\\d]{2,30}"
_ADDRESSES = {
    "ar": re.compile(
        r"(?<!\w)(?:شارع|طريق|حي|ميدان|جادة|زنقة|نهج|درب|عمارة|شقة|الشقة|فيلا|بناية)"
        rf"\s(?:{_AREA})?(?:[،,]?\s?(?:رقم|عدد|عمارة|شقة|بناية|مبنى|فيلا|طابق|قطعة|بلوك)?"
        rf"\s?\d{{1,5}}){{1,4}}(?:[،,]\s{_AREA}?(?=[،,.]|\sباسم|$)){{0,2}}"
    ),
    "hi": re.compile(
        r"(?:(?:मकान|फ्लैट|प्लाट|प्लॉट|घर|दुकान|कमरा|वार्ड|सेक्टर|ब्लाक|ब्लॉक)(?:\s(?:नंबर|नं\.?|संख्या"
        rf"|क्रमांक))?\s?\d{{1,5}}(?:[,]\s?(?:{_AREA})?\d{{0,6}}){{0,5}}"
        rf"|(?:ग्राम|गांव|मोहल्ला|वार्ड|पोस्ट|थाना|तहसील|जिला|जनपद)\s(?!(?:में|के|की|का|को|से|पर|और|है)(?!\w))[^,।;.\d\s]{{2,20}}"
        rf"(?:,\s?(?:ग्राम|पोस्ट|थाना|तहसील|जिला|जनपद)\s[^,।;.\d\s]{{2,20}}){{0,4}}"
        r"|(?<![\w-])(?:[ए-डA-Z]{1,2}|बी|सी|डी|एफ|जी)[-\s]?\d{1,4}(?:/\d{1,4})?"
        rf",\s?[^,।;\d]{{2,30}}"
        r"(?:,\s?[^,।;.\d\s]{2,20}){0,2}(?:[ -]\d{6})?"
        rf"|(?<=[:\s])\d{{1,4}}[,/]\s?[^,।\d]{{2,30}}\s(?:मार्ग|रोड|नगर|गली|कालोनी|कॉलोनी|विहार|पथ)"
        rf"(?:,\s?[^,।\s]{{2,20}}){{0,2}}(?:\s\d{{6}})?"
        r"|[\u0900-\u097f]{2,20}[\s-]{1,3}\d{6})(?!\d)"
    ),
}


@dataclass(kw_only=True)
class _Token:
    start: int
    end: int
    form: str
    kind: str = ""
    confidence: float = 0.0

    def mark(self, kind: str, confidence: float) -> None:
        """Call it a name; the stronger reason says of what."""
        if confidence > self.confidence:
            self.kind, self.confidence = kind, confidence


@lru_cache
def _cue(code: str) -> re.Pattern[str]:
    phrases = any_of(load(code).phrases("cues"))
    before = "[\u0620-\u06d3\u0900-\u0963]"
    return re.compile(rf"(?<!{before})(?:{phrases})(?!{before})[\s:：-]{{0,3}}")


@lru_cache
def _long_places(code: str) -> re.Pattern[str]:
    return re.compile(any_of(load(code).phrases("long_places")))


def find_spaced_names(text: str, code: str) -> Iterator[Found]:
    """Yield the names of an Arabic or a Hindi text.

    Args:
        text: in composed characters, Arabic without vowel signs.
        code: `ar` or `hi`.
    """
    language = load(code)
    tokens = [
        _Token(start=m.start(), end=m.end(), form=m.group())
        for m in _TOKENS[code].finditer(text)
    ]
    for position in range(len(tokens)):
        _mark_by_lists(text, tokens, position, language)
    by_start = {token.start: i for i, token in enumerate(tokens)}
    for match in _cue(code).finditer(text):
        first = by_start.get(match.end())
        if first is not None:
            _mark_from(text, tokens, first, language)
    for position, token in enumerate(tokens):
        if code == "ar":
            _mark_compound(text, tokens, position)
            _mark_called(text, tokens, position, language)
        else:
            _mark_doer(text, tokens, position, language)
        _mark_by_neighbors(text, tokens, position, token, language)
    _mark_by_looks(text, tokens, language)
    for match in _long_places(code).finditer(text):
        yield *match.span(), "GPE", 0.8
    for found in _runs(text, tokens):
        yield found
        if found[2] == "PERSON":
            yield from age_beside(text, found[1])
    for match in _INITIALS[code].finditer(text):
        yield *match.span(), "PERSON", 0.6
    for match in _ADDRESSES[code].finditer(text):
        yield *match.span(), "ADDRESS", 0.7


@lru_cache
def _classed(code: str) -> frozenset[str]:
    """Return the words that lists know as no names."""
    return frozenset[str]().union(*map(load(code).words, _CLASSES))


def _is_classed(token: _Token, language: Language) -> bool:
    return token.form in _classed(language.code)


def _mark_by_looks(text: str, tokens: Sequence[_Token], language: Language) -> None:
    """Mark words of no class that look like names; less is asked beside a name."""
    known = _classed(language.code)
    for position, token in enumerate(tokens):
        forms = _forms(token.form, language.code)
        if token.kind or len(token.form) < _SHORTEST or not known.isdisjoint(forms):
            continue
        after = tokens[position + 1].form if position + 1 < len(tokens) else ""
        score = max(likeness(form, language.code) for form in forms)
        least = _LIKENESS[language.code]
        if language.code == "hi" and after in _MARKS_OF_CASE:
            least -= _EASIER
        begins = not position or text[: token.start].rstrip(" ").endswith(_ENDS)
        if begins and language.code == "hi":
            least -= _EASIER // 2
        if score >= least and not token.form.endswith(_PLURAL):
            token.mark("PERSON", 0.5)


def _forms(form: str, code: str) -> list[str]:
    """Return a word, and in Arabic what is left without a prefix."""
    forms = [form]
    if code == "ar":
        for prefix in _ARABIC_PREFIXES:
            rest = form.removeprefix(prefix)
            if rest != form and len(rest) > 2:
                forms.append(rest if len(prefix) < 2 else "ال" + rest)
    return forms


def _is_in(form: str, names: frozenset[str], language: Language) -> bool:
    return any(f in names for f in _forms(form, language.code))


def _mark_by_lists(
    text: str, tokens: Sequence[_Token], position: int, language: Language
) -> None:
    """Mark given names and places that are no other words."""
    token = tokens[position]
    lists = language.words
    if token.form in lists("stop") or token.form in lists("titles"):
        return
    is_sure = not _is_in(token.form, lists("ambiguous"), language)
    if is_sure and _is_in(token.form, lists("given"), language):
        token.mark("PERSON", 0.75)
    elif _is_in(token.form, lists("places"), language) and (
        is_sure
        or any(
            _is_in(other.form, lists("dwelling"), language)
            for other in tokens[max(0, position - 2) : position]
        )
    ):
        token.mark("GPE", 0.7)
    elif _is_in(token.form, lists("surnames"), language) and position > 0:
        before = tokens[position - 1]
        is_beside = text[before.end : token.start] == " " and not (
            before.form in lists("stop") | lists("titles") | lists("labels")
            or before.kind == "GPE"
        )
        if is_beside and (language.code == "hi" or before.kind):
            before.mark("PERSON", 0.65)
            token.mark("PERSON", 0.75)


def _mark_by_neighbors(
    text: str, tokens: list[_Token], position: int, token: _Token, language: Language
) -> None:
    """Mark names by titles, particles, heads of organizations and streets."""
    lists = language.words
    title = next(
        (f for f in _forms(token.form, language.code) if f in lists("titles")), ""
    )
    if title and (
        title not in lists("weak_titles") or _is_named(tokens, position + 1, language)
    ):
        _mark_from(text, tokens, position + 1, language)
    if token.form in lists("roles") or _forms(token.form, language.code)[-1] in lists(
        "roles"
    ):
        _mark_after_role(text, tokens, position + 1, language)
    if token.form in lists("after_titles") and position > 0:
        before = tokens[position - 1]
        if before.form not in lists("stop"):
            before.mark("PERSON", 0.8)
    if token.kind == "PERSON" and position + 1 < len(tokens):
        after = tokens[position + 1]
        gap = text[token.end : after.start]
        if gap == " " and _may_follow(after.form, language):
            after.mark("PERSON", 0.7)
    if token.form in lists("orgs_before"):
        _mark_head(text, tokens, position, language, kind="ORG")
    if token.form in lists("street_prefix"):
        _mark_head(text, tokens, position, language, kind="ADDRESS")
    is_last = token.form in lists("orgs") or token.form in lists("street_suffix")
    if is_last and position > 0 and not token.kind:
        before = tokens[position - 1]
        if text[before.end : token.start] == " " and not _is_public(before, language):
            kind = "ORG" if token.form in lists("orgs") else "ADDRESS"
            before.mark(kind, 0.6)
            token.mark(kind, 0.6)
            first = tokens[position - 2] if position > 1 else before
            if text[first.end : before.start] == " " and not _is_classed(
                first, language
            ):
                first.mark(kind, 0.6)


def _mark_compound(text: str, tokens: Sequence[_Token], position: int) -> None:
    """Mark Arabic names of two words, such as `عبد المجيد`, `عوض الله`, `نور الدين`."""
    if position + 1 >= len(tokens):
        return
    token, after = tokens[position], tokens[position + 1]
    if text[token.end : after.start] != " ":
        return
    language = load("ar")
    head = _forms(token.form, "ar")
    is_compound = (
        (after.form == "الله" and not language.words("of_god").isdisjoint(head))
        or (after.form == "الدين" and not language.words("of_faith").isdisjoint(head))
        or ("عبد" in head and after.form.startswith("ال") and len(after.form) > 3)
    )
    if is_compound:
        token.mark("PERSON", 0.8)
        after.mark("PERSON", 0.8)


def _mark_called(
    text: str, tokens: list[_Token], position: int, language: Language
) -> None:
    """Mark Arabic names behind `O`, `I am` and `father of`, listed or not."""
    lists = language.words
    if position + 1 >= len(tokens):
        return
    token, after = tokens[position], tokens[position + 1]
    if text[token.end : after.start] != " " or after.form in lists("titles"):
        return
    ends = not text[after.end : after.end + 1].strip(" ") or text[after.end] in "،,!؟."
    is_open = after.form not in lists("stop") | lists("vocatives")
    is_called = token.form == "يا" and is_open and (ends or len(after.form) > 2)
    if is_called and text[after.end : after.end + 1] not in {"،", "!", "؟", "."}:
        is_called = _is_named(tokens, position + 1, language)
    is_listed = _is_named(tokens, position + 1, language)
    doing = _forms(token.form, "ar")[:2]
    if not lists("doing").isdisjoint(doing) and is_listed:
        after.mark("PERSON", 0.65)
    if token.form in {"ابو", "ابي", "ابا"} and is_open:
        token.mark("PERSON", 0.75)
        after.mark("PERSON", 0.75)
    elif token.form == "ام" and is_listed:
        token.mark("PERSON", 0.6)
        after.mark("PERSON", 0.7)
    elif is_called or (token.form in {"انا", "معك", "هنا"} and is_listed):
        after.mark("PERSON", 0.7)


def _mark_doer(
    text: str, tokens: list[_Token], position: int, language: Language
) -> None:
    """Mark Hindi names by what only people do: act, be born, speak, have a wife."""
    lists = language.words
    form = tokens[position].form
    after = tokens[position + 1].form if position + 1 < len(tokens) else ""
    is_owner = form in {"का", "की", "के"} and after in lists("of_people")
    if form == "मैं" and position + 2 < len(tokens):
        last = tokens[position + 2]
        if text[last.end : last.end + 1] == "," and not any(
            _is_classed(t, language) for t in tokens[position + 1 : position + 3]
        ):
            tokens[position + 1].mark("PERSON", 0.6)
            last.mark("PERSON", 0.6)
    if form in {"को", "ने"} and position > 0:
        left = tokens[position - 1]
        gap = text[left.end : tokens[position].start]
        is_first = position == 1 or text[: left.start].rstrip(" ").endswith(_SIGNS)
        if (
            form != "से"
            and is_first
            and gap == " "
            and _is_named(tokens, position - 1, language)
        ):
            left.mark("PERSON", 0.6)
    if form != "ने" and not is_owner and not (form == "बोल" and after.startswith("रह")):
        return
    nouns = lists("nouns") | lists("stop") | lists("titles") | lists("roles")
    nouns |= lists("labels") | lists("label_words") | lists("orgs") | lists("places")
    for step in range(1, _REACH):
        before = position - step
        if before < 0 or text[tokens[before].end : tokens[before + 1].start] != " ":
            return
        word = tokens[before].form
        if word in nouns or word.endswith(("ों", "ओं")):
            return
        tokens[before].mark("PERSON", 0.6)


def _is_named(tokens: Sequence[_Token], position: int, language: Language) -> bool:
    """Tell whether a listed name, ambiguous or not, stands at a place."""
    names = language.words("given") | language.words("surnames")
    return position < len(tokens) and _is_in(tokens[position].form, names, language)


def _is_public(token: _Token, language: Language) -> bool:
    lists = language.words
    return token.form in lists("stop") | lists("label_words") | lists("labels")


def _may_follow(form: str, language: Language) -> bool:
    """Tell whether a word behind a given name belongs to the name."""
    lists = language.words
    if form in lists("stop"):
        return False
    if form in lists("surnames") | lists("given") | lists("particles"):
        return True
    is_nisba = form.startswith("ال") and form.endswith("ي") and len(form) > 4
    return language.code == "ar" and (is_nisba or form.startswith("عبد"))


def _mark_from(text: str, tokens: list[_Token], first: int, language: Language) -> None:
    """Mark a name from a place on: two words of no class, more if lists know them."""
    lists = language.words
    marked = 0
    for position in range(first, min(first + _REACH + 2, len(tokens))):
        token = tokens[position]
        gap = text[tokens[position - 1].end : token.start]
        if position and gap.strip(" .॰" if position > first else " .:：॰،,") != "":
            return
        if not marked and token.form in lists("titles"):
            continue
        if token.form in lists("particles"):
            token.mark("PERSON", 0.8)
            marked = min(marked, 1)
            continue
        is_verb = token.form.startswith("و") and not _is_in(
            token.form, lists("given") | lists("surnames"), language
        )
        if _is_public(token, language) or (marked and is_verb):
            return
        if marked > 1 and not _may_follow(token.form, language):
            return
        token.mark("PERSON", 0.8)
        marked += 1


def _mark_after_role(
    text: str, tokens: list[_Token], first: int, language: Language
) -> None:
    """Mark a name behind a word such as `driver`, where nothing else can stand.

    In Hindi a name ends before a word that marks its case, or a sign.
    """
    lists = language.words
    last = first
    while last < len(tokens) and last - first < _REACH:
        gap = text[tokens[last - 1].end : tokens[last].start]
        signs = " " if last > first else " :،,"
        if gap.strip(signs) or _is_public(tokens[last], language):
            break
        last += 1
    found = tokens[first:last]
    if not found or len(found) >= _REACH:
        return
    if language.code == "ar":
        is_adjective = found[0].form.startswith("ال")
        if is_adjective and not _is_named(tokens, first, language):
            return
        found = [t for t in found[:1] if not t.form.startswith(_VERB)] + [
            t for t in found[1:] if not t.form.startswith((*_VERB, "و"))
        ]
    else:
        after = tokens[last].form if last < len(tokens) else ""
        sign = text[found[-1].end : found[-1].end + 2].strip()
        if after not in lists("case_markers") and not sign.startswith(_SIGNS):
            return
    for token in found:
        token.mark("PERSON", 0.65)


def _mark_head(
    text: str,
    tokens: list[_Token],
    position: int,
    language: Language,
    *,
    kind: str,
) -> None:
    """Mark a head such as `street` with up to two words of its name behind it."""
    last = position
    for after in range(position + 1, min(position + 3, len(tokens))):
        token = tokens[after]
        if text[tokens[after - 1].end : token.start] != " ":
            break
        is_name = token.form in language.words("particles")
        if (_is_public(token, language) and not is_name) or token.form.startswith("و"):
            break
        token.mark(kind, 0.6)
        last = after
    if last > position:
        tokens[position].mark(kind, 0.6)


def _runs(text: str, tokens: Sequence[_Token]) -> Iterator[Found]:
    """Join neighbors of one kind, and a house number to its street."""
    run: list[_Token] = []
    for token in tokens:
        if run and (
            token.kind != run[-1].kind
            or text[run[-1].end : token.start].strip(" .॰-") != ""
        ):
            yield _close(text, run)
            run = []
        if token.kind:
            run.append(token)
    if run:
        yield _close(text, run)


def _close(text: str, run: Sequence[_Token]) -> Found:
    end = run[-1].end
    if run[0].kind == "ADDRESS" and (house := _HOUSE.match(text, end)):
        end = house.end()
    return run[0].start, end, run[0].kind, max(token.confidence for token in run)
