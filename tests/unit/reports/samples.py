"""Sample reports of every type; the numbers are chosen, no model is behind them."""

import functools
import math

import dp_accounting

from dptune.accounting.assumptions import REDACTED_VIEW_ASSUMPTIONS, Assumption
from dptune.accounting.ledger import DataView, LedgerEntry, PrivacyLedger
from dptune.accounting.progress import ledger_curves
from dptune.audits.step_report import StepAudit, StepCheck
from dptune.detection.scoring import score_entity_types
from dptune.gates.criterion import Criterion, GateOutcome, Verdict
from dptune.gates.decision import GateDecision
from dptune.gates.evidence import AuditEvidence
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import (
    ClippingSettings,
    NoiseSettings,
    OptimizerSettings,
    Recipe,
    StageSettings,
)
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
from dptune.reports.comparison import CellResult, ComparisonReport, StageUsage
from dptune.results import (
    BlindSignal,
    BudgetLine,
    BudgetReport,
    CanaryExposure,
    CanarySampling,
    Completions,
    CorpusReport,
    DetectionReport,
    DiscoverableShare,
    Expectation,
    ExposureReport,
    ExtractionReport,
    Interval,
    MembershipReport,
    MembershipSignal,
    NgramSimilarity,
    PersonalDataShare,
    RateAtFpr,
    RedactionReport,
    RegisteredVersion,
    SamplesReport,
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
        trained=4 if planted else None,
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
        "drawn": True,
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
        rates=(
            RateAtFpr(
                fpr=0.1,
                needed=100,
                tpr=0.2,
                interval=Interval(low=0.17, high=0.23, confidence=0.95),
            ),
            RateAtFpr(fpr=0.001, needed=10_000),
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
        blind=BlindSignal(**dict(blind or signal("bag_of_words")), p_value=0.5),
    )


def discoverable_share(trials, chance, *, members=0.4, controls=0.0):
    bounds = Interval(low=0.0, high=0.5, confidence=0.95)
    return DiscoverableShare(
        trials=trials,
        chance=chance,
        members=members,
        members_interval=bounds,
        controls=controls,
        controls_interval=bounds,
    )


def extraction_report(**changes):
    bounds = Interval(low=0.01, high=0.2, confidence=0.95)
    sampling = CanarySampling(
        num_trials=4000,
        num_valid=311,
        planted_hits=40,
        held_out_hits=0,
        planted_found=3,
        held_out_found=0,
        similarities=tuple(
            NgramSimilarity(
                size=n,
                planted=0.2 / n,
                planted_stddev=0.1,
                held_out=0.146 / n,
                held_out_stddev=0.1,
                difference=0.054 / n,
                difference_interval=bounds,
            )
            for n in (1, 2, 3, 4)
        ),
    )
    shares = tuple(
        discoverable_share(n, p, members=min(1.0, 0.1 + 0.1 * i))
        for i, n in enumerate((1, 100, 10_000))
        for p in (0.1, 0.5, 0.9)
    )
    values = PersonalDataShare(
        attack="inference",
        members=40,
        num_members=100,
        members_interval=bounds,
        controls=11,
        num_controls=100,
        controls_interval=bounds,
        chance=0.1,
    )
    found = {
        "model_digest": MODEL,
        "base_model_digest": BASE,
        "temperature": 0.7,
        "top_k": 50,
        "top_p": 0.95,
        "num_planted": 10,
        "num_held_out": 10,
        "num_members": 500,
        "num_non_members": 500,
        "sampling": sampling,
        "base_sampling": sampling,
        "canaries": shares,
        "records": (*shares[:3], discoverable_share(100, 0.5, members=0.0)),
        "personal_data": (values,),
        "base_personal_data": (values,),
    }
    return ExtractionReport(**(found | changes))


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
        "missing_rate_origin": "gold",
        "missing_rate_texts": 1000,
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
            StageCurvePoint(step=s, loss=4.0 - s / 50) for s in (20, 40, 60, 80, 100)
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


GAUSSIAN = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.0)), 50
)
PUBLIC = (Assumption.NUM_UNITS_WAS_DECLARED, Assumption.BASE_MODEL_IS_PUBLIC)


def ledger_entry(**changes):
    values = {
        "stage": "private_recovery",
        "recipe": "jft",
        "data_fingerprint": "d4" * 32,
        "privacy_unit": PrivacyUnit.RECORD,
        "view": DataView.ORIGINAL,
        "dp_event": GAUSSIAN,
        "num_steps": 50,
        "sample_rate": 0.1,
        "noise_multiplier": 1.0,
        "max_grad_norm": 0.5,
        "assumptions": PUBLIC,
        "nominal_epsilon": 2.56,
        "nominal_reference": "Shi et al. (2022)",
    }
    return LedgerEntry(**(values | changes))


