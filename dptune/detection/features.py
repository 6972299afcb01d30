"""What the tagger sees of a text: rows of its table for every token.

A row stands for a property: the word itself, its first and last letters, its readings
in the lexicon, its capitals, and what kind of line it stands in. Strings are spread
over the table by a checksum, so that no vocabulary is kept. In a line without capitals,
or without anything else, capitals say nothing and are not shown.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dptune.detection import words as w
from dptune.detection.names import SENTENCE_END, TOKEN, form

TABLE_SIZE = 1 << 15
_FIXED = 512  # rows below are not shared by hashing
PADDING = 0
_READING, _TERM, _LENGTH, _CASE, _GLUE, _OTHER = 1, 39, 40, 64, 128, 140
NUM_PADS = 4
"""Empty places between two texts: no layer looks further in one step."""

_LOWER, _TITLE, _UPPER, _MIXED, _LETTER, _NO_WORD = range(6)
_CASELESS, _SENTENCE, _CAPITALS, _HEADLINE = range(4)

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Token:
    """What follows from the letters of a token alone."""

    rows: tuple[int, ...]
    case: int
    is_closed: bool
    ends_sentence: bool


@dataclass(frozen=True, kw_only=True)
class TokenizedTexts:
    """The tokens of several texts in one row, with empty places between texts.

    Args:
        tokens: the strings; an empty string is an empty place.
        starts: of each token in its text; shape (places,).
        ends: shape (places,).
        first_places: place of the first token of each text.
        num_tokens: of each text.
    """

    tokens: list[str]
    starts: list[int]
    ends: list[int]
    first_places: list[int]
    num_tokens: list[int]


def tokenize(texts: Sequence[str]) -> TokenizedTexts:
    """Split texts into words, numbers, signs and line ends."""
    pads = [""] * NUM_PADS
    nowhere = [0] * NUM_PADS
    tokens, starts, ends = list(pads), list(nowhere), list(nowhere)
    first_places, num_tokens = [], []
    for text in texts:
        matches = list(TOKEN.finditer(text))
        first_places.append(len(tokens))
        num_tokens.append(len(matches))
        tokens += [match.group() for match in matches]
        starts += [match.start() for match in matches]
        ends += [match.end() for match in matches]
        tokens += pads
        starts += nowhere
        ends += nowhere
    return TokenizedTexts(
        tokens=tokens,
        starts=starts,
        ends=ends,
        first_places=first_places,
        num_tokens=num_tokens,
    )


def describe(token: str) -> Token:
    """Return what the letters of a token say."""
    if not token:
        return Token(rows=(PADDING,), case=_NO_WORD, is_closed=True, ends_sentence=True)
    if not token[0].isalpha():
        return _describe_sign(token)
    length, lower, reading, capital, shout = form(token)
    stem = token[:length]
    case = _LOWER
    if capital:
        case = _UPPER if shout else _TITLE if length > 1 else _LETTER
    if not shout and length > 1 and not (stem[1:].islower() or stem[1:].isupper()):
        case = _MIXED
    ends = token[-1] == "." and length > 1 and not reading & w.TITLE
    return Token(
        rows=tuple(_rows_of_word(lower, reading)),
        case=case,
        is_closed=bool(reading & w.CLOSED),
        ends_sentence=ends,
    )


def _describe_sign(token: str) -> Token:
    """Return what is seen of a number by its digits, or of a sign."""
    shape = token
    if token[0].isdigit():
        digits = sum(character.isdigit() for character in token)
        signs = "".join(sorted({c for c in token if not c.isdigit()}))
        year = token[:2] if digits == 4 and token[:2] in ("19", "20") else ""
        shape = f"0{min(digits, 9)}{signs}{year}"
    ends = token in SENTENCE_END
    rows = (_OTHER + zlib.crc32(shape[:12].encode()) % (_FIXED - _OTHER),)
    return Token(rows=rows, case=_NO_WORD, is_closed=True, ends_sentence=ends)


def _rows_of_word(lower: str, reading: int) -> list[int]:
    """Return the rows of a word whatever its capitals."""
    rows = [_READING + bit for bit in range(reading.bit_length()) if reading >> bit & 1]
    if lower in w.public_words():
        rows.append(_TERM)
    rows.append(_LENGTH + min(len(lower), 20))
    marked = f"^{lower[:24]}$"
    parts = [f"w{lower}", f"W{lower}"]
    parts += [f"p{lower[:size]}" for size in (1, 2, 3, 4) if size <= len(lower)]
    parts += [f"s{lower[-size:]}" for size in (1, 2, 3, 4) if size <= len(lower)]
    parts += [f"t{marked[at : at + 3]}" for at in range(len(marked) - 2)]
    size = TABLE_SIZE - _FIXED
    rows += [_FIXED + zlib.crc32(part.encode()) % size for part in parts]
    return rows


def rows_by_place(
    texts: TokenizedTexts,
    cases: IntArray,
    is_closed: npt.NDArray[np.bool_],
    ends_sentence: npt.NDArray[np.bool_],
) -> tuple[IntArray, IntArray]:
    """Return the two rows of each token that depend on where it stands.

    Args:
        texts: the tokens.
        cases: of each token, shape (places,).
        is_closed: closed classes, signs and empty places.
        ends_sentence: likewise.

    Returns:
        Rows of capitals and of what touches the token; `PADDING` at empty places.
    """
    tokens = texts.tokens
    is_word = cases != _NO_WORD
    starts_sentence = _starts_sentence(is_word, ends_sentence)
    ends_line = np.fromiter((t in ("\n", "") for t in tokens), np.bool_, len(tokens))
    line: IntArray = np.cumsum(ends_line, dtype=np.int64)
    style = _styles(line, cases, is_closed, starts_sentence)[line]
    shown = np.where((style == _CASELESS) & is_word, _LOWER, cases)
    capitals = _CASE + (shown * 4 + style) * 2 + starts_sentence
    starts, ends = np.asarray(texts.starts), np.asarray(texts.ends)
    touches = np.zeros(len(tokens), dtype=np.bool_)
    touches[1:] = (starts[1:] == ends[:-1]) & ~ends_line[1:] & ~ends_line[:-1]
    glue = _GLUE + touches * 2
    glue[:-1] += touches[1:]
    is_empty = np.fromiter((not token for token in tokens), np.bool_, len(tokens))
    capitals[is_empty] = glue[is_empty] = PADDING
    return capitals, glue


def _starts_sentence(
    is_word: npt.NDArray[np.bool_], ends_sentence: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Tell which places have an end of a sentence between them and the last word."""
    places = np.arange(len(is_word))
    last_end = np.maximum.accumulate(np.where(ends_sentence, places, -1))
    last_word = np.maximum.accumulate(np.where(is_word, places, -1))
    found = np.ones(len(is_word), dtype=np.bool_)
    found[1:] = last_end[:-1] >= last_word[:-1]
    return found


def _styles(
    line: IntArray,
    cases: IntArray,
    is_closed: npt.NDArray[np.bool_],
    starts_sentence: npt.NDArray[np.bool_],
) -> IntArray:
    """Return for each line what capitals say in it, shape (lines,)."""
    size = int(line[-1]) + 1

    def count(which: npt.NDArray[np.bool_]) -> IntArray:
        return np.bincount(line[which], minlength=size)

    is_word = cases != _NO_WORD
    is_capital = is_word & (cases != _LOWER)
    inside = count(is_capital & ~starts_sentence & ~is_closed)
    words = count(is_word)
    upper, lower = count(cases == _UPPER), count(cases == _LOWER)
    is_shouted = (upper >= 3) & (upper > 4 * lower)
    is_headline = (words >= 3) & (4 * inside >= 3 * (words - 1))
    styles = np.where(inside == 0, _SENTENCE, _CAPITALS)
    styles[is_headline] = _HEADLINE
    styles[is_shouted | (lower == words)] = _CASELESS
    return styles
