"""What a privacy card states: frozen values that hold only what a card may show.

A card is written for people outside the trust boundary: no losses, no counts of
personal data, no figure of a single canary. Each statement takes from its report what
may be shown, and nothing else.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

from pydantic import Field, model_validator

from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import Certificate
from dptune.gates.criterion import GateOutcome
from dptune.gates.decision import GateDecision
from dptune.gates.evidence import AuditEvidence, StepAuditEvidence
from dptune.gates.null_law import fisher_p_value
from dptune.privacy import PrivacyUnit
from dptune.reports.formatting import (
    epsilon,
    number,
    p_value,
    percent,
    upper,
    words,
)
from dptune.reports.render import escaped
from dptune.results import (
    BudgetLine,
    BudgetReport,
    CanaryExposure,
    ControllerReport,
    DetectionReport,
    ExposureReport,
    Interval,
    MembershipReport,
    Report,
    UtilityReport,
)
from dptune.rounding import at_most

_LONGEST_REASON = 1000
_OUTSIDE = (
    (
        "Results of attacks, utility tests and the gate, the outcome and the choice of "
        "this version included: they were computed on private units without noise."
    ),
    "The validation and test splits: nothing that was computed from them is covered.",
    (
        "Counts and checks made while preparing the data, such as how many records "
        "were dropped as duplicates or how many spans were masked."
    ),
)


@dataclass(frozen=True, kw_only=True)
class ExposureMeans:
    """Mean exposure of the three groups, bits, and the p-value of the planted ones.

    Args:
        planted, held_out, base: means; None where a group is empty.
        p_value: chance of planted exposures this large had no canary been seen, by
            Fisher's method; assumes that canaries are independent.
        num_planted: canaries behind `planted`.
    """

    planted: float | None
    held_out: float | None
    base: float | None
    p_value: float | None
    num_planted: int


def exposure_means(report: ExposureReport) -> ExposureMeans:
    """Return the mean exposures and the p-value of the planted canaries."""
    planted = report.planted()
    return ExposureMeans(
        planted=_mean(planted),
        held_out=_mean(report.held_out()),
        base=_mean(report.base_planted()),
        p_value=against_chance(report, planted),
        num_planted=len(planted),
    )


def against_chance(
    report: ExposureReport, canaries: Sequence[CanaryExposure]
) -> float | None:
    """Return Fisher's p-value of canaries; None of secrets that nobody drew at random.

    Those follow no uniform law, whatever a model saw.
    """
    if not canaries or not report.drawn:
        return None
    return fisher_p_value([canary.rank for canary in canaries], report.space_size)


def _mean(canaries: Sequence[CanaryExposure]) -> float | None:
    """Return the mean exposure, None for no canaries."""
    if not canaries:
        return None
    return sum(c.exposure for c in canaries) / len(canaries)


def mean_interval(
    report: ExposureReport, canaries: Sequence[CanaryExposure]
) -> Interval | None:
    """Return where the mean exposure of these canaries lies; None if it is exact."""
    if not report.doubt or not canaries:
        return None
    lows = [
        c.exposure_interval.low if c.exposure_interval else c.exposure for c in canaries
    ]
    return Interval(
        low=sum(lows) / len(lows),
        high=sum(c.exposure for c in canaries) / len(lows),
        confidence=1 - report.doubt,
    )


def outside_epsilon(exposure: ExposureReport) -> tuple[str, ...]:
    """Say what no epsilon covers, and what was not measured."""
    unknown = exposure.not_measurable
    more = (f"What the model memorized of single secrets. {unknown}",)
    return (*_OUTSIDE, *(more if unknown else ()))


class DetectionStatement(Report):
    """What found the personal data, and how much it misses.

    Args:
        missing_rate_source: where the rate was measured, such as `TAB test split`.
        role_tiers, taken_back: see `DetectionReport`.
    """

    tier: str
    recognizers: tuple[str, ...]
    missing_rate: float | None = None
    missing_rate_interval: Interval | None = None
    missing_rate_source: str = ""
    role_tiers: dict[str, str] = Field(default_factory=dict)
    taken_back: tuple[str, ...] = ()

    @classmethod
    def of(cls, report: DetectionReport, *, source: str) -> Self:
        """Keep the detector's name and its false-negative rate, no counts."""
        return cls(
            tier=report.tier,
            role_tiers=report.role_tiers,
            taken_back=report.taken_back,
            recognizers=report.recognizers,
            missing_rate=report.missing_rate,
            missing_rate_interval=report.missing_rate_interval,
            missing_rate_source=source,
        )


