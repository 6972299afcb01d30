"""Spans of a part of a corpus. Restricted: they say where personal data are."""

import hashlib
import json
from typing import Any, ClassVar

from datasets import Dataset

from dptune.detection.labelling import SpanShard
from materializers._arrow import ArrowMaterializer, rows_digest


class SpanShardMaterializer(ArrowMaterializer):
    """Stores `SpanShard` as `spans.arrow` (Arrow IPC) and `shard.json`."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (SpanShard,)
    TABLE: ClassVar[str] = "spans.arrow"
    HEAD: ClassVar[str] = "shard.json"
    VERSION: ClassVar[int] = 1

    def take_apart(self, data: SpanShard) -> tuple[Dataset, dict[str, Any]]:
        """Return the spans, and what they are of."""
        names = ("index", "num_shards", "texts", "detector")
        return data.spans, {name: getattr(data, name) for name in names}

    def put_together(self, table: Dataset, head: dict[str, Any]) -> SpanShard:
        """Return the shard."""
        return SpanShard(spans=table, **head)

    def extract_metadata(self, data: SpanShard) -> dict[str, Any]:
        """Which part it is and the restriction mark."""
        return {
            "restricted": True,
            "part": f"{data.index + 1} of {data.num_shards}",
        }

    def compute_content_hash(self, data: SpanShard) -> str:
        """Hash of the spans in order, and of what they are of."""
        spans, head = self.take_apart(data)
        digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        digest.update(rows_digest(spans))
        return digest.hexdigest()
