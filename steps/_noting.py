"""What was decided and promoted, in the order in which it was: the budget store's log.

Files and tags of a registry can be put back to what they were before, and clocks be set
otherwise. The log is append-only and chained: it knows which decision of a policy was
the newest, which version was promoted last, and which of the two came first.
"""

from dataclasses import dataclass
from typing import Self

from dptune.accounting.store.attempts import (
    Attempt,
    attempts_about,
    broken_log,
    record_attempt,
)
from dptune.accounting.store.store import BudgetStore
from dptune.errors import ArtifactError, GateFailedError
from dptune.gates.decision import GateDecision, GateOutcome
from steps import _champions, _tracking
from steps._lost import budget_store

_AGAIN = "Run `dptune gate` on it again."


@dataclass(frozen=True, kw_only=True)
class Noted:
    """One entry: a verdict on a version, or its promotion.

    Args:
        kind: of entry.
        version: of the model.
        decision: its hash; `none` where somebody took the responsibility.
        policy: its digest; empty for promotions.
        outcome: of the decision; empty for promotions.
    """

    kind: Attempt
    version: str
    decision: str
    policy: str = ""
    outcome: str = ""

    @property
    def subject(self: Self) -> str:
        """Write it into the log."""
        parts = (self.version, self.decision, self.policy, self.outcome)
        return " ".join(filter(None, parts))


def note_verdict(model_name: str, version: str, decision: GateDecision) -> None:
    """Enter a decision, before anybody can rely on it."""
    _note(
        model_name,
        Noted(
            kind=Attempt.VERDICT,
            version=version,
            decision=decision.decision_hash,
            policy=decision.policy_digest,
            outcome=decision.outcome.value,
        ),
    )


def note_promotion(model_name: str, version: str, decision: str) -> None:
    """Enter which version is the champion now, whichever way it became it."""
    noted = Noted(kind=Attempt.PROMOTION, version=version, decision=decision)
    _note(model_name, noted)


def noted_champion(model_name: str) -> str | None:
    """Return the version that was promoted last; None where the log knows of none."""
    promoted = _of(_noted(model_name), Attempt.PROMOTION)
    return promoted[-1].version if promoted else None


def noted_outcomes(model_name: str) -> dict[str, str]:
    """Return the newest outcome of every version that the log has decisions on.

    Raises:
        GateFailedError: the log's chain is broken.
    """
    verdicts = _of(_noted(model_name), Attempt.VERDICT)
    return {entry.version: entry.outcome for entry in verdicts}


def refuse_foreign_models(model_name: str) -> None:
    """Refuse to register a model that the log knows, and this MLflow does not.

    The log names versions by model and number. Two registries that share it would take
    each other's evidence and decisions for their own.

    Raises:
        ArtifactError: another registry shares the budget store, or the model is gone.
    """
    if model_name in _tracking.model_names():
        return
    with budget_store() as store:
        known = store is not None and any(
            attempts_about(store, about)
            for about in (_about(model_name), f"version 1 of {model_name}")
        )
    if known:
        raise ArtifactError(
            f"the model must be one of this MLflow or a new one, got {model_name}, of "
            "which the budget store holds versions and this MLflow none. Another "
            "project folder shares the store and not MLflow, or the model was deleted. "
            "Choose another name, or use that folder's MLflow."
        )


def cut_trail(model_name: str) -> str:
    """Say where the trail of promotions is not what the log noted; else nothing.

    Who cuts the trail or adds to it chooses the champion that others are held to.
    """
    noted, told = noted_champion(model_name), _champions.champion(model_name)
    if noted is None or noted == told:
        return ""
    return (
        f"The trail of promotions ends with {_named(told)}, but the budget store noted "
        f"that {_named(noted)} was promoted last. Promote the one that it must be."
    )


def refuse_superseded(
    model_name: str, version: str, decision: GateDecision, *, is_return: bool = False
) -> None:
    """Refuse a decision that the log does not have for the newest of its policy.

    Args:
        model_name: as registered.
        version: its number.
        decision: a pass that a promotion relies on.
        is_return: whether a champion comes back, whose own decision need not be the
            newest, nor have been made beside the champion of now.

    Raises:
        GateFailedError: the log does not hold it; or the same policy decided otherwise
            since; or another version became the champion since.
    """
    who, log = f"version {version} of {model_name}", _noted(model_name)
    own = [
        (place, entry)
        for place, entry in enumerate(log)
        if entry.kind is Attempt.VERDICT
        and (entry.version, entry.policy) == (version, decision.policy_digest)
    ]
    places = [place for place, e in own if e.decision == decision.decision_hash]
    if not places:
        raise GateFailedError(
            f"{who} must have a decision that the budget store noted, but it does not "
            f"hold {decision.decision_hash[:16]}. {_AGAIN}"
        )
    newest = own[-1][1]
    if is_return and newest.outcome != GateOutcome.PASS:
        raise GateFailedError(
            f"{who} was refused since it was the champion: {newest.outcome}. "
            "If it must be, use `promote --override 'reason'`."
        )
    if is_return:
        return
    if newest.decision != decision.decision_hash:
        raise GateFailedError(
            f"{who} must be promoted by the newest decision under its policy, "
            f"{newest.decision[:16]} ({newest.outcome}), but holds "
            f"{decision.decision_hash[:16]}. {_AGAIN}"
        )
    before, now = (
        promoted[-1].version if promoted else None
        for promoted in (
            _of(log[: places[-1]], Attempt.PROMOTION),
            _of(log, Attempt.PROMOTION),
        )
    )
    if now not in {before, version}:
        raise GateFailedError(
            f"{who} was decided on beside {_named(before)}, and {_named(now)} is the "
            f"champion since. {_AGAIN}"
        )


def _named(version: str | None) -> str:
    return f"version {version}" if version else "no champion"


def _of(log: list[Noted], kind: Attempt) -> list[Noted]:
    """Leave the entries of one kind."""
    return [entry for entry in log if entry.kind is kind]


def _note(model_name: str, entry: Noted) -> None:
    """Write an entry, where there is a store."""
    with budget_store() as store:
        if store is not None:
            record_attempt(
                store,
                data_set="",
                kind=entry.kind,
                subject=entry.subject,
                about=_about(model_name),
            )


def _noted(model_name: str) -> list[Noted]:
    """Read all entries about a model, in order.

    Raises:
        GateFailedError: the log's chain is broken, so that entries say nothing.
    """
    with budget_store() as store:
        if store is None:
            return []
        if broken := broken_log(store):
            raise GateFailedError(f"the log of decisions must be whole. {broken}")
        return _read(store, model_name)


def _read(store: BudgetStore, model_name: str) -> list[Noted]:
    found = []
    for kind, subject in attempts_about(store, _about(model_name)):
        version, decision, policy, outcome = (*subject.split(" "), "", "")[:4]
        found.append(
            Noted(
                kind=kind,
                version=version,
                decision=decision,
                policy=policy,
                outcome=outcome,
            )
        )
    return found


def _about(model_name: str) -> str:
    """Name a model in the log."""
    return f"model {model_name}"
