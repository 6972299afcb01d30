"""The ledger: everything that touched private data, in order, and what follows from it.

An entry says what ran, on which view of the data, and what it takes for granted. It
holds no epsilon of its own: claims are computed per notion when they are asked for, so
that no two notions are ever mixed.

What one entry costs:

| view, event | record | selective | local |
|---|---|---|---|
| public | nothing | nothing | nothing |
| original, noisy | its event | its event, as replace | everything |
| original, without noise | everything | everything | everything |
| redacted, noisy | its event | nothing, conditional | everything |
| redacted, without noise | everything | nothing, conditional | everything |

"Everything" is `NonPrivateDpEvent`: epsilon is infinite. Record DP accounted under the
replace relation implies selective DP, since replacing a record covers changing some of
its tokens; nothing implies record DP but record DP. The server of the local notion
sees every text, unless the entry gives an event for that notion. "Nothing, conditional"
needs all of `REDACTED_VIEW_ASSUMPTIONS`, where reading by hand may take the place of
recall; without them the entry costs what it would on
the original view.

References:
    Shi et al. (2022), Just Fine-tune Twice, Definition 3 and section 3.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Self

import dp_accounting
from dp_accounting import DpEvent, NoOpDpEvent
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from dptune.accounting.assumptions import (
    ABOUT_REDACTION,
    Assumption,
    hides_secrets,
)
from dptune.accounting.certificates import (
    RELATIONS,
    Certificate,
    check_relation,
    issue_certificate,
)
from dptune.accounting.events import (
    check_event,
    event_from_json,
    event_to_dict,
    is_non_private,
    mechanism_counts,
    merge_events,
)
from dptune.errors import DptuneError, PrivacyError
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.results import Report


class DataView(StrEnum):
    """Which form of the data a stage read."""

    ORIGINAL = "original"
    REDACTED = "redacted"
    PUBLIC = "public"


def _read_event(value: Any) -> Any:  # noqa: ANN401 - pydantic hands over anything
    """Accept an event, or what it was written as; pydantic wants ValueError."""
    try:
        if isinstance(value, DpEvent):
            return check_event(value)
        return value if value is None else event_from_json(value)
    except DptuneError as error:
        raise ValueError(str(error)) from error


EventField = Annotated[
    DpEvent,
    BeforeValidator(_read_event),
    PlainSerializer(event_to_dict),
    WithJsonSchema({"type": "object"}),
]
"""A `DpEvent` in a pydantic model, written as versioned plain data."""


class NotionEvent(Report):
    """What an entry costs for a notion whose cost does not follow from its view.

    Such as the noisy hidden states of a forward mechanism (`local`), or one whose
    un-noised part is the same for all selective neighbors (`selective`).

    Args:
        tier: empty for all that the notion protects; else the name of a part of it,
            for neighbors that differ in that part alone.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    notion: Notion
    dp_event: EventField
    tier: str = ""


