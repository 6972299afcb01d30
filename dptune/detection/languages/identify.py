"""Says which language a text is in, sentence by sentence.

Scripts decide where they can; then function words; then, for what these do not tell,
`py3langid` (naive Bayes over byte n-grams, 97 languages, no network). A sentence
without evidence of its own is taken for what the sentences around it are. A short text
without any evidence, such as a bare name, is `UNDETERMINED`: the English lexicon judges
it, to which every foreign word is unknown, and so a name.

Everything follows from the one text and public files.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from dptune.detection import words as w
from dptune.detection.languages.tables import (
    CASED,
    LANGUAGES,
    load,
    plain,
    read_data,
)
from dptune.detection.recognizer import PLACEHOLDER

ENGLISH: Final = "en"
UNDETERMINED: Final = "und"

_OTHER_SCRIPT = re.compile(
    "[\u0370-\u1dff\u1f00-\u1fff\u2c00-\u2dff\u3005-\u3007\u3041-\ud7ff\uf900-\ufaff"
    "\ufb1d-\ufdff\ufe70-\ufefc\uff66-\uffdc\U00010000-\U0001bfff\U00020000-\U0003ffff]"
)
_SCRIPTS: Final = tuple(
    (name, re.compile(f"[{ranges}]"))
    for name, ranges in {
        "hira": "\u3041-\u30ff\uff66-\uff9f",
        "hani": "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff",
        "arab": "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufefc",
        "deva": "\u0900-\u097f",
        "cyrl": "\u0400-\u052f",
        "el": "\u0370-\u03ff\u1f00-\u1fff",
        "he": "\u0590-\u05ff\ufb1d-\ufb4f",
        "bn": "\u0980-\u09ff",
        "pa": "\u0a00-\u0a7f",
        "gu": "\u0a80-\u0aff",
        "or": "\u0b00-\u0b7f",
        "ta": "\u0b80-\u0bff",
        "te": "\u0c00-\u0c7f",
        "kn": "\u0c80-\u0cff",
        "ml": "\u0d00-\u0d7f",
        "si": "\u0d80-\u0dff",
        "th": "\u0e00-\u0e7f",
        "lo": "\u0e80-\u0eff",
        "bo": "\u0f00-\u0fff",
        "my": "\u1000-\u109f",
        "ka": "\u10a0-\u10ff",
        "am": "\u1200-\u137f",
        "km": "\u1780-\u17ff",
        "hy": "\u0530-\u058f",
        "ko": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7ff",
    }.items()
)
_PARTS = re.compile(
    r"(?:[^.!?\n。！？।؟۔]|[.!?](?=[^\s.!?]))+[.!?\n。！？।؟۔]*\s*|[.!?\n。！？।؟۔]+\s*"
)
_WORD = re.compile(r"[^\W\d_]+")
_DEVANAGARI_WORD = re.compile("[\u0900-\u0963]+")
_ARABIC_WORD = re.compile("[\u0620-\u064a\u066e-\u06d3]+")
_LETTERS_OF: Final = {
    "ä": "de", "ö": "de tr", "ü": "de tr", "ß": "de", "ñ": "es", "¿": "es", "¡": "es",
    "ã": "pt", "õ": "pt", "ł": "pl", "ż": "pl", "ź": "pl", "ś": "pl", "ć": "pl",
    "ń": "pl", "ę": "pl", "ą": "pl", "ğ": "tr", "ş": "tr", "ı": "tr", "è": "fr it",
    "ê": "fr pt", "œ": "fr", "û": "fr", "ù": "fr it", "ò": "it", "ì": "it",
    "ç": "fr pt tr", "ó": "es pt pl", "ú": "es pt", "á": "es pt", "í": "es pt",
}  # fmt: skip
_PERSIAN_OR_URDU = re.compile("[پچژگکیٹڈڑےںہھ]")
_FEWEST_HITS = 1.3
_LEAST_LEAD = 1.15
_HIT_SHARE = 0.12
_LETTER_WEIGHT = 0.4
_FEWEST_WORDS = 4
_STRANGE_SHARE = 0.6
_STRANGE_LEAD = 1.6
_FEWEST_LETTERS = 16
_LONGEST_NAME = 6
_STOPS = (".", "!", "?", "…", ",")
_ENDS = (".", "!", "؟", "?", "।")
_CLOSE = 0.5
_AMBIGUOUS = 0.5
_FEW_HITS = 0.35
_ONE_HIT = 0.9
_FEW_WORDS = 16
_NEAR = {
    "gl": ("pt", "es"),
    "ca": ("es", "fr"),
    "oc": ("fr", "es"),
    "an": ("es",),
    "ast": ("es",),
    "lb": ("de",),
    "gsw": ("de",),
    "fy": ("nl",),
    "af": ("nl",),
    "az": ("tr",),
}
_OPEN = (UNDETERMINED, ENGLISH)
_LIKELY = (ENGLISH, *CASED, "sv", "da", "no", "fi", "cs", "sk", "ro", "hu", "hr", "id")
_LABEL = re.compile(r"([^\W\d_]{2,30})\s?:")
_SHORT = 160
_SIGNS = ".,;:!?()\"'"
_FEW_STRANGE = 4
_FEWEST_HINTS = 8
_LEAD_OF_LETTERS = 12.0
_MARKED_WORD = re.compile(r"[^\W\d_]|[\u0900-\u0963]")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f]")
_IDEOGRAPHS = re.compile("[\u3041-\u9fff\uf900-\ufaff]")
_JAPANESE_WORD = re.compile(
    "番号|様|氏名|差出|受取|送信者|発信者|世帯主|続柄|株式|従業|担当|御中|宛|〒|丁目|番地|令和|平成|昭和|生年月日|連絡先"
    "|出席者|議事録|欠席|住所|名義|勤務先|携帯|予約|申込|受付|見積|請求書|領収|部長|課長|宅配|卒業|宿泊|記録|訪問先"
    "|[込沢戸気峠抜郷黒広滝蔵豊栄関売楽読払堀稲恵総鉄焼発実薬竜辺歩桜団掻経篭転曽県悪戻軽穂亀増廻駆観伝円図笹咲継覚仏労脇絵揺撃"
    "児糸帰続両頼巣隠辻縁専帯弾騒遅雑汚渕歯権応縄様萩酔捩対姫駅厳霊荘疎呉噛懐嶋険呑拝斎氷黙舎渋浄検働畳営扱悩値剣髪隈釈栃従廃"
    "聴圧寛銭歳単砕駄囲顕隣譲榎醍醐訳捜庁苅楢処惣価勧捗喰碆繋鉱揃歴鶏俵鉾砲闘搾斉鋳脳渓菓験兎摂痩匂毎冴覧壷窓槙徴暁薫渇歓呪妬"
    "賎醸挿拠侘讃埼錬獣辿堺壱諌勅瑠縦拡竃毘袴倶暦勲粧蝿]"
)
_PARTICLE = re.compile(
    "[\u3400-\u9fffァ-ヶー々][はがをにでへとのも]|です|ます|した|して|ください|ません|から"
    "|[ァ-ヺ]{2,12}[:：]|お客様|氏名|番号|様|こんにちは|より|ため|こと|もの|まで|という"
)
_HIRAGANA = re.compile("[\u3041-\u3096]")
_HAN = re.compile("[\u3400-\u9fff]")
_LONGEST_JAPANESE_NAME = 9
_OF_ARABIC = ("ar", "fa", "ur", "ps", "ug", "ku")
Scores = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Part:
    """A range of a text that is in one language.

    Args:
        start, end: code points.
        language: ISO 639-1, or `UNDETERMINED`.
    """

    start: int
    end: int
    language: str


@lru_cache(maxsize=1)
def _tables() -> tuple[frozenset[str], frozenset[str], dict[str, tuple[str, ...]]]:
    """Return English function words, those of others alone, and whose each word is."""
    readings = w.load_lexicon().readings
    closed = (x for x, bits in readings.items() if bits & w.CLOSED and len(x) > 1)
    english = frozenset(read_data("en")["stop"].split()) | frozenset(closed)
    owners: dict[str, list[str]] = {}
    for code in CASED:
        for word in load(code).words("stop") | load(code).words("greet"):
            owners.setdefault(word, []).append(code)
    for word in english:
        owners.setdefault(word, []).append(ENGLISH)
    foreign = frozenset(
        word
        for word, codes in owners.items()
        if ENGLISH not in codes and len(word) > 1 and not w.reading_of(word) & w.LEXICAL
    )
    return english, foreign, {word: tuple(codes) for word, codes in owners.items()}


@lru_cache(maxsize=2048)
def parts_of(text: str) -> tuple[Part, ...]:
    """Cut a text into ranges of one language each.

    >>> [part.language for part in parts_of("The bill is paid. Ich habe es nicht.")]
    ['en', 'de']

    Args:
        text: one record.

    Returns:
        ranges that cover the text, in order; neighbors differ.
    """
    if "<" in text:
        text = PLACEHOLDER.sub(lambda match: " " * len(match.group()), text)
    if text.isascii() or not _OTHER_SCRIPT.search(text):
        words = text.lower().split()
        english, foreign, _ = _tables()
        strange = sum(map(foreign.__contains__, words))
        usual = sum(map(english.__contains__, words))
        is_english = usual > 8 * strange and usual * 5 >= len(words)
        if is_english and len(words) <= _FEW_WORDS:
            known = sum(bool(w.reading_of(x.strip(_SIGNS)) & w.LEXICAL) for x in words)
            is_sure = known * _FEW_STRANGE > len(words) * (_FEW_STRANGE - 1)
            scored = list(_scored(text)) if not is_sure else []
            is_english = is_sure or {p.language for p in _joined(text, scored)} == {
                UNDETERMINED
            }
        if is_english:
            return (Part(start=0, end=len(text), language=ENGLISH),)
    return tuple(_joined(text, list(_scored(text))))


def language_of(text: str) -> str:
    """Return the language that most letters of a text are in."""
    parts = parts_of(text)
    if len(parts) == 1:
        return parts[0].language
    sizes: Counter[str] = Counter()
    for part in parts:
        sizes[part.language] += sum(map(str.isalpha, text[part.start : part.end]))
    return max(sizes.items(), key=lambda item: (item[1], item[0]))[0]


def languages_of(texts: Iterable[str]) -> list[str]:
    """Return the language of each text; what is too short counts with the most.

    >>> languages_of(["Where is the bill?", "OK", "I have paid it."])
    ['en', 'en', 'en']

    Args:
        texts: of one corpus.
    """
    found = [language_of(text) for text in texts]
    sizes = Counter(code for code in found if code != UNDETERMINED)
    most = max(sizes, key=lambda code: (sizes[code], code), default=ENGLISH)
    return [most if code == UNDETERMINED else code for code in found]


def _scored(text: str) -> Iterator[tuple[Part, Scores]]:
    """Yield sentences: of a script that decides, or with scores of languages."""
    is_long = len(_OTHER_SCRIPT.findall(text)) >= _FEWEST_LETTERS
    for match in _PARTS.finditer(text):
        sentence = match.group()
        found = _script(sentence, is_long=is_long)
        part = Part(start=match.start(), end=match.end(), language=found)
        yield part, {} if found else _hits(sentence)


def _joined(text: str, scored: list[tuple[Part, Scores]]) -> Iterator[Part]:
    """Decide what is open by the whole text, and join neighbors of one language."""
    totals: Scores = {}
    for _, scores in scored:
        for code, score in scores.items():
            totals[code] = totals.get(code, 0.0) + score
    latin = "".join(text[p.start : p.end] for p, _ in scored if not p.language)
    main = _main(latin, totals) if latin else UNDETERMINED
    start = 0
    last = ""
    for part, scores in scored:
        found = part.language or _best(scores, main) or main
        if found == UNDETERMINED and len(text[part.start : part.end].strip(" .")) < 2:
            found = last
        if last and found != last:
            yield Part(start=start, end=part.start, language=last)
            start = part.start
        last = found
    yield Part(start=start, end=len(text), language=last or UNDETERMINED)


def _best(scores: Scores, main: str) -> str:
    """Return the language of a sentence if it leads; nothing if it does not."""
    if main not in (*CASED, ENGLISH):
        return ""
    ranked = sorted(scores, key=lambda code: (-scores[code], code))
    if not ranked or scores[ranked[0]] < _FEWEST_HITS:
        return ""
    second = scores[ranked[1]] if len(ranked) > 1 else 0.0
    lead = _LEAST_LEAD if ranked[0] == main else _STRANGE_LEAD
    return ranked[0] if scores[ranked[0]] >= lead * max(second, 1e-9) else ""


def _main(text: str, totals: Scores) -> str:
    """Return the language of a text in Latin letters as a whole."""
    found = _by_words(text, totals)
    if found in _OPEN or (found in CASED and len(text) <= _SHORT):
        return _by_letters(text, found)
    return found


def _by_letters(text: str, decided: str) -> str:
    """Let the letters speak where words are too few, among the likely languages.

    A word in lower case or a label that English does not know must be there: the
    library has an answer for bare names too, and no reason.
    """
    small = [x for x in _WORD.findall(text) if x.islower() and len(x) > 2]
    labels = [x.lower() for x in _LABEL.findall(text)]
    strange = sum(map(_is_strange, (*small, *labels)))
    least = len(small) / _FEW_STRANGE if decided == ENGLISH else 1
    if strange < max(1, least) or sum(map(str.isalpha, text)) < _FEWEST_HINTS:
        return decided
    import py3langid  # noqa: PLC0415  # its table takes a second to read

    weights = {str(code): float(score) for code, score in py3langid.rank(text)}
    best = max(_LIKELY, key=lambda code: weights[code])
    over = weights.get(decided, weights[ENGLISH])
    lead = weights[best] - (over if decided in CASED else weights[ENGLISH])
    return best if best in CASED and lead >= _LEAD_OF_LETTERS else decided


def _is_strange(word: str) -> bool:
    """Tell whether a word is neither English nor a part of names, such as `de la`."""
    is_part = any(word in load(code).words("particles") for code in CASED)
    return not (is_part or w.reading_of(word) & w.LEXICAL)


def _by_words(text: str, totals: Scores) -> str:
    """Return the language that the words of a text speak for.

    The library is asked only about running text: words in lower case, few of which
    English knows. It has an answer for lists of names and codes too, and no reason.
    """
    found = _WORD.findall(text)
    small = [word for word in found if word.islower() and len(word) > 1]
    strange = sum(not w.reading_of(word) & w.LEXICAL for word in small)
    best = max(totals, key=lambda code: (totals[code], code), default=ENGLISH)
    score = totals.get(best, 0.0)
    is_clear = score >= _FEWEST_HITS and score >= _HIT_SHARE * len(small)
    if best == ENGLISH and 2 * strange < len(small):
        return ENGLISH if is_clear else _english_or_open(small, strange)
    asked = _ask(text)
    if asked in _NEAR and len(found) < _FEW_WORDS:
        asked = max(_NEAR[asked], key=lambda code: totals.get(code, 0.0))
    _, _, owners = _tables()
    usual = totals.get(ENGLISH, 0.0)
    ends = text.rstrip().endswith(_STOPS)
    is_listing = not ends and "\n" in text.strip()
    least_own = 3 if is_listing else 1
    own = _own_words(found, asked)
    is_running = any(word not in owners for word in small) and (
        own > 1 or 2 * strange >= len(small)
    )
    is_sentence = (is_running and own >= least_own) or (ends and not usual)
    least = max(_FEW_HITS, _CLOSE * score, usual * (1.0 if strange < 2 else 0.6))
    if is_sentence and totals.get(asked, 0.0) >= least:
        return asked
    own = _own_words(found, best)
    if asked == UNDETERMINED and own and small and not usual and score >= _ONE_HIT:
        return best
    is_clear = is_clear and own >= least_own
    is_clear = is_clear and (own > 1 or len(found) < 2 * _FEWEST_WORDS)
    if is_clear and (asked in (*LANGUAGES, UNDETERMINED) or score >= len(small) / 2):
        return best
    is_strange = strange > _FEWEST_WORDS and strange >= _STRANGE_SHARE * len(small)
    is_english = usual * 6 > len(found) or asked == ENGLISH
    is_prose = not is_listing and len(text.split()) > _FEWEST_WORDS
    if is_strange and is_prose and not is_english:
        return asked
    return _english_or_open(small, strange)


def _own_words(found: list[str], code: str) -> int:
    """Count the function words of a language; one in capitals must be longer."""
    _, _, owners = _tables()
    own = {
        x.lower()
        for x in found
        if x.islower()
        or not (len(x) < 3 or x.isupper() or w.reading_of(x.lower()) & w.LEXICAL)
    }
    return sum(code in owners.get(word, ()) for word in own)


def _english_or_open(small: list[str], strange: int) -> str:
    """Call a text English if it knows most of five words in lower case."""
    if len(small) >= _FEWEST_WORDS and 2 * strange < len(small):
        return ENGLISH
    return UNDETERMINED


def _ask(text: str, allowed: tuple[str, ...] = ()) -> str:
    """Ask the library about a text with at least twenty letters.

    Args:
        text: of one language.
        allowed: the only languages that it can be; empty for any.
    """
    if sum(map(len, _MARKED_WORD.findall(text))) < _FEWEST_LETTERS:
        return UNDETERMINED
    import py3langid  # noqa: PLC0415  # its table takes a second to read

    if not allowed:
        return str(py3langid.classify(text)[0])
    ranked = (str(code) for code, _ in py3langid.rank(text))
    return next((code for code in ranked if code in allowed), UNDETERMINED)


def _script(sentence: str, *, is_long: bool) -> str:
    """Return the language that a script decides; nothing for Latin letters.

    Args:
        sentence: of a text.
        is_long: the text has enough letters that are not Latin to be no bare name.
    """
    if not (found := _OTHER_SCRIPT.findall(sentence)):
        return ""
    joined = "".join(found)
    weight = 3 if _IDEOGRAPHS.search(joined) else 1
    latin = _LATIN.findall(sentence)
    if len(latin) > weight * len(found):
        return ""
    sizes = {name: len(chars.findall(joined)) for name, chars in _SCRIPTS}
    name = max(sizes, key=lambda key: sizes[key])
    if sizes["hira"] and name == "hani":
        name = "hira"
    if name in _SHARED:
        return _SHARED[name](sentence)
    return name if is_long and sizes[name] else UNDETERMINED


def _chinese(sentence: str) -> str:
    """Tell running Chinese from a bare name, by its length or a function character."""
    if _JAPANESE_WORD.search(sentence):
        return "ja"
    functional = load("zh").texts["function_chars"]
    is_running = len(sentence) >= _LONGEST_NAME or any(
        c in functional for c in sentence
    )
    return "zh" if is_running else UNDETERMINED


def _japanese(sentence: str) -> str:
    """Tell running Japanese from a bare name, by its length or its particles."""
    is_mixed = _HIRAGANA.search(sentence) and _HAN.search(sentence)
    if is_mixed and len(sentence) > _LONGEST_JAPANESE_NAME:
        return "ja"
    return "ja" if _PARTICLE.search(sentence) else UNDETERMINED


def _arabic(sentence: str) -> str:
    """Tell Arabic from Persian and Urdu by their letters."""
    if len(_PERSIAN_OR_URDU.findall(sentence)) * 12 > len(sentence):
        return _ask(sentence, ("fa", "ur", "ps", "ug", "ku"))
    return _by_function_words(sentence, "ar", _ARABIC_WORD)


def _devanagari(sentence: str) -> str:
    """Tell Hindi from Marathi and Nepali by function words."""
    words = set(_DEVANAGARI_WORD.findall(sentence))
    for code, name in (("mr", "marathi"), ("ne", "nepali")):
        if len(words & load("hi").words(name)) > 1:
            return code
    return _by_function_words(sentence, "hi", _DEVANAGARI_WORD)


def _by_function_words(sentence: str, code: str, word: re.Pattern[str]) -> str:
    """Return the language if function words of it are there, and else ask.

    Four words, or three and a full stop, are running text if the library says so and
    few of them are listed names.
    """
    found = word.findall(plain(sentence, code)[0])
    lists = load(code).words
    public = lists("stop") | lists("titles") | lists("labels") | lists("label_words")
    hits = sum(x in public for x in found)
    if hits and hits * 8 >= len(found):
        return code
    named = lists("given") | lists("surnames")
    ends = sentence.rstrip().endswith(_ENDS)
    if len(found) < (_FEWEST_WORDS - 1 if ends else _FEWEST_WORDS):
        return UNDETERMINED
    if sum(word in named for word in found) * (3 if ends else 6) > len(found):
        return UNDETERMINED
    if code == "hi" and len(found) <= _LONGEST_NAME:
        return code
    return _ask(sentence, _OF_ARABIC if code == "ar" else ("hi", "mr", "ne"))


def _cyrillic(sentence: str) -> str:
    return _ask(sentence, ("ru", "uk", "bg", "sr", "be", "mk", "kk", "ky", "mn"))


_SHARED: Final[dict[str, Callable[[str], str]]] = {
    "hani": _chinese,
    "hira": _japanese,
    "arab": _arabic,
    "deva": _devanagari,
    "cyrl": _cyrillic,
}


def _hits(sentence: str) -> Scores:
    """Count function words and letters of each language; shared ones count less."""
    _, _, owners = _tables()
    scores: Scores = {}
    lowered = sentence.lower()
    for word in _WORD.findall(lowered):
        codes = owners.get(word, ())
        for code in codes:
            weight = len(codes) ** -0.5
            if code != ENGLISH and w.reading_of(word) & w.LEXICAL:
                weight *= _AMBIGUOUS
            scores[code] = scores.get(code, 0.0) + weight
    for letter in set(lowered) & _LETTERS_OF.keys():
        for code in _LETTERS_OF[letter].split():
            scores[code] = scores.get(code, 0.0) + _LETTER_WEIGHT
    return scores
