"""What a version must show before it is promoted: thresholds and their reasons."""

import hashlib
import json
import math
from typing import Literal, Self

from pydantic import (
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from dptune.accounting.assumptions import Assumption
from dptune.gates.evidence import PolicyReference
from dptune.privacy import (
    CertificateStatus,
    NeighboringRelation,
    Notion,
    PrivacyUnit,
)
from dptune.settings import Settings

_PROVABLE = (CertificateStatus.CERTIFIED, CertificateStatus.CONDITIONAL)


class GatePolicy(Settings):
    """A versioned set of thresholds. Claims have no defaults, statistics do.

    With these defaults a model that memorises nothing fails in less than 2 % of
    simulated runs: it is blocked in less than 1 %, and called invalid in less than
    .3 %. One whose canaries leak 2.5 bits on average, all alike or a few of them, or
    of which one is known by heart, passes in less than 1 %
    (`tests/statistical/test_gate_error_rates.py`).

    Args:
        name: of the policy, in letters that no other name looks like.
        version: raise it whenever a threshold changes.
        notion: what the guarantee must protect; epsilons of other notions do not count.
        max_epsilon: largest composed certified epsilon of that notion.
        max_delta: largest delta of the claim.
        privacy_unit: the finest unit that may be claimed; coarser ones are stronger,
            under the relations of `relations_for`.
        relation: None is the notion's own: add or remove for `record`, replace for the
            others, which are replace relations by definition.
        accepted_statuses: how claims of the notion may be founded. Nominal and
            empirical figures never pass.
        max_missing_rate: for claims that are `conditional` on what the detector finds,
            the largest upper bound of its missing rate.
        accept_declared_missing_rate: whether that rate may be somebody's word. Measured
            is one by gold spans or by a review.
        max_language_missing_rate: largest upper bound of the missing rate in any single
            language, which must be measured in each; None asks for none.
        max_language_masked_share: largest share of characters that may be masked in
            any single language; None sets no limit.
        min_language_share: share of the records from which a language is judged for
            itself.
        accepted_assumptions: what claims may be `conditional` on besides, taken at its
            word: nothing that is measured speaks of it.
        require_dataset_budget: whether the data set's budget must be in the evidence.
        require_canaries: whether exposure must be measured, and claims audited by it. A
            classifier writes no text and has none: a policy for it says false here, and
            asks for membership only. Canaries that were trained on are judged all the
            same.
        min_canaries: that were trained on. The assurance bound needs 79 of 10^6
            candidates for the first evaluation and 102 for the fourth, see `origin`; of
            100 it fails .4 % of clean models at level .005.
        min_held_out: controls, so that a Kolmogorov-Smirnov test has something to see.
        min_space_size: candidates. More are needed where one canary of so many would
            not be a leak of its own at rank 1, see `leakage.needed_candidates`.
        memorization_level: family-wise level of Holm's procedure over the leak tests.
        effect_size_bits: mean exposure from which a significant leak blocks; a clean
            model has 1.44 bits.
        single_canary_share: rank over candidates at which one canary is a leak of its
            own.
        assurance_bound_bits: largest upper bound of the mean exposure.
        assurance_level: one-sided level of that bound.
        control_level: level of the test that controls are uniform. It, `base_level` and
            `blind_level` make evidence INVALID, of clean runs once in 667 together.
        base_level: level of the test that canaries mean nothing to the base model.
        contradiction_level: level at which exposures contradict a claim.
        min_audit_capacity: epsilon that an audit of the claim must be able to refute;
            None asks for none.
        require_step_audit: whether every stage with noise must have been audited, step
            by step, while it trained and after. A check that failed blocks all the
            same.
        max_evidence_age_days: from the attacks to the decision; older evidence is not
            about what attackers can do today.
        max_evaluations: how many evaluations of the data set there may have been; None
            sets no limit. Bounds are corrected for their number in any case, see
            `dptune.gates.origin`.
        max_membership_tpr: largest upper bound of the true-positive rate at 1 % false
            positives, over all attacks. Guessing has 1 %.
        membership_level: family-wise, two-sided level of the bounds of all attacks.
        min_shadow_models: behind the strongest membership attack, which must have run
            if this is not 0.
        min_membership_records: members and non-members each, one of every unit.
        blind_level: level of the test that texts alone do not tell members.
        max_nll_increase: nats per token over the champion, or over the base model where
            there is none; ln 1.02 is 2 % perplexity.
        utility_confidence: of the one-sided paired bootstrap bound.
    """

    schema_version: Literal[1] = 1
    name: str = Field(default="default", pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")
    version: int = Field(default=1, ge=1, strict=True)

    notion: Notion
    max_epsilon: float = Field(gt=0)
    max_delta: float = Field(gt=0, lt=1)
    privacy_unit: PrivacyUnit = PrivacyUnit.RECORD
    relation: NeighboringRelation | None = None
    accepted_statuses: tuple[CertificateStatus, ...] = (CertificateStatus.CERTIFIED,)
    max_missing_rate: float = Field(default=0.01, ge=0, le=1)
    accept_declared_missing_rate: bool = False
    max_language_missing_rate: float | None = Field(default=None, ge=0, le=1)
    max_language_masked_share: float | None = Field(default=None, ge=0, le=1)
    min_language_share: float = Field(default=0.01, ge=0, le=1)
    accepted_assumptions: tuple[Assumption, ...] = ()
    require_dataset_budget: bool = True

    require_canaries: bool = True
    min_canaries: int = Field(default=100, ge=1)
    min_held_out: int = Field(default=20, ge=2)
    min_space_size: int = Field(default=10_000, ge=2)
    memorization_level: float = Field(default=0.001, gt=0, lt=0.5)
    effect_size_bits: float = Field(default=2.5, ge=0)
    single_canary_share: float = Field(default=1e-4, gt=0, lt=1)
    assurance_bound_bits: float = Field(default=2.5, gt=0)
    assurance_level: float = Field(default=0.005, gt=0, lt=0.5)
    control_level: float = Field(default=0.0005, gt=0, lt=0.5)
    base_level: float = Field(default=0.0005, gt=0, lt=0.5)
    contradiction_level: float = Field(default=0.001, gt=0, lt=0.5)
    min_audit_capacity: float | None = Field(default=None, gt=0)
    require_step_audit: bool = True
    max_evidence_age_days: float = Field(default=180, gt=0)
    max_evaluations: int | None = Field(default=None, ge=1)

    max_membership_tpr: float = Field(default=0.10, gt=0, le=1)
    membership_level: float = Field(default=0.05, gt=0, lt=0.5)
    min_shadow_models: int = Field(default=4, ge=0)
    min_membership_records: int = Field(default=500, ge=100)
    blind_level: float = Field(default=0.0005, gt=0, lt=0.5)
    max_nll_increase: float = Field(default=math.log(1.02), ge=0)
    utility_confidence: float = Field(default=0.95, gt=0.5, lt=1)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_as_number(
        cls: type[Self], value: object, info: ValidationInfo
    ) -> object:
        """`yes` is 1 to pydantic, and a threshold to nobody."""
        wanted = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and wanted is not bool:
            raise ValueError("must be a value and not true or false.")
        return value

    @field_validator("accepted_statuses")
    @classmethod
    def _check_statuses(
        cls: type[Self], statuses: tuple[CertificateStatus, ...]
    ) -> tuple[CertificateStatus, ...]:
        """Only theorems may pass."""
        if not statuses or not set(statuses) <= set(_PROVABLE):
            raise ValueError("must be some of certified, conditional.")
        return statuses

    @model_validator(mode="after")
    def _check_relation(self: Self) -> Self:
        """Selective and local guarantees are replace relations by definition."""
        if (
            self.notion is not Notion.RECORD
            and self.relation is NeighboringRelation.ADD_OR_REMOVE_ONE
        ):
            raise ValueError(
                f"relation must be replace_one for notion {self.notion}: as "
                "add_or_remove_one its epsilon would be too small."
            )
        return self

    @property
    def neighboring_relation(self: Self) -> NeighboringRelation:
        """The relation that claims must be made under."""
        if self.relation is not None:
            return self.relation
        if self.notion is Notion.RECORD:
            return NeighboringRelation.ADD_OR_REMOVE_ONE
        return NeighboringRelation.REPLACE_ONE

    def relations_for(self: Self, unit: PrivacyUnit) -> tuple[NeighboringRelation, ...]:
        """Relations under which a unit must be claimed for the policy's to be covered.

        A record that joins or leaves beside others of its user *replaces* what the user
        holds, which moves a clipped sum by 2C; one that was alone takes the user along.
        So of a coarser unit adding or removing needs both claims, the larger one last.

        Args:
            unit: of the claims, the policy's or a coarser one.
        """
        own = self.neighboring_relation
        is_coarser = unit.coarseness > self.privacy_unit.coarseness
        if is_coarser and own is NeighboringRelation.ADD_OR_REMOVE_ONE:
            return (own, NeighboringRelation.REPLACE_ONE)
        return (own,)

    @property
    def digest(self: Self) -> str:
        """Digest of every field, those that a file leaves to their defaults too."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    @property
    def reference(self: Self) -> PolicyReference:
        """Name this version of the policy."""
        return PolicyReference(name=self.name, version=self.version, digest=self.digest)
