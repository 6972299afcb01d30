"""A corpus as one Arrow file and its report. Restricted: it holds record text."""

import hashlib
from typing import Any, ClassVar

from datasets import Dataset

from dptune.data.records import Corpus
from dptune.results import CorpusReport
from materializers._arrow import ArrowMaterializer, rows_digest


class CorpusMaterializer(ArrowMaterializer):
    """Stores `Corpus` as `records.arrow` (Arrow IPC) and `corpus.json`."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (Corpus,)
    TABLE: ClassVar[str] = "records.arrow"
    HEAD: ClassVar[str] = "corpus.json"
    VERSION: ClassVar[int] = 2

    def take_apart(self, data: Corpus) -> tuple[Dataset, dict[str, Any]]:
        """Return the records, and what is known of them."""
        return data.dataset, {
            "fingerprint": data.fingerprint,
            "report": data.report.model_dump(mode="json"),
            "dropped_units": list(data.dropped_units),
        }

    def put_together(self, table: Dataset, head: dict[str, Any]) -> Corpus:
        """Return the corpus."""
        return Corpus(
            dataset=table,
            fingerprint=head["fingerprint"],
            report=CorpusReport.model_validate(head["report"]),
            dropped_units=tuple(head["dropped_units"]),
        )

    def extract_metadata(self, data: Corpus) -> dict[str, Any]:
        """Columns and the restriction mark; never text, counts or a digest."""
        return {
            "restricted": True,
            "columns": sorted(data.dataset.column_names),
        }

    def compute_content_hash(self, data: Corpus) -> str:
        """Hash of the rows in order and of the report, on both of which claims rest.

        Two settings may keep the same rows and still allow other claims: the cache must
        not take one corpus for the other.
        """
        digest = hashlib.sha256(self.earlier_content_hash(data).encode())
        digest.update(data.report.model_dump_json().encode())
        return digest.hexdigest()

    def earlier_content_hash(self, data: Corpus) -> str:
        """Hash of the rows alone, as artifacts of before have it."""
        digest = hashlib.sha256(data.fingerprint.encode())
        digest.update(repr(data.dropped_units).encode())
        digest.update(rows_digest(data.dataset))
        return digest.hexdigest()
