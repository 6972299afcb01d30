"""Between a run and the budget store: who is charged, for what, and when."""

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Final

from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.accounting.progress import charged_event, ledger_curves
from dptune.accounting.store.allowances import Cost, History, Terms, total, worst
from dptune.accounting.store.log import Head
from dptune.accounting.store.reservations import (
    KEY_BYTES,
    UnitSet,
    refuse_unseen,
)
from dptune.accounting.store.store import BudgetStore, Request
from dptune.accounting.store.summaries import budgets, history
from dptune.accounting.store.tables import IdKind
from dptune.config import TrainConfig
from dptune.data.records import Corpus
from dptune.dpsgd.plan import is_adaptive
from dptune.errors import BudgetExceededError, DptuneError
from dptune.planning import RunPlan
from dptune.privacy import Notion, PrivacyUnit
from dptune.recipes import View
from dptune.results import BudgetReport, BudgetReservation, CorpusReport
from dptune.rounding import written_at_most
from dptune.settings import BudgetSettings
from dptune.stages import StagePlan
from dptune.workflow.charging import release_entry, stage_entry
from dptune.workflow.naming import (
    Charged,
    check_digest,
    claim_digest,
    texts_digest,
)

_DECIDES: Final = {
    *("canaries", "detection", "scoring", "redaction", "model", "recipe", "privacy"),
    "seed",
}
"""Settings on which the weights depend; the data enter by their fingerprint."""


def budget_cost(entry: LedgerEntry) -> Cost:
    """Say what a ledger entry costs the units that it read, per notion.

    See `charged_event`: noise from a known seed costs everything.
    """
    return Cost.of({notion: charged_event(entry, notion) for notion in Notion})


def planned_costs(
    plan: RunPlan,
    corpus: CorpusReport,
    *,
    redaction: str,
    block_size: int,
    seeded: bool,
) -> tuple[Cost, Cost]:
    """Return the cost of a whole run, and of the blocks that may be drawn twice.

    The first is summed over the very blocks that training will charge; the second is
    one block of every stage: a kill costs at most the block that it interrupts.
    """
    whole, spare = [], []
    if plan.counts_noise_multiplier is not None:
        release = release_entry(
            corpus,
            recipe=plan.recipe,
            noise_multiplier=plan.counts_noise_multiplier,
            fixed_seed=seeded,
        )
        whole.append(budget_cost(release))
        spare.append(budget_cost(release))
    for stage in plan.stages:
        seen = corpus
        if stage.settings.view is View.REDACTED:
            seen = corpus.model_copy(update={"redaction": redaction})
        costs = _stage_costs(
            stage, seen, plan.recipe, block_size=block_size, seeded=seeded
        )
        whole.append(costs[0])
        spare.append(costs[1])
    return total(whole), total(spare)


_SAYS_HOW_MUCH_IS_MISSED = (
    "use_review",
    "missing_rate",
    "missing_rate_upper",
    "missing_rate_source",
)
"""Settings of the detector that change no label; `review_lists` does."""


