"""Everything a decision and a card need about one version, in one file.

It is stored with the version in the registry, so that the gate can decide again, under
another policy or beside another champion, without any training artifact.
"""

import importlib.metadata
import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Self, get_args

import dp_accounting
from dp_accounting import DpEvent
from pydantic import AwareDatetime

from dptune import __version__
from dptune.accounting.certificates import Certificate
from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.accounting.groups import group_epsilon
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.audits.step_report import StepAudit
from dptune.dpsgd.sampling import (
    CyclicPoissonSampler,
    PoissonSampler,
    TruncatedPoissonSampler,
)
from dptune.errors import ArtifactError
from dptune.gates.decision import GateDecision
from dptune.gates.evidence import (
    AttemptsEvidence,
    AuditEvidence,
    BudgetEvidence,
    ClaimEvidence,
    Evidence,
    FileEvidence,
    OriginEvidence,
    PolicyReference,
    StepAuditEvidence,
)
from dptune.gates.manifest import Manifest
from dptune.planning import RunPlan
from dptune.privacy import CertificateStatus, NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.reports.card.statements import (
    BudgetStatement,
    DetectionStatement,
    ExposureStatement,
    GateStatement,
    MembershipStatement,
    PrivacyCard,
    UtilityStatement,
    outside_epsilon,
)
from dptune.results import (
    BudgetReport,
    ChampionReport,
    ControllerReport,
    CorpusReport,
    DetectionReport,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    RedactionReport,
    RegisteredVersion,
    Report,
    UtilityReport,
)
from dptune.workflow.auditing import audit_run
from dptune.workflow.charging import RELEASED_COUNTS, RELEASED_UNITS

_PACKAGES = ("dp-accounting", "torch", "transformers", "opacus")
_ACCOUNTED: dict[type, str] = {
    dp_accounting.PoissonSampledDpEvent: "Poisson",
    dp_accounting.TruncatedSubsampledGaussianDpEvent: "truncated Poisson",
}
_RAN: dict[type, str] = {
    PoissonSampler: "Poisson",
    TruncatedPoissonSampler: "truncated Poisson",
    CyclicPoissonSampler: "cyclic Poisson",
}
_UNSAMPLED = "none: every sequence in every epoch,"


class RunResults(Report):
    """What the steps of one run left: plan, ledger and every report.

    Args:
        extraction: None in dossiers from before this attack.
        champion: the version in production, measured beside it.
        budget: what all runs on the data set have spent.
        step_audits: of every stage; none in dossiers from before they were made.
    """

    plan: RunPlan
    ledger: PrivacyLedger
    corpus: CorpusReport
    detection: DetectionReport
    redaction: RedactionReport
    exposure: ExposureReport
    membership: MembershipReport
    extraction: ExtractionReport | None = None
    utility: UtilityReport
    champion: ChampionReport = ChampionReport()
    budget: BudgetReport | None = None
    step_audits: tuple[StepAudit, ...] = ()

    @classmethod
    def collect(cls, reports: Iterable[Report]) -> Self:
        """Sort the reports of a run into their fields, by type.

        Raises:
            ArtifactError: one is of no field's type, or a field has two.
        """
        fields = {
            kind: name
            for name, field in cls.model_fields.items()
            for kind in (field.annotation, *get_args(field.annotation))
        }
        found: dict[str, Any] = {"step_audits": ()}
        for report in reports:
            name = fields.get(type(report), "")
            if name == "step_audits":
                found[name] += (report,)
            elif name and name not in found:
                found[name] = report
            else:
                raise ArtifactError(
                    "results must be one of each kind, got another "
                    f"{type(report).__name__}. Pass what the steps of one run made."
                )
        return cls(**found)


