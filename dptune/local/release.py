"""The line between user and server: what crosses it, and nothing else."""

from typing import Protocol

import torch
from torch import Tensor

from dptune.errors import PrivacyError


class NormalStream(Protocol):
    """Secret independent normal numbers, such as `dptune.dpsgd.randomness`."""

    def add_to(self, values: Tensor, *, stddev: float) -> None:
        """Add independent N(0, stddev^2) to every entry, in place."""
        ...


@torch.no_grad()
def normalize(hidden: Tensor, *, max_norm: float) -> Tensor:
    """Scale the hidden state of each sequence to Frobenius norm C.

    h <- C h / ||h||_F, as one matrix over positions and features.

    **Formal guarantee**: every ||h||_F is at most C (1 + 1e-6), in float32; 0 where it
    was 0, NaN or infinite.

    Args:
        hidden: `(sequences, positions, features)`.
        max_norm: C.

    References:
        EW-FT, equation 11: ||pre(.)||_F = C, or a clip; DP-Forward, section 4.1.
    """
    values = hidden.detach().double()
    norms = values.flatten(1).norm(dim=1)[:, None, None]
    usable = torch.isfinite(norms) & (norms > 0)
    scaled = torch.where(usable, values * (max_norm / norms), 0.0)
    return scaled.float()


@torch.no_grad()
def release(
    hidden: Tensor, *, max_norm: float, noise_stddev: float, stream: NormalStream
) -> Tensor:
    """Normalize and noise hidden states: the only values that a server may see.

    **Privacy**: `hidden` is private; the result may be sent. Each entry gets noise of
    its own, those of padding too, so that no length and no mask is told.

    Args:
        hidden: `(sequences, positions, features)`, padded to one public length.
        max_norm: C.
        noise_stddev: sigma C, above 0.
        stream: secret.

    Raises:
        PrivacyError: the noise is not above 0.
    """
    if not noise_stddev > 0:
        raise PrivacyError(
            f"noise_stddev must be above 0 for a release, got {noise_stddev}."
        )
    sent = normalize(hidden, max_norm=max_norm).contiguous()
    stream.add_to(sent, stddev=noise_stddev)
    return sent
