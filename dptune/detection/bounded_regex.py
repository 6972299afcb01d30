"""Regular expressions of a configuration, whose time is bounded before they run.

Python's engine tries one way after another. `(a+)+b` has exponentially many on a run of
`a`; `a+x` has one per letter, but tries them again from every letter, so that a long
run costs its length squared. Hostile texts hold such runs, and a time limit would make
marks depend on how busy the machine is. So the number of steps from one start is
computed from the expression alone, and what may take more than `MAX_STEPS`, or reads on
without bound, is refused: the time is then at most that many steps a character.
"""

import importlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

MAX_STEPS: Final = 2_000
"""Steps that a search may take from one place of a text."""
MAX_CHARACTERS: Final = 1_000
_MOST: Final = 1 << 60

# The parser of the standard library: the tree that `re` itself compiles.
_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")

_ONE: Final = frozenset(["LITERAL", "NOT_LITERAL", "ANY", "IN"])
_CHOICES: Final = frozenset(["BRANCH", "GROUPREF_EXISTS"])
_CLOSED: Final = frozenset(["ATOMIC_GROUP", "ASSERT", "ASSERT_NOT"])
_REPEATS: Final = frozenset(["MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"])


def compiled(source: str, *, ignore_case: bool) -> re.Pattern[str]:
    """Compile an expression whose time is bounded.

    >>> compiled(r"E-[0-9]{5}", ignore_case=False).search("badge E-12345").group()
    'E-12345'

    Raises:
        ValueError: it is none, matches nothing, or may take too long.
    """
    if len(source) > MAX_CHARACTERS:
        raise ValueError(f"must have at most {MAX_CHARACTERS} characters")
    flags = re.IGNORECASE if ignore_case else 0
    try:
        pattern = re.compile(source, flags)
        tree = _parser.parse(source, flags)
    except (re.error, RecursionError, OverflowError) as error:
        where = getattr(error, "pos", None)
        at = "" if where is None else f" at character {where}"
        raise ValueError(f"must be a regular expression, but is none{at}") from None
    if pattern.search("") is not None or tree.getwidth()[0] == 0:
        raise ValueError("must not match the empty text")
    _, steps = _cost(list(tree), tree.state.flags)
    if steps > MAX_STEPS:
        raise ValueError(
            f"must take at most {MAX_STEPS:,} steps from one place of a text, but may "
            f"take {'far more' if steps > 1_000 * MAX_STEPS else f'{steps:,}'}; write "
            "repeats that cannot be split in several ways, or possessive ones such as "
            "{1,20}+"
        )
    return pattern


def _cost(nodes: Sequence[Any], flags: int) -> tuple[int, int]:
    """Bound in how many ways a sequence matches, and the steps to try all of them."""
    ways, steps = 1, 0
    for index, (op, value) in enumerate(nodes):
        following = nodes[index + 1] if index + 1 < len(nodes) else None
        more, work = _cost_of(str(op), value, flags, following)
        steps = min(_MOST, steps + ways * work)
        ways = min(_MOST, ways * more)
    return ways, steps


def _cost_of(op: str, value: Any, flags: int, following: Any) -> tuple[int, int]:  # noqa: ANN401
    """Bound ways and steps of one node."""
    if op in _REPEATS:
        return _cost_of_repeat(op, value, flags, following)
    if op == "SUBPATTERN":
        return _cost(list(value[3]), (flags | value[1]) & ~value[2])
    if op in _CHOICES:
        branches = value[1] if op == "BRANCH" else value[1:]
        costs = [_cost(list(branch or ()), flags) for branch in branches]
        return sum(c[0] for c in costs), sum(c[1] + 1 for c in costs)
    steps = 1
    if op in _CLOSED:  # tried once: no other way is looked for later
        steps += _cost(list(value if op == "ATOMIC_GROUP" else value[1]), flags)[1]
    elif op == "GROUPREF":
        steps = MAX_CHARACTERS
    return 1, steps


def _cost_of_repeat(
    op: str,
    value: Any,  # noqa: ANN401
    flags: int,
    following: Any,  # noqa: ANN401
) -> tuple[int, int]:
    """Bound a repeat; one that ends where the next sign begins has one way."""
    least, most, item = value
    if most is _parser.MAXREPEAT or most > MAX_CHARACTERS:
        raise ValueError(
            f"must not repeat without bound or more than {MAX_CHARACTERS} times; "
            "instead of + write {1,40}, instead of * write {0,40}"
        )
    ways, work = _cost(list(item), flags)
    if op == "POSSESSIVE_REPEAT":
        return 1, most * work + 1
    if ways == 1:
        steps = most * work + 1
        ends = _is_determined(list(item), following, flags)
        return (1, steps + most - least) if ends else (most - least + 1, steps)
    tried, states = 0, 1
    total = 1 if least == 0 else 0
    for count in range(1, most + 1):
        tried = min(_MOST, tried + states * work)
        states = min(_MOST, states * ways)
        total = min(_MOST, total + states) if count >= least else total
    return total, tried + 1


def _is_determined(item: list[Any], following: Any, flags: int) -> bool:  # noqa: ANN401
    """Whether no character can both go on a repeat and begin what follows it."""
    if len(item) != 1 or str(item[0][0]) not in _ONE or following is None:
        return False
    op = str(following[0])
    if op in _REPEATS and following[1][0] > 0 and len(following[1][2]):
        return _is_determined(item, following[1][2][0], flags)
    if op == "SUBPATTERN" and len(following[1][3]) and following[1][1:3] == (0, 0):
        return _is_determined(item, following[1][3][0], flags)
    if op not in _ONE:
        return False
    one, other = (_characters(repr(node), flags, node) for node in (item[0], following))
    return one.isdisjoint(other)


def _characters(written: str, flags: int, node: Any) -> frozenset[str]:  # noqa: ANN401
    """Return every character that a class matches."""
    known = _known_characters()
    key = (written, flags)
    if key not in known:
        state = _parser.State()
        state.flags = flags
        pattern = _compiler.compile(_parser.SubPattern(state, [node]), flags)
        known[key] = frozenset(pattern.findall(_every_character()))
    return known[key]


@lru_cache(maxsize=1)
def _known_characters() -> dict[tuple[str, int], frozenset[str]]:
    return {}


@lru_cache(maxsize=1)
def _every_character() -> str:
    """Return the characters below U+20000 and some beyond, without surrogates."""
    codes = (*range(0xD800), *range(0xE000, 0x20000), 0x20000, 0x10FFFF)
    return "".join(map(chr, codes))