class ExposureStatement(Report):
    """Canary exposure beside both controls, bits.

    Args:
        insertions: units that hold a copy of one canary: guarantees for it are those
            of a group of this size.
        group_epsilon: certified for such a group, if it was computed.
        p_value: of the planted canaries against chance (Fisher).
        planted_mean_interval: where `planted_mean`, its high end, lies; None where all
            ranks are exact.
    """

    setting: Literal["as_detected", "missed", "not_missed", "partly_missed"]
    insertions: int = Field(ge=0)
    num_planted: int = Field(ge=0)
    num_held_out: int = Field(ge=0)
    space_size: int = Field(ge=1)
    planted_mean: float | None
    held_out_mean: float | None
    base_mean: float | None
    p_value: float | None
    planted_mean_interval: Interval | None = None
    group_epsilon: float | None = None

    @classmethod
    def of(cls, report: ExposureReport, *, group_epsilon: float | None) -> Self | None:
        """Keep means and the p-value; None where there was nothing to measure.

        Args:
            report: of all canaries.
            group_epsilon: `dptune.accounting.groups.group_epsilon` for as many units
                as hold one canary.
        """
        if report.not_measurable:
            return None
        means = exposure_means(report)
        return cls(
            setting=report.setting,
            insertions=max((c.insertions for c in report.planted()), default=0),
            num_planted=means.num_planted,
            num_held_out=len(report.held_out()),
            space_size=report.space_size,
            planted_mean=means.planted,
            held_out_mean=means.held_out,
            base_mean=means.base,
            p_value=means.p_value,
            planted_mean_interval=mean_interval(report, report.planted()),
            group_epsilon=group_epsilon,
        )


class MembershipStatement(Report):
    """The strongest membership attack beside the blind one."""

    attack: str
    auc: float
    auc_interval: Interval
    low_fpr: float
    tpr: float
    tpr_interval: Interval
    blind_auc: float
    blind_tpr: float
    num_members: int
    num_non_members: int
    num_shadows: int = 0

    @classmethod
    def of(cls, report: MembershipReport) -> Self:
        """Keep the strongest attack and the blind one."""
        best = report.strongest()
        return cls(
            attack=best.name,
            auc=best.auc,
            auc_interval=best.auc_interval,
            low_fpr=best.low_fpr,
            tpr=best.tpr_at_low_fpr,
            tpr_interval=best.tpr_at_low_fpr_interval,
            blind_auc=report.blind.auc,
            blind_tpr=report.blind.tpr_at_low_fpr,
            num_members=report.num_members,
            num_non_members=report.num_non_members,
            num_shadows=report.shadows.num_models if report.shadows else 0,
        )


class UtilityStatement(Report):
    """Perplexity and next-token accuracy on held-out records, before and after.

    Of a classifier, accuracy, beside its base's and the most frequent class's.
    """

    split: str
    num_records: int
    perplexity: float
    base_perplexity: float
    accuracy: float | None = None
    accuracy_interval: Interval | None = None
    base_accuracy: float | None = None
    majority_accuracy: float | None = None
    token_accuracy: float | None = None
    base_token_accuracy: float | None = None

    @classmethod
    def of(cls, report: UtilityReport) -> Self:
        """Keep what was reached, and what the base reaches; no value of a record."""
        return cls(**report.model_dump(include=set(cls.model_fields)))