class LedgerEntry(Report):
    """One stage, or one block of a stage that was charged on its own.

    Args:
        stage: name of the stage; blocks of one stage share it.
        recipe: the recipe it belongs to.
        data_fingerprint: of the corpus it read.
        privacy_unit: what one neighbor changes.
        view: which form of the data it read.
        dp_event: what ran, for the record notion; None only on public data. A stage
            without noise is a `NonPrivateDpEvent`, never None.
        num_steps: noisy updates that this entry pays for; the event must hold at least
            one mechanism for every `num_bands` of them.
        notion_events: costs for other notions that do not follow from the view.
        sample_rate, noise_multiplier, max_grad_norm: for display; the first two must
            be those of the event where it has only one mechanism. The sample rate is
            the chance to join a step.
        num_bands: steps of which a unit can join only one, since its turn comes once in
            as many (cyclic Poisson sampling). Above 1 the event must be one kind of
            Poisson-sampled mechanism, `num_bands` times as likely as `sample_rate`.
        assumptions: what the entry takes for granted.
        nominal_epsilon: what the paper's formula yields for the stage.
        nominal_reference: where it says so.
        fixed_seed: whether noise or sampling came from a known seed.

    Raises:
        ValidationError: the event pays for fewer mechanisms than there were steps, or
            contradicts what is displayed.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    stage: str = Field(min_length=1)
    recipe: str
    data_fingerprint: str
    privacy_unit: PrivacyUnit
    view: DataView
    dp_event: EventField | None = None
    num_steps: int = Field(ge=0)
    notion_events: tuple[NotionEvent, ...] = ()
    sample_rate: float | None = Field(default=None, ge=0, le=1)
    noise_multiplier: float | None = Field(default=None, ge=0)
    max_grad_norm: float | None = Field(default=None, gt=0)
    num_bands: int = Field(default=1, ge=1)
    assumptions: tuple[Assumption, ...] = ()
    nominal_epsilon: float | None = None
    nominal_reference: str = ""
    fixed_seed: bool = False

    @field_validator("view", mode="before")
    @classmethod
    def _plain_view(cls, value: object) -> object:
        return str(value) if isinstance(value, StrEnum) else value

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if (self.dp_event is None) != (self.view is DataView.PUBLIC):
            raise ValueError(
                "dp_event must be given unless view is public, and only then: a stage "
                "without noise is a NonPrivateDpEvent"
            )
        _check_counts(self)
        return self

    def event(self: Self, notion: Notion, *, tier: str = "") -> DpEvent:
        """Return what this entry costs for a notion, see the table of the module.

        Args:
            notion: what is protected.
            tier: neighbors differ in this part of it alone, where the entry knows it.
        """
        own = [e for e in self.notion_events if e.notion is notion]
        given = [e.dp_event for e in own if e.tier == tier]
        given = given or [e.dp_event for e in own if not e.tier]
        if given:
            return merge_events(given)
        if self.dp_event is None:
            return dp_accounting.NoOpDpEvent()
        if notion is Notion.LOCAL:
            return dp_accounting.NonPrivateDpEvent()
        if notion is Notion.SELECTIVE and self.hides_secrets:
            return dp_accounting.NoOpDpEvent()
        return self.dp_event

    @property
    def hides_secrets(self: Self) -> bool:
        """Whether the entry read the redacted view and names what that rests on."""
        return self.view is DataView.REDACTED and hides_secrets(self.assumptions)

    def claimed(self: Self, notion: Notion) -> tuple[Assumption, ...]:
        """Assumptions on which this entry's cost for a notion rests."""
        if self.view is DataView.PUBLIC:
            return ()
        given = any(e.notion is notion for e in self.notion_events)
        relevant = notion is Notion.SELECTIVE and (self.hides_secrets or given)
        named = [a for a in self.assumptions if relevant or a not in ABOUT_REDACTION]
        event = self.event(notion)
        rests_on_noise = not is_non_private(event) and bool(mechanism_counts(event))
        if self.fixed_seed and rests_on_noise:
            named.append(Assumption.FIXED_SEED_RANDOMNESS)
        return tuple(named)