class Dossier(RunResults):
    """Reports and claims about one trained model. Holds no record text.

    Args:
        base_model: what training started from.
        certificates: the ledger's, at the run's delta.
        missing_rate_source: where the detector's missing rate comes from.
        audits: lower bounds of the certificates' epsilons.
        planned_for: the policy of the run's configuration.
        measured_at: when the oldest of the attacks ran.
        controllers: what controllers of its stages did.
        manifest: every file that was registered; None before that, and in dossiers from
            before files were listed.
    """

    model_digest: str
    base_model: str
    recipe: Recipe
    certificates: tuple[Certificate, ...]
    missing_rate_source: str = ""
    audits: tuple[AuditEvidence, ...] = ()
    planned_for: PolicyReference | None = None
    measured_at: AwareDatetime | None = None
    controllers: tuple[ControllerReport, ...] = ()
    manifest: Manifest | None = None
    dependency_versions: dict[str, str]

    @classmethod
    def of(
        cls,
        results: RunResults,
        *,
        model_digest: str,
        base_model: str,
        recipe: Recipe,
        planned_for: PolicyReference | None = None,
        controllers: tuple[ControllerReport, ...] = (),
    ) -> Self:
        """Put a dossier together, issue every certificate, and audit each."""
        ledger, plan, detection = results.ledger, results.plan, results.detection
        certificates = certificates_of(ledger, plan, detection)
        attacks = (results.exposure, results.membership, results.utility)
        more = (results.extraction,) if results.extraction else ()
        times = [report.measured_at for report in (*attacks, *more)]
        known = [time for time in times if time is not None]
        return cls(
            **dict(results),
            model_digest=model_digest,
            base_model=base_model,
            recipe=recipe,
            certificates=certificates,
            missing_rate_source=detection.missing_rate_source,
            audits=audit_run(
                results.exposure,
                ledger=ledger,
                certificates=certificates,
                delta=plan.target_delta,
                detection=detection,
            ),
            planned_for=planned_for,
            measured_at=min(known) if len(known) == len(times) else None,
            controllers=controllers,
            dependency_versions={"dptune": __version__}
            | {name: importlib.metadata.version(name) for name in _PACKAGES},
        )

    def certificate(self, notion: Notion) -> Certificate:
        """Return the certificate of a notion under its usual relation.

        Raises:
            ArtifactError: there is none.
        """
        for certificate in self.certificates:
            if certificate.notion is notion:
                return certificate
        raise ArtifactError(f"the dossier must have a {notion} certificate, got none.")

    def evidence(
        self,
        champion: "Dossier | None",
        *,
        champion_deleted: bool = False,
        decided_at: datetime | None = None,
        files: FileEvidence | None = None,
        origin: OriginEvidence | None = None,
        attempts: AttemptsEvidence | None = None,
    ) -> Evidence:
        """Return what the gate decides on.

        The champion's loss is the one measured on this run's records; its own, on the
        records of its own run, only where the champion has changed since.

        Args:
            champion: the dossier of the version in production.
            champion_deleted: whether there is none since somebody deleted it.
            decided_at: when the decision is made.
            files: that lie in the store then.
            origin: whether this dossier is what was registered.
            attempts: how often the data set was tried.
        """
        if files is not None:
            files = files.model_copy(update={"registered": self.manifest})
        other = champion if champion is not None and champion is not self else None
        beside = other.utility if other else None
        if other and self.champion.model_digest == other.model_digest:
            beside = self.champion.utility
        return Evidence(
            model_digest=self.model_digest,
            exposure=self.exposure,
            membership=self.membership,
            utility=self.utility,
            claims=tuple(self._claim(c) for c in self.certificates),
            champion_digest=other.model_digest
            if other
            else ("" if champion_deleted else None),
            champion_utility=beside,
            dataset_budget=self._dataset_budget(),
            audits=self.audits,
            step_audits=self._step_audits(),
            detection=self.detection,
            planned_for=self.planned_for,
            origin=origin,
            attempts=attempts,
            measured_at=self.measured_at,
            decided_at=decided_at,
            files=files,
        )

    def card(
        self,
        version: RegisteredVersion,
        decision: GateDecision | None,
        *,
        override: str = "",
    ) -> PrivacyCard:
        """Return the privacy card of the registered version."""
        return PrivacyCard(
            model_name=version.model_name,
            model_version=version.version,
            model_digest=self.model_digest,
            base_model=self.base_model,
            recipe=self.recipe.name,
            recipe_title=self.recipe.title,
            recipe_reference=self.recipe.reference,
            privacy_unit=PrivacyUnit(self.corpus.privacy_unit),
            certificates=self.certificates,
            sampling_assumed=self._sampling_assumed(),
            sampling_actual=self._sampling_actual(),
            loss_normalizer=self._loss_normalizer(),
            fixed_seed=any(entry.fixed_seed for entry in self.ledger.entries),
            deduplicated=self.corpus.deduplicated
            and not self.corpus.duplicates_are_free,
            outside_guarantee=outside_epsilon(self.exposure),
            budget=BudgetStatement.of(self.budget) if self.budget else None,
            detection=DetectionStatement.of(
                self.detection, source=self.missing_rate_source
            ),
            exposure=ExposureStatement.of(
                self.exposure, group_epsilon=self._canary_group_epsilon()
            ),
            membership=MembershipStatement.of(self.membership),
            utility=UtilityStatement.of(self.utility),
            audits=self.audits,
            step_audits=tuple(a for a in self._step_audits() if a.is_private),
            gate=GateStatement.of(decision) if decision else None,
            controllers=self.controllers,
            override=override,
            dependency_versions=dict(sorted(self.dependency_versions.items())),
        )

    def _loss_normalizer(self) -> str:
        """Say what losses were divided by, by stage where stages differ."""
        words = {
            "public": "a public constant, the longest sequence",
            "record": "the number of each sequence's own targets",
        }
        chosen = {s.name: words[s.loss.normalizer] for s in self.recipe.stages}
        if len(set(chosen.values())) == 1:
            return next(iter(chosen.values()))
        return "; ".join(f"{stage}: {text}" for stage, text in chosen.items())

    def _step_audits(self) -> tuple[StepAuditEvidence, ...]:
        """Restate the audit of every stage of the plan; of none, that there is none."""
        found = {audit.stage: audit for audit in self.step_audits}
        return tuple(
            StepAuditEvidence(
                model_digest=self.model_digest,
                stage=stage.settings.name,
                is_private=stage.settings.private,
                num_checks=len(audit.checks) if audit else 0,
                num_passed=sum(c.passed for c in audit.checks) if audit else 0,
                failed=audit.failed if audit else (),
                num_steps=audit.num_steps if audit else 0,
                num_recorded=audit.num_recorded if audit else None,
                unrecorded=audit.unrecorded if audit else "",
            )
            for stage in self.plan.stages
            for audit in [found.get(stage.settings.name)]
        )

    def _sampling_assumed(self) -> str:
        """Read off the ledger's events what the accountant took sampling to be."""
        stages = [
            e
            for e in self.ledger.entries
            if e.stage not in {RELEASED_COUNTS, RELEASED_UNITS}  # which sample nobody
        ]
        released: set[str | None] = {
            _UNSAMPLED
            for e in stages
            if any(n.notion is Notion.LOCAL for n in e.notion_events)
        }
        return _sampling(
            released
            | {
                "cyclic Poisson" if e.num_bands > 1 else _ACCOUNTED.get(type(mechanism))
                for e in stages
                for event in _noisy_events(e)
                for mechanism, _ in mechanism_counts(event)
            }
        )

    def _sampling_actual(self) -> str:
        """Ask the plans that trained which sampler they make."""
        private = [
            stage
            for stage in self.plan.stages
            if stage.settings.private and not is_non_private(stage.dp_event())
        ]
        return _sampling(
            {
                _UNSAMPLED
                if stage.settings.local is not None
                else _RAN.get(type(stage.training_plan().sampler(stage.num_units)))
                for stage in private
            }
        )

    def _claim(self, certificate: Certificate) -> ClaimEvidence:
        """Restate a certificate for the gate, with the measured missing rate."""
        interval = self.detection.missing_rate_interval
        return ClaimEvidence(
            model_digest=self.model_digest,
            notion=certificate.notion,
            relation=certificate.relation,
            privacy_unit=certificate.privacy_unit,
            epsilon=certificate.epsilon,
            delta=certificate.delta,
            status=certificate.status,
            assumptions=tuple(a.value for a in certificate.assumptions),
            missing_rate=self.detection.missing_rate,
            missing_rate_upper=interval.high if interval else None,
            nominal_epsilon=certificate.nominal_epsilon,
            accountant=certificate.accountant,
        )

    def _dataset_budget(self) -> BudgetEvidence | None:
        """Restate what was granted for the run's notion, and what all runs spent."""
        plan = self.plan
        for line in self.budget.lines if self.budget else ():
            usual = (line.notion, line.relation) == (plan.notion, plan.relation)
            if usual and line.allowance is not None:
                return BudgetEvidence(
                    notion=plan.notion,
                    relation=plan.relation,
                    spent_epsilon=line.spent,
                    budget_epsilon=line.allowance,
                    delta=line.delta,
                )
        return None

    def _canary_group_epsilon(self) -> float | None:
        """Epsilon of a secret that sits in as many units as a canary does.

        With canaries in records of others these stay without it: they are replaced.

        None where its unit has no guarantee, or where that rests on secrets being found
        and some canary's was not: it was trained on as it stands.
        """
        notion, planted = self.plan.notion, self.exposure.planted()
        copies = max((c.insertions for c in planted), default=0)
        claim = self.ledger.certificate(
            notion, delta=self.plan.target_delta, relation=self.plan.relation
        )
        in_clear = self.exposure.setting != "not_missed" and any(
            canary.marked is not True for canary in planted
        )
        rests_on_detector = claim.status is CertificateStatus.CONDITIONAL
        if copies < 2 or math.isinf(claim.epsilon) or (rests_on_detector and in_clear):
            return None
        return group_epsilon(
            self.ledger.event(notion),
            group_size=copies,
            delta=self.plan.target_delta,
            relation=NeighboringRelation.REPLACE_ONE
            if self.exposure.appended
            else self.plan.relation,
            same_turns=all(entry.num_bands == 1 for entry in self.ledger.entries),
        )