def redacted_entry():
    return ledger_entry(
        stage="redacted_finetune",
        view=DataView.REDACTED,
        dp_event=dp_accounting.NonPrivateDpEvent(),
        sample_rate=None,
        noise_multiplier=None,
        max_grad_norm=None,
        nominal_epsilon=None,
        assumptions=(*PUBLIC, *REDACTED_VIEW_ASSUMPTIONS),
    )


def private_ledger():
    return PrivacyLedger(entries=(ledger_entry(),))


def jft_ledger():
    return PrivacyLedger(entries=(redacted_entry(), ledger_entry()))


def blocks_ledger():
    """A stage on the redacted view, then a noisy one charged in blocks of 50 steps."""
    return PrivacyLedger(entries=(redacted_entry(), *[ledger_entry()] * 6))


def recipe(**changes):
    stage = StageSettings(
        name="private_recovery",
        view="original",
        epochs=5,
        expected_batch_size=90,
        optimizer=OptimizerSettings(learning_rate=1e-3),
        clipping=ClippingSettings(max_grad_norm=0.5),
        noise=NoiseSettings(noise_multiplier=1.0),
    )
    values = {
        "name": "jft",
        "title": "Just Fine-tune Twice",
        "reference": "Shi et al. (2022)",
        "stages": (stage,),
    }
    return Recipe(**(values | changes))


def run_plan():
    return plan_run(
        recipe(),
        num_units=900,
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=None,
        target_delta=1e-5,
    )


def gate_decision(outcome="BLOCK", **changes):
    criteria = (
        Criterion(name="evidence_identity", verdict=Verdict.PASS, reason="All match."),
        Criterion(
            name="memorization",
            verdict=Verdict(outcome),
            measured=15.1,
            interval=Interval(low=11.9, high=19.8, confidence=0.95),
            threshold=2.5,
            reason="Mean exposure is 15.1 bits.",
            what_would_change_it="" if outcome == "PASS" else "Train with more noise.",
        ),
        Criterion(
            name="budget", verdict=Verdict.PASS, measured=math.inf, reason="Counted."
        ),
        Criterion(
            name="audit", verdict=Verdict.NOT_APPLICABLE, reason="Not asked for."
        ),
    )
    values = {
        "outcome": GateOutcome(outcome),
        "model_digest": MODEL,
        "policy_name": "default",
        "policy_version": 1,
        "policy_digest": "sha256:" + "e5" * 32,
        "evidence_digest": "f6" * 32,
        "criteria": criteria,
    }
    return GateDecision(**(values | changes))


def sensitivity_table(*, public=True):
    return score_entity_types({"PERSON": 80, "EMAIL": 20}, counts_are_public=public)


@functools.cache
def certificates(kind):
    ledger = {
        "private": private_ledger(),
        "jft": jft_ledger(),
        "seeded": PrivacyLedger(entries=(ledger_entry(fixed_seed=True),)),
        "none": PrivacyLedger(
            entries=(
                ledger_entry(
                    dp_event=dp_accounting.NonPrivateDpEvent(),
                    sample_rate=None,
                    noise_multiplier=None,
                    max_grad_norm=None,
                    nominal_epsilon=None,
                ),
            )
        ),
    }[kind]
    return ledger.certificates(delta=1e-5)


def audit():
    return AuditEvidence(
        model_digest=MODEL,
        method="one_run",
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        epsilon_lower_bound=0.4,
        delta=1e-5,
        confidence=0.95,
        capacity=2.9,
        num_canaries=60,
        assumes_independent_canaries=True,
    )


def step_audit():
    check = StepCheck(
        name="sensitivity",
        passed=True,
        measured=0.5,
        limit=1.0,
        detail="largest distance of a neighbour's sum",
    )
    return StepAudit(
        stage="private",
        recipe="dp_sgd",
        data_fingerprint="d4" * 32,
        checks=(check, StepCheck.failed("noise", "the noise is not there")),
    )


