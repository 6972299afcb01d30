"""Per-unit gradients from one ordinary backward pass.

The engine hangs hooks on the modules that own trainable parameters. In the forward pass
a hook notes the input of a module, in the backward pass the gradient of its output.
From the two follow the norm of every unit's gradient and the clipped sum, without a
second backward pass and without the gradient of the batch, which autograd is kept from
computing.

```python
with PerUnitGradients(model) as engine:
    sums = engine.zeros()                                  # {name: (*shape)}
    with engine.record(batch.rows_of_unit) as tape:
        norms = tape.backward(loss(model, batch).sum(), clip.factors, sums)
```

Where every recording has one row (microbatches of one), nothing is told apart, and
autograd does it all: that works for any module, and where rows reach each other.

With gradient checkpointing there are two backward passes: terms that wait for the last
norm would take the memory that checkpointing saves, so the first pass leaves norms only
and the second adds up. One row alone needs no second pass.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from types import TracebackType
from typing import Any, Final, NamedTuple, NoReturn, Self

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.hooks import RemovableHandle
from transformers.modeling_layers import GradientCheckpointingLayer

from dptune.dpsgd.parameters import DEFAULT_MATERIALIZE_BYTES, trainable_parameters
from dptune.dpsgd.rounding import check_float32_products, full_precision
from dptune.dpsgd.rules import (
    GradientRule,
    as_term,
    find_gradient_rule,
    multiplies,
)
from dptune.dpsgd.tape import DenseBudget, Tape
from dptune.errors import ModelError, PrivacyError

ONE_ROW: Final = (
    "physical_batch_size to 1 (performance.physical_batch_size of a configuration, "
    "per_device_train_batch_size of a Trainer)"
)
"""How each kind of user runs every row by itself."""

_WITHOUT_RULES = f"Set {ONE_ROW}, which needs no rule: every row is then run by itself"
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def one_group(name: str) -> int:  # noqa: ARG001 - the signature of a grouping
    """Put every parameter into group 0."""
    return 0


@dataclass
class _Call:
    """One call of a module: its input and the gradient of its output, until both met.

    Where a block is checkpointed, the gradient of its last module comes before its
    input is computed again. `keeps_inputs`: a second backward pass will need them.
    """

    module: nn.Module
    rule: GradientRule
    own: Mapping[str, str]
    tape: Tape
    keeps_inputs: bool
    inputs: Tensor | None = None
    grad: Tensor | None = None

    @torch.no_grad()
    def finish(self) -> None:
        """Hand gradients to the tape as soon as both are there."""
        if self.inputs is None or self.grad is None:
            return
        with full_precision(self.grad.device):
            gradients = self.rule(self.module, self.inputs, self.grad)
        self.grad = None
        if not self.keeps_inputs:  # the graph outlives the pass, and its hooks
            self.inputs = None
        for local, gradient in gradients.items():
            if local in self.own:
                self.tape.add(self.own[local], as_term(gradient))


class _OfModel:
    """A hook that belongs to one model: no copy of it, and no file, takes it along."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> Any:  # noqa: ANN401 - of a hook
        """Call the hook."""
        return self._hook(*args)

    def __deepcopy__(self, _: object) -> Callable[..., None]:
        """Leave a copy of the model without it."""
        return _do_nothing

    def __reduce__(self) -> NoReturn:
        """Refuse to be written.

        Raises:
            ModelError: always.
        """
        raise ModelError(
            "a model must be saved by save_pretrained or its state_dict while it is "
            "trained privately, got a pickle of all that hangs on it."
        )


def _do_nothing(*_: object, **__: object) -> None:
    """Stand where a hook was."""


class _Multiplied(NamedTuple):
    """An input, which may be written over, and its copy of lower precision."""

    of: weakref.ref[Tensor]  # one object as long as the tensor lives
    version: int
    copy: Tensor


