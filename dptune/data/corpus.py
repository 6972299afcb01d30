"""A corpus: records, what is known of them, and views of both."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pydantic_core import CoreSchema, core_schema

from dptune.results import CorpusReport

if TYPE_CHECKING:  # so that those who only name a corpus need no library of tables
    from datasets import Dataset


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A checked, deduplicated, split corpus.

    Args:
        dataset: columns `id, text, unit_id, split`, and `label` where there are labels.
            Private; hidden from `repr`.
        fingerprint: SHA-256 over ids, units, splits and text hashes.
        report: counts and the verdict of the data expectations; holds no text.
        dropped_units: privacy units of which deduplication left no record. They were
            read, and a copy of what they say may be trained on.
    """

    dataset: "Dataset" = field(repr=False, compare=False)
    fingerprint: str
    report: CorpusReport
    dropped_units: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: Any) -> CoreSchema:  # noqa: ANN401
        """Where pydantic checks an argument, a corpus is taken as one thing."""
        return core_schema.is_instance_schema(cls)

    @property
    def source_units(self) -> frozenset[str]:
        """Every privacy unit that was read, also those that deduplication dropped.

        Ask a corpus before canaries are planted: these are no units of the source.
        """
        return frozenset(self.dataset["unit_id"]) | frozenset(self.dropped_units)

    def with_dataset(self, dataset: "Dataset") -> "Corpus":
        """Return another view of the same corpus: its fingerprint and report stay."""
        return replace(self, dataset=dataset)

    def assuming(self, *names: str) -> "Corpus":
        """Return the corpus with more that every claim about it rests on."""
        return self._naming("assumes", names)

    def marked(self, dataset: "Dataset", *, assumes: Sequence[str]) -> "Corpus":
        """Return the corpus with its marks, which know what they rest on."""
        return self.with_dataset(dataset)._naming("marks_assume", assumes)

    def _naming(self, field_name: str, names: Sequence[str]) -> "Corpus":
        """Add names to a field of the report."""
        known = (*getattr(self.report, field_name), *names)
        more = {field_name: tuple(dict.fromkeys(known))}
        return replace(self, report=self.report.model_copy(update=more))

    def redacted(self, dataset: "Dataset", *, operator: str) -> "Corpus":
        """Return the redacted view, which knows how it was made."""
        report = self.report.model_copy(update={"redaction": operator})
        return replace(self, dataset=dataset, report=report)

    def split(self, name: str) -> "Dataset":
        """Return the records of one split, in order; empty if there is none."""
        rows = [i for i, split in enumerate(self.dataset["split"]) if split == name]
        return self.dataset.select(rows)
