"""Sample reports of every type; the numbers are chosen, no model is behind them."""

import math

import pytest

from dptune.results import (
    CanaryExposure,
    CorpusReport,
    DetectionReport,
    Expectation,
    ExposureReport,
    Interval,
    MembershipReport,
    MembershipSignal,
    RedactionReport,
    RegisteredVersion,
    StageCurvePoint,
    StageReport,
    UtilityReport,
    ValidationReport,
)

SPACE = 10**6
MODEL = "sha256:" + "a1" * 32
BASE = "sha256:" + "b2" * 32


def canary(name, *, planted, rank):
    return CanaryExposure(
        canary_id=name,
        planted=planted,
        insertions=4 if planted else 0,
        rank=rank,
        exposure=math.log2(SPACE) - math.log2(rank),
        nll=12.5,
    )


def exposure_report(*, leaked=False, num_canaries=6, **changes):
    ranks = [1 + i * SPACE // num_canaries for i in range(1, num_canaries)] + [SPACE]
    planted = [1] * num_canaries if leaked else ranks
    values = {
        "model_digest": MODEL,
        "base_model_digest": BASE,
        "canary_set_digest": "c3" * 32,
        "space_size": SPACE,
        "scoring": "sum",
        "setting": "not_missed",
        "exact": True,
        "canaries": (
            *(
                canary(f"planted-{i}", planted=True, rank=r)
                for i, r in enumerate(planted)
            ),
            *(
                canary(f"held-out-{i}", planted=False, rank=r)
                for i, r in enumerate(ranks)
            ),
        ),
        "base_canaries": tuple(
            canary(f"planted-{i}", planted=True, rank=r) for i, r in enumerate(ranks)
        ),
        "planted_found": 4 * num_canaries,
        "planted_expected": 4 * num_canaries,
        "num_token_forwards": 16_857,
    }
    return ExposureReport(**(values | changes))


def signal(name, *, auc=0.5, tpr=0.012, curve=True):
    return MembershipSignal(
        name=name,
        auc=auc,
        auc_interval=Interval(low=auc - 0.02, high=auc + 0.02, confidence=0.95),
        tpr_at_low_fpr=tpr,
        tpr_at_low_fpr_interval=Interval(
            low=max(0.0, tpr - 0.01), high=tpr + 0.01, confidence=0.95
        ),
        roc_fpr=(0.0, 0.01, 0.1, 1.0) if curve else (),
        roc_tpr=(0.0, tpr, 0.2, 1.0) if curve else (),
    )


def membership_report(*signals, blind=None):
    return MembershipReport(
        model_digest=MODEL,
        base_model_digest=BASE,
        num_members=1000,
        num_non_members=1000,
        signals=signals
        or (signal("loss"), signal("loss_minus_base", auc=0.888, tpr=0.573)),
        blind=blind or signal("bag_of_words"),
    )


def validation(*, success=True, view="original"):
    return ValidationReport(
        view=view,
        success=success,
        expectations=(
            Expectation(name="ids_are_unique", success=True),
            Expectation(name="text_is_not_null", success=success, detail="2 rows"),
        ),
    )


def corpus_report(**changes):
    values = {
        "source": "abcd",
        "fingerprint": "d4" * 32,
        "num_read": 1300,
        "num_records": {"train": 1000, "validation": 100, "test": 100},
        "num_units": {"train": 900, "validation": 90, "test": 95},
        "num_exact_duplicates": 60,
        "num_near_duplicates": 40,
        "num_characters": 1_234_567,
        "privacy_unit": "record",
        "validation": validation(),
    }
    return CorpusReport(**(values | changes))


def detection_report(**changes):
    values = {
        "fingerprint": "d4" * 32,
        "tier": "low_entity",
        "recognizers": ("patterns", "lexicon"),
        "num_records": 1000,
        "num_records_with_spans": 720,
        "num_spans": {"PERSON": 812, "EMAIL": 90},
        "masked_character_share": 0.113,
        "missing_rate": 0.004,
        "missing_rate_interval": Interval(low=0.001, high=0.012, confidence=0.95),
    }
    return DetectionReport(**(values | changes))


def redaction_report():
    return RedactionReport(
        operator="mask",
        masked_character_share=0.113,
        validation=validation(success=False, view="redacted"),
    )


def stage_report(**changes):
    values = {
        "stage": "private_recovery",
        "recipe": "jft",
        "num_steps": 100,
        "num_units": 900,
        "num_tokens": 640_000,
        "seconds": 75.0,
        "tokens_per_second": 8533.0,
        "curve": tuple(
            StageCurvePoint(step=s, loss=4.0 - s / 50, epsilon=0.08 * s)
            for s in (20, 40, 60, 80, 100)
        ),
    }
    return StageReport(**(values | changes))


def utility_report(**changes):
    values = {
        "model_digest": MODEL,
        "corpus_fingerprint": "d4" * 32,
        "split": "test",
        "num_records": 3,
        "num_tokens": 30,
        "nll_per_token": 1.85,
        "perplexity": 6.36,
        "base_perplexity": 15.2,
        "record_nll": (17.123456, 18.2, 20.1),
        "record_tokens": (10, 10, 10),
    }
    return UtilityReport(**(values | changes))


def registered_version():
    return RegisteredVersion(
        model_name="support-bot",
        version="7",
        model_digest=MODEL,
        model_uri="models:/support-bot/7",
        recipe="jft",
    )


@pytest.fixture
def leaked():
    return exposure_report(leaked=True)
