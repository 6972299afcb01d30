"""Simulated models for the gate: what their attacks find, and what it decides.

Each run has planted and held-out canaries, audits of the claim, eleven membership
attacks on 500 members and 500 non-members (the fewest that the policy admits), a blind
baseline and a champion.
"""

import collections
import contextlib
import functools
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from unittest import mock

import numpy as np
from scipy import stats

from dptune.attacks.roc import RocSettings, membership_signal
from dptune.audits.canary_audit import AuditedClaim, audit_canaries
from dptune.audits.tails import guess_tail, hit_tail
from dptune.gates.decision import decide
from dptune.gates.evidence import (
    AttemptsEvidence,
    BudgetEvidence,
    ClaimEvidence,
    Evidence,
    FileEvidence,
    OriginEvidence,
    StepAuditEvidence,
)
from dptune.gates.leakage import needed_candidates
from dptune.gates.manifest import Manifest, StoredFile
from dptune.gates.policy import GatePolicy
from dptune.results import (
    STRONGEST_ATTACK,
    BlindSignal,
    CanaryExposure,
    DetectionReport,
    ExposureReport,
    MembershipReport,
    ShadowReport,
    UtilityReport,
)
from dptune.statistics import paired_bootstrap_upper

NUM_RECORDS = 500
NAMES = (*(f"attack-{number}" for number in range(10)), STRONGEST_ATTACK)
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
LISTED = Manifest(files=(StoredFile(path="MLmodel", size=1, sha256="a"),))
FILES = FileEvidence(
    registered=LISTED,
    stored=LISTED,
    model_digest="m",
    registry_digest="m",
    registry_manifest=LISTED.digest,
)
NOW = datetime(2026, 5, 4, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many canaries are planted, as many held out, among how many candidates."""

    num: int = POLICY.min_canaries
    size: int = 10**6
    insertions: int = 1

    def uniform(self, generator):
        return generator.choice(self.size, self.num, replace=False) + 1


SHAPES = {
    "fewest": Shape(),
    "smallest_space": Shape(size=needed_candidates(POLICY, POLICY.min_canaries)),
    "quickstart": Shape(insertions=6),
    "letters": Shape(num=150, size=36**4),
}


def canaries(shape, ranks, *, planted):
    insertions = shape.insertions if planted else 0
    return tuple(
        CanaryExposure(
            canary_id=f"{planted}-{number}",
            planted=planted,
            insertions=insertions,
            rank=int(rank),
            exposure=math.log2(shape.size) - math.log2(rank),
            nll=math.log(rank),
            trained=insertions if planted else None,
        )
        for number, rank in enumerate(ranks)
    )


def exponential_ranks(shape, generator, bits):
    """Exposures of the law that the assurance bound takes for granted."""
    shares = np.exp2(-generator.exponential(bits, size=shape.num))
    return np.maximum(np.ceil(shares * shape.size), 1).astype(int)


def shifted_ranks(shape, generator, shift):
    """Every canary is a little more likely than chance: a normal shift of its rank."""
    shares = stats.norm.sf(generator.normal(size=shape.num) + shift)
    return np.maximum(np.ceil(shares * shape.size), 1).astype(int)


def mixed_ranks(shape, generator, share):
    """Few canaries are memorized outright, the others not at all."""
    known = generator.random(shape.num) < share
    return np.where(known, 1, shape.uniform(generator))


def few_well_known(shape, generator, share, top):
    """Few canaries are among the best candidates, the others not memorized."""
    known = generator.random(shape.num) < share
    best = generator.integers(1, top + 1, shape.num)
    return np.where(known, best, shape.uniform(generator))


def one_known(shape, generator):
    """A single canary is at rank 1, the others are not memorized."""
    ranks = shape.uniform(generator)
    ranks[0] = 1
    return ranks


def mixed_share(shape, bits):
    """Share of canaries at rank 1 that makes a mean of so many bits."""
    clean = 1 / math.log(2)
    return (bits - clean) / (math.log2(shape.size) - clean)


LEAKS = {
    "exponential_2.5_bits": lambda s, g: exponential_ranks(s, g, 2.5),
    "all_a_little_2.5_bits": lambda s, g: shifted_ranks(s, g, 0.658),
    "few_outright_2.5_bits": lambda s, g: mixed_ranks(s, g, mixed_share(s, 2.5)),
    "few_at_15_bits_2.5_bits": lambda s, g: few_well_known(s, g, 0.078, 83),
    "one_at_rank_1": one_known,
}


def exposure(shape, generator, planted):
    held_out = canaries(shape, shape.uniform(generator), planted=False)
    base = canaries(shape, shape.uniform(generator), planted=True)
    return ExposureReport(
        model_digest="m",
        base_model_digest="b",
        canary_set_digest="c",
        space_size=shape.size,
        scoring="sum",
        setting="as_detected",
        exact=True,
        canaries=canaries(shape, planted, planted=True) + held_out,
        base_canaries=base + held_out,
        planted_found=shape.num * shape.insertions,
        planted_expected=shape.num * shape.insertions,
        num_token_forwards=1,
        drawn=True,
        measured_at=NOW,
    )


def _without_curve(signal):
    """Leave out the ROC curve, which decides nothing and takes time to look through."""
    return signal.model_copy(update={"roc_fpr": (), "roc_tpr": ()})


def membership(generator, shift):
    """Eleven attacks whose scores are correlated, as those of one model are."""
    settings = RocSettings(num_resamples=2)  # the gate reads no area
    common = generator.normal(size=(2, NUM_RECORDS))
    signals = []
    for name in NAMES:
        own = generator.normal(size=(2, NUM_RECORDS))
        members, others = 0.8 * common + 0.6 * own
        found = membership_signal(name, members + shift, others, settings=settings)
        signals.append(_without_curve(found))
    blind = membership_signal(
        "blind", *generator.normal(size=(2, NUM_RECORDS)), settings=settings, fold=False
    )
    blind = _without_curve(blind)
    return MembershipReport(
        model_digest="m",
        base_model_digest="b",
        num_members=NUM_RECORDS,
        num_non_members=NUM_RECORDS,
        signals=tuple(signals),
        blind=BlindSignal(**dict(blind), p_value=generator.random()),
        shadows=ShadowReport(
            num_models=4, num_records=NUM_RECORDS, effect=0.1, model_effect=0.1
        ),
        measured_at=NOW,
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
        measured_at=NOW,
    )


def drawn(generator, shift):
    """Membership, and the losses of model and champion on the same records."""
    difficulty = generator.normal(0, 0.5, 200)
    found = membership(generator, shift)
    return found, *(utility(generator, name, difficulty) for name in ("m", "old"))


def clean_draws(num_runs, *, seed=1):
    """Membership and losses of so many models whose members are not found."""
    generator = np.random.default_rng(seed)
    return [drawn(generator, 0.0) for _ in range(num_runs)]


def evidence(shape, generator, planted, others):
    report = exposure(shape, generator, planted)
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
            notion="record",
            relation="add_or_remove_one",
            spent_epsilon=8.0,
            budget_epsilon=8.0,
            delta=1e-6,
        ),
        audits=audit_canaries(report, [AUDITED]),
        step_audits=(STEPS_AUDITED,),
        files=FILES,
        detection=DETECTION,
        planned_for=POLICY.reference,
        origin=OriginEvidence(digest="d", signer="k", is_verified=True, faults=()),
        attempts=AttemptsEvidence(
            data_set="d", trainings=1, evaluations=1, decisions=1
        ),
        measured_at=NOW,
        decided_at=NOW,
    )


_KEPT = {
    "dptune.gates.utility.paired_bootstrap_upper": functools.cache(
        paired_bootstrap_upper
    ),
    "dptune.audits.canary_audit.guess_tail": functools.cache(guess_tail),
    "dptune.audits.canary_audit.hit_tail": functools.cache(hit_tail),
    "dptune.gates.decision.canonical_digest": lambda report: "e",
}


@contextlib.contextmanager
def figured_once():
    """Work out once what follows from the same numbers in many runs.

    Draws are used again with other canaries, so that a bootstrap of the same losses
    comes again; tails are of counts, of which there are few. Evidence is not hashed: a
    decision names its hash, and no criterion reads it.
    """
    with contextlib.ExitStack() as stack:
        for name, kept in _KEPT.items():
            stack.enter_context(mock.patch(name, kept))
        yield


@figured_once()
def outcomes(shape, draw_planted, draws, *, seed=0):
    """Shares of outcomes, and the mean exposure of all planted canaries."""
    generator = np.random.default_rng(seed)
    found, means = collections.Counter(), []
    for others in draws:
        planted = draw_planted(shape, generator)
        means.append(np.log2(shape.size / planted).mean())
        given = evidence(shape, generator, planted, others)
        found[decide(given, POLICY).outcome.value] += 1
    return {name: count / len(draws) for name, count in found.items()}, np.mean(means)
