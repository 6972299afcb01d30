"""Leave a model as it was, and find out what in it uses chance.

`untouched` puts weights, buffers, attributes, configuration and randomness back.
`Undropped` makes dropout the identity: dropout draws for every entry by itself, so that
two neighboring data sets can be coupled with the same mask in each row that both have,
and the clip bounds the rest. What is drawn once for all rows of a batch (a layer that
is left out, hashes, a mask that rows share) has no such coupling: which rows share it
depends on who is there.
"""

import copy
import math
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig

from dptune.precision import computing

LOW_PRECISION = frozenset({torch.float16, torch.bfloat16})
_NUDGE = 0.02
_ROUNDED = 1e-4
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class Snapshot:
    """What the modules of a model hold beside their weights, to compare and put back.

    Args:
        model: its weights are not copied.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=True))
        self._fields = {n: _copies(m.__dict__) for n, m in self._modules.items()}
        configs = {id(config): config for config in _configs(self._modules.values())}
        self._configs = [(c, _copies(vars(c))) for c in configs.values()]
        self._buffers = {
            name: (value, value.clone()) for name, value in model.named_buffers()
        }
        self._parameters = [(p, p.requires_grad, p.grad) for p in model.parameters()]

    def changed_buffers(self, model: nn.Module) -> list[str]:
        """Name buffers that are others than they were."""
        return [
            name
            for name, value in model.named_buffers()
            if name not in self._buffers or not _same(value, self._buffers[name][1])
        ]

    def changed_fields(self) -> list[str]:
        """Name what modules hold that is another now, or of another length."""
        return [
            f"{name}.{field}" if name else field
            for name, module in self._modules.items()
            for field, value in module.__dict__.items()
            if field in self._fields[name]  # which hooks there are is not noted
            and _differs(value, *self._fields[name][field])
        ]

    def switched(self, model: nn.Module) -> list[str]:
        """Name parameters that are trained and were not, or the other way."""
        before = {id(value): trained for value, trained, _ in self._parameters}
        return [
            name
            for name, value in model.named_parameters()
            if before.get(id(value)) != value.requires_grad
        ]

    def restore(self) -> None:
        """Put everything back, bit for bit."""
        for name, module in self._modules.items():
            _put_back(module.__dict__, self._fields[name])
        for config, fields in self._configs:
            _put_back(vars(config), fields)
        with torch.no_grad():
            for value, before in self._buffers.values():
                value.copy_(before)
        for parameter, requires_grad, grad in self._parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = grad


@contextmanager
def untouched(model: nn.Module) -> Iterator[Snapshot]:
    """Put the model, and numpy's and Python's randomness, back on leaving."""
    snapshot = Snapshot(model)
    state = random.getstate()
    legacy = np.random.get_state()  # noqa: NPY002 - that of models, not ours
    try:
        yield snapshot
    finally:
        snapshot.restore()
        random.setstate(state)
        np.random.set_state(legacy)  # noqa: NPY002 - that of models, not ours


def changed_weights(model: nn.Module) -> Callable[[], list[str]]:
    """Note the sums of all weights' bits; what is returned names those that moved."""

    def sums() -> dict[str, int]:
        return {
            name: int(bits_of(value.detach()))
            for name, value in model.named_parameters()
        }

    before = sums()
    return lambda: [name for name, value in sums().items() if value != before[name]]


def bits_of(values: Tensor) -> Tensor:
    """Add entries up as integers: any one that moves by a bit is seen, and NaN too."""
    flat = values.contiguous().view(-1)
    size = math.gcd(flat.nbytes, flat.storage_offset() * flat.itemsize, 8)
    return flat.view(_INTEGERS[size]).sum(dtype=torch.int64)


@contextmanager
def scaled(model: nn.Module, exponent: int) -> Iterator[None]:
    """Multiply all weights by 2^exponent, and move trainable ones away from zero.

    A factor of an adapter that starts at zero, or a gate next to it, would hide what
    the rest does. Powers of 2 are undone exactly, without a copy of the weights.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    zeros = [(p, p.detach().clone()) for p in trained if not p.any()]
    exponents = [
        (parameter, power)
        for parameter in model.parameters()
        if parameter.is_floating_point() and (power := exponent + _lift(parameter))
    ]
    generator = torch.Generator().manual_seed(0)  # public constants
    with torch.no_grad():
        try:
            for parameter, power in exponents:
                parameter.mul_(2.0**power)
            for parameter, _ in zeros:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(drawn * _NUDGE * 2.0**exponent)
            with torch.enable_grad():
                yield
        finally:
            for parameter, power in exponents:
                parameter.mul_(2.0**-power)
            for parameter, before in zeros:
                parameter.copy_(before)


@contextmanager
def in_dtype(
    model: nn.Module, dtype: torch.dtype, *, of: Set[torch.dtype]
) -> Iterator[None]:
    """Hold weights and buffers of some types in another one meanwhile."""
    held = [(tensor, tensor.data) for tensor in computing(model) if tensor.dtype in of]
    try:
        for tensor, values in held:
            tensor.data = values.to(dtype)
        yield
    finally:
        for tensor, values in held:
            tensor.data = values


@contextmanager
def widened() -> Iterator[None]:
    """Compute in float64 where the code of a model asks for float32 by itself."""
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # the type of what is made without one
    try:
        with _Widened():
            yield
    finally:
        torch.set_default_dtype(usual)


class _Widened(TorchFunctionMode):
    """Replaces float32 by float64 in what functions of torch are given."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Ask for float64 instead."""
        options = {name: _in_float64(value) for name, value in (kwargs or {}).items()}
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        if func is torch._grouped_mm:  # has no kernel for float64
            func = _grouped
        return func(*map(_in_float64, args), **options)


