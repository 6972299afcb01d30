"""Every frozen report as versioned JSON, with a page for the dashboard."""

import hashlib
import math
from typing import Any, ClassVar

from zenml.enums import ArtifactType, VisualizationType
from zenml.materializers.base_materializer import BaseMaterializer

from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySet
from dptune.audits.step_report import StepAudit
from dptune.detection.scoring import SensitivityTable
from dptune.errors import ArtifactError
from dptune.gates.decision import GateDecision
from dptune.planning import RunPlan
from dptune.reports.card.statements import PrivacyCard
from dptune.reports.comparison import CellResult, ComparisonReport
from dptune.results import (
    BudgetReport,
    BudgetReservation,
    ChampionReport,
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
    TrainedCanaries,
    UtilityReport,
)
from materializers._place import file_of, refuse_changed

_PUBLIC: tuple[type[Any], ...] = (
    BudgetReport,
    BudgetReservation,
    CellResult,
    ChampionReport,
    ComparisonReport,
    CorpusReport,
    DetectionReport,
    ExposureReport,
    ExtractionReport,
    GateDecision,
    MembershipReport,
    PrivacyCard,
    PrivacyLedger,
    RedactionReport,
    RegisteredVersion,
    RunPlan,
    SamplesReport,
    SensitivityTable,
    StageReport,
    StepAudit,
    TrainedCanaries,
    UtilityReport,
)
_RESTRICTED: tuple[type[Any], ...] = (CanarySet,)
_TOLD: tuple[type[Any], ...] = (
    GateDecision,
    PrivacyCard,
    PrivacyLedger,
    RegisteredVersion,
    RunPlan,
)
"""Reports all of whose figures may leave the trust boundary."""


class ReportMaterializer(BaseMaterializer):
    """Stores reports of a closed table of types as `report.json`."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = _PUBLIC + _RESTRICTED
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.STATISTICS

    def save(self, data: Report) -> None:
        """Write the report as JSON."""
        with self.artifact_store.open(file_of(self.uri, "report.json"), "w") as sink:
            sink.write(data.model_dump_json())

    def load(self, data_type: type[Any]) -> Any:  # noqa: ANN401 - any report
        """Read a report back, exactly.

        Raises:
            ArtifactError: the type is not on the table, or it is not what was saved.
        """
        if data_type not in self.ASSOCIATED_TYPES:
            raise ArtifactError(f"report type must be on the table, got {data_type}.")
        with self.artifact_store.open(file_of(self.uri, "report.json"), "r") as source:
            text = source.read()
        found = hashlib.sha256(text.encode()).hexdigest()
        refuse_changed(self.uri, found, saved=self.expected_content_hash)
        return data_type.model_validate_json(text)

    def save_visualizations(self, data: Report) -> dict[str, VisualizationType]:
        """Write a self-contained page; restricted reports have none."""
        if isinstance(data, _RESTRICTED):
            return {}
        # pages draw, and a pod that submits others only names reports
        from dptune.reports.html import render_fragment  # noqa: PLC0415

        path = file_of(self.uri, "report.html")
        with self.artifact_store.open(path, "w") as sink:
            sink.write(render_fragment(data))
        return {path: VisualizationType.HTML}

    def extract_metadata(self, data: Report) -> dict[str, Any]:
        """Return numbers and short strings of what is told outside; else nothing.

        Counts of people, records and tokens, and digests of a corpus, tell neighbors
        apart: they stay in the report.
        """
        if isinstance(data, _RESTRICTED):
            return {"restricted": True}
        if not isinstance(data, _TOLD):
            return {}
        return {
            name: _plain(value)
            for name, value in data.model_dump(mode="python").items()
            if isinstance(value, int | float | str | bool) and name != "schema_version"
        }

    def compute_content_hash(self, data: Report) -> str:
        """Hash the JSON form."""
        return hashlib.sha256(data.model_dump_json().encode()).hexdigest()


def _plain(value: float | str) -> float | str:
    """Return a value that every metadata store accepts."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, str) else value
