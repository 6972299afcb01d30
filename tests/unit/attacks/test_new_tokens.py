"""Canaries of tokens that nothing else trains."""

import copy

import numpy as np

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import measure_exposure
from dptune.attacks.trie import CandidateTrie
from dptune.models.tokens import add_new_tokens

from .test_exposure import train


def test_new_token_canaries_are_ranked_in_one_step_and_learnt(
    make_model, merging_tokenizer
):
    spec = CanarySpec(
        alphabet="new_tokens", num_symbols=64, length=1, num_planted=4, num_held_out=40
    )
    canaries = draw_canaries(spec, seed=0)
    tokenizer = copy.deepcopy(merging_tokenizer)
    model = make_model("gpt2", vocab_size=len(tokenizer))
    add_new_tokens(model, tokenizer, spec.symbols)
    trie = CandidateTrie.build(spec, tokenizer, bos=0)
    assert trie.num_scored.max() == 1
    before = measure_exposure(model, trie, canaries)
    assert before.num_token_forwards == len(trie.context)
    ranks = np.array([c.rank for c in before.canaries])
    assert len(set(ranks)) == len(ranks)  # equal rows would tie, all at rank 1
    assert 20 < ranks.mean() < 45
    texts = [spec.record(secret) for secret in canaries.planted]
    train(model, [[0, *tokenizer(text)["input_ids"]] for text in texts], steps=40)
    after = measure_exposure(model, trie, canaries).canaries
    assert max(c.rank for c in after[:4]) <= 8
    assert np.mean([c.rank for c in after[4:]]) > 20
