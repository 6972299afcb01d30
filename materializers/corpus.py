"""A corpus as one Arrow file and its report. Restricted: it holds record text."""

import hashlib
import json
from pathlib import PurePosixPath
from typing import Any, ClassVar

import pyarrow as pa
from datasets import Dataset
from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer

from dptune.data.corpus import Corpus
from dptune.errors import ArtifactError
from dptune.results import CorpusReport

_VERSION = 2


class CorpusMaterializer(BaseMaterializer):
    """Stores `Corpus` as `records.arrow` (Arrow IPC) and `corpus.json`."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (Corpus,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA

    def save(self, data: Corpus) -> None:
        """Write both files."""
        table = data.dataset.with_format("arrow")[:]
        with (
            self.artifact_store.open(self._path("records.arrow"), "wb") as sink,
            pa.ipc.new_file(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        head = {
            "schema_version": _VERSION,
            "fingerprint": data.fingerprint,
            "report": data.report.model_dump(mode="json"),
            "dropped_units": list(data.dropped_units),
        }
        with self.artifact_store.open(self._path("corpus.json"), "w") as sink:
            sink.write(json.dumps(head))

    def load(self, data_type: type[Any]) -> Corpus:
        """Read both files.

        Raises:
            ArtifactError: the artifact was written by another version, or as a type
                that is not a corpus.
        """
        if data_type is not Corpus:
            raise ArtifactError(f"artifact type must be Corpus, got {data_type}.")
        with self.artifact_store.open(self._path("corpus.json"), "r") as source:
            head = json.loads(source.read())
        if head.get("schema_version") != _VERSION:
            raise ArtifactError(
                f"corpus schema_version must be {_VERSION}, got "
                f"{head.get('schema_version')}. Run the pipeline again."
            )
        with self.artifact_store.open(self._path("records.arrow"), "rb") as source:
            table = pa.ipc.open_file(source).read_all()
        return Corpus(
            dataset=Dataset(table),
            fingerprint=head["fingerprint"],
            report=CorpusReport.model_validate(head["report"]),
            dropped_units=tuple(head["dropped_units"]),
        )

    def extract_metadata(self, data: Corpus) -> dict[str, Any]:
        """Counts and the restriction mark; never text."""
        return {
            "restricted": True,
            "fingerprint": data.fingerprint,
            "num_records": len(data.dataset),
            "columns": sorted(data.dataset.column_names),
        }

    def compute_content_hash(self, data: Corpus) -> str:
        """Hash of the rows in order, so that equal corpora share a cache key."""
        digest = hashlib.sha256(data.fingerprint.encode())
        digest.update(repr(data.dropped_units).encode())
        table = data.dataset.with_format("arrow")[:]
        for name in sorted(table.column_names):
            digest.update(name.encode())
            digest.update(repr(table.column(name).to_pylist()).encode())
        return digest.hexdigest()

    def _path(self, name: str) -> str:
        """Return the path of one of our files."""
        return str(PurePosixPath(self.uri) / name)
