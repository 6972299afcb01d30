"""Tables beyond what memory holds: Arrow files, read and worked on part by part.

A part is a run of `PART_ROWS` records. It is the unit of work in a process, in a pod,
and in the files that let a run that was killed go on where it was.

**Memory.** Files are mapped. Pages that were read count as memory of the process until
somebody lets go of them, so whoever reads a whole table reads it by `batches`.
"""

import mmap
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dptune.errors import ArtifactError, DptuneError
from dptune.files import replacing

if TYPE_CHECKING:  # so that those who only write need no library of data sets
    from datasets import Dataset

PART_ROWS: Final = 2048
LOCK: Final = ".lock"
"""Name of the file that says who alone may remove files from a folder of parts."""
_BATCH_ROWS: Final = 10_000
_SECONDS_BETWEEN_LOOKS: Final = 0.5
_AHEAD: Final = 2
"""Parts that each process is given before their results are taken."""
_SECONDS_KEPT: Final = 30 * 86_400.0
_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="zstd")

ResultT = TypeVar("ResultT")
Work = Callable[[range, Callable[[int], None]], ResultT]
"""Does what is to be done with some rows, and tells how many more it has done."""


class Parts:
    """A table that grows by batches, in a file of a private folder or in memory.

    Args:
        schema: of every batch.
        folder: where its file is made, readable by its owner only; None keeps the
            batches in memory.
        name: of the file.
    """

    def __init__(self, schema: pa.Schema, *, folder: Path | None, name: str) -> None:
        self.schema = schema
        self.num_rows = 0
        self._file = None if folder is None else folder / f"{name}.arrow"
        self._buffer: pa.Buffer | None = None
        if self._file is None:
            self._sink = pa.BufferOutputStream()
        else:
            os.close(os.open(self._file, os.O_CREAT | os.O_EXCL, 0o600))
            self._sink = pa.OSFile(str(self._file), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)

    def append(self, batch: pa.RecordBatch) -> None:
        """Write a batch behind the others."""
        self._writer.write_batch(batch)
        self.num_rows += batch.num_rows

    def close(self) -> None:
        """Write the end; from now on the table may be read, and grows no more."""
        self._writer.close()
        if self._file is None:
            self._buffer = self._sink.getvalue()
        else:
            self._sink.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read the batches one after another; no two of them are held at once."""
        with pa.OSFile(str(self._file)) if self._file else self._in_memory() as source:
            file = pa.ipc.open_file(source)
            for number in range(file.num_record_batches):
                yield file.get_batch(number)

    def reader(self) -> pa.RecordBatchReader:
        """Read the batches as one stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def table(self) -> pa.Table:
        """Map the whole table, which may be read on after its file is gone."""
        if self._file is not None:
            return map_table(self._file)
        return pa.ipc.open_file(self._in_memory()).read_all()

    def _in_memory(self) -> pa.BufferReader:
        return pa.BufferReader(self._buffer)


_maps: Final[WeakSet[mmap.mmap]] = WeakSet()
"""What this process has mapped and somebody still reads."""


def map_table(file: Path) -> pa.Table:
    """Map a table of an Arrow file, which may be read on after the file is gone.

    Raises:
        pa.ArrowInvalid, ValueError: the file holds no table.
    """
    with file.open("rb") as source:
        found = pa.py_buffer(_mapped(source))
    return pa.ipc.open_file(pa.BufferReader(found)).read_all()


def _mapped(source: IO[bytes]) -> mmap.mmap:
    """Map a file that is not empty, and remember it for `let_go`."""
    found = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
    _maps.add(found)
    return found


