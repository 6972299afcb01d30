"""A corpus as one Arrow file and its report. Restricted: it holds record text."""

import hashlib
import json
from pathlib import PurePosixPath
from typing import Any, ClassVar

from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer

from dptune.data.corpus import Corpus
from dptune.errors import ArtifactError
from dptune.results import CorpusReport
from materializers._arrow import read_dataset, rows_digest, write_dataset

_VERSION = 2


class CorpusMaterializer(BaseMaterializer):
    """Stores `Corpus` as `records.arrow` (Arrow IPC) and `corpus.json`."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (Corpus,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA

    def save(self, data: Corpus) -> None:
        """Write both files."""
        write_dataset(data.dataset, self.artifact_store, self._path("records.arrow"))
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
        return Corpus(
            dataset=read_dataset(self.artifact_store, self._path("records.arrow")),
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
        digest.update(rows_digest(data.dataset))
        return digest.hexdigest()

    def _path(self, name: str) -> str:
        """Return the path of one of our files."""
        return str(PurePosixPath(self.uri) / name)
