"""A certificate: one claim about one history, with everything needed to judge it."""

import math
from collections.abc import Mapping
from typing import Final, Self

from dp_accounting import DpEvent
from pydantic import Field, model_validator

from dptune.accounting.accountants import cross_check
from dptune.accounting.assumptions import Assumption, weakens
from dptune.accounting.events import merge_events
from dptune.errors import ConfigError, PrivacyError
from dptune.privacy import (
    CertificateStatus,
    NeighboringRelation,
    Notion,
    PrivacyUnit,
)
from dptune.results import Report
from dptune.rounding import percent_at_most, written_at_most

RELATIONS: Final[dict[Notion, tuple[NeighboringRelation, ...]]] = {
    Notion.RECORD: (
        NeighboringRelation.ADD_OR_REMOVE_ONE,
        NeighboringRelation.REPLACE_ONE,
    ),
    Notion.SELECTIVE: (NeighboringRelation.REPLACE_ONE,),
    Notion.LOCAL: (NeighboringRelation.REPLACE_ONE,),
}
"""Relations under which a notion may be claimed, the usual one first."""


class TierEpsilon(Report):
    """What is guaranteed where neighbors differ in one tier of secrets alone."""

    tier: str
    epsilon: float = Field(ge=0)


class Certificate(Report):
    """One claim. Never quote its epsilon without notion, relation, unit and delta.

    Args:
        notion: what is protected.
        relation: which data sets count as neighbors.
        privacy_unit: what one neighbor changes.
        epsilon: what is guaranteed; infinite where nothing is.
        delta: of the claim; 0 where the history does not touch what is protected.
        status: how it is founded. `none` exactly when epsilon is infinite.
        assumptions: of the entries that this claim rests on.
        accounted_epsilon: what the events cost if all randomness was secret. Differs
            from `epsilon` only under a fixed seed. Not a guarantee.
        accountant: of record, with its published version; with the reason where it is
            our own, which dp_accounting could not be asked to confirm.
        second_opinion: epsilon of another accountant, None where none knows the events.
        second_opinion_method: that accountant, or why there is none.
        nominal_epsilon: what the papers' formulas say. Not a guarantee.
        nominal_reference: where they say it.
        explanation: the claim in plain words.
        missing_rate: missed sensitive words / all words, where the claim depends on a
            detector that misses nothing and the rate was measured.
        missing_rate_upper: upper confidence bound of that rate.
        tiers: the same claim, with its delta, for single tiers of what is protected;
            empty where there are none, and where nothing is guaranteed.

    >>> import dptune
    >>> claim = dptune.account(
    ...     noise_multiplier=0.0, sample_rate=0.01, num_steps=10, delta=1e-5
    ... )
    >>> claim.epsilon, claim.status.value
    (inf, 'none')
    >>> claim.explanation[:50]
    'No guarantee about whether one record was in the d'
    """

    notion: Notion
    relation: NeighboringRelation
    privacy_unit: PrivacyUnit
    epsilon: float = Field(ge=0)
    delta: float = Field(ge=0, lt=1)
    status: CertificateStatus
    assumptions: tuple[Assumption, ...] = ()
    accounted_epsilon: float = Field(ge=0)
    accountant: str
    second_opinion: float | None = None
    second_opinion_method: str = ""
    nominal_epsilon: float | None = None
    nominal_reference: str = ""
    explanation: str
    missing_rate: float | None = Field(default=None, ge=0, le=1)
    missing_rate_upper: float | None = Field(default=None, ge=0, le=1)
    tiers: tuple[TierEpsilon, ...] = ()

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        if math.isinf(self.epsilon) != (self.status is CertificateStatus.NONE):
            raise ValueError("status must be none exactly when epsilon is infinite")
        if self.relation not in RELATIONS[self.notion]:
            raise ValueError(f"{self.notion} cannot be claimed under {self.relation}")
        return self

    def quoting(
        self: Self,
        rate: float | None,
        upper: float | None,
        source: str,
        by_language: str = "",
    ) -> Self:
        """Return the claim with how much the detector misses, if it depends on that.

        A rate that was not measured is said to be unknown.

        Args:
            rate: missed sensitive words / all words.
            upper: upper confidence bound of the rate.
            source: how it was measured.
            by_language: what is missed and masked in each, in words.
        """
        recall = Assumption.DETECTOR_RECALL_IS_ONE
        if self.status is not CertificateStatus.CONDITIONAL or (
            recall not in self.assumptions
        ):
            return self
        quote = "How many sensitive words the detector misses is not known."
        if rate is not None and upper is not None:
            quote = (
                f"The detector misses {rate:.2%} of all words, at most "
                f"{percent_at_most(upper)}, by {source}."
            )
        return self.model_copy(
            update={
                "missing_rate": rate,
                "missing_rate_upper": upper,
                "explanation": f"{self.explanation} {quote} {by_language}".rstrip(),
            }
        )

    @property
    def label(self: Self) -> str:
        """Name of the claim: notion, relation and unit."""
        relation = {
            NeighboringRelation.ADD_OR_REMOVE_ONE: "add or remove",
            NeighboringRelation.REPLACE_ONE: "replace",
        }[self.relation]
        return f"{self.notion.value} ({relation} one {self.privacy_unit.value})"

    @property
    def metric(self: Self) -> str:
        """Name of the epsilon as a metric, by which registries are searched."""
        return f"epsilon_{self.notion}_{self.relation}"


