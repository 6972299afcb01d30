"""Hold weights that are not trained in fewer bits than they are computed with.

Under adapters the base model is only read. It keeps the type that it was stored in, or
8 or 4 bits an entry, and every layer writes its weight out in the precision of its
input when it is called, in the forward pass and again in the backward pass: nothing of
it outlives the call. Inputs are never quantised, and no entry of an output depends on
another row, as it does in LLM.int8(), which looks for outliers in the whole batch. What
trains, norms, biases and what else a model holds stay float32, so that norms and sums
of gradients are what they are over a float32 model with these weights.

References:
    Dettmers et al. (2023), "QLoRA", sections 2 and 3 (NF4 in blocks of 64),
    https://arxiv.org/abs/2305.14314; Dettmers et al. (2022), "8-bit Optimizers via
    Block-wise Quantization", section 2.1, https://arxiv.org/abs/2110.02861.
"""

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from dptune.errors import DependencyError
from dptune.precision import only_reads_exactly, restore_rounded

Bits = Literal[4, 8]

_BLOCK = 64
_KINDS = (nn.Linear, Conv1D, nn.Embedding)


class FrozenLinear(nn.Module):
    """A linear layer whose weight is written out when it is called.

    Args:
        weight: as it is held: of any floating type, or codes. Never trained.
        scale: largest entry of each block of codes; None where they are numbers.
        shape: of the weight when it is written out.
        bits: of a code; None where they are numbers.
        bias: float32, or None.
        is_transposed: the shape is `(in, out)`, as that of Conv1D.
    """

    decompresses: ClassVar[tuple[str, ...]] = ("weight",)
    scale: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        weight: nn.Parameter,
        *,
        scale: nn.Parameter | None,
        shape: torch.Size,
        bits: Bits | None,
        bias: nn.Parameter | None,
        is_transposed: bool,
    ) -> None:
        super().__init__()
        self.weight = weight
        self.scale = scale
        self.bias = bias
        self.shape = shape
        self.bits = bits
        self.is_transposed = is_transposed

    def dense(self, dtype: torch.dtype) -> Tensor:
        """Write the weight out, of the shape of the layer that it stands for."""
        if self.bits is None or self.scale is None:
            return self.weight.to(dtype)
        values = _dequantised(self.weight, self.scale, shape=self.shape, bits=self.bits)
        return values.to(dtype)

    def forward(self, inputs: Tensor) -> Tensor:
        """Multiply, in the precision of the input or of autocast."""
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind):
            inputs = inputs.to(torch.get_autocast_dtype(kind))
        product: Tensor = _Product.apply(inputs, self)  # type: ignore[no-untyped-call]
        return product


class FrozenEmbedding(nn.Module):
    """An embedding that holds its rows in another type than it returns.

    Args:
        weight: `(rows, width)`, of any floating type. Never trained.
    """

    decompresses: ClassVar[tuple[str, ...]] = ("weight",)
    like: Tensor

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.register_buffer("like", torch.empty(0), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Look rows up."""
        return functional.embedding(ids, self.weight).to(self.like.dtype)


class _Product(torch.autograd.Function):
    """Inputs times a weight that neither pass keeps."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: FrozenLinear) -> Tensor:  # noqa: ANN401 - torch's
        ctx.layer = layer
        weight = layer.dense(inputs.dtype)
        bias = None if layer.bias is None else layer.bias.to(inputs.dtype)
        return functional.linear(
            inputs, weight.t() if layer.is_transposed else weight, bias
        )

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - torch's
        layer: FrozenLinear = ctx.layer
        weight = layer.dense(grad.dtype)
        return grad @ (weight.t() if layer.is_transposed else weight), None


def bits_of(model: nn.Module) -> Bits | None:
    """Return the bits that `freeze_base` was given for a model; None for none."""
    layers = (one for one in model.modules() if isinstance(one, FrozenLinear))
    return next((layer.bits for layer in layers if layer.bits is not None), None)


def freeze_base(model: nn.Module, *, bits: Bits | None = None) -> None:
    """Hold what a model does not train in the type that it has, or in fewer bits.

    In place, one layer after the other. Trained weights, and all weights but those of
    frozen Linear, Conv1D and Embedding modules, become float32. Embeddings, and heads
    that share their weight, keep their type where others have `bits`.

    Args:
        model: with adapters already.
        bits: 8 (block-wise, dynamic) or 4 (NF4); None keeps the type of each weight.

    Raises:
        DependencyError: `bits` without bitsandbytes.
    """
    restore_rounded(model)
    owners: dict[int, list[type[nn.Module]]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), []).append(type(module))
    for name in [n for n, _ in model.named_modules() if ".lora_" not in n]:
        module = model.get_submodule(name)
        if not _may_be_held(module, owners):
            continue
        weight: Any = module.weight
        is_linear = not isinstance(module, nn.Embedding)
        few = bits if is_linear and len(owners[id(weight)]) == 1 else None
        if few is not None or weight.dtype != torch.float32:
            place, _, last = name.rpartition(".")
            setattr(model.get_submodule(place), last, _held(module, bits=few))
    kept = {id(m.weight) for m in model.modules() if hasattr(m, "decompresses")}
    for parameter in model.parameters():
        if id(parameter) not in kept and parameter.is_floating_point():
            parameter.data = parameter.data.float()
        elif bits is not None and parameter.is_floating_point():
            parameter.data = parameter.data.clone()  # else it holds the whole file
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.float()


