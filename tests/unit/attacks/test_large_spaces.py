"""Ranks in spaces that are not enumerated, against spaces that are."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import rank_canaries, score_candidates
from dptune.attacks.large_spaces import (
    LargeSpaceSettings,
    certified_rank,
    measure_large_space,
    num_compared,
)
from dptune.attacks.pieces import Spelling
from dptune.attacks.search import (
    WeightedSample,
    draw_candidates,
    extrapolated_exposure,
    uniform_rank,
)
from dptune.attacks.trie import CandidateTrie
from dptune.gates.null_law import uniform_p_value

from .test_exposure import train


def memorised(make_model, tokenizer, spec, *, steps=60):
    canaries = draw_canaries(spec, seed=3)
    model = make_model("gpt2", vocab_size=len(tokenizer))
    texts = [spec.record(s) for s in canaries.planted]
    train(model, [[0, *tokenizer(t)["input_ids"]] for t in texts[:1]], steps=steps)
    return model, canaries


@pytest.mark.parametrize("scoring", ["sum", "mean"])
def test_large_space_agrees_with_enumeration(make_model, merging_tokenizer, scoring):
    spec = CanarySpec(length=4, num_planted=1, num_held_out=4)
    model, canaries = memorised(make_model, merging_tokenizer, spec, steps=12)
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    scores = score_candidates(model, trie)
    exact = rank_canaries(scores, trie, canaries, scoring=scoring)
    found = measure_large_space(
        model,
        merging_tokenizer,
        canaries,
        bos=0,
        scoring=scoring,
        settings=LargeSpaceSettings(max_nodes=60, num_uniform=500, num_weighted=300),
    )
    assert any(c.method != "exact" for c in found.canaries)
    for one, truth in zip(found.canaries, exact, strict=True):
        assert one.nll == pytest.approx(truth.nll, abs=1e-4)
        assert one.certified_exposure <= truth.exposure + 1e-9
        assert one.exposure == pytest.approx(math.log2(10**4) - math.log2(one.rank))
        if one.method == "exact":
            assert one.rank == truth.rank
        else:
            assert one.exposure_interval.low - 0.5 <= truth.exposure
            assert truth.exposure <= one.exposure_interval.high + 0.5


def test_memorised_canary_of_a_huge_space_has_rank_one(make_model, merging_tokenizer):
    spec = CanarySpec(
        template="secret_id={secret}",
        alphabet="alphanumeric",
        length=10,
        num_planted=1,
        num_held_out=3,
    )
    model, canaries = memorised(make_model, merging_tokenizer, spec)
    settings = LargeSpaceSettings(max_nodes=2000, num_uniform=300)
    found = measure_large_space(
        model, merging_tokenizer, canaries, bos=0, settings=settings
    )
    planted, *controls = found.canaries
    assert (planted.rank, planted.method) == (1, "exact")
    assert planted.exposure == pytest.approx(10 * math.log2(36))
    assert planted.certified_exposure > 40
    assert all(c.method != "exact" and c.exposure < 10 for c in controls)
    untrained = make_model("gpt2", vocab_size=len(merging_tokenizer))
    before = measure_large_space(
        untrained, merging_tokenizer, canaries, bos=0, settings=settings
    )
    assert before.canaries[0].exposure < 10


def clean_controls(generator, num, num_compared, space_size=36**10):
    """p-value of controls that are ranked by the same candidates."""
    sample = np.sort(generator.random(num_compared))
    shares = (np.searchsorted(sample, generator.random(num)) + 1) / (num_compared + 1)
    return uniform_p_value((shares * space_size).tolist(), space_size)


def test_controls_of_many_canaries_are_as_uniform_as_they_are_said_to_be():
    """The twin compares 1,000 with 2,000: 6 % of its p-values are .01 or less."""
    spec = CanarySpec(
        alphabet="alphanumeric", length=10, num_planted=10, num_held_out=1000
    )
    generator, settings = np.random.default_rng(0), LargeSpaceSettings()
    num = num_compared(draw_canaries(spec, seed=1), settings)
    shares = [
        np.mean([clean_controls(generator, 1000, n) <= 0.01 for _ in range(1500)])
        for n in (num, settings.num_uniform)
    ]
    assert shares[0] <= 0.02
    assert shares[1] > 0.035


def test_few_canaries_are_compared_with_as_many_as_before():
    few = draw_canaries(CanarySpec(num_planted=100, num_held_out=20), seed=1)
    assert num_compared(few, LargeSpaceSettings()) == 2000
    assert num_compared(few, LargeSpaceSettings(num_uniform=300)) == 2000


def test_certified_rank_holds_for_every_candidate(make_model, merging_tokenizer):
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    model = make_model("llama", vocab_size=len(merging_tokenizer))
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    scores = score_candidates(model, trie)
    spelling = Spelling.of(spec, merging_tokenizer, bos=0, sample=["123", "000"])
    for scoring in ("sum", "mean"):
        values = np.sort(scores.by(scoring))
        bounds = [
            certified_rank(float(v), spelling=spelling, scoring=scoring) for v in values
        ]
        assert (np.arange(1, 1001) <= bounds).all()
    assert certified_rank(0.01, spelling=spelling, scoring="sum") <= 3
    # a model that likes all alike; the broken twin claims one bit too much
    alike = math.log(1000) + np.linspace(1e-9, 1e-3, 1000)
    bounds = [certified_rank(v, spelling=spelling, scoring="sum") for v in alike]
    assert (np.arange(1, 1001) <= bounds).all()
    assert not (np.arange(1, 1001) <= 1 + np.exp(alike) / 2).all()


def test_weighted_draws_count_candidates_without_bias(make_model, merging_tokenizer):
    spec = CanarySpec(length=2, num_planted=0, num_held_out=0)
    model = make_model("gpt2", vocab_size=len(merging_tokenizer))
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    nll = score_candidates(model, trie).nll
    spelling = Spelling.of(spec, merging_tokenizer, bos=0, sample=["12", "00"])
    sample = draw_candidates(
        model, spelling, count=3000, generator=torch.Generator().manual_seed(0)
    )
    score = float(np.quantile(nll, 0.3))
    share = np.where(sample.losses < score, sample.weights, 0.0)
    error = 4 * share.std() / math.sqrt(len(share))
    truth = int((nll < score).sum())
    assert share.mean() == pytest.approx(truth, abs=error)
    unweighted = len(nll) * (sample.losses < score).mean()
    assert abs(unweighted - truth) > error
    upper = sample.count_upper(sample.losses, score, total=score, confidence=0.99)
    assert truth <= upper < 2 * truth
    few = sample.count_upper(sample.losses, 0.0, total=0.0, confidence=0.99)
    assert 0 < few < 0.1


def test_weighted_count_holds_where_the_likeliest_hide_most_candidates():
    """A resampled upper end counts what was drawn: most candidates never are."""
    generator, num, size = np.random.default_rng(5), 400, 10**4
    losses = np.sort(generator.normal(30, 8, size))
    losses += math.log(np.exp(-losses).sum())  # probabilities that add up to one
    score, truth = float(losses[3000]), 3001
    held, resampled = [], []
    for _ in range(100):
        drawn = losses[generator.choice(size, num, p=np.exp(-losses))]
        sample = WeightedSample(
            losses=drawn,
            num_scored=np.ones(num, np.int64),
            weights=np.exp(drawn),
            num_token_forwards=0,
        )
        upper = sample.count_upper(drawn, score, total=score, confidence=0.975)
        held.append(upper >= truth)
        weights = np.where(drawn <= score, sample.weights, 0.0)
        again = generator.choice(weights, (200, num)).mean(axis=1)
        resampled.append(np.quantile(again, 0.975) >= truth)
    assert np.mean(held) >= 0.97
    assert np.mean(resampled) < 0.5


def test_uniform_rank_is_a_valid_p_value_and_its_twin_is_not():
    generator = np.random.default_rng(0)
    draws = generator.random((4000, 51))
    p_values, broken = [], []
    for row in draws:
        rank, low, high = uniform_rank(
            row[1:],
            row[0],
            space_size=10**12,
            confidence=0.95,
            place=lambda num_tied: num_tied - 1,
        )
        p_values.append(rank / 10**12)
        broken.append((row[1:] < row[0]).mean())
        assert low <= -math.log2(max(row[0], 1e-9)) + 8
        assert high >= low
    p_values, broken = np.array(p_values), np.array(broken)
    for level in (0.02, 0.1, 0.5):
        slack = 4 * math.sqrt(level / 4000)
        assert (p_values <= level).mean() <= level + slack
    # without the canary itself in the count, nothing below it means a p-value of 0
    assert (broken <= 0.001).mean() > 0.001 + 4 * math.sqrt(0.001 / 4000)


def test_extrapolated_exposure_is_a_guess_beyond_the_sample():
    sample = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)
    assert extrapolated_exposure(sample, float(np.median(sample))) == pytest.approx(
        1, abs=0.05
    )
    assert extrapolated_exposure(sample, -12.0) > 60