def check_relation(
    notion: Notion, relation: NeighboringRelation | None
) -> NeighboringRelation:
    """Return the relation of a claim, the notion's usual one if None.

    Raises:
        PrivacyError: the notion is not defined under this relation.
    """
    allowed = RELATIONS[notion]
    if relation is None:
        return allowed[0]
    if relation not in allowed:
        raise PrivacyError(
            f"relation must be {' or '.join(allowed)} for notion {notion.value}, got "
            f"relation={relation.value}. It replaces part of a record, so accounting "
            "it as add or remove would be too small."
        )
    return relation


def check_certifiable(
    event: DpEvent, *, delta: float, relation: NeighboringRelation
) -> None:
    """Refuse planned noise that no certificate could be issued for once it is paid for.

    Raises:
        ConfigError: an accountant that a certificate asks cannot price it.
    """
    try:
        cross_check(event, delta=delta, relation=relation)
    except PrivacyError as error:
        raise ConfigError(
            "noise_multiplier must be one that a certificate can be issued for, but "
            f"no epsilon can be stated: {error}"
        ) from None


def issue_certificate(
    event: DpEvent,
    *,
    notion: Notion,
    relation: NeighboringRelation,
    privacy_unit: PrivacyUnit,
    delta: float,
    assumptions: tuple[Assumption, ...] = (),
    nominal_epsilon: float | None = None,
    nominal_reference: str = "",
    tiers: Mapping[str, DpEvent] | None = None,
) -> Certificate:
    """Turn an event and its assumptions into a claim.

    **Formal guarantee** when `status` is `certified`: (epsilon, delta)-DP under
    `relation` for `privacy_unit`. When it is `conditional`: the same, if every
    weakening assumption holds.

    | history | epsilon | delta | status |
    |---|---|---|---|
    | does not touch what is protected | 0 | 0 | certified or conditional |
    | all noisy | `cross_check` | as asked | certified or conditional |
    | something without noise | infinity | as asked | none |
    | noise from a fixed seed | infinity | as asked | none |

    A fixed seed voids the theorem: differential privacy bounds what an attacker learns
    over the coins of the mechanism, and one who knows the seed (it sits in a config
    file) recomputes the noise and subtracts it. "Empirical" would be wrong too, since
    nothing was measured. `accounted_epsilon` still says what the same run would have
    cost with secret coins, so that tests and demonstrations can be read.

    Args:
        event: composed over the history.
        notion: what is protected.
        relation: which data sets count as neighbors.
        privacy_unit: what one neighbor changes.
        delta: in (0, 1).
        assumptions: of the entries that the claim rests on.
        nominal_epsilon: what the papers' formulas say.
        nominal_reference: where they say it.
        tiers: events for neighbors that differ in one tier alone, by its name.

    Raises:
        PrivacyError: two accountants contradict each other, or the relation is wrong.
        UnsupportedEventError: an event that the accountant does not know.

    >>> import dp_accounting
    >>> certificate = issue_certificate(
    ...     dp_accounting.GaussianDpEvent(2.0),
    ...     notion=Notion.RECORD,
    ...     relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
    ...     privacy_unit=PrivacyUnit.USER,
    ...     delta=1e-5,
    ... )
    >>> certificate.status.value, round(certificate.epsilon, 2)
    ('certified', 1.99)
    """
    relation = check_relation(notion, relation)
    check = cross_check(event, delta=delta, relation=relation)
    seeded = Assumption.FIXED_SEED_RANDOMNESS in assumptions
    epsilon = math.inf if seeded else check.epsilon
    untouched = not seeded and merge_events([event]) == merge_events([])
    status = _status(epsilon, assumptions, notion, relation)
    protected = _protected(notion, relation, privacy_unit)
    parts = _tier_epsilons(tiers or {}, epsilon, delta=delta, relation=relation)
    of_tiers = (
        f"For secrets of tier {part.tier} alone epsilon is "
        f"{written_at_most(part.epsilon)}."
        for part in parts
    )
    left = 0.0 if untouched else delta
    explained = _SEEDED if seeded else _explain(protected, epsilon, left, status)
    return Certificate(
        notion=notion,
        relation=relation,
        privacy_unit=privacy_unit,
        epsilon=epsilon,
        delta=left,
        status=status,
        assumptions=assumptions,
        accounted_epsilon=check.epsilon,
        accountant=check.method,
        second_opinion=check.second_epsilon,
        second_opinion_method=check.second_method,
        nominal_epsilon=nominal_epsilon,
        nominal_reference=nominal_reference,
        explanation=" ".join([explained, *of_tiers]),
        tiers=parts,
    )


