import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.dpsgd.clipping import BoundedGroups, FlatClip, GroupClip
from dptune.errors import ConfigError
from dptune.privacy import NeighboringRelation


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    bound=st.floats(1e-12, 1e12),
    norms=st.lists(st.floats(0, float(np.float32(3e38)), width=32), min_size=1),
)
def test_norm_times_factor_never_exceeds_the_bound(bound, norms):
    norm = torch.tensor([norms])
    factors = FlatClip(bound).factors(norm)
    assert float((norm * factors).max()) <= bound
    assert ((factors >= 0) & (factors <= 1)).all()


def test_rounded_division_alone_exceeds_the_bound():
    """The twin without the step to the next smaller float."""
    norm = torch.rand(1, 100_000, generator=torch.Generator().manual_seed(0)) * 10 + 1
    bound = torch.tensor(0.7)
    assert ((bound / norm) * norm > bound).any()
    assert not (FlatClip(float(bound)).factors(norm) * norm > bound).any()


def test_factor_is_not_needlessly_small():
    norm = torch.logspace(-3, 6, 1000)[None]
    factors = FlatClip(1.0).factors(norm)
    assert (factors[norm <= 1] == 1).all()
    expected = (1 / norm.double()).clamp(max=1)
    assert torch.allclose(factors.double(), expected, rtol=2e-7)


def test_norm_that_is_not_finite_has_factor_zero():
    norms = torch.tensor([[0.0, torch.inf, torch.nan, 2.0]])
    assert FlatClip(1.0).factors(norms).tolist() == [[1.0, 0.0, 0.0, 0.5]]


def test_groups_share_the_factor_of_their_joint_norm():
    factors = FlatClip(1.0).factors(torch.tensor([[3.0, 0.1], [4.0, 0.1]]))
    assert factors.shape == (2, 2)
    torch.testing.assert_close(factors[:, 0], torch.full((2,), 0.2))
    assert (factors[:, 1] == 1).all()


def test_sensitivity_doubles_when_a_unit_is_replaced():
    clip = FlatClip(0.3)
    assert clip.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE) == 0.3
    assert clip.sensitivity(NeighboringRelation.REPLACE_ONE) == 0.6


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-13, 1e39, float("nan"), float("inf")])
def test_invalid_bound_is_refused(bound):
    with pytest.raises(ConfigError, match="max_grad_norm"):
        FlatClip(bound)


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    bound=st.floats(1e-9, 1e9),
    norms=st.lists(st.floats(0, float(np.float32(3e38)), width=32), min_size=1),
)
def test_groups_together_never_exceed_the_bound(bound, norms):
    norm = torch.tensor(norms)[:, None]
    factors = GroupClip(bound, num_groups=len(norms)).factors(norm)
    clipped = (norm * factors).double()
    assert float(clipped.square().sum().sqrt()) <= bound


def test_groups_clipped_to_the_whole_bound_each_exceed_it():
    """The twin that forgets the share."""
    norms = torch.tensor([[3.0], [4.0]])
    twin = GroupClip(1.0, num_groups=1).factors(norms) * norms
    assert float(twin.norm()) > 1.4
    assert float((GroupClip(1.0, num_groups=2).factors(norms) * norms).norm()) <= 1


def test_group_sensitivity_is_that_of_the_whole_gradient():
    clip = GroupClip(0.5, num_groups=7)
    assert clip.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE) == 0.5
    assert clip.sensitivity(NeighboringRelation.REPLACE_ONE) == 1.0


class Times:
    """A rule that wants one factor, whatever the norm, and notes what it is asked."""

    name = "times"

    def __init__(self, factor):
        self.factor, self.asked = factor, []

    def wanted(self, norms, *, max_norm):
        self.asked.append((norms.tolist(), max_norm))
        return torch.full_like(norms, self.factor)


def test_rule_is_asked_with_the_bound_and_lowered_to_it():
    rule, norms = Times(0.5), torch.tensor([[1.0, 4.0, 8.0, 0.0, torch.inf]])
    assert FlatClip(2.0, rule=rule).factors(norms).tolist() == [[0.5, 0.5, 0.25, 1, 0]]
    groups = GroupClip(2.0, num_groups=4, rule=rule).factors(norms)
    assert groups[0, :2].tolist() == [0.5, pytest.approx(0.25)]
    (first, bound), (second, share) = rule.asked
    assert first == norms[0].tolist()
    assert second == norms.tolist()
    assert (bound, share) == (2.0, pytest.approx(1.0))


def test_factor_of_a_tiny_norm_stays_far_from_infinity():
    norms = torch.tensor([[1e-37, 0.5]])
    huge = FlatClip(1.0, rule=Times(torch.inf)).factors(norms)
    assert huge.tolist() == [[2.0**40, 2.0]]


def test_bound_is_the_largest_float_that_does_not_exceed_it():
    """One float less would be needless, one more beyond the bound."""
    for bound in (0.1, 0.3, 0.7):
        asked = Times(1.0)
        FlatClip(bound, rule=asked).factors(torch.ones(1, 1))
        largest = asked.asked[0][1]
        above = np.nextafter(np.float32(largest), np.float32(9))
        assert largest <= bound < float(above)
    assert FlatClip(1e-12).factors(torch.tensor([[1.0]])).item() <= 1e-12
    assert FlatClip(float(np.finfo(np.float32).max)).factors(torch.ones(1, 1)) == 1


def test_shares_of_groups_together_are_at_most_the_bound():
    for num_groups in range(1, 60):
        asked = Times(1.0)
        GroupClip(1.0, num_groups=num_groups, rule=asked).factors(torch.ones(1, 1))
        share = asked.asked[0][1]
        assert math.fsum([share * share] * num_groups) <= 1.0
        assert share == pytest.approx(num_groups**-0.5, rel=2e-7)


def test_groups_of_their_own_norms_are_each_bounded_by_theirs():
    clip = BoundedGroups((3.0, 4.0))
    norms = torch.tensor([[6.0, 1.0], [6.0, torch.nan]])
    assert (clip.factors(norms)[0] * norms[0]).tolist() == [3.0, 1.0]
    assert clip.factors(norms)[1].tolist() == [pytest.approx(4 / 6), 0.0]
    assert clip.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE) == 5.0
    assert clip.sensitivity(NeighboringRelation.REPLACE_ONE) == 10.0
    with pytest.raises(ValueError, match="zip"):
        clip.factors(norms[:1])
    with pytest.raises(ConfigError, match="max_grad_norm"):
        BoundedGroups((3.0, 0.0))
