"""Per-unit gradients from one ordinary backward pass.

The engine hangs hooks on the modules that own trainable parameters. In the forward pass
a hook notes the input of a module, in the backward pass the gradient of its output.
From the two follow the norm of every unit's gradient and the clipped sum, without a
second backward pass and without the gradient of the batch, which autograd is kept from
computing.

```python
with PerUnitGradients(model) as engine:
    sums = engine.zeros()
    with engine.record(batch.rows_of_unit) as tape:
        loss(model, batch).sum().backward()
    norms = tape.norms()                                   # (groups, units)
    tape.add_clipped_sum(clip.factors(norms), sums)        # {name: (*shape)}
```
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dptune.dpsgd.rules import GradientRule, as_term, find_gradient_rule
from dptune.dpsgd.terms import Outer, Term, merge, squared_norm_of_sum
from dptune.errors import ModelError, PrivacyError

DEFAULT_MATERIALIZE_BYTES = 1 << 30

# Writing gradients down costs two passes over memory, Gram matrices multiplications.
# Measured on one CPU core: they break even where T^2 (m + n) is about 40 m n.
_DENSE_PASS_COST = 40

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def one_group(name: str) -> int:  # noqa: ARG001 - the signature of a grouping
    """Put every parameter into group 0."""
    return 0


class Tape:
    """What one backward pass left: per-unit gradients of every trainable parameter.

    **Privacy**: everything here is private, counts included.
    """

    def __init__(
        self,
        *,
        group_of: Mapping[str, int],
        rows_of_unit: Tensor,
        buffers: "_BufferPool",
        device: torch.device,
    ) -> None:
        self._group_of = group_of
        self._num_groups = 1 + max(group_of.values(), default=0)
        self._buffers = buffers
        self._device = device
        self._num_units, largest = rows_of_unit.shape
        self.num_rows = _check_rows(rows_of_unit)
        plain = largest == 1 and bool((rows_of_unit[:-1] < rows_of_unit[1:]).all())
        self._rows_of_unit = None if plain else rows_of_unit.to(device)
        self._terms: dict[str, list[Term]] = {}
        self._nonfinite: Tensor | None = None

    def add(self, name: str, term: Term) -> None:
        """Add the gradient of one use of a parameter, `(rows, ...)`."""
        if self._rows_of_unit is not None:
            term = term.regroup(self._rows_of_unit)
        dense = self._buffers.get(name)
        if dense is not None and name in self._terms:
            term.add_into(dense)
            return
        if isinstance(term, Outer):
            term = self._buffers.densify(name, term)
        self._terms.setdefault(name, []).append(term)

    def norms(self) -> Tensor:
        """Return the L2 norm of each unit's gradient within each group.

        **Formal guarantee**: computed in float32 from the same numbers that
        `add_clipped_sum` adds up, uses of tied weights summed before squaring.

        | case | norm |
        |---|---|
        | a unit with a NaN or infinite entry, or overflow | inf in every group |
        | a parameter that no unit used | adds 0 |

        Returns:
            `(groups, units)`, float32.
        """
        squares = torch.zeros(self._num_groups, self._num_units, device=self._device)
        for name, terms in self._terms.items():
            terms[:] = merge(terms)
            squares[self._group_of[name]] += squared_norm_of_sum(terms)
        nonfinite = ~torch.isfinite(squares.sum(0))
        self._nonfinite = nonfinite
        return squares.sqrt_().masked_fill_(nonfinite, torch.inf)

    @property
    def num_nonfinite_units(self) -> int:
        """Units without a finite gradient, which contribute zero. Private."""
        return 0 if self._nonfinite is None else int(self._nonfinite.sum())

    def add_clipped_sum(self, factors: Tensor, sums: Mapping[str, Tensor]) -> None:
        """Add sum over units of factor * gradient to each parameter's tensor.

        Units whose gradient is not finite contribute exactly zero, whatever their
        factor: they are overwritten, since 0 * NaN is NaN.

        Args:
            factors: `(groups, units)`, from a clip policy.
            sums: one float32 tensor per trainable parameter; changed in place.

        Raises:
            PrivacyError: `norms` was not called before, or a factor is not finite.
        """
        if self._nonfinite is None:
            raise PrivacyError("norms() must be called before add_clipped_sum().")
        factors = factors.masked_fill(self._nonfinite, 0)
        if not bool(torch.isfinite(factors).all()):
            raise PrivacyError(
                "clip factors must be finite for units with a finite norm. "
                "Correct the clip policy."
            )
        has_nonfinite = bool(self._nonfinite.any())
        for name, terms in self._terms.items():
            factor = factors[self._group_of[name]].contiguous()
            for term in terms:
                clean = term.without(self._nonfinite) if has_nonfinite else term
                clean.add_weighted_sum(factor, sums[name])


class PerUnitGradients:
    """Books per-unit gradients of a model's trainable parameters.

    **Formal guarantee**: for a model whose rows do not influence each other, the
    recorded gradient of unit u is the gradient of the summed losses of its rows, for
    full fine-tuning, LoRA, tied weights and every module with a rule;
    `selfcheck.check_model` verifies it.

    Args:
        model: parameters with `requires_grad` are trained; they must be float32.
        parameter_groups: group of each parameter by name, from 0. One group by default.
        materialize_bytes: memory for gradients that are written down; beyond it norms
            come from Gram matrices. Never changes results beyond rounding.

    Raises:
        ModelError: a trainable parameter has no rule or no module of its own, or the
            model mixes records. The message names it and says what to do.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        parameter_groups: Callable[[str], int] = one_group,
        materialize_bytes: int = DEFAULT_MATERIALIZE_BYTES,
    ) -> None:
        self.parameters = trainable_parameters(model)
        self._names = {id(value): name for name, value in self.parameters.items()}
        self._group_of = {name: parameter_groups(name) for name in self.parameters}
        _check_no_mixing(model)
        self._modules = self._modules_with_rules(model)
        self._buffers = _BufferPool(materialize_bytes)
        self._handles: list[RemovableHandle] = []
        self._tape: Tape | None = None

    def __enter__(self) -> Self:
        """Hang the hooks."""
        for name, module, rule in self._modules:
            self._handles.append(module.register_forward_pre_hook(self._unbroadcast))
            hook = self._forward_hook(name, module, rule)
            self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the hooks off; the model is as before."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def num_groups(self) -> int:
        """Number of parameter groups."""
        return 1 + max(self._group_of.values())

    def zeros(self) -> dict[str, Tensor]:
        """Return a float32 zero tensor for each trainable parameter."""
        return {
            name: torch.zeros_like(value, dtype=torch.float32)
            for name, value in self.parameters.items()
        }

    @contextmanager
    def record(
        self, rows_of_unit: Tensor, *, skip_autograd: bool = True
    ) -> Iterator[Tape]:
        """Record one forward and backward pass.

        The tape is valid until the next recording, which reuses its memory.

        Args:
            rows_of_unit: rows of each unit, padded with -1, `(units, largest unit)`.
            skip_autograd: keep autograd from computing the gradient of the batch as
                well.
        """
        device = next(iter(self.parameters.values())).device
        self._buffers.release()
        tape = Tape(
            group_of=self._group_of,
            rows_of_unit=rows_of_unit,
            buffers=self._buffers,
            device=device,
        )
        self._tape = tape
        self._set_requires_grad(value=not skip_autograd)
        try:
            yield tape
        finally:
            self._set_requires_grad(value=True)
            self._tape = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let a pass inside a recording go by unrecorded."""
        tape, self._tape = self._tape, None
        try:
            yield
        finally:
            self._tape = tape

    def _set_requires_grad(self, *, value: bool) -> None:
        """Freeze or thaw every trainable parameter."""
        for parameter in self.parameters.values():
            parameter.requires_grad_(value)

    def _modules_with_rules(
        self, model: nn.Module
    ) -> list[tuple[str, nn.Module, GradientRule]]:
        """Find the owners of trainable parameters; refuse those without a rule."""
        found, owned = [], set()
        for module_name, module in model.named_modules():
            own = {
                self._names[id(parameter)]
                for parameter in module.parameters(recurse=False)
                if id(parameter) in self._names
            }
            if not own:
                continue
            rule = find_gradient_rule(module)
            if rule is None:
                raise ModelError(_no_rule(sorted(own)[0], module))
            _check_embedding(module_name, module)
            found.append((module_name, module, rule))
            owned |= own
        missing = sorted(set(self.parameters) - owned)
        if missing:
            raise ModelError(_no_rule(missing[0], model))
        return found

    def _unbroadcast(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Repeat an input that all rows share, such as position ids, for every row."""
        if self._tape is None or not args or not isinstance(args[0], Tensor):
            return args
        first = args[0]
        if len(first) == 1 and self._tape.num_rows > 1:
            first = first.expand(self._tape.num_rows, *first.shape[1:])
        return (first, *args[1:])

    def _forward_hook(
        self, name: str, module: nn.Module, rule: GradientRule
    ) -> Callable[..., None]:
        """Make the hook of one module."""
        own = {
            local: self._names[id(parameter)]
            for local, parameter in module.named_parameters(
                recurse=False, remove_duplicate=False
            )
            if id(parameter) in self._names
        }

        def forward(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
        ) -> None:
            tape = self._tape
            if tape is None:
                return
            tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
            first = next(tensors, None)
            inputs = _check_rows_first(name, first, num_rows=tape.num_rows).detach()
            output = _check_rows_first(name, output, num_rows=tape.num_rows)
            if not output.requires_grad:
                output.requires_grad_()

            @torch.no_grad()
            def backward(grad: Tensor) -> None:
                if self._tape is not tape:
                    return
                for local, gradient in rule(module, inputs, grad.detach()).items():
                    if local in own:
                        tape.add(own[local], as_term(gradient))

            output.register_hook(backward)  # type: ignore[no-untyped-call]

        return forward


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return trainable parameters by name; tied ones once, under their first name.

    Raises:
        ModelError: there is none, or one is not float32.
    """
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not named:
        raise ModelError(
            "the model must have a trainable parameter, got none. "
            "Set requires_grad_(True) or add LoRA layers."
        )
    for name, parameter in named.items():
        if parameter.dtype != torch.float32:
            raise ModelError(
                f"{name} must be float32 to be trained, got {parameter.dtype}. Load "
                'the model in float32 and choose dtype="bfloat16" to compute.'
            )
    return named


class _BufferPool:
    """Reused memory for dense gradients, within a budget: fresh pages are slow."""

    def __init__(self, budget_bytes: int) -> None:
        self._budget = budget_bytes
        self._memory: dict[str, Tensor] = {}
        self._in_use: dict[str, Tensor] = {}

    def release(self) -> None:
        """Declare all buffers free."""
        self._in_use.clear()

    def get(self, name: str) -> Tensor | None:
        """Return the gradients written down for a parameter, if any."""
        return self._in_use.get(name)

    def densify(self, name: str, term: Outer) -> Term:
        """Write gradients down if Gram matrices cost more and memory is left."""
        m, n = term.left.shape[2], term.right.shape[2]
        if term.ghost_cost < _DENSE_PASS_COST * m * n:
            return term
        memory = self._memory.get(name)
        if memory is None or memory.numel() < term.size:
            others = sum(x.nbytes for key, x in self._memory.items() if key != name)
            if others + 4 * term.size > self._budget:
                return term
            memory = torch.empty(
                term.size, dtype=torch.float32, device=term.left.device
            )
            self._memory[name] = memory
        buffer = memory[: term.size].view(len(term.left), m, n)
        self._in_use[name] = buffer
        return term.dense(buffer)


def _check_rows(rows_of_unit: Tensor) -> int:
    """Return the number of rows; refuse a row with no owner or with two."""
    rows = rows_of_unit[rows_of_unit >= 0].sort().values
    if not torch.equal(rows, torch.arange(len(rows), device=rows.device)):
        raise PrivacyError(
            "every row must belong to exactly one unit. Make batches with "
            "UnitDataset.collate."
        )
    return len(rows)


def _check_rows_first(name: str, tensor: object, *, num_rows: int) -> Tensor:
    """Refuse a module whose first dimension is not the batch."""
    if isinstance(tensor, Tensor) and tensor.dim() and len(tensor) == num_rows:
        return tensor
    shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
    raise ModelError(
        f"{name} must map tensors whose first dimension is the batch of {num_rows} "
        f"rows, got {shape}. Freeze its parameters, or keep rows apart in the model."
    )


def _check_embedding(name: str, module: nn.Module) -> None:
    """Refuse embedding options that change weights or mix rows behind our back."""
    if not isinstance(module, nn.Embedding):
        return
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise ModelError(
            f"{name} must not use max_norm or scale_grad_by_freq: they make the "
            "gradient of one record depend on others. Turn both off."
        )


def _check_no_mixing(model: nn.Module) -> None:
    """Refuse modules through which one record reaches another, and recomputation."""
    for name, module in model.named_modules():
        if isinstance(module, _BATCH_NORMS):
            raise ModelError(
                f"{name} is a batch normalisation: it mixes records, and no clip "
                "bounds that. Replace it with LayerNorm."
            )
        if getattr(module, "gradient_checkpointing", False):
            raise ModelError(
                "gradient checkpointing runs the forward pass twice and is not "
                "supported yet. Call model.gradient_checkpointing_disable() and lower "
                "physical_batch_size."
            )


def _no_rule(parameter: str, module: nn.Module) -> str:
    """Say which parameter cannot be trained, and the two ways out."""
    return (
        f"{parameter} cannot be trained with per-unit clipping: its module "
        f"{type(module).__name__} has no gradient rule. Freeze it with "
        "requires_grad_(False), or teach the module with "
        "dptune.dpsgd.rules.register_gradient_rule."
    )
