"""A privacy filter: what runs may spend that are chosen for what earlier ones released.

This is fully adaptive composition over runs; within one, `adaptive` needs no filter.
The epsilon of a composition holds for mechanisms that were fixed before the first. Who
looks at what was released and then chooses rate, noise or steps needs a filter, which
bounds something that adds up whatever was chosen: Renyi divergences. No order of them
is the best for all that may come, and one that is chosen afterwards proves nothing, so
that this one weighs many at once, always the same.

**Theorem.** Before each mechanism let it be chosen in any way for what was released so
far, and let K_i(t) be the bound on ln E_P exp(c_i L) of the t-th one, c_i > 0, where L
is its loss ln P/Q. If in every outcome, with a_i = c_i + 1 and weights w_i that sum to
one, fixed before the first,

    sum_i w_i / g_i exp(c_i e - sum_t K_i(t)) >= 1 / delta,
    g_i = max over y >= 0 of (1 - exp(-y)) exp(-c_i y) = (1 - 1 / a_i)^c_i / a_i,

then all that was released is (e, delta)-DP.

*Proof*. With L(t) the loss of the first t, M(t) = sum_i w_i exp(c_i L(t) - sum_s<=t
K_i(s)) is a supermartingale under P, since the K_i of the next mechanism are known from
what was released; so E_P M <= 1 at the end. There, where y = L - e > 0,

    M = sum_i w_i exp(c_i e - sum K_i) exp(c_i y) >= (1 - exp(-y)) / delta

by the definition of g_i, so that delta(e) = E_P (1 - exp(e - L))+ <= delta E_P M.
Each direction of a relation is a use of its own, and so is a data set that has one unit
more, where batches are truncated. That a cap binds with chance below 1e-30 is not in
the moments but in delta: what was drawn is public, and so seldom is another mechanism.

References:
    Rogers, Roth, Ullman, Vadhan (2016), arXiv:1605.08294, filters. Feldman, Zrnic
    (2021), arXiv:2008.11193, theorem 3.1, and Lecuyer (2021), arXiv:2103.01379: Renyi
    filters of one order, as a supermartingale. Canonne, Kamath, Steinke (2020),
    arXiv:2004.00010, proposition 12: g_i. The mixture over orders is Robbins' (1970).
"""

import math
from typing import Final

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray
from scipy import optimize

from dptune.accounting.accountants import check_delta
from dptune.accounting.events import before_and_after, is_non_private
from dptune.accounting.pairs import log_sum_exp
from dptune.accounting.quadrature import QuadratureError, log_moments
from dptune.privacy import NeighboringRelation

_ORDERS: Final = 1 + np.geomspace(1.0, 128.0, 29)
"""Never to be changed: what was admitted under others would be no filter."""
_LOG_WEIGHTS: Final = (
    np.log(_ORDERS) - (_ORDERS - 1) * np.log1p(-1 / _ORDERS) - math.log(len(_ORDERS))
)
"""ln(w_i / g_i), with equal weights."""


def filtered_epsilon(
    event: DpEvent, *, delta: float, relation: NeighboringRelation
) -> float:
    """Compute what an event spends of a filter, as an epsilon.

    **Formal guarantee.** Let each mechanism be chosen in any way for what earlier ones
    released. If this stays at or below some epsilon *in every outcome*, all of them
    together are (epsilon, delta)-DP under `relation`. It says nothing of a history that
    nobody would have stopped.

    It is larger than the epsilon of the same mechanisms fixed in advance: of Gaussians
    and Poisson samples mostly by a fifth to two fifths, of batches that a cap may cut
    seldom by several times; and never below .06 at delta 1e-5.

    Args:
        event: all that ran, and what is to run.
        delta: in (0, 1).
        relation: neighboring relation.

    Returns:
        0 for nothing, infinity for a non-private event and noise multipliers below .1.

    Raises:
        ConfigError: delta is out of range.
        UnsupportedEventError: a mechanism without a Gaussian pair.

    >>> import dp_accounting
    >>> step = dp_accounting.PoissonSampledDpEvent(
    ...     0.25, dp_accounting.GaussianDpEvent(1.64)
    ... )
    >>> run = dp_accounting.SelfComposedDpEvent(step, 24)
    >>> add_or_remove = NeighboringRelation.ADD_OR_REMOVE_ONE
    >>> f"{filtered_epsilon(run, delta=1e-5, relation=add_or_remove):.2f}"
    '5.14'

    Fixed in advance they have 4.05.
    """
    check_delta(delta)
    if is_non_private(event):
        return math.inf
    try:
        each = [
            moments
            for side in before_and_after(event, relation)
            for moments in log_moments(side, _ORDERS - 1, relation=relation)
        ]
    except QuadratureError:
        return math.inf
    return max((_smallest(moments, delta) for moments in each), default=0.0)


def _smallest(moments: NDArray[np.float64], delta: float) -> float:
    """Find the smallest epsilon of the theorem, for one direction."""

    def short(epsilon: float) -> float:
        exponents = _LOG_WEIGHTS + (_ORDERS - 1) * epsilon - moments
        return float(log_sum_exp(exponents)) + math.log(delta)

    if not moments.any() or short(0.0) >= 0:
        return 0.0
    enough = 1 + float((moments - math.log(delta) - _LOG_WEIGHTS)[0])  # the first does
    found = optimize.brentq(short, 0.0, enough, xtol=1e-12)
    return float(found) * (1 + 1e-9)