class PerUnitGradients:
    """Books per-unit gradients of a model's trainable parameters.

    **Formal guarantee**: for a model whose rows do not influence each other, the
    recorded gradient of unit u is the gradient of the summed losses of its rows, for
    full fine-tuning, LoRA, tied weights and every module with a rule;
    `selfcheck.check_model` verifies it. With `alone` it holds for every module, and
    for every model that keeps nothing of an earlier pass: a pass sees one row.

    Args:
        model: parameters with `requires_grad` are trained; they must be float32.
        parameter_groups: group of each parameter by name, from 0. One group by default.
        materialize_bytes: memory for gradients that are written down and take more
            than what they follow from; beyond it norms come from Gram matrices. Never
            changes results beyond rounding.
        alone: every recording has one row, whose gradient is that of autograd. Modules
            need no rule then; memory, one more copy of what is trained.

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
        alone: bool = False,
    ) -> None:
        self.parameters = trainable_parameters(model)
        self._names = {id(value): name for name, value in self.parameters.items()}
        self.group_of = {name: parameter_groups(name) for name in self.parameters}
        check_modules(model)
        self.alone = alone
        self._modules = [] if alone else self._modules_with_rules(model)
        owners = Counter(
            self._names[id(parameter)]
            for _, module, _ in self._modules
            for _, parameter in _own_parameters(module)
            if id(parameter) in self._names
        )
        self._shared = {name for name, count in owners.items() if count > 1}
        self._layers = [
            (name, layer)
            for name, layer in model.named_modules()
            if isinstance(layer, GradientCheckpointingLayer)
        ]
        self._checkpointed: Set[str] = frozenset()
        self._materialize_bytes = materialize_bytes
        self._handles: list[RemovableHandle] = []
        self._tape: Tape | None = None
        self._thread = 0
        self._calls: dict[str, _Call] = {}
        self._multiplied: _Multiplied | None = None

    def __enter__(self) -> Self:
        """Hang the hooks."""
        before = _OfModel(self._unbroadcast)
        for name, module, rule in self._modules:
            self._handles.append(module.register_forward_pre_hook(before))
            hook = _OfModel(self._forward_hook(name, module, rule))
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
        return 1 + max(self.group_of.values())

    def zeros(self) -> dict[str, Tensor]:
        """Return a float32 zero tensor for each trainable parameter."""
        return {
            name: torch.zeros(value.shape, dtype=torch.float32, device=value.device)
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

        Raises:
            ModelError: gradient checkpointing is reentrant.
            PrivacyError: torch is set to matrix products below float32, or rows that
                should be alone are not.
        """
        check_float32_products()
        device = next(iter(self.parameters.values())).device
        self._checkpointed = _checkpointed_modules(self._layers)
        if self.alone and rows_of_unit.numel() != 1:
            raise PrivacyError(
                "a recording must be of one row where autograd does it all, got "
                f"rows_of_unit of shape {tuple(rows_of_unit.shape)}. Set "
                "physical_batch_size to 1."
            )
        tape = Tape(
            group_of=self.group_of,
            rows_of_unit=rows_of_unit,
            budget=DenseBudget(self._materialize_bytes),
            shared=self._shared,
            streams=bool(self._checkpointed) and not self.alone,
            device=device,
            alone=self.parameters if self.alone else None,
        )
        self._tape, self._thread = tape, get_ident()
        self._set_requires_grad(value=self.alone or not skip_autograd)
        try:
            with set_checkpoint_early_stop(False):
                yield tape
        finally:
            self._set_requires_grad(value=True)
            self._calls.clear()
            self._multiplied = self._tape = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let a pass inside a recording go by unrecorded."""
        tape, self._tape = self._tape, None
        try:
            yield
        finally:
            self._tape = tape

    @property
    def _recording(self) -> Tape | None:
        """Return the tape if what runs is recorded: not what another thread runs.

        In a backward pass, whose threads are torch's, only checkpointed blocks run.
        """
        tape = self._tape
        if tape is None:
            return None
        runs = self._checkpointed if tape.in_backward else get_ident() == self._thread
        return tape if runs else None

    def _set_requires_grad(self, *, value: bool) -> None:
        """Freeze or thaw every trainable parameter."""
        for parameter in self.parameters.values():
            parameter.requires_grad_(value)

    def _modules_with_rules(
        self, model: nn.Module
    ) -> list[tuple[str, nn.Module, GradientRule]]:
        """Find the owners of trainable parameters; refuse those without a rule."""
        found = []
        past = {
            id(factor)
            for module in model.modules()
            if isinstance(module, ParamWrapper)  # multiplies its factors by itself
            for factor in module.modules()
        }
        for module_name, module in model.named_modules():
            own = sorted(
                self._names[id(parameter)]
                for _, parameter in _own_parameters(module)
                if id(parameter) in self._names
            )
            if not own or isinstance(module, nn.ParameterDict):
                continue
            rule = find_gradient_rule(module)
            if rule is None or id(module) in past:
                raise ModelError(_no_rule(own[0], module))
            found.append((module_name, module, rule))
        return found

    def _unbroadcast(self, _: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Repeat an input that all rows share, such as position ids, for every row."""
        tape = self._recording
        if tape is None or not args or not isinstance(args[0], Tensor):
            return args
        first = args[0]
        if tape.num_rows > 1 and first.shape[:1] == (1,):
            first = first.expand(tape.num_rows, *first.shape[1:])
        return (first, *args[1:])

    def _forward_hook(
        self, name: str, module: nn.Module, rule: GradientRule
    ) -> Callable[..., None]:
        """Make the hook of one module."""
        own = {
            local: self._names[id(parameter)]
            for local, parameter in _own_parameters(module)
            if id(parameter) in self._names
        }

        def forward(
            _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
        ) -> None:
            tape = self._recording
            if tape is None:
                return
            tensors = (v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
            first = next(tensors, None)
            inputs = _check_rows_first(name, first, num_rows=tape.num_rows)
            inputs = self._as_multiplied(inputs) if multiplies(rule) else inputs
            inputs = inputs.detach()
            output = _check_rows_first(name, output, num_rows=tape.num_rows)
            if not output.requires_grad:
                output.requires_grad_()
                output.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    _forget_grad
                )
            is_checkpointed = name in self._checkpointed
            if is_checkpointed and name in self._calls:
                self._recomputed(name, tape, inputs)
                return
            call = _Call(
                module=module,
                rule=rule,
                own=own,
                tape=tape,
                keeps_inputs=tape.streams and not is_checkpointed,
                inputs=None if is_checkpointed else inputs,
            )
            self._calls[name] = call

            def backward(grad: Tensor) -> None:
                if self._tape is tape:
                    call.grad = grad.detach()
                    call.finish()

            output.register_hook(backward)  # type: ignore[no-untyped-call]

        return forward

    def _as_multiplied(self, inputs: Tensor) -> Tensor:
        """Return what a linear layer multiplies: under autocast half the memory.

        Layers that share an input, as projections of attention do, share its copy.
        """
        kind = inputs.device.type
        if inputs.dtype != torch.float32 or not torch.is_autocast_enabled(kind):
            return inputs
        reference, version = weakref.ref(inputs), inputs._version
        last = self._multiplied
        if last is None or last.of is not reference or last.version != version:
            copy = inputs.detach().to(torch.get_autocast_dtype(kind))
            last = self._multiplied = _Multiplied(reference, version, copy)
        return last.copy

    def _recomputed(self, name: str, tape: Tape, inputs: Tensor) -> None:
        """Take the input of a checkpointed module when it is there again."""
        if not tape.in_backward:
            raise ModelError(
                f"{name} must be called once in a forward pass to be checkpointed. "
                "Turn gradient checkpointing off, or freeze its parameters."
            )
        call = self._calls[name]
        call.inputs = inputs
        call.finish()


