"""The corpus that the preflight read, kept in one file for the step that needs it.

**Formal guarantee.** A corpus is taken over only if the settings, every byte of the
source and every file of the library are those that it was made of, and only if its
fingerprint, which is computed anew, is the one that it was kept with.

**Privacy.** The file holds all records: it is for its owner alone, there is one at
most, and whoever started a run removes it when the run has ended.
"""

import hashlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from datasets import Dataset

from dptune.config import DataSettings
from dptune.data.readers import source_files
from dptune.data.records import Corpus
from dptune.data.written import corpus_fingerprint
from dptune.files import owner_only, program_digest, replacing
from dptune.parts import batches, fresh_name, map_table
from dptune.results import CorpusReport

_NAME: Final = "read.arrow"
_HEAD: Final = b"dptune"
_PIECE: Final = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a corpus is made of.

    Args:
        key: digest of settings, files and program.
        num_lines: of the files, about as many as records; 0 where nobody can tell.
    """

    key: str
    num_lines: int

    @classmethod
    def of(
        cls, data: DataSettings, *, data_root: Path, validate: bool
    ) -> "Source | None":
        """Read the files of a source once; None where not all of it is files here."""
        files = source_files(data.source, data_root=data_root)
        if files is None:
            return None
        digest, num_lines = hashlib.sha256(), 0
        try:
            for file in files:
                content = hashlib.sha256()
                with file.open("rb") as opened:
                    while piece := opened.read(_PIECE):
                        content.update(piece)
                        num_lines += piece.count(b"\n")
                digest.update(os.fsencode(file) + b" " + content.digest())
        except OSError:
            return None
        is_text = not any(file.suffix in {".gz", ".parquet"} for file in files)
        made = [program_digest(), data.model_dump_json(), validate, digest.hexdigest()]
        key = hashlib.sha256(json.dumps(made).encode()).hexdigest()
        return cls(key=key, num_lines=num_lines if is_text else 0)


def is_kept(folder: Path | None) -> bool:
    """Tell whether there is a corpus to take over at all."""
    return folder is not None and (folder / _NAME).is_file()


def keep_corpus(corpus: Corpus, source: Source, folder: Path) -> None:
    """Keep a corpus in the place of any other.

    Args:
        corpus: as it was read.
        source: what it was made of.
        folder: private folder of the project.
    """
    head = {
        "key": source.key,
        "fingerprint": corpus.fingerprint,
        "report": corpus.report.model_dump(mode="json"),
        "dropped_units": corpus.dropped_units,
    }
    rows = corpus.dataset
    schema = rows.with_format("arrow")[:0].schema
    known = (schema.metadata or {}) | {_HEAD: json.dumps(head)}
    with (
        owner_only(),
        replacing(folder / _NAME) as half,
        pa.OSFile(str(half), "wb") as sink,
        pa.ipc.new_file(sink, schema.with_metadata(known)) as writer,
    ):
        for batch in batches(rows, schema.names):
            writer.write_table(batch.combine_chunks())


def take_corpus(source: Source, folder: Path) -> Corpus | None:
    """Return the corpus that was kept of a source; None where none was.

    Args:
        source: what it must be made of.
        folder: see `keep_corpus`.
    """
    with suppress(OSError, ValueError, LookupError, TypeError):
        table = map_table(folder / _NAME)
        metadata = dict(table.schema.metadata)
        head = json.loads(metadata.pop(_HEAD))
        if head["key"] == source.key:
            table = table.replace_schema_metadata(metadata or None)
            corpus = Corpus(
                dataset=Dataset(table, fingerprint=fresh_name()),
                fingerprint=head["fingerprint"],
                report=CorpusReport.model_validate(head["report"]),
                dropped_units=tuple(head["dropped_units"]),
            )
            if corpus_fingerprint(corpus.dataset) == corpus.fingerprint:
                return corpus
    return None


def drop_corpus(folder: Path | None) -> None:
    """Remove what was kept."""
    if folder is not None:
        (folder / _NAME).unlink(missing_ok=True)