def _tier_epsilons(
    tiers: Mapping[str, DpEvent],
    epsilon: float,
    *,
    delta: float,
    relation: NeighboringRelation,
) -> tuple[TierEpsilon, ...]:
    """Account single tiers, where all of them together have a guarantee."""
    if math.isinf(epsilon):
        return ()
    checks = {
        tier: cross_check(event, delta=delta, relation=relation)
        for tier, event in tiers.items()
    }
    return tuple(
        TierEpsilon(tier=tier, epsilon=min(check.epsilon, epsilon))
        for tier, check in checks.items()
    )


_SEEDED: Final = (
    "No guarantee: the noise came from a fixed seed, which whoever knows it can "
    "subtract. Run again without a seed."
)
_PROTECTED: Final = {
    Notion.RECORD: "whether one {unit} was in the data",
    Notion.SELECTIVE: "the sensitive words of one {unit}",
    Notion.LOCAL: "one text that a {unit} sent to the server",
}


def _status(
    epsilon: float,
    assumptions: tuple[Assumption, ...],
    notion: Notion,
    relation: NeighboringRelation,
) -> CertificateStatus:
    """Grade a claim by its weakest leg."""
    if math.isinf(epsilon):
        return CertificateStatus.NONE
    if any(weakens(assumption, notion, relation) for assumption in assumptions):
        return CertificateStatus.CONDITIONAL
    return CertificateStatus.CERTIFIED


def _protected(
    notion: Notion, relation: NeighboringRelation, privacy_unit: PrivacyUnit
) -> str:
    """Name what a claim is about, for a reader."""
    if relation is NeighboringRelation.REPLACE_ONE and notion is Notion.RECORD:
        return f"what one {privacy_unit.value} holds"
    return _PROTECTED[notion].format(unit=privacy_unit.value)


def _explain(
    protected: str, epsilon: float, delta: float, status: CertificateStatus
) -> str:
    """Say what the claim means for a person whose data it is."""
    if status is CertificateStatus.NONE:
        return f"No guarantee about {protected}: it was trained on without noise."
    condition = (
        "If its assumptions hold, nobody"
        if status is CertificateStatus.CONDITIONAL
        else "Nobody"
    )
    chance = written_at_most(delta)
    if epsilon == 0.0:
        unless = f", except with probability {chance}" if delta else ""
        return f"{condition} learns anything from the model about {protected}{unless}."
    odds = math.exp(epsilon) if epsilon < 700 else math.inf
    return (
        f"{condition} who sees the model can sharpen the odds about {protected} by "
        f"more than a factor of {written_at_most(odds)}, except with probability "
        f"{chance}."
    )
