"""The ledger entry that one block of a stage is charged as, and what charges it."""

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Final

from dp_accounting import NonPrivateDpEvent

from dptune.accounting.assumptions import Assumption, hides_secrets
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import (
    DataView,
    LedgerEntry,
    NotionEvent,
    PrivacyLedger,
)
from dptune.accounting.store.log import Head
from dptune.dpsgd.plan import GradientPlan, is_adaptive
from dptune.files import replacing
from dptune.mechanisms.sa_adp import PROTECTED
from dptune.planning import RunPlan, release_event
from dptune.privacy import Notion, PrivacyUnit, UnitsFrom
from dptune.recipes import StageSettings, View
from dptune.redaction.operators import KEYED, Operator
from dptune.results import CorpusReport
from dptune.stages import StagePlan

HIDING_OPERATORS = frozenset({Operator.MASK.value, Operator.DELETE.value})
"""Redactions whose result does not depend on the value of what was found.

The name of a redaction lists all its operators, as `delete+mask`: which type has which
would show what type a detector read off the value, so that it hides nothing.
"""

RELEASED_COUNTS, RELEASED_UNITS = "released_counts", "released_units"
"""Ledger entries of releases beside the stages: of counts of entity types, of units."""

ABOUT_NUM_UNITS: Final[dict[UnitsFrom, tuple[Assumption, ...]]] = {
    UnitsFrom.EXACT: (Assumption.NUM_UNITS_IS_PUBLIC,),
    UnitsFrom.DECLARED: (Assumption.NUM_UNITS_WAS_DECLARED,),
    UnitsFrom.RELEASED: (Assumption.NUM_UNITS_WAS_RELEASED,),  # another entry pays
}
"""What a stage on gradients takes for granted, whose rate and steps follow from it."""

PAID: Final = "paid.json"
"""Beside a journal: where the budget store's log ended when it was paid last."""

Spend = Callable[[LedgerEntry], Head | None]

ALWAYS = (
    Assumption.PUBLIC_HYPERPARAMETERS,
    Assumption.BASE_MODEL_IS_PUBLIC,
)


def stage_entry(
    corpus: CorpusReport,
    plan: StagePlan,
    *,
    recipe: str,
    first_step: int,
    num_steps: int,
    fixed_seed: bool,
) -> LedgerEntry:
    """Describe `num_steps` steps of a stage before they run.

    Args:
        corpus: what was read, and whether text decided which records were dropped.
        plan: the stage; the event comes from the same object that trains it.
        recipe: name of the recipe.
        first_step: of this block: the noise may depend on it.
        num_steps: steps of this block: with banded noise a multiple of the bands, or
            the end of the stage; of an adaptive plan all steps at once.
        fixed_seed: whether sampling and noise come from a known seed.
    """
    nominal = plan.settings.nominal
    entry = partial(
        LedgerEntry,
        stage=plan.settings.name,
        recipe=recipe,
        data_fingerprint=corpus.fingerprint,
        privacy_unit=PrivacyUnit(corpus.privacy_unit),
        num_steps=num_steps,
        nominal_epsilon=plan.nominal_epsilon,
        nominal_reference=nominal.reference if nominal else "",
    )
    if plan.settings.local is not None:
        return _forward_entry(entry, corpus, plan, first_step, fixed_seed=fixed_seed)
    if plan.settings.tiers is not None:
        return _tiered_entry(entry, corpus, plan, first_step, fixed_seed=fixed_seed)
    private, training = plan.settings.private, plan.training_plan()
    if isinstance(training, GradientPlan):
        event = training.dp_event(num_steps, first_step=first_step)
    else:
        event = training.dp_event(num_steps)
    runs, read = plan.noise_runs(first_step, num_steps), plan.settings.screened
    return entry(
        view=DataView(plan.settings.view.value),
        dp_event=event,
        sample_rate=plan.sample_rate if private else None,
        noise_multiplier=runs[0][0]
        if private and len(runs) == 1 and not is_adaptive(training)
        else None,
        max_grad_norm=plan.settings.clipping.max_grad_norm
        if plan.settings.clipping
        else None,
        num_bands=plan.num_bands,
        assumptions=(
            *assumptions_of(
                corpus,
                plan.settings.view,
                noisy=private,
                screened=read is not None and bool(read.screened_by),
                sees_marks=sees_marks(plan.settings),
            ),
            *_about_number(corpus, plan.units_from),
            *([Assumption.PUBLIC_WORD_LIST] if plan.settings.token_weights else []),
        ),
        fixed_seed=fixed_seed and private,
    )


