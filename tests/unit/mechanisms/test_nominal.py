"""Papers' own figures, against numbers from outside."""

import pytest
from opacus.accountants.analysis import rdp as opacus_rdp

from dptune.errors import ConfigError
from dptune.mechanisms.nominal import renyi_epsilon


def test_order_32_cannot_go_below_its_conversion():
    """SA-ADP prints .186 at delta 1e-5; its own formula cannot be under .371."""
    assert renyi_epsilon(
        [(1000.0, 1)], sample_rate=0.1, delta=1e-5, orders=(32.0,)
    ) == pytest.approx(0.3714, abs=1e-3)


def test_rdp_agrees_with_opacus():
    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    spent = opacus_rdp.compute_rdp(
        q=0.01, noise_multiplier=1.1, steps=500, orders=orders
    )
    by_hand = min(
        s + 11.512925464970229 / (a - 1) for s, a in zip(spent, orders, strict=True)
    )
    ours = renyi_epsilon([(1.1, 500)], sample_rate=0.01, delta=1e-5)
    assert ours == pytest.approx(by_hand, rel=1e-6)


def test_levels_add_up():
    both = renyi_epsilon([(1.0, 10), (2.0, 10)], sample_rate=0.1, delta=1e-5)
    assert renyi_epsilon([(2.0, 20)], sample_rate=0.1, delta=1e-5) < both
    assert both < renyi_epsilon([(1.0, 20)], sample_rate=0.1, delta=1e-5)


@pytest.mark.parametrize(
    "changes", [{"delta": 0.0}, {"sample_rate": 0.0}, {"orders": (1.0,)}]
)
def test_numbers_out_of_range_are_refused(changes):
    with pytest.raises(ConfigError, match="nominal"):
        renyi_epsilon([(1.0, 1)], **{"sample_rate": 0.1, "delta": 1e-5} | changes)
