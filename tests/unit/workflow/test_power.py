"""What the gate will be able to decide, known before training."""

import pytest

from dptune.attacks.canaries import CanarySpec
from dptune.attacks.settings import AttackSettings
from dptune.gates.policy import GatePolicy
from dptune.workflow.power import (
    clean_pass_probability,
    leak_block_probability,
    planned_power,
)
from tests.unit.reports import samples

POLICY = GatePolicy(notion="record", max_epsilon=8.0, max_delta=1e-5)


class Config:
    """The parts of a configuration that power is computed from."""

    def __init__(self, **changes):
        spec = {"num_planted": 120, "num_held_out": 120} | changes
        self.canaries = CanarySpec(**spec)
        self.gate = POLICY.model_copy(update={"min_audit_capacity": 3.0})
        self.attack = AttackSettings(num_members=1000)


def lines(config, **units):
    found = planned_power(
        config, samples.run_plan(), units_by_split={"train": 900, "test": 600} | units
    )
    return found, {line.name: line for line in found.lines}


@pytest.mark.parametrize(("num", "share"), [(50, 0.878), (100, 0.998)])
def test_clean_pass_probability_is_that_of_the_methods_page(num, share):
    assert clean_pass_probability(POLICY, num) == pytest.approx(share, abs=0.004)
    assert clean_pass_probability(POLICY, 0) == 0.0


def test_leak_of_four_bits_is_blocked_more_often_with_more_canaries():
    chances = [leak_block_probability(POLICY, num) for num in (0, 5, 20, 50)]
    assert chances == sorted(chances)
    assert (chances[0], chances[-1] > 0.97) == (0.0, True)


def test_members_are_at_most_as_many_as_units():
    config = Config()
    _, told = lines(config, train=700)
    assert (told["members"].planned, told["non-members"].planned) == (700, 600)
    assert "one of each unit" in told["members"].meaning
    _, told = lines(config, train=100_000)
    assert told["members"].planned == config.attack.num_members


def test_power_names_what_is_too_little_before_training():
    found, told = lines(Config())
    assert {name for name, line in told.items() if not line.enough} == set()
    assert found.enough
    assert 3.0 < told["audit capacity (epsilon)"].planned < 8.0
    assert "3000 steps of 8 records" in told["shadow models"].meaning
    config = Config(num_planted=10)
    config.attack = AttackSettings(shadows=None)
    found, told = lines(config, test=300)
    assert not found.enough
    assert {name for name, line in told.items() if not line.enough} >= {
        "planted canaries",
        "chance that a clean model passes",
        "non-members",
        "shadow models",
    }
