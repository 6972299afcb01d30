"""What a run's evidence will be able to show, from public numbers, before it trains."""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySpec
from dptune.attacks.settings import AttackSettings
from dptune.audits.canary_audit import AuditedClaim, planned_capacity
from dptune.config import TrainConfig
from dptune.gates.leakage import needed_candidates
from dptune.gates.null_law import largest_mean_exposure
from dptune.gates.policy import GatePolicy
from dptune.planning import RunPlan
from dptune.privacy import Mode
from dptune.reports.formatting import number
from dptune.results import AuditPower, PowerLine
from dptune.workflow.expectation import asked_claims, claim_doubt

_LIKELY: Final = 0.9
_CLEAN_BITS: Final = 1.0 / math.log(2.0)
_LEAK_BITS: Final = 4.0
_NUM_RUNS: Final = 2000
_MOST_SAMPLED: Final = 64_000
_PLANTABLE: Final = (20, 30, 40, 50, 60, 80, 100, 130, 160, 200, 250, 300)
"""Numbers of canaries that a warning may advise to plant."""

Floats = NDArray[np.float64]


def planned_power(
    config: TrainConfig,
    plan: RunPlan,
    ledger: PrivacyLedger,
    *,
    units_by_split: Mapping[str, int],
    lacks_grant: str = "",
) -> AuditPower:
    """Hold what a configuration plans against what its policy will ask for.

    Args:
        config: canaries, attacks and policy.
        plan: of the run.
        ledger: that it leaves if all goes as planned.
        units_by_split: of the corpus; of each one record is attacked.
        lacks_grant: what nobody granted of the budget that the policy asks for.
    """
    return AuditPower(
        policy=f"{config.gate.name}, version {config.gate.version}",
        lines=(
            *_canary_lines(config),
            *_membership_lines(config, units_by_split),
            *_claim_lines(config, plan, ledger),
            *_engine_lines(config),
            *_budget_lines(config.gate, lacks_grant),
        ),
    )


def clean_pass_probability(
    policy: GatePolicy, spec: CanarySpec, attack: AttackSettings
) -> float:
    """Chance that a model that memorized nothing passes what judges ranks.

    That is assurance, controls, base model, and memorization counted from both ends.
    Together they have no law in closed form: runs are drawn with public coins,
    exposures taken as exponential. Where ranks are intervals, every rank in them must
    pass, as at the gate. None can pass with secrets that nobody drew, ranks that are
    not counted, or means per token.

    Args:
        policy: with its bound and levels.
        spec: how many canaries, and among how many candidates.
        attack: how they will be ranked.
    """
    is_counted = spec.space_size <= attack.max_candidates and attack.scoring == "sum"
    if spec.num_planted == 0 or spec.fixed or not is_counted:
        return 0.0
    return _share_of_clean_runs(
        policy,
        spec.num_planted,
        spec.num_held_out,
        spec.space_size,
        attack.sampled_candidates,
    )


def canary_doubt(config: TrainConfig) -> str:
    """Warn of canaries by which a clean model often passes no gate; empty if it will.

    Of recipes without noise, and in the paper's mode, nothing is said.

    Args:
        config: of the run.
    """
    spec, policy = config.canaries, config.gate
    if not _may_pass(config) or not policy.require_canaries:
        return ""
    if spec.num_planted < policy.min_canaries:
        return (
            f"canaries.num_planted is {spec.num_planted}, and gate {policy.name} asks "
            f"for {policy.min_canaries}: it will be inconclusive."
        )
    chance = clean_pass_probability(policy, spec, config.attack)
    if chance >= _LIKELY:
        return ""
    return (
        f"gate {policy.name} will pass a model that memorized nothing with probability "
        f"{chance:.2f} by {spec.num_planted} canaries as their ranks are measured"
        f"{_advice(config)}."
    )


def members_doubt(config: TrainConfig, units_by_split: Mapping[str, int]) -> str:
    """Warn of fewer units to attack than the gate asks for; empty if they will do.

    Of recipes without noise, and in the paper's mode, nothing is said.

    Args:
        config: of the run.
        units_by_split: of the corpus; of each one record is attacked.
    """
    if not _may_pass(config):
        return ""
    sides = [
        line
        for line in _membership_lines(config, units_by_split)
        if line.name in {"members", "non-members"} and not line.enough
    ]
    if not sides:
        return ""
    found = " and ".join(f"{line.planned:g} {line.name}" for line in sides)
    return (
        f"there are {found} to attack, and gate {config.gate.name} asks for "
        f"{config.gate.min_membership_records}: it will be inconclusive. Give more "
        "data, or another data.splits.test."
    )


def _may_pass(config: TrainConfig) -> bool:
    """Whether a run is one of which a pass is expected."""
    return config.recipe.private and config.privacy.mode is Mode.SOUND