def run_key(config: TrainConfig, fingerprint: str) -> str:
    """Name a computation, so that a resumed run finds its reservation.

    Args:
        config: of the run; what cannot change the weights is left out.
        fingerprint: of the corpus before canaries.
    """
    values = config.model_dump(mode="json", include=set(_DECIDES))
    for name in _SAYS_HOW_MUCH_IS_MISSED:
        values["detection"].pop(name)
    if config.repetition:
        values["repetition"] = config.repetition
    text = json.dumps({**values, "fingerprint": fingerprint}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def budget_request(
    config: TrainConfig, corpus: Corpus, plan: RunPlan, *, units: UnitSet
) -> Request:
    """Ask for everything that a run will draw.

    Args:
        config: of the run.
        corpus: as it was ingested, before canaries.
        plan: noise and steps of every stage.
        units: whom it is charged to.
    """
    counts = corpus.report
    planned, spare = planned_costs(
        plan,
        counts,
        redaction=config.redaction.name,
        block_size=config.performance.block_size,
        seeded=config.seed is not None,
    )
    hashed = counts.units_are_content_hashes
    settings = config.budget
    return Request(
        units=units,
        privacy_unit=PrivacyUnit(counts.privacy_unit),
        id_kind=IdKind.CONTENT_HASH if hashed else IdKind.SOURCE,
        run_key=run_key(config, corpus.fingerprint),
        recipe=plan.recipe,
        planned=planned,
        spare=spare,
        purpose=settings.purpose,
        sweep=settings.sweep,
        required=settings.required,
    )


def check_budget(
    config: TrainConfig,
    corpus: Corpus,
    plan: RunPlan,
    *,
    url: str,
    key: bytes | None,
    again: bool = False,
) -> None:
    """Refuse a run that its data set cannot pay for; creates nothing.

    Args:
        config: of the run.
        corpus: as it was ingested, before canaries.
        plan: noise and steps of every stage.
        url: of the budget store, which need not be there yet.
        key: that names the units; None where none was made yet.
        again: whether finished stages are trained again.

    Raises:
        BudgetExceededError: with what is left and what was asked.
        PrivacyError: the data set's units are known in another way, the same texts
            were charged under another name, or an id holds what nobody sees.
    """
    store = BudgetStore.find(url)
    other = key or secrets.token_bytes(KEY_BYTES)  # a lost key is refused below
    if store is None:
        _require_none(config.budget)
        units = UnitSet.of(
            corpus.source_units, key=other, data_set=config.budget.data_set
        )
        refuse_unseen(len(units.unseen))
        return
    with store:
        texts = texts_digest(corpus, key=other)
        charged = Charged.of(config, corpus, key=other, store=store)
        check_digest(store, charged.units, texts, owners=charged.owners)
        request = budget_request(config, corpus, plan, units=charged.units)
        store.preview(request, again=again)


def reserve_budget(
    config: TrainConfig,
    corpus: Corpus,
    plan: RunPlan,
    *,
    url: str,
    key: bytes,
    again: bool = False,
) -> BudgetReservation:
    """Hold a whole run's cost before anything is trained.

    Args:
        config: of the run.
        corpus: as it was ingested, before canaries.
        plan: noise and steps of every stage.
        url: of the budget store, which is created if need be.
        key: that names the units.
        again: whether finished stages are trained again, which spends again.

    Raises:
        BudgetExceededError: with what is left and what was asked.
        PrivacyError: the data set's units are known in another way, or the same
            texts were charged under another name.
    """
    texts = texts_digest(corpus, key=key)
    with BudgetStore.open(url) as store:
        charged = Charged.of(config, corpus, key=key, store=store)
    request = budget_request(config, corpus, plan, units=charged.units)
    return hold(url, request, texts=texts, owners=charged.owners, again=again)


def hold(
    url: str, request: Request, *, texts: str, owners: str = "", again: bool = False
) -> BudgetReservation:
    """Reserve what a run asks for, and note whose texts these are.

    Args:
        url: of the budget store, which is created if need be.
        request: of the run.
        texts: digest of its records.
        owners: digest of the units that these are of; empty for all of the request.
        again: see `BudgetStore.reserve`.

    Raises:
        BudgetExceededError, PrivacyError: as `reserve_budget`.
    """
    with BudgetStore.open(url) as store:
        check_digest(store, request.units, texts, owners=owners)
        held = store.reserve(request, again=again)
        claim_digest(store, request.units, texts, reservation=held, owners=owners)
        head = store.head()
    return BudgetReservation(
        id=held.id,
        data_set=held.data_set,
        num_units=held.num_units,
        head_sequence=head.sequence,
        head_hash=head.hash,
        found_open=held.found_open,
    )


class Spender:
    """Charges the blocks of a stage to the store, before their noise.

    Args:
        url: of the store, which is opened.
        reservation: id of the run's.
    """

    def __init__(self, url: str, *, reservation: str) -> None:
        self.url = url
        self.reservation = reservation
        self._store = BudgetStore.open(url)

    def ensure(
        self,
        stage: StagePlan,
        seen: CorpusReport,
        *,
        recipe: str,
        block_size: int,
        seeded: bool,
        first_step: int,
    ) -> None:
        """Hold what is left of a stage before its first block, see `BudgetStore`.

        Args:
            stage: that is about to be trained.
            seen: the corpus that it reads.
            recipe: name of the recipe.
            block_size: steps that are charged together.
            seeded: whether noise comes from a known seed.
            first_step: that is not drawn, or has to be drawn again.

        Raises:
            BudgetExceededError: the data set cannot pay for all of it.
        """
        rest, _ = _stage_costs(
            stage,
            seen,
            recipe,
            block_size=block_size,
            seeded=seeded,
            first_step=first_step,
        )
        self._store.ensure(self.reservation, rest)

    def __call__(self, entry: LedgerEntry) -> Head:
        """Charge one block, and return the end of the log; raises to refuse it."""
        return self._store.spend(
            self.reservation,
            budget_cost(entry),
            stage=entry.stage,
            num_steps=entry.num_steps,
        )


def spender(url: str, reservation: BudgetReservation) -> Spender:
    """Return what charges one block of a stage to the store, before its noise."""
    return Spender(url, reservation=reservation.id)


def settle_budget(
    url: str,
    reservation: BudgetReservation,
    *,
    delta: float,
    ledger: PrivacyLedger | None = None,
) -> BudgetReport:
    """Give back what a finished run never drew, and report its data set's budget.

    Args:
        url: of the budget store.
        reservation: of the run.
        delta: of the run, and of notions that nothing was granted for.
        ledger: of the run, whose course is put into the report.
    """
    with BudgetStore.open(url) as store:
        store.settle(reservation.id)
        (found,) = budgets(store, delta=delta, only=reservation.data_set)
    report = found.model_copy(update={"reservation": reservation.id})
    if ledger is None:
        return report
    return report.model_copy(update={"curves": ledger_curves(ledger, delta=delta)})


@contextmanager
def release_held(url: str, reservation: BudgetReservation) -> Iterator[None]:
    """Give back what a stage that fails has not drawn; a killed one keeps it.

    What was open before this run asked stays: an equal run may be drawing from it.
    """
    try:
        yield
    except Exception:
        if not reservation.found_open:
            # A store that is gone keeps holding: that is safe.
            with suppress(DptuneError), BudgetStore.open(url) as store:
                store.release(reservation.id)
        raise


def release_budget(url: str, config: TrainConfig, fingerprint: str) -> None:
    """Give back what a failed run never drew; what it has drawn stays spent.

    Equal runs share it: no other may be under way.
    """
    with suppress(DptuneError):  # a store that is gone keeps holding: that is safe
        store = BudgetStore.find(url)
        if store is None:
            return
        with store:
            store.release_run(config.budget.data_set, run_key(config, fingerprint))


def charged_so_far(url: str, config: TrainConfig, fingerprint: str) -> str:
    """Say in a sentence or two what a run has cost its data set up to now.

    Args:
        url: of the budget store.
        config: of the run.
        fingerprint: of its corpus, before canaries.

    Raises:
        ArtifactError: the store does not answer.
    """
    name, key = config.budget.data_set, run_key(config, fingerprint)
    store = BudgetStore.find(url)
    with store or nullcontext():
        runs = [] if store is None else history(store, data_set=name)
    held = next((run for run in reversed(runs) if run.run_key == key), None)
    if held is None:
        return "No budget was reserved or spent."
    privacy = config.privacy
    drawn, planned = (c.count(privacy.notion) for c in (held.spent, held.planned))
    if not drawn:
        return f"Nothing was spent of data set {name!r}."
    spent = worst(
        [History.of([held.spent], num_units=held.num_units)],
        Terms(
            notion=privacy.notion,
            relation=privacy.relation,
            delta=privacy.target_delta,
        ),
    )
    return (
        f"Data set {name!r} has paid for {drawn} of {planned} planned releases: "
        f"epsilon {written_at_most(spent.epsilon)} for this run alone "
        f"({privacy.notion}, {privacy.relation}, delta {privacy.target_delta:g})."
    )


def lacks_grant(url: str, config: TrainConfig) -> str:
    """Say what a run's own gate asks of its data set's budget and nobody granted.

    Args:
        url: of the budget store, which need not be there yet.
        config: of the run.

    Returns:
        One sentence; empty where the policy asks for no budget, or there is one.
    """
    policy, privacy, name = config.gate, config.privacy, config.budget.data_set
    asked = (policy.notion, policy.neighboring_relation)
    if not policy.require_dataset_budget:
        return ""
    store = BudgetStore.find(url)
    with store or nullcontext():
        found = budgets(store, delta=policy.max_delta, only=name) if store else []
    is_granted = (privacy.notion, privacy.relation) == asked and any(
        (line.notion, line.relation) == asked
        and line.allowance is not None
        and line.delta <= policy.max_delta
        for report in found
        for line in report.lines
    )
    if is_granted:
        return ""
    of_whom = f"budget of data set {name!r} under {policy.neighboring_relation}"
    return (
        f"gate {policy.name} asks for the {policy.notion} {of_whom}, and none was "
        "granted: see `dptune budget grant`, or set require_dataset_budget to false."
    )


def _require_none(settings: BudgetSettings) -> None:
    """Refuse a run that needs a grant where there is no store at all."""
    if settings.required:
        raise BudgetExceededError(
            f"data set {settings.data_set!r} must have a budget (budget.required is "
            f"true), got none. Run `dptune budget grant {settings.data_set} "
            "--epsilon ... --delta ...` first."
        )


def _stage_costs(
    stage: StagePlan,
    seen: CorpusReport,
    recipe: str,
    *,
    block_size: int,
    seeded: bool,
    first_step: int = 0,
) -> tuple[Cost, Cost]:
    """Cost of one stage from a step on, block by block, and of its dearest block."""

    def cost(plan: StagePlan, first_step: int, num_steps: int) -> Cost:
        entry = stage_entry(
            seen,
            plan,
            recipe=recipe,
            first_step=first_step,
            num_steps=num_steps,
            fixed_seed=seeded,
        )
        return budget_cost(entry)

    training = stage.training_plan()
    if is_adaptive(training):  # charged once, resumed for nothing
        return cost(stage, 0, stage.num_steps), Cost()
    is_local = stage.settings.local is not None  # a block is a participation
    block = 1 if is_local else training.whole_block(block_size)
    blocks = Counter[tuple[tuple[float, int], ...]]()
    example = {}
    for first in range(first_step, stage.num_steps, block):
        size = min(block, stage.num_steps - first)
        kind = stage.noise_runs(first, size)
        blocks[kind] += 1
        example[kind] = (first, size)
    whole = total([cost(stage, *example[k]).times(n) for k, n in blocks.items()])
    return whole, cost(stage.with_least_noise(), 0, min(block, stage.num_steps))
