"""How often the default policy errs, over 400 simulated models of each kind.

Bars: a model that memorizes nothing PASSes in at least 90 % of runs and is BLOCKed in
at most 2 %; one whose canaries leak 4 bits on average is BLOCKed in at least 95 %.
Seeds are fixed. Each run has 50 planted and 50 held-out canaries among 10^6 candidates,
audits of the claim, five membership attacks on 500 members and 500 non-members (the
fewest that the policy admits), a blind baseline and a champion. The three kinds whose
members are not found share 400 draws of the last three.
"""

import collections
import functools
import math
from datetime import UTC, datetime

import numpy as np
import pytest
from scipy import stats

from dptune.attacks.roc import RocSettings, membership_signal
from dptune.audits.canary_audit import AuditedClaim, audit_canaries
from dptune.gates.decision import decide
from dptune.gates.evidence import (
    BudgetEvidence,
    ClaimEvidence,
    Evidence,
    StepAuditEvidence,
)
from dptune.gates.policy import GatePolicy
from dptune.results import (
    CanaryExposure,
    DetectionReport,
    ExposureReport,
    MembershipReport,
    UtilityReport,
)

SIZE, NUM_CANARIES, NUM_RECORDS, NUM_RUNS = 10**6, 50, 500, 400
NAMES = ("loss", "zlib", "min_k", "min_k_plus_plus", "calibrated_loss")
POLICY = GatePolicy(notion="record", max_epsilon=8.0, max_delta=1e-5)
AUDITED = AuditedClaim(
    notion=POLICY.notion, relation=POLICY.neighboring_relation, delta=1e-6
)
STEPS_AUDITED = StepAuditEvidence(
    model_digest="m",
    stage="finetune",
    is_private=True,
    num_checks=20,
    num_passed=20,
    failed=(),
    num_steps=40,
    num_recorded=40,
    unrecorded="",
)
DETECTION = DetectionReport(
    fingerprint="f",
    tier="low_entity",
    recognizers=("patterns",),
    num_records=1000,
    num_records_with_spans=700,
    num_spans={},
    masked_character_share=0.1,
)
NOW = datetime(2026, 5, 4, tzinfo=UTC)


def canaries(ranks, *, planted):
    return tuple(
        CanaryExposure(
            canary_id=f"{planted}-{number}",
            planted=planted,
            insertions=int(planted),
            rank=int(rank),
            exposure=math.log2(SIZE) - math.log2(rank),
            nll=math.log(rank),
        )
        for number, rank in enumerate(ranks)
    )


def uniform_ranks(generator):
    return generator.choice(SIZE, NUM_CANARIES, replace=False) + 1


def shifted_ranks(generator, shift):
    """Every canary is a little more likely than chance: a normal shift of its rank."""
    shares = stats.norm.sf(generator.normal(size=NUM_CANARIES) + shift)
    return np.maximum(np.ceil(shares * SIZE), 1).astype(int)


def mixed_ranks(generator, share):
    """Few canaries are memorized outright, the others not at all."""
    known = generator.random(NUM_CANARIES) < share
    return np.where(known, 1, uniform_ranks(generator))


def exposure(generator, planted):
    held_out = canaries(uniform_ranks(generator), planted=False)
    base = canaries(uniform_ranks(generator), planted=True)
    return ExposureReport(
        model_digest="m",
        base_model_digest="b",
        canary_set_digest="c",
        space_size=SIZE,
        scoring="sum",
        setting="as_detected",
        exact=True,
        canaries=canaries(planted, planted=True) + held_out,
        base_canaries=base + held_out,
        planted_found=NUM_CANARIES,
        planted_expected=NUM_CANARIES,
        num_token_forwards=1,
        drawn=True,
    )


