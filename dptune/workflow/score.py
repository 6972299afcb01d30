"""Sensitivity scores of a corpus, and what it costs to count it."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.config import ScoringSettings
from dptune.data.engine import Engine, append, open_engine, scratch_folder
from dptune.data.records import Corpus
from dptune.detection.endpoint import (
    NO_ACCESS,
    JudgeSettings,
    LlmAccess,
    endpoint_of,
    require_client,
)
from dptune.detection.llm import judge_types
from dptune.detection.scoring import (
    Judgement,
    SensitivityTable,
    public_counts,
    release_counts,
    score_entity_types,
)
from dptune.files import locked
from dptune.parts import batches
from dptune.workflow.charging import Spend, pay, release_entry
from dptune.workflow.retraining import start_again

_JUDGE: Final = "scoring.judge"


def score_corpus(
    labelled: Corpus,
    settings: ScoringSettings,
    ledger: PrivacyLedger,
    *,
    recipe: str,
    corpus_is_public: bool,
    folder: Path,
    seed: int | None,
    retrain: bool = False,
    run: str = "",
    spend: Spend | None = None,
    nominal_epsilon: float | None = None,
    access: LlmAccess = NO_ACCESS,
) -> tuple[SensitivityTable, PrivacyLedger]:
    """Score the entity types of a corpus.

    | `settings.counts` | counts | costs |
    |---|---|---|
    | `table` | of public texts, built in | nothing |
    | `released` | of the training split, with noise | the event of the release |
    | `corpus` | of the training split | the guarantee, unless it is public |

    **Formal guarantee.** A release is charged to the store and to the journal before
    its noise is drawn. One that is finished is answered from its folder: nothing is
    drawn and nothing charged; one that was killed is drawn again and charged again.

    A judge changes linkability and protection of types. It is asked about all types of
    the built-in table and those that its settings describe, whatever the corpus holds.

    Args:
        labelled: with the column `spans`; its canaries are counted with it.
        settings: where the counts come from.
        ledger: what was spent before.
        recipe: name of the recipe, for the ledger.
        corpus_is_public: the corpus holds no private text.
        folder: home of all runs.
        seed: fixes the noise, for tests; None takes it from the operating system.
        retrain: release again although a finished release is there.
        run: that releases again, so that it finds its own if it is started again.
        spend: charges the data set's budget; raises to refuse.
        nominal_epsilon: the release's part of the plan's nominal figure.
        access: of the judge.

    Returns:
        the table, and the ledger with the release in it.
    """
    judgement = _ask(settings.judge, access) if settings.judge else None
    if settings.noise_multiplier is None:
        is_public = corpus_is_public or settings.counts == "table"
        table = score_entity_types(
            _counts(labelled, settings),
            counts_are_public=is_public,
            judgement=judgement,
        )
        return table, ledger
    home = folder / _key(labelled, settings, recipe=recipe, seed=seed)
    if retrain:
        start_again(home, run=run)
    journal = LedgerJournal(home / "ledger.jsonl")
    found = home / "counts.json"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / ".lock"):  # of two runs at once, one pays
        if not found.is_file():
            entry = release_entry(
                labelled.report,
                recipe=recipe,
                noise_multiplier=settings.noise_multiplier,
                fixed_seed=seed is not None,
                nominal_epsilon=nominal_epsilon,
            )
            _release(labelled, settings, entry, journal, found, seed=seed, spend=spend)
    counts: Mapping[str, int] = json.loads(found.read_text(encoding="utf8"))
    table = score_entity_types(
        counts,
        counts_are_public=False,
        counts_are_released=True,
        judgement=judgement,
    )
    return table, ledger.extend(journal.read())


def check_judge(settings: JudgeSettings, access: LlmAccess) -> None:
    """Refuse a judge that cannot be asked at all; one that is away is no reason.

    Raises:
        ConfigError: its key is not there.
        DependencyError: the package `openai` is not installed.
    """
    endpoint_of(settings, access, path=_JUDGE)
    require_client()


def _ask(settings: JudgeSettings, access: LlmAccess) -> Judgement:
    """Ask about types; nothing of the corpus is at hand here."""
    return judge_types(
        endpoint_of(settings, access, path=_JUDGE),
        may_lower=settings.may_lower,
        descriptions=settings.descriptions,
    )


def _counts(labelled: Corpus, settings: ScoringSettings) -> Mapping[str, int]:
    """Return public counts, or the corpus's own, which marks the table."""
    if settings.counts == "table":
        return public_counts()
    total: Counter[str] = Counter()
    for batch in batches(labelled.split("train"), ["spans"]):
        kinds = batch["spans"].combine_chunks().flatten().field("entity_type")
        found = kinds.value_counts()
        named = (found.field(name).to_pylist() for name in ("values", "counts"))
        total.update(dict(zip(*named, strict=True)))
    return total


