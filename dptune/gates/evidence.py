"""All that a decision rests on, in one value."""

from typing import Self

from pydantic import AwareDatetime, Field

from dptune.gates.manifest import Manifest
from dptune.privacy import (
    CertificateStatus,
    NeighboringRelation,
    Notion,
    PrivacyUnit,
)
from dptune.results import (
    DetectionReport,
    ExposureReport,
    MembershipReport,
    Report,
    UtilityReport,
)


class ClaimEvidence(Report):
    """One composed claim about one model: what a certificate of the ledger says.

    Args:
        model_digest: the model that the claim is about.
        notion: what it protects.
        relation: which data sets count as neighbors.
        privacy_unit: what one neighbor changes.
        epsilon: composed, certified; infinite where nothing is guaranteed.
        delta: of the claim.
        status: how it is founded.
        assumptions: names, for `conditional` claims.
        missing_rate: missed sensitive words / all words, if audited.
        missing_rate_upper: upper confidence bound of that share.
        nominal_epsilon: what the paper's formula yields; never decides anything.
        accountant: name and version.
        tier: of the sensitive tokens, where a mechanism has tiers.
    """

    model_digest: str
    notion: Notion
    relation: NeighboringRelation
    privacy_unit: PrivacyUnit
    epsilon: float
    delta: float
    status: CertificateStatus
    assumptions: tuple[str, ...] = ()
    missing_rate: float | None = None
    missing_rate_upper: float | None = None
    nominal_epsilon: float | None = None
    accountant: str = ""
    tier: str | None = None


class BudgetEvidence(Report):
    """What a data set's budget store says, this run included.

    Args:
        notion: of both epsilons.
        relation: of both epsilons: a grant under one says nothing of the other. None in
            evidence from before it was noted, which satisfies no policy.
        spent_epsilon: of the worst cohort of privacy units, over all runs.
        budget_epsilon: what the data set may spend.
        delta: of both.
    """

    notion: Notion
    relation: NeighboringRelation | None = None
    spent_epsilon: float
    budget_epsilon: float
    delta: float


class AuditEvidence(Report):
    """A lower bound of epsilon from an attack.

    Args:
        model_digest: the model that was audited.
        method: such as `one_run`.
        notion: of the bound: a bound says nothing of another notion.
        relation: of the bound.
        epsilon_lower_bound: at `delta`.
        delta: of the bound; a claim is compared only if its delta is not larger.
        confidence: that epsilon is not below the bound.
        capacity: largest bound that so many canaries could have given.
        num_canaries: that were used.
        assumes_independent_canaries: whether the bound is a theorem only then.
        assumption_violated: whether the canaries break an assumption of the claim, such
            as secrets that the detector missed: a bound then refutes the assumption.
        detail: what was observed, in counts.
    """

    model_digest: str
    method: str
    notion: Notion
    relation: NeighboringRelation
    epsilon_lower_bound: float
    delta: float
    confidence: float = Field(gt=0, lt=1)
    capacity: float
    num_canaries: int
    assumes_independent_canaries: bool = False
    assumption_violated: bool = False
    detail: str = ""


class StepAuditEvidence(Report):
    """What the audit of one stage's steps found.

    Args:
        model_digest: the model that was trained by the run.
        stage: its name.
        is_private: whether it has noise to look at.
        num_checks: that were made; 0 says that nobody looked.
        num_passed: of them.
        failed: names of the others.
        num_steps: of the stage.
        num_recorded: steps that were looked at while the stage trained; None where
            nobody could, which `unrecorded` explains.
        unrecorded: why nobody could.
    """

    model_digest: str
    stage: str
    is_private: bool
    num_checks: int
    num_passed: int
    failed: tuple[str, ...]
    num_steps: int
    num_recorded: int | None
    unrecorded: str


