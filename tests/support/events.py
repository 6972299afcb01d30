"""Events that tests account."""

import dp_accounting
from dp_accounting import DpEvent

from dptune.accounting.events import check_event


def poisson_gaussian_event(
    *, sample_rate: float, noise_multiplier: float, num_steps: int
) -> DpEvent:
    """Describe `num_steps` steps of DP-SGD with Poisson sampling."""
    if num_steps == 0:
        return dp_accounting.NoOpDpEvent()
    step = dp_accounting.PoissonSampledDpEvent(
        sampling_probability=sample_rate,
        event=dp_accounting.GaussianDpEvent(noise_multiplier=noise_multiplier),
    )
    return check_event(dp_accounting.SelfComposedDpEvent(event=step, count=num_steps))
