"""Ranks by a head and intervals, against ranks among all."""

import math

import numpy as np
import pytest
import torch

from dptune.attacks import large_spaces as intervals
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import measure_exposure, score_candidates
from dptune.attacks.large_spaces import measure_with_intervals
from dptune.attacks.trie import CandidateTrie

SPEC = CanarySpec(length=4, num_planted=20, num_held_out=20)
SIZE = SPEC.space_size


@pytest.fixture(scope="module", params=["digits", "merged"])
def known(request, make_model, digit_tokenizer, merging_tokenizer):
    """A model, all candidates, and canaries of which some are at the very front."""
    each = {"digits": digit_tokenizer, "merged": merging_tokenizer}
    tokenizer = each[request.param]
    model = make_model("llama", vocab_size=len(tokenizer))
    trie = CandidateTrie.build(SPEC, tokenizer, bos=0)
    best = np.argsort(score_candidates(model, trie).nll)[[0, 2, 7, 30, 31, 150]]
    canaries = draw_canaries(SPEC, seed=3)
    front = tuple(map(SPEC.secret_at, best))
    planted = (*front, *canaries.planted[len(front) :])
    return model, trie, canaries.model_copy(update={"planted": planted})


def misses(found, exact):
    """Canaries whose rank is not where it is said to be."""
    bad = []
    for one, truth in zip(found.canaries, exact.canaries, strict=True):
        assert one.canary_id == truth.canary_id
        if one.method == "exact":
            bad += [one.canary_id] * (one.rank != truth.rank)
            continue
        low, high = one.exposure_interval.low, one.exposure_interval.high
        assert one.exposure == high == math.log2(SIZE) - math.log2(one.rank)
        bad += [one.canary_id] * (not low - 1e-9 <= truth.exposure <= high + 1e-9)
    return bad


@pytest.mark.parametrize("scoring", ["sum", "mean"])
def test_head_is_exact_and_intervals_hold_the_rank(known, scoring):
    model, trie, canaries = known
    exact = measure_exposure(model, trie, canaries, scoring=scoring)
    for nonce in range(4):
        drawn = canaries.model_copy(update={"nonce": f"{nonce:032x}"})
        found = measure_with_intervals(
            model, trie, drawn, num_sampled=400, scoring=scoring
        )
        assert {c.method for c in found.canaries} == {"exact", "interval"}
        assert misses(found, exact) == []


def test_head_that_skips_candidates_is_caught(known, monkeypatch):
    model, trie, canaries = known
    exact = measure_exposure(model, trie, canaries)

    def skipping(*args, below=-math.inf, **changes):
        return score_candidates(*args, below=below / 2, **changes)

    monkeypatch.setattr(intervals, "score_candidates", skipping)
    found = measure_with_intervals(model, trie, canaries, num_sampled=400)
    assert misses(found, exact)


def test_intervals_that_are_too_narrow_are_caught(known, monkeypatch):
    model, trie, canaries = known
    exact = measure_exposure(model, trie, canaries)
    honest = intervals.clopper_pearson
    monkeypatch.setattr(
        intervals, "clopper_pearson", lambda k, n, **_: honest(k, n, confidence=0.3)
    )
    found = measure_with_intervals(model, trie, canaries, num_sampled=400)
    assert misses(found, exact)


def test_canary_that_is_known_by_heart_costs_few_forwards(known):
    model, trie, canaries = known
    first = canaries.model_copy(
        update={"planted": canaries.planted[:1], "held_out": ()}
    )
    found = measure_with_intervals(model, trie, first, num_sampled=100)
    (canary,) = found.canaries
    assert (canary.rank, canary.method) == (1, "exact")
    whole = measure_exposure(model, trie, first)
    assert found.num_token_forwards < 0.5 * whole.num_token_forwards


def test_place_among_equals_is_held_where_a_model_likes_all_alike(known, monkeypatch):
    model, trie, canaries = known
    alike = type(model)(model.config)
    with torch.no_grad():
        for weights in alike.parameters():
            weights.zero_()
    exact = measure_exposure(alike, trie, canaries)
    monkeypatch.setattr(intervals, "_HEAD", -1)
    found = measure_with_intervals(alike, trie, canaries, num_sampled=2000)
    assert misses(found, exact) == []
    widths = [c.exposure - c.exposure_interval.low for c in found.canaries]
    assert np.median(widths) < 1
    # the broken twin takes no place among equals
    monkeypatch.setattr(intervals, "tie_place", lambda *_: 0)
    assert misses(
        measure_with_intervals(alike, trie, canaries, num_sampled=2000), exact
    )


def test_candidates_are_drawn_before_scores_are_known(known, make_model):
    """The same ones for every model of a set of canaries, others for another set."""
    model, trie, canaries = known
    asked = []

    def noting(*args, only, **changes):
        asked.append(only)
        return score_candidates(*args, only=only, **changes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(intervals, "score_candidates", noting)
        other = make_model("llama", vocab_size=model.config.vocab_size, seed=5)
        patch.setattr(intervals, "_HEAD", -1)
        for one, drawn in (
            (model, canaries),
            (other, canaries),
            (model, canaries.model_copy(update={"nonce": "1" * 32})),
        ):
            measure_with_intervals(one, trie, drawn, num_sampled=50)
    first, second, third = asked
    assert (first == second).all()
    assert not (first == third).all()
