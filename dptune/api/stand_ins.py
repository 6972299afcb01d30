"""What a script's loop body gets in place of a drawn batch, its output and its loss.

None of it holds a record. A body hands the batch to the model, takes the loss and calls
`backward` on it; whatever else it might do with records side by side has nothing to be
done with, and is refused by name where it is written.
"""

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, NoReturn, Protocol, Self

import torch
from torch import Tensor, nn
from torch.overrides import resolve_name

from dptune.errors import PrivacyError

_MOVES: Final = frozenset(
    {
        *(Tensor.to, Tensor.cpu, Tensor.cuda, Tensor.pin_memory, Tensor.contiguous),
        *(Tensor.detach, Tensor.clone, Tensor.__deepcopy__),
    }
)
_REFUSED: Final = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__pow__"),
    *("__rpow__", "__rtruediv__", "__floordiv__", "__rfloordiv__", "__mod__"),
    *("__matmul__", "__rmatmul__", "__neg__", "__abs__", "__lt__", "__le__", "__gt__"),
    *("__ge__", "__bool__", "__len__", "__iter__", "__contains__", "__setitem__"),
    *("__int__", "__index__", "__array__", "__round__", "__reduce_ex__"),
)
_CALCULATED: Final = (
    *("__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__"),
    *("__truediv__", "__rtruediv__", "__floordiv__", "__rfloordiv__", "__pow__"),
    *("__rpow__", "__mod__", "__rmod__", "__neg__", "__pos__", "__abs__", "__round__"),
)
_ORDERS: Final = ("__lt__", "__le__", "__gt__", "__ge__")
_DECIDERS: Final = {
    "torch.optim.lr_scheduler": "a schedule of the learning rate",
    "transformers.optimization": "a schedule of the learning rate",
    "torch.nn.utils.clip_grad": "a clip of gradients",
}
_ASKED_FOR: Final = frozenset(
    {"return_dict", "use_cache", "output_attentions", "output_hidden_states"}
)
_OF_BATCH: Final = (
    "Hand it whole to the model that make_private was given, as model(**batch); a loss "
    "that needs more is the argument `loss` of make_private."
)
_OF_LOSS: Final = (
    "Log loss.item(); a loss of your own is the argument `loss` of make_private, and a "
    "batch that does not fit into memory is cut by `physical_batch_size`."
)
_OF_NUMBER: Final = (
    "the training loss must decide nothing, got {got}: it is private, and what follows "
    "from it is in no claim. Decide by steps, or by what is measured on public data."
)


class Turn(Protocol):
    """One time round a loop whose body is the script's."""

    @property
    def columns(self) -> Sequence[str]:
        """Names of what a batch holds."""
        ...

    @property
    def has_own_loss(self) -> bool:
        """Whether the script's loss was given beforehand."""
        ...

    def check(self) -> None:
        """Refuse what is left of an earlier time round."""
        ...

    def loss(self) -> float:
        """Return the mean loss, of units that are paid for."""
        ...

    def backward(self) -> None:
        """Leave the released gradient in `grad`."""
        ...


class PrivateNumber(float):
    """A mean loss: a number to log and to average, by which nothing may be decided.

    **Privacy**: private, and so is what is calculated from it.
    """

    def item(self) -> Self:
        """Return it, as a tensor of one number does."""
        return self

    def __float__(self) -> float:
        """Return a plain number, for logs."""
        _refuse_deciders()
        return super().__float__()


def _calculating(name: str) -> Callable[..., Any]:
    """Make an operation whose result is as private as what goes in."""
    plain = getattr(float, name)

    def calculate(*values: object) -> object:
        found = plain(*values)
        return PrivateNumber(found) if isinstance(found, float) else found

    return calculate


def _deciding(name: str) -> Callable[..., NoReturn]:
    """Make a comparison that is refused."""

    def refuse(*_: object) -> NoReturn:
        raise PrivacyError(_OF_NUMBER.format(got=name))

    return refuse


for _name in ("detach", "float", "cpu"):
    setattr(PrivateNumber, _name, PrivateNumber.item)
for _name in _CALCULATED:
    setattr(PrivateNumber, _name, _calculating(_name))
for _name in _ORDERS:
    setattr(PrivateNumber, _name, _deciding(_name))


def _refuse_deciders() -> None:
    """Refuse a schedule or a clip that follows the training loss, where it reads it."""
    got = _DECIDERS.get(sys._getframe(2).f_globals.get("__name__", ""))
    if got is not None:
        raise PrivacyError(_OF_NUMBER.format(got=got))


