"""EW-FT: noise multipliers that fall from epoch to epoch (EWPBA).

| symbol | argument |
|---|---|
| sigma_beg | `center`: the constant multiplier of a smaller budget, eps - 1 |
| sigma_fir | `last`: the smallest multiplier, that of the last epoch |
| E, S | `num_epochs`, `step_distance` |

Built from the last epoch to the first, the multiplier rises by

    Add = 4 (sigma_beg - sigma_fir) / ((E - 1) (S + 1))

while the epoch number is below E / 2 - 1, and by S Add from there on, so that sigma_beg
lies near the middle of the list.

**Formal guarantee**: none. The multipliers are chosen by a paper's accountant; what
they cost is for the ledger to say. For SST-2 at a claimed epsilon of 8 (delta 1e-5, 3
epochs of batches of 32) the list is (.462, .416, .370), and a server that sees all of
it has epsilon 70.7; DP-Forward's constant at the same claim, .391, has 76.4.

References:
    Zhang et al. (2026), "EW-FT", Sci China Inf Sci 69 (4) 142106, algorithm 1 and
    equations 9 and 10.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

from dp_accounting import DpEvent, PoissonSampledDpEvent
from dp_accounting.dp_event import (
    ComposedDpEvent,
    GaussianDpEvent,
    SelfComposedDpEvent,
)

from dptune.accounting.accountants import epsilon
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation

Multipliers = tuple[float, ...]
Cost = Callable[[Sequence[float]], float]

_LARGEST = 50.0
_TOLERANCE = 1e-6
_EXAMPLE_EPSILON = 8.0


def epoch_multipliers(
    *, last: float, center: float, num_epochs: int, step_distance: float
) -> Multipliers:
    """Return the list of algorithm 1, lines 16 to 34: it falls from epoch to epoch.

    Args:
        last: multiplier of the last epoch, at most `center`.
        center: see the table.
        num_epochs: at least 1; one epoch has `last` alone.
        step_distance: S, above 0.

    >>> epoch_multipliers(last=1.0, center=2.0, num_epochs=5, step_distance=1.0)
    (3.0, 2.5, 2.0, 1.5, 1.0)
    """
    if num_epochs < 1 or step_distance <= 0 or not 0 < last <= center:
        raise ConfigError(
            "EWPBA needs num_epochs >= 1, step_distance > 0 and 0 < last <= center, "
            f"got {num_epochs}, {step_distance}, {last} and {center}."
        )
    if num_epochs == 1:
        return (last,)
    add = 4 * (center - last) / ((num_epochs - 1) * (step_distance + 1))
    rises = (
        add if epoch < num_epochs / 2 - 1 else step_distance * add
        for epoch in range(1, num_epochs)
    )
    return tuple(accumulate(rises, initial=last))[::-1]


def allocate(
    cost: Cost, *, target_epsilon: float, num_epochs: int, step_distance: float
) -> Multipliers:
    """Run algorithm 1: two bisections on the epsilon of a list of multipliers.

    Args:
        cost: epsilon of a list with a multiplier for each epoch; falls in each.
        target_epsilon: above 1, since eps' = eps - 1 has no multiplier below.
        num_epochs: E.
        step_distance: S.

    Returns:
        Multipliers in the order of the epochs, whose cost is at most the target.

    Raises:
        ConfigError: the target is at most 1, or cannot be met.

    >>> multipliers = allocate(
    ...     lambda sigmas: sum(1 / sigma for sigma in sigmas),
    ...     target_epsilon=3.0,
    ...     num_epochs=3,
    ...     step_distance=1.0,
    ... )
    >>> [round(sigma, 2) for sigma in multipliers]
    [2.48, 1.5, 0.52]
    """
    if not target_epsilon > 1:
        raise ConfigError(
            "EWPBA needs a target epsilon above 1, because it begins at epsilon - 1, "
            f"got {target_epsilon:g}. Use mode sound, which scales one shape."
        )
    center = _smallest(
        lambda sigma: cost((sigma,) * num_epochs), target_epsilon - 1, high=_LARGEST
    )
    if num_epochs == 1:
        return (_smallest(lambda s: cost((s,)), target_epsilon, high=center),)

    def shaped(last: float) -> Multipliers:
        return epoch_multipliers(
            last=last,
            center=center,
            num_epochs=num_epochs,
            step_distance=step_distance,
        )

    return shaped(_smallest(lambda s: cost(shaped(s)), target_epsilon, high=center))


def epoch_shape(
    cost: Cost, *, target_epsilon: float, num_epochs: int, step_distance: float
) -> Multipliers:
    """Return the list as multiples of its last entry, for a sound scalar to scale.

    At targets where algorithm 1 has no answer, the shape is that of the paper's epsilon
    of 8: at most 1, and so little above that no multiplier reaches epsilon - 1.
    """
    shape = partial(allocate, cost, num_epochs=num_epochs, step_distance=step_distance)
    try:
        found = shape(target_epsilon=target_epsilon)
    except ConfigError:
        found = shape(target_epsilon=_EXAMPLE_EPSILON)
    return tuple(sigma / found[-1] for sigma in found)


def sampled_epsilon(
    multipliers: Sequence[float], *, sample_rate: float, num_steps: int, delta: float
) -> float:
    """Return the paper's figure: an equal share of Poisson-sampled steps per epoch.

    Nominal only: the server of the local notion sees who takes part, so that there is
    no sampling to gain from, and a sequence is replaced, not added.

    Args:
        multipliers: one for each epoch.
        sample_rate: P = B / |D|.
        num_steps: Com, of all epochs.
        delta: in (0, 1).

    References:
        Algorithm 3; the accountant is the project's PLD in the place of PRV, which
        agrees with it to .01.
    """
    each = max(1, num_steps // len(multipliers))
    event = ComposedDpEvent([_steps(sample_rate, s, each) for s in multipliers])
    add_or_remove = NeighboringRelation.ADD_OR_REMOVE_ONE
    return epsilon(event, delta=delta, relation=add_or_remove)


def _steps(sample_rate: float, multiplier: float, count: int) -> DpEvent:
    """Describe the steps of one epoch as the paper accounts for them."""
    gaussian = GaussianDpEvent(multiplier)
    return SelfComposedDpEvent(PoissonSampledDpEvent(sample_rate, gaussian), count)


def _smallest(cost: Callable[[float], float], target: float, *, high: float) -> float:
    """Bisect for the smallest multiplier that costs at most the target."""
    if cost(high) > target:
        raise ConfigError(
            f"no noise multiplier up to {high:g} reaches epsilon {target:g}. Use fewer "
            "epochs, a larger target or mode sound."
        )
    low = 0.0
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        if cost(middle) > target:
            low = middle
        else:
            high = middle
    return high
