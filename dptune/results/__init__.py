"""Plain reports: what attacks and checks write, and gates, cards and pages read.

Every report is frozen, versioned JSON, holds no record text (but for samples, which are
masked), and says which model and corpus it speaks of. Those of attacks say when they
ran (`measured_at`), so that an answer from a cache keeps its age. Infinite and NaN
floats survive a round trip as strings. There is a module for each producer.
"""

from dptune.results.attacks import (
    STRONGEST_ATTACK,
    BlindSignal,
    CanaryExposure,
    CanarySampling,
    DiscoverableShare,
    ExposureReport,
    ExtractionReport,
    MembershipReport,
    MembershipSignal,
    NgramSimilarity,
    PersonalDataShare,
    RateAtFpr,
    ShadowReport,
)
from dptune.results.base import (
    Interval,
    Report,
)
from dptune.results.budget import (
    BudgetLine,
    BudgetReport,
    BudgetReservation,
    LedgerCurve,
)
from dptune.results.calibration import (
    AttackCost,
    AuditPower,
    BatchChoice,
    Calibration,
    EpsilonGrid,
    NoiseCost,
    PowerLine,
    Promise,
    StageCost,
    TargetChoice,
    WhatIf,
)
from dptune.results.data import (
    CorpusReport,
    DetectionReport,
    Expectation,
    LanguageShare,
    MissingRateOrigin,
    RedactionReport,
    ValidationReport,
)
from dptune.results.registry import (
    ChampionReport,
    RegisteredVersion,
    UtilityReport,
)
from dptune.results.samples import Completions, SamplesReport
from dptune.results.training import (
    ControllerReport,
    ControllerStep,
    CutTurns,
    StageCurvePoint,
    StageReport,
    TracePoint,
    TrainedCanaries,
)

__all__ = [
    "STRONGEST_ATTACK",
    "AttackCost",
    "AuditPower",
    "BatchChoice",
    "BlindSignal",
    "BudgetLine",
    "BudgetReport",
    "BudgetReservation",
    "Calibration",
    "CanaryExposure",
    "CanarySampling",
    "ChampionReport",
    "Completions",
    "ControllerReport",
    "ControllerStep",
    "CorpusReport",
    "CutTurns",
    "DetectionReport",
    "DiscoverableShare",
    "EpsilonGrid",
    "Expectation",
    "ExposureReport",
    "ExtractionReport",
    "Interval",
    "LanguageShare",
    "LedgerCurve",
    "MembershipReport",
    "MembershipSignal",
    "MissingRateOrigin",
    "NgramSimilarity",
    "NoiseCost",
    "PersonalDataShare",
    "PowerLine",
    "Promise",
    "RateAtFpr",
    "RedactionReport",
    "RegisteredVersion",
    "Report",
    "SamplesReport",
    "ShadowReport",
    "StageCost",
    "StageCurvePoint",
    "StageReport",
    "TargetChoice",
    "TracePoint",
    "TrainedCanaries",
    "UtilityReport",
    "ValidationReport",
    "WhatIf",
]