class DrawnColumn(Tensor):
    """A column of a drawn batch: a tensor by its kind, of nothing.

    It may be moved, which leaves it what it is, and handed to the model.
    """

    column_name: str
    turn: Turn

    @staticmethod
    def of(turn: Turn, name: str) -> "DrawnColumn":
        """Return a column of a batch."""
        column = torch.empty(0, dtype=torch.long).as_subclass(DrawnColumn)
        column.column_name, column.turn = name, turn
        return column

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - the column, or its name
        """Refuse whatever would need the values."""
        if func in _MOVES:
            return args[0]
        if func is Tensor.__repr__:
            return f"<{args[0].column_name} of a drawn batch>"
        raise PrivacyError(
            "a drawn batch must not be read, changed or computed with, got "
            f"{_named(func)}: who is in it, and how many, is private. {_OF_BATCH}"
        )


class DrawnBatch(dict[str, DrawnColumn]):
    """A batch by columns, which hold nothing; moving it leaves it what it is."""

    def to(self, *_: object, **__: object) -> Self:
        """Return it: the engine brings what is drawn to the model's device."""
        return self

    def __deepcopy__(self, _: object) -> "DrawnBatch":
        """Return one with the same columns."""
        return DrawnBatch(self)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse what is asked of a batch beside its columns."""
        _refuse("a drawn batch", name, _OF_BATCH)


class _Closed:
    """What refuses everything that its class does not allow."""

    _what = ""
    _way_out = ""

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse an attribute by its name."""
        _refuse(self._what, name, self._way_out)

    def __getitem__(self, key: object) -> Any:  # noqa: ANN401 - of what allows it
        """Refuse a part."""
        _refuse(self._what, f"[{key!r}]", self._way_out)

    def __deepcopy__(self, _: object) -> Self:
        """Return it: there is nothing in it to copy."""
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> NoReturn:
        """Refuse functions of torch."""
        _refuse(cls._what, _named(func), cls._way_out)


def _named(func: Callable[..., Any]) -> str:
    """Name a function of torch; its compiler looks at what nobody has asked for."""
    if any("torch._dynamo" in str(f.f_globals.get("__name__")) for f in _frames()):
        return "torch.compile, which the model must go without"
    name: str = resolve_name(func) or getattr(func, "__name__", "a function")
    return name.removesuffix(".__get__")


