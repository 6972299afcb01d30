"""Evidence of a clean model, and of leaking ones."""

import hashlib
import math
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

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
from dptune.gates.manifest import Manifest, StoredFile
from dptune.gates.policy import GatePolicy
from dptune.results import (
    STRONGEST_ATTACK,
    BlindSignal,
    CanaryExposure,
    DetectionReport,
    ExposureReport,
    Interval,
    MembershipReport,
    MembershipSignal,
    ShadowReport,
    UtilityReport,
)
from dptune.statistics import fewest_hits_for

SIZE = 10**6
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
MEASURED = NOW - timedelta(days=2)


def canaries(ranks, *, planted, insertions=1):
    group = "planted" if planted else "held-out"
    return tuple(
        CanaryExposure(
            canary_id=f"{group}-{number}",
            planted=planted,
            insertions=insertions if planted else 0,
            rank=int(rank),
            exposure=math.log2(SIZE) - math.log2(rank),
            nll=10.0,
            trained=insertions if planted else None,
        )
        for number, rank in enumerate(ranks)
    )


def even_ranks(num):
    """Deterministic quantiles of the uniform law, in an order without meaning."""
    ranks = (np.arange(num) + 0.5) / num * SIZE
    return np.roll(np.ceil(ranks).astype(int), num // 3)


def exposure(planted=None, held_out=None, *, insertions=1, **changes):
    planted = even_ranks(60) if planted is None else planted
    held_out = even_ranks(60) if held_out is None else held_out
    base = canaries(even_ranks(len(planted)), planted=True, insertions=insertions)
    total = len(planted) * insertions
    values = {
        "model_digest": "m",
        "base_model_digest": "b",
        "canary_set_digest": "c",
        "space_size": SIZE,
        "scoring": "sum",
        "setting": "as_detected",
        "exact": True,
        "canaries": canaries(planted, planted=True, insertions=insertions)
        + canaries(held_out, planted=False),
        "base_canaries": base + canaries(held_out, planted=False),
        "planted_found": total,
        "planted_expected": total,
        "num_token_forwards": 1,
        "drawn": True,
        "measured_at": MEASURED,
    }
    return ExposureReport(**{**values, **changes})


def interval(low, high, confidence=0.95):
    return Interval(low=low, high=high, confidence=confidence)


def signal(name, *, auc=0.5, tpr=0.01, num=1000):
    """An attack whose threshold makes no difference to the members it finds."""
    return MembershipSignal(
        name=name,
        auc=auc,
        auc_interval=interval(auc - 0.03, auc + 0.03),
        tpr_at_low_fpr=tpr,
        tpr_at_low_fpr_interval=interval(0.0, 1.0),
        hits=(round(num * tpr),) * fewest_hits_for(1000, 0.01),
    )


def blind(*, auc=0.5, p_value=0.5):
    return BlindSignal(
        **{**dict(signal("blind", auc=auc)), "hits": ()}, p_value=p_value
    )


def membership(**changes):
    values = {
        "model_digest": "m",
        "base_model_digest": "b",
        "num_members": 1000,
        "num_non_members": 1000,
        "signals": (signal("loss"), signal(STRONGEST_ATTACK)),
        "blind": blind(),
        "shadows": ShadowReport(
            num_models=4, num_records=1000, effect=0.1, model_effect=0.1
        ),
        "measured_at": MEASURED,
    }
    return MembershipReport(**{**values, **changes})


def utility(*, model_digest="m", shift=0.0, **changes):
    losses = tuple(20.0 + 10 * shift + (i % 7) for i in range(100))
    nll = sum(losses) / 1000
    values = {
        "model_digest": model_digest,
        "corpus_fingerprint": "f",
        "split": "test",
        "num_records": 100,
        "num_tokens": 1000,
        "nll_per_token": nll,
        "perplexity": math.exp(nll),
        "base_perplexity": math.exp(2.5),
        "record_nll": losses,
        "record_tokens": (10,) * 100,
        "base_record_nll": (25.0,) * 100,
        "measured_at": MEASURED,
    }
    return UtilityReport(**{**values, **changes})


def claim(**changes):
    values = {
        "model_digest": "m",
        "notion": "record",
        "relation": "add_or_remove_one",
        "privacy_unit": "record",
        "epsilon": 4.0,
        "delta": 1e-6,
        "status": "certified",
    }
    return ClaimEvidence(**{**values, **changes})


def budget(**changes):
    is_record = changes.get("notion", "record") == "record"
    values = {
        "notion": "record",
        "relation": "add_or_remove_one" if is_record else "replace_one",
        "spent_epsilon": 4.0,
        "budget_epsilon": 8.0,
        "delta": 1e-6,
    }
    return BudgetEvidence(**{**values, **changes})


def audit(**changes):
    values = {
        "model_digest": "m",
        "method": "one_run",
        "notion": "record",
        "relation": "add_or_remove_one",
        "epsilon_lower_bound": 0.5,
        "delta": 1e-5,
        "confidence": 0.99,
        "capacity": 3.5,
        "num_canaries": 120,
    }
    return AuditEvidence(**{**values, **changes})


def step_audit(**changes):
    values = {
        "model_digest": "m",
        "stage": "finetune",
        "is_private": True,
        "num_checks": 20,
        "num_passed": 20,
        "failed": (),
        "num_steps": 40,
        "num_recorded": 40,
        "unrecorded": "",
    }
    return StepAuditEvidence(**{**values, **changes})


def detection(**changes):
    values = {
        "fingerprint": "f",
        "tier": "low_entity",
        "recognizers": ("patterns",),
        "num_records": 1000,
        "num_records_with_spans": 700,
        "num_spans": {"PERSON": 10},
        "masked_character_share": 0.1,
        "missing_rate": 0.001,
        "missing_rate_interval": interval(0.0, 0.002),
        "missing_rate_origin": "gold",
        "missing_rate_texts": 1000,
    }
    return DetectionReport(**{**values, **changes})


def manifest(*names):
    """Files that hold their own names."""
    return Manifest(
        files=tuple(
            StoredFile(
                path=name,
                size=len(name),
                sha256=hashlib.sha256(name.encode()).hexdigest(),
            )
            for name in sorted(names)
        )
    )


FILES = manifest("MLmodel", "model/config.json", "model/model.safetensors")


def files(**changes):
    values = {
        "registered": FILES,
        "stored": FILES,
        "model_digest": "m",
        "registry_digest": "m",
        "registry_manifest": FILES.digest,
    }
    return FileEvidence(**{**values, **changes})


def origin(**changes):
    values = {"digest": "d" * 64, "signer": "k" * 16, "is_verified": True, "faults": ()}
    return OriginEvidence(**{**values, **changes})


def attempts(evaluations=1, **changes):
    values = {"data_set": "people", "trainings": 1, "decisions": 1}
    return AttemptsEvidence(evaluations=evaluations, **{**values, **changes})


def evidence(**changes):
    values = {
        "model_digest": "m",
        "exposure": exposure(),
        "membership": membership(),
        "utility": utility(),
        "claims": (claim(),),
        "dataset_budget": budget(),
        "audits": (audit(), audit(notion="selective", relation="replace_one")),
        "step_audits": (step_audit(),),
        "detection": detection(),
        "planned_for": PolicyReference(name="plan", version=1, digest="p"),
        "origin": origin(),
        "attempts": attempts(),
        "measured_at": MEASURED,
        "decided_at": NOW,
        "files": files(),
    }
    return Evidence(**{**values, **changes})


def policy(**changes):
    values = {"notion": "record", "max_epsilon": 8.0, "max_delta": 1e-5}
    # of the 60 above, by which no leak of a few is ruled out at the default level
    values |= {"min_canaries": 50, "assurance_level": 0.03}
    return GatePolicy(**{**values, **changes})


class Make:
    """The builders above, for tests."""

    canaries = staticmethod(canaries)
    even_ranks = staticmethod(even_ranks)
    exposure = staticmethod(exposure)
    audit = staticmethod(audit)
    step_audit = staticmethod(step_audit)
    detection = staticmethod(detection)
    now = NOW
    interval = staticmethod(interval)
    signal = staticmethod(signal)
    blind = staticmethod(blind)
    membership = staticmethod(membership)
    utility = staticmethod(utility)
    claim = staticmethod(claim)
    origin = staticmethod(origin)
    attempts = staticmethod(attempts)
    budget = staticmethod(budget)
    files = staticmethod(files)
    manifest = staticmethod(manifest)
    evidence = staticmethod(evidence)
    policy = staticmethod(policy)


@pytest.fixture(scope="session")
def make():
    return Make
