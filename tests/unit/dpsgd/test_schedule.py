import dp_accounting
import pytest

from dptune.dpsgd.schedule import ConstantNoise, schedule_event


class Rising:
    def noise_multiplier(self, step):
        return 1.0 if step < 3 else 2.0


def gaussian_steps(sigma, count):
    step = dp_accounting.PoissonSampledDpEvent(
        0.1, dp_accounting.GaussianDpEvent(sigma)
    )
    return dp_accounting.SelfComposedDpEvent(step, count)


def poisson(sigma, rate=0.1):
    return dp_accounting.PoissonSampledDpEvent(
        rate, dp_accounting.GaussianDpEvent(sigma)
    )


def event(schedule, first, count):
    return schedule_event(
        schedule, step_event=poisson, first_step=first, num_steps=count
    )


def test_constant_noise_is_one_self_composed_event():
    assert event(ConstantNoise(1.5), 7, 4) == gaussian_steps(1.5, 4)


def test_runs_of_equal_multipliers_are_composed():
    both = [gaussian_steps(1.0, 2), gaussian_steps(2.0, 3)]
    assert event(Rising(), 1, 5) == dp_accounting.ComposedDpEvent(both)
    assert event(Rising(), 3, 2) == gaussian_steps(2.0, 2)


def test_no_steps_cost_nothing_and_no_noise_costs_everything():
    assert event(ConstantNoise(1.0), 0, 0) == dp_accounting.NoOpDpEvent()
    assert event(ConstantNoise(0.0), 0, 9) == dp_accounting.NonPrivateDpEvent()


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_accountants_accept_the_event(rate):
    described = schedule_event(
        ConstantNoise(1.0),
        step_event=lambda sigma: poisson(sigma, rate),
        first_step=0,
        num_steps=3,
    )
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(described)
    assert 0 < accountant.get_epsilon(1e-5) < 20
