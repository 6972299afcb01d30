"""Rules scale as their papers say, and no rule can pass the bound."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.dpsgd.clipping import FlatClip, GroupClip
from dptune.mechanisms.clip_rules import Automatic, Psac

RULES = [Automatic(0.01), Automatic(1e-9), Psac(0.1), Psac(1e-6)]


@dataclass(frozen=True)
class Greedy:
    """A twin that asks for ten times the bound."""

    name: str = "greedy"

    def wanted(self, norms, *, max_norm):
        return 10 * max_norm / norms


@pytest.mark.parametrize("rule", [*RULES, Greedy()], ids=str)
@given(
    bound=st.floats(1e-6, 1e6),
    norms=st.lists(st.floats(0, 2.0**100, width=32), min_size=1, max_size=20),
)
@settings(max_examples=40, deadline=None)
def test_no_rule_passes_the_bound(rule, bound, norms):
    norm = torch.tensor([norms])
    for clip in (FlatClip(bound, rule=rule), GroupClip(bound, num_groups=1, rule=rule)):
        factors = clip.factors(norm)
        assert torch.isfinite(factors).all()
        assert float((norm * factors).max()) <= bound


def test_twin_without_the_bound_would_pass_it():
    norms = torch.tensor([[2.0]])
    assert float(Greedy().wanted(norms, max_norm=1.0) * norms) > 1.0


def test_automatic_is_c_over_norm_plus_gamma():
    norms = torch.tensor([[1e-4, 0.01, 1.0, 9.99]])
    factors = FlatClip(0.5, rule=Automatic(0.01)).factors(norms)
    expected = 0.5 / (norms + 0.01)
    torch.testing.assert_close(factors, expected)


def test_psac_does_not_blow_up_vanishing_gradients():
    norms = torch.tensor([[1e-6, 0.5, 5.0]])
    factors = FlatClip(1.0, rule=Psac(0.1)).factors(norms)
    expected = 1 / (norms + 0.1 / (norms + 0.1))
    torch.testing.assert_close(factors, expected)
    assert factors[0, 0] < 1.01
    assert FlatClip(1.0, rule=Automatic(0.01)).factors(norms)[0, 0] > 99


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_units_that_are_not_finite_contribute_nothing(rule):
    norms = torch.tensor([[torch.inf, torch.nan, 1.0]])
    assert FlatClip(1.0, rule=rule).factors(norms)[0, :2].tolist() == [0.0, 0.0]
