"""Exact exposure against brute force, and what must not go wrong."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import (
    CandidateScores,
    Measured,
    exposure_report,
    measure_exposure,
    rank_canaries,
    score_candidates,
)
from dptune.attacks.trie import CandidateTrie
from dptune.errors import ModelError


def brute_force(model, spec, tokenizer, *, bos, indices=None):
    """Forward every whole record on its own, without a cache."""
    model.eval()
    totals = []
    start, end = len(spec.prefix), len(spec.prefix) + spec.length
    for i in range(spec.space_size) if indices is None else indices:
        encoded = tokenizer(
            spec.record(spec.secret_at(int(i))),
            add_special_tokens=False,
            return_offsets_mapping=True,
        )
        ids = encoded["input_ids"]
        scored = [b > start and a < end and b > a for a, b in encoded["offset_mapping"]]
        if bos is not None:
            ids, scored = [bos, *ids], [False, *scored]
        with torch.inference_mode():
            logp = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        totals.append(
            -sum(logp[t - 1, ids[t]].item() for t in range(len(ids)) if scored[t])
        )
    return np.array(totals)


def assert_same_as_brute_force(model, spec, tokenizer, *, bos):
    trie = CandidateTrie.build(spec, tokenizer, bos=bos)
    scores = score_candidates(model, trie, batch_size=37)
    expected = brute_force(model, spec, tokenizer, bos=bos)
    np.testing.assert_allclose(scores.nll, expected, atol=1e-4)
    canaries = draw_canaries(spec, seed=1)
    for canary, secret in zip(
        rank_canaries(scores, trie, canaries),
        canaries.planted + canaries.held_out,
        strict=True,
    ):
        own = expected[spec.index_of(secret)]
        assert canary.rank == 1 + int((expected < own).sum())
        assert canary.exposure == pytest.approx(
            math.log2(spec.space_size) - math.log2(canary.rank)
        )
    assert scores.num_token_forwards < trie.num_brute_force_tokens


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("with_bos", [True, False])
@pytest.mark.parametrize("tokenizer", ["digit_tokenizer", "merging_tokenizer"])
def test_exposure_small_space_equals_brute_force(
    make_model, kind, with_bos, tokenizer, request
):
    tokenizer = request.getfixturevalue(tokenizer)
    spec = CanarySpec(length=2, num_planted=5, num_held_out=5)
    model = make_model(kind, vocab_size=len(tokenizer))
    bos = tokenizer.bos_token_id if with_bos else None
    assert_same_as_brute_force(model, spec, tokenizer, bos=bos)


@pytest.mark.parametrize(
    "template", ["the pin {secret}, of my card", "{secret}", "x{secret}7"]
)
def test_exposure_any_template_equals_brute_force(
    make_model, template, merging_tokenizer
):
    spec = CanarySpec(template=template, length=2, num_planted=3, num_held_out=3)
    model = make_model("gpt2", vocab_size=len(merging_tokenizer))
    assert_same_as_brute_force(model, spec, merging_tokenizer, bos=0)


def test_exposure_alphanumeric_equals_brute_force(make_model, merging_tokenizer):
    spec = CanarySpec(length=1, alphabet="alphanumeric", num_planted=4, num_held_out=4)
    model = make_model("llama", vocab_size=len(merging_tokenizer))
    assert_same_as_brute_force(model, spec, merging_tokenizer, bos=0)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_exposure_lora_model_equals_brute_force(make_model, digit_tokenizer):
    spec = CanarySpec(length=2, num_planted=3, num_held_out=3)
    base = make_model("gpt2", vocab_size=len(digit_tokenizer))
    config = LoraConfig(
        r=2, target_modules=["c_attn"], init_lora_weights=False, fan_in_fan_out=True
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = get_peft_model(base, config)
    assert_same_as_brute_force(model, spec, digit_tokenizer, bos=0)


@pytest.mark.parametrize("folder", ["gpt2_tokenizer", "stories260k", "babyllama105"])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_exposure_real_tokenizer_equals_brute_force(
    make_model, folder, kind, shared_data
):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / folder)
    spec = CanarySpec(length=2, num_planted=5, num_held_out=5)
    model = make_model(kind, vocab_size=len(tokenizer))
    assert_same_as_brute_force(model, spec, tokenizer, bos=tokenizer.bos_token_id)


def test_exposure_large_space_agrees_with_brute_force_on_a_sample(
    make_model, merging_tokenizer
):
    spec = CanarySpec(length=4, num_planted=0, num_held_out=0)
    model = make_model("llama", vocab_size=len(merging_tokenizer))
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    scores = score_candidates(model, trie)
    picked = np.random.default_rng(0).integers(0, spec.space_size, 50)
    expected = brute_force(model, spec, merging_tokenizer, bos=0, indices=picked)
    np.testing.assert_allclose(scores.nll[picked], expected, atol=1e-4)


def train(model, sequences, *, steps=60):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    tokens = torch.tensor(sequences)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()


def test_exposure_memorised_canary_has_rank_one_and_control_has_not(
    make_model, digit_tokenizer
):
    spec = CanarySpec(length=3, num_planted=1, num_held_out=1)
    canaries = draw_canaries(spec, seed=3)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    before = measure_exposure(model, trie, canaries).canaries
    text = spec.record(canaries.planted[0])
    train(model, [[0, *digit_tokenizer(text)["input_ids"]]])
    planted, held_out = measure_exposure(model, trie, canaries).canaries
    assert planted.rank == 1
    assert planted.exposure == pytest.approx(math.log2(1000))
    assert before[0].rank > 1
    assert held_out.rank > 1
    assert (planted.insertions, held_out.insertions) == (1, 0)


def made_up(spec, trie, nll):
    return CandidateScores(
        nll=np.asarray(nll, np.float64),
        num_scored=trie.num_scored,
        num_token_forwards=0,
        trie_key=trie.key,
    )


def test_rank_ties_count_only_strictly_better_candidates(digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=1, num_held_out=9)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    canaries = draw_canaries(spec, seed=0)
    tied = rank_canaries(made_up(spec, trie, np.zeros(10)), trie, canaries)
    assert {c.rank for c in tied} == {1}
    ordered = rank_canaries(made_up(spec, trie, np.arange(10)), trie, canaries)
    secrets = canaries.planted + canaries.held_out
    assert [c.rank for c in ordered] == [1 + int(secret) for secret in secrets]
    assert max(c.exposure for c in ordered) == pytest.approx(math.log2(10))
    assert min(c.exposure for c in ordered) == pytest.approx(0.0)


def test_scores_broken_position_ids_twin_is_caught(
    make_model, digit_tokenizer, monkeypatch
):
    spec = CanarySpec(length=2, num_planted=0, num_held_out=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    expected = brute_force(model, spec, digit_tokenizer, bos=0)
    forward = model.forward

    def shifted(*, position_ids, **arguments):
        past = arguments["past_key_values"].get_seq_length()
        position_ids = position_ids if past == 0 else torch.zeros_like(position_ids)
        return forward(position_ids=position_ids, **arguments)

    monkeypatch.setattr(model, "forward", shifted)
    found = score_candidates(model, trie).nll
    assert np.abs(found - expected).max() > 1e-3


def test_scores_unscored_suffix_and_prefix_do_not_count(make_model, digit_tokenizer):
    spec = CanarySpec(length=2, num_planted=0, num_held_out=0)
    longer = spec.model_copy(update={"template": spec.template + " and more"})
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    left, right = (
        score_candidates(model, CandidateTrie.build(s, digit_tokenizer, bos=0)).nll
        for s in (spec, longer)
    )
    np.testing.assert_allclose(left, right, atol=1e-5)


def test_scores_mode_of_every_module_is_restored(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer)).train()
    model.transformer.h[0].eval()
    score_candidates(model, trie)
    assert model.training
    assert not model.transformer.h[0].training


def test_scores_nan_weights_raise(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    with torch.no_grad():
        model.transformer.ln_f.weight.fill_(math.nan)
    with pytest.raises(ModelError, match="NaN"):
        score_candidates(model, trie)


def test_scores_half_precision_raises(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer)).bfloat16()
    with pytest.raises(ModelError, match="float32"):
        score_candidates(model, trie)


def test_scores_tokenizer_larger_than_model_raises(make_model, digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    levels = tuple(
        dataclasses.replace(level, token=level.token + 1000) for level in trie.levels
    )
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    with pytest.raises(ModelError, match="tokenizer"):
        score_candidates(model, dataclasses.replace(trie, levels=levels))


def test_rank_canaries_of_another_template_raise(digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=1, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    other = draw_canaries(spec.model_copy(update={"template": "pin {secret}"}), seed=0)
    with pytest.raises(ModelError, match="one template"):
        rank_canaries(made_up(spec, trie, np.zeros(10)), trie, other)


def test_exposure_mean_divides_by_scored_tokens(merging_tokenizer):
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, merging_tokenizer, bos=0)
    scores = made_up(spec, trie, np.full(1000, 6.0))
    assert len(set(trie.num_scored.tolist())) > 1
    np.testing.assert_allclose(scores.by("mean"), 6.0 / trie.num_scored)


def test_exposure_report_holds_counts_and_no_secret():
    spec = CanarySpec(length=6, num_planted=2, num_held_out=2, insertions=3)
    canaries = draw_canaries(spec, seed=0)
    nothing = Measured(canaries=(), num_token_forwards=7)
    report = exposure_report(
        measured=nothing,
        base=nothing,
        canary_set=canaries,
        model_digest="m",
        base_model_digest="b",
        planted_found=5,
    )
    assert (report.planted_found, report.planted_expected) == (5, 6)
    assert report.space_size == 10**6
    dumped = report.model_dump_json()
    assert not any(s in dumped for s in canaries.planted + canaries.held_out)


def test_scores_repr_hides_values(digit_tokenizer):
    spec = CanarySpec(length=1, num_planted=0, num_held_out=0)
    trie = CandidateTrie.build(spec, digit_tokenizer, bos=0)
    assert "array" not in repr(made_up(spec, trie, np.zeros(10)))
