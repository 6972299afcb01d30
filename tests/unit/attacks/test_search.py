"""Best-first search against complete enumeration."""

import math

import numpy as np
import pytest
from transformers import AutoTokenizer

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.candidates import secrets_at
from dptune.attacks.exposure import score_candidates
from dptune.attacks.pieces import Spelling
from dptune.attacks.search import search
from dptune.attacks.trie import CandidateTrie
from dptune.errors import ModelError


def both(model, spec, tokenizer, *, bos, scoring="sum", **options):
    """Scores by enumeration, sorted, and what the search found."""
    scores = score_candidates(model, CandidateTrie.build(spec, tokenizer, bos=bos))
    sample = secrets_at(spec, np.arange(0, spec.space_size, 7))
    spelling = Spelling.of(spec, tokenizer, bos=bos, sample=sample)
    limit = options.pop("limit", math.inf)
    found = search(model, spelling, limit=limit, scoring=scoring, **options)
    return np.sort(scores.by(scoring)), found, spelling


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("scoring", ["sum", "mean"])
@pytest.mark.parametrize("tokenizer", ["digit_tokenizer", "merging_tokenizer"])
def test_search_without_limit_finds_every_candidate(
    make_model, kind, scoring, tokenizer, request
):
    tokenizer = request.getfixturevalue(tokenizer)
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    model = make_model(kind, vocab_size=len(tokenizer))
    expected, found, _ = both(model, spec, tokenizer, bos=0, scoring=scoring)
    np.testing.assert_allclose(found.scores, expected, atol=1e-4)
    assert found.complete_below == math.inf


@pytest.mark.parametrize("scoring", ["sum", "mean"])
def test_search_below_a_limit_gives_exact_ranks(make_model, merging_tokenizer, scoring):
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    model = make_model("gpt2", vocab_size=len(merging_tokenizer))
    every, *_ = both(model, spec, merging_tokenizer, bos=0, scoring=scoring)
    limit = float((every[40] + every[41]) / 2)
    _, found, _ = both(
        model, spec, merging_tokenizer, bos=0, scoring=scoring, limit=limit
    )
    np.testing.assert_allclose(found.scores, every[:41], atol=1e-4)
    assert found.rank(limit) == (42, True)
    assert found.rank(float(every[20]) + 1e-6) == (22, True)
    assert not found.rank(limit + 1)[1]


def test_search_out_of_nodes_says_how_far_it_is_complete(make_model, digit_tokenizer):
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    every, found, _ = both(
        model, spec, digit_tokenizer, bos=0, max_nodes=40, batch_size=4
    )
    assert found.complete_below < every[-1]
    known = every[every < found.complete_below]
    assert len(found.scores) >= len(known)
    np.testing.assert_allclose(found.scores[: len(known)], known, atol=1e-4)


def test_search_without_the_bound_of_open_nodes_is_caught(make_model, digit_tokenizer):
    """The broken twin calls every rank exact that it has an answer for."""
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    model = make_model("gpt2", vocab_size=len(digit_tokenizer))
    every, found, _ = both(
        model, spec, digit_tokenizer, bos=0, max_nodes=10, batch_size=2
    )
    rank, complete = found.rank(float(every[-1]))
    assert rank < len(every)
    assert not complete


@pytest.mark.parametrize("folder", ["gpt2_tokenizer", "stories260k", "babyllama105"])
@pytest.mark.parametrize("template", ["secret_id={secret}", "the pin {secret}, of me"])
def test_search_real_tokenizer_equals_enumeration(
    make_model, folder, template, shared_data
):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / folder)
    spec = CanarySpec(
        template=template,
        length=2,
        alphabet="alphanumeric",
        num_planted=0,
        num_held_out=0,
    )
    model = make_model("gpt2", vocab_size=len(tokenizer))
    bos = tokenizer.bos_token_id
    trie = CandidateTrie.build(spec, tokenizer, bos=bos)
    every = np.sort(score_candidates(model, trie).nll)
    sample = secrets_at(spec, np.arange(0, spec.space_size, 7))
    spelling = Spelling.of(spec, tokenizer, bos=bos, sample=sample)
    limit = float((every[60] + every[61]) / 2)
    found = search(model, spelling, limit=limit)
    np.testing.assert_allclose(found.scores, every[:61], atol=1e-4)


@pytest.mark.parametrize("scoring", ["sum", "mean"])
@pytest.mark.parametrize("template", ["code is {secret}. so", "code is {secret}"])
def test_search_equals_enumeration_where_tokens_beside_the_secret_depend_on_it(
    make_model, template, scoring, crossing_tokenizer
):
    spec = CanarySpec(template=template, length=3, num_planted=0, num_held_out=0)
    model = make_model("gpt2", vocab_size=330)
    every, found, spelling = both(
        model, spec, crossing_tokenizer, bos=0, scoring=scoring
    )
    np.testing.assert_allclose(found.scores, every, atol=1e-4)
    assert spelling.head.endswith(" ")
    assert (spelling.tail > 0) == template.endswith("so")


def test_search_total_probability_bounds_how_many_are_better(
    make_model, merging_tokenizer
):
    spec = CanarySpec(length=3, num_planted=0, num_held_out=0)
    model = make_model("llama", vocab_size=len(merging_tokenizer))
    scores, *_ = both(model, spec, merging_tokenizer, bos=0)
    better = np.arange(len(scores))
    assert (better < np.exp(scores)).all()


def test_spelling_of_unknown_symbols_raises(shared_data):
    tokenizer = AutoTokenizer.from_pretrained(shared_data / "babyllama105")
    spec = CanarySpec(template="id#{secret}", length=4, num_planted=2, num_held_out=0)
    spelling = Spelling.of(spec, tokenizer, bos=1, sample=["1234", "9999", "0000"])
    assert spelling.head == ""
    with pytest.raises(ModelError, match="whole code points"):
        Spelling.of(
            spec.model_copy(update={"template": "{secret}\u2603"}),
            tokenizer,
            bos=1,
            sample=["\u2603\u2603\u2603\u2603"],
        )


def test_spelling_hides_its_text(merging_tokenizer):
    spec = CanarySpec(length=3, num_planted=1, num_held_out=0)
    secret = draw_canaries(spec, seed=0).planted[0]
    spelling = Spelling.of(spec, merging_tokenizer, bos=0, sample=[secret, "000"])
    assert secret not in repr(spelling)
    assert spelling.read(spelling.tokens_of(secret)) == secret