def membership(generator, shift):
    """Five attacks whose scores are correlated, as those of one model are."""
    settings = RocSettings(num_resamples=100)
    common = generator.normal(size=(2, NUM_RECORDS))
    signals = []
    for name in NAMES:
        own = generator.normal(size=(2, NUM_RECORDS))
        members, others = 0.8 * common + 0.6 * own
        signals.append(
            membership_signal(name, members + shift, others, settings=settings)
        )
    blind = membership_signal(
        "blind",
        *generator.normal(size=(2, NUM_RECORDS)),
        settings=RocSettings(num_resamples=100, confidence=0.99),
        fold=False,
    )
    return MembershipReport(
        model_digest="m",
        base_model_digest="b",
        num_members=NUM_RECORDS,
        num_non_members=NUM_RECORDS,
        signals=tuple(signals),
        blind=blind,
    )


def utility(generator, digest, difficulty):
    tokens = np.full(200, 40)
    losses = 40 * (3.0 + difficulty + generator.normal(0, 0.02, 200))
    mean = losses.sum() / tokens.sum()
    return UtilityReport(
        model_digest=digest,
        corpus_fingerprint="f",
        split="test",
        num_records=200,
        num_tokens=int(tokens.sum()),
        nll_per_token=mean,
        perplexity=math.exp(mean),
        base_perplexity=math.exp(mean),
        record_nll=tuple(losses.tolist()),
        record_tokens=tuple(tokens.tolist()),
    )


def drawn(generator, shift):
    """Membership, and the losses of model and champion on the same records."""
    difficulty = generator.normal(0, 0.5, 200)
    found = membership(generator, shift)
    return found, *(utility(generator, name, difficulty) for name in ("m", "old"))


@functools.cache
def clean_draws():
    generator = np.random.default_rng(1)
    return [drawn(generator, 0.0) for _ in range(NUM_RUNS)]


def evidence(generator, planted, others):
    report = exposure(generator, planted)
    return Evidence(
        model_digest="m",
        exposure=report,
        membership=others[0],
        utility=others[1],
        champion_digest="old",
        champion_utility=others[2],
        claims=(
            ClaimEvidence(
                model_digest="m",
                notion="record",
                relation="add_or_remove_one",
                privacy_unit="record",
                epsilon=8.0,
                delta=1e-6,
                status="certified",
            ),
        ),
        dataset_budget=BudgetEvidence(
            notion="record", spent_epsilon=8.0, budget_epsilon=8.0, delta=1e-6
        ),
        audits=audit_canaries(report, [AUDITED]),
        step_audits=(STEPS_AUDITED,),
        detection=DETECTION,
        planned_for=POLICY.reference,
        measured_at=NOW,
        decided_at=NOW,
    )


def outcomes(draw_planted, draws):
    generator = np.random.default_rng(0)
    found, means = collections.Counter(), []
    for others in draws:
        planted = draw_planted(generator)
        means.append(np.log2(SIZE / planted).mean())
        decision = decide(evidence(generator, planted, others), POLICY)
        found[decision.outcome.value] += 1
    return {name: count / len(draws) for name, count in found.items()}, np.mean(means)


def test_clean_models_pass_and_are_hardly_ever_blocked():
    rates, mean = outcomes(uniform_ranks, clean_draws())
    assert mean == pytest.approx(1.44, abs=0.03)
    assert rates["PASS"] >= 0.90, rates
    assert rates.get("BLOCK", 0.0) <= 0.02, rates


@pytest.mark.parametrize(
    "draw",
    [
        lambda generator: shifted_ranks(generator, 1.316),
        lambda generator: mixed_ranks(generator, 0.138),
    ],
    ids=["all_a_little", "few_outright"],
)
def test_models_that_leak_four_bits_are_blocked(draw):
    rates, mean = outcomes(draw, clean_draws())
    assert mean == pytest.approx(4.0, abs=0.1)
    assert rates["BLOCK"] >= 0.95, rates


def test_models_whose_members_are_found_are_blocked():
    generator = np.random.default_rng(2)
    draws = [drawn(generator, 1.0) for _ in range(100)]
    rates, _ = outcomes(uniform_ranks, draws)
    assert rates["BLOCK"] >= 0.95, rates
