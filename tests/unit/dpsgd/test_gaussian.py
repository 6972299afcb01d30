import numpy as np
import torch
from scipy import stats

from dptune.dpsgd import gaussian
from dptune.dpsgd.gaussian import GaussianStream


def draw(seed, *sizes):
    stream = GaussianStream(np.random.SeedSequence(seed))
    values = [torch.zeros(size) for size in sizes]
    for value in values:
        stream.add_to(value, stddev=1.0)
    return torch.cat(values)


def test_stream_does_not_depend_on_how_it_is_cut():
    """No number is given out twice, none is lost, across pieces and tensors."""
    total = gaussian._PIECE * 2 + 77
    whole = draw(3, total)
    assert torch.equal(whole, draw(3, 5, gaussian._PIECE, 72, gaussian._PIECE))
    assert len(whole.unique()) > 0.99 * total


def test_numbers_are_normal_and_halves_are_uncorrelated():
    numbers = draw(4, 4 * gaussian._PIECE).double()
    assert stats.kstest(numbers.numpy(), "norm").pvalue > 1e-6
    halves = numbers.view(-1, 2, gaussian._PIECE // 2)
    cosines, sines = halves[:, 0].flatten(), halves[:, 1].flatten()
    correlation = float((cosines * sines).mean()) * len(sines) ** 0.5
    squares = float((cosines.square() * sines.square()).mean() - 1)
    assert abs(correlation) < 5
    assert abs(squares) * len(sines) ** 0.5 < 5 * 8**0.5


def test_high_bits_of_the_entropy_matter():
    assert not torch.equal(draw(5, 9), draw(5 + 2**200, 9))


def test_tail_is_that_of_the_smallest_uniform_number():
    stream = GaussianStream(np.random.SeedSequence(0))
    stream._encryptor = _Zeros()
    values = torch.zeros(gaussian._PIECE)
    stream.add_to(values, stddev=1.0)
    assert 6.7 < float(values.abs().max()) < 6.8
    assert torch.isfinite(values).all()


def test_extreme_bits_give_finite_numbers():
    stream = GaussianStream(np.random.SeedSequence(0))
    stream._encryptor = _Zeros(fill=b"\x00\x00\x00\x80")  # the least integer
    values = torch.zeros(gaussian._PIECE)
    stream.add_to(values, stddev=1.0)
    assert torch.isfinite(values).all()


class _Zeros:
    """A cipher that is no cipher: the same four bytes for ever."""

    def __init__(self, fill=bytes(4)):
        self._fill = fill

    def update_into(self, data, buffer):
        buffer[: len(data)] = self._fill * (len(data) // 4)
