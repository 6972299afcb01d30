"""The two ends of a language model that have one row per token."""

from torch import Tensor, nn
from transformers import PreTrainedModel


def input_weight(model: PreTrainedModel) -> Tensor:
    """Weight of the input embedding, (tokens, hidden)."""
    weight = model.get_input_embeddings().weight
    if not isinstance(weight, Tensor):
        raise TypeError("the input embedding has no weight")
    return weight


def output_parameters(model: PreTrainedModel) -> list[Tensor]:
    """Weight and bias of the output layer that are not the input embedding's."""
    outputs: nn.Module | None = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # transformers leaves it untyped
    if outputs is None:
        return []
    found = dict(outputs.named_parameters(recurse=False)).values()
    return [p for p in found if p is not input_weight(model)]