def _frames() -> Iterator[FrameType]:
    """Yield the calls that have led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _refuse(what: str, got: str, way_out: str) -> NoReturn:
    """Refuse by name; Python looks for its own special methods without a fuss."""
    if got.startswith("__") and got.endswith("__"):
        raise AttributeError(got)
    raise PrivacyError(
        f"{what} must be left as it is, got {got}: nothing may be computed from it but "
        f"the private gradient. {way_out}"
    )


def _refusing(name: str) -> Callable[..., NoReturn]:
    """Make an operation that is refused."""

    def refuse(self: _Closed, *_: object) -> NoReturn:
        _refuse(self._what, name.strip("_"), self._way_out)

    return refuse


for _name in _REFUSED:
    setattr(_Closed, _name, _refusing(_name))


class PrivateLoss(_Closed):
    """The mean loss of a drawn batch, on which `backward` is called once.

    **Privacy**: `item()`, `float()` and `detach()` return a private number, for logs.
    The first of them, or `backward`, pays for the step and draws.
    """

    _what = "the loss of a drawn batch"
    _way_out = _OF_LOSS

    def __init__(self, turn: Turn) -> None:
        self._turn = turn

    def backward(self, *args: object, **kwargs: object) -> None:
        """Leave the clipped and noised gradient in `grad` of what is trained.

        Raises:
            PrivacyError: it was called before for this batch, or is asked for more.
        """
        if args or kwargs:
            _refuse(self._what, "backward with arguments", _OF_LOSS)
        self._turn.backward()

    def item(self) -> PrivateNumber:
        """Return the mean loss; private."""
        return PrivateNumber(self._turn.loss())

    detach = item

    def __float__(self) -> float:
        """Return the mean loss as a plain number, for logs; private."""
        _refuse_deciders()
        return self._turn.loss()

    def __format__(self, spec: str) -> str:
        """Write the mean loss; private."""
        return format(self.item(), spec)

    def __truediv__(self, divisor: object) -> Self:
        """Return it, divided by one; anything else changes the loss."""
        if isinstance(divisor, int | float) and divisor == 1:
            return self
        _refuse(self._what, "a division, as of accumulated gradients", _OF_LOSS)

    def __repr__(self) -> str:
        """Say what it is."""
        return "<loss of a drawn batch>"


class PrivateOutput(_Closed):
    """What a model returns for a drawn batch: a loss, and nothing that can be read."""

    _what = "the output for a drawn batch"
    _way_out = _OF_BATCH

    def __init__(self, turn: Turn, *, has_loss: bool) -> None:
        self._turn = turn
        self._has_loss = has_loss

    @property
    def loss(self) -> PrivateLoss:
        """Return the mean loss of the batch.

        Raises:
            PrivacyError: the model was given no labels.
        """
        if not self._has_loss:
            raise PrivacyError(
                "labels must be handed to the model for it to return a loss, got none. "
                f"{_OF_BATCH}"
            )
        return PrivateLoss(self._turn)

    def __getitem__(self, key: object) -> PrivateLoss:
        """Return the loss, which comes first."""
        if key in ("loss", 0):
            return self.loss
        _refuse(self._what, f"[{key!r}]", _OF_BATCH)

    def __repr__(self) -> str:
        """Say what it is."""
        return "<output for a drawn batch>"


class Forward:
    """A model's forward pass, which answers a drawn batch without computing anything.

    Everything else passes: the engine's own batches, and those of the script.
    """

    def __init__(self, forward: Callable[..., Any]) -> None:
        functools.update_wrapper(self, forward)
        self._forward = forward
        self._signature = inspect.signature(forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - a model's
        """Run the model, or stand in for its output."""
        values = (*args, *kwargs.values())
        if not any(isinstance(v, DrawnColumn | DrawnBatch) for v in values):
            return self._forward(*args, **kwargs)
        return self._answer(args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., Any]:
        """Leave a copy of the model its own forward pass."""
        forward: Callable[..., Any] = copy.deepcopy(self._forward, memo)
        return forward

    def _answer(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PrivateOutput:
        """Check that the model would be given the batch and nothing else."""
        given = self._by_name(args, kwargs)
        drawn = {n: v for n, v in given.items() if isinstance(v, DrawnColumn)}
        turn = next(iter(drawn.values())).turn
        for column in drawn.values():
            column.turn.check()
        others = [
            name
            for name, value in given.items()
            if name not in drawn
            and value is not None
            and not (name in _ASKED_FOR and isinstance(value, bool))
        ]
        if others:
            raise PrivacyError(
                f"the model must be given a drawn batch alone, got {others[0]} beside "
                f"it, which the engine would not hand on. {_OF_BATCH}"
            )
        if not turn.has_own_loss:
            _check_columns(turn, drawn)
        return PrivateOutput(turn, has_loss=turn.has_own_loss or "labels" in drawn)

    def _by_name(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return arguments by the names that the forward pass has for them."""
        if len(args) == 1 and isinstance(args[0], DrawnBatch):
            return {**args[0], **kwargs}
        given = self._signature.bind_partial(*args, **kwargs).arguments
        named: dict[str, Any] = {}
        for name, value in given.items():
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                named |= value
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                named |= {f"argument {n}": each for n, each in enumerate(value)}
            else:
                named[name] = value
        return named


def _check_columns(turn: Turn, drawn: Mapping[str, DrawnColumn]) -> None:
    """Refuse a batch that reaches the model other than it was collated."""
    for name, column in drawn.items():
        own, shifts = column.column_name, "labels" not in turn.columns
        if own != name and (own, name, shifts) != ("input_ids", "labels", True):
            raise PrivacyError(
                f"{own} of a drawn batch must reach the model under its own name, got "
                f"it as {name}. {_OF_BATCH}"
            )
    left = [n for n in turn.columns if n not in drawn and n != "labels"]
    if left:
        raise PrivacyError(
            f"the model must be given the whole batch, got none of its {left[0]}. "
            f"{_OF_BATCH}"
        )


@contextmanager
def answering_drawn(model: nn.Module) -> Iterator[None]:
    """Let a model answer drawn batches meanwhile."""
    before, fields = vars(model).get("forward"), vars(model)
    fields["forward"] = ours = Forward(model.forward)
    try:
        yield
    finally:
        if fields.get("forward") is ours:
            del fields["forward"]
            fields |= {} if before is None else {"forward": before}