def map_values(source: IO[bytes], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Map the numbers of a file, which may be read on after the file is gone."""
    return np.frombuffer(_mapped(source), dtype)


def let_go() -> None:
    """Give mapped pages back; whoever reads on reads them anew."""
    for found in list(_maps):
        found.madvise(mmap.MADV_DONTNEED)


def batches(
    dataset: "Dataset", columns: Sequence[str], *, rows: int = _BATCH_ROWS
) -> Iterator[pa.Table]:
    """Read some columns so many rows at a time; pages that were read are let go.

    Args:
        dataset: may be mapped from files.
        columns: that it has.
        rows: at once.
    """
    for batch in dataset.select_columns(list(columns)).with_format("arrow").iter(rows):
        yield batch
        let_go()


def values_of(dataset: "Dataset", column: str) -> Iterator[Any]:
    """Read one column, value by value."""
    for batch in batches(dataset, [column]):
        yield from batch[column].to_pylist()


def find(
    dataset: "Dataset", column: str, wanted: Collection[str]
) -> npt.NDArray[np.int64]:
    """Return the rows in which a column has one of some values."""
    values, found, first = pa.array(list(wanted), pa.string()), [], 0
    for batch in batches(dataset, [column]):
        mask = pc.is_in(batch[column], value_set=values).to_numpy()
        found.append(first + np.flatnonzero(mask))
        first += batch.num_rows
    return np.concatenate([np.empty(0, np.int64), *found])


def replaced(
    dataset: "Dataset", column: str, values: Mapping[int, object]
) -> "Dataset":
    """Return a data set with other values in some rows of one column.

    Nothing else is copied: what was mapped from files stays there.

    Args:
        dataset: of any kind.
        column: whose type stays.
        values: by row.
    """
    if not values:
        return dataset
    if dataset._indices is not None:
        dataset = dataset.flatten_indices()
    table, pieces, first = dataset.data.table, list[pa.Array](), 0
    place = table.column_names.index(column)
    for row in sorted(values):
        pieces += table[column][first:row].chunks
        pieces.append(pa.array([values[row]], table[column].type))
        first = row + 1
    pieces += table[column][first:].chunks
    new = table.set_column(place, table.schema.field(column), pa.chunked_array(pieces))
    return type(dataset)(new, info=dataset.info, fingerprint=fresh_name())


def fresh_name() -> str:
    """Draw a name of a data set: `datasets` would read all rows to make one of them."""
    return secrets.token_hex(8)


def num_parts(num_rows: int) -> int:
    """Count the parts of a table."""
    return -(-num_rows // PART_ROWS)


def rows_of(parts: range, num_rows: int) -> range:
    """Return the rows of parts that lie side by side."""
    ends = (min(part * PART_ROWS, num_rows) for part in (parts.start, parts.stop))
    return range(*ends)


def each_part(
    work: Work[ResultT],
    num_rows: int,
    *,
    num_processes: int = 1,
    on_progress: Callable[[int], None] | None = None,
) -> Iterator[ResultT]:
    """Yield what is made of each part of a table, in order.

    Processes inherit what `work` holds, and hand back what it returns. None of them
    outlives this one, however it ends.

    Args:
        work: is given the rows of one part, and tells how many of them are done.
        num_rows: of the table.
        num_processes: side by side; 1 works in this process.
        on_progress: called now and then with the number of rows done so far.

    Raises:
        DptuneError: a process was killed.
    """
    parts = [rows_of(range(i, i + 1), num_rows) for i in range(num_parts(num_rows))]
    show = on_progress or (lambda _: None)
    if num_processes == 1 or len(parts) <= 1:
        counts = _Count(show)
        for rows in parts:
            yield work(rows, counts.add)
            let_go()
        return
    context = get_context("fork")
    done = context.Value("q", 0)
    pool = ProcessPoolExecutor(
        num_processes, context, initializer=_begin, initargs=(work, done)
    )
    waiting: deque[Future[ResultT]] = deque()
    left = iter(parts)
    try:
        while True:
            ahead = islice(left, _AHEAD * num_processes - len(waiting))
            waiting.extend(pool.submit(_do, rows) for rows in ahead)
            if not waiting:
                return
            while not waiting[0].done():
                wait([waiting[0]], _SECONDS_BETWEEN_LOOKS)
                show(done.value)
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise DptuneError(
            "every process must live until its part is done, but one was killed, "
            "perhaps for its memory. Run again, which goes on where it was, with fewer "
            "processes."
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
        show(done.value)


class _Count:
    """Adds up rows as they are done."""

    def __init__(self, show: Callable[[int], None]) -> None:
        self._done, self._show = 0, show

    def add(self, count: int) -> None:
        self._done += count
        self._show(self._done)


_inherited: list[Any] = []
"""Of a process that works on parts: the work, and the count of rows done by all."""


def _begin(work: Work[Any], counter: Any) -> None:  # noqa: ANN401 - see above
    """Begin a process that works on parts."""
    _inherited[:] = [work, counter]
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()


def _end_with(parent: int) -> None:
    """End this process when the one is gone that takes its results."""
    while os.getppid() == parent:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


def _do(rows: range) -> Any:  # noqa: ANN401 - whatever the work returns
    """Work on one part, in a process of its own."""
    work, counter = _inherited

    def tell(count: int) -> None:
        with counter.get_lock():
            counter.value += count

    found = work(rows, tell)
    let_go()
    return found


def write_part(file: Path, table: pa.Table) -> None:
    """Write what was made of a part: the whole file is there, or none of it.

    Args:
        file: for its owner alone, in a folder that is made if absent.
        table: compressed as it is written.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(file) as half:
        handle = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(handle, "wb") as sink,
            pa.ipc.new_file(sink, table.schema, options=_COMPRESSED) as writer,
        ):
            writer.write_table(table)


def read_part(file: Path, columns: Sequence[str] | None = None) -> pa.Table | None:
    """Read what was made of a part, and note its use; None where no whole file is.

    Args:
        file: of the part.
        columns: that are wanted; None wants all.
    """
    try:
        with pa.OSFile(str(file)) as source:
            found = pa.ipc.open_file(source).read_all()
        os.utime(file)
        return found if columns is None else found.select(list(columns))
    except (pa.ArrowInvalid, OSError, KeyError):
        return None


def finished_part(file: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read what was just made of a part; see `read_part`.

    Raises:
        ArtifactError: the file is gone, or half of it.
    """
    found = read_part(file, columns)
    if found is None:
        raise ArtifactError(
            "the folder of parts must keep them while a corpus is worked on, but one "
            "is gone. Let nobody clear it meanwhile, and run again."
        )
    return found


def forget(folder: Path, *, unused_for: float = _SECONDS_KEPT) -> None:
    """Remove what was made of parts and nobody has used for long.

    Args:
        folder: of the files; need not be there.
        unused_for: seconds.
    """
    before = time.time() - unused_for
    for found in sorted(folder.rglob("*"), reverse=True):  # files before their folder
        with suppress(OSError):  # another run has removed it, or uses it
            if found.name == LOCK or found.stat().st_mtime >= before:
                continue
            found.rmdir() if found.is_dir() else found.unlink()
