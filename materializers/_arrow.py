"""What artifacts share that are one table and a few facts about it."""

import hashlib
import json
import shutil
from abc import abstractmethod
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, ClassVar

import pyarrow as pa
from datasets import Dataset
from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer

from dptune.errors import ArtifactError
from dptune.parts import batches, fresh_name, map_table
from materializers._place import file_of, refuse_changed


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
        schema = dataset.with_format("arrow")[:0].schema
        with (
            self.artifact_store.open(file_of(self.uri, self.TABLE), "wb") as sink,
            pa.ipc.new_file(sink, schema) as writer,
        ):
            for batch in batches(dataset, schema.names):
                writer.write_table(batch.combine_chunks())
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
        dataset = Dataset(self._mapped(), fingerprint=fresh_name())
        return self.put_together(dataset, head)

    def _mapped(self) -> pa.Table:
        """Map the table; of a store that is not on this machine, a copy without a name.

        Temporary files lie in the project folder, like all that holds text.
        """
        place = file_of(self.uri, self.TABLE)
        if (local := Path(place)).is_file():
            return map_table(local)
        with (
            NamedTemporaryFile() as copy,
            self.artifact_store.open(place, "rb") as source,
        ):
            shutil.copyfileobj(source, copy, 1 << 24)
            copy.flush()
            return map_table(Path(copy.name))


def rows_digest(dataset: Dataset) -> bytes:
    """Return a hash of the rows in order, whatever the order of the columns."""
    digest = hashlib.sha256()
    for name in sorted(dataset.column_names):
        digest.update(name.encode() + b"[")
        for number, batch in enumerate(batches(dataset, [name])):
            values = ", ".join(map(repr, batch.column(0).to_pylist()))
            digest.update(f"{', ' if number else ''}{values}".encode())
        digest.update(b"]")
    return digest.digest()
