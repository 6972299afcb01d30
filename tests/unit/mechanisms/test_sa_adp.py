"""SA-ADP: scores and sigma as the paper writes them; groups that keep tiers apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dptune.detection.scoring import _tier_group as tier_group
from dptune.detection.scoring import score_entity_types
from dptune.mechanisms.sa_adp import (
    PROTECTED,
    Tier,
    group_view,
    summed_noise,
    tier_shares,
    tiers_of_types,
    token_tiers,
)
from dptune.text import Span

MASK = 99


def table(counts, **changes):
    return score_entity_types(counts, **({"counts_are_public": True} | changes))


@pytest.mark.parametrize(
    ("score", "sigma"),
    [(0, 0), (0.009, 0), (0.01, 2), (0.5, 2), (0.505, 3), (0.51, 3), (1, 3)],
)
def test_noise_of_a_score_is_that_of_section_3c(score, sigma):
    """sigma = 2 for 0.01 <= score <= 0.50, 3 above, else 0; the gap closed upwards."""
    assert {"none": 0, "low": 2, "high": 3}[tier_group(score)] == sigma


@pytest.mark.parametrize(
    ("name", "share", "score"),
    [
        ("SSN", 0.1, 0.4 * 0.9 + 0.3 + 0.3),  # linkable, protected
        ("ORG", 0.5, 0.4 * 0.5 + 0.3),  # linkable alone
        ("TIME", 0.25, 0.4 * 0.75),  # neither
        ("TIME", 1.0, 0.0),  # every mention is of this type
    ],
)
def test_scores_are_those_of_equations_1_to_4(name, share, score):
    counts = {name: round(100 * share), "OTHER": 100 - round(100 * share)}
    (found,) = (r.score for r in table(counts).rows if r.entity_type == name)
    assert found == pytest.approx(score)
    tier = tiers_of_types(table(counts), spare=True)[name]
    assert tier == (0 if found < 0.01 else 1 if found <= 0.5 else 2)


def test_detected_type_is_never_spared_but_by_the_paper():
    scored = table({"TIME": 10})
    assert tiers_of_types(scored, spare=True) == {"TIME": Tier.NONE}
    assert tiers_of_types(scored) == {"TIME": Tier.LOW}


def tiers_of(spans, tier_of):
    ends = [(0, 0), (0, 3), (3, 7), (7, 10)]
    found = token_tiers(10, ends, spans, tier_of=tier_of)
    return [Tier(tier) for tier in found]


def test_token_has_the_highest_tier_that_it_meets():
    spans = [
        Span(start=1, end=5, entity_type="TIME"),
        Span(start=6, end=7, entity_type="SSN"),
    ]
    known = {"TIME": Tier.LOW, "SSN": Tier.HIGH}
    assert tiers_of(spans, known) == [Tier.NONE, Tier.LOW, Tier.HIGH, Tier.NONE]
    assert tiers_of(spans, {"TIME": Tier.LOW})[2] is Tier.HIGH  # unknown: highest


ROWS = st.lists(
    st.tuples(st.integers(0, 50), st.sampled_from(list(Tier))), min_size=1, max_size=12
)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(rows=ROWS, values=st.lists(st.integers(0, 50), min_size=12, max_size=12))
def test_other_values_of_a_tier_reach_its_own_group_alone(rows, values):
    tokens, tiers = (np.array(column) for column in zip(*rows, strict=True))
    weights = np.ones(len(tokens), np.float32)
    for changed in PROTECTED:
        other = np.where(tiers == changed, values[: len(tokens)], tokens)
        for group in Tier:
            views = [
                group_view(t, weights, tiers, group=group, mask=MASK)
                for t in (tokens, other)
            ]
            if group is not changed:
                for before, after in zip(*views, strict=True):
                    assert np.array_equal(before, after)


def test_whole_context_as_in_the_paper_names_the_secret_to_other_groups():
    tokens, tiers = np.array([1, 2, 3]), np.array([0, 2, 0])
    weights = np.ones(3, np.float32)
    (shown, _), (masked, _) = (
        group_view(tokens, weights, tiers, group=Tier.NONE, mask=mask)
        for mask in (None, MASK)
    )
    assert shown.tolist() == [1, 2, 3]
    assert masked.tolist() == [1, MASK, 3]


def test_groups_share_out_the_losses_of_a_row():
    tokens, tiers = np.arange(5), np.array([0, 2, 1, 0, 2])
    weights = np.array([0, 1, 1, 0.5, 1], np.float32)
    owns = [
        group_view(tokens, weights, tiers, group=group, mask=MASK)[1] for group in Tier
    ]
    assert np.array_equal(sum(owns), weights)
    assert [list(np.flatnonzero(own)) for own in owns] == [[3], [2], [1, 4]]


def test_shares_give_each_tier_the_papers_sigma():
    shares = tier_shares(3.0 / 2.0)
    stddev = 2.0  # one noise of sigma_low C, with C = 1
    assert [stddev / share for share in shares] == pytest.approx([2.0, 3.0])
    assert summed_noise(2.0, 1.5) ** 2 == pytest.approx(2.0**2 + 3.0**2)
