"""In which precision a model computes, whatever it holds its weights in."""

import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel


def computing(model: nn.Module) -> Iterator[Tensor]:
    """Yield weights and buffers that are computed with in the type that they have.

    A module may name in `decompresses` those that it holds in another type than it
    computes with, such as the frozen layers of `dptune.models.frozen`.
    """
    modules = list(model.modules())
    packed = {
        id(getattr(module, name))
        for module in modules
        for name in getattr(module, "decompresses", ())
    }
    for tensor in (*model.parameters(), *model.buffers()):
        if id(tensor) not in packed:
            yield tensor


def only_reads_exactly(model: nn.Module) -> bool:
    """Whether a pass computes in 32 bits throughout, and writes into no weight.

    The code of a model may take the weight of a layer itself, as Mamba does, or turn
    an input into the type of a weight, as Mamba 2 does before its head: with weights
    that are held in 16 bits the one is an error, and the other rounds its logits. RWKV
    scales its weights when it is first evaluated. A few tokens tell; no weight changes.
    """
    whole = _without_adapters(model)
    device = next(model.parameters()).device
    tokens = torch.zeros(1, 4, dtype=torch.long, device=device)
    options: dict[str, Any] = {"attention_mask": torch.ones_like(tokens)}
    if "use_cache" in inspect.signature(whole.forward).parameters:
        options["use_cache"] = False
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad(), _Watch(whole) as seen:
            whole(input_ids=tokens, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # noqa: BLE001 - code of models can raise anything
        return False
    finally:
        for module, training in modes:
            module.training = training
    return not seen.found


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notices what is computed in 16 bits; rows of an embedding are only looked up.

    Raises:
        RuntimeError: before a weight or a buffer is written into.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = False
        held = (*model.parameters(), *model.buffers())
        self._held = {_memory(value) for value in held if value.numel()}

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator of torch
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call a function and look at its results."""
        options = dict(kwargs or {})
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            value = args[place] if place < len(args) else options.get(argument.name)
            if isinstance(value, Tensor) and _memory(value) in self._held:
                raise RuntimeError("a weight must not be written into.")
        made = func(*args, **options)
        if func is not torch.ops.aten.embedding.default:
            self.found |= any(map(_is_half, tree_leaves(made)))
        return made


def _without_adapters(model: nn.Module) -> Any:  # noqa: ANN401 - a model of any kind
    """Return the model that peft wrapped, or the model itself."""
    return getattr(model, "get_base_model", lambda: model)()


def _memory(tensor: Tensor) -> int:
    """Return where the memory of a tensor begins."""
    return tensor.untyped_storage().data_ptr()


def _is_half(value: object) -> bool:
    """Whether it is a tensor of numbers of less than 32 bits."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    return value.dtype.itemsize < 4


def restore_rounded(model: nn.Module) -> None:
    """Let buffers that no file holds be those of the float32 model, in place.

    transformers rounds them to the type of the weights: the square root of the width,
    by which Gemma scales its embeddings, is 0.2 % larger in bfloat16 at a width of
    1,152.
    """
    whole = _without_adapters(model)
    if not isinstance(whole, PreTrainedModel):
        return
    known: Iterator[tuple[str, Tensor]] = whole.named_non_persistent_buffers()
    rounded = {name: value for name, value in known if _is_half(value)}
    if not rounded:
        return
    with torch.device("meta"):  # weights without memory
        exact: Any = type(whole)(copy.deepcopy(whole.config))
    for name, value in rounded.items():
        place, _, last = name.rpartition(".")
        module = exact.get_submodule(place)
        setattr(module, last, torch.zeros_like(value, dtype=torch.float32))
        exact._init_weights(module)
        if torch.equal(getattr(module, last).to(value.dtype), value):
            setattr(whole.get_submodule(place), last, getattr(module, last))