class GateStatement(Report):
    """What the gate said when the card was written.

    Args:
        outcome: of the gate.
        policy: name, version and digest.
        decision_hash: of the decision.
        manifest_digest: of the files that it is about; empty in cards from before.
        attempts: how often the data were tried; empty in cards from before.
    """

    outcome: GateOutcome
    policy: str
    decision_hash: str
    manifest_digest: str = ""
    attempts: str = ""

    @classmethod
    def of(cls, decision: GateDecision) -> Self:
        """Keep outcome, hash and how often the data were tried."""
        counted = (c.reason for c in decision.criteria if c.name == "attempts")
        return cls(
            outcome=decision.outcome,
            policy=decision.policy,
            decision_hash=decision.decision_hash,
            manifest_digest=decision.manifest_digest,
            attempts=next(counted, ""),
        )


class SpentStatement(Report):
    """What the units that were charged most have spent under one notion.

    Args:
        spent: epsilon of all runs, composed.
        tuning: epsilon of the trials of sweeps alone, composed.
        adaptive: whatever runs were chosen for what earlier ones released.
        allowance: granted epsilon; None where nothing was granted.
        left: allowance less what is spent or held; None likewise.
    """

    notion: str
    relation: str
    delta: float
    adaptive: bool = False
    spent: float
    tuning: float
    allowance: float | None
    left: float | None

    @classmethod
    def of(cls, line: BudgetLine) -> Self:
        """Leave out how many units they are, which is nobody's business outside."""
        return cls(
            notion=line.notion,
            relation=line.relation,
            delta=line.delta,
            adaptive=line.adaptive,
            spent=line.spent,
            tuning=line.tuning,
            allowance=line.allowance,
            left=line.left,
        )


class BudgetStatement(Report):
    """What all runs on the data set had spent when the model was registered.

    Args:
        num_trials: runs of sweeps, whose results may have chosen the settings.
        num_sweeps: sweeps that they belong to.
        lines: one for each notion; what tuning spent is part of what all runs spent.
    """

    num_trials: int = Field(ge=0)
    num_sweeps: int = Field(ge=0)
    lines: tuple[SpentStatement, ...]

    @classmethod
    def of(cls, report: BudgetReport) -> Self:
        """Keep epsilons and the number of trials; no sizes of cohorts, no names."""
        return cls(
            num_trials=sum(report.sweeps.values()),
            num_sweeps=len(report.sweeps),
            lines=tuple(SpentStatement.of(line) for line in report.lines),
        )


class PrivacyCard(Report):
    """Everything that a stranger needs to judge one model version.

    Args:
        base_model: hub id or name of what training started from.
        data_fingerprint: empty, but in cards from before: a digest of the corpus tells
            neighbors apart to whoever knows the rest of it.
        certificates: one for each notion and relation.
        sampling_assumed: what the accountant assumes, such as `Poisson`.
        sampling_actual: what ran, in the same words where it is the same.
        loss_normalizer: what losses of sequences were divided by, stage by stage.
        budget: of the data set; None where no store keeps it.
        deduplicated: whether record claims hold for the deduplicated corpus.
        outside_guarantee: one sentence for each thing that no epsilon covers.
        dependency_versions: of everything that the claim rests on.
        fixed_seed: whether noise or sampling came from a known seed.
        controllers: of stages that had one, for their traces.
        override: why somebody promoted the version past the gate; empty if nobody did.

    Raises:
        ValidationError: a certificate is of another privacy unit, or contradicts
            `fixed_seed`.
    """

    model_name: str
    model_version: str
    model_digest: str
    base_model: str
    recipe: str
    recipe_title: str
    recipe_reference: str = ""
    privacy_unit: PrivacyUnit
    data_fingerprint: str = ""
    certificates: tuple[Certificate, ...]
    sampling_assumed: str
    sampling_actual: str
    loss_normalizer: str = ""
    budget: BudgetStatement | None = None
    deduplicated: bool
    outside_guarantee: tuple[str, ...]
    detection: DetectionStatement | None = None
    exposure: ExposureStatement | None = None
    membership: MembershipStatement | None = None
    utility: UtilityStatement | None = None
    audits: tuple[AuditEvidence, ...] = ()
    step_audits: tuple[StepAuditEvidence, ...] = ()
    gate: GateStatement | None = None
    dependency_versions: dict[str, str] = Field(default_factory=dict)
    fixed_seed: bool
    controllers: tuple[ControllerReport, ...] = ()
    override: str = ""

    @model_validator(mode="after")
    def _check(self: Self) -> Self:
        units = {c.privacy_unit for c in self.certificates}
        if units - {self.privacy_unit}:
            raise ValueError("certificates must be of the card's privacy_unit")
        if self.fixed_seed and any(0 < c.epsilon < math.inf for c in self.certificates):
            raise ValueError(
                "fixed_seed must not stand beside a finite epsilon: issue certificates "
                "from a ledger whose entries say fixed_seed too"
            )
        seeded = Assumption.FIXED_SEED_RANDOMNESS
        if not self.fixed_seed and any(
            seeded in c.assumptions for c in self.certificates
        ):
            raise ValueError("fixed_seed must be true, a certificate names it")
        return self


