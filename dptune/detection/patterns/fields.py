"""Values in structured text: what a key, a tag or a column says that they are.

`{"last_name": "hill"}`, `<name>mark wood</name>`, `user=grace`; tables with a header,
without one, and the tuples of an INSERT.
"""

import re
from collections.abc import Iterator, Sequence

from dptune.detection import words as w
from dptune.detection.patterns.chats import chat_values
from dptune.detection.patterns.field_kinds import (
    IN_WORDS,
    MAYBE,
    MOST_WORDS,
    NAME_LIKE,
    NEVER,
    NO_VALUE,
    WORD,
    Found,
    Value,
    kind_of,
    looks_like_name,
    may_be_words,
    settle,
)

_KEY = re.compile(r"[^\W\d_][\w.-]*(?: [^\W\d_(][\w.)'’-]*){0,3}\Z")
_BEFORE_KEY = re.compile(r"(?s).*[^\w.)'’ -]")
_LONGEST_KEY, _MOST_AROUND, _MOST_WORDS = 56, 6, 4
_SEPARATOR = re.compile(
    r"(?P<sign>=>|:=|->|:(?!//)|=(?!=)|\t|(?<=\w) - (?=\w))\*{0,2}[ \t]{0,6}(?:\r?\n[ "
    r"\t]{1,8})?"
)
_AROUND_KEY = " \t\"'`])*\\"
# A string within a string ends where its quote is escaped as often as the first one.
_IN_QUOTES = (
    r"(\\?)([\"'`“])"
    r"(?P<value>(?:\\\\\\.|(?!\1\2|\2|”)(?:\\.|[^\n\\])){1,300}+)"
)
_QUOTED = re.compile(_IN_QUOTES)
_ITEM = re.compile(_IN_QUOTES + r"\1\2")
_BARE = re.compile(r"[^\n;|<>{}\[\]\"&\t,=:()]{1,80}")
_BARE_ADDRESS = re.compile(r"[^\n;|<>{}\[\]\"&\t=:]{1,120}")
_TOKEN = re.compile(
    r"[^\s,;|<>{}\"'&()]{1,128}(?: (?:[\d./()+-]{1,16}"
    r"|[A-Za-z]{0,3}\d[\dA-Za-z/-]{0,8})(?![\w:=])){0,24}"
)
_IN_QUERY = re.compile(
    r"[^\n&#\"'<>=]{1,60}(?=&)|(?:[^\s&#\"'<>\\]|\\(?!\\{0,7}[\"'])){1,120}"
)
_ELEMENT = re.compile(
    r"<(?P<key>[A-Za-z][\w:.-]{0,40})(?P<more>\s[^<>]{0,200})?>\s{0,4}(?P<"
    r"value>[^<>]{1,200}?)\s{0,4}</"
)
_SIGNS = (":", "=", "\t", "->", " - ", "\n")
_SAYS_FIELD = re.compile(r"(?:class|id|itemprop|name|data-\w+)=[\"']?(?P<key>[\w-]+)")


def field_values(text: str) -> Iterator[Value]:
    """Yield the values of fields, tables and chats; they may overlap.

    Args:
        text: the plain form of a text, with its capitals.
    """
    if any(sign in text for sign in _SIGNS):
        yield from _pairs(text)
    if "</" in text:
        yield from _elements(text)
    yield from table_values(text)
    yield from chat_values(text)


def _pairs(text: str) -> Iterator[Value]:
    """Read `key: value` and `key=value` in all their spellings."""
    found: list[Found] = []
    for match in _SEPARATOR.finditer(text):
        low = max(0, match.start() - _LONGEST_KEY)
        high = low + len(text[low : match.start()].rstrip(_AROUND_KEY))
        if match.start() - high > _MOST_AROUND or high == low:
            continue
        key = _key_before(text, low, high)
        if key is None:
            continue
        kind = kind_of(key.group())
        if kind is None:
            continue
        if match["sign"] == " - " and not _opens_line(text, key.start()):
            continue
        for start, end in _values_at(text, match, kind, key.start()):
            found.append(Found(start=start, end=end, kind=kind))
    yield from settle([*found, *_below(text)], text)


