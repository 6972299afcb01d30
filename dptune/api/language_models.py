"""Models that are measured: each must say of every token what comes next."""

from collections.abc import Iterator, Mapping

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from dptune.attacks.inference import check_causal, evaluating
from dptune.errors import ConfigError, ModelError, Problem

_SHOWN = 4
_USE = "Use a causal language model and the tokenizer that it was trained with."


def check_language_models(
    models: Mapping[str, nn.Module],
    tokenizer: PreTrainedTokenizerFast,
    *,
    longest: int,
    bos_token_id: int | None = None,
) -> None:
    """Refuse models that an attack by token losses would end on, or misread.

    Args:
        models: by the names of their arguments.
        tokenizer: of all.
        longest: tokens of the longest row.
        bos_token_id: what opens it, if anything does.

    Raises:
        ConfigError: one looks ahead, is none of language, or has fewer tokens or
            positions than it needs; all at once.
    """
    needed = max(*tokenizer.get_vocab().values(), bos_token_id or 0) + 1
    problems = [
        Problem(path=name, message=message, next_step=_USE)
        for name, model in models.items()
        for message in _problems(model, needed=needed, longest=longest)
    ]
    if problems:
        raise ConfigError(problems)


def _problems(model: nn.Module, *, needed: int, longest: int) -> Iterator[str]:
    """Say what is wrong with a model, by rows that are made up."""
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    few = torch.arange(_SHOWN, device=device)[None] % needed
    try:
        with evaluating(model), torch.inference_mode():
            shape = tuple(model(input_ids=few).logits.shape)
            if len(shape) == 3:
                check_causal(model, few)
    except ModelError as error:
        yield str(error)
        return
    except Exception as error:  # noqa: BLE001 - code of models can raise anything
        yield f"must compute logits from input_ids, which raised {_kind(error)}."
        return
    if len(shape) != 3 or shape[:2] != few.shape:
        yield f"must give logits for every token, got shape {list(shape)}."
    elif shape[2] < needed:
        yield f"must have the {needed} tokens that it is asked for, got {shape[2]}."
    elif longest > _SHOWN:
        row = torch.zeros((1, longest), dtype=torch.long, device=device)
        try:
            with evaluating(model), torch.inference_mode():
                model(input_ids=row)
        except Exception as error:  # noqa: BLE001
            kind = _kind(error)
            yield f"must compute a row of {longest} tokens, which raised {kind}."


def _kind(error: Exception) -> str:
    """Name an error without its message."""
    return type(error).__name__