def at_a_glance(card: PrivacyCard, decision: GateDecision | None) -> dict[str, str]:
    """Say what was decided and why, what is claimed, and what was measured.

    Args:
        card: of the version; holds only what anybody may read.
        decision: on it; None where there is none yet.

    Returns:
        Sentences by what they are about, since dashboards fold what is nested. What
        was not measured is left out.
    """
    failed = decision.failed() if decision else ()
    found = {"verdict": str(decision.outcome) if decision else "none yet"}
    for criterion in failed:
        change = criterion.what_would_change_it
        found[f"refused by {words(criterion.name)}"] = " ".join(
            filter(None, (criterion.reason, change))
        )
    if card.override:
        found["promoted all the same"] = card.override[:_LONGEST_REASON]
    for notion in dict.fromkeys(c.notion for c in card.certificates):
        found[f"epsilon, {notion}"] = "; ".join(
            f"{epsilon_words(c)} ({words(c.relation)} {c.privacy_unit})"
            for c in card.certificates
            if c.notion is notion
        )
    if (seen := card.exposure) and seen.num_planted:
        found["exposure"] = (
            f"{number(seen.planted_mean)} bits, mean of {seen.num_planted} planted "
            f"canaries ({p_value(seen.p_value)} against chance); never-seen ones have "
            f"{number(seen.held_out_mean)}, a memorized one has "
            f"{number(math.log2(seen.space_size))}"
        )
    if attack := card.membership:
        found["membership attack"] = (
            f"AUC {number(attack.auc)} by {words(attack.attack)}, TPR "
            f"{percent(attack.tpr)} at {percent(attack.low_fpr)} FPR"
        )
    if kept := card.utility:
        base = number(kept.base_perplexity)
        found["utility"] = f"perplexity {number(kept.perplexity)}, base {base}"
        if kept.accuracy is not None:
            found["utility"] += f"; accuracy {percent(kept.accuracy)}"
    return found


def epsilon_words(certificate: Certificate) -> str:
    """Say what is claimed, and how well it is founded."""
    claimed, delta = epsilon(certificate.epsilon), upper(certificate.delta)
    return f"{claimed} at δ {delta}, {certificate.status}"


def claim_words(certificates: Iterable[Certificate]) -> dict[str, str]:
    """Say on a dashboard what is claimed, by notion, neighbors and unit."""
    return {
        f"epsilon, {c.label}": f"{epsilon(c.epsilon)} at delta {at_most(c.delta):g}, "
        f"{c.status}"
        for c in certificates
    }


def summary_markdown(glance: Mapping[str, str]) -> str:
    """Write the same for a registry that shows Markdown."""
    lines = ((escaped(about), escaped(text)) for about, text in glance.items())
    return "".join(f"**{about}**: {text}\n\n" for about, text in lines)


def verdict_tag(outcome: GateOutcome) -> str:
    """Tag by which runs and versions of one verdict are found.

    >>> verdict_tag(GateOutcome.PASS)
    'verdict:PASS'
    """
    return f"verdict:{outcome.value}"
