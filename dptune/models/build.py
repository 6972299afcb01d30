"""Build a small GPT-2 on the spot, and add low-rank adapters to a model."""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.pytorch_utils import Conv1D

from dptune.errors import ModelError

_NUMBER = re.compile(r"\.(\d+)\.")

_TAKEN_BARE = {
    "LongcatFlashTopkRouter": ("classifier",),
    "LayoutLMv3Encoder": ("rel_pos_bias", "rel_pos_x_bias", "rel_pos_y_bias"),
}
"""Layers that are never called, by the module that takes their weight."""


@contextmanager
def without_peft_warning() -> Iterator[None]:
    """Ignore a property that transformers 5.23 has renamed, and ranks of experts.

    peft 0.21 reads the one, and overlooks that the other are those of parameters.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="`is_gradient_checkpointing`")
        warnings.filterwarnings("ignore", message="The following (rank|alpha)_pattern")
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from `seed` inside; the global generator is as before afterwards.

    transformers and peft initialise from the global CPU generator and take no other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def input_weight(model: PreTrainedModel) -> Tensor:
    """Weight of the input embedding, (tokens, hidden).

    Raises:
        ModelError: the model has none, such as one that reads characters.
    """
    try:
        weight = model.get_input_embeddings().weight
    except NotImplementedError as error:
        raise ModelError(
            f"{type(model).__name__} must have an input embedding with a row for each "
            "token, got none. Use a model that reads tokens."
        ) from error
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


def build_gpt2(
    tokenizer: PreTrainedTokenizerFast,
    *,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    max_tokens: int,
    seed: int,
    tie_word_embeddings: bool = True,
    dropout: float = 0.0,
) -> GPT2LMHeadModel:
    """Build a GPT-2 with fresh weights, in evaluation mode and fp32.

    The initial weights depend on `seed` and the sizes only; they are public, and the
    global random state is left as it was. Forward passes keep no key-value cache unless
    asked (`use_cache=True`), since training has no use for it; `generate` keeps one.
    Attention is torch's scaled dot product, the default of transformers.

    Args:
        tokenizer: gives the vocabulary size and the special tokens.
        num_layers: transformer blocks, at least 1.
        num_heads: attention heads; divides `hidden_size`.
        hidden_size: width.
        max_tokens: longest record in tokens, at least 2.
        seed: of the initial weights.
        tie_word_embeddings: share the input embedding with the output layer.
        dropout: in [0, 1), for embeddings, attention and residuals.

    Raises:
        ModelError: the sizes do not fit together.
    """
    _check_sizes(
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_size=hidden_size,
        max_tokens=max_tokens,
        dropout=dropout,
    )
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=max_tokens,
        n_embd=hidden_size,
        n_layer=num_layers,
        n_head=num_heads,
        activation_function="gelu_pytorch_tanh",  # gelu_new, in one kernel
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=tie_word_embeddings,
        use_cache=False,
    )
    with seeded(seed):
        model = GPT2LMHeadModel(config)
    if model.generation_config is not None:
        model.generation_config.use_cache = True
    model.train(mode=False)
    return model


def _check_sizes(
    *,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    max_tokens: int,
    dropout: float,
) -> None:
    """Refuse sizes that make no model."""
    if min(num_layers, num_heads, hidden_size) < 1 or max_tokens < 2:
        raise ModelError(
            "num_layers, num_heads and hidden_size must be at least 1 and max_tokens "
            f"at least 2, got num_layers={num_layers}, num_heads={num_heads}, "
            f"hidden_size={hidden_size}, max_tokens={max_tokens}."
        )
    if hidden_size % num_heads:
        raise ModelError(
            f"hidden_size must be a multiple of num_heads={num_heads}, "
            f"got hidden_size={hidden_size}."
        )
    if not 0.0 <= dropout < 1.0:
        raise ModelError(f"dropout must be in [0, 1), got dropout={dropout}.")


def add_lora(
    model: PreTrainedModel | PeftModel,
    *,
    rank: int,
    alpha: float,
    target_modules: Sequence[str] | None = None,
    last_layers: int | None = None,
    dropout: float = 0.0,
    use_rslora: bool = False,
    seed: int = 0,
) -> PeftModel:
    """Wrap `model`, in place, so that only low-rank adapters train.

    A layer W x becomes W x + (alpha / rank) B A x, or with `use_rslora`
    W x + (alpha / sqrt(rank)) B A x, whose size does not fall as the rank grows. B
    starts at zero, so that the model
    computes what it did before; A is drawn from `seed`, which is public, and the global
    random state is left as it was. A sequence classifier also trains its head.

    Args:
        model: a model of transformers without adapters.
        rank: of the adapters, at least 1.
        alpha: scale, positive.
        target_modules: endings of layer names (Linear or Conv1D); by default all such
            layers below the head, but those whose weights a model takes bare. Of a
            name that experts have too, peft adapts their parameters.
        last_layers: keep the targets in the last so many numbered layers only.
        dropout: on the adapters' input, in [0, 1).
        use_rslora: rank-stabilised scaling.
        seed: of the initial A.

    Raises:
        ModelError: a value is out of range, there is no such layer, a target matches
            none, a target shares its weight with another layer, the model takes a
            target's weight bare, or there are fewer than `last_layers`.

    References:
        Hu et al. (2021), "LoRA", section 4.1, https://arxiv.org/abs/2106.09685;
        Kalajdzievski (2023), "A Rank Stabilization Scaling Factor", theorem 3.2,
        https://arxiv.org/abs/2312.03732
    """
    if rank < 1 or not alpha > 0 or not 0.0 <= dropout < 1.0:
        raise ModelError(
            "rank must be at least 1, alpha positive and dropout in [0, 1), "
            f"got rank={rank}, alpha={alpha}, dropout={dropout}."
        )
    if isinstance(model, PeftModel):
        raise ModelError("the model has adapters already. Add LoRA once only.")
    targets = tuple(target_modules or _default_targets(model))
    transposed = _is_transposed(model, targets)
    if last_layers is not None:
        targets = _in_last_layers(model, targets, last_layers)
    classifies = type(model).__name__.endswith("ForSequenceClassification")
    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # peft takes floats too
        lora_dropout=dropout,
        use_rslora=use_rslora,
        target_modules=list(targets),
        fan_in_fan_out=transposed,
        bias="none",
        task_type=TaskType.SEQ_CLS if classifies else TaskType.CAUSAL_LM,
    )
    with seeded(seed), without_peft_warning():
        try:
            adapted = get_peft_model(model, config)
        except ValueError as error:
            raise ModelError(
                f"{type(model).__name__} takes no adapters on these target_modules "
                f"({' '.join(str(error).split())}). Leave out what it names."
            ) from error
    if not isinstance(adapted, PeftModel):
        raise ModelError("peft returned a model without adapters.")
    return adapted


def _default_targets(model: PreTrainedModel) -> tuple[str, ...]:
    """Name all layers below the head that can have an adapter of their own."""
    body = model.base_model_prefix
    embedding = input_weight(model)
    targets = tuple(
        name
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear | Conv1D)
        and name.startswith(f"{body}.")
        and layer.weight is not embedding
        and not _is_read_past(model, name)
    )
    if not targets:
        raise ModelError(
            f"target_modules must be given for {type(model).__name__}, which has no "
            "Linear or Conv1D layer below its head. List what it has with "
            "model.named_modules()."
        )
    return targets


def _is_read_past(model: PreTrainedModel, name: str) -> bool:
    """Whether the model takes the bare weight, and would leave an adapter out."""
    parent, _, own = name.rpartition(".")
    owner = model.get_submodule(parent)
    if own in {"out_proj", "dt_proj"} and "A_log" in owner._parameters:
        return True  # of a state space
    return own in _TAKEN_BARE.get(type(owner).__name__, ())


def _refuse_read_past(model: PreTrainedModel, names: Iterable[str]) -> None:
    """A merged adapter would change a model that trained without it."""
    for name in names:
        if _is_read_past(model, name):
            raise ModelError(
                f"target_modules must be layers that are called, but "
                f"{type(model).__name__} takes the weight of {name} by itself, and no "
                "adapter on it would train. Leave it out."
            )


def _matching(model: PreTrainedModel, targets: Sequence[str]) -> dict[str, nn.Module]:
    """Return the layers that targets name, as peft matches them."""
    return {
        name: module
        for name, module in model.named_modules()
        if any(f".{name}".endswith(f".{target}") for target in targets)
    }


def _in_last_layers(
    model: PreTrainedModel, targets: Sequence[str], last_layers: int
) -> tuple[str, ...]:
    """Name the matching layers that lie in the last numbered ones."""
    numbers = {
        name: int(found[1])
        for name in _matching(model, targets)
        if (found := _NUMBER.search(name))
    }
    count = max(numbers.values(), default=-1) + 1
    if not 1 <= last_layers <= count:
        raise ModelError(
            f"last_layers must be from 1 to {count}, the layers that target_modules "
            f"lie in, got last_layers={last_layers}. Lower it, or leave it out."
        )
    first = count - last_layers
    return tuple(name for name, number in numbers.items() if number >= first)


def _is_transposed(model: PreTrainedModel, targets: tuple[str, ...]) -> bool:
    """Whether the targets keep their weight as (in, out), as GPT-2's Conv1D does."""
    kinds = set()
    for target in targets:
        matching = _matching(model, [target])
        layers = list(matching.values())
        if not layers:
            raise ModelError(
                f"target_modules must name layers of the model, got {target!r}, which "
                "matches none. List them with model.named_modules()."
            )
        kinds |= {_kind(layer, target) for layer in layers}
        _refuse_tied(model, layers, target)
        _refuse_read_past(model, matching)
    if len(kinds) > 1:
        raise ModelError(
            "target_modules must be all Linear or all Conv1D, got both. "
            "Leave one kind out."
        )
    return kinds == {Conv1D}


def _kind(layer: nn.Module, target: str) -> type[nn.Module]:
    """Linear or Conv1D; nothing else gets an adapter here."""
    for kind in (Conv1D, nn.Linear):
        if isinstance(layer, kind):
            return kind
    raise ModelError(
        f"target_modules must be Linear or Conv1D layers, got {target!r}, "
        f"a {type(layer).__name__}."
    )


def _refuse_tied(model: PreTrainedModel, layers: list[nn.Module], target: str) -> None:
    """A merged adapter on a tied layer would change the other layer too."""
    embedding = input_weight(model)
    if any(layer.weight is embedding for layer in layers):
        raise ModelError(
            f"target_modules must not share weights, got {target!r}, which is tied to "
            "the input embedding. Leave it out."
        )