class PrivacyLedger(Report):
    """An append-only history. Appending gives a new ledger; nothing is ever removed.

    Args:
        entries: in the order in which they were charged.

    >>> import dp_accounting
    >>> entry = LedgerEntry(
    ...     stage="finetune",
    ...     recipe="mine",
    ...     data_fingerprint="0" * 64,
    ...     privacy_unit=PrivacyUnit.USER,
    ...     view=DataView.ORIGINAL,
    ...     dp_event=dp_accounting.GaussianDpEvent(4.0),
    ...     num_steps=1,
    ... )
    >>> ledger = PrivacyLedger().append(entry).append(entry)
    >>> claim = ledger.certificate(Notion.RECORD, delta=1e-6)
    >>> claim.status.value, round(claim.epsilon, 2)
    ('certified', 1.54)
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    entries: tuple[LedgerEntry, ...] = ()

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if len({e.privacy_unit for e in self.entries if e.dp_event is not None}) > 1:
            raise ValueError("all entries on private data must have one privacy_unit")
        return self

    def append(self: Self, entry: LedgerEntry) -> "PrivacyLedger":
        """Return a ledger with one more entry.

        Raises:
            PrivacyError: its privacy unit is not that of the ledger.
        """
        return self.extend(PrivacyLedger(entries=(entry,)))

    def extend(self: Self, later: "PrivacyLedger") -> "PrivacyLedger":
        """Return a ledger with all entries of a later one behind these.

        Raises:
            PrivacyError: the privacy units differ.
        """
        units = {e.privacy_unit for e in (*self.entries, *later.entries) if e.dp_event}
        if len(units) > 1:
            raise PrivacyError(
                "privacy_unit must be the same in a ledger, got "
                f"{' and '.join(sorted(units))}. "
                "Claims about different units cannot be added up."
            )
        return PrivacyLedger(entries=(*self.entries, *later.entries))

    def cut_short(self: Self) -> "PrivacyLedger":
        """Return it as of a training that ended before its last planned step.

        Losses are private, and scripts see them: what stops by them tells by the number
        of steps whether a unit was there that makes them large, whatever the noise. So
        claims rest on what ended it.
        """
        if not self.entries:
            return self
        last = self.entries[-1]
        end = LedgerEntry(
            stage=last.stage,
            recipe=last.recipe,
            data_fingerprint=last.data_fingerprint,
            privacy_unit=last.privacy_unit,
            view=DataView.ORIGINAL,
            dp_event=NoOpDpEvent(),
            num_steps=0,
            assumptions=(Assumption.END_IS_PUBLIC,),
        )
        return self.append(end)

    @property
    def privacy_unit(self: Self) -> PrivacyUnit:
        """What one neighbor changes: that of all entries on private data."""
        units = [e.privacy_unit for e in self.entries if e.dp_event is not None]
        units += [e.privacy_unit for e in self.entries]
        return units[0] if units else PrivacyUnit.RECORD

    def event(self: Self, notion: Notion, *, tier: str = "") -> DpEvent:
        """Compose what all entries cost for a notion, equal mechanisms merged."""
        return merge_events(entry.event(notion, tier=tier) for entry in self.entries)

    def certificate(
        self: Self,
        notion: Notion,
        *,
        delta: float,
        relation: NeighboringRelation | None = None,
    ) -> Certificate:
        """State what the history guarantees for a notion.

        Args:
            notion: what is protected.
            delta: in (0, 1); choose less than 1 / number of privacy units.
            relation: the notion's usual one if None.

        Raises:
            PrivacyError: the notion is not defined under the relation, or two
                accountants contradict each other.
        """
        nominal, reference = _nominal(self.entries)
        named = {a for e in self.entries for a in e.claimed(notion)}
        given = (n for e in self.entries for n in e.notion_events)
        tiers = dict.fromkeys(n.tier for n in given if n.notion is notion and n.tier)
        return issue_certificate(
            self.event(notion),
            notion=notion,
            relation=check_relation(notion, relation),
            privacy_unit=self.privacy_unit,
            delta=delta,
            assumptions=tuple(sorted(named, key=_ORDER.__getitem__)),
            nominal_epsilon=nominal,
            nominal_reference=reference,
            tiers={tier: self.event(notion, tier=tier) for tier in tiers},
        )

    def certificates(self: Self, delta: float) -> tuple[Certificate, ...]:
        """State every claim: record as add/remove and as replace, selective, local.

        Local only where an entry gives an event for it.
        """
        notions = [Notion.RECORD, Notion.SELECTIVE]
        if any(e.notion is Notion.LOCAL for x in self.entries for e in x.notion_events):
            notions.append(Notion.LOCAL)
        return tuple(
            self.certificate(notion, delta=delta, relation=relation)
            for notion in notions
            for relation in RELATIONS[notion]
        )


_ORDER: Final = {assumption: index for index, assumption in enumerate(Assumption)}


def _nominal(entries: tuple[LedgerEntry, ...]) -> tuple[float | None, str]:
    """Add the papers' figures over stages, as they do; blocks of a stage share one."""
    stages = {(e.recipe, e.stage): e for e in entries if e.nominal_epsilon is not None}
    if not stages:
        return None, ""
    total = sum(e.nominal_epsilon or 0.0 for e in stages.values())
    references = dict.fromkeys(e.nominal_reference for e in stages.values())
    return total, "; ".join(r for r in references if r)


def _check_counts(entry: LedgerEntry) -> None:
    """Refuse an event that pays for less than what ran, or for something else."""
    if entry.dp_event is None or is_non_private(entry.dp_event):
        return
    counts = mechanism_counts(entry.dp_event)
    if sum(count for _, count in counts) * entry.num_bands < entry.num_steps:
        raise ValueError(
            "dp_event must pay for at least num_steps / num_bands mechanisms"
        )
    if entry.num_bands > 1 and (
        len(counts) != 1
        or type(counts[0][0]) is not dp_accounting.PoissonSampledDpEvent
        or entry.sample_rate is None
    ):
        raise ValueError(
            "num_bands above 1 must come with sample_rate and one Poisson-sampled "
            "mechanism"
        )
    if len(counts) == 1:
        _check_display(entry, counts[0][0])


def _check_display(entry: LedgerEntry, mechanism: DpEvent) -> None:
    """Refuse displayed numbers that are not those of the only mechanism."""
    inner = getattr(mechanism, "event", mechanism)
    rate = getattr(mechanism, "sampling_probability", 1.0)
    shown_rate = entry.sample_rate
    if shown_rate is not None:
        shown_rate = min(1.0, shown_rate * entry.num_bands)
    shown = (shown_rate, entry.noise_multiplier)
    for value, actual in zip(shown, (rate, inner.noise_multiplier), strict=True):
        if value is not None and value != actual:
            raise ValueError(
                "sample_rate and noise_multiplier must be those of dp_event"
            )
