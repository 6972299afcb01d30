"""One self-contained page for any report, for the dashboard's preview.

Most types have a page of their own. Any other has its public fields as tables, those
that bear text left out.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

from dptune.accounting.ledger import PrivacyLedger
from dptune.audits.step_report import StepAudit
from dptune.detection.scoring import SensitivityTable
from dptune.errors import ArtifactError
from dptune.gates.decision import GateDecision
from dptune.planning import RunPlan
from dptune.reports.blocks import Block, Page, facts, page, section, table
from dptune.reports.card.page import card_page
from dptune.reports.card.statements import PrivacyCard
from dptune.reports.comparison import CellResult, ComparisonReport
from dptune.reports.formatting import MISSING, count, number, short_digest, words
from dptune.reports.pages.attacks import (
    exposure_page,
    extraction_page,
    membership_page,
    samples_page,
)
from dptune.reports.pages.comparison import cell_page, compare_page
from dptune.reports.pages.data import (
    corpus_page,
    detection_page,
    redaction_page,
    sensitivity_page,
    validation_page,
)
from dptune.reports.pages.decisions import gate_page, step_audit_page
from dptune.reports.pages.spending import budget_page, ledger_page, plan_page
from dptune.reports.pages.training import stage_page, utility_page
from dptune.reports.render import page_html
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
    SamplesReport,
    StageReport,
    UtilityReport,
    ValidationReport,
)

_LONGEST_TEXT = 200
_MOST_ROWS = 200
_HIDDEN = "hidden"
_DIGEST = re.compile(r"(sha256:)?[0-9a-f]{64}")


def generic_page(report: BaseModel, *, label: str = "Report", title: str = "") -> Page:
    """Show every public field of a report.

    Privacy: fields declared with `repr=False` hold text or secrets by the convention of
    this library; they are shown as `hidden`, at any depth. Types marked `restricted`
    have no page at all.

    Args:
        report: to be shown.
        label: what kind of page this is.
        title: of the page; the type's name by default.

    Raises:
        ArtifactError: the type is restricted.
    """
    refuse_restricted(report)
    fields = dict(public_fields(report))
    nested = {
        name: value
        for name, value in fields.items()
        if isinstance(value, tuple | list | Mapping | BaseModel)
    }
    plain = [(_title(k), _text(v)) for k, v in fields.items() if k not in nested]
    return page(
        section("Values", facts(*plain) if plain else None),
        *(section(_title(name), _nested(value)) for name, value in nested.items()),
        label=label,
        title=title or _spaced_name(type(report).__name__),
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
    RegisteredVersion: lambda version: generic_page(
        version,
        label="Registered version",
        title=f"{version.model_name}, version {version.version}",
    ),
    RunPlan: plan_page,
    SamplesReport: samples_page,
    SensitivityTable: sensitivity_page,
    StageReport: stage_page,
    StepAudit: step_audit_page,
    UtilityReport: utility_page,
    ValidationReport: validation_page,
}


def render_fragment(report: Report) -> str:
    """Return a self-contained HTML page for a report.

    Report types that are not on the table get a generic page of their public fields.

    Privacy: shows no secret, and no record text but masked samples. A stage report's
    losses are private; they stand under a heading that says so, for the trusted
    dashboard only.

    Raises:
        ArtifactError: the report's type is restricted.
    """
    refuse_restricted(report)
    return page_html(_PAGES.get(type(report), generic_page)(report))


def refuse_restricted(report: BaseModel) -> None:
    """Raise for types that hold secrets.

    Raises:
        ArtifactError: the type is restricted.
    """
    if getattr(type(report), "restricted", False):
        raise ArtifactError(
            f"report must not be restricted, got {type(report).__name__}. It holds "
            "secrets and has no page; show the report of the attack that used it."
        )


def public_fields(report: BaseModel) -> Iterator[tuple[str, object]]:
    """Yield names and values, `hidden` for fields that are not for display."""
    for name, field in type(report).model_fields.items():
        if name != "schema_version":
            yield name, getattr(report, name) if field.repr else _HIDDEN


def _nested(value: object) -> Block | None:
    """Return a table for a mapping, a sequence or a nested report.

    Reports in a sequence have one table, plain values one column.
    """
    if isinstance(value, BaseModel):
        return facts(*((_title(k), _text(v)) for k, v in public_fields(value)))
    if isinstance(value, Mapping):
        rows = [(_text(k), _text(v)) for k, v in list(value.items())[:_MOST_ROWS]]
        return table(("Name", "Value"), rows, numeric=(1,), caption=_cut(len(value)))
    if not isinstance(value, tuple | list) or not value:
        return None
    shown, caption, first = list(value[:_MOST_ROWS]), _cut(len(value)), value[0]
    if not isinstance(first, BaseModel):
        return table(("Value",), ([_text(v)] for v in shown), caption=caption)
    columns = [name for name, _ in public_fields(first)]
    found = [dict(public_fields(v)) for v in shown if isinstance(v, BaseModel)]
    cells = [[_text(row.get(name)) for name in columns] for row in found]
    return table(map(_title, columns), cells, caption=caption)


def _text(value: object) -> str:
    """Return one value for display; anything nested is only counted."""
    if isinstance(value, bool):
        found = "yes" if value else "no"
    elif isinstance(value, Enum):
        found = words(str(value.value))
    elif isinstance(value, int):
        found = count(value)
    elif value is None or isinstance(value, float):
        found = number(value)
    elif isinstance(value, str):
        cut = value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}…"
        found = short_digest(cut) if _DIGEST.fullmatch(cut) else cut
    elif isinstance(value, tuple | list | Mapping):
        found = f"{count(len(value))} entries" if value else MISSING
    else:
        found = _spaced_name(type(value).__name__)
    return found


def _cut(size: int) -> str:
    """Say how much is shown."""
    return f"First {_MOST_ROWS} of {count(size)}." if size > _MOST_ROWS else ""


def _title(name: str) -> str:
    """Return a field's name as a label."""
    return words(name).capitalize().replace(" uri", " URI")


def _spaced_name(name: str) -> str:
    """Return a class name as words."""
    parts = "".join(f" {c.lower()}" if c.isupper() else c for c in name)
    return parts.strip().capitalize()