def _grouped(
    left: Tensor,
    right: Tensor,
    *,
    offs: Tensor,
    **_: None,  # a bias and a type, neither of which experts give
) -> Tensor:
    """Multiply runs of rows, which end at `offs`, each by its own matrix."""
    *runs, rest = torch.tensor_split(left, offs.cpu().long())
    products = [run @ matrix for run, matrix in zip(runs, right, strict=True)]
    return torch.cat([*products, rest.new_zeros(len(rest), right.shape[-1])])


def _in_float64(value: Any) -> Any:  # noqa: ANN401 - an argument of any function
    """Replace the type float32 by float64."""
    return torch.float64 if value is torch.float32 else value


def _configs(modules: Iterable[nn.Module]) -> Iterator[PreTrainedConfig]:
    """Yield the configurations that modules hold, and those within them."""
    found = [v for m in modules for v in vars(m).values()]
    for value in found:
        if isinstance(value, PreTrainedConfig):
            yield value
            found += [
                v for v in vars(value).values() if isinstance(v, PreTrainedConfig)
            ]


def _lift(parameter: nn.Parameter) -> int:
    """Powers of 2 that a trainable weight which is tiny, but not zero, lacks."""
    if not (parameter.requires_grad and parameter.is_floating_point()):
        return 0
    size = float(parameter.detach().abs().max()) if parameter.numel() else 0.0
    if not 0 < size < _NUDGE:
        return 0
    return min(64, round(math.log2(_NUDGE / size)))


