"""Cut runs of Han characters into words and names, by the cheapest path.

Every word of a dictionary costs what its rarity is worth, and so does a name: in
Chinese a family name and the characters that given names are made of, in Japanese a
listed family name, given name or place. What no path of words explains as cheaply is a
name, so that a new name needs no list, and a word such as `顺利` is none in `过程顺利`.

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