def charge_to(
    journal: LedgerJournal,
    corpus: CorpusReport,
    plan: StagePlan,
    *,
    recipe: str,
    fixed_seed: bool,
    spend: Spend | None,
) -> Callable[[int, int], None]:
    """Return what charges blocks to the data set's budget, then to the journal.

    Args:
        journal: of the stage.
        corpus: see `stage_entry`.
        plan: likewise.
        recipe: likewise.
        fixed_seed: likewise.
        spend: charges the budget, and returns where its log ends; raises to refuse.
            None keeps no budget.
    """

    def charge(first_step: int, num_steps: int) -> None:
        entry = stage_entry(
            corpus,
            plan,
            recipe=recipe,
            first_step=first_step,
            num_steps=num_steps,
            fixed_seed=fixed_seed,
        )
        pay(entry, journal, spend)

    return charge


def pay(entry: LedgerEntry, journal: LedgerJournal, spend: Spend | None) -> None:
    """Charge the data set's budget, then the journal; noise is drawn after that.

    Between the two the end of the store's log is noted beside the journal: a store that
    never went through it has lost what it was paid, whatever others have paid it since.

    Args:
        entry: what is to be drawn.
        journal: of the computation.
        spend: see `charge_to`.
    """
    head = None if spend is None else spend(entry)
    if head is not None:
        with replacing(journal.path.with_name(PAID)) as half:
            half.write_text(json.dumps(asdict(head)), encoding="ascii")
    journal.charge(entry)


def _tiered_entry(
    entry: partial[LedgerEntry],
    corpus: CorpusReport,
    plan: StagePlan,
    first_step: int,
    *,
    fixed_seed: bool,
) -> LedgerEntry:
    """Describe steps of a stage in tiers: a record has no guarantee, secrets do.

    What is no secret trains without noise, on a text that neighbors share if the
    detector found every secret and labels and lengths are theirs too. Without all that
    this rests on, and in the paper's form, nothing is claimed.
    """
    training = plan.with_noise(plan.noise_multiplier or 0.0)
    assumptions = (
        *assumptions_of(
            corpus,
            plan.settings.view,
            noisy=True,
            sees_marks=sees_marks(plan.settings),
        ),
        *_about_secrets(corpus),
        *_about_number(corpus, plan.units_from),
        Assumption.LENGTHS_AND_TYPES_ARE_PUBLIC,
    )
    num_steps: int = entry.keywords["num_steps"]
    is_founded = hides_secrets(assumptions)
    events = (
        NotionEvent(
            notion=Notion.SELECTIVE,
            dp_event=training.dp_event(num_steps, first_step=first_step),
        ),
        *(
            NotionEvent(
                notion=Notion.SELECTIVE,
                dp_event=training.part_event(kind, num_steps, first_step=first_step),
                tier=tier.name.lower(),
            )
            for kind, tier in enumerate(PROTECTED)
        ),
    )
    return entry(
        view=DataView.ORIGINAL,
        dp_event=NonPrivateDpEvent(),
        notion_events=events if is_founded and not training.mixed_parts else (),
        max_grad_norm=training.max_grad_norm,
        assumptions=assumptions,
        fixed_seed=fixed_seed,
    )


