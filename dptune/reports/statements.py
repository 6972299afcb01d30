"""What a privacy card states: frozen values that hold only what a card may show."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import Certificate
from dptune.gates.criterion import GateOutcome
from dptune.gates.evidence import AuditEvidence, StepAuditEvidence
from dptune.privacy import PrivacyUnit
from dptune.results import BudgetLine, ControllerReport, Interval, Report


class DetectionStatement(Report):
    """What found the personal data, and how much it misses.

    Args:
        missing_rate_source: where the rate was measured, such as `TAB test split`.
    """

    tier: str
    recognizers: tuple[str, ...]
    missing_rate: float | None = None
    missing_rate_interval: Interval | None = None
    missing_rate_source: str = ""


class ExposureStatement(Report):
    """Canary exposure beside both controls, bits.

    Args:
        insertions: units that hold a copy of one canary: guarantees for it are those
            of a group of this size.
        group_epsilon: certified for such a group, if it was computed.
        p_value: of the planted canaries against chance (Fisher).
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
    group_epsilon: float | None = None


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


class SpentStatement(Report):
    """What the units that were charged most have spent under one notion.

    Args:
        spent: epsilon of all runs, composed.
        tuning: epsilon of the trials of sweeps alone, composed.
        allowance: granted epsilon; None where nothing was granted.
        left: allowance less what is spent or held; None likewise.
    """

    notion: str
    relation: str
    delta: float
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


class PrivacyCard(Report):
    """Everything that a stranger needs to judge one model version.

    Args:
        base_model: hub id or name of what training started from.
        data_fingerprint: empty, but in cards from before: a digest of the corpus tells
            neighbors apart to whoever knows the rest of it.
        certificates: one for each notion and relation.
        sampling_assumed: what the accountant assumes, such as `Poisson`.
        sampling_actual: what ran, in the same words where it is the same.
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