class FileEvidence(Report):
    """The files of a version: what was registered, and what lies there now.

    Args:
        registered: when the version was made; None in versions from before.
        stored: when the decision is made; none where `fault` says why not.
        model_digest: of the weights that lie there; empty where they cannot be read.
        registry_digest: of the weights, as the registry shows it.
        registry_manifest: digest of what was registered, as the registry shows it.
        fault: why files or weights cannot be read.
    """

    registered: Manifest | None = None
    stored: Manifest = Manifest()
    model_digest: str = ""
    registry_digest: str = ""
    registry_manifest: str = ""
    fault: str = ""


class OriginEvidence(Report):
    """Whether the evidence is what the run that measured the model wrote down.

    Args:
        digest: SHA-256 of the evidence as it is stored.
        signer: key that signed it when it was registered; `unsigned` without one.
        is_verified: whether the signature was checked with the key that decides.
        run: that measured and registered the model; empty where nobody registered it.
        faults: why it is not what was written, or contradicts what was written
            elsewhere: registries, ledger, budget store, clock. Empty if all agree.
        remarks: what agrees but should be known, such as a champion's alias that was
            moved by hand.
    """

    digest: str
    signer: str
    is_verified: bool
    run: str = ""
    faults: tuple[str, ...]
    remarks: tuple[str, ...] = ()


class AttemptsEvidence(Report):
    """How often a data set was tried, this time included.

    Args:
        data_set: as its budget names it.
        trainings: runs that drew on it.
        evaluations: different models or canaries that were attacked, or measured while
            they trained.
        decisions: different verdicts that were asked for.
    """

    data_set: str
    trainings: int = Field(ge=0)
    evaluations: int = Field(ge=0)
    decisions: int = Field(ge=0)


class PolicyReference(Report):
    """One version of a policy.

    Args:
        name: of the policy.
        version: of the policy.
        digest: of its thresholds.
    """

    name: str
    version: int
    digest: str

    @property
    def title(self: Self) -> str:
        """Name the policy, by its digest too: a name alone proves nothing."""
        return f"{self.name}, version {self.version}, {self.digest}"


class Evidence(Report):
    """Reports and claims about one model. What is missing is None, and never passes.

    Args:
        model_digest: the model that is decided on.
        exposure: canaries, controls, base.
        membership: all attacks and the blind baseline.
        utility: loss on held-out records.
        claims: one per certificate: notion, relation, tier.
        champion_digest: the version in production; None says that there is none, an
            empty one that it was deleted from the registry.
        champion_utility: its loss on the same held-out records.
        dataset_budget: what the data set has spent, by the notion and relation that the
            run was planned for.
        audits: lower bounds of epsilon.
        step_audits: of every stage; empty in evidence from before they were made.
        detection: of the corpus; its missing rate stands in where a claim has none.
        planned_for: the policy that canaries and attacks were planned for. Another
            policy may decide on the evidence, another version of the same one may not.
        origin: whether all this is what was written down when it was measured.
        attempts: how often the data set was tried; bounds that a pass rests on are
            taken at their level divided by the number of evaluations.
        measured_at: when the oldest of the attacks ran.
        decided_at: when the decision is made.
        files: of the version.
    """

    model_digest: str
    exposure: ExposureReport | None = None
    membership: MembershipReport | None = None
    utility: UtilityReport | None = None
    claims: tuple[ClaimEvidence, ...] = ()
    champion_digest: str | None = None
    champion_utility: UtilityReport | None = None
    dataset_budget: BudgetEvidence | None = None
    audits: tuple[AuditEvidence, ...] = ()
    step_audits: tuple[StepAuditEvidence, ...] = ()
    detection: DetectionReport | None = None
    planned_for: PolicyReference | None = None
    origin: OriginEvidence | None = None
    attempts: AttemptsEvidence | None = None
    measured_at: AwareDatetime | None = None
    decided_at: AwareDatetime | None = None
    files: FileEvidence | None = None

    @property
    def num_looks(self: Self) -> int:
        """Evaluations that a version was chosen from, at least its own."""
        return max(1, self.attempts.evaluations) if self.attempts else 1
