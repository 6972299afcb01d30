"""Give a model tokens of its own: the mask of everything redacted, and canaries'."""

import json
from collections.abc import Mapping, Sequence

import torch
from peft import PeftModel
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dptune.errors import ModelError
from dptune.models.build import input_weight, output_parameters, seeded
from dptune.text import MASK


def add_mask_token(
    model: PreTrainedModel | PeftModel, tokenizer: PreTrainedTokenizerFast
) -> int:
    """Make sure that model and tokenizer have a mask token; return its id.

    A tokenizer with a mask token (BERT, RoBERTa) keeps it. Otherwise `<mask>` is added
    to tokenizer and model, both in place: it swallows the space before it
    (`lstrip=True`), because GPT-2 writes that space into the following word, and the
    space after it too for tokenizers that put one before every piece of text (Llama).

    The new row of the input embedding, and of an untied output layer, is the mean of
    the rows that existed, the same in every call. Under LoRA it never trains, so that
    its start is what the model keeps. Calling twice changes nothing.

    Adding tokens changes a DP run's start: keep `<mask>` out of runs that do not need
    it.

    Args:
        model: any causal or masked language model of transformers, without adapters.
        tokenizer: its tokenizer.

    Raises:
        ModelError: the model has adapters already; add the token before them. Or the
            tokenizer's numbers have gaps.
    """
    if isinstance(model, PeftModel):
        raise ModelError(
            "the mask token must be added before LoRA, got a model with adapters. "
            "Call add_mask_token first, then add_lora."
        )
    num_known = _vocabulary_size(tokenizer)
    mask_id = _register(tokenizer)
    is_new = mask_id >= num_known
    if is_new or mask_id >= input_weight(model).shape[0]:
        _initialize_rows(model, first=mask_id, last=_vocabulary_size(tokenizer))
    return mask_id


def _vocabulary_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """One more than the largest token id."""
    return max(tokenizer.get_vocab().values()) + 1


def _register(tokenizer: PreTrainedTokenizerFast) -> int:
    """Name the mask token in the tokenizer and return its id."""
    known = tokenizer.get_vocab()
    if tokenizer.mask_token_id is None:
        token = AddedToken(
            MASK,
            lstrip=True,
            rstrip=_prepends_space(tokenizer),
            normalized=False,
            special=True,
        )
        tokenizer.add_special_tokens({"mask_token": token})
    mask_id = tokenizer.mask_token_id
    if not isinstance(mask_id, int):
        raise ModelError("the tokenizer took no mask token. Use a fast tokenizer.")
    if MASK not in known and tokenizer.mask_token == MASK:
        _refuse_shared([mask_id], known)
    return mask_id


def _refuse_shared(added: Sequence[int], known: Mapping[str, int]) -> None:
    """Refuse new tokens that do not follow all known ones: two might have one number.

    Tokenizers number a new token by how many there are, whatever numbers are taken.
    """
    first = max(known.values()) + 1
    if sorted(added) != list(range(first, first + len(added))):
        raise ModelError(
            f"the tokenizer must number its tokens without gaps, got {len(known)} "
            f"tokens with numbers up to {first - 1}: a new one would take the number "
            "of another. Renumber its vocabulary, or use another model."
        )


def _prepends_space(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether every piece of text between special tokens gets a space before it."""
    normalizer = json.loads(tokenizer.backend_tokenizer.to_str())["normalizer"] or {}
    parts = [normalizer, *normalizer.get("normalizers", ())]
    return any(part.get("type") == "Prepend" for part in parts)


def _initialize_rows(model: PreTrainedModel, *, first: int, last: int) -> None:
    """Set rows `[first, last)` of both ends to the mean of those before."""
    num_rows = input_weight(model).shape[0]
    if last > num_rows:
        with seeded(0):
            model.resize_token_embeddings(last, mean_resizing=False)
    for parameter in (input_weight(model), *output_parameters(model)):
        _set_mean(parameter, num_trained=min(first, num_rows), last=last)


@torch.no_grad()
def _set_mean(parameter: Tensor, *, num_trained: int, last: int) -> None:
    """Write the mean of the first rows over the rows `[num_trained, last)`."""
    mean = parameter[:num_trained].double().mean(dim=0)
    parameter[num_trained:last] = mean.to(parameter.dtype)


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

    Raises:
        ModelError: the tokenizer's numbers have gaps.
    """
    known = tokenizer.get_vocab()
    before = max(known.values()) + 1
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in texts])
    numbers = tokenizer.get_vocab()
    _refuse_shared([numbers[t] for t in set(texts) - known.keys()], known)
    after = max(tokenizer.get_vocab().values()) + 1
    rows = input_weight(model).shape[0]
    if after > rows:
        with seeded(0):
            model.resize_token_embeddings(after, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    first = min(before, rows)
    for parameter in (input_weight(model), *output_parameters(model)):
        _draw_rows(parameter, num_known=first, last=after, generator=generator)


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