def _key_before(text: str, low: int, high: int) -> re.Match[str] | None:
    """Find the name of a field that ends somewhere.

    It is looked for behind what no name holds and in the last words, where alone it
    can begin.
    """
    if other := _BEFORE_KEY.match(text, low, high):
        low = other.end()
    first = high
    for _ in range(_MOST_WORDS):
        first = text.rfind(" ", low, first)
        if first < 0:
            break
    return _KEY.search(text, max(low, first + 1), high)


def _opens_line(text: str, position: int) -> bool:
    """Tell whether only blanks and bullets stand before a position in its line."""
    return not text[text.rfind("\n", 0, position) + 1 : position].strip(" \t*•-")


_TWO_LINES = re.compile(
    r"(?m)^[ \t]{0,8}(?P<key>[^\W\d_][\w '’/-]{1,30}):?[ \t]{0,4}\n"
    r"[ \t]{0,8}(?P<value>[^\s:][^\n:]{0,60})$"
)


def _below(text: str) -> Iterator[Found]:
    """Read forms that put the value into the line below its field."""
    position = 0
    while match := _TWO_LINES.search(text, position):
        kind = kind_of(match["key"])
        position = match.end("key" if kind is None else "value")
        if kind is not None and kind_of(match["value"]) is None:
            start, end = match.span("value")
            yield Found(start=start, end=end, kind=kind)


def _values_at(
    text: str, separator: re.Match[str], kind: str, key: int
) -> Iterator[tuple[int, int]]:
    """Yield the range of the value behind a separator, or those of a list."""
    start = separator.end()
    if quoted := _QUOTED.match(text, start):
        yield quoted.span("value")
        return
    if text.startswith("[", start):
        end = text.find("]", start, start + 500)
        if end > 0:
            yield from (item.span("value") for item in _ITEM.finditer(text, start, end))
        return
    is_query = text[key - 1 : key] in ("?", "&") and "=" in separator["sign"]
    bare = _IN_QUERY if is_query else _pattern_of(MAYBE.get(kind, kind))
    value = bare.match(text, start)
    if value is None:
        return
    end = value.end()
    if not is_query and bare is not _TOKEN:
        end = _cut(text, start, end, separator["sign"], MAYBE.get(kind, kind))
    if end > start:
        yield start, end


def _pattern_of(kind: str) -> re.Pattern[str]:
    if kind == "ADDRESS":
        return _BARE_ADDRESS
    return _BARE if kind in IN_WORDS else _TOKEN


_NEXT_KEY = re.compile(r"[ ,]+[\w.'’-]+\Z")
_SENTENCE = re.compile(
    r"(?<=[^\W\d_]{3})\. |[!?] | {2,}| - |\\n| (?:and|but|so|who"
    r"|which|where|is|was|has|had|for|with|at|on|in|from|logged"
    r"|said|says) "
)


def _cut(text: str, start: int, end: int, separator: str, kind: str) -> int:
    """Return where a bare value ends: before the next key, or the next sentence."""
    if text[end : end + 1] in (":", "="):
        end = _before_key(text, start, end)
    if kind != "ADDRESS" and (stop := _SENTENCE.search(text, start, end)):
        end = stop.start()
    words = list(re.finditer(r"\S+", text[start:end]))
    is_login = kind == "USERNAME" and not looks_like_name(text[start:end].strip())
    most = 1 if is_login else MOST_WORDS
    if len(words) > most and (is_login or kind == "PERSON" or "=" in separator):
        end = start + words[0].end()
    while end > start and text[end - 1] in " \t\r.'!?-":
        end -= 1
    return end


def _before_key(text: str, start: int, end: int) -> int:
    """Return where a value ends that the name of the next field follows."""
    name = _NEXT_KEY.search(text, start, end)
    if name is None:
        return start
    first = _NEXT_KEY.search(text, start, name.start())
    if first is not None and first.group().strip(" ,").lower() in _OPENS_KEY:
        return first.start()
    return name.start()


