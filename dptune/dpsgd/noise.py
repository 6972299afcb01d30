"""Gaussian noise on a sum of clipped gradients: independent, or banded over steps.

A mechanism lives as long as one process trains. No noise is ever stored: whoever reads
it from a disk can subtract it.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import torch
from torch import Tensor

from dptune.dpsgd.factorization import Coefficients, is_normalized
from dptune.dpsgd.randomness import GaussianStream, RandomStream, seed_sequence
from dptune.errors import ConfigError, PrivacyError

MAX_NOISE_BYTES: Final = 16 * 2**30
"""Memory that past noise may take unless the caller says otherwise."""

_FLOAT32_BYTES: Final = 4


class NoiseMechanism(Protocol):
    """Adds one step's noise after another. It knows nothing of how sums are made."""

    def add(self, sums: Mapping[str, Tensor], *, step: int) -> None:
        """Add the noise of `step` to the clipped sums, in place."""
        ...


def noise_stream(
    *,
    device: str | torch.device = "cpu",
    fixed_seed: int | None = None,
    attempt: int = 0,
    rank: int = 0,
) -> GaussianStream:
    """Return a stream of noise, secret unless a seed is given explicitly.

    **Privacy**: whoever knows the state can subtract the noise. `fixed_seed` is for
    tests. `attempt` counts process starts, so that a resumed run never draws again the
    noise that an earlier attempt has already used: the difference of two releases with
    equal noise has no noise at all.

    Args:
        device: where the gradients are.
        fixed_seed: `None` for entropy of the operating system.
        attempt: number of this process start, from 0.
        rank: of this process among those of a run. Parts of one sum that are noised by
            several ranks must not share their noise.
    """
    sequence = seed_sequence(
        RandomStream.NOISE, seed=fixed_seed, attempt=attempt, rank=rank
    )
    return GaussianStream(sequence, device=device)


def add_gaussian_noise(
    sums: Mapping[str, Tensor], *, noise_stddev: float, stream: GaussianStream
) -> None:
    """Add independent N(0, noise_stddev^2) to every entry of every tensor, in place.

    **Formal guarantee**: the mechanism sum + N(0, s^2 I) is the Gaussian mechanism with
    multiplier s / sensitivity in exact arithmetic. The noise has float32 resolution and
    ends at 11.5 s on the CPU, beyond 8 s on an accelerator; attacks on floating-point
    noise are outside the guarantee.

    | case | result |
    |---|---|
    | `noise_stddev` 0 | unchanged, nothing is drawn |
    | all sums are zero (empty batch) | pure noise |

    **Privacy**: the sums are private before the call and may be released after it.

    Args:
        sums: float32 tensors; every trainable parameter must be among them.
        noise_stddev: absolute, at least 0 and finite.
        stream: on the device of the sums.

    Raises:
        PrivacyError: the stddev is negative or not finite, or a sum is not float32.
    """
    _check_stddev(noise_stddev)
    for name, value in sums.items():
        _check_float32(name, value)
    if noise_stddev > 0:
        stream.add_to(*sums.values(), stddev=noise_stddev)


class IndependentNoise:
    """Fresh noise at every step, see `add_gaussian_noise`.

    Args:
        noise_stddev: absolute stddev of a step.
        stream: secret; see `noise_stream`.
    """

    def __init__(
        self, *, noise_stddev: Callable[[int], float], stream: GaussianStream
    ) -> None:
        self._noise_stddev = noise_stddev
        self._stream = stream

    def add(self, sums: Mapping[str, Tensor], *, step: int) -> None:
        """Add the noise of one step, in place."""
        add_gaussian_noise(
            sums, noise_stddev=self._noise_stddev(step), stream=self._stream
        )


class GroupedNoise:
    """Fresh noise at every step, of a stddev for each parameter.

    Args:
        noise_stddevs: absolute stddev of a step for every parameter; called once a
            step, when its noise is drawn.
        stream: secret; see `noise_stream`.
    """

    def __init__(
        self,
        *,
        noise_stddevs: Callable[[int], Mapping[str, float]],
        stream: GaussianStream,
    ) -> None:
        self._noise_stddevs = noise_stddevs
        self._stream = stream

    def add(self, sums: Mapping[str, Tensor], *, step: int) -> None:
        """Add the noise of one step, in place."""
        stddevs = self._noise_stddevs(step)
        if stddevs.keys() != sums.keys() or not all(s > 0 for s in stddevs.values()):
            raise PrivacyError(
                f"every released sum must have noise of its own, got {len(sums)} sums "
                f"and {sum(s > 0 for s in stddevs.values())} stddevs above 0."
            )
        for name, value in sums.items():
            add_gaussian_noise(
                {name: value}, noise_stddev=stddevs[name], stream=self._stream
            )


