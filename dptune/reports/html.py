"""One self-contained page for any report, for the dashboard's preview."""

from collections.abc import Callable
from typing import Any, Final

from dptune.accounting.ledger import PrivacyLedger
from dptune.audits.step_report import StepAudit
from dptune.detection.scoring import SensitivityTable
from dptune.gates.decision import GateDecision
from dptune.planning import RunPlan
from dptune.reports.attack_pages import exposure_page, membership_page
from dptune.reports.audit_page import step_audit_page
from dptune.reports.blocks import Page
from dptune.reports.budget_page import budget_page
from dptune.reports.card_page import card_page
from dptune.reports.cells import CellResult, ComparisonReport
from dptune.reports.compare_page import cell_page, compare_page
from dptune.reports.data_pages import (
    corpus_page,
    detection_page,
    redaction_page,
    sensitivity_page,
    validation_page,
)
from dptune.reports.extraction_page import extraction_page
from dptune.reports.gate_page import gate_page
from dptune.reports.generic_page import generic_page, refuse_restricted
from dptune.reports.ledger_page import ledger_page
from dptune.reports.model_pages import stage_page, utility_page, version_page
from dptune.reports.plan_page import plan_page
from dptune.reports.render import page_html
from dptune.reports.statements import PrivacyCard
from dptune.results import (
    BudgetReport,
    CorpusReport,
    DetectionReport,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    RedactionReport,
    RegisteredVersion,
    Report,
    StageReport,
    UtilityReport,
    ValidationReport,
)

_PAGES: Final[dict[type[Report], Callable[[Any], Page]]] = {
    BudgetReport: budget_page,
    CellResult: cell_page,
    ComparisonReport: compare_page,
    CorpusReport: corpus_page,
    DetectionReport: detection_page,
    ExposureReport: exposure_page,
    ExtractionReport: extraction_page,
    GateDecision: gate_page,
    MembershipReport: membership_page,
    PrivacyCard: card_page,
    PrivacyLedger: ledger_page,
    RedactionReport: redaction_page,
    RegisteredVersion: version_page,
    RunPlan: plan_page,
    SensitivityTable: sensitivity_page,
    StageReport: stage_page,
    StepAudit: step_audit_page,
    UtilityReport: utility_page,
    ValidationReport: validation_page,
}


def render_fragment(report: Report) -> str:
    """Return a self-contained HTML page for a report.

    Report types that are not on the table get a generic page of their public fields.

    Privacy: shows no record text and no secret. A stage report's losses are private;
    they stand under a heading that says so, for the trusted dashboard only.

    Raises:
        ArtifactError: the report's type is restricted.
    """
    refuse_restricted(report)
    page = _PAGES.get(type(report), generic_page)
    return page_html(page(report))
