"""What artifacts share that are one table and a few facts about it."""

import hashlib
import json
from abc import abstractmethod
from typing import Any, ClassVar, Final

import pyarrow as pa
from datasets import Dataset
from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer

from dptune.errors import ArtifactError
from materializers._place import file_of, refuse_changed

_ROWS_AT_ONCE: Final = 10_000


class ArrowMaterializer(BaseMaterializer):
    """Stores a type as an Arrow IPC file and a JSON head.

    A subclass names the two files and the version of the head, and takes the type
    apart and puts it together again.
    """

    SKIP_REGISTRATION: ClassVar[bool] = True
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA
    TABLE: ClassVar[str]
    HEAD: ClassVar[str]
    VERSION: ClassVar[int]

    @abstractmethod
    def take_apart(self, data: Any) -> tuple[Dataset, dict[str, Any]]:  # noqa: ANN401
        """Return the table, and the head as JSON values."""

    @abstractmethod
    def put_together(self, table: Dataset, head: dict[str, Any]) -> Any:  # noqa: ANN401
        """Return what was taken apart."""

    def earlier_content_hash(self, data: Any) -> str | None:  # noqa: ANN401, ARG002
        """Return the hash that an artifact of before was saved with, if another."""
        return None

    def save(self, data: Any) -> None:  # noqa: ANN401
        """Write both files."""
        dataset, head = self.take_apart(data)
        table = dataset.with_format("arrow")[:]
        with (
            self.artifact_store.open(file_of(self.uri, self.TABLE), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        with self.artifact_store.open(file_of(self.uri, self.HEAD), "w") as sink:
            sink.write(json.dumps({"schema_version": self.VERSION, **head}))

    def load(self, data_type: type[Any]) -> Any:  # noqa: ANN401
        """Read both files.

        Raises:
            ArtifactError: the artifact was written by another version, is asked for as
                a type that is not of this materializer, or is not what was saved.
        """
        (kind,) = self.ASSOCIATED_TYPES
        if data_type is not kind:
            raise ArtifactError(
                f"artifact type must be {kind.__name__}, got {data_type}."
            )
        saved = self.expected_content_hash
        try:
            data = self._read()
            known = (self.compute_content_hash(data), self.earlier_content_hash(data))
            found = str(saved if saved in known else known[0])
        except (ValueError, LookupError, TypeError, RecursionError):
            if saved is None:
                raise
            found = "what cannot be read"
        refuse_changed(self.uri, found, saved=saved)
        return data

    def _read(self) -> Any:  # noqa: ANN401
        """Read both files, whatever lies there."""
        with self.artifact_store.open(file_of(self.uri, self.HEAD), "r") as source:
            head = json.loads(source.read())
        if (found := head.pop("schema_version", None)) != self.VERSION:
            raise ArtifactError(
                f"{self.HEAD}: schema_version must be {self.VERSION}, got {found}. "
                "Run the pipeline again."
            )
        with self.artifact_store.open(file_of(self.uri, self.TABLE), "rb") as source:
            table = pa.ipc.open_file(source).read_all()
        return self.put_together(Dataset(table), head)


def rows_digest(dataset: Dataset) -> bytes:
    """Return a hash of the rows in order, whatever the order of the columns."""
    digest = hashlib.sha256()
    table = dataset.with_format("arrow")[:]
    for name in sorted(table.column_names):
        digest.update(name.encode() + b"[")
        batches = table.select([name]).to_batches(_ROWS_AT_ONCE)
        for number, batch in enumerate(b for b in batches if b.num_rows):
            values = ", ".join(map(repr, batch.column(0).to_pylist()))
            digest.update(f"{', ' if number else ''}{values}".encode())
        digest.update(b"]")
    return digest.digest()
