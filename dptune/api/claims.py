"""From noise to a certificate, and from a target to noise; no torch is loaded."""

from dp_accounting import dp_event as dpe

from dptune.accounting.calibration import calibrate_noise_multiplier
from dptune.accounting.certificates import Certificate, issue_certificate
from dptune.errors import ConfigError, Problem
from dptune.privacy import (
    NeighboringRelation,
    Notion,
    PrivacyBudget,
    PrivacyUnit,
)


def account(
    *,
    noise_multiplier: float,
    sample_rate: float,
    num_steps: int,
    delta: float,
    relation: NeighboringRelation | str = NeighboringRelation.ADD_OR_REMOVE_ONE,
    privacy_unit: PrivacyUnit | str = PrivacyUnit.RECORD,
) -> Certificate:
    """State what steps of DP-SGD guarantee: Poisson-sampled, clipped, noised.

    **Formal guarantee**: an upper bound, on which two accountants agree; the published
    one (dp_accounting's PLD) is the one of record. It is about a mechanism: whether a
    program is one, its own engine has to see to, as `make_private` and `train` do.

    | case | epsilon |
    |---|---|
    | `noise_multiplier` 0 | infinite |
    | `num_steps` 0 | 0 |

    Args:
        noise_multiplier: noise stddev / C under both relations, at least 0.
        sample_rate: chance in (0, 1] that a unit joins a step.
        num_steps: noisy updates, at least 0.
        delta: in (0, 1).
        relation: which data sets are neighbors.
        privacy_unit: what one neighbor changes, for the certificate's words.

    Raises:
        ConfigError: a number is out of range; all at once.
        PrivacyError: two accountants contradict each other.

    >>> claim = account(
    ...     noise_multiplier=1.0, sample_rate=0.01, num_steps=1000, delta=1e-5
    ... )
    >>> round(claim.epsilon, 2), claim.label
    (1.83, 'record (add or remove one record)')
    """
    _check(
        noise_multiplier=noise_multiplier, sample_rate=sample_rate, num_steps=num_steps
    )
    return issue_certificate(
        _steps(noise_multiplier, sample_rate=sample_rate, num_steps=num_steps),
        notion=Notion.RECORD,
        relation=NeighboringRelation(relation),
        privacy_unit=PrivacyUnit(privacy_unit),
        delta=delta,
    )


def calibrate(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    num_steps: int,
    relation: NeighboringRelation | str = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> float:
    """Find the noise multiplier whose steps cost 99 % to 99.8 % of a target.

    Args:
        target_epsilon: above 0.
        target_delta: in (0, 1); choose less than 1 / number of privacy units.
        sample_rate: chance in (0, 1] that a unit joins a step.
        num_steps: noisy updates, at least 1.
        relation: which data sets are neighbors.

    Returns:
        Noise stddev / C, at least 0.1.

    Raises:
        ConfigError: a number is out of range; all at once.
        InfeasibleBudgetError: no noise is enough; the message has the best epsilon.

    >>> noise = calibrate(
    ...     target_epsilon=3.0, target_delta=1e-5, sample_rate=0.01, num_steps=1000
    ... )
    >>> round(noise, 2)
    0.81
    """
    _check(noise_multiplier=1.0, sample_rate=sample_rate, num_steps=num_steps, least=1)
    return calibrate_noise_multiplier(
        lambda noise: _steps(noise, sample_rate=sample_rate, num_steps=num_steps),
        budget=PrivacyBudget(target_epsilon=target_epsilon, target_delta=target_delta),
        relation=NeighboringRelation(relation),
    )


def _steps(
    noise_multiplier: float, *, sample_rate: float, num_steps: int
) -> dpe.DpEvent:
    """Describe the steps, as `GradientPlan.dp_event` does."""
    if num_steps == 0:
        return dpe.NoOpDpEvent()
    if noise_multiplier == 0:
        return dpe.NonPrivateDpEvent()
    noisy = dpe.GaussianDpEvent(noise_multiplier)
    return dpe.SelfComposedDpEvent(
        dpe.PoissonSampledDpEvent(sample_rate, noisy), num_steps
    )


def _check(
    *, noise_multiplier: float, sample_rate: float, num_steps: int, least: int = 0
) -> None:
    """Report all numbers that are out of range."""
    spans = {
        "noise_multiplier": (0 <= noise_multiplier < float("inf"), "in [0, inf)"),
        "sample_rate": (0 < sample_rate <= 1, "in (0, 1]"),
        "num_steps": (num_steps >= least, f"at least {least}"),
    }
    given = {
        "noise_multiplier": noise_multiplier,
        "sample_rate": sample_rate,
        "num_steps": num_steps,
    }
    problems = [
        Problem(path=name, message=f"must be {span}, got {given[name]:g}.")
        for name, (is_fine, span) in spans.items()
        if not is_fine
    ]
    if problems:
        raise ConfigError(problems)
