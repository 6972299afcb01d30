"""Tokenizing all candidates: shortcuts, cache, refusals."""

import numpy as np
import pytest

from dptune.attacks import candidates as module
from dptune.attacks.canaries import CanarySpec
from dptune.attacks.candidates import (
    longest_canary,
    plain_tokenizer,
    secrets_at,
    tokenize_candidates,
)
from dptune.attacks.trie import CandidateTrie, load_or_build, trie_key
from dptune.errors import ArtifactError, ModelError


def spec_of(**changes):
    return CanarySpec(**{"num_planted": 0, "num_held_out": 0, **changes})


def whole(spec, tokenizer):
    every = np.arange(spec.space_size)
    return module._encode(spec, plain_tokenizer(tokenizer), every, prefix=spec.prefix)


@pytest.mark.parametrize("tokenizer", ["digit_tokenizer", "merging_tokenizer"])
def test_tokenize_shortcut_equals_whole_records(tokenizer, request):
    tokenizer = request.getfixturevalue(tokenizer)
    spec = spec_of(length=4)
    found = tokenize_candidates(spec, plain_tokenizer(tokenizer), bos=None)
    expected = whole(spec, tokenizer)
    every = np.arange(spec.space_size)
    np.testing.assert_array_equal(found.records(every), expected.tokens)
    assert len(found.head) > 0
    np.testing.assert_array_equal(found.first, expected.first)
    np.testing.assert_array_equal(found.last, expected.last)
    np.testing.assert_array_equal(found.end, expected.end)


def test_tokenize_symbol_table_is_used_only_without_merges(
    digit_tokenizer, merging_tokenizer
):
    spec = spec_of(length=3)
    sample = module._sample_indices(spec)
    for tokenizer, usable in ((digit_tokenizer, True), (merging_tokenizer, False)):
        plain = plain_tokenizer(tokenizer)
        expected = module._encode(spec, plain, sample, prefix=spec.prefix)
        table = module._by_symbol(spec, plain, sample, expected)
        assert (table is not None) is usable


def test_secrets_at_equals_secret_at():
    spec = spec_of(length=3, alphabet="alphanumeric")
    indices = np.array([0, 1, 35, 36, 46655, 12345])
    assert secrets_at(spec, indices) == [spec.secret_at(int(i)) for i in indices]


def test_longest_canary_is_the_longest_of_all_candidates(merging_tokenizer):
    """Secrets of one length have other numbers of tokens: one alone does not say."""
    plain, spec = plain_tokenizer(merging_tokenizer), spec_of(length=3)
    every = [spec.record(one) for one in secrets_at(spec, np.arange(spec.space_size))]
    lengths = [len(plain.encode(one, add_special_tokens=False).ids) for one in every]
    assert longest_canary(spec, plain, ()) == max(lengths) > min(lengths)


def test_trie_counts_nodes_of_single_digit_tokens(digit_tokenizer):
    trie = CandidateTrie.build(spec_of(length=3), digit_tokenizer, bos=0)
    assert [len(level.token) for level in trie.levels] == [10, 100, 1000]
    assert [int(level.internal.sum()) for level in trie.levels] == [10, 100, 0]
    assert trie.context[0] == 0
    assert set(trie.num_scored.tolist()) == {3}


def test_trie_saved_and_loaded_is_the_same(merging_tokenizer, tmp_path):
    trie = CandidateTrie.build(spec_of(length=3), merging_tokenizer, bos=0)
    path = tmp_path / "cache" / "trie.safetensors"
    trie.save(path)
    again = CandidateTrie.load(path)
    assert (again.key, again.spec) == (trie.key, trie.spec)
    np.testing.assert_array_equal(again.leaf_node, trie.leaf_node)
    np.testing.assert_array_equal(again.leaf_level, trie.leaf_level)
    for left, right in zip(again.levels, trie.levels, strict=True):
        for name in ("parent", "token", "internal"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))


def test_trie_cache_is_keyed_by_tokenizer_template_space_and_bos(
    digit_tokenizer, merging_tokenizer
):
    spec = spec_of(length=2)
    keys = {
        trie_key(spec, digit_tokenizer, bos=0),
        trie_key(spec, digit_tokenizer, bos=None),
        trie_key(spec, merging_tokenizer, bos=0),
        trie_key(spec_of(length=3), digit_tokenizer, bos=0),
        trie_key(spec_of(length=2, template="pin {secret}"), digit_tokenizer, bos=0),
        trie_key(spec_of(length=2, alphabet="alphanumeric"), digit_tokenizer, bos=0),
    }
    assert len(keys) == 6
    planted = spec_of(length=2, num_planted=3, insertions=2)
    assert trie_key(planted, digit_tokenizer, bos=0) in keys


def test_load_or_build_reads_what_it_left(digit_tokenizer, tmp_path, monkeypatch):
    spec = spec_of(length=2)
    first = load_or_build(spec, digit_tokenizer, bos=0, folder=tmp_path)
    monkeypatch.setattr(CandidateTrie, "build", None)
    again = load_or_build(spec, digit_tokenizer, bos=0, folder=tmp_path)
    assert again.key == first.key


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_load_or_build_builds_a_damaged_trie_anew(digit_tokenizer, tmp_path, share):
    spec = spec_of(length=2)
    first = load_or_build(spec, digit_tokenizer, bos=0, folder=tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[: int(share * len(whole))])
    again = load_or_build(spec, digit_tokenizer, bos=0, folder=tmp_path)
    assert again.key == first.key
    assert CandidateTrie.load(file).key == first.key


@pytest.mark.parametrize("content", [None, b"no trie"])
def test_trie_load_of_another_file_raises(content, tmp_path):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"x\.safetensors"):
        CandidateTrie.load(path)


def test_trie_without_context_raises(digit_tokenizer):
    spec = spec_of(length=1, template="{secret} is my pin")
    with pytest.raises(ModelError, match="before the secret"):
        CandidateTrie.build(spec, digit_tokenizer, bos=None)
    assert len(CandidateTrie.build(spec, digit_tokenizer, bos=0).context) == 1


def test_trie_of_too_large_a_space_raises(digit_tokenizer):
    with pytest.raises(ModelError, match="at most"):
        CandidateTrie.build(spec_of(length=10), digit_tokenizer)


def test_trie_of_a_slow_tokenizer_raises():
    with pytest.raises(ModelError, match="fast"):
        CandidateTrie.build(spec_of(length=1), object())


def test_plain_tokenizer_ignores_padding_and_truncation(digit_tokenizer):
    key = trie_key(spec_of(length=2), digit_tokenizer, bos=0)
    digit_tokenizer.backend_tokenizer.enable_truncation(2)
    digit_tokenizer.backend_tokenizer.enable_padding(length=20)
    try:
        trie = CandidateTrie.build(spec_of(length=2), digit_tokenizer, bos=0)
    finally:
        digit_tokenizer.backend_tokenizer.no_truncation()
        digit_tokenizer.backend_tokenizer.no_padding()
    assert trie.key == key
    assert [int(level.internal.sum()) for level in trie.levels] == [10, 0]
