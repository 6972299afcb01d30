"""Names in Chinese and Japanese, which have neither blanks nor capitals.

A Chinese name is a family name and one or two characters that given names are made of;
alone it needs both of them, one needs a title or a phrase beside it. A Japanese name
is a family name of the list with what follows it, or whatever stands before `san` and
other titles. Words that begin alike, such as `高兴`, are in a list of their own.

What none of this tells is cut into words and names by the cheapest path. Every word of
a dictionary costs what its rarity is worth, and so does a name: in Chinese a family
name and the characters that given names are made of, in Japanese a listed family name,
given name or place. What no path of words explains as cheaply is a name, so that a new
name needs no list, and a word such as `顺利` is none in `过程顺利`.

References:
    Chang, Chen, Chen, Gao, Hsu, Hwang, Jiang, Lin, Su (1992), "A multiple-corpus
    approach to recognition of proper names in Chinese texts"; costs are those of jieba
    0.42.1 (MIT) and of IPADIC 2.7.0 as in Janome 0.5.0 (Apache-2.0, NAIST).
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from dptune.detection.languages.tables import load, read_bytes
from dptune.detection.languages.values import Found, age_beside, any_of

_RUNS = {
    "zh": re.compile("[\u3400-\u9fff]{2,200}"),
    "ja": re.compile("[\u3400-\u9fff\uf900-\ufaff々〆ヶケ]{2,200}"),
}
_NO_NAMES = frozenset("一二三四五六七八九十百千万年月日時分名円号第兆億")
_TOWARDS = frozenset("在到去回住往从赴抵")
_LONGEST_WORD = 6
_UNKNOWN = {"zh": 190, "ja": 90}
_NAME = 35
_SHORT_NAME = 10
_RARE_CHARACTER = 110
_EACH = 30
_FAMILY = -35
_GIVEN = -25
_GIVEN_AFTER_FAMILY = -60
_PLACE = -5
_FAR = 1 << 30
Step = tuple[int, int, str]
"""Length, cost and class of what may stand at a place; no class for a word."""


_Steps = Callable[[str, int, str, "_Costs", str], Iterator[Step]]


@dataclass(frozen=True, kw_only=True)
class _Costs:
    """Costs by word, of each class of words."""

    tables: Mapping[str, Mapping[str, int]]
    no_given: frozenset[str]


@lru_cache
def _costs(code: str) -> _Costs:
    raw = json.loads(gzip.decompress(read_bytes(f"{code}_words.json.gz")))
    tables = {
        name: {word: int(cost) for cost, words in by.items() for word in words.split()}
        for name, by in raw.items()
    }
    language = load(code)
    for title in language.words("titles_after") | language.words("roles"):
        if len(title) > 1:
            tables["words"].setdefault(title, 90 if code == "zh" else 40)
    return _Costs(
        tables=tables,
        no_given=frozenset(language.texts.get("function_chars", ""))
        | set("哥姐嫂婶叔"),
    )


def is_word(word: str, code: str) -> bool:
    """Tell whether the dictionary of a language has a word."""
    return word in _costs(code).tables["words"]


def find_segmented_names(text: str, code: str) -> Iterator[tuple[int, int, str]]:
    """Yield start, end and class of what the cheapest path calls a person or a place.

    Args:
        text: in composed characters.
        code: `zh` or `ja`.
    """
    steps = _chinese_steps if code == "zh" else _japanese_steps
    spots = _costs(code).tables.get("spots", {})
    for match in _RUNS[code].finditer(text):
        follows = text[match.end() : match.end() + 1]
        found = list(_path(match.group(), follows, _costs(code), steps))
        for index, (start, end, kind) in enumerate(found):
            beside = [
                found[i][2] for i in (index - 1, index + 1) if 0 <= i < len(found)
            ]
            is_alone = end - start < 2 and "PERSON" not in beside
            form = match.group()[start:end]
            is_spot = form in spots and match.group()[:start][-1:] in _TOWARDS
            named = "GPE" if is_spot and not kind else kind
            if named and not is_alone and not _NO_NAMES.issuperset(form):
                yield match.start() + start, match.start() + end, named


def _path(
    run: str, follows: str, costs: _Costs, steps: _Steps
) -> Iterator[tuple[int, int, str]]:
    """Yield the pieces of the cheapest path through a run, in order."""
    best = [0] + [_FAR] * len(run)
    back: list[Step] = [(0, 0, "")] * (len(run) + 1)
    for start in range(len(run)):
        for length, cost, kind in steps(run, start, follows, costs, back[start][2]):
            end = start + length
            if best[start] + cost < best[end]:
                best[end] = best[start] + cost
                back[end] = (start, end, kind)
    pieces = []
    end = len(run)
    while end > 0:
        pieces.append(back[end])
        end = back[end][0]
    for start, end, kind in reversed(pieces):
        yield start, end, "PERSON" if kind == "FAMILY" else kind


def _chinese_steps(
    run: str, start: int, _follows: str, costs: _Costs, _before: str
) -> Iterator[Step]:
    words, families = costs.tables["words"], costs.tables["families"]
    places = costs.tables["places"]
    yield 1, words.get(run[start], _UNKNOWN["zh"]), ""
    for length in range(2, min(_LONGEST_WORD, len(run) - start) + 1):
        form = run[start : start + length]
        if form in places:
            yield length, places[form], "GPE"
        elif form in words:
            yield length, words[form], ""
    for length in (1, 2):
        family = families.get(run[start : start + length])
        given = run[start + length : start + length + 2]
        if family is None or not given or given[0] in costs.no_given:
            continue
        last = costs.tables["second"]
        cost = _NAME + family
        yield (
            length + 1,
            cost + _SHORT_NAME + last.get(given[0], _RARE_CHARACTER),
            "PERSON",
        )
        if len(given) > 1 and given[1] not in costs.no_given:
            first = costs.tables["first"].get(given[0], _RARE_CHARACTER)
            yield (
                length + 2,
                cost + first + last.get(given[1], _RARE_CHARACTER),
                "PERSON",
            )


def _japanese_steps(
    run: str, start: int, follows: str, costs: _Costs, before: str
) -> Iterator[Step]:
    tables = costs.tables
    for length in range(1, min(_LONGEST_WORD, len(run) - start) + 1):
        form = run[start : start + length]
        cost = tables["words"].get(form, _UNKNOWN["ja"] if length < 2 else None)
        if cost is not None:
            yield length, cost + _EACH, ""
        is_last = start + length == len(run) and "\u3041" <= follows <= "\u309f"
        if is_last and form in tables["stems"]:
            yield length, tables["stems"][form] + _EACH, ""
        if form in tables["places"]:
            yield length, tables["places"][form] + _EACH + _PLACE, "GPE"
        if form in tables["families"]:
            yield length, tables["families"][form] + _EACH + _FAMILY, "FAMILY"
        if form in tables["given"]:
            is_full = before == "FAMILY"
            extra = _GIVEN_AFTER_FAMILY if is_full else _EACH + _GIVEN
            yield length, tables["given"][form] + extra, "PERSON"


_HAN = "\u3400-\u9fff\uf900-\ufaff々〆ヶ"
_KATAKANA = "ァ-ヺー"
_KANA = f"ぁ-ゖ{_KATAKANA}"
_LATIN_NAME = re.compile(
    r"(?<![A-Za-z@./\\_-])[A-Z][a-zà-ÿ]{1,20}(?:[ .'’-]{1,2}[A-Z][a-zà-ÿ]{0,20}){0,3}"
    r"(?![A-Za-z@/\\_])"
)
_LATIN_INITIALS = re.compile(
    r"(?<![A-Za-z.])(?:[A-ZＡ-Ｚ][.．・]){1,3}[A-ZＡ-Ｚ]?(?![A-Za-z])"
)
_VERBS = "说住来电于今现正表同称即因女男先小老医出生申发签没收去打告拿买做提参请因主负"
_TIME = (
    "[一二三四五六七八九十]{1,2}[月号]|今|昨|明天|早上|上午|下午|晚上"
    "|上?周|下周|年仅|还|才"
)
_KANJI_NAME = f"(?<![{_HAN}])[{_HAN}]{{1,5}}(?:[ 　][{_HAN}{_KANA}]{{1,6}})?"
_KANA_NAME = f"[{_KATAKANA}]{{2,10}}(?:[・=＝ ][{_KATAKANA}]{{2,10}}){{0,3}}"
_CALLED = f"[{_HAN}]{{1,6}}|[{_KATAKANA}]{{2,10}}"
_MORE_NAME = f"[ 　・][{_HAN}{_KANA}]{{1,8}}"
_FURIGANA = re.compile(f"[（(][{_KANA}\\s　・]{{2,20}}[)）]")


def find_unspaced_names(text: str, code: str) -> Iterator[Found]:
    """Yield the names of a Chinese or Japanese text.

    Args:
        text: in composed characters.
        code: `zh` or `ja`.
    """
    for found in _chinese(text) if code == "zh" else _japanese(text):
        yield found
        yield from age_beside(text, found[1])
    for start, end, kind in find_segmented_names(text, code):
        yield start, end, kind, 0.65
        yield from age_beside(text, end)
    for kind, pattern, confidence in _common(code):
        for match in pattern.finditer(text):
            yield *match.span(match.lastindex or 0), kind, confidence
    for pattern in (_LATIN_NAME, _LATIN_INITIALS):
        for match in pattern.finditer(text):
            yield *match.span(), "ENTITY", 0.6


def _is_short(place: str) -> bool:
    """Tell whether a place is so short that it is a part of any word in katakana."""
    return len(place) < 4 and re.fullmatch(f"[{_KATAKANA}]+", place) is not None


@lru_cache
def _common(code: str) -> tuple[tuple[str, re.Pattern[str], float], ...]:
    """Return places of the list, and organizations by their last or first part."""
    language = load(code)
    listed = language.words("places")
    short = frozenset(filter(_is_short, listed))
    places = re.compile(any_of(listed - short))
    alone = re.compile(f"(?<![{_KATAKANA}])(?:{any_of(short)})(?![{_KATAKANA}])")
    heads = any_of(language.words("org_suffix"))
    if code == "zh":
        stop = language.texts["function_chars"]
        part = f"(?:(?![{stop}这那本该贵某我你])[{_HAN}A-Za-z]){{2,12}}"
        orgs = re.compile(f"{part}(?:{heads})")
        work = re.compile(
            f"(?<=在)(?!公司|单位|外|家|工厂|学校|国外|城里|银行|医院)({part})"
            "(?=上班|工作|任职|就职|打工|实习)"
        )
        return ("GPE", places, 0.7), ("ORG", orgs, 0.6), ("ORG", work, 0.6)
    late = any_of(language.words("late"))
    word = f"(?!{late})[{_HAN}{_KATAKANA}A-Za-z]{{1,12}}"
    orgs = re.compile(
        f"(?:(?<![^はがをにとので、。「])[ぁ-ゖ]{{2,5}}[{_HAN}]{{0,4}}?)(?:{heads})+|(?:株式会社|有限会社|合同会社){word}|{word}?(?:{heads})+"
    )
    towns = re.compile(
        f"[{_HAN}]{{1,4}}(?:都|道|府|県|市|区|町|村)(?![{_HAN}]{{0,1}}[長民役場内外])"
        f"|[{_HAN}{_KATAKANA}]{{1,6}}(?:駅|通り)(?![{_HAN}])"
    )
    work = re.compile(
        f"([{_HAN}{_KATAKANA}A-Za-z]{{2,12}})"
        "(?=に勤|で働|に入社|を退職|を定年|勤務|に就職|に在籍|在住|出身)"
        f"|(?:株式会社|有限会社|合同会社)[{_HAN}{_KATAKANA}A-Za-z]{{1,12}}"
    )
    return (
        *(("GPE", places, 0.7), ("GPE", alone, 0.7), ("GPE", towns, 0.55)),
        ("ORG", orgs, 0.6),
        ("ORG", work, 0.6),
    )


@lru_cache
def _chinese_names() -> tuple[re.Pattern[str], ...]:
    """Compile names before titles, behind phrases, and alone."""
    language = load("zh")
    family = any_of(language.words("surnames"))
    families = any_of(language.words("surnames") | language.words("rare_surnames"))
    given = language.texts["given_chars"]
    stop = language.texts["function_chars"]
    any_given = f"[^{stop}\\W\\d_]"
    blocked = any_of(language.words("not_names"))
    titles = any_of(language.words("titles_after"))
    safe = any_of(language.words("safe_surnames"))
    cues = any_of(language.words("cues"))
    places = any_of(language.words("places"))
    ends = f"(?=$|[^{_HAN}]|[{stop}{_VERBS}]|{_TIME})"
    after = "(?:是|为|叫|:|：|\\s|「|“){0,2}\\s?"
    near = "(?<=[和与跟给找向对由请让是为叫被把同问、于替])"
    alone = any_of(language.words("given_alone"))
    role = any_of(language.words("roles"))
    return (
        re.compile(
            f"(?!{blocked})(?:{families})(?:{any_given}{{0,2}}?)(?=(?:{titles}))"
        ),
        re.compile(
            f"(?:{cues}){after}((?:{families})(?:{any_given}{{2}}{ends}|{any_given}))"
        ),
        re.compile(f"(?:{cues}|{role}){after}([小阿老大](?:{any_given})){ends}"),
        re.compile(f"(?!{blocked})(?:{families})某{{1,2}}"),
        re.compile(f"(?<=[我他她贵您你]姓)({families})"),
        re.compile(
            f"(?:昵称|网名|微信名|外号|小名|乳名|花名)[是为叫:：]{{0,2}}([{_HAN}A-Za-z0-9]{{2,10}})"
            "(?=[，。,！!\\s]|$)"
        ),
        re.compile(
            f"(?:(?<![{_HAN}])|{near})(?!{blocked})[小阿][{_HAN}](?=[，,！!、]|{_TIME})"
        ),
        re.compile(f"{near}(?!{blocked})阿[{_HAN}]{ends}"),
        re.compile(f"(?<=[在到去给])(?:{safe})(?=家[了，。里的])"),
        re.compile(
            f"(?:{role}|[父母]亲|丈夫|妻子|儿子|女儿)([{_HAN}]{{2}})(?=今年|年仅)"
        ),
        re.compile(f"(?!{blocked})[小老阿大](?:{family}){ends}"),
        re.compile(f"(?!{blocked})(?:{family})[{given}]{{2}}"),
        re.compile(
            f"(?:(?<![{_HAN}])|{near})(?!{blocked})(?:{families})[{given}]{{1,2}}{ends}"
        ),
        re.compile(
            f"(?:(?<![{_HAN}])|{near}|(?:{role}))({alone})(?:{ends}|(?=[妈爸]|{titles}))"
        ),
        re.compile(
            f"(?:(?<![{_HAN}])|{near})((?!{blocked})(?:{safe})(?:{any_given}){{2}}){ends}"
        ),
        re.compile(f"(?!{blocked})(?:{family})[{given}](?=说|表示|告诉|住在|出生)"),
        re.compile(f"[{_HAN}]{{1,6}}·[{_HAN}]{{1,8}}"),
        re.compile(any_of(language.words("foreign"))),
        re.compile(f"(?!{places})[{language.texts['foreign_chars']}]{{4,10}}"),
        re.compile(
            f"(?:{role})(?!{blocked}|{titles})"
            f"((?:(?![{stop}{_VERBS}])[{_HAN}]){{2,5}}?){ends}"
        ),
    )


@lru_cache
def _pet_names() -> re.Pattern[str]:
    """Compile names such as `露露` and `二妞`, which no dictionary knows."""
    language = load("zh")
    role = any_of(language.words("roles") | language.words("cues"))
    stop = language.texts["function_chars"]
    return re.compile(
        f"(?:(?<![{_HAN}])|(?<=[和与跟给找向对由请让是为叫被把同问到见说])|(?:{role}))"
        f"(([{_HAN}])\\2|[小老阿二大三][{_HAN}])(?![{_HAN}])"
        f"|(?:(?<![{_HAN}])|(?<=[和与跟给找向对由请让叫被把]))"
        f"((?!天|人|年|月|日|家|个|次)([{_HAN}])\\4|[小老阿二][^{stop}\\W])"
        f"(?=[妈爸爷奶姐哥今昨明说发住在要会的没]|考|生日|上班|上学)",
    )


def _chinese(text: str) -> Iterator[Found]:
    blocked = load("zh").words("not_names")
    for match in _pet_names().finditer(text):
        group = 1 if match.group(1) else 3
        if not is_word(match.group(group), "zh"):
            yield *match.span(group), "PERSON", 0.6
    for pattern in _chinese_names():
        for match in pattern.finditer(text):
            start, end = match.span(match.lastindex or 0)
            if text[start : start + 2] not in blocked or match.lastindex:
                yield start, end, "PERSON", 0.75


@lru_cache
def _japanese_names() -> tuple[re.Pattern[str], ...]:
    """Compile names before titles, behind phrases, and of the lists."""
    language = load("ja")
    family = any_of(language.words("surnames"))
    given = any_of(language.words("given"))
    unsure = language.words("ambiguous")
    family_alone, given_alone = (
        any_of(frozenset(x for x in language.words(name) - unsure if len(x) > 1))
        for name in ("surnames", "given")
    )
    titles = any_of(language.words("titles_after"))
    blocked = any_of(language.words("not_names"))
    ends = any_of(language.words("suffix_cues"))
    cues = any_of(language.words("cues"))
    roles = any_of(language.words("roles"))
    gap = "[ 　]?"
    open_end = f"(?=$|[^{_HAN}{_KANA}]|{ends}|{titles}|[はがをにともの])"
    name = f"(?!{titles}|{ends})(?:[{_HAN}]{{1,3}}|[{_KATAKANA}]{{2,8}}|[ぁ-ゖ]{{2,4}})"
    return (
        re.compile(
            f"(?!{blocked})(?:{_KANJI_NAME}|{_KANA_NAME}|(?<![{_HAN}{_KANA}])[ぁ-ゖ]{{2,5}})"
            f"(?=さん|くん|ちゃん|様|(?:{titles})(?![{_HAN}]))"
        ),
        re.compile(
            f"(?!{blocked}|{roles})(?:{family}){gap}(?:{given}|{name}){open_end}"
        ),
        re.compile(f"(?<![{_HAN}])(?:{family_alone}){open_end}"),
        re.compile(
            f"(?:(?<![{_HAN}{_KANA}])|(?<=[昨今明先]日)|(?<=[はがをにとのも]))"
            f"(?:{given_alone})(?={open_end}|だ|って|で|へ)"
        ),
        re.compile(f"(?:{roles})[のは・:：]?((?:{given}|{family})){open_end}"),
        re.compile(
            f"(?:{roles})[のは:：]?([{_HAN}]{{1,4}}[{_KATAKANA}]{{2,3}}子?){open_end}"
        ),
        re.compile(
            f"(?:{cues})[はが:：、]?\\s?((?:{_CALLED})(?:{_MORE_NAME}){{0,2}}){open_end}"
        ),
        re.compile(
            f"((?:{_CALLED})(?:{_MORE_NAME})?)(?=と申し|と言い|といい|という者|と呼|と名乗|って呼)"
        ),
        re.compile(
            f"(?:{roles})[のは:：]?([{_HAN}]{{2,6}}(?: [{_HAN}]{{1,3}})?){open_end}"
        ),
        re.compile(
            f"(?:[A-ZＡ-Ｚ][・.．]\\s?)?[{_KATAKANA}]{{1,10}}(?:[・=＝][{_KATAKANA}]{{1,10}}){{1,3}}"
            f"|[A-ZＡ-Ｚ][・.．]\\s?[{_KATAKANA}]{{2,10}}"
        ),
        re.compile(
            "(?:(?<![ぁ-ゖー])|(?<=[とはがにもの、]))"
            "(?:[ぁ-ゖ]{1,2}(?:っ|ー)(?:くん|ちゃん|たん|ぴ)|[ぁ-ゖ]{1,3}(?:っきー|ちん|っち|ぽん|ぴょん))"
        ),
        re.compile(
            f"(?:{family})(?:[ぁ-ゖ]{{2,4}}|[{_KATAKANA}]{{2,5}})"
            f"(?:[ァ-ヺ]{{0,3}}[{_HAN}]?)"
            "(?=さん|様|くん|ちゃん|氏|先生|って|、|。|$|[ 　]?[<＜(（])"
        ),
        re.compile(f"(?<![{_KATAKANA}])[{_KATAKANA}]{{1,3}}(?:ッ|ー)(?:クン|チャン)"),
        re.compile(
            f"(?:{roles})[のは:：]?(?!{blocked})([ぁ-ゖ]{{2,4}})(?=[がはをもに]|[、。です])"
        ),
    )


def _japanese(text: str) -> Iterator[Found]:
    for pattern in _japanese_names():
        for match in pattern.finditer(text):
            start, end = match.span(match.lastindex or 0)
            note = _FURIGANA.match(text, end)
            yield start, note.end() if note else end, "PERSON", 0.75
