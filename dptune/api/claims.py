"""From noise to a certificate, and from a target to noise; no torch is loaded."""

from dp_accounting import dp_event as dpe

from dptune.accounting.calibration import calibrate_noise_multiplier
from dptune.accounting.certificates import Certificate, issue_certificate
from dptune.api.arguments import Arguments
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
        PrivacyError: two accountants contradict each other, or the numbers are beyond
            what double precision can account.

    >>> claim = account(
    ...     noise_multiplier=1.0, sample_rate=0.01, num_steps=1000, delta=1e-5
    ... )
    >>> round(claim.epsilon, 2), claim.label
    (1.83, 'record (add or remove one record)')
    """
    given = Arguments()
    noise_multiplier = given.number("noise_multiplier", noise_multiplier, least=0)
    steps = _Steps(given, sample_rate=sample_rate, num_steps=num_steps)
    delta = given.number("delta", delta, above=0, below=1)
    relation = given.choice("relation", relation, list(NeighboringRelation))
    unit = given.choice("privacy_unit", privacy_unit, list(PrivacyUnit))
    given.check()
    return issue_certificate(
        steps.event(noise_multiplier),
        notion=Notion.RECORD,
        relation=NeighboringRelation(relation),
        privacy_unit=PrivacyUnit(unit),
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
    given = Arguments()
    target_epsilon = given.number("target_epsilon", target_epsilon, above=0)
    target_delta = given.number("target_delta", target_delta, above=0, below=1)
    steps = _Steps(given, sample_rate=sample_rate, num_steps=num_steps, least=1)
    relation = given.choice("relation", relation, list(NeighboringRelation))
    given.check()
    return calibrate_noise_multiplier(
        steps.event,
        budget=PrivacyBudget(target_epsilon=target_epsilon, target_delta=target_delta),
        relation=NeighboringRelation(relation),
    )


class _Steps:
    """Poisson-sampled steps, whose noise is still to be named."""

    def __init__(
        self,
        given: Arguments,
        *,
        sample_rate: object,
        num_steps: object,
        least: int = 0,
    ) -> None:
        self._rate = given.number("sample_rate", sample_rate, above=0, most=1)
        self._count = given.whole("num_steps", num_steps, least=least)

    def event(self, noise_multiplier: float) -> dpe.DpEvent:
        """Describe the steps, as `GradientPlan.dp_event` does."""
        if self._count == 0:
            return dpe.NoOpDpEvent()
        if noise_multiplier == 0:
            return dpe.NonPrivateDpEvent()
        noisy = dpe.GaussianDpEvent(noise_multiplier)
        step = dpe.PoissonSampledDpEvent(self._rate, noisy)
        return dpe.SelfComposedDpEvent(step, self._count)
