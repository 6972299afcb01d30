import numpy as np
import pytest
import torch

from dptune.dpsgd import randomness
from dptune.dpsgd.randomness import (
    RandomStream,
    scoped_randomness,
    seed_sequence,
    torch_generator,
)
from dptune.errors import PrivacyError


def draws(sequence):
    return torch.rand(64, generator=torch_generator(sequence))


def test_secret_streams_have_all_bits_of_their_entropy():
    """Of 40 numbers of 256 bits, all below 2^236 has a chance of 2^-800."""
    entropies = [
        seed_sequence(stream, seed=None).entropy
        for stream in RandomStream
        for _ in range(10)
    ]
    assert len(set(entropies)) == len(entropies)
    assert max(entropies).bit_length() > randomness.ENTROPY_BITS - 20 == 236


def test_torch_seed_alone_has_32_bits():
    """Why the state is filled word by word; this is the twin."""
    first = torch.Generator().manual_seed(7)
    second = torch.Generator().manual_seed(7 + 2**32)
    assert torch.equal(torch.rand(9, generator=first), torch.rand(9, generator=second))


def test_torch_stream_is_that_of_the_whole_state():
    """numpy's Mersenne twister, given the same words, agrees output by output."""
    sequence = np.random.SeedSequence(2**200 + 5)
    words = sequence.generate_state(624, np.uint32)
    twister = np.random.MT19937()
    twister.state = {
        "bit_generator": "MT19937",
        "state": {"key": words, "pos": 624},
    }
    # torch takes two words for each integer and keeps the low bits, from the second.
    expected = twister.random_raw(4000)[1::2] % 2**31
    generator = torch_generator(sequence)
    mine = torch.randint(0, 2**31, (2000,), generator=generator, dtype=torch.int32)
    assert np.array_equal(mine.numpy(), expected)


def test_high_bits_of_the_entropy_matter():
    low, high = np.random.SeedSequence(5), np.random.SeedSequence(5 + 2**200)
    assert not torch.equal(draws(low), draws(high))


def test_without_seed_every_sequence_is_fresh():
    first = seed_sequence(RandomStream.NOISE, seed=None)
    second = seed_sequence(RandomStream.NOISE, seed=None)
    assert not torch.equal(draws(first), draws(second))


def test_seed_stream_attempt_and_step_all_matter():
    def one(**changes):
        values = {"seed": 1, "attempt": 0, "step": 0} | changes
        stream = values.pop("stream", RandomStream.NOISE)
        return tuple(draws(seed_sequence(stream, **values)).tolist())

    variants = [
        one(),
        one(seed=2),
        one(attempt=1),
        one(step=1),
        one(stream=RandomStream.MODEL),
    ]
    assert len(set(variants)) == 5
    assert one() == variants[0]


def test_scope_gives_randomness_and_puts_the_state_back():
    before = torch.get_rng_state()
    results = []
    for _ in range(2):
        with scoped_randomness(seed_sequence(RandomStream.MODEL, seed=3)):
            results.append(torch.rand(5))
    assert torch.equal(*results)
    assert torch.equal(torch.get_rng_state(), before)


def test_other_state_layout_is_refused(monkeypatch):
    monkeypatch.setattr(randomness, "_STATE_BYTES", 1)
    with pytest.raises(PrivacyError, match="pinned version"):
        torch_generator(np.random.SeedSequence(0))
