"""What a run's evidence will be able to show, from public numbers, before it trains."""

import functools
import math
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from scipy import stats

from dptune.attacks.canaries import CanarySpec
from dptune.attacks.large_spaces import CONFIDENCE, nearest_shares
from dptune.attacks.settings import AttackSettings
from dptune.audits.canary_audit import AuditedClaim, planned_capacity
from dptune.config import TrainConfig
from dptune.gates.leakage import needed_candidates
from dptune.gates.null_law import largest_mean_exposure
from dptune.gates.policy import GatePolicy
from dptune.planning import RunPlan
from dptune.reports.formatting import number
from dptune.results import AuditPower, PowerLine

_LIKELY: Final = 0.9
_CLEAN_BITS: Final = 1.0 / math.log(2.0)
_LEAK_BITS: Final = 4.0
_NUM_RUNS: Final = 2000


def planned_power(
    config: TrainConfig, plan: RunPlan, *, units_by_split: Mapping[str, int]
) -> AuditPower:
    """Hold what a configuration plans against what its policy will ask for.

    Args:
        config: canaries, attacks and policy.
        plan: predicted epsilon.
        units_by_split: of the corpus; of each one record is attacked.
    """
    return AuditPower(
        policy=f"{config.gate.name}, version {config.gate.version}",
        lines=(
            *_canary_lines(config),
            *_membership_lines(config, units_by_split),
            *_claim_lines(config, plan),
        ),
    )


def clean_pass_probability(
    policy: GatePolicy, spec: CanarySpec, attack: AttackSettings
) -> float:
    """Chance that the assurance bound of a model that memorized nothing is met.

    The bound has no law in closed form: runs are drawn with public coins, exposures
    taken as exponential. Where ranks are intervals, by their near ends. None can be
    met with secrets that nobody drew, ranks that are not counted, or means per token.

    Args:
        policy: with the bound and its level.
        spec: how many canaries, and among how many candidates.
        attack: how they will be ranked.
    """
    is_counted = spec.space_size <= attack.max_candidates and attack.scoring == "sum"
    if spec.num_planted == 0 or spec.fixed or not is_counted:
        return 0.0
    return _share_of_clean_runs(
        policy.assurance_level,
        policy.assurance_bound_bits,
        spec.num_planted,
        spec.num_planted + spec.num_held_out,
        attack.sampled_candidates,
    )


@functools.cache
def _share_of_clean_runs(
    level: float, most_bits: float, num: int, num_secrets: int, num_sampled: int | None
) -> float:
    """Count drawn runs whose mean exposure is shown to be at most `most_bits`."""
    coins = np.random.default_rng(0)
    shares = np.sort(coins.random((_NUM_RUNS, num)))
    if num_sampled:
        level -= 1 - CONFIDENCE
        gaps = np.diff(shares, prepend=0.0, append=1.0)
        before = coins.multinomial(num_sampled, gaps)[:, :-1].cumsum(axis=1)
        near = nearest_shares(num_sampled, num_secrets=num_secrets)[before]
        shares = np.where(np.isnan(near), shares, near)
    if level <= 0:
        return 0.0
    upper = largest_mean_exposure(-np.log2(shares), level=level)
    return float((upper <= most_bits).mean())


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
        clean_pass_probability(policy, spec, config.attack),
        _LIKELY,
        f"its mean exposure is shown to be below {policy.assurance_bound_bits:g} bits",
    )
    yield _line(
        "chance that a leak of 4 bits blocks",
        leak_block_probability(policy, num_drawn),
        _LIKELY,
        "it is significant, and larger than the policy's size of effect",
    )


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


def _claim_lines(config: TrainConfig, plan: RunPlan) -> Iterator[PowerLine]:
    """The claim that the policy asks for, and what an audit of it could refute."""
    policy, spec = config.gate, config.canaries
    asked = (policy.notion, policy.neighboring_relation)
    same = (plan.notion, plan.relation) == asked
    claim = f"{policy.notion}, {policy.neighboring_relation.replace('_', ' ')}"
    if same:
        yield PowerLine(
            name="predicted epsilon",
            planned=plan.epsilon,
            needed=policy.max_epsilon,
            enough=plan.epsilon <= policy.max_epsilon
            and plan.target_delta <= policy.max_delta,
            meaning=f"{claim}: at most this, at delta {number(policy.max_delta)} or "
            f"less; planned {number(plan.target_delta)}",
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
        meaning=f"{claim}: the largest false claim that these canaries could refute, "
        "if every secret were known to the model",
    )


def _line(name: str, planned: float, needed: float, meaning: str) -> PowerLine:
    """A demand that more of is better."""
    return PowerLine(
        name=name,
        planned=float(planned),
        needed=float(needed),
        enough=planned >= needed,
        meaning=meaning,
    )
