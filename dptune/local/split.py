"""An encoder classifier in two parts: the user's, frozen, and the server's, trained."""

import copy
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask

from dptune.errors import ConfigError, ModelError


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


class UserPart(nn.Module):
    """Embeddings, the layers before the noise, and an encoder: pre(.) in the paper.

    Frozen and public: every user has the same one, and nothing is learnt in it.
    """

    def __init__(
        self,
        base: Any,  # noqa: ANN401 - any BERT
        *,
        layer: int,
        encoder: nn.Module | None,
    ) -> None:
        super().__init__()
        self._config = base.config
        self.embeddings: nn.Module = copy.deepcopy(base.embeddings)
        self.layers: nn.ModuleList = copy.deepcopy(base.encoder.layer[:layer])
        self.encoder = copy.deepcopy(encoder)
        self.requires_grad_(requires_grad=False).eval()

    @torch.no_grad()
    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return private hidden states, `(sequences, positions, features)`.

        Args:
            tokens: padded to one public length, `(sequences, positions)`.
            mask: 1 for tokens; it stays with the user.
        """
        hidden = self.embeddings(input_ids=tokens)
        attend = create_bidirectional_mask(
            config=self._config, inputs_embeds=hidden, attention_mask=mask
        )
        for layer in self.layers:
            hidden = layer(hidden, attend)
        encoded: Tensor = hidden if self.encoder is None else self.encoder(hidden)
        return encoded


class ServerPart(nn.Module):
    """A decoder, the layers after the noise, and the head: post(.) in the paper.

    It attends to every position, since no mask is sent. What it receives has norm C;
    `scale` brings it back to the size that its layers know, and is public.
    """

    scale: Tensor

    def __init__(
        self,
        model: Any,  # noqa: ANN401 - any BERT
        *,
        layer: int,
        decoder: nn.Module | None,
        scale: float,
    ) -> None:
        super().__init__()
        base = model.base_model
        self.decoder = copy.deepcopy(decoder)
        self.layers: nn.ModuleList = copy.deepcopy(base.encoder.layer[layer:])
        self.pooler: nn.Module | None = copy.deepcopy(base.pooler)
        self.dropout: nn.Module | None = copy.deepcopy(getattr(model, "dropout", None))
        self.classifier: nn.Module = copy.deepcopy(model.classifier)
        self.register_buffer("scale", torch.tensor(scale))

    def forward(self, received: Tensor) -> Tensor:
        """Return logits, `(sequences, classes)`, of what was received."""
        hidden = received * self.scale
        hidden = hidden if self.decoder is None else self.decoder(hidden)
        for layer in self.layers:
            hidden = layer(hidden)
        if self.pooler is not None:
            hidden = self.pooler(hidden)
        if self.dropout is not None:
            hidden = self.dropout(hidden)
        logits: Tensor = self.classifier(hidden)
        return logits


def split_model(
    model: PreTrainedModel,
    *,
    layer: int,
    autoencoder: StackedAutoencoder | None = None,
    num_positions: int,
    max_norm: float,
) -> tuple[UserPart, ServerPart]:
    """Cut a classifier after `layer` encoder layers; the model itself is not changed.

    Args:
        model: BERT-like: `encoder.layer` in its base, and a `classifier`.
        layer: layers of the user, from 1 to all but one.
        autoencoder: its encoder goes to the user, its decoder to the server.
        num_positions: public length of every sequence.
        max_norm: C, the norm of what the server receives, noise aside.

    Raises:
        ModelError: the model has another shape, or too few layers.
    """
    base: Any = model.base_model
    layers = getattr(getattr(base, "encoder", None), "layer", None)
    if layers is None or not hasattr(model, "classifier"):
        raise ModelError(
            "a model must have encoder.layer and a classifier to be split, such as "
            f"BERT, got {type(model).__name__}."
        )
    if not 1 <= layer < len(layers):
        raise ModelError(
            f"layer must be in [1, {len(layers) - 1}], got {layer}: the server needs "
            "one, and the user too."
        )
    size = _typical_norm(layers[layer - 1], num_positions)
    if autoencoder is not None:
        size *= _gain(autoencoder)
    user = UserPart(
        base, layer=layer, encoder=autoencoder.encoder if autoencoder else None
    )
    server = ServerPart(
        model,
        layer=layer,
        decoder=autoencoder.decoder if autoencoder else None,
        scale=size / max_norm,
    )
    return user, server


def merge_server(model: PreTrainedModel, server: ServerPart, *, layer: int) -> None:
    """Put a trained server's layers and head back into the whole model, in place.

    The whole model is for whoever may see the text: it runs without the line, so
    without noise, normalization and autoencoder.
    """
    whole: Any = model
    base: Any = model.base_model
    base.encoder.layer[layer:].load_state_dict(server.layers.state_dict())
    if server.pooler is not None:
        base.pooler.load_state_dict(server.pooler.state_dict())
    whole.classifier.load_state_dict(server.classifier.state_dict())


def _typical_norm(layer: Any, num_positions: int) -> float:  # noqa: ANN401 - any BERT
    """Frobenius norm behind a layer, as its LayerNorm fixes it: no data is read."""
    norm = layer.output.LayerNorm
    per_position = norm.weight.square().sum() + norm.bias.square().sum()
    return math.sqrt(num_positions * per_position.item())


def _gain(autoencoder: StackedAutoencoder) -> float:
    """How the encoder changes the norm of a state, on made-up ones: no data is read."""
    first = next(autoencoder.encoder.parameters())
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(256, first.shape[1], generator=generator)
    with torch.no_grad():
        encoded = autoencoder.encoder(states)
    return float(encoded.norm() / states.norm())
