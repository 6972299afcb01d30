import numpy as np
import pytest
import torch
from scipy import stats

from dptune.dpsgd import randomness
from dptune.dpsgd.randomness import GaussianStream, _runs


def draw(seed, *sizes):
    stream = GaussianStream(np.random.SeedSequence(seed))
    values = [torch.zeros(size) for size in sizes]
    for value in values:
        stream.add_to(value, stddev=1.0)
    return torch.cat(values)


def test_stream_does_not_depend_on_how_it_is_cut():
    """No number is given out twice, none is lost, across pieces and tensors."""
    total = randomness._PIECE * 2 + 77
    whole = draw(3, total)
    assert torch.equal(whole, draw(3, 5, randomness._PIECE, 72, randomness._PIECE))
    assert len(whole.unique()) > 0.99 * total


def test_numbers_are_normal_and_halves_are_uncorrelated():
    numbers = draw(4, 4 * randomness._PIECE).double()
    assert stats.kstest(numbers.numpy(), "norm").pvalue > 1e-6
    halves = numbers.view(-1, 2, randomness._PIECE // 2)
    cosines, sines = halves[:, 0].flatten(), halves[:, 1].flatten()
    correlation = float((cosines * sines).mean()) * len(sines) ** 0.5
    squares = float((cosines.square() * sines.square()).mean() - 1)
    assert abs(correlation) < 5
    assert abs(squares) * len(sines) ** 0.5 < 5 * 8**0.5


def test_high_bits_of_the_entropy_matter():
    assert not torch.equal(draw(5, 9), draw(5 + 2**200, 9))


def test_largest_numbers_are_normal_and_not_on_a_few_circles():
    """With the radius of every pair in the outermost 2^-31, they still spread."""
    stream = GaussianStream(np.random.SeedSequence(0))
    stream._encryptor = _Stuck(bytes(4), behind=np.random.default_rng(1).bytes)
    values = torch.zeros(randomness._PIECE)
    stream.add_to(values, stddev=1.0)
    cosines, sines = values.double().view(2, -1)
    exponents = (cosines.square() + sines.square()) / 2 - 31 * np.log(2)
    assert len(exponents.unique()) > 1000
    assert stats.kstest(exponents.numpy(), "expon").pvalue > 1e-6


@pytest.mark.parametrize("stuck", [bytes(4), b"\xff" * 4, b"\x00\x00\x00\x80"])
@pytest.mark.parametrize("behind", [b"\x00", b"\xff"])
def test_extreme_bits_give_finite_numbers(stuck, behind):
    stream = GaussianStream(np.random.SeedSequence(0))
    stream._encryptor = _Stuck(stuck, behind=lambda size: behind * size)
    values = torch.zeros(randomness._PIECE)
    stream.add_to(values, stddev=1.0)
    assert torch.isfinite(values).all()
    assert float(values.abs().max()) < 11.6


class _Stuck:
    """A cipher that is no cipher: the same four bytes for ever, others behind them."""

    def __init__(self, fill, *, behind):
        self._fill = fill
        self._behind = behind

    def update_into(self, data, buffer):
        buffer[: len(data)] = self._fill * (len(data) // 4)

    def update(self, data):
        return self._behind(len(data))


def accelerated(seed):
    """A stream that draws as on an accelerator, on the CPU."""
    stream = GaussianStream(np.random.SeedSequence(seed))
    stream._device = torch.device("meta")
    stream._generator = torch.Generator().manual_seed(seed)
    return stream


def test_numbers_of_an_accelerator_are_independent_over_tensors(monkeypatch):
    monkeypatch.setattr("dptune.dpsgd.randomness._DOUBLE_PIECE", 6500)
    tensors = [torch.ones(4000), torch.ones(2, 1000), torch.ones(7000)]
    told = []
    stream = accelerated(0)
    stream.listener = lambda number, stddev: told.append((number, stddev))
    stream.add_to(*tensors, stddev=3.0)
    numbers = torch.cat([(one.flatten() - 1) / 3 for one in tensors])
    assert told == [(4000, 3.0), (2000, 3.0), (7000, 3.0)]
    assert len(numbers.unique()) > 12_500
    assert abs(float(numbers.mean())) < 4 / len(numbers) ** 0.5
    assert abs(float(numbers.var()) - 1) < 4 * (2 / len(numbers)) ** 0.5
    first, second = numbers[:2000], numbers[4000:6000]
    assert abs(float((first * second).mean())) < 4 / 2000**0.5


@pytest.mark.parametrize("lengths", [[], [3], [4], [9], [3, 1, 1], [2, 9, 1, 4]])
def test_runs_hold_every_entry_once_and_no_more_than_they_may(lengths):
    flats = [torch.full((n,), float(i)) for i, n in enumerate(lengths)]
    runs = list(_runs(flats, 4))
    assert all(0 < sum(map(len, run)) <= 4 for run in runs)
    pieces = [piece for run in runs for piece in run]
    assert torch.equal(
        torch.cat([*pieces, torch.empty(0)]), torch.cat([*flats, torch.empty(0)])
    )
    for piece in pieces:
        piece.add_(1)
    assert all(bool((flat == i + 1).all()) for i, flat in enumerate(flats))
