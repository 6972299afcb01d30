"""Dropout made the identity, and every other use of chance found out.

Dropout draws for every entry by itself. Two neighboring data sets can then be coupled
so that each row that both have meets the same mask, and the clip bounds the rest. What
is drawn once for all rows of a batch (a layer that is left out, hashes, a mask that
rows share) has no such coupling: which rows share it depends on who is there.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

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
_OF_TORCH = ("torch.", "dptune.dpsgd.undropped")


class Undropped(TorchFunctionMode):
    """Make dropout the identity; note what else is drawn, and what dropout sees.

    Args:
        extreme: what numbers in [0, 1) become, 0 or 1 (just below it), so that a
            decision that is rarely taken is taken once; None leaves them alone.
    """

    def __init__(self, *, extreme: int | None = None) -> None:
        super().__init__()
        self._extreme = extreme
        self.draws: dict[str, None] = {}
        self.dropped: list[tuple[str, int]] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Pass everything on but dropout."""
        options = dict(kwargs or {})
        if func in _DROPOUTS:
            return self._undropped(args, options)
        if func is _ATTENTION:
            return self._attend(args, options)
        result = func(*args, **options)
        if func in _DRAWS:
            self.draws[f"{getattr(func, '__name__', func)} in {_caller()}"] = None
            if func in _UNIFORM and self._extreme is not None:
                result.fill_(self._extreme * (1 - 2**-10))
        return result

    def _undropped(self, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
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
