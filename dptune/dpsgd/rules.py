"""What each kind of module does to its parameters: one small function per kind.

A rule sees one call of a module in the forward pass and the gradient of its output, and
returns the gradient of each of its own parameters for every row of the batch. To teach
the engine a module of your own:

```python
class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gain


@register_gradient_rule(Scale)
def scale_rule(module: nn.Module, inputs: Tensor, grad: Tensor) -> Gradients:
    return {"gain": sum_over_time(inputs * grad)}
```

Before training, `dptune.dpsgd.selfcheck` compares every rule that a model uses against
autograd, row by row, so a wrong rule cannot stay unnoticed.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from peft.tuners.lora.layer import Embedding as LoraEmbedding
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from dptune.dpsgd.terms import Dense, Outer, Scatter, Term

Gradients = Mapping[str, Term | Tensor]
GradientRule = Callable[[nn.Module, Tensor, Tensor], Gradients]
Rule = TypeVar("Rule", bound=Callable[..., Gradients])

_RULES: dict[type[nn.Module], GradientRule] = {}


def register_gradient_rule(
    module_type: type[nn.Module],
) -> Callable[[Rule], Rule]:
    """Teach the engine one kind of module, and subclasses that keep its `forward`.

    The decorated function takes `(module, inputs, grad)`: the first tensor argument of
    the call, `(rows, ...)`, and the gradient of its output, `(rows, ...)`. It returns,
    by the name of the parameter within the module, either a tensor `(rows, *shape)` or
    a `Term`.

    Args:
        module_type: class whose instances the rule serves. A later rule replaces an
            earlier one.
    """

    def register(rule: Rule) -> Rule:
        _RULES[module_type] = rule
        return rule

    return register


def find_gradient_rule(module: nn.Module) -> GradientRule | None:
    """Return the rule of the nearest base class that computes alike, or None."""
    kind = next((kind for kind in type(module).__mro__ if kind in _RULES), None)
    if kind is None:
        plain = is_rms_norm(module) and _has_plain_gain(module)
        return _rms_norm_rule if plain else None
    return _RULES[kind] if _computes_as(module, kind) else None


def sum_over_time(values: Tensor, *, num_kept: int = 1) -> Tensor:
    """Sum all dimensions but the first and the last `num_kept`, in float32."""
    inner = tuple(range(1, values.dim() - num_kept))
    return values.sum(inner, dtype=torch.float32) if inner else values.float()


def as_sequence(values: Tensor) -> Tensor:
    """Reshape `(rows, ..., width)` to `(rows, time, width)`."""
    return values.reshape(len(values), -1, values.shape[-1])


@register_gradient_rule(nn.Linear)
def _linear_rule(module: nn.Module, inputs: Tensor, grad: Tensor) -> Gradients:
    """Weight `(out, in)`: sum of grad input^T; bias: sum of grad."""
    weight = Outer(as_sequence(grad), as_sequence(inputs))
    return _with_bias(module, weight, grad)


@register_gradient_rule(Conv1D)
def _conv1d_rule(module: nn.Module, inputs: Tensor, grad: Tensor) -> Gradients:
    """Weight `(in, out)`: sum of input grad^T; bias: sum of grad."""
    weight = Outer(as_sequence(inputs), as_sequence(grad))
    return _with_bias(module, weight, grad)


def multiplies(rule: GradientRule) -> bool:
    """Whether a rule stands for a product that autocast lowers the precision of."""
    return rule in (_linear_rule, _conv1d_rule)


@register_gradient_rule(nn.Embedding)
def _embedding_rule(module: nn.Embedding, inputs: Tensor, grad: Tensor) -> Gradients:
    """Weight row v: sum of grad where the id is v; the padding row stays fixed.

    Subclasses that scale what they look up (Gemma, BART) name the factor `embed_scale`.
    """
    ids = inputs.reshape(len(inputs), -1)
    values = as_sequence(grad) * getattr(module, "embed_scale", 1.0)
    if module.padding_idx is not None:
        values = values.masked_fill((ids == module.padding_idx)[..., None], 0)
    return {"weight": Scatter(ids, values, module.num_embeddings)}


@register_gradient_rule(nn.LayerNorm)
def _layer_norm_rule(module: nn.LayerNorm, inputs: Tensor, grad: Tensor) -> Gradients:
    """Weight: sum of grad * normalised input; bias: sum of grad."""
    shape = module.normalized_shape
    normal = functional.layer_norm(inputs.float(), shape, eps=module.eps)
    weight = sum_over_time(normal.mul_(grad), num_kept=len(shape))
    return _with_bias(module, weight, grad, num_kept=len(shape))


@register_gradient_rule(nn.RMSNorm)
def _rms_norm_rule(module: nn.Module, inputs: Tensor, grad: Tensor) -> Gradients:
    """Weight: sum of grad * input / rms(input).

    Holds for gains of the form `w` (Llama, Mistral, Qwen, T5) and `1 + w` (Gemma).
    """
    fields: Any = module
    shape = fields.weight.shape
    dims = tuple(range(-len(shape), 0))
    values = inputs.float()
    mean_square = values.square().mean(dims, keepdim=True)
    normal = values * torch.rsqrt(mean_square + _epsilon(module, inputs.dtype))
    return {"weight": sum_over_time(normal.mul_(grad), num_kept=len(shape))}


@register_gradient_rule(LoraEmbedding)
def _lora_embedding_rule(
    module: LoraEmbedding, inputs: Tensor, grad: Tensor
) -> Gradients:
    """A `(rank, vocabulary)`, B `(width, rank)`: output = scaling * B A[:, id]."""
    ids = inputs.reshape(len(inputs), -1)
    found: dict[str, Term | Tensor] = {}
    for adapter in module.active_adapters:
        factors: Any = module.lora_embedding_A
        if adapter not in factors:
            continue
        down, up = factors[adapter], module.lora_embedding_B[adapter]
        scaled = as_sequence(grad).float() * module.scaling[adapter]
        values = scaled @ up.float()  # (rows, time, rank)
        found[f"lora_embedding_A.{adapter}"] = Scatter(
            ids, values, down.shape[1], by_column=True
        )
        found[f"lora_embedding_B.{adapter}"] = Outer(scaled, down.t()[ids])
    return found


def _with_bias(
    module: nn.Module, weight: Term | Tensor, grad: Tensor, *, num_kept: int = 1
) -> Gradients:
    """Add the bias, whose gradient is the sum of `grad`, where the module has one."""
    if module._parameters.get("bias") is None:
        return {"weight": weight}
    return {"weight": weight, "bias": sum_over_time(grad, num_kept=num_kept)}


def _computes_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether a module computes what its base class does, but for a known scale."""
    if "forward" in vars(module):  # replaced on the module itself
        return False
    own = type(module).forward
    scales = hasattr(module, "embed_scale") and type(module).__name__.endswith(
        "ScaledWordEmbedding"
    )
    return own is kind.forward or (kind is nn.Embedding and scales)


