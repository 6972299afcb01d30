"""From settings to a corpus, and to the public text of a pre-training."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from datasets import List, Value

from dptune.config import DataSettings, PretrainingSettings
from dptune.conversation import said_in_turns
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.records import Corpus
from dptune.data.source import SyntheticSource
from dptune.data.splitting import SplitSettings
from dptune.data.synthetic import gold_spans
from dptune.detection.languages.identify import UNDETERMINED, language_of
from dptune.errors import DataError
from dptune.privacy import PrivacyUnit
from dptune.workflow.kept import Source, is_kept, keep_corpus, take_corpus

GOLD = "gold_spans"
GOLD_FEATURE = List({"start": Value("int32"), "end": Value("int32")})


def read_corpus(
    data: DataSettings,
    *,
    data_root: Path,
    expected: str | None = None,
    validate: bool = True,
    folder: Path | None = None,
    keep: bool = False,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> Corpus:
    """Read, check, deduplicate and split the corpus of a configuration.

    One that was kept in the folder is taken over if nothing has changed.

    Args:
        data: where the records are and what a privacy unit is.
        data_root: folder that relative paths start from.
        expected: fingerprint of the source that the preflight saw.
        validate: ask Great Expectations too, after all other checks.
        folder: private folder for work files, see `build_corpus`.
        keep: leave the corpus there for who reads it next.
        on_progress: called with what is being done, records done, and about all.

    Raises:
        DataError: the source cannot be used, or changed since the preflight.
    """
    source = None
    if keep or on_progress is not None or is_kept(folder):
        source = Source.of(data, data_root=data_root, validate=validate)
    corpus = None
    if source is not None and folder is not None:
        corpus = take_corpus(source, folder)
    if corpus is None:
        corpus = _built(
            data,
            data_root=data_root,
            validate=validate,
            folder=folder,
            on_progress=_with_total(on_progress, source.num_lines if source else 0),
        )
        if keep and source is not None and folder is not None:
            keep_corpus(corpus, source, folder)
    if expected is not None and corpus.source_fingerprint != expected:
        raise DataError(
            "the corpus must not change while a run starts, but its fingerprint did. "
            "Wait until the source is written, then run again."
        )
    return _with_gold(corpus, data)


def _with_total(
    on_progress: Callable[[str, int, int], None] | None, expected: int
) -> Callable[[str, int, int], None] | None:
    """Put about how many records there are where nobody knows how many."""
    if on_progress is None:
        return None

    def tell(what: str, done: int, total: int) -> None:
        if total := total or max(expected, done) * bool(expected):
            on_progress(what, done, total)

    return tell


def _built(
    data: DataSettings,
    *,
    data_root: Path,
    validate: bool,
    folder: Path | None,
    on_progress: Callable[[str, int, int], None] | None,
) -> Corpus:
    """Make the corpus from its source."""
    return build_corpus(
        data.source,
        privacy_unit=data.privacy_unit,
        data_root=data_root,
        splits=SplitSettings(validation=data.splits.validation, test=data.splits.test),
        duplicates=data.duplicates,
        near_duplicate_threshold=data.near_duplicate_threshold,
        max_characters=data.max_characters,
        min_records=data.min_records,
        sample_share=data.sample_share,
        max_records=data.max_records,
        allow_content_hash_ids=data.allow_content_hash_ids,
        seed=data.seed,
        validate=validate,
        is_taken=None if data.languages is None else _IsIn(frozenset(data.languages)),
        folder=folder,
        on_progress=on_progress,
    )


@dataclass(frozen=True)
class _IsIn:
    """Tells whether a text is in one of some languages, or too short to tell."""

    languages: frozenset[str]

    def __call__(self, text: str) -> bool:
        return language_of(said_in_turns(text)) in self.languages | {UNDETERMINED}


def read_public(
    settings: PretrainingSettings,
    *,
    data_root: Path,
    validate: bool = True,
    folder: Path | None = None,
) -> Corpus:
    """Read the public text of a pre-training.

    Args:
        settings: where it is.
        data_root: folder that relative paths start from.
        validate: see `build_corpus`.
        folder: private folder for work files, see `build_corpus`.

    Raises:
        DataError: the source cannot be used.
    """
    return build_corpus(
        settings.source,
        privacy_unit=PrivacyUnit.RECORD,
        data_root=data_root,
        duplicates=Duplicates.EXACT,
        near_duplicate_threshold=None,
        allow_content_hash_ids=True,
        validate=validate,
        folder=folder,
    )


def _with_gold(corpus: Corpus, data: DataSettings) -> Corpus:
    """Add the generator's exact spans, so that the detector's misses can be counted."""
    if not isinstance(data.source, SyntheticSource):
        return corpus
    spans = gold_spans(data.source)
    gold = [
        [{"start": s.start, "end": s.end} for s in spans.get(row_id, ())]
        for row_id in corpus.dataset["id"]
    ]
    rows = corpus.dataset.add_column(GOLD, gold, feature=GOLD_FEATURE)
    return corpus.with_dataset(rows)
