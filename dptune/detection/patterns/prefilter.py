r"""Tells in one pass over a text which expressions may match in it.

An expression of `re` is widened to one without assertions, references and long counts,
which a finite automaton can look for beside many others (`google-re2`). The widened one
matches wherever the expression does, so that one of which it finds nothing need not be
tried: what is found is the same, and most rules are never run.

The automaton reads `symbols` of a text: ASCII stands for itself, any other letter or
digit is `WORD`, any other character `SIGN`, and classes hold these two where they hold
such characters.
"""

import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import re2

WORD: Final = "Z"
"""A capital: letters are lower-cased, so that it means nothing else in most texts."""
SIGN: Final = "\x01"
_BEYOND: Final = frozenset((WORD, SIGN))
_MOST_COUNTED: Final = 8
"""Longest repeat whose end is kept: each count is a state of the automaton."""
_BYTES: Final = 1 << 26
_BLOCK: Final = 50

# The parser of the standard library: the tree that `re` itself compiles.
_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")
_LITERAL, _NOT_LITERAL, _IN, _NEGATE = (
    getattr(_parser, name) for name in ("LITERAL", "NOT_LITERAL", "IN", "NEGATE")
)
_ONE: Final = frozenset((_LITERAL, _NOT_LITERAL, _IN, _parser.ANY))
_REPEATS: Final = frozenset(
    (_parser.MAX_REPEAT, _parser.MIN_REPEAT, _parser.POSSESSIVE_REPEAT)
)
_ASCII: Final = tuple(map(chr, range(128)))
_ANYTHING: Final = "(?s:.*)"


class _Symbols(dict[int, str]):
    """Maps a character to its symbol, computed once for each."""

    def __missing__(self, code: int) -> str:
        """Compute and keep the symbol of a character."""
        mark = chr(code)
        self[code] = mark if mark.isascii() else WORD if mark.isalnum() else SIGN
        return self[code]


_SYMBOLS: Final = _Symbols()


def symbols(lowered: str) -> str:
    """Return the symbols of a lower-cased text, one for each character."""
    return lowered if lowered.isascii() else lowered.translate(_SYMBOLS)


class Prefilter:
    """Several families of rules, each of which is one automaton.

    Args:
        families: for each rule the expressions that must all match in a text for it
            to be tried there. The place of a rule among all is its number.

    Raises:
        ValueError: an automaton would be too large.
    """

    def __init__(self, families: Sequence[Sequence[Sequence[re.Pattern[str]]]]) -> None:
        self._always: list[int] = []
        self._sets: list[tuple[list[int], Any]] = []
        self._needed: dict[int, int] = {}
        options = re2.Options()
        options.max_mem = _BYTES
        options.encoding = re2.Options.Encoding.LATIN1
        options.never_capture = True
        first = 0
        for family in families:
            automaton = re2.Set.SearchSet(options)
            automaton.Add(b"")  # found in every text that could be read
            names = [-1]
            for number, needed in enumerate(family, first):
                if not needed:
                    self._always.append(number)
                elif len(needed) > 1:
                    self._needed[number] = len(needed)
                for pattern in needed:
                    automaton.Add(widened(pattern).encode("latin1"))
                    names.append(number)
            first += len(family)
            try:
                automaton.Compile()
            except re2.error as error:
                raise ValueError("expressions must fit an automaton") from error
            if len(names) > 1:
                self._sets.append((names, automaton))
        self.everything = range(first)

    def candidates(self, lowered: str) -> Sequence[int]:
        """Return the numbers of the rules of which all may match, in order.

        **Formal guarantee.** Of a rule that is not among them an expression matches
        nothing in the text, or in the text cut off behind any of its blanks, from any
        place on. Where a long run without blanks may be cut elsewhere, and where an
        automaton ran out of memory, all are returned.

        Args:
            lowered: a text that went through `canonical` and `lower_in_place`; the
                expression may be one for the text before the latter.
        """
        size = len(lowered)
        blocks = range(0, size - _BLOCK + 1, _BLOCK)
        if any(lowered.find(" ", at, at + _BLOCK) < 0 for at in blocks):
            return self.everything
        data = symbols(lowered).encode("latin1")
        found = list(self._always)
        for names, automaton in self._sets:
            places = automaton.Match(data)
            if places is None or 0 not in places:
                return self.everything
            found += [names[place] for place in places if place]
        found.sort()
        needed = self._needed
        if needed.keys().isdisjoint(found):
            return found
        counts = Counter(found)
        return [n for n, count in counts.items() if count >= needed.get(n, 1)]


def widened(pattern: re.Pattern[str]) -> str:
    r"""Return an expression for RE2 that matches in symbols where another does in text.

    >>> wide = widened(re.compile(r"(?<!a)b(?=c)"))
    >>> [re.search(wide, text) is not None for text in ("b", "ab", "é", "bc")]
    [True, True, False, True]
    """
    tree = _parser.parse(pattern.pattern, pattern.flags)
    return _Widening().sequence(tree, tree.state.flags, leads=True)