_OPENS_KEY = w.word_set(
    "phone email e-mail zip postal date home work cell mobile first last full middle "
    "birth street job marital account card social passport medical order"
)


def _elements(text: str) -> Iterator[Value]:
    """Read `<key>value</`."""
    found = []
    for match in _ELEMENT.finditer(text):
        key = match["key"].rpartition(":")[2]
        said = _SAYS_FIELD.search(match["more"] or "")
        kind = kind_of(said["key"] if said else key)
        if kind is not None:
            start, end = match.span("value")
            found.append(Found(start=start, end=end, kind=kind))
    yield from settle(found, text)


_DELIMITERS = ("\t", "|", ";", ",")
_CELL = {
    sign: re.compile(
        rf'[ ]{{0,12}}(?:"(?P<quoted>[^"\n]*)"|\'(?P<single>[^\'\n]*)\''
        rf"|(?P<bare>[^{re.escape(sign)}\n]*))[ ]{{0,12}}(?:"
        rf"{re.escape(sign)}|$)"
    )
    for sign in _DELIMITERS
}
_DENSE = re.compile(
    r"(?m)^[^,;|\t\n]{0,60}(?:[,;](?=[^\s,;])|\t|\|)"
    r"|^[^,;\n.]{1,30}(?:[,;] [^,;\n.]{1,30}){1,12}\n"
)
_RULE_OFF = re.compile(r"[\s|:+=-]+")
_LONGEST_CELL, _MOST_CELLS, _FEWEST_CELLS = 120, 64, 3
_INSERT = re.compile(
    r"(?i)\binsert into [\w.\"`]{1,60} ?(?:\((?P<names>[^()]{2,600})\))?\s"
    r"{0,4}values?\s{0,4}"
)
_TUPLE = re.compile(r"\(([^()]{1,1000})\)\s{0,3},?\s{0,3}")
Cell = tuple[int, int]


def _cells(text: str, start: int, end: int, sign: str) -> list[Cell]:
    """Split one line into the ranges of its cells."""
    cells: list[Cell] = []
    position = start
    while position <= end and len(cells) < _MOST_CELLS:
        match = _CELL[sign].match(text, position, end)
        if match is None:
            break
        low, high = match.span(match.lastgroup or "bare")
        while high > low and text[high - 1] == " ":
            high -= 1
        cells.append((low, high))
        if match.end() == end and text[end - 1 : end] != sign:
            break
        position = match.end() if match.end() > position else position + 1
    return cells


def table_values(text: str) -> Iterator[Value]:
    """Read tables with a header, rows without one, and the tuples of an INSERT."""
    for insert in _INSERT.finditer(text) if "(" in text else ():
        rows = []
        position = insert.end()
        while (row := _TUPLE.match(text, position)) is not None:
            rows.append(_cells(text, *row.span(1), ","))
            position = row.end()
        if insert["names"] is None:
            wide = [row for row in rows if len(row) >= _FEWEST_CELLS]
            yield from _headless(text, wide)
            continue
        names = [name.strip(" \"`'") for name in insert["names"].split(",")]
        yield from _columns(text, [kind_of(name) for name in names], rows)
    if _DENSE.search(text) is None:
        return
    for block in _blocks(text):
        header = [kind_of(text[a:b]) for a, b in block[0]]
        is_header = len(block) > 1 and _is_header(text, block[0], header)
        if is_header:
            yield from _columns(text, header, block[1:])
        elif len(block[0]) >= _FEWEST_CELLS:
            yield from _headless(text, block)