def _copies(fields: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return values, and copies of those that can change in place."""
    return {
        name: (value, copy.copy(value) if _is_container(value) else _clone(value))
        for name, value in fields.items()
        if "_hooks" not in name
    }


def _put_back(fields: dict[str, Any], before: Mapping[str, tuple[Any, Any]]) -> None:
    """Put attributes back, the same objects with the same contents."""
    for name in [n for n in fields if n not in before and "_hooks" not in n]:
        del fields[name]
    for name, (value, contents) in before.items():
        fields[name] = value
        if isinstance(value, dict | set):
            value.clear()
            value.update(contents)
        elif isinstance(value, list):
            value[:] = contents
        elif isinstance(contents, Tensor):
            with torch.no_grad(), suppress(RuntimeError):
                value.copy_(contents)


def _differs(value: object, before: object, contents: object) -> bool:
    """Whether an attribute has another value, beyond rounding.

    Args:
        value: now; of a list or dictionary its length, numbers and words are compared,
            and what is no number, word or tensor beside is not looked into.
        before: the object that it was.
        contents: of that, if it was a plain tensor, a list or a dictionary.
    """
    if isinstance(value, dict | set | list) and isinstance(contents, type(value)):
        return _told(value) != _told(contents)
    if isinstance(value, Tensor) and isinstance(contents, Tensor):
        new, old = value.detach().double(), contents.double()
        if new.shape != old.shape:
            return True
        scale = old.nan_to_num().abs().max() if old.numel() else 0.0
        return not torch.allclose(
            new, old, rtol=0, atol=_ROUNDED * float(scale), equal_nan=True
        )
    if isinstance(value, float) and isinstance(before, float):
        same = math.isclose(value, before, rel_tol=_ROUNDED)
        return not (same or math.isnan(value))
    plain = isinstance(value, str | int | float | bool | type(None))
    return plain and before != value


def _told(value: Any) -> tuple[int, list[str]]:  # noqa: ANN401 - a container
    """Tell a list, set or mapping by its length, and the numbers and words in it."""
    held = [*value.values()] if isinstance(value, dict) else [*value]
    plain = [repr(each) for each in held if isinstance(each, str | int | float)]
    return len(held), sorted(plain)


def _is_container(value: object) -> bool:
    """Whether a value may change in place without being another one."""
    return isinstance(value, dict | set | list)


def _clone(value: object) -> object:
    """Return a copy of a plain tensor, else nothing."""
    if not isinstance(value, Tensor) or isinstance(value, nn.Parameter):
        return None
    return value.detach().clone()


def _same(first: Tensor, second: Tensor) -> bool:
    """Whether two buffers are equal, NaN included."""
    return first.shape == second.shape and torch.equal(
        first.nan_to_num(), second.nan_to_num()
    )


_ATTENTION = functional.scaled_dot_product_attention
_ATTENTION_DROPOUT = 4
_DROPOUTS: frozenset[Any] = frozenset(
    {
        functional.dropout,
        functional.dropout1d,
        functional.dropout2d,
        functional.dropout3d,
        functional.alpha_dropout,
        functional.feature_alpha_dropout,
        torch.dropout,
        torch.dropout_,
        torch.alpha_dropout,
        torch.feature_dropout,
    }
)
_UNIFORM: frozenset[Any] = frozenset(
    {torch.rand, torch.rand_like, torch.bernoulli, torch.Tensor.bernoulli_}
)
_DRAWS: frozenset[Any] = _UNIFORM | {
    torch.randn,
    torch.randn_like,
    torch.randint,
    torch.randint_like,
    torch.randperm,
    torch.multinomial,
    torch.normal,
    torch.poisson,
    torch.Tensor.uniform_,
    torch.Tensor.bernoulli,
    torch.Tensor.multinomial,
    torch.Tensor.normal_,
    torch.Tensor.exponential_,
    torch.Tensor.random_,
    torch.Tensor.log_normal_,
    torch.Tensor.geometric_,
    torch.Tensor.cauchy_,
}


def _drawing(number: float) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """Yield functions of Python and numpy that draw from an interval, and draw this."""

    def filled(size: Any = None) -> Any:  # noqa: ANN401 - numbers, or one
        return number if size is None else np.full(size, number)

    def between(low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:  # noqa: ANN401
        return low + (high - low) * filled(size)

    yield random, "random", filled
    yield random, "uniform", between
    yield np.random, "rand", lambda *shape: filled(shape or None)
    yield np.random, "uniform", between
    for name in ("random", "random_sample"):
        yield np.random, name, filled


_LOOKED_AT: frozenset[Any] = _DROPOUTS | _DRAWS | {_ATTENTION}
_OF_TORCH = ("torch.", "dptune.dpsgd.untouched")


class Undropped(TorchFunctionMode):
    """Make dropout the identity; note what else is drawn, and what dropout sees.

    Args:
        extreme: what numbers in [0, 1) become, 0 or 1 (just below it), so that a
            decision that is rarely taken is taken once, those of Python and numpy too;
            None leaves them alone.
        alone: leave what torch draws from its own generator, too.
    """

    def __init__(self, *, extreme: int | None = None, alone: bool = False) -> None:
        super().__init__()
        self._extreme = extreme
        self._alone = alone
        self._drawn = ExitStack()
        self.draws: dict[str, None] = {}
        self.dropped: list[tuple[str, int]] = []

    def __enter__(self) -> Self:
        """Switch it on, and what Python and numpy draw to the extreme."""
        if self._extreme is not None:
            for module, name, draw in _drawing(self._extreme * (1 - 2**-10)):
                self._drawn.callback(setattr, module, name, getattr(module, name))
                setattr(module, name, self._noted(name, draw))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        """Switch it off."""
        self._drawn.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _noted(self, name: str, draw: Callable[..., Any]) -> Callable[..., Any]:
        """Note that a function draws, and who has called it."""

        def noted(*args: Any, **options: Any) -> Any:  # noqa: ANN401 - whatever it takes
            self.draws[f"{name} in {_caller()}"] = None
            return draw(*args, **options)

        return noted

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Pass everything on but dropout."""
        options = kwargs or {}
        if func not in _LOOKED_AT:  # nearly all
            return func(*args, **options)
        if func in _DROPOUTS:
            return self._undropped(args, options)
        if func is _ATTENTION:
            return self._attend(args, dict(options))
        result = func(*args, **options)
        self.draws[f"{getattr(func, '__name__', func)} in {_caller()}"] = None
        is_own = self._alone and options.get("generator") is None
        if func in _UNIFORM and self._extreme is not None and not is_own:
            result.fill_(self._extreme * (1 - 2**-10))
        return result

    def _undropped(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> Tensor:
        """Return the input of a dropout; note its size if something would be lost."""
        found: Tensor = args[0] if args else options["input"]
        rate = args[1] if len(args) > 1 else options.get("p", 0.5)
        training = args[2] if len(args) > 2 else options.get("training", True)
        if rate > 0 and training:
            self.dropped.append((_caller(), found.numel()))
        return found

    def _attend(self, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        """Attend without dropout."""
        if len(args) > _ATTENTION_DROPOUT:
            args = (*args[:_ATTENTION_DROPOUT], 0.0, *args[_ATTENTION_DROPOUT + 1 :])
        else:
            options["dropout_p"] = 0.0
        attended: Tensor = _ATTENTION(*args, **options)
        return attended


def _caller() -> str:
    """Name the function of the model that called torch."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        if not frame.f_globals.get("__name__", "").startswith(_OF_TORCH):
            return frame.f_code.co_qualname
        frame = frame.f_back
    return "an unknown function"