def is_rms_norm(module: nn.Module) -> bool:
    """Recognise the copies of RMSNorm in transformers, which share no base class."""
    names = [name for name, _ in module.named_parameters(recurse=False)]
    has_epsilon = any(hasattr(module, name) for name in ("variance_epsilon", "eps"))
    named_so = type(module).__name__.endswith(("RMSNorm", "T5LayerNorm"))
    return names == ["weight"] and has_epsilon and named_so


@torch.no_grad()
def _has_plain_gain(module: nn.Module) -> bool:
    """Whether a norm multiplies by `w` or `1 + w`, for any w: its name tells no more.

    A gain such as `1 + tanh(w)` has the same gradient where training begins.
    """
    fields: Any = module
    shape = fields.weight.shape
    generator = torch.Generator().manual_seed(0)  # public constants
    values, gain = (torch.randn(n, generator=generator) for n in ((1, *shape), shape))
    values, gain = values.to(fields.weight), gain.to(fields.weight)
    found = []
    for factor in (0, 1, -3):
        twin: Any = copy.copy(module)
        vars(twin)["_parameters"] = {"weight": factor * gain}
        try:
            found.append(type(twin).forward(twin, values).to(gain))
        except Exception:  # noqa: BLE001 - code of a model; it needs more than values
            return True  # rules are compared with autograd, if at these weights alone
    normal: Any = _rms_norm_rule(module, values, gain[None])["weight"]
    return all(
        torch.allclose(more - found[0], factor * normal, rtol=1e-3, atol=1e-4)
        for factor, more in ((1, found[1]), (-3, found[2]))
    )


def _epsilon(module: nn.Module, dtype: torch.dtype) -> float:
    """Epsilon under either of its names; torch takes that of the type for None."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return torch.finfo(dtype).eps if epsilon is None else float(epsilon)


def as_term(gradient: Term | Tensor) -> Term:
    """Wrap a plain tensor of per-row gradients."""
    if isinstance(gradient, Tensor):
        return Dense(gradient.float())
    return gradient