def enough_planted(
    policy: GatePolicy, spec: CanarySpec, attack: AttackSettings
) -> int | None:
    """Fewest of some numbers of planted canaries that will do; None if none will."""
    least = max(spec.num_planted + 1, policy.min_canaries)
    for num in (n for n in _PLANTABLE if n >= least):
        more = spec.model_copy(update={"num_planted": num})
        if clean_pass_probability(policy, more, attack) >= _LIKELY:
            return num
    return None


def enough_sampled(
    policy: GatePolicy, spec: CanarySpec, attack: AttackSettings
) -> int | None:
    """Fewest candidates to compare with, doubled from those planned, that will do.

    Returns:
        None where ranks are counted, or even counted ones would not do.
    """
    num, most = attack.sampled_candidates, min(_MOST_SAMPLED, spec.space_size)
    counted = attack.model_copy(update={"sampled_candidates": None})
    if clean_pass_probability(policy, spec, counted) < _LIKELY:
        return None
    while num and (num := 2 * num) <= most:
        more = attack.model_copy(update={"sampled_candidates": num})
        if clean_pass_probability(policy, spec, more) >= _LIKELY:
            return num
    return None


@functools.cache
def _share_of_clean_runs(
    policy: GatePolicy,
    num: int,
    num_held_out: int,
    space_size: int,
    num_sampled: int | None,
) -> float:
    """Count drawn runs of which every criterion of ranks passes."""
    level = policy.assurance_level
    if num_sampled:
        from dptune.attacks.large_spaces import (  # noqa: PLC0415 - transformers
            CONFIDENCE,
        )

        level -= 1 - CONFIDENCE
    if level <= 0:
        return 0.0
    coins = np.random.default_rng(0)
    (near, far), (first, last), (base, _) = (
        _clean_shares(coins, each, num + num_held_out, num_sampled)
        for each in (num, num_held_out, num)
    )
    from_last = np.maximum(1 - far, 1 / space_size)
    leaks = policy.memorization_level / 2
    most_bits = math.log2(space_size)
    passes = policy.assurance_bound_bits >= largest_mean_exposure(
        -np.log2(near), most_bits=most_bits, level=level
    )
    passes &= _fisher(base) > policy.base_level
    for early in (near, from_last):
        small = -np.log2(early).mean(axis=1) < policy.effect_size_bits
        passes &= small | (2 * _fisher(early) > leaks)
    if num_held_out:
        steps = np.arange(num_held_out + 1) / num_held_out
        apart = np.maximum((steps[1:] - first).max(1), (last - steps[:-1]).max(1))
        passes &= apart < stats.kstwo.isf(policy.control_level, num_held_out)
    return float(passes.mean())


def _clean_shares(
    coins: np.random.Generator, num: int, num_secrets: int, num_sampled: int | None
) -> tuple[Floats, Floats]:
    """Draw ranks of clean runs as shares, `(runs, num)`: near and far ends, rising."""
    shares = np.sort(coins.random((_NUM_RUNS, num)))
    if not num_sampled:
        return shares, shares
    from dptune.attacks.large_spaces import interval_ends  # noqa: PLC0415 - see above

    gaps = np.diff(shares, prepend=0.0, append=1.0)
    before = coins.multinomial(num_sampled, gaps)[:, :-1].cumsum(axis=1)
    near, far = (
        np.where(np.isnan(ends[before]), shares, ends[before])
        for ends in interval_ends(num_sampled, num_secrets=num_secrets)
    )
    return near, far


def _fisher(shares: Floats) -> Floats:
    """Fisher's p-value of each run against the uniform law, `(runs,)`."""
    statistic = -2 * np.log(shares).sum(axis=1)
    return np.asarray(stats.chi2.sf(statistic, 2 * shares.shape[1]))


def leak_block_probability(policy: GatePolicy, num_canaries: int) -> float:
    """Chance that a mean exposure of four bits is significant and large enough."""
    if num_canaries == 0:
        return 0.0
    freedom = 2 * num_canaries
    level = policy.memorization_level / 2
    significant = stats.chi2.isf(level, freedom) * _CLEAN_BITS
    needed = max(significant, freedom * policy.effect_size_bits)
    return float(stats.chi2.sf(needed / _LEAK_BITS, freedom))