def budget_report(**changes):
    line = BudgetLine(
        notion="selective",
        relation="replace_one",
        delta=1e-5,
        allowance=8.0,
        spent=4.25,
        committed=5.5,
        tuning=1.75,
        worst_cohort_units=7,
    )
    endless = line.model_copy(
        update={
            "notion": "record",
            "relation": "add_or_remove_one",
            "allowance": None,
            "spent": math.inf,
            "committed": math.inf,
            "tuning": 0.0,
        }
    )
    values = {
        "data_set": "people",
        "privacy_unit": "record",
        "num_units": 9,
        "num_cohorts": 2,
        "num_runs": 4,
        "num_open": 1,
        "sweeps": {"rates": 2},
        "lines": (line, endless),
        "head_sequence": 12,
        "head_hash": "ab" * 32,
        "curves": ledger_curves(blocks_ledger(), delta=1e-5),
    }
    return BudgetReport(**(values | changes))


STATEMENTS = {
    "budget": BudgetStatement.of,
    "detection": lambda report: DetectionStatement.of(report, source="TAB test split"),
    "exposure": lambda report: ExposureStatement.of(report, group_epsilon=17.3),
    "membership": MembershipStatement.of,
    "utility": UtilityStatement.of,
    "gate": GateStatement.of,
}
"""What a card keeps of each report."""


def bare_card(**changes):
    """A card of nothing but its claims, and what it keeps of given reports."""
    made = recipe()
    values = {
        "model_name": "bot",
        "model_version": "1",
        "model_digest": "d",
        "base_model": "gpt2",
        "recipe": made.name,
        "recipe_title": made.title,
        "recipe_reference": made.reference,
        "privacy_unit": PrivacyUnit.RECORD,
        "certificates": certificates("private"),
        "sampling_assumed": "Poisson",
        "sampling_actual": "Poisson",
        "fixed_seed": False,
        "deduplicated": True,
        "outside_guarantee": outside_epsilon(exposure_report()),
    }
    given = {
        name: STATEMENTS[name](value)
        if name in STATEMENTS and isinstance(value, _REPORTS)
        else value
        for name, value in changes.items()
    }
    return PrivacyCard(**(values | given))


_REPORTS = (
    BudgetReport,
    DetectionReport,
    ExposureReport,
    MembershipReport,
    UtilityReport,
    GateDecision,
)


def card(kind="jft", **changes):
    values = {
        "model_name": "support-bot",
        "model_version": "7",
        "model_digest": MODEL,
        "certificates": certificates(kind),
        "fixed_seed": kind == "seeded",
        "budget": budget_report(),
        "outside_guarantee": (
            *outside_epsilon(exposure_report()),
            "Labels are sent in the clear.",
        ),
        "detection": detection_report(),
        "exposure": exposure_report(),
        "membership": membership_report(),
        "utility": utility_report(),
        "audits": (audit(),),
        "gate": gate_decision(),
        "dependency_versions": {"torch": "2.13.0", "dp-accounting": "0.6.0"},
    }
    return bare_card(**(values | changes))


def cell_result():
    return CellResult(
        label="jft",
        recipe="jft",
        target_epsilon=8.0,
        seed=0,
        notion="selective",
        relation="replace_one",
        utility=utility_report(),
        exposure=exposure_report(),
        membership=membership_report(),
        card=card("jft"),
        stages=(StageUsage(stage="s", num_steps=10, seconds=4.0),),
        trace=(),
    )


def comparison_report():
    missing = CellResult(
        label="no_dp", recipe="no_dp", target_epsilon=None, seed=0, failure="It ended."
    )
    return ComparisonReport(name="two", title="Two", cells=(cell_result(), missing))


def samples_report(**changes):
    values = {
        "model_digest": "a" * 64,
        "base_model_digest": "b" * 64,
        "decoding": "the likeliest token every time",
        "completions": (
            Completions(prompt="user: Hi", base="Hello.", model="<b>Hello</b> <mask>."),
        ),
    }
    return SamplesReport(**{**values, **changes})


def every_report():
    return (
        cell_result(),
        comparison_report(),
        budget_report(),
        blocks_ledger(),
        corpus_report(ids_are_content_hashes=True),
        detection_report(),
        detection_report(missing_rate=None, missing_rate_interval=None),
        redaction_report(),
        validation(),
        sensitivity_table(),
        sensitivity_table(public=False),
        run_plan(),
        stage_report(fixed_seed=True, resumed_from_step=40),
        stage_report(curve=()),
        exposure_report(),
        exposure_report(leaked=True, planted_found=3),
        membership_report(),
        samples_report(),
        samples_report(completions=()),
        extraction_report(),
        extraction_report(sampling=None, canaries=(), records=(), personal_data=None),
        utility_report(),
        registered_version(),
        private_ledger(),
        jft_ledger(),
        PrivacyLedger(),
        gate_decision(),
        card("jft"),
        card("seeded", gate=None),
        audit(),
        step_audit(),
        Interval(low=math.nan, high=math.inf, confidence=0.9),
    )