def _own_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield a module's parameters, with those of dictionaries that it holds."""
    yield from module.named_parameters(recurse=False, remove_duplicate=False)
    for name, child in module.named_children():
        if isinstance(child, nn.ParameterDict):
            for key, parameter in child.named_parameters():
                yield f"{name}.{key}", parameter


def _forget_grad(output: Tensor) -> None:
    """Drop what autograd collects for us: a second pass would add to it in place."""
    output.grad = None


def _check_rows_first(name: str, tensor: object, *, num_rows: int) -> Tensor:
    """Refuse a module whose first dimension is not the batch."""
    if isinstance(tensor, Tensor) and tensor.shape[:1] == (num_rows,):
        return tensor
    shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
    raise ModelError(
        f"{name} must map tensors whose first dimension is the batch of {num_rows} "
        f"rows, got {shape}. {_WITHOUT_RULES}, or freeze its parameters."
    )


def check_modules(model: nn.Module) -> None:
    """Refuse modules through which one record reaches another, or the engine nothing.

    Raises:
        ModelError: there is one; names it.
    """
    for name, module in model.named_modules():
        is_wrapped = type(module).__name__ == "OptimizedModule"
        by_forward = hasattr(module.forward, "_torchdynamo_orig_callable")
        if is_wrapped or by_forward or module._compiled_call_impl is not None:
            raise ModelError(
                f"{name or 'the model'} must not be compiled: the engine looks into "
                "its modules. Leave compile out."
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
            module.max_norm is not None or module.scale_grad_by_freq
        ):
            raise ModelError(
                f"{name} must not use max_norm or scale_grad_by_freq: they make the "
                "gradient of one record depend on others, and write to weights that "
                "are frozen. Turn both off."
            )
        if isinstance(module, _BATCH_NORMS):
            raise ModelError(
                f"{name} is a batch normalisation: it mixes records, and no clip "
                "bounds that. Replace it with LayerNorm."
            )


def _checkpointed_modules(
    layers: Sequence[tuple[str, GradientCheckpointingLayer]],
) -> Set[str]:
    """Name the modules whose forward pass is run again in the backward pass.

    Raises:
        ModelError: the reentrant form is on, in which the first forward pass has no
            graph to hang hooks on.
    """
    names = set()
    for layer_name, layer in layers:
        if not (layer.gradient_checkpointing and layer.training):
            continue
        function: Any = layer._gradient_checkpointing_func
        if getattr(function, "keywords", {}).get("use_reentrant", True):
            raise ModelError(
                "gradient checkpointing must not be reentrant. Call "
                'activation_checkpointing_enable({"use_reentrant": False}).'
            )
        names |= {f"{layer_name}.{name}" for name, _ in layer.named_modules() if name}
    return names


def _no_rule(parameter: str, module: nn.Module) -> str:
    """Say which parameter cannot be trained, and the ways out."""
    kind = type(module)
    return (
        f"{parameter} cannot be trained with rows side by side: its module "
        f"{kind.__module__}.{kind.__qualname__} has no gradient rule. "
        f"{_WITHOUT_RULES}, train adapters of LoRA, freeze it with "
        "requires_grad_(False), or teach the module with dptune.dpsgd.rules."
        "register_gradient_rule."
    )
