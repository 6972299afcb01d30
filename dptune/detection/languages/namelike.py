"""How much a word looks like a name: weights of its pieces, for Arabic and Hindi.

A logistic regression over the character pairs, triples and quadruples of a word, and
over the word itself, hashed. It was trained on the name lists of the tables against
ordinary words; `benchmarks/train_names.py` is the program.
"""

import zlib
from collections.abc import Iterator
from functools import lru_cache

from safetensors.numpy import load

from dptune.detection.languages.tables import read_bytes

BUCKETS = 1 << 15


def pieces_of(word: str) -> Iterator[int]:
    """Yield the bucket of each different piece of a word, and of the word.

    >>> len(set(pieces_of("ab")))
    6

    Args:
        word: in the plain spelling of its language.
    """
    form = f"<{word}>"
    pieces = {form[i : i + n] for n in (2, 3, 4) for i in range(len(form) - n + 1)}
    yield from {zlib.crc32(x.encode()) % BUCKETS for x in (*pieces, form)}


@lru_cache
def _weights(code: str) -> tuple[bytes, int]:
    table = load(read_bytes("names.safetensors"))
    return table[code].tobytes(), int(table[f"{code}_bias"][0])


@lru_cache(maxsize=65536)
def likeness(word: str, code: str) -> int:
    """Return the score of a word; above zero a name is the likelier reading.

    Args:
        word: in the plain spelling of its language.
        code: `ar` or `hi`.
    """
    weights, bias = _weights(code)
    return sum(weights[bucket] - 128 for bucket in pieces_of(word)) + bias
