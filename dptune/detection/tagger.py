"""A small network that tells from a word and its neighbors whether it is a name.

It reads English of any case and quality: rows of `features.py` are summed, three layers
look at the neighbors, a last one scores. How it was trained, and what it reaches, says
docs/TAGGER.md.

**Formal guarantee.** Scores depend on the text alone, on every machine. Weights and
activations are integers, and every sum of products stays below 2**24, which is checked
when the file is read; so arithmetic in float32 is exact, whatever order a library adds
in, and whatever else is in the batch.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy

from dptune.detection.features import (
    PADDING,
    TokenizedTexts,
    describe,
    rows_by_place,
    tokenize,
)
from dptune.detection.recognizer import code_digest, fingerprint_of
from dptune.errors import ArtifactError

LAYERS = ((-2, -1, 0, 1, 2), (-2, -1, 0, 1, 2), (-4, -2, 0, 2, 4))
"""Where each layer looks, in tokens."""
TYPES = ("PERSON", "PLACE", "ORG", "NORP")
LARGEST_SUM = 1023
LARGEST_ACTIVATION = 255
_EXACT = 2**24
_BLOCK = 8192
_REACH = sum(max(offsets) for offsets in LAYERS)
_MAX_TOKENS = 1 << 16
FILE = "tagger.safetensors"

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]


class Network:
    """The integer network.

    Args:
        tensors: `table` (rows, width); for each layer `weight` (looks, inputs,
            outputs), `bias` (outputs,) and `shift` (1,); `scores.weight`, `.bias`.

    Raises:
        ArtifactError: a sum could leave the exact range of float32.
    """

    def __init__(self, tensors: dict[str, npt.NDArray[Any]]) -> None:
        self.table = tensors["table"].astype(np.int16)
        self._layers = [
            (
                tensors[f"layer{n}.weight"].astype(np.float32),
                tensors[f"layer{n}.bias"].astype(np.float32),
                np.float32(2.0 ** -int(tensors[f"layer{n}.shift"][0])),
            )
            for n in range(len(LAYERS))
        ]
        self._scores = (
            tensors["scores.weight"].astype(np.float32),
            tensors["scores.bias"].astype(np.float32),
        )
        largest = LARGEST_SUM
        for weight, bias, _ in self._layers:
            _check_exact(weight, bias, largest)
            largest = LARGEST_ACTIVATION
        _check_exact(*self._scores, largest)

    def scores(self, state: FloatArray, is_real: npt.NDArray[np.bool_]) -> IntArray:
        """Return scores of places.

        Args:
            state: sums of rows, shape (places, width).
            is_real: False at empty places.

        Returns:
            Integers of shape (places, 2 + types): name, name that is no personal data,
            and each of `TYPES`.
        """
        outputs = []
        real = is_real.astype(np.float32)[:, None]
        for (weight, bias, scale), offsets in zip(self._layers, LAYERS, strict=True):
            total = np.tile(bias, (len(state), 1))
            for matrix, offset in zip(weight, offsets, strict=True):
                low, high = max(0, -offset), len(state) - max(0, offset)
                if low < high:
                    total[low:high] += state[low + offset : high + offset] @ matrix
            state = np.floor(total * scale).clip(0, LARGEST_ACTIVATION) * real
            outputs.append(state)
        weight, bias = self._scores
        return (np.concatenate(outputs, axis=1) @ weight + bias).astype(np.int64)


def _check_exact(weight: FloatArray, bias: FloatArray, largest: int) -> None:
    inputs = np.abs(weight).reshape(-1, weight.shape[-1]).sum(axis=0)
    bound = float((inputs * largest + np.abs(bias)).max())
    if not bound < _EXACT:
        raise ArtifactError(
            f"weights must keep sums below {_EXACT}, got a bound of {bound:.0f}. "
            "Round them to fewer levels."
        )


class Tagger:
    """Scores the tokens of texts; remembers what it read off token strings.

    Args:
        network: the weights.
        thresholds: what `tagger.safetensors` says of its scores.
        digest: changes whenever a score may change.
    """

    def __init__(
        self, network: Network, *, thresholds: dict[str, int], digest: str
    ) -> None:
        self.thresholds = thresholds
        self.fingerprint = digest
        self._network = network
        self._forget()

    def __getstate__(self) -> dict[str, Any]:
        """Leave what was read off tokens behind: processes read their own."""
        kept = ("thresholds", "fingerprint", "_network")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def _forget(self) -> None:
        width = self._network.table.shape[1]
        self._ids: dict[str, int] = {}
        self._sums = np.zeros((_MAX_TOKENS, width), dtype=np.int16)
        self._cases = np.zeros(_MAX_TOKENS, dtype=np.int64)
        self._closed = np.zeros(_MAX_TOKENS, dtype=np.bool_)
        self._ends = np.zeros(_MAX_TOKENS, dtype=np.bool_)

    def score(self, texts: Sequence[str]) -> tuple[TokenizedTexts, IntArray]:
        """Score every token of some texts.

        Returns:
            The tokens, and their scores of shape (places, 2 + types).
        """
        tokens = tokenize(texts)
        ids = self._ids_of(tokens.tokens)
        capitals, glue = rows_by_place(
            tokens, self._cases[ids], self._closed[ids], self._ends[ids]
        )
        blocks = [
            self._score_block(ids, capitals, glue, first)
            for first in range(0, len(ids), _BLOCK)
        ]
        return tokens, np.concatenate(blocks)

    def _ids_of(self, tokens: list[str]) -> IntArray:
        """Return the number of each token string; new ones are read."""
        ids = self._ids
        new = [t for t in dict.fromkeys(tokens) if t not in ids]
        if len(ids) + len(new) > _MAX_TOKENS:
            self._forget()
            ids, new = self._ids, list(dict.fromkeys(tokens))
        for token in new:
            number = ids[token] = len(ids)
            seen = describe(token)
            self._sums[number] = self._network.table[list(seen.rows)].sum(axis=0)
            self._cases[number] = seen.case
            self._closed[number] = seen.is_closed
            self._ends[number] = seen.ends_sentence
        return np.fromiter(map(ids.__getitem__, tokens), np.int64, len(tokens))

    def _score_block(
        self, ids: IntArray, capitals: IntArray, glue: IntArray, first: int
    ) -> IntArray:
        """Score one block, with as many neighbors as the layers can see."""
        low = max(0, first - _REACH)
        high = min(len(ids), first + _BLOCK + _REACH)
        part = slice(low, high)
        table = self._network.table
        sums = self._sums[ids[part]] + table[capitals[part]] + table[glue[part]]
        state = sums.clip(-LARGEST_SUM, LARGEST_SUM).astype(np.float32)
        scores = self._network.scores(state, capitals[part] != PADDING)
        return scores[first - low : min(first + _BLOCK, len(ids)) - low]


@lru_cache(maxsize=1)
def load_tagger() -> Tagger:
    """Read the tagger that ships with the package."""
    data = resources.files("dptune.detection").joinpath(FILE).read_bytes()
    return read_tagger(data)


def read_tagger(data: bytes) -> Tagger:
    """Read a tagger from the bytes of its file."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])["__metadata__"]
    thresholds = {name: int(value) for name, value in header.items()}
    code = code_digest("features", "names", "words", "tagger")
    digest = fingerprint_of((hashlib.sha256(data).hexdigest(), code))
    tensors = safetensors.numpy.load(data)
    return Tagger(Network(tensors), thresholds=thresholds, digest=digest)
