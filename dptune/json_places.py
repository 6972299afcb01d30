r"""JSON that stands in a text: where its keys, strings and bare values are.

Calls of tools and what they return are JSON within other text, and their arguments are
often JSON in a string of it. One scan reads them all.

`HOLE` stands for what nobody may look at, whatever its length: in a string it is a sign
like others, between the signs of a structure a value or part of a number.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

HOLE: Final = "\ufdef"
_DEEPEST: Final = 8
_MOST_NESTS: Final = 200
_BESIDE: Final = 100
_BLANKS: Final = r"[ \t\r\n]*+"
_SCALAR: Final = (
    r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
    r"|true|false|null|NaN|-?Infinity"
)
_TOKEN: Final = re.compile(
    rf"{_BLANKS}(?:"
    r'(?P<string>"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4}))*+")'
    rf"|(?P<bare>[-+.0-9A-Za-z]*+{HOLE}[-+.0-9A-Za-z{HOLE}]*+|{_SCALAR})"
    r"|(?P<sign>[][{}:,]))"
)
_OPENS: Final = re.compile(r"[\[{]")
_WRITTEN: Final = re.compile(
    r"\\u[dD][89ABab]..\\u[dD][C-Fc-f]..|\\u....|\\.|.", re.DOTALL
)
_LONE: Final = re.compile("[\ud800-\udfff]")
_VALUE: Final = frozenset(["string", "bare", "{", "["])
_KEY: Final = frozenset(["string", "bare"])


@dataclass(eq=False, kw_only=True, slots=True)
class Node:
    """A value of JSON, or a key.

    Args:
        kind: what it is; `bare` are numbers, `true`, `false`, `null` and holes.
        start, end: its code points in the text, with quotes and brackets.
        depth: how many strings of JSON it lies in.
        said: a string once its escapes are read, a bare value as it is written; hidden
            from `repr`.
        keys: of an object, one for each of its values; others have none.
        values: of an object or a list.
        within: JSON that a string holds.
        has_words: whether it is or holds an object or a string.
    """

    kind: Literal["object", "array", "string", "bare"]
    start: int
    end: int = -1
    depth: int = 0
    said: str = field(default="", repr=False)
    keys: "Sequence[Node]" = field(default=(), repr=False)
    values: "Sequence[Node]" = field(default=(), repr=False)
    within: "Sequence[Node]" = field(default=(), repr=False)
    has_words: bool = True


@dataclass(eq=False, kw_only=True, slots=True)
class _Nest(Node):
    """An object or a list; of numbers, which are many, none has lists of its own."""

    keys: list[Node] = field(default_factory=list, repr=False)
    values: list[Node] = field(default_factory=list, repr=False)


def json_in(text: str, *, depth: int = 0) -> list[Node]:
    """Return the objects and lists of a text that lie in no other, in order.

    A list without objects and strings counts where it is the whole text or stands
    between tags: `[Ann]` in prose is none, nor is `[1]`. Of what nests in more than 200
    others what is whole within it counts.

    >>> [(node.kind, node.start) for node in json_in('as in [1]: {"a": [1, 2]}')]
    [('object', 11)]

    Args:
        text: anything.
        depth: how many strings of JSON it is the content of.
    """
    found: list[Node] = []
    position = 0
    while opens := _OPENS.search(text, position):
        whole, position = _read(text, opens.start(), depth)
        found += (n for n in whole if n.has_words or _is_alone(text, n))
    return found


def walk(roots: Sequence[Node]) -> Iterator[Node]:
    """Yield nodes and all that lies in them: keys, values, JSON in strings."""
    left = list(roots)
    while left:
        node = left.pop()
        yield node
        left += (*node.keys, *node.values, *node.within)


def is_value(written: str, depth: int) -> bool:
    r"""Tell whether something is a value of JSON that lies in `depth` strings.

    >>> is_value("12", 0), is_value("012", 0), is_value(r'\"a\"', 1)
    (True, False, True)
    """
    try:
        json.loads(unescaped(written, depth - 1) or "", parse_int=str)
    except (ValueError, RecursionError):
        return False
    return True


def escaped(said: str, depth: int) -> str:
    r"""Write what stands between the quotes of a string that lies in `depth` strings.

    >>> print(escaped('"', 0), escaped('"', 1))
    \" \\\"
    """
    for _ in range(depth + 1):
        said = json.dumps(said, ensure_ascii=False)[1:-1]
        said = _LONE.sub(lambda half: f"\\u{ord(half[0]):04x}", said)
    return said


def quoted(said: str, depth: int) -> str:
    r"""Write a string with its quotes, where it lies in `depth` strings.

    >>> print(quoted("<mask>", 0), quoted("<mask>", 1))
    "<mask>" \"<mask>\"
    """
    mark = escaped('"', depth - 1)
    return f"{mark}{escaped(said, depth)}{mark}"


def unescaped(written: str, depth: int) -> str | None:
    """Return what is said by what `escaped` writes; None if it cuts an escape."""
    try:
        for _ in range(depth + 1):
            written = json.loads(f'"{written}"')
    except ValueError:
        return None
    return written


def _is_alone(text: str, node: Node) -> bool:
    """Tell whether nothing but tags stands beside a value."""
    low, high = max(0, node.start - _BESIDE), node.end + _BESIDE
    before, after = text[low : node.start].rstrip(), text[node.end : high].lstrip()
    is_first = before.endswith(">") or (not before and low == 0)
    return is_first and (after.startswith("<") or (not after and high >= len(text)))


def _read(text: str, start: int, depth: int) -> tuple[list[Node], int]:
    """Read one object or list.

    Returns:
        It, or of a broken one what is whole in it; and where the next may begin. What
        breaks behind a string may have taken a quote of prose for its first.
    """
    nests: list[_Nest] = []
    wanted, position, last = _VALUE, start, start
    while len(nests) <= _MOST_NESTS and (token := _TOKEN.match(text, position)):
        kind = token["sign"] or str(token.lastgroup)
        if kind not in wanted:
            break
        position = token.end()
        last = token.start("string") + 1 if kind == "string" else position
        if kind in ("}", "]"):
            closed = nests.pop()
            closed.end = position
            if not nests:
                return [closed], position
            nests[-1].has_words |= closed.has_words
            wanted = _behind_value(nests[-1])
        elif kind in (":", ","):
            is_key = kind == "," and nests[-1].kind == "object"
            wanted = _KEY if is_key else _VALUE
        else:
            node = _node(token, kind, depth)
            wanted = _placed(node, nests)
    broken = (node for nest in nests for node in nest.values)
    whole: list[Node] = [n for n in broken if isinstance(n, _Nest) and n.end >= 0]
    return whole, max(last, start + 1)


def _placed(node: Node, nests: list[_Nest]) -> frozenset[str]:
    """Put a node into what it lies in; return the kinds of what may follow it."""
    if nests:
        nest = nests[-1]
        if nest.kind == "object" and len(nest.keys) == len(nest.values):
            nest.keys.append(node)
            return frozenset(":")
        nest.values.append(node)
        nest.has_words |= node.has_words
    if isinstance(node, _Nest):
        nests.append(node)
        return _KEY | {"}"} if node.kind == "object" else _VALUE | {"]"}
    return _behind_value(nests[-1])


def _behind_value(nest: Node) -> frozenset[str]:
    return frozenset(",}" if nest.kind == "object" else ",]")


def _node(token: re.Match[str], kind: str, depth: int) -> Node:
    """Make a node of a token that opens one or is one."""
    if kind in ("{", "["):
        is_object = kind == "{"
        return _Nest(
            kind="object" if is_object else "array",
            start=token.start("sign"),
            depth=depth,
            has_words=is_object,
        )
    start, end = token.span(kind)
    if kind == "bare":
        said = token["bare"]
        return Node(
            kind="bare", start=start, end=end, depth=depth, said=said, has_words=False
        )
    said, starts = signs_of(token["string"], start)
    node = Node(kind="string", start=start, end=end, depth=depth, said=said)
    if depth < _DEEPEST and ("{" in said or "[" in said):
        node.within = json_in(said, depth=depth + 1)
        for inner in walk(node.within):
            inner.start, inner.end = starts[inner.start], starts[inner.end]
    return node


def signs_of(written: str, start: int) -> tuple[str, Sequence[int]]:
    """Return what a string says, and where each sign of it and its last quote stand."""
    if "\\" not in written:
        return written[1:-1], range(start + 1, start + len(written))
    signs = list(_WRITTEN.finditer(written, 1, len(written) - 1))
    starts = [start + sign.start() for sign in signs]
    return "".join(map(_sign, signs)), [*starts, start + len(written) - 1]


def _sign(match: re.Match[str]) -> str:
    """Return what one sign of a string stands for."""
    written = match[0]
    return str(json.loads(f'"{written}"')) if written[0] == "\\" else written
