"""Weights are the paper's; schedules are drawn in advance and keep to their bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.errors import ConfigError
from dptune.mechanisms.atdp import ordinary_weight, rise_and_reset, token_weights
from dptune.text import Span

SCHEDULE = {"growth": 1.3, "jitter": (0.9, 1.1), "ceiling": 3.0}


@pytest.mark.parametrize(
    ("share", "weight"), [(0.10, 0.111), (0.15, 0.176), (1 / 6, 0.2), (0.20, 0.25)]
)
def test_ordinary_weight_is_about_a_fifth_for_the_papers_shares(share, weight):
    assert ordinary_weight(share) == pytest.approx(weight, abs=5e-4)


def test_ordinary_weight_gives_sensitive_tokens_their_share():
    alpha, r = 0.12, 0.4
    weight = ordinary_weight(alpha, target_share=r)
    assert alpha / (alpha + (1 - alpha) * weight) == pytest.approx(r)


def test_ordinary_weight_never_exceeds_one():
    assert ordinary_weight(0.8) == 1.0


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, float("nan")])
def test_shares_out_of_range_are_refused(bad):
    with pytest.raises(ConfigError, match="sensitive_share"):
        ordinary_weight(bad)
    with pytest.raises(ConfigError, match="target_share"):
        ordinary_weight(0.1, target_share=bad)


def test_sensitive_and_function_tokens_weigh_one():
    text = "the order of Zoe ships"
    ends = [(0, 3), (3, 9), (9, 12), (12, 16), (16, 22), (0, 0)]
    spans = [Span(start=13, end=16, entity_type="PERSON")]
    weights = token_weights(text, ends, spans, ordinary=0.25)
    assert weights.tolist() == [1.0, 0.25, 1.0, 1.0, 0.25, 0.25]


def test_pieces_of_a_function_word_weigh_one():
    weights = token_weights("through", [(0, 5), (5, 7)], [], ordinary=0.5)
    assert weights.tolist() == [1.0, 1.0]


@given(seed=st.integers(0, 10_000), epochs=st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_schedule_rises_resets_and_keeps_its_floor(seed, epochs):
    levels = rise_and_reset(epochs, generator=np.random.default_rng(seed), **SCHEDULE)
    assert len(levels) == epochs
    assert all(1.0 <= level <= 3.0 for level in levels)
    for before, after in zip((1.0, *levels), levels, strict=False):
        assert after == 1.0 or 1.3 * 0.9 <= after / before <= 1.3 * 1.1


@given(seed=st.integers(0, 10_000), epochs=st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_schedule_of_wide_jitter_falls_no_further_than_it_says(seed, epochs):
    levels = rise_and_reset(
        epochs,
        growth=1.2,
        jitter=(0.5, 1.5),
        ceiling=3.0,
        generator=np.random.default_rng(seed),
    )
    assert min(levels) >= (1.2 * 0.5) ** epochs


def test_schedule_follows_algorithm_one():
    rho = np.random.default_rng(3).uniform(0.9, 1.1, size=6)
    levels = rise_and_reset(6, generator=np.random.default_rng(3), **SCHEDULE)
    sigma = 1.0
    for level, factor in zip(levels, rho, strict=True):
        sigma = sigma * 1.3 * factor
        sigma = 1.0 if sigma > 3.0 else sigma
        assert level == pytest.approx(sigma)


@pytest.mark.parametrize(
    "changes",
    [{"growth": 1.0}, {"jitter": (1.0, 1.1)}, {"jitter": (0.9, 1.0)}, {"ceiling": 0.9}],
)
def test_schedule_out_of_range_is_refused(changes):
    with pytest.raises(ConfigError, match="rise-reset"):
        rise_and_reset(3, generator=np.random.default_rng(0), **SCHEDULE | changes)