class _Widening:
    """Widens one expression; remembers what its groups became."""

    def __init__(self) -> None:
        self._groups: dict[int, str] = {}

    def sequence(self, nodes: Any, flags: int, *, leads: bool) -> str:  # noqa: ANN401
        """Widen nodes; `leads` where nothing of the match stands before them."""
        made = []
        for op, value in nodes:
            made.append(self._node(op, value, flags, leads=leads))
            leads = leads and not made[-1]
        return "".join(made)

    def _node(self, op: Any, value: Any, flags: int, *, leads: bool) -> str:  # noqa: ANN401, PLR0911 - one for each kind
        if op in _ONE:
            return one_of(op, value, flags)
        if op is _parser.SUBPATTERN:
            number, more, less, nodes = value
            return self._group(number, nodes, (flags | more) & ~less, leads=leads)
        if op is _parser.ATOMIC_GROUP:
            return self._group(None, value, flags, leads=leads)
        if op is _parser.BRANCH:
            ways = (self.sequence(way, flags, leads=leads) for way in value[1])
            return f"(?:{'|'.join(ways)})"
        if op in _REPEATS:
            least, most, nodes = value
            return self._group(None, nodes, flags, leads=False) + _times(least, most)
        if op is _parser.AT:
            return _place(value, flags)
        if op is _parser.ASSERT_NOT and leads:
            return _before(value, flags)
        if op in (_parser.ASSERT, _parser.ASSERT_NOT):
            return ""
        if op is _parser.GROUPREF:
            return self._groups.get(value, _ANYTHING)
        return _ANYTHING

    def _group(
        self,
        number: int | None,
        nodes: Any,  # noqa: ANN401
        flags: int,
        *,
        leads: bool,
    ) -> str:
        """Widen a group; what refers to it need not stand where it may."""
        made = f"(?:{self.sequence(nodes, flags, leads=leads)})"
        if number is not None and not re.search(r"\\[bBA]|\^\)|\^\|", made):
            self._groups[number] = made
        return made


def _times(least: int, most: int) -> str:
    """Write a repeat; long ones have no end."""
    least = min(least, _MOST_COUNTED)
    return f"{{{least},{most}}}" if most <= _MOST_COUNTED else f"{{{least},}}"


def _place(value: Any, flags: int) -> str:  # noqa: ANN401
    """Write borders of words, and starts; ends may be where a text is cut off."""
    if value is _parser.AT_BOUNDARY:
        return r"\b"
    if value in (_parser.AT_BEGINNING, _parser.AT_BEGINNING_STRING):
        is_line = value is _parser.AT_BEGINNING and flags & re.MULTILINE
        return "(?m:^)" if is_line else r"\A"
    return ""


def _before(value: Any, flags: int) -> str:  # noqa: ANN401
    """Write which characters may stand before the match, if one is looked at."""
    direction, nodes = value
    if direction > 0 or len(nodes) != 1 or nodes[0][0] not in _ONE:
        return ""
    op, inner = nodes[0]
    if op is _LITERAL:
        other = (_NOT_LITERAL, inner)
    elif op is _NOT_LITERAL:
        other = (_LITERAL, inner)
    elif op is _IN and inner[0][0] is _NEGATE:
        other = (_IN, inner[1:])
    elif op is _IN:
        other = (_IN, [(_NEGATE, None), *inner])
    else:
        return ""
    return f"(?:^|{one_of(other[0], other[1], flags)})"


def one_of(op: Any, value: Any, flags: int) -> str:  # noqa: ANN401
    """Write the symbols of all characters that a node matches, as a class."""
    return _class_of(repr((op, value)), flags, (op, value))


_classes: Final[dict[tuple[str, int], str]] = {}


def _class_of(written: str, flags: int, node: Any) -> str:  # noqa: ANN401
    """Write a class, computed once for each."""
    key = written, flags
    if key not in _classes:
        found = {mark.lower() for mark in _matched(node, flags)}
        found |= _beyond(node[0], node[1], flags)
        others = [f"\\x{ord(mark):02x}" for mark in _ASCII if mark not in found]
        _classes[key] = f"[^{''.join(others)}\\x80-\\xff]"
    return _classes[key]


def _matched(node: Any, flags: int) -> Iterator[str]:  # noqa: ANN401
    """Yield the ASCII characters that a node matches."""
    state = _parser.State()
    state.flags = flags
    pattern = _compiler.compile(_parser.SubPattern(state, [node]), flags)
    return (mark for mark in _ASCII if pattern.match(mark))


def _beyond(op: Any, value: Any, flags: int) -> frozenset[str]:  # noqa: ANN401
    """Return the symbols of other characters that a node may match."""
    folds = flags & re.IGNORECASE
    if op is _LITERAL:
        return _BEYOND if value > 127 else frozenset(WORD if folds else "")
    if op is not _IN:
        return _BEYOND
    found: set[str] = set()
    for kind, inner in value:
        if kind is _parser.CATEGORY:
            found |= _OF_CATEGORY.get(inner, _BEYOND)
        elif kind is _LITERAL or kind is _parser.RANGE:
            last = inner if kind is _LITERAL else inner[1]
            found |= _BEYOND if last > 127 else {WORD} if folds else set()
        else:
            return _BEYOND
    return frozenset(found)


_OF_CATEGORY: Final = {
    _parser.CATEGORY_DIGIT: frozenset[str](),  # `canonical` leaves ASCII digits alone
    _parser.CATEGORY_WORD: frozenset(WORD),
    _parser.CATEGORY_SPACE: frozenset(SIGN),
}
