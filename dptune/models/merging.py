"""Write a model with adapters as one without, one weight after the other.

A copy of a large model does not fit beside it. So weights are merged, and written, in
pieces: beside the model there is never more than one piece of `PIECE_BYTES`, or of the
`MOST_PIECES`-th part of a model that is larger, or one weight that is larger still. A
piece that is being written counts twice: the file's pages are resident too.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import torch
from peft import PeftModel
from peft.tuners.lora import Linear as LoraLinear
from peft.tuners.lora.layer import ParamWrapper
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from dptune.errors import ModelError
from dptune.models.digest import (
    WEIGHTS,
    WEIGHTS_INDEX,
    tensors_digest,
    weights_digest,
)
from dptune.models.frozen import FrozenLinear

PIECE_BYTES = 1 << 26
MOST_PIECES = 64

_Weight = Callable[[], Tensor]
_Adapter = LoraLinear | ParamWrapper
_WRAPPED = re.compile(r"(\.base_layer)+(?=\.|$)")  # wrappers of parameters are nested


def save_merged(model: PeftModel, directory: Path, *, dtype: torch.dtype) -> None:
    """Write configuration and weights, adapters merged; the model is not changed.

    W becomes W + scaling B A, added in float32, where W is what the adapters were
    trained over: of a base in 8 or 4 bits, what its codes stand for.

    Args:
        model: with LoRA adapters, its base frozen by `freeze_base` or not.
        directory: where to write.
        dtype: of the weights that are written.

    Raises:
        ModelError: a weight is not finite.
    """
    base = model.get_base_model()
    if not isinstance(base, PreTrainedModel):
        raise ModelError("adapters must be those of a model of transformers.")
    config = copy.deepcopy(base.config)
    config.dtype = str(dtype).removeprefix("torch.")
    config.architectures = [type(base).__name__]
    config.save_pretrained(directory)
    if base.can_generate() and base.generation_config is not None:
        base.generation_config.save_pretrained(directory)
    size = sum(tensor.numel() for tensor in base.state_dict().values()) * dtype.itemsize
    piece_bytes = max(PIECE_BYTES, size // MOST_PIECES)
    weights = _as_stored(base, _merged(base, dtype=dtype))
    _write(weights, directory, piece_bytes=piece_bytes)


def base_digest(model: nn.Module) -> str:
    """Compute the SHA-256 of a model's weights without its adapters.

    Before training it is that of the base model, whether adapters were put on or not.
    """
    if not isinstance(model, PeftModel):
        return weights_digest(model)
    found = model.get_base_model().state_dict()
    return tensors_digest({_plain(key): found[key] for key in found if not _added(key)})


def _added(key: str) -> bool:
    """Whether a tensor is an adapter's, or a copy that it keeps of a weight."""
    return ".lora_" in key or ".original_module." in key


def _plain(key: str) -> str:
    """Name a weight as the model without adapters does."""
    return _WRAPPED.sub("", key).replace(".modules_to_save.default", "")


def _merged(base: PreTrainedModel, *, dtype: torch.dtype) -> dict[str, _Weight]:
    """Return what writes out each weight, by its name without adapters."""
    tensors, weights = {}, {}
    for key, tensor in base.state_dict().items():
        place, _, last = key.rpartition(".")
        owner = base.get_submodule(place)
        is_scale = isinstance(owner, FrozenLinear) and last == "scale"
        if _added(key) or is_scale:
            continue
        name = _plain(key)
        tensors[name] = tensor
        adapter = _adapter(base.get_submodule(_WRAPPED.sub("", place)), last)
        weights[name] = partial(_weight, tensor, owner, adapter, dtype, name)
    for ignored in base._keys_to_ignore_on_save or ():
        tensors.pop(ignored, None)
    kept = remove_tied_weights_from_state_dict(tensors, base)
    return {name: weights[name] for name in kept}


def _adapter(layer: nn.Module, name: str) -> _Adapter | None:
    """Return the adapter of a weight: of a layer, or of one parameter of experts."""
    while isinstance(layer, ParamWrapper):
        if layer.parameter_name == name:
            return layer
        layer = layer.base_layer
    return layer if isinstance(layer, LoraLinear) and name == "weight" else None


def _weight(
    tensor: Tensor,
    owner: nn.Module,
    adapter: _Adapter | None,
    dtype: torch.dtype,
    name: str,
) -> Tensor:
    """Write one weight out, with what its adapter adds."""
    if isinstance(owner, FrozenLinear) and tensor.data_ptr() == owner.weight.data_ptr():
        tensor = owner.dense(torch.float32)
    if adapter is not None:
        tensor = tensor.float() + adapter.get_delta_weight("default").detach()
    if not tensor.is_floating_point():
        return tensor.contiguous()
    tensor = tensor.detach().to(dtype).contiguous()
    if not bool(torch.isfinite(tensor).all()):
        raise ModelError(
            f"{name} must be finite to be stored. Train with a lower rate."
        )
    return tensor


def _as_stored(
    base: PreTrainedModel, weights: Mapping[str, _Weight]
) -> dict[str, _Weight]:
    """Name weights as files of the architecture do; experts are also cut up again."""
    numbers = {name: torch.tensor(i) for i, name in enumerate(weights)}
    known = list(weights.values())
    try:
        renamed = revert_weight_conversion(base, dict(numbers))
        places = [int(number) for number in renamed.values()]
    except (RuntimeError, ValueError, IndexError, TypeError):
        places = []
    if sorted(places) == list(range(len(known))):
        return {n: known[i] for n, i in zip(renamed, places, strict=True)}
    whole = {name: weight() for name, weight in weights.items()}
    stored: Mapping[str, Tensor] = revert_weight_conversion(base, whole)
    return {n: partial(Tensor.contiguous, tensor) for n, tensor in stored.items()}


def _write(
    weights: Mapping[str, _Weight], directory: Path, *, piece_bytes: int
) -> None:
    """Write safetensors, as one file or as pieces with an index."""
    names: list[list[str]] = []
    total = 0
    for number, piece in enumerate(_pieces(weights, piece_bytes)):
        save_file(piece, directory / f"piece-{number}", metadata={"format": "pt"})
        names.append(list(piece))
        total += sum(tensor.nbytes for tensor in piece.values())
        del piece
    count = len(names)
    files = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    for number, file in enumerate(files if len(files) > 1 else [WEIGHTS]):
        (directory / f"piece-{number}").rename(directory / file)
    if len(files) == 1:
        return
    pairs = zip(files, names, strict=True)
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: file for file, held in pairs for name in held},
    }
    text = json.dumps(index, indent=2, sort_keys=True)
    (directory / WEIGHTS_INDEX).write_text(text, encoding="utf-8")


def _pieces(
    weights: Mapping[str, _Weight], piece_bytes: int
) -> Iterator[dict[str, Tensor]]:
    """Write weights out until a piece is full."""
    piece: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights.items():
        tensor = weight()
        if piece and size + tensor.nbytes > piece_bytes:
            yield piece
            piece, size = {}, 0
        piece[name] = tensor
        size += tensor.nbytes
    yield piece
