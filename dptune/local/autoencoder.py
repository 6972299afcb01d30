"""EW-FT's stacked autoencoder, trained on public hidden states only."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from dptune.errors import ConfigError


class StackedAutoencoder(nn.Module):
    """Encode each position's features into fewer, and decode them again.

    Args:
        sizes: features of each depth, the hidden state's first, such as (768, 64).
        generator: of the initial weights.

    References:
        EW-FT, section 5.3 and table 4: 768 x 64 is its choice.
    """

    def __init__(self, sizes: Sequence[int], *, generator: torch.Generator) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise ConfigError(
                f"an autoencoder needs two or more sizes of at least 1, got {sizes}."
            )
        self.encoder = _stack(sizes, generator)
        self.decoder = _stack(tuple(reversed(sizes)), generator)


def _stack(sizes: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with a GELU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layer = nn.Linear(before, after)
        with torch.no_grad():
            bound = 1 / math.sqrt(before)
            layer.weight.uniform_(-bound, bound, generator=generator)
            layer.bias.zero_()
        layers += [layer, nn.GELU()]
    return nn.Sequential(*layers[:-1])


def train_autoencoder(
    public: Tensor,
    *,
    sizes: Sequence[int],
    num_steps: int = 1000,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    seed: int = 0,
) -> StackedAutoencoder:
    """Learn to reconstruct hidden states of public text.

    **Privacy**: nothing here is protected. `public` must come from public text; so the
    autoencoder is public too.

    Args:
        public: hidden states of tokens, `(tokens, features)`.
        sizes: see `StackedAutoencoder`.
        num_steps: of Adam on the mean squared error.
        batch_size: tokens per step.
        learning_rate: of Adam.
        seed: public.

    Returns:
        The autoencoder, in evaluation mode.
    """
    generator = torch.Generator().manual_seed(seed)
    model = StackedAutoencoder(sizes, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    for _ in range(num_steps):
        rows = torch.randint(len(public), (batch_size,), generator=generator)
        batch = public[rows]
        loss = functional.mse_loss(model.decoder(model.encoder(batch)), batch)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()
