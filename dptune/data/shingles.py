"""Hashes of runs of three words, and their MinHash, of many texts at once.

A run is known by the CRC-32 of its words, in lower case with blanks between them. That
is linear: of words `a` and `b`, `crc(a + b) = shift(crc(a), len(b)) ^ crc(b)`, where
`shift` appends zero bytes, so that the hashes of runs follow from those of words.

References:
    M. Adler and J. Gailly, zlib, `crc32_combine`; Broder (1997), "On the resemblance
    and containment of documents".
"""

import re
import zlib
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dptune.conversation import said_in_turns

SHINGLE_WORDS: Final = 3
_WORD = re.compile(r"\w+")
_LONGEST: Final = 64
"""Bytes; a text with a longer word is hashed by itself."""
_CELLS: Final = 1024
"""Runs whose permutations fit a cache of the processor."""

Hashes = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]


def text_shingles(text: str) -> list[int]:
    """Hash every run of three words of a text; shorter texts count as one run."""
    words = _words(text) or [text]
    last = max(len(words) - SHINGLE_WORDS, 0)
    return [
        zlib.crc32(" ".join(words[i : i + SHINGLE_WORDS]).encode())
        for i in range(last + 1)
    ]


def shingle(texts: pa.StringArray) -> tuple[Hashes, Offsets]:
    """Hash the runs of many texts, as `text_shingles` does for one.

    Args:
        texts: `(texts,)`, without nulls.

    Returns:
        Hashes of all runs, and where those of each text begin and the last ends,
        `(texts + 1,)`.
    """
    data, bounds = _normal(texts)
    starts, lengths, of_text = _find_words(data, bounds)
    counts = np.bincount(of_text, minlength=len(texts))
    is_odd = counts == 0
    is_odd[of_text[lengths > _LONGEST]] = True
    lengths = np.minimum(lengths, _LONGEST)
    words = _hash_words(data, starts, lengths)
    offsets = np.zeros(len(texts) + 1, np.int64)
    odd = {int(i): text_shingles(texts[int(i)].as_py()) for i in np.flatnonzero(is_odd)}
    sizes = np.maximum(counts - (SHINGLE_WORDS - 1), 1)
    sizes[list(odd)] = [len(runs) for runs in odd.values()]
    np.cumsum(sizes, out=offsets[1:])
    hashes = np.empty(offsets[-1], np.uint32)
    first = np.cumsum(counts) - counts
    place = np.arange(len(of_text)) - first[of_text]
    pairs = words.copy()
    pairs[:-1] = _joined(words[:-1], words[1:], lengths[1:])
    runs = pairs.copy()
    runs[:-2] = _joined(pairs[:-2], words[2:], lengths[2:])
    left, is_even = counts[of_text] - place, ~is_odd[of_text]
    for wanted, values in (
        (is_even & (left >= SHINGLE_WORDS), runs),
        (is_even & (counts[of_text] == 2) & (place == 0), pairs),
        (is_even & (counts[of_text] == 1), words),
    ):
        hashes[offsets[of_text[wanted]] + place[wanted]] = values[wanted]
    for text, values_of_text in odd.items():
        hashes[offsets[text] : offsets[text + 1]] = values_of_text
    return hashes, offsets


def minhash(
    hashes: Hashes, offsets: Offsets, permutations: npt.NDArray[np.uint32]
) -> Hashes:
    """Return the smallest permuted hash of each text under each permutation.

    Args:
        hashes: of all runs.
        offsets: where those of each text begin, and the last ends; none is empty.
        permutations: odd factors and summands modulo 2^32, `(2, permutations)`.

    Returns:
        `(texts, permutations)`.
    """
    mixed = _mixed(hashes)
    sizes = np.diff(offsets)
    order = np.argsort(sizes, kind="stable")
    found = np.empty((len(sizes), permutations.shape[1]), np.uint32)
    done = 0
    while done < len(order):
        group = order[done : done + _num_alike(sizes[order[done:]])]
        widest = int(sizes[group[-1]])
        places = np.minimum(np.arange(widest), sizes[group][:, None] - 1)
        cells = mixed[offsets[group][:, None] + places]  # (group, widest)
        for start in range(0, widest, _CELLS):
            part = cells[:, start : start + _CELLS, None] * permutations[0]
            part += permutations[1]
            least = part.min(axis=1)
            found[group] = np.minimum(found[group], least) if start else least
        done += len(group)
    return found