def _forward_entry(
    entry: partial[LedgerEntry],
    corpus: CorpusReport,
    plan: StagePlan,
    first_step: int,
    *,
    fixed_seed: bool,
) -> LedgerEntry:
    """Describe participations of a stage with forward noise.

    Labels are sent in the clear, so that a record has no guarantee. Selective neighbors
    have equal labels, and all else that is learnt comes from the releases. The server
    sees who sends, whatever number the run was planned for: a text that would not be
    among those sent, had it other words, is not hidden.
    """
    forward = plan.forward_plan(plan.noise_multiplier or 0.0)
    event = forward.dp_event(entry.keywords["num_steps"], first_step=first_step)
    return entry(
        view=DataView.ORIGINAL,
        dp_event=NonPrivateDpEvent(),
        notion_events=(
            NotionEvent(notion=Notion.LOCAL, dp_event=event),
            NotionEvent(notion=Notion.SELECTIVE, dp_event=event),
        ),
        max_grad_norm=forward.max_norm,
        assumptions=(
            *assumptions_of(
                corpus,
                plan.settings.view,
                noisy=True,
                sees_marks=sees_marks(plan.settings),
            ),
            *_about_senders(corpus),
            Assumption.LABELS_ARE_SENT,
        ),
        fixed_seed=fixed_seed,
    )


def release_entry(
    corpus: CorpusReport,
    *,
    recipe: str,
    noise_multiplier: float,
    fixed_seed: bool,
    nominal_epsilon: float | None = None,
    what: str = RELEASED_COUNTS,
) -> LedgerEntry:
    """Describe a release of counts before its noise is drawn.

    Args:
        corpus: what is counted.
        recipe: name of the recipe.
        noise_multiplier: noise stddev / bound of one unit's vector of counts.
        fixed_seed: whether the noise comes from a known seed.
        nominal_epsilon: its part of the plan's nominal figure, if that has one.
        what: is released: `RELEASED_COUNTS` or `RELEASED_UNITS`.
    """
    return LedgerEntry(
        stage=what,
        recipe=recipe,
        data_fingerprint=corpus.fingerprint,
        privacy_unit=PrivacyUnit(corpus.privacy_unit),
        view=DataView.ORIGINAL,
        dp_event=release_event(noise_multiplier),
        num_steps=1,
        noise_multiplier=noise_multiplier,
        assumptions=assumptions_of(
            corpus, View.ORIGINAL, sees_marks=what != RELEASED_UNITS
        ),
        nominal_epsilon=nominal_epsilon,
        fixed_seed=fixed_seed,
    )


def planned_ledger(
    plan: RunPlan, corpus: CorpusReport, *, redaction: str, fixed_seed: bool
) -> PrivacyLedger:
    """Return the ledger that a run leaves if all goes as planned, a stage an entry.

    Args:
        plan: of the run.
        corpus: with what planting and marking will assume.
        redaction: operator that makes the redacted view.
        fixed_seed: whether sampling and noise come from a known seed.
    """
    releases = {
        RELEASED_UNITS: plan.units_noise_multiplier,
        RELEASED_COUNTS: plan.counts_noise_multiplier,
    }
    entries = [
        release_entry(
            corpus,
            recipe=plan.recipe,
            noise_multiplier=noise_multiplier,
            fixed_seed=fixed_seed and what == RELEASED_COUNTS,
            what=what,
        )
        for what, noise_multiplier in releases.items()
        if noise_multiplier is not None
    ]
    redacted = corpus.model_copy(update={"redaction": redaction})
    entries += [
        stage_entry(
            redacted if stage.settings.view is View.REDACTED else corpus,
            stage,
            recipe=plan.recipe,
            first_step=0,
            num_steps=stage.num_steps,
            fixed_seed=fixed_seed,
        )
        for stage in plan.stages
    ]
    return PrivacyLedger(entries=tuple(entries))


