"""Texts that are nearly copies of earlier ones, by MinHash and exact comparison."""

import io
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from datasketch import MinHash

from dptune.data.engine import Engine, append, load
from dptune.data.shingles import Hashes, minhash, shingle
from dptune.data.table import RANK_BITS

NUM_PERMUTATIONS: Final = 128
_RECALL: Final = 0.99
_TEXTS_AT_ONCE: Final = 2048
_SETS_AT_ONCE: Final = 4_000
_KEYS_AT_ONCE: Final = 500_000
_BYTES: Final = 4
"""Of a hash."""

Positions = npt.NDArray[np.int64]
Copies = npt.NDArray[np.int64]
"""Ranks of copies and of what they are copies of, `(copies, 2)`."""


def find_near_copies(
    texts: Iterable[tuple[Positions, pa.StringArray]],
    *,
    delays: Positions,
    threshold: float,
    engine: Engine,
    folder: Path | None,
) -> Copies:
    """Find each text that is near an earlier one which is no near copy itself.

    Args:
        texts: positions and texts, in order of positions.
        delays: of every record: earlier is what has a smaller delay, then a smaller
            position.
        threshold: Jaccard similarity in (0, 1].
        engine: where equal bands are looked for.
        folder: private folder for hashes; None keeps them in memory.

    Returns:
        Ranks of each near copy and of the first text that it is near; a rank is a
        position below a delay, in bits.
    """
    bands, rows = _bands(threshold)
    permutations = _permutations()
    with _file(folder) as sink:
        runs = _Runs(sink)
        for positions, part in texts:
            for start in range(0, len(part), _TEXTS_AT_ONCE):
                piece = slice(start, start + _TEXTS_AT_ONCE)
                hashes, offsets = shingle(part[piece])
                runs.append(positions[piece], hashes, offsets)
                keys = _keys(minhash(hashes, offsets, permutations), bands, rows)
                ranks = (delays[positions[piece]] << RANK_BITS) | positions[piece]
                columns = {f"b{i}": keys[:, i] for i in range(bands)}
                write = append if runs.num_parts > 1 else load
                write(engine, "bands", {"rank": ranks, **columns})
        near = dict[int, int]()
        if runs.num_parts:
            runs.close()
            sharing = _sharing(engine, bands, num_texts=runs.num_texts)
            near = _compare(sharing, runs, threshold)
    return np.array(list(near.items()), np.int64).reshape(-1, 2)


def _file(folder: Path | None) -> IO[bytes]:
    """Open a file without a name, or memory."""
    return io.BytesIO() if folder is None else TemporaryFile(dir=folder)


def _compare(
    sharing: Iterable[tuple[int, list[int]]], runs: "_Runs", threshold: float
) -> dict[int, int]:
    """Map the rank of each near copy to that of an earlier text that is none itself."""
    mask = (1 << RANK_BITS) - 1
    with_key = defaultdict[int, list[int]](list)
    near: dict[int, int] = {}
    of = lru_cache(_SETS_AT_ONCE)(runs.of)
    for rank, keys in sharing:
        own = of(rank & mask)
        found = {other for key in keys for other in with_key.get(key, ())}
        for other in sorted(found, key=lambda rank: rank & mask):
            if _jaccard(own, of(other & mask)) >= threshold:
                near[rank] = other
                break
        else:
            for key in keys:
                with_key[key].append(rank)
    return near


def _sharing(
    engine: Engine, bands: int, *, num_texts: int
) -> Iterator[tuple[int, list[int]]]:
    """Yield the texts that share a band with another, and what they share, by rank."""
    at_once = max(1, _KEYS_AT_ONCE // num_texts)
    for start in range(0, bands, at_once):
        names = ", ".join(f"b{i}" for i in range(start, min(start + at_once, bands)))
        write = "INSERT INTO sharing" if start else "CREATE TEMP TABLE sharing AS"
        engine.execute(
            f"{write} WITH keys AS (SELECT rank, unnest([{names}]) AS key FROM bands) "  # noqa: S608 - ours
            "FROM keys SEMI JOIN "
            "(SELECT key FROM keys GROUP BY key HAVING count(*) > 1) USING (key)"
        )
    engine.execute("DROP TABLE bands")
    found = engine.sql(
        "SELECT rank, list(key) AS keys FROM sharing GROUP BY rank ORDER BY rank"
    )
    for batch in found.to_arrow_reader(10_000):
        ranks, keys = (column.to_pylist() for column in batch.columns)
        yield from zip(ranks, keys, strict=True)


class _Runs:
    """Hashes of the runs of all texts.

    Args:
        sink: where they lie.
    """

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._positions: list[Positions] = []
        self._sizes: list[Positions] = []

    @property
    def num_parts(self) -> int:
        """Number of times that texts were added."""
        return len(self._sizes)

    @property
    def num_texts(self) -> int:
        """Number of texts that were added."""
        return sum(map(len, self._positions))

    def append(self, positions: Positions, hashes: Hashes, offsets: Positions) -> None:
        """Add texts behind the others."""
        self._sink.write(hashes.data)
        self._positions.append(positions)
        self._sizes.append(np.diff(offsets))

    def close(self) -> None:
        """From now on `of` may be asked."""
        self._where = np.concatenate(self._positions)
        self._ends = np.cumsum(np.concatenate(self._sizes))

    def of(self, position: int) -> frozenset[int]:
        """Return the runs of the text at a position."""
        number = int(np.searchsorted(self._where, position))
        start = int(self._ends[number - 1]) if number else 0
        self._sink.seek(start * _BYTES)
        found = self._sink.read((int(self._ends[number]) - start) * _BYTES)
        return frozenset(np.frombuffer(found, np.uint32).tolist())


def _permutations() -> npt.NDArray[np.uint32]:
    """Return the factors and summands of MinHash, `(2, permutations)`."""
    known = MinHash(num_perm=NUM_PERMUTATIONS, seed=1, scheme="affine32").permutations
    return np.asarray(known, np.uint32)


def _keys(sketches: Hashes, bands: int, rows: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each band, `(texts, bands)`.

    Two that are equal by chance are compared and told apart like any others.
    """
    used = sketches[:, : bands * rows].astype(np.uint64).reshape(-1, bands, rows)
    factors = np.random.default_rng(0).integers(
        0, 1 << 63, size=(bands, rows), dtype=np.uint64
    )
    return np.asarray(
        (used * (2 * factors + np.uint64(1))).sum(axis=2, dtype=np.uint64)
    )


def _bands(threshold: float) -> tuple[int, int]:
    """Choose the longest bands that propose a pair at the threshold with chance .99.

    With b bands of r rows the chance is `1 - (1 - threshold^r)^b`.
    """
    for rows in range(NUM_PERMUTATIONS // 2, 1, -1):
        bands = NUM_PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= _RECALL:
            return bands, rows
    return NUM_PERMUTATIONS, 1


def _jaccard(left: frozenset[int], right: frozenset[int]) -> float:
    """Divide the size of the intersection by that of the union."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)
