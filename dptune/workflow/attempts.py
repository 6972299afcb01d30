"""Count how often a data set was tried, and let journals speak against a lost store."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import astuple
from pathlib import Path
from typing import Final

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.store.attempts import (
    Attempt,
    Loss,
    admit_loss,
    attempts_with,
    charges,
    count_attempts,
    losses,
    record_attempt,
    unknown_heads,
)
from dptune.accounting.store.log import Head
from dptune.accounting.store.store import BudgetStore
from dptune.accounting.store.summaries import history
from dptune.errors import ArtifactError, ConfigError
from dptune.gates.evidence import AttemptsEvidence
from dptune.jsons import parse_json
from dptune.results import Report
from dptune.workflow.charging import PAID, RELEASED_UNITS


def record_evaluation(url: str, found: Sequence[Report], *, data_set: str) -> None:
    """Enter that a model was attacked, before anybody sees what came of it.

    Args:
        url: of the budget store, where attempts are counted.
        found: reports of all attacks on the model.
        data_set: whose records were attacked.
    """
    subject, kind = _evaluation(found), Attempt.EVALUATION
    with BudgetStore.open(url) as store:
        record_attempt(store, data_set=data_set, kind=kind, subject=subject)


def record_trace(url: str, run: str, canaries: str, *, data_set: str) -> None:
    """Enter that a run was measured while it trained, before anybody sees what came.

    Who sees it may end a run before its attacks, and draw canaries anew. All stages of
    a run are one evaluation; the attacks on its model are another.

    Args:
        url: of the budget store, where attempts are counted.
        run: id of its reservation, another one where it trains again.
        canaries: digest of those that were ranked.
        data_set: whose records were read.
    """
    subject = hashlib.sha256(f"trace {run} {canaries}".encode()).hexdigest()
    with BudgetStore.open(url) as store:
        record_attempt(
            store, data_set=data_set, kind=Attempt.EVALUATION, subject=subject
        )


def is_recorded(store: BudgetStore, found: Sequence[Report], *, data_set: str) -> bool:
    """Whether these very reports were entered when their model was attacked."""
    subject = _evaluation(found)
    known = attempts_with(store, kind=Attempt.EVALUATION, subject=subject)
    return [name for name, _ in known[:1]] == [data_set]


def _evaluation(found: Sequence[Report]) -> str:
    """Digest of all reports on one model."""
    digest = hashlib.sha256()
    for report in found:
        digest.update(report.model_dump_json().encode())
    return digest.hexdigest()


def attempts_on(store: BudgetStore, data_set: str) -> AttemptsEvidence:
    """Count trainings, evaluations and decisions of a data set."""
    runs = history(store, data_set=data_set)
    return AttemptsEvidence(
        data_set=data_set,
        trainings=sum(
            run.recipe != RELEASED_UNITS and any(run.spent.tallies.values())
            for run in runs
        ),
        evaluations=count_attempts(store, data_set=data_set, kind=Attempt.EVALUATION),
        decisions=count_attempts(store, data_set=data_set, kind=Attempt.DECISION),
    )


def unpaid_charges(store: BudgetStore | None, runs: Path) -> int:
    """Count blocks that journals were charged for and the store was not.

    The store is charged first, so that a journal never holds what its store does not:
    one that was deleted, restored from an old copy or exchanged is told by this. What
    was admitted to be lost is left out.

    Args:
        store: as it is now; None where there is none.
        runs: folder of all trainings, those that were put aside as well.

    Raises:
        ArtifactError: a journal was tampered with.
    """
    journals = Counter(
        (entry.stage, entry.num_steps)
        for file in sorted(runs.glob("*/ledger.jsonl"))
        for entry in LedgerJournal(file).read().entries
    )
    paid = Counter(charges(store)) if store is not None and journals else Counter()
    admitted = sum(loss.charges for loss in losses(store)) if store else 0
    return max(0, (journals - paid).total() - admitted)


def lost_payments(store: BudgetStore | None, runs: Path) -> list[Head]:
    """List ends of a log that journals were paid by, and that the store never had.

    Charges alone do not tell where several projects pay one store: what another has
    paid for equal blocks stands in for those that are lost.

    Args:
        store: as it is now; None where there is none.
        runs: folder of all trainings, those that were put aside as well.
    """
    heads = {_noted(file) for file in runs.glob(f"*/{PAID}")}
    if store is None or not heads:
        return sorted(heads, key=astuple)
    admitted = {head for loss in losses(store) for head in loss.heads}
    return unknown_heads(store, sorted(heads - admitted, key=astuple))


def _noted(file: Path) -> Head:
    """Read where a log ended; a file that says nothing names an end that none has."""
    try:
        noted = parse_json(file.read_text(encoding="ascii"))
        return Head(sequence=int(noted["sequence"]), hash=str(noted["hash"]))
    except (ValueError, TypeError, LookupError):
        return Head(hash=file.parent.name)


def missing_from(store: BudgetStore | None, *, runs: Path) -> str | None:
    """Say what the store must hold and does not, or None.

    Args:
        store: as it is now; None where there is none.
        runs: folder of all trainings.
    """
    if unpaid := unpaid_charges(store, runs):
        what = f"{unpaid} charges of journals in {runs.name}/"
        return f"{what} are not in the budget store"
    if lost := lost_payments(store, runs):
        what = f"what {len(lost)} journals in {runs.name}/ were paid by"
        return f"{what} is not in the budget store"
    return None


_ADMIT: Final = (
    "If it is lost for good, reserve again what was spent and run `dptune budget "
    "admit-loss --reason ...`."
)


def refuse_lost_store(url: str, *, runs: Path, way_out: str = _ADMIT) -> None:
    """Refuse to spend from a store that does not know what was spent.

    Args:
        url: of the store.
        runs: see `missing_from`.
        way_out: what to do where the store is lost for good.

    Raises:
        ArtifactError: journals hold charges that it does not.
    """
    store = BudgetStore.find(url)
    with store or nullcontext():
        problem = missing_from(store, runs=runs)
    if problem:
        raise lost_store(problem, way_out=way_out)


def lost_store(problem: str, *, way_out: str = _ADMIT) -> ArtifactError:
    """Say that a store is not the one that earlier runs were paid from."""
    return ArtifactError(
        f"the budget store must hold what earlier runs spent; {problem}: it was "
        "deleted, restored from an older copy, or DPTUNE_BUDGET_URL names another. "
        f"Restore it (docs/OPERATIONS.md, Backup). {way_out}"
    )


def admit_lost_store(
    store: BudgetStore, *, runs: Path, heads: tuple[Head, ...], reason: str
) -> Loss:
    """Enter into the log what is lost, so that it stays on record.

    Args:
        store: that goes on.
        runs: folder of all trainings.
        heads: that registered versions left and the store does not hold.
        reason: of whoever admits it.

    Raises:
        ConfigError: the reason says nothing.
    """
    if not any(map(str.isalnum, reason)):
        message = "must say why in words, since it stays on record."
        raise ConfigError.at("--reason", message)
    heads = (*heads, *lost_payments(store, runs))
    loss = Loss(charges=unpaid_charges(store, runs), heads=heads, reason=reason)
    admit_loss(store, loss)
    return loss