def _canary_lines(config: TrainConfig) -> Iterator[PowerLine]:
    """Canaries, controls, candidates, and what they can tell."""
    spec, policy = config.canaries, config.gate
    num = spec.num_planted
    num_drawn = 0 if spec.fixed else num
    yield _line("planted canaries", num, policy.min_canaries, "fewer are inconclusive")
    yield _line(
        "held-out canaries",
        spec.num_held_out,
        policy.min_held_out,
        "controls of the same law",
    )
    yield _line(
        "candidates of a secret",
        spec.space_size,
        needed_candidates(policy, num),
        "a smaller space hides a single leak",
    )
    yield _line(
        "chance that a clean model passes",
        passes := clean_pass_probability(policy, spec, config.attack),
        _LIKELY,
        f"its mean exposure is shown to be below {policy.assurance_bound_bits:g} bits, "
        f"and ranks look clean{_advice(config) * (passes < _LIKELY)}",
    )
    yield _line(
        "chance that a leak of 4 bits blocks",
        leak_block_probability(policy, num_drawn),
        _LIKELY,
        "it is significant, and larger than the policy's size of effect",
    )


def _advice(config: TrainConfig) -> str:
    """Say with how many candidates, or canaries, a clean model would pass."""
    policy, spec, attack = config.gate, config.canaries, config.attack
    if num := enough_sampled(policy, spec, attack):
        return f"; attack.sampled_candidates: {num} would do"
    if num := enough_planted(policy, spec, attack):
        return f"; canaries.num_planted: {num} would do"
    counted = attack.model_copy(update={"sampled_candidates": None})
    if attack.sampled_candidates and (num := enough_planted(policy, spec, counted)):
        return (
            f"; canaries.num_planted: {num} would do with exact ranks "
            "(attack.sampled_candidates: null)"
        )
    return ""


def _membership_lines(
    config: TrainConfig, units_by_split: Mapping[str, int]
) -> Iterator[PowerLine]:
    """Records to attack on both sides, one of every unit."""
    attacked = 0
    for name, split in (("members", "train"), ("non-members", "test")):
        planned = min(config.attack.num_members, units_by_split.get(split, 0))
        attacked += planned
        yield _line(
            name,
            planned,
            config.gate.min_membership_records,
            f"records of the {split} split to attack, one of each unit",
        )
    shadows = config.attack.shadows
    steps = shadows.num_models * shadows.num_steps(attacked) if shadows else 0
    size = shadows.batch_size if shadows else 0
    yield _line(
        "shadow models",
        shadows.num_models if shadows else 0,
        config.gate.min_shadow_models,
        f"for the strongest attack: {steps} steps of {size} records together, without "
        "noise and outside epsilon",
    )


def _claim_lines(
    config: TrainConfig, plan: RunPlan, ledger: PrivacyLedger
) -> Iterator[PowerLine]:
    """The claim that the policy asks for, and what an audit of it could refute."""
    policy, spec = config.gate, config.canaries
    asked = (policy.notion, policy.neighboring_relation)
    words = f"{policy.notion}, {policy.neighboring_relation.replace('_', ' ')}"
    wished = asked_claims(config, ledger)
    doubt = next(filter(None, (claim_doubt(config, claim) for claim in wished)), "")
    meaning = (
        f"{words}: at most this, at delta {number(policy.max_delta)} or less; planned "
        f"{number(plan.target_delta)}"
    )
    yield PowerLine(
        name="predicted epsilon",
        planned=max(claim.epsilon for claim in wished),
        needed=policy.max_epsilon,
        enough=not doubt,
        meaning=f"{meaning}; {doubt}" if doubt else meaning,
    )
    capacity = planned_capacity(
        AuditedClaim(notion=asked[0], relation=asked[1], delta=plan.target_delta),
        num_planted=0 if spec.fixed else spec.num_planted,
        num_held_out=spec.num_held_out,
        space_size=spec.space_size,
        insertions=spec.insertions,
        appended=spec.placement == "appended",
        is_counted=spec.space_size <= config.attack.max_candidates,
    )
    wanted = policy.min_audit_capacity
    yield PowerLine(
        name="audit capacity (epsilon)",
        planned=capacity,
        needed=wanted,
        enough=wanted is None or capacity >= wanted,
        meaning=f"{words}: the largest false claim that these canaries could refute, "
        "if every secret were known to the model",
    )


def _engine_lines(config: TrainConfig) -> Iterator[PowerLine]:
    """Whether anybody looks at what a stage with noise does."""
    if config.gate.require_step_audit and config.recipe.private:
        meaning = "of every stage with noise; without any the gate is inconclusive"
        yield _line("steps trained again", config.audit.num_steps, 1, meaning)


def _budget_lines(policy: GatePolicy, lacks_grant: str) -> Iterator[PowerLine]:
    """Whether the data set has the budget that the policy asks for."""
    if policy.require_dataset_budget:
        meaning = lacks_grant or "a grant that all runs on the data draw on"
        yield _line("budget of the data set", float(not lacks_grant), 1, meaning)


def _line(name: str, planned: float, needed: float, meaning: str) -> PowerLine:
    """A demand that more of is better."""
    return PowerLine(
        name=name,
        planned=float(planned),
        needed=float(needed),
        enough=planned >= needed,
        meaning=meaning,
    )