def _num_alike(sizes: Offsets) -> int:
    """Count the first texts, of sizes that ascend, whose runs fit together."""
    number = max(1, min(len(sizes), _CELLS // int(sizes[0])))
    while number > 1 and number * sizes[number - 1] > _CELLS:
        number = max(1, _CELLS // int(sizes[number - 1]))
    return number


def _words(text: str) -> list[str]:
    return _WORD.findall(said_in_turns(text).casefold())


def _normal(texts: pa.StringArray) -> tuple[npt.NDArray[np.uint8], Offsets]:
    """Return bytes in which words can be told by bytes alone, and bounds of texts."""
    places = np.frombuffer(
        texts.buffers()[1], np.int32, len(texts) + 1, texts.offset * 4
    )
    bounds: Offsets = places.astype(np.int64)
    values = texts.buffers()[2]
    data = np.frombuffer(values, np.uint8) if values is not None else _EMPTY
    data = data[bounds[0] : bounds[-1]]
    bounds = bounds - bounds[0]
    if not len(data) or data.max() < 0x80:
        return np.asarray(_LOWER[data], np.uint8), bounds
    written = [
        (text.lower() if text.isascii() else " ".join(_words(text))).encode()
        for text in texts.to_pylist()
    ]
    bounds = np.zeros(len(written) + 1, np.int64)
    np.cumsum([len(text) for text in written], out=bounds[1:])
    return np.frombuffer(b"".join(written), np.uint8), bounds


def _find_words(
    data: npt.NDArray[np.uint8], bounds: Offsets
) -> tuple[Offsets, Offsets, Offsets]:
    """Return where words begin, how long they are, and in which text each is."""
    inside = np.zeros(len(data) + 2, bool)
    inside[1:-1] = _IS_WORD[data]
    begins = inside[1:-1] & ~inside[:-2]
    ends = inside[1:-1] & ~inside[2:]
    cuts = bounds[1:-1][(bounds[1:-1] > 0) & (bounds[1:-1] < len(data))]
    begins[cuts] = inside[1:-1][cuts]
    ends[cuts - 1] = inside[1:-1][cuts - 1]
    starts = np.flatnonzero(begins)
    lengths = np.flatnonzero(ends) - starts + 1
    return starts, lengths, np.searchsorted(bounds[1:], starts, side="right")


def _hash_words(
    data: npt.NDArray[np.uint8], starts: Offsets, lengths: Offsets
) -> Hashes:
    """Return the CRC-32 of every word, byte by byte of all at once."""
    order = np.argsort(-lengths, kind="stable")
    reach = len(lengths) - np.searchsorted(
        lengths[order][::-1], np.arange(_LONGEST) + 1
    )
    place = starts[order]
    state = np.full(len(starts), 0xFFFFFFFF, np.uint32)
    table = _shifts(1)[0]
    for byte, number in enumerate(reach):
        if not number:
            break
        part = state[:number]
        part[:] = table[(part ^ data[place[:number] + byte]) & 0xFF] ^ (part >> 8)
    hashes = np.empty_like(state)
    hashes[order] = ~state
    return hashes


def _joined(left: Hashes, right: Hashes, lengths: Offsets) -> Hashes:
    """Return hashes of words, a blank, and words of some lengths behind it."""
    tables, blanks = _tables()
    shifted = blanks[lengths] ^ right
    cell = (lengths + 1) << 10
    for byte in range(4):
        value = (left >> np.uint32(8 * byte)) & np.uint32(0xFF)
        shifted ^= tables.ravel()[cell + ((byte << 8) + value)]
    return shifted


@cache
def _tables() -> tuple[npt.NDArray[np.uint32], Hashes]:
    """Return shifts by each length, and hashes of a blank that many zeros follow."""
    tables = np.stack([_shifts(length) for length in range(_LONGEST + 2)])
    blank = zlib.crc32(b" ")
    blanks = np.zeros(_LONGEST + 1, np.uint32)
    for byte in range(4):
        blanks ^= tables[: _LONGEST + 1, byte, (blank >> (8 * byte)) & 0xFF]
    return tables, blanks


@cache
def _shifts(length: int) -> npt.NDArray[np.uint32]:
    """Return, for each byte of a hash, what it becomes as zero bytes are appended.

    `crc32` of a state is complemented on the way in and out, which cancels here.
    """
    zeros = bytes(length)
    nothing = zlib.crc32(zeros)
    return np.array(
        [
            [zlib.crc32(zeros, value << (8 * byte)) ^ nothing for value in range(256)]
            for byte in range(4)
        ],
        np.uint32,
    )


def _mixed(hashes: Hashes) -> Hashes:
    """Apply the finalizer of MurmurHash3 (Appleby, public domain), a bijection."""
    mixed = hashes ^ (hashes >> np.uint32(16))
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    mixed ^= mixed >> np.uint32(16)
    return mixed


_EMPTY: Final = np.empty(0, np.uint8)
_LOWER: Final = np.frombuffer(bytes(range(256)).lower(), np.uint8)
_IS_WORD: Final = np.array(
    [byte >= 0x80 or chr(byte) == "_" or chr(byte).isalnum() for byte in range(256)]
)