def sees_marks(settings: StageSettings) -> bool:
    """Whether what a stage trains on depends on what was marked in the records.

    Which records are `screened` does not, but that stage reads the redacted view.
    """
    return (
        settings.view is View.REDACTED
        or settings.token_weights is not None
        or settings.tiers is not None
    )


def _about_number(
    corpus: CorpusReport, units_from: UnitsFrom
) -> tuple[Assumption, ...]:
    """Name what rates, steps and divisors take for granted.

    Neighbors of a replacement have equally many units, unless texts decide how many
    there are: another text may repeat one that is there, or fall into another split.
    """
    if units_from is UnitsFrom.EXACT and _texts_decide_units(corpus):
        return (*ABOUT_NUM_UNITS[units_from], Assumption.REPLACEMENT_KEEPS_NUM_UNITS)
    return ABOUT_NUM_UNITS[units_from]


def _about_senders(corpus: CorpusReport) -> tuple[Assumption, ...]:
    """Name what a server takes for granted that sees who sends, however many."""
    decides = _texts_decide_units(corpus)
    return (Assumption.REPLACEMENT_KEEPS_NUM_UNITS,) if decides else ()


def _texts_decide_units(corpus: CorpusReport) -> bool:
    """Whether another text of a unit may change who is trained on."""
    drops_units = corpus.deduplicated and corpus.privacy_unit == PrivacyUnit.RECORD
    return drops_units or corpus.units_are_content_hashes


def assumptions_of(
    corpus: CorpusReport,
    view: View,
    *,
    noisy: bool = False,
    screened: bool = False,
    sees_marks: bool = False,
) -> tuple[Assumption, ...]:
    """Name what a stage on this corpus takes for granted, and nothing that is untrue.

    Deduplication here reads the original text, so a corpus that was deduplicated cannot
    assume that it read redacted text only: its redacted view is then charged like the
    original one. The same holds where records are known by hashes of their text, and
    where the redaction leaves something of a secret's value: its type, which a detector
    reads off the value, or a number that tells which secrets are equal.

    A noisy stage on the redacted view trusts no detector: its noise is charged, and
    what was missed is covered by it. A `screened` one trusts those who read it instead.

    Whatever lets one unit reach the data of others before the clip is named, see the
    table in docs/GUARANTEES.md. What makes marks depend on other records matters to
    stages that see marks, noisy ones too: noise is for the sum of one unit.
    """
    found = list(ALWAYS)
    tells_copies_apart = (
        view is View.REDACTED
        and not KEYED.isdisjoint(corpus.redaction.split("+"))
        and corpus.privacy_unit == PrivacyUnit.RECORD
    )
    is_free = corpus.duplicates_are_free and not tells_copies_apart
    if corpus.deduplicated and not is_free:
        found.append(Assumption.DEDUPLICATED_CORPUS)
    if corpus.sampled:
        found.append(Assumption.SAMPLED_CORPUS)
    found += map(Assumption, corpus.assumes)
    if sees_marks:
        found += map(Assumption, corpus.marks_assume)
    if view is View.REDACTED and not noisy:
        hides = corpus.redaction in HIDING_OPERATORS
        found += [
            assumption
            for assumption in _about_secrets(corpus, screened=screened)
            if hides
            or assumption is not Assumption.REDACTED_VIEW_IDENTICAL_FOR_NEIGHBORS
        ]
    return tuple(found)


def _about_secrets(
    corpus: CorpusReport, *, screened: bool = False
) -> tuple[Assumption, ...]:
    """Name what a masked text takes for granted that trains without noise."""
    found = [
        Assumption.SCREENED_BY_HAND if screened else Assumption.DETECTOR_RECALL_IS_ONE,
        Assumption.REDACTED_VIEW_IDENTICAL_FOR_NEIGHBORS,
    ]
    if not corpus.deduplicated and not corpus.ids_are_content_hashes:
        found.append(Assumption.DEDUPLICATION_SAW_REDACTED_TEXT_ONLY)
    return tuple(found)
