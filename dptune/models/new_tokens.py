"""Give a model tokens of its own for canaries, before any training."""

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dptune.models._context import seeded
from dptune.models._embeddings import input_weight, output_parameters


def add_new_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: str,
    *,
    seed: int = 0,
) -> None:
    """Make each character of `texts` one token of its own, in place.

    The new rows of the input embedding, and of an untied output layer, are drawn
    around the mean of the rows that were there, with their spread: a model that never
    saw the tokens then ranks them at random, where equal rows would all tie.

    Adding tokens changes a DP run's start: use them for runs that measure leaks.

    Args:
        model: without adapters.
        tokenizer: its tokenizer.
        texts: characters that no vocabulary entry has, such as private-use ones.
        seed: public; of the new rows.
    """
    before = max(tokenizer.get_vocab().values()) + 1
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in texts])
    after = max(tokenizer.get_vocab().values()) + 1
    rows = input_weight(model).shape[0]
    if after > rows:
        with seeded(0):
            model.resize_token_embeddings(after, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    known = min(before, rows)
    for parameter in (input_weight(model), *output_parameters(model)):
        _draw_rows(parameter, num_known=known, last=after, generator=generator)


@torch.no_grad()
def _draw_rows(
    parameter: Tensor, *, num_known: int, last: int, generator: torch.Generator
) -> None:
    """Draw rows `[num_known, last)` from a normal law fitted to those before."""
    known = parameter[:num_known].double().cpu()
    shape = (last - num_known, *known.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    drawn = known.mean(dim=0) + known.std(dim=0) * noise
    parameter[num_known:last] = drawn.to(parameter)
