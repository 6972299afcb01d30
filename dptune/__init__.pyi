from .accounting.accountants import epsilon as epsilon
from .accounting.calibration import (
    calibrate_noise_multiplier as calibrate_noise_multiplier,
)
from .accounting.certificates import Certificate as Certificate
from .accounting.ledger import LedgerEntry as LedgerEntry
from .accounting.ledger import PrivacyLedger as PrivacyLedger
from .accounting.store.store import BudgetStore as BudgetStore
from .attacks.canaries import CanarySet as CanarySet
from .attacks.canaries import CanarySpec as CanarySpec
from .attacks.canaries import draw_canaries as draw_canaries
from .attacks.exposure import exposure_report as exposure_report
from .attacks.exposure import measure_exposure as measure_exposure
from .attacks.membership import membership_report as membership_report
from .attacks.planting import plant as plant
from .audits.canary_audit import audit_canaries as audit_canaries
from .config import TrainConfig as TrainConfig
from .configfile import load_train_config as load_train_config
from .detection.engine import DetectionEngine as DetectionEngine
from .detection.engine import build_engine as build_engine
from .detection.labelling import detect_dataset as detect_dataset
from .dpsgd.dataset import UnitDataset as UnitDataset
from .dpsgd.plan import GradientPlan as GradientPlan
from .dpsgd.selfcheck import check_model as check_model
from .dpsgd.trainer import train_stage as train_stage
from .gates.decision import decide as decide
from .gates.evidence import Evidence as Evidence
from .gates.policy import GatePolicy as GatePolicy
from .planning import RunPlan as RunPlan
from .planning import plan_run as plan_run
from .privacy import NeighboringRelation as NeighboringRelation
from .privacy import Notion as Notion
from .privacy import PrivacyBudget as PrivacyBudget
from .redaction.engine import redact_dataset as redact_dataset
from .redaction.engine import redact_text as redact_text
from .redaction.operators import Operator as Operator
from .text import Span as Span

__version__: str