def counts_by_unit(rows: Dataset, engine: Engine) -> Iterator[dict[str, int]]:
    """Count mentions by type for each privacy unit. The result is private.

    Args:
        rows: columns `unit_id` and `spans`.
        engine: keeps what memory does not hold.

    Returns:
        the counts of one unit after another, in the order of their first records; those
        without any mention are left out.
    """
    first = 0
    engine.execute("CREATE TEMP TABLE owned (pos BIGINT, unit VARCHAR)")
    engine.execute("CREATE TEMP TABLE marks (pos BIGINT, kind VARCHAR)")
    for batch in batches(rows, ["unit_id", "spans"]):
        spans = batch["spans"].combine_chunks()
        places = np.arange(first, first + batch.num_rows)
        append(engine, "owned", {"pos": places, "unit": batch["unit_id"]})
        own = places[pc.list_parent_indices(spans).to_numpy()]
        kinds = spans.flatten().field("entity_type")
        append(engine, "marks", {"pos": own, "kind": kinds})
        first += batch.num_rows
    found = engine.sql(
        "WITH firsts AS (SELECT unit, min(pos) AS first FROM owned GROUP BY unit) "
        "SELECT first, kind, count(*) AS number FROM marks JOIN owned USING (pos) "
        "JOIN firsts USING (unit) GROUP BY first, kind ORDER BY first"
    )
    told = (row for batch in found.to_arrow_reader() for row in batch.to_pylist())
    units = groupby(told, key=itemgetter("first"))
    return ({row["kind"]: row["number"] for row in unit} for _, unit in units)


def _release(
    labelled: Corpus,
    settings: ScoringSettings,
    entry: LedgerEntry,
    journal: LedgerJournal,
    found: Path,
    *,
    seed: int | None,
    spend: Spend | None,
) -> None:
    """Charge, then draw, then keep."""
    with scratch_folder(found.parent) as place, open_engine(place) as engine:
        units = counts_by_unit(labelled.split("train"), engine)
        pay(entry, journal, spend)
        released = release_counts(
            units,
            noise_multiplier=settings.noise_multiplier or 0.0,
            max_norm=settings.max_norm,
            generator=None if seed is None else random.Random(seed),  # noqa: S311 - tests
        )
    half = found.with_suffix(".half")
    half.write_text(json.dumps(released.counts), encoding="utf8")
    half.rename(found)


def _key(
    labelled: Corpus, settings: ScoringSettings, *, recipe: str, seed: int | None
) -> str:
    """Name this release: equal keys may share a finished one."""
    digest = hashlib.sha256()
    for batch in batches(labelled.split("train"), ["unit_id", "spans"]):
        for row in batch.to_pylist():
            digest.update(json.dumps(row, sort_keys=True).encode())
    values = [
        labelled.fingerprint,
        digest.hexdigest(),
        settings.model_dump(mode="json", exclude={"judge"}),  # it reads no counts
        recipe,
        seed,
        *sorted({*labelled.report.assumes, *labelled.report.marks_assume}),
    ]
    name = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return f"counts-{name[:24]}"
