"""Sampling attacks: what trials draw, and the chance that they do."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.decoding import Decoding, ending_log_probs, sample_continuations
from dptune.attacks.extraction import (
    SamplingSettings,
    discoverable,
    jaccard,
    record_chances,
    sample_canaries,
    secret_chances,
)
from dptune.errors import ModelError

from .test_exposure import train

EVERYTHING = Decoding(temperature=1.0, top_k=0, top_p=1.0)


@pytest.mark.parametrize("top_p", [0.3, 0.95, 1.0])
@pytest.mark.parametrize("top_k", [1, 5, 50])
def test_decoding_equals_transformers(top_k, top_p):
    logits = 3 * torch.randn((7, 60), generator=torch.Generator().manual_seed(0))
    decoding = Decoding(temperature=0.7, top_k=top_k, top_p=top_p)
    warped = logits
    for warper in (
        TemperatureLogitsWarper(0.7),
        TopKLogitsWarper(top_k),
        TopPLogitsWarper(top_p),
    ):
        warped = warper(None, warped)
    tokens, log_probs = decoding.log_probs(logits)
    found = torch.full_like(logits, -torch.inf).scatter(1, tokens, log_probs)
    torch.testing.assert_close(found, warped.log_softmax(-1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_chance_of_an_ending_is_how_often_it_is_drawn(make_model, kind):
    model = make_model(kind, vocab_size=6)
    decoding = Decoding(temperature=0.7, top_k=4, top_p=0.95)
    drawn = sample_continuations(
        model,
        [1, 2],
        count=4000,
        max_new_tokens=2,
        decoding=decoding,
        generator=torch.Generator().manual_seed(0),
        batch_size=700,
    )
    pairs = [[a, b] for a in range(6) for b in range(6)]
    chances = np.exp(
        ending_log_probs(
            model, [[1, 2, *p] for p in pairs], [2] * 36, decoding=decoding
        )
    )
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    assert (chances == 0).any()
    for pair, chance in zip(pairs, chances, strict=True):
        assert drawn.count(pair) / 4000 == pytest.approx(
            chance, abs=5 * math.sqrt(max(chance * (1 - chance), 1e-6) / 4000)
        )


def test_chance_of_the_wrong_positions_is_caught(make_model):
    """The broken twin starts one token late and drops a factor."""
    model = make_model("gpt2", vocab_size=6)
    sequence = [1, 2, 3, 4, 5]
    whole = ending_log_probs(model, [sequence], [2], decoding=EVERYTHING)
    with torch.inference_mode():
        logp = model.eval()(torch.tensor([sequence])).logits[0].log_softmax(-1)
    expected = sum(logp[t - 1, sequence[t]].item() for t in (2, 3, 4))
    assert whole[0] == pytest.approx(expected, abs=1e-5)
    late = ending_log_probs(model, [sequence], [3], decoding=EVERYTHING)
    assert abs(late[0] - expected) > 1e-3


def test_continuations_end_at_the_stop_token(make_model):
    model = make_model("gpt2", vocab_size=4)
    drawn = sample_continuations(
        model,
        [1],
        count=50,
        max_new_tokens=6,
        decoding=EVERYTHING,
        generator=torch.Generator().manual_seed(1),
        stop=3,
    )
    assert not any(3 in tokens for tokens in drawn)
    assert len({len(tokens) for tokens in drawn}) > 1


@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    st.lists(st.text("AB1", max_size=6), min_size=1, max_size=4),
    st.lists(st.text("AB1", max_size=6), min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_jaccard_equals_sets(left, right, size):
    def grams(text):
        return {text[i : i + size] for i in range(len(text) - size + 1)}

    found = jaccard(left, right, size=size)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            union = grams(a) | grams(b)
            expected = len(grams(a) & grams(b)) / len(union) if union else 0.0
            assert found[i, j] == pytest.approx(expected)


def test_random_strings_are_alike_too():
    """METHODS: two random 10-character strings score J1 = .146."""
    spec = CanarySpec(
        alphabet="alphanumeric", length=10, num_planted=200, num_held_out=200
    )
    canaries = draw_canaries(spec, seed=0)
    found = jaccard(canaries.planted, canaries.held_out, size=1)
    assert found.mean() == pytest.approx(0.146, abs=0.005)


@pytest.fixture(scope="module")
def leaky(make_model, digit_tokenizer):
    """A model that learnt one of three canaries by heart."""
    spec = CanarySpec(length=4, num_planted=3, num_held_out=3)
    canaries = draw_canaries(spec, seed=5)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    untrained = make_model("gpt2", vocab_size=len(digit_tokenizer))
    text = spec.record(canaries.planted[0])
    train(model, [[0, *digit_tokenizer(text)["input_ids"], 0]])
    return model, untrained, canaries


def sampled(model, tokenizer, canaries, **changes):
    options = {"num_trials": 200, "max_new_tokens": 6, "seed": 0} | changes
    return sample_canaries(
        model, tokenizer, canaries, bos=0, settings=SamplingSettings(**options)
    )


def test_sampling_finds_a_memorised_canary_and_no_control(leaky, digit_tokenizer):
    model, untrained, canaries = leaky
    found = sampled(model, digit_tokenizer, canaries)
    assert found.planted_found == 1
    assert found.planted_hits > 100
    assert found.held_out_hits == found.held_out_found == 0
    before = sampled(untrained, digit_tokenizer, canaries)
    assert before.planted_hits == 0
    assert not any(isinstance(value, str) for value in found.model_dump().values())


def test_trial_is_long_enough_for_the_secret(leaky, digit_tokenizer):
    """A trial of one token found nothing of a model that says four by heart."""
    model, _, canaries = leaky
    short, whole = (
        sampled(model, digit_tokenizer, canaries, max_new_tokens=n) for n in (1, 4)
    )
    assert short == whole
    assert short.planted_hits > 100


def test_sampling_compares_valid_continuations_with_both_groups(leaky, digit_tokenizer):
    model, _, canaries = leaky
    tokenizer = copy.deepcopy(digit_tokenizer)
    tokenizer.eos_token = "<s>"
    found = sampled(model, tokenizer, canaries)
    assert found.num_valid > 100
    assert [s.size for s in found.similarities] == [1, 2, 3, 4]
    four = found.similarities[3]
    assert four.planted > 0.25
    assert four.held_out == 0
    assert four.difference == pytest.approx(four.planted)


def test_sampling_of_the_control_as_the_canary_is_caught(leaky, digit_tokenizer):
    """The broken twin swaps the groups: what it finds is no leak."""
    model, _, canaries = leaky
    swapped = canaries.model_copy(
        update={"planted": canaries.held_out, "held_out": canaries.planted}
    )
    found = sampled(model, digit_tokenizer, swapped)
    assert found.planted_hits == 0
    assert found.held_out_hits > 100


def test_secret_chances_agree_with_sampling(leaky, digit_tokenizer):
    model, untrained, canaries = leaky
    planted, held_out = secret_chances(model, digit_tokenizer, canaries, bos=0)
    hits = sampled(model, digit_tokenizer, canaries).planted_hits
    assert np.exp(planted).sum() == pytest.approx(hits / 200, abs=0.1)
    assert np.exp(held_out).max() < 1e-3
    shares = discoverable(planted, held_out)
    assert shares[0].members == pytest.approx(1 / 3)
    assert shares[0].controls == 0
    before, _ = secret_chances(untrained, digit_tokenizer, canaries, bos=0)
    assert discoverable(before, held_out)[0].members == 0


def test_discoverable_follows_its_definition():
    chances = np.array([1.0, 0.51, 0.11, 1e-3, 1e-300, 0.0])
    with np.errstate(divide="ignore"):
        found = discoverable(np.log(chances), np.empty(0))
    for one in found:
        expected = np.mean(1 - (1 - chances) ** one.trials >= one.chance)
        assert one.members == pytest.approx(expected)
        assert one.members_interval.low <= one.members <= one.members_interval.high
        assert one.controls is one.controls_interval is None


def test_record_chances_split_in_the_middle_and_leave_short_records_out(make_model):
    model = make_model("gpt2", vocab_size=6)
    generator = np.random.default_rng(0)
    records = [generator.integers(0, 6, n).tolist() for n in (3, 4, 9)]
    found = record_chances(model, records, decoding=EVERYTHING, ending_tokens=3)
    expected = ending_log_probs(
        model, [records[1], records[2][:7]], [2, 4], decoding=EVERYTHING
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert len(record_chances(model, [[1, 2]])) == 0


def test_chances_that_are_nan_are_refused(make_model):
    """They compared as smaller than any chance: nothing was discoverable."""
    model = make_model("gpt2", vocab_size=60)
    with torch.no_grad():
        for weights in model.parameters():
            weights.fill_(torch.nan)
    with pytest.raises(ModelError, match="got NaN"):
        record_chances(model, [[1, 2, 3, 4, 5, 6]])
