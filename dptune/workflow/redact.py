"""The redacted view of a corpus and the check on what is left in it."""

import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar, Final

import pyarrow as pa
from datasets import Dataset

from dptune.conversation import num_said, turns_of
from dptune.data.records import Corpus
from dptune.data.validation import count_left, validate_redacted
from dptune.detection.known_values import is_ordinary
from dptune.detection.labelling import marked_characters
from dptune.errors import DataError, Problem
from dptune.files import locked, program_digest
from dptune.parts import (
    LOCK,
    Parts,
    each_part,
    finished_part,
    forget,
    fresh_name,
    read_part,
    write_part,
)
from dptune.redaction.engine import redact_dataset
from dptune.redaction.operators import KEYED, Operator, RedactionSettings, Scope
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.redaction.residual import residual_counts, residual_spelling_counts
from dptune.results import RedactionReport

_WRITES_VALUES = frozenset({*KEYED, Operator.PARTIAL, Operator.KEEP})
"""Operators whose results may look like personal data."""
_FACTS: Final = b"dptune"
"""What a part's file says of it, in numbers that may be added over parts."""


def redact_corpus(
    corpus: Corpus,
    settings: RedactionSettings,
    *,
    key: Callable[[], bytes],
    encryption_key: Callable[[str], bytes] | None = None,
    folder: Path | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[Corpus, RedactionReport]:
    """Replace every marked span.

    Pseudonyms are addresses and numbers on purpose, and what is kept may be one, so
    what is left is looked for between them: in the same texts, masked.

    Args:
        corpus: with the column `spans`.
        settings: what is written in the place of spans.
        key: returns the project's secret; asked for only by operators that need one,
            which use a key of their own derived from it.
        encryption_key: returns the key that a variable holds; asked by `encrypt`.
        folder: private folder that keeps finished parts until all are done, so that a
            run that was killed goes on where it was; None keeps nothing. Pseudonyms
            within units follow from the order of records, and begin anew.
        on_progress: called with the number of records done so far.

    Returns:
        the redacted view (same rows, same ids, no `spans`) and the residual report.

    Raises:
        DataError: an e-mail address, SSN, card number or IBAN is left.
        DependencyError: pseudonyms need a package that is not installed.
    """
    pseudonyms = pseudonyms_of(settings, key, encryption_key)
    in_order = pseudonyms is not None and pseudonyms.scope is Scope.UNIT
    in_order &= Operator.PSEUDONYM in settings.used
    kept = corpus.dataset.remove_columns("spans")
    column, facts = _redacted_texts(
        _PartRedactor(dataset=corpus.dataset, settings=settings, pseudonyms=pseudonyms),
        kept.features.arrow_schema.field("text"),
        folder=None if in_order else folder,
        num_processes=1 if in_order else settings.num_processes,
        on_progress=on_progress,
    )
    table = kept.with_format("arrow")[:]
    place = table.column_names.index("text")
    table = table.set_column(place, table.schema.field("text"), column)
    redacted = Dataset(table, info=kept.info, fingerprint=fresh_name())
    sums = {n: {k: c for k, c in sorted(f.items()) if c} for n, f in facts.items()}
    sizes = facts["sizes"]
    report = RedactionReport(
        operator=settings.name,
        masked_character_share=sizes["masked"] / max(1, sizes["said"]),
        validation=validate_redacted(facts["left"]),
        residual_values=sums["values"],
        residual_parts=sums["parts"],
        residual_spellings=sums["spellings"],
        residual_halves=sums["halves"],
        num_emptied_turns=sizes["emptied_turns"],
    )
    if not report.validation.success:
        failed = [e for e in report.validation.expectations if not e.success]
        raise DataError(
            [
                Problem(
                    path=f"redacted corpus, {expectation.name}",
                    message=f"must hold, but does not ({expectation.detail}).",
                    next_step="Add a recognizer, or put the values on a deny list.",
                )
                for expectation in failed
            ]
        )
    return corpus.redacted(redacted, operator=settings.name), report


def pseudonyms_of(
    settings: RedactionSettings,
    key: Callable[[], bytes],
    encryption_key: Callable[[str], bytes] | None = None,
) -> Pseudonyms | None:
    """Derive the keys of a redaction, so that they name no privacy unit.

    Returns:
        None where no operator needs one.
    """
    if not settings.used & KEYED:
        return None
    read = encryption_key if Operator.ENCRYPT in settings.used else None
    return Pseudonyms(
        key=hmac.new(key(), b"dptune pseudonyms", hashlib.sha256).digest(),
        scope=settings.pseudonym_scope,
        locale=settings.pseudonym_locale,
        encryption_key=read(settings.encryption_key) if read else None,
    )


def _num_learnt(dataset: Dataset) -> int:
    """Turns of conversations that are learnt."""
    return sum(turn.trained for text in dataset["text"][:] for turn in turns_of(text))


def _redacted_texts(
    redactor: "_PartRedactor",
    text: pa.Field,
    *,
    folder: Path | None,
    num_processes: int,
    on_progress: Callable[[int], None] | None,
) -> tuple[pa.ChunkedArray, dict[str, Counter[str]]]:
    """Redact all parts; return the column of texts, mapped, and what was counted."""
    facts = {name: Counter[str]() for name in _PartRedactor.FACTS}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        try:
            if folder is not None:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                stack.enter_context(locked(folder / LOCK, patience=0))
                forget(folder)
        except BlockingIOError:  # another run would remove what this one still reads
            folder = None
        redactor = replace(redactor, folder=folder or scratch)
        texts = Parts(pa.schema([text]), folder=scratch, name="texts")
        files = []
        for file in each_part(
            redactor,
            len(redactor.dataset),
            num_processes=num_processes,
            on_progress=on_progress,
        ):
            table = finished_part(file)
            for name, counts in json.loads(table.schema.metadata[_FACTS]).items():
                facts[name].update(counts)
            texts.append(
                pa.record_batch([table["text"].combine_chunks()], texts.schema)
            )
            files.append(file)
        texts.close()
        for file in files:
            file.unlink(missing_ok=True)
        return texts.table()["text"], facts


@dataclass(frozen=True, kw_only=True)
class _PartRedactor:
    """Redacts one part after another, and counts what is left in it.

    **Privacy.** Its files hold redacted text; their names are digests of what was
    redacted, how, and by which program, so that no other is ever taken for it.
    """

    FACTS: ClassVar = ("sizes", "left", "values", "parts", "spellings", "halves")

    dataset: Dataset = field(repr=False)
    settings: RedactionSettings
    pseudonyms: Pseudonyms | None = field(repr=False)
    folder: Path = Path()

    def __call__(self, rows: range, tell: Callable[[int], None]) -> Path:
        """Redact a part, unless its file lies there, and return the file."""
        columns = [
            n for n in ("unit_id", "text", "spans") if n in self.dataset.column_names
        ]
        part = self.dataset.select_columns(columns).select(rows)
        file = self.folder / f"{self._name(part)}.arrow"
        if read_part(file) is None:
            write_part(file, self._made(part))
        tell(len(rows))
        return file

    def _name(self, part: Dataset) -> str:
        """Digest all that decides what is written and counted."""
        keys = self.pseudonyms.digest if self.pseudonyms else ""
        how = [
            program_digest(),
            self.settings.model_dump_json(exclude={"num_processes"}),
            keys,
        ]
        content = json.dumps([*how, part.to_dict()])
        return hashlib.sha256(content.encode()).hexdigest()

    def _made(self, part: Dataset) -> pa.Table:
        """Redact, and count."""
        settings = self.settings
        redacted = redact_dataset(
            part,
            operator=settings.operator,
            by_type=settings.operators,
            merge_adjacent=settings.merge_adjacent,
            pseudonyms=self.pseudonyms,
        )
        checked = redacted
        if settings.used & _WRITES_VALUES:
            checked = redact_dataset(part, operator=Operator.MASK)
        left = residual_spelling_counts(
            part, is_ordinary=is_ordinary, kept=settings.kept
        )
        (batch,) = part.select_columns(["spans"]).with_format("arrow").iter(len(part))
        sizes = {
            "masked": int(marked_characters(batch["spans"].combine_chunks()).sum()),
            "said": sum(map(num_said, part["text"][:])),
            "emptied_turns": _num_learnt(part) - _num_learnt(redacted),
        }
        facts: dict[str, Mapping[str, int]] = {
            "sizes": sizes,
            "left": count_left(checked),
            "values": residual_counts(part, redacted, kept=settings.kept),
            "parts": left.parts,
            "spellings": left.spellings,
            "halves": left.halves,
        }
        table = redacted.select_columns(["text"]).with_format("arrow")[:]
        return table.replace_schema_metadata({_FACTS: json.dumps(facts)})
