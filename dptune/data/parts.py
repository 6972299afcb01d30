"""Record batches that are written once and read in order, beyond what memory holds."""

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa


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
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            handle = os.open(self._file, flags, 0o600)
            self._sink = pa.PythonFile(os.fdopen(handle, "wb"), mode="w")
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
        source = pa.memory_map(str(self._file)) if self._file else self._in_memory()
        return pa.ipc.open_file(source).read_all()

    def _in_memory(self) -> pa.BufferReader:
        return pa.BufferReader(self._buffer)