def _blocks(text: str) -> Iterator[list[list[Cell]]]:
    """Yield runs of lines that the same sign cuts into about as many cells."""
    block: list[list[Cell]] = []
    sign = ""
    position = 0
    for line in text.split("\n"):
        start, end = position, position + len(line)
        position = end + 1
        if block and _RULE_OFF.fullmatch(line) and ("-" in line or "=" in line):
            continue
        chosen = sign if block and sign in line else _sign_of(line)
        cells = _cells(text, start, end, chosen) if chosen else []
        if block and (chosen != sign or len(cells) < 2):
            yield block
            block = []
        if len(cells) > 1 and all(b - a <= _LONGEST_CELL for a, b in cells):
            block.append(cells)
            sign = chosen
    if block:
        yield block


def _sign_of(line: str) -> str:
    """Return the sign that cuts a line into cells, or nothing."""
    if len(line) > 4000:
        return ""
    for sign in _DELIMITERS:
        if sign in line and (sign != "," or _is_dense(line)):
            return sign
    return ""


def _is_dense(line: str) -> bool:
    """Tell whether commas part cells, not clauses."""
    spaced = line.count(", ")
    return (
        spaced == 0
        or spaced * 4 <= line.count(",")
        or (
            spaced == line.count(",")
            and spaced < 12
            and len(line) < 100
            and "." not in line
        )
    )


def _is_header(text: str, cells: list[Cell], kinds: Sequence[str | None]) -> bool:
    """Tell whether a row names columns."""
    names = [text[a:b] for a, b in cells if b > a]
    if not names or any(
        len(name) > 40 or name[:1].isdigit() or len(name.split()) > 4 for name in names
    ):
        return False
    known = sum(kind is not None for kind in kinds)
    return known > 1 or (known == 1 and len(names) > 1)


def _columns(
    text: str, kinds: Sequence[str | None], rows: Sequence[Sequence[Cell]]
) -> Iterator[Value]:
    """Yield the cells of personal columns."""
    by_column = [[row[i] for row in rows if i < len(row)] for i in range(len(kinds))]
    found = []
    for kind, cells in zip(kinds, by_column, strict=True):
        if kind is None:
            continue
        filled = [(a, b) for a, b in cells if b > a]
        named = sum(looks_like_name(text[a:b]) for a, b in filled)
        is_named = kind == "PERSON?" and named * 2 >= len(filled)
        found += [
            Found(start=a, end=b, kind="PERSON" if is_named else kind)
            for a, b in filled
        ]
    yield from settle(found, text)


def _headless(text: str, rows: Sequence[Sequence[Cell]]) -> Iterator[Value]:
    """Yield the cells of rows that are about persons, though no header says so."""
    named: set[int] = set()
    personal: set[int] = set()
    for place, row in enumerate(rows):
        pieces = [text[a:b] for a, b in row]
        names = {i for i, piece in enumerate(pieces) if _is_known_name(piece)}
        has_number = any(
            any(map(str.isdigit, piece)) or "@" in piece for piece in pieces
        )
        is_short = all(len(piece.split()) <= MOST_WORDS + 2 for piece in pieces)
        if names and is_short and (has_number or len(names) > 1):
            named |= names
            personal.add(place)
    if len(personal) * 3 < len(rows):
        return
    for place, row in enumerate(rows):
        for number, (start, end) in enumerate(row):
            piece = text[start:end]
            is_named = number in named and may_be_words(piece)
            is_beside = place in personal and _may_be_place(piece)
            if (is_named or is_beside) and piece.lower() not in NO_VALUE:
                yield start, end, "PERSON" if number in named else "GPE"


def _is_known_name(piece: str) -> bool:
    """Tell whether a cell holds a name that the lexicon knows."""
    words = WORD.findall(piece)
    if not (words and len(words) <= MOST_WORDS and NAME_LIKE.fullmatch(piece)):
        return False
    return looks_like_name(piece) and piece.lower() not in NO_VALUE


def _may_be_place(piece: str) -> bool:
    """Tell whether a cell beside a name may be where its bearer lives or works."""
    if not NAME_LIKE.fullmatch(piece) or len(piece) < 3:
        return False
    readings = [w.reading_of(word.lower()) for word in WORD.findall(piece)]
    return not any(r & NEVER for r in readings)
