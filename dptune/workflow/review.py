"""The review loop: draw a sample, take decisions back, and say what they mean."""

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from dptune.config import DataSettings, TrainConfig
from dptune.detection.endpoint import NO_ACCESS, LlmAccess
from dptune.detection.labelling import detect_dataset
from dptune.errors import ConfigError, DataError
from dptune.review.decisions import (
    Findings,
    check_decisions,
    findings,
    merged,
    read_decisions,
)
from dptune.review.lists import ListKey, ReviewLists, extended, with_lists
from dptune.review.sample import Drawn, draw_sample, reread
from dptune.review.store import LanguageRate, ReviewRecord, ReviewStore, SampleRecord
from dptune.workflow.detect import engine_of
from dptune.workflow.ingest import read_corpus
from dptune.workflow.planned_units import units_for
from dptune.workflow.token_weights import rows_to_read


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import changed.

    Args:
        num_decided: sentences of the sample with a verdict, earlier ones included.
        num_changed: those of them whose earlier verdict was another one.
        found: what they say; None while sentences are open.
        new_deny, new_allow: entries that the lists gained.
    """

    sample: SampleRecord
    num_decided: int
    num_changed: int = 0
    found: Findings | None = None
    new_deny: int = 0
    new_allow: int = 0


def export_sample(
    config: TrainConfig,
    *,
    data_root: Path,
    store: ReviewStore,
    key: ListKey,
    generator: np.random.Generator,
    share: float = 0.01,
    size: int | None = None,
    screened: bool = False,
    access: LlmAccess = NO_ACCESS,
    on_progress: Callable[[int], None] | None = None,
    folder: Path | None = None,
) -> tuple[SampleRecord, Drawn]:
    """Draw sentences of the training split for people to read; nothing is stored.

    Privacy: the record, which says where they stand, has no text. The sample itself
    does: write it only where a person asked for it, for its owner alone.

    Args:
        config: says which corpus and which detector.
        data_root: folder that relative paths start from.
        store: knows the lists, and is to remember the sample.
        key: names sentences and phrases.
        generator: draws the sample.
        share: of all sentences.
        size: number of sentences instead.
        screened: take all sentences of what the recipe's screened stage trains on.
        access: of the recognizer `llm`.
        on_progress: called with the number of records that were marked.
        folder: private folder for work files while the corpus is read, see
            `build_corpus`.
    """
    corpus = read_corpus(config.data, data_root=data_root, folder=folder)
    lists = ReviewLists()
    if config.detection.use_review:
        lists = store.read(key).lists.acting_on(config.budget.data_set)
    base = engine_of(config.detection, access)
    engine = with_lists(base, lists, key)
    labelled = detect_dataset(
        corpus.split("train"),
        engine,
        num_proc=config.detection.num_processes,
        on_progress=on_progress,
    )
    rows = None
    if screened:
        planned = units_for(config.data, config.canaries, corpus.report)
        rows = rows_to_read(labelled, config.recipe, num_units=planned.number)
        share, size = 1.0, None
    drawn = draw_sample(
        labelled, key=key, generator=generator, share=share, size=size, rows=rows
    )
    record = SampleRecord(
        id=secrets.token_hex(8),
        config=config.name,
        data=config.data.model_dump(mode="json"),
        corpus=corpus.fingerprint,
        detector=base.fingerprint,
        tier=engine.tier,
        recognizers=engine.recognizers,
        lists=lists,
        sizes=drawn.sizes,
        sentences=tuple(excerpt.sentence for excerpt in drawn.excerpts),
        created=_now(),
        screened=screened,
        data_set=config.budget.data_set,
    )
    return record, drawn


def import_decisions(
    content: bytes,
    *,
    data_root: Path,
    store: ReviewStore,
    key: ListKey,
    public: bool = False,
    folder: Path | None = None,
) -> Imported:
    """Take decisions back. Nothing is stored unless all of them fit.

    While sentences are open there is no rate and no list entry: whoever skips the hard
    sentences would flatter the detector. A later file may bring the rest, and may
    change what an earlier one said.

    Args:
        content: of the file that a reviewer saved.
        data_root: folder that relative paths start from.
        store: knows the sample.
        key: that the sample was drawn with.
        public: the phrases are declared public: they act on every data set, and claims
            take them as public. Else they act on the sample's data set alone, and make
            its claims conditional.
        folder: private folder for work files while the corpus is read, see
            `build_corpus`.

    Raises:
        ConfigError, DataError: with everything that is wrong, and no text.
    """
    file = read_decisions(content)
    with store.locked():
        state = store.read(key)
        sample = state.sample(file.sample)
        if not sample.data_set:
            raise ConfigError(
                f"sample {sample.id} must say of which data set it is, but was drawn "
                "before lists belonged to one. Export a new sample."
            )
        before = state.review(sample.id)
        earlier = before.verdicts if before else {}
        verdicts = merged(earlier, check_decisions(file, sample.sentences))
        changed = sum(verdicts[name] != said for name, said in earlier.items())
        imported = _after(review.imported for review in state.reviews)
        record = ReviewRecord(
            sample=sample.id, verdicts=verdicts, imported=imported, public=public
        )
        if len(verdicts) < len(sample.sentences):
            store.add_review(record, key, lists=state.lists, finished=state.finished)
            return Imported(
                sample=sample, num_decided=len(verdicts), num_changed=changed
            )
        found = _findings(sample, record, data_root=data_root, key=key, folder=folder)
        lists = state.lists.extended(
            sample.data_set, key, public=public, allow=found.allow, deny=found.deny
        )
        measured = {
            "rate": found.rate,
            "interval": found.interval,
            "lists": extended(sample.lists, key, allow=found.allow),
            "num_missed": found.num_missed,
            "num_false_alarms": found.num_false_alarms,
            "num_charged": found.num_charged,
            "by_language": {
                code: LanguageRate(rate=rate, interval=interval, num_texts=number)
                for code, (rate, interval, number) in found.by_language.items()
            },
        }
        finished = {n: c for n, c in state.finished.items() if n != sample.id}
        if not sample.screened:
            finished[sample.id] = sample.corpus
        record = record.model_copy(update=measured)
        store.add_review(record, key, lists=lists, finished=finished)
    then, after = (one.acting_on(sample.data_set) for one in (state.lists, lists))
    return Imported(
        sample=sample,
        num_decided=len(verdicts),
        num_changed=changed,
        found=found,
        new_deny=len(after.deny) - len(then.deny),
        new_allow=len(after.allow) - len(then.allow),
    )


def _findings(
    sample: SampleRecord,
    review: ReviewRecord,
    *,
    data_root: Path,
    key: ListKey,
    folder: Path | None,
) -> Findings:
    """Read the sampled sentences again, and judge them."""
    data = DataSettings.model_validate(sample.data)
    corpus = read_corpus(data, data_root=data_root, folder=folder)
    if corpus.fingerprint != sample.corpus:
        raise DataError(
            f"the corpus of {sample.config} must be the one that the sample was drawn "
            "from, but it has changed since. Export a new sample."
        )
    excerpts = reread(corpus.split("train"), sample.sentences, key)
    return findings(excerpts, review.verdicts, sizes=sample.sizes, key=key)


def _now() -> str:
    return datetime.now(tz=UTC).isoformat(timespec="seconds")


def _after(earlier: Iterable[str]) -> str:
    """Return the time, or a second after the newest import: the newest one counts.

    Clocks are set back, and two files may be imported within a second.
    """
    newest, now = max(earlier, default=""), _now()
    if now > newest:
        return now
    later = datetime.fromisoformat(newest) + timedelta(seconds=1)
    return later.isoformat(timespec="seconds")
