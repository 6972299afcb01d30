"""Data sets as Arrow files of an artifact store."""

import hashlib

import pyarrow as pa
from datasets import Dataset
from zenml.artifact_stores import BaseArtifactStore


def write_dataset(dataset: Dataset, store: BaseArtifactStore, path: str) -> None:
    """Write all rows as one Arrow IPC file."""
    table = dataset.with_format("arrow")[:]
    with (
        store.open(path, "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def read_dataset(store: BaseArtifactStore, path: str) -> Dataset:
    """Read what `write_dataset` wrote."""
    with store.open(path, "rb") as source:
        return Dataset(pa.ipc.open_file(source).read_all())


def rows_digest(dataset: Dataset) -> bytes:
    """Return a hash of the rows in order, whatever the order of the columns."""
    digest = hashlib.sha256()
    table = dataset.with_format("arrow")[:]
    for name in sorted(table.column_names):
        digest.update(name.encode())
        digest.update(repr(table.column(name).to_pylist()).encode())
    return digest.digest()
