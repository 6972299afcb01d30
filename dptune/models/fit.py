"""Do the weights of a folder make the model that its config.json describes?

Transformers leaves out what a model has no place for, without a word: one with fewer
layers than its files is cut, and learns and leaks otherwise than what was meant.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from dptune.errors import ModelError
from dptune.models.digest import read_json

_NUMBER: Final = re.compile(r"(?<=\.)\d+(?=\.)")
_PREDICTORS: Final = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
"""Layers that predict tokens further on: stored behind the others, and not loaded."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What came of reading weights; see `output_loading_info` of transformers.

    Args:
        missing: weights that no file has.
        unexpected: tensors of the files that the model has no place for.
        mismatched: weights of another shape in the files: name, there, in the model.
    """

    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]

    @classmethod
    def of(cls, info: dict[str, Any]) -> "Reading":
        """Sort what transformers tells."""
        return cls(
            missing=tuple(sorted(info["missing_keys"])),
            unexpected=tuple(sorted(info["unexpected_keys"])),
            mismatched=tuple(
                (name, tuple(there), tuple(own))
                for name, there, own in sorted(info["mismatched_keys"])
            ),
        )


def causal_reader(folder: Path) -> Callable[..., Any]:
    """Return what reads a causal language model from a checked directory.

    The part for text of a model of several kinds is stored with a configuration that
    no table of transformers leads to a class from: its own name does, if it is there.
    """
    config = read_json(folder / "config.json")
    kind = config.get("model_type")
    written = str(next(iter(config.get("architectures") or ()), ""))
    known = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if kind not in known and written in known.values():
        named: Any = getattr(transformers, written)
        if getattr(named.config_class, "model_type", None) == kind:
            reader: Callable[..., Any] = named.from_pretrained
            return reader
    return AutoModelForCausalLM.from_pretrained


def check_fit(model: PreTrainedModel, reading: Reading, *, folder: Path) -> None:
    """Refuse a model whose files say another one than its configuration does.

    Other heads, buffers, towers for pictures, and layers that predict tokens further on
    are no part of the model, and are left out as transformers does.

    Raises:
        ModelError: weights have other shapes, or belong to layers that it has not, or
            are biases of layers that it has without.
    """
    if reading.mismatched:
        name, there, own = reading.mismatched[0]
        raise ModelError(
            f"{folder} must hold weights of the shapes that its config.json says, but "
            f"{len(reading.mismatched)} have others: {name} is {list(there)}, and the "
            f"model wants {list(own)}. Restore config.json, or, where that is the head "
            "of a classifier, name as many classes as it has."
        )
    extra = {layer for name in reading.unexpected for layer in _beyond(model, name)}
    if extra:
        raise ModelError(
            f"{folder} must hold as many layers as its config.json says, but has "
            f"{len(extra)} more, such as {min(extra)}: the model would be cut. Restore "
            "config.json."
        )
    names = model.state_dict().keys()
    biases = [
        name
        for name in reading.unexpected
        if name.endswith(".bias") and f"{name[:-4]}weight" in names
    ]
    if biases:
        raise ModelError(
            f"{folder} must hold no bias of a layer that has none by its config.json, "
            f"got {len(biases)}, such as {biases[0]}: the model would compute "
            "otherwise. Restore config.json."
        )


def check_finite(model: nn.Module) -> None:
    """Refuse a model to begin with that has weights which are no finite numbers.

    Raises:
        ModelError: says how many, and one of them.
    """
    broken = [
        name
        for name, value in model.state_dict().items()
        if value.is_floating_point() and value.numel() and not _is_finite(value)
    ]
    if broken:
        raise ModelError(
            f"{type(model).__name__} must have finite weights to begin with, but "
            f"{len(broken)} hold NaN or infinite numbers, such as {broken[0]}. "
            "Download it again, or take one that was trained to its end."
        )


def _is_finite(value: torch.Tensor) -> bool:
    """Whether all numbers are finite, without a copy: either end tells."""
    if value.dtype.itemsize < 2:  # has no order in torch
        return True
    return bool(torch.stack(torch.aminmax(value.detach())).isfinite().all())


def _beyond(model: PreTrainedModel, name: str) -> Iterator[str]:
    """Yield the layer of a tensor, if it is numbered beyond those of the model."""
    text: Any = model.config.get_text_config()
    spare = max(int(getattr(text, key, None) or 0) for key in _PREDICTORS)
    prefix = f"{model.base_model_prefix}."
    for place in _NUMBER.finditer(name):
        stack = name[: place.start() - 1]
        for path in (stack, prefix + stack, stack.removeprefix(prefix)):
            layers = _stack(model, path)
            if layers is not None and int(place[0]) >= len(layers) + spare:
                yield name[: place.end()]
                break


def _stack(model: nn.Module, path: str) -> nn.ModuleList | None:
    """Return a list of layers of a model, if there is one at a path."""
    try:
        found = model.get_submodule(path)
    except AttributeError:
        return None
    return found if isinstance(found, nn.ModuleList) else None
