"""Gaussian noise on a sum of clipped gradients."""

from collections.abc import Mapping

import torch
from torch import Tensor

from dptune.dpsgd.randomness import RandomStream, seed_sequence, torch_generator
from dptune.errors import PrivacyError


def noise_generator(
    *,
    device: str | torch.device = "cpu",
    fixed_seed: int | None = None,
    attempt: int = 0,
) -> torch.Generator:
    """Return a generator for noise, secret unless a seed is given explicitly.

    **Privacy**: whoever knows the state can subtract the noise. `fixed_seed` is for
    tests. `attempt` counts process starts, so that a resumed run never draws again the
    noise that an earlier attempt has already used: the difference of two releases with
    equal noise has no noise at all.

    Args:
        device: where the gradients are.
        fixed_seed: `None` for entropy of the operating system.
        attempt: number of this process start, from 0.
    """
    sequence = seed_sequence(RandomStream.NOISE, seed=fixed_seed, attempt=attempt)
    return torch_generator(sequence, device=device)


def add_gaussian_noise(
    sums: Mapping[str, Tensor], *, noise_stddev: float, generator: torch.Generator
) -> None:
    """Add independent N(0, noise_stddev^2) to every entry of every tensor, in place.

    **Formal guarantee**: the mechanism sum + N(0, s^2 I) is the Gaussian mechanism with
    multiplier s / sensitivity in exact arithmetic. The noise has float32 resolution and
    is cut at about 5.8 s; attacks on floating-point noise are outside the guarantee.

    | case | result |
    |---|---|
    | `noise_stddev` 0 | unchanged, nothing is drawn |
    | all sums are zero (empty batch) | pure noise |

    **Privacy**: the sums are private before the call and may be released after it.

    Args:
        sums: float32 tensors; every trainable parameter must be among them.
        noise_stddev: absolute, at least 0 and finite.
        generator: on the device of the sums.

    Raises:
        PrivacyError: the stddev is negative or not finite, or a sum is not float32.
    """
    if not 0 <= noise_stddev < float("inf"):
        raise PrivacyError(
            f"noise_stddev must be in [0, inf), got noise_stddev={noise_stddev}."
        )
    largest = max((value.numel() for value in sums.values()), default=0)
    scratch = torch.empty(largest, dtype=torch.float32, device=generator.device)
    for name, value in sums.items():
        if value.dtype != torch.float32:
            raise PrivacyError(
                f"the gradient sum of {name} must be float32, got {value.dtype}."
            )
        if noise_stddev > 0:
            noise = scratch[: value.numel()].normal_(generator=generator)
            value.add_(noise.view_as(value), alpha=noise_stddev)
