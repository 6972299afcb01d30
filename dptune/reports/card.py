"""The privacy card: one page that says what is promised, to whom, and what is not.

A card is written for people outside the trust boundary. It holds no losses, no counts
of personal data and no per-canary figures.
"""

from collections.abc import Mapping, Sequence

from dptune.accounting.certificates import Certificate
from dptune.gates.decision import GateDecision
from dptune.gates.evidence import AuditEvidence, StepAuditEvidence
from dptune.privacy import PrivacyUnit
from dptune.recipes import Recipe
from dptune.reports.card_page import card_page
from dptune.reports.evidence import exposure_means
from dptune.reports.render import page_html, page_markdown
from dptune.reports.statements import (
    BudgetStatement,
    DetectionStatement,
    ExposureStatement,
    GateStatement,
    MembershipStatement,
    PrivacyCard,
    SpentStatement,
    UtilityStatement,
)
from dptune.results import (
    BudgetReport,
    ControllerReport,
    DetectionReport,
    ExposureReport,
    MembershipReport,
    UtilityReport,
)

__all__ = ["PrivacyCard", "build_card", "render_html", "render_markdown"]

OUTSIDE = (
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


def build_card(
    *,
    model_name: str,
    model_version: str,
    model_digest: str,
    base_model: str,
    recipe: Recipe,
    privacy_unit: PrivacyUnit,
    certificates: Sequence[Certificate],
    sampling_assumed: str,
    sampling_actual: str,
    fixed_seed: bool,
    deduplicated: bool = True,
    budget: BudgetReport | None = None,
    outside: Sequence[str] = (),
    detection: DetectionReport | None = None,
    missing_rate_source: str = "",
    exposure: ExposureReport | None = None,
    canary_group_epsilon: float | None = None,
    membership: MembershipReport | None = None,
    utility: UtilityReport | None = None,
    audits: Sequence[AuditEvidence] = (),
    step_audits: Sequence[StepAuditEvidence] = (),
    decision: GateDecision | None = None,
    dependency_versions: Mapping[str, str] | None = None,
    controllers: Sequence[ControllerReport] = (),
    override: str = "",
) -> PrivacyCard:
    """Put a card together; what is not given is left out, never invented.

    Privacy: takes only the figures that a card may show from reports that hold more:
    no losses, no counts of spans, no exposure of single canaries. The figures from
    attacks and utility tests are outside epsilon, and the card says so.

    Args:
        model_name: as registered.
        model_version: as registered.
        model_digest: of the weights.
        base_model: hub id or name of what training started from.
        recipe: gives name, title and reference.
        privacy_unit: what one neighbor changes.
        certificates: the ledger's, one for each notion and relation.
        sampling_assumed: what the accountant assumes, such as `Poisson`.
        sampling_actual: what ran; the card warns unless it is the same text.
        fixed_seed: whether noise or sampling came from a known seed.
        deduplicated: whether record claims hold for the deduplicated corpus.
        budget: of the data set, as the store knew it; None leaves the section out.
        outside: further sentences about what no epsilon covers, such as labels that
            are sent in the clear.
        detection: of the corpus; only its tier, recognizers and missing rate are kept.
        missing_rate_source: where the missing rate was measured.
        exposure: of canaries, kept as means.
        canary_group_epsilon: `dptune.accounting.groups.group_epsilon` for as many units
            as hold one canary.
        membership: the strongest attack and the blind one are kept.
        utility: both perplexities are kept.
        audits: lower bounds of epsilon.
        step_audits: of every stage.
        decision: None where the card is written before the gate.
        dependency_versions: by package.
        controllers: of stages that had one.
        override: why the version was promoted past the gate.

    Raises:
        ValidationError: a certificate is of another privacy unit, or contradicts
            `fixed_seed`.
    """
    return PrivacyCard(
        model_name=model_name,
        model_version=model_version,
        model_digest=model_digest,
        base_model=base_model,
        recipe=recipe.name,
        recipe_title=recipe.title,
        recipe_reference=recipe.reference,
        privacy_unit=privacy_unit,
        certificates=tuple(certificates),
        sampling_assumed=sampling_assumed,
        sampling_actual=sampling_actual,
        budget=_budget(budget),
        deduplicated=deduplicated,
        outside_guarantee=(*OUTSIDE, *outside, *_unmeasured(exposure)),
        detection=_detection(detection, missing_rate_source),
        exposure=_exposure(exposure, canary_group_epsilon),
        membership=_membership(membership),
        utility=_utility(utility),
        audits=tuple(audits),
        step_audits=tuple(a for a in step_audits if a.is_private),
        gate=_gate(decision),
        dependency_versions=dict(sorted((dependency_versions or {}).items())),
        fixed_seed=fixed_seed,
        controllers=tuple(controllers),
        override=override,
    )


def _budget(report: BudgetReport | None) -> BudgetStatement | None:
    """Keep epsilons and the number of trials; no sizes of cohorts, no names."""
    if report is None:
        return None
    return BudgetStatement(
        num_trials=sum(report.sweeps.values()),
        num_sweeps=len(report.sweeps),
        lines=tuple(SpentStatement.of(line) for line in report.lines),
    )


def _detection(
    report: DetectionReport | None, source: str
) -> DetectionStatement | None:
    """Keep the detector's name and missing rate, no counts."""
    if report is None:
        return None
    return DetectionStatement(
        tier=report.tier,
        recognizers=report.recognizers,
        missing_rate=report.missing_rate,
        missing_rate_interval=report.missing_rate_interval,
        missing_rate_source=source,
    )


def _exposure(
    report: ExposureReport | None, group_epsilon: float | None
) -> ExposureStatement | None:
    """Keep means and the p-value."""
    if report is None or report.not_measurable:
        return None
    means = exposure_means(report)
    return ExposureStatement(
        setting=report.setting,
        insertions=max((c.insertions for c in report.planted()), default=0),
        num_planted=means.num_planted,
        num_held_out=len(report.held_out()),
        space_size=report.space_size,
        planted_mean=means.planted,
        held_out_mean=means.held_out,
        base_mean=means.base,
        p_value=means.p_value,
        group_epsilon=group_epsilon,
    )


def _unmeasured(report: ExposureReport | None) -> tuple[str, ...]:
    """Say that memorization was not measured, where it cannot be."""
    if report is None or not report.not_measurable:
        return ()
    return (f"What the model memorized of single secrets. {report.not_measurable}",)


def _membership(report: MembershipReport | None) -> MembershipStatement | None:
    """Keep the strongest attack and the blind one."""
    if report is None:
        return None
    best = report.strongest()
    return MembershipStatement(
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


def _utility(report: UtilityReport | None) -> UtilityStatement | None:
    """Keep what was reached, and what the base reaches."""
    if report is None:
        return None
    return UtilityStatement(
        split=report.split,
        num_records=report.num_records,
        perplexity=report.perplexity,
        base_perplexity=report.base_perplexity,
        accuracy=report.accuracy,
        accuracy_interval=report.accuracy_interval,
        base_accuracy=report.base_accuracy,
        majority_accuracy=report.majority_accuracy,
        token_accuracy=report.token_accuracy,
        base_token_accuracy=report.base_token_accuracy,
    )


def _gate(decision: GateDecision | None) -> GateStatement | None:
    """Keep outcome, hash and how often the data were tried."""
    if decision is None:
        return None
    counted = (c.reason for c in decision.criteria if c.name == "attempts")
    return GateStatement(
        outcome=decision.outcome,
        policy=decision.policy,
        decision_hash=decision.decision_hash,
        manifest_digest=decision.manifest_digest,
        attempts=next(counted, ""),
    )


def render_html(card: PrivacyCard) -> str:
    """Return the card as one self-contained HTML document."""
    return page_html(card_page(card))


def render_markdown(card: PrivacyCard) -> str:
    """Return the card as Markdown, for a registry's description field."""
    return page_markdown(card_page(card))
