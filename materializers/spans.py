"""Spans of a part of a corpus as one Arrow file. Restricted: it says where they are."""

import hashlib
import json
from pathlib import PurePosixPath
from typing import Any, ClassVar

from zenml.enums import ArtifactType
from zenml.materializers.base_materializer import BaseMaterializer

from dptune.detection.shards import SpanShard
from dptune.errors import ArtifactError
from materializers._arrow import read_dataset, rows_digest, write_dataset

_VERSION = 1


class SpanShardMaterializer(BaseMaterializer):
    """Stores `SpanShard` as `spans.arrow` (Arrow IPC) and `shard.json`."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (SpanShard,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.DATA

    def save(self, data: SpanShard) -> None:
        """Write both files."""
        write_dataset(data.spans, self.artifact_store, self._path("spans.arrow"))
        with self.artifact_store.open(self._path("shard.json"), "w") as sink:
            sink.write(json.dumps({"schema_version": _VERSION, **_head(data)}))

    def load(self, data_type: type[Any]) -> SpanShard:
        """Read both files.

        Raises:
            ArtifactError: the artifact was written by another version, or as a type
                that is not a shard.
        """
        if data_type is not SpanShard:
            raise ArtifactError(f"artifact type must be SpanShard, got {data_type}.")
        with self.artifact_store.open(self._path("shard.json"), "r") as source:
            head = json.loads(source.read())
        if (found := head.pop("schema_version", None)) != _VERSION:
            raise ArtifactError(
                f"shard schema_version must be {_VERSION}, got {found}. Run the "
                "pipeline again."
            )
        spans = read_dataset(self.artifact_store, self._path("spans.arrow"))
        return SpanShard(spans=spans, **head)

    def extract_metadata(self, data: SpanShard) -> dict[str, Any]:
        """Which part it is and the restriction mark."""
        return {
            "restricted": True,
            "part": f"{data.index + 1} of {data.num_shards}",
            "num_records": len(data.spans),
        }

    def compute_content_hash(self, data: SpanShard) -> str:
        """Hash of the spans in order, and of what they are of."""
        digest = hashlib.sha256(json.dumps(_head(data), sort_keys=True).encode())
        digest.update(rows_digest(data.spans))
        return digest.hexdigest()

    def _path(self, name: str) -> str:
        """Return the path of one of our files."""
        return str(PurePosixPath(self.uri) / name)


def _head(shard: SpanShard) -> dict[str, Any]:
    """Everything but the spans."""
    names = ("index", "num_shards", "texts", "detector")
    return {name: getattr(shard, name) for name in names}