def _noisy_events(entry: LedgerEntry) -> list[DpEvent]:
    """Events of an entry that promise something through noise on gradients."""
    events = [entry.dp_event] if entry.dp_event is not None else []
    if all(e.notion is not Notion.LOCAL for e in entry.notion_events):
        events += [e.dp_event for e in entry.notion_events]
    return [event for event in events if not is_non_private(event)]


def _by_language(detection: DetectionReport) -> str:
    """Say what is missed and masked in each language, where there are several."""
    if len(detection.languages) < 2:
        return ""
    parts = [
        f"{share.language}: {share.masked_character_share:.0%} masked, "
        + (
            "misses not measured"
            if share.missing_rate is None
            else f"{share.missing_rate:.2%} missed"
        )
        for share in detection.languages
    ]
    return f"By language: {'; '.join(parts)}."


def certificates_of(
    ledger: PrivacyLedger, plan: RunPlan, detection: DetectionReport
) -> tuple[Certificate, ...]:
    """Issue every certificate; conditional ones quote the measured missing rate."""
    interval = detection.missing_rate_interval
    return tuple(
        certificate.quoting(
            detection.missing_rate,
            interval.high if interval else None,
            detection.missing_rate_source,
            by_language=_by_language(detection),
        )
        for certificate in ledger.certificates(plan.target_delta)
    )


def _sampling(kinds: set[str | None]) -> str:
    """Name the sampling of the noisy stages; None is a kind without a name."""
    if not kinds:
        return "no noisy stage"
    names = sorted(kind for kind in kinds if kind is not None)
    if len(names) < len(kinds):
        return "not Poisson"
    return f"{' and '.join(names)} over privacy units"