def shared_copy(model: nn.Module) -> nn.Module:
    """Copy a model but for the memory of its weights and buffers, which both read.

    Whoever trains the copy must add weights to it: none of these learns.
    """
    same: dict[int, Any] = {id(b): b.detach() for b in model.buffers()}
    for weight in model.parameters():
        same[id(weight)] = nn.Parameter(weight.detach(), requires_grad=False)
    return copy.deepcopy(model, same)


def read_only(model: nn.Module) -> nn.Module:
    """Return a copy that computes in float32 over the same memory, and learns nothing.

    Weights of 16 bits are written out by every layer when it is called: it computes
    what the float32 model of the same weights does, in half the memory. Where the code
    of the model computes in the type of its weights by itself, or writes into them, the
    copy has its own, in float32.
    """
    return hold_exactly(partial(shared_copy, model))


def hold_exactly(shared: Callable[[], nn.Module]) -> nn.Module:
    """Hold what a model shares as it is stored, or a float32 copy if that is not safe.

    Args:
        shared: makes the model, over memory that others read.
    """
    held = shared()
    freeze_base(held)
    if only_reads_exactly(held):
        return held
    held = shared()
    restore_rounded(held)
    for value in (*held.parameters(), *held.buffers()):
        dtype = torch.float32 if value.is_floating_point() else value.dtype
        value.data = value.data.to(dtype, copy=True)
    return held


def _may_be_held(
    module: nn.Module, owners: Mapping[int, list[type[nn.Module]]]
) -> bool:
    """Whether a module's weight is frozen, and used by modules of known kinds alone."""
    if type(module) not in _KINDS or any(p.requires_grad for p in module.parameters()):
        return False
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return False
    weight: Any = module.weight
    return all(owner in _KINDS for owner in owners[id(weight)])


def _held(module: nn.Module, *, bits: Bits | None) -> FrozenLinear | FrozenEmbedding:
    """Return the module that stands for a frozen one."""
    weight: Any = module.weight
    if isinstance(module, nn.Embedding):
        return FrozenEmbedding(weight)
    codes, scale = weight, None
    if bits is not None:
        codes, scale = (
            nn.Parameter(values, requires_grad=False)
            for values in _quantised(weight.detach(), bits=bits)
        )
    bias = module.bias
    return FrozenLinear(
        codes,
        scale=scale,
        shape=weight.shape,
        bits=bits,
        bias=bias if isinstance(bias, nn.Parameter) else None,
        is_transposed=isinstance(module, Conv1D),
    )


def _quantised(weight: Tensor, *, bits: Bits) -> tuple[Tensor, Tensor]:
    """Return codes, and the largest entry of each block."""
    library, values = _library(), weight.float().contiguous()
    if bits == 4:
        codes, state = library.quantize_4bit(values, blocksize=_BLOCK, quant_type="nf4")
    else:
        codes, state = library.quantize_blockwise(values, blocksize=_BLOCK)
    return codes, state.absmax


def _dequantised(
    codes: Tensor, scale: Tensor, *, shape: torch.Size, bits: Bits
) -> Tensor:
    """Return float32 numbers."""
    library = _library()
    with torch._C.DisableTorchFunction():  # modes that widen types break its buffers
        state = library.QuantState(
            absmax=scale.float(),
            shape=shape,
            code=_table(bits, codes.device),
            blocksize=_BLOCK,
            quant_type="nf4" if bits == 4 else None,
            dtype=torch.float32,
        )
        decode = library.dequantize_4bit if bits == 4 else library.dequantize_blockwise
        values: Tensor = decode(codes, state)
    return values


@lru_cache
def _table(bits: Bits, device: torch.device) -> Tensor:
    """Return what codes stand for."""
    probe = torch.zeros(_BLOCK, dtype=torch.float32, device=device)
    library = _library()
    if bits == 4:
        state = library.quantize_4bit(probe, blocksize=_BLOCK, quant_type="nf4")[1]
    else:
        state = library.quantize_blockwise(probe, blocksize=_BLOCK)[1]
    table: Tensor = state.code
    return table


@lru_cache
def _library() -> Any:  # noqa: ANN401 - a module without types
    """Import the library that packs bits.

    Raises:
        DependencyError: it is not installed, or would run code of a hub.
    """
    if find_spec("kernels") is not None:
        raise DependencyError(
            "model.quantization must not be used beside the package kernels, with "
            "which bitsandbytes runs code from the hub. Run: pip uninstall kernels."
        )
    try:
        from bitsandbytes import functional  # noqa: PLC0415 - an extra
    except ImportError:
        raise DependencyError(
            "model.quantization needs the package bitsandbytes, which is not "
            "installed. Run: pip install 'dptune[quantization]'."
        ) from None
    return functional