class BandedNoise:
    """Noise y = C^-1 z over the steps: each step takes back some of the last b - 1.

    With c the coefficients of C and z_t independent N(0, noise_stddev^2),

        y_t = (z_t - c_1 y_{t-1} - ... - c_{b-1} y_{t-b+1}) / c_0.

    **Formal guarantee**: let g_t be the sums of steps 0 to n - 1 of one mechanism, each
    computed from earlier releases, and let a unit join at most once in any b
    consecutive steps, adding at most C in norm. The releases g_t + y_t are a one-to-one
    image of (C g)_t + z_t, since C is lower triangular. A unit that joins step t with
    gradient x moves rows t to t + b - 1 of C g by c_0 x to c_{b-1} x: by at most C |c|
    = C together, and rows that no other participation of it moves. So m participations
    are m adaptively composed Gaussian mechanisms of multiplier noise_stddev / C, each
    sampled as the participation is. `GradientPlan.dp_event` counts them.

    The first step of a mechanism has no past. A resumed run has to start a new one,
    with new groups, and pays for its steps by themselves.

    | case | result |
    |---|---|
    | one coefficient | independent noise |
    | all sums are zero (empty batch) | pure noise |
    | a step is skipped or repeated | `PrivacyError` |

    Holds b - 1 float32 copies of the sums, on their device. Rounding is that of
    `add_gaussian_noise`.

    Args:
        coefficients: c, with c_0 > 0 and norm 1; see `band_coefficients`.
        noise_stddev: of z, absolute, at least 0 and finite.
        stream: secret, on the device of the sums; see `noise_stream`.
        sums: of the shapes that `add` will be given.
        max_bytes: memory that past noise may take.

    Raises:
        ConfigError: past noise does not fit into `max_bytes`.
        PrivacyError: the norm of c is not 1, so that the stddev would not be that of
            the claim; or the stddev is negative or not finite.

    References:
        Choquette-Choo et al. (2023), algorithm 1 and section 5, arXiv:2306.08153.
        Denisov et al. (2022), theorem 2.1, adaptive gradients, arXiv:2202.08312.
    """

    def __init__(
        self,
        *,
        coefficients: Coefficients,
        noise_stddev: float,
        stream: GaussianStream,
        sums: Mapping[str, Tensor],
        max_bytes: int = MAX_NOISE_BYTES,
    ) -> None:
        _check_stddev(noise_stddev)
        if not is_normalized(coefficients):
            raise PrivacyError(
                "coefficients must have norm 1 and begin above 0, got "
                f"coefficients={coefficients}. Make them with band_coefficients."
            )
        _check_memory(len(coefficients), sums, max_bytes)
        self._coefficients = coefficients
        self._noise_stddev = noise_stddev
        self._stream = stream
        self._past: deque[dict[str, Tensor]] = deque()
        self._next_step: int | None = None

    def add(self, sums: Mapping[str, Tensor], *, step: int) -> None:
        """Add the noise of the next step, in place."""
        if self._next_step not in (None, step):
            raise PrivacyError(
                f"banded noise must be added step by step, got step={step} after "
                f"{(self._next_step or 0) - 1}. Start a new mechanism and charge it."
            )
        for name, value in sums.items():
            _check_float32(name, value)
        self._next_step = step + 1
        if self._noise_stddev == 0:
            return
        noise = self._draw(sums)
        for name, value in sums.items():
            value.add_(noise[name])
        if len(self._coefficients) > 1:
            self._past.appendleft(noise)

    def _draw(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute y_t, in the memory of the noise that falls out of the bands."""
        first, *rest = self._coefficients
        is_full = len(self._past) == len(rest) > 0
        oldest = self._past.pop() if is_full else None
        noise = {}
        for name, value in sums.items():
            y = torch.zeros_like(value) if oldest is None else oldest[name]
            y.mul_(-rest[-1] / first if is_full else 0.0)
            for band, past in zip(rest, self._past, strict=False):
                y.add_(past[name], alpha=-band / first)
            self._stream.add_to(y, stddev=self._noise_stddev / first)
            noise[name] = y
        return noise


def _check_stddev(noise_stddev: float) -> None:
    """Refuse what is no standard deviation."""
    if not 0 <= noise_stddev < float("inf"):
        raise PrivacyError(
            f"noise_stddev must be in [0, inf), got noise_stddev={noise_stddev}."
        )


def _check_float32(name: str, value: Tensor) -> None:
    """Refuse sums that are too coarse for noise."""
    if value.dtype != torch.float32:
        raise PrivacyError(
            f"the gradient sum of {name} must be float32, got {value.dtype}."
        )


def _check_memory(num_bands: int, sums: Mapping[str, Tensor], max_bytes: int) -> None:
    """Refuse before anything is charged what would not fit."""
    entries = sum(value.numel() for value in sums.values())
    needed = (num_bands - 1) * entries * _FLOAT32_BYTES
    if needed > max_bytes:
        raise ConfigError(
            f"past noise must fit into max_noise_bytes={max_bytes}, got {needed} bytes "
            f"for num_bands={num_bands} and {entries} trained parameters. Choose fewer "
            "bands, train adapters, or raise the limit."
        )
