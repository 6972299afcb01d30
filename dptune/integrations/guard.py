"""What may move the weights of a script: a released gradient, once for each.

A script keeps its model and its optimizer while it trains. What something else did to
them between two steps is looked at before the next one is paid, and what it did to
gradients before the optimizer acts.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from dptune.dpsgd.sharding import held
from dptune.errors import PrivacyError

_HOOKS: Final = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


class StepGuard:
    """Refuses to go on where something else moved what a claim is about.

    **Formal guarantee**: while `watching`, the optimizer acts on gradients as they were
    released, once for each release, and neither weights nor the way through the model
    change between two steps; otherwise `check` or the optimizer's step raises.

    Args:
        model: as it was checked, with the parameters that the clip covers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._checked = _checked(model)
        self._built: list[object] = []
        self._weights: list[tuple[object, ...]] = []
        self._gradients: list[Tensor | None] = []
        self._released: list[tuple[object, ...]] | None = None

    def check_begin(self, model: nn.Module, optimizer: Any) -> None:  # noqa: ANN401 - wrapped
        """Refuse to begin with another model than the one that was checked.

        Raises:
            PrivacyError: something was put around it, or is trained beside it.
        """
        self.check_model(model)
        self._check_covered(optimizer)

    def check_model(self, model: nn.Module) -> None:
        """Refuse another model than the one that was checked.

        Raises:
            PrivacyError: something was put around it.
        """
        if _checked(model) != self._checked:
            raise PrivacyError(
                "the model must be trained as it was checked, but something has put "
                "another forward pass around it. Wrap it before the trainer is made."
            )

    @contextmanager
    def watching(self, optimizer: Any) -> Iterator[None]:  # noqa: ANN401
        """Look at every step of an optimizer, and let go of it afterwards."""
        self._built = _built(self._model)  # with what the engine has put there
        self._note_weights()
        steps = getattr(optimizer, "optimizer", optimizer)
        before = steps.register_step_pre_hook(self._refuse_others)
        after = steps.register_step_post_hook(self._note_weights)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def check(self, optimizer: Any) -> None:  # noqa: ANN401
        """Refuse a step on what the clip or the check does not cover.

        Raises:
            PrivacyError: parameters, weights or the forward pass have changed.
        """
        self._check_covered(optimizer)
        if _built(self._model) != self._built:
            raise PrivacyError(
                "the model must stay as it was checked, but something has put hooks "
                "or another forward pass on it while training. Do so before the "
                "trainer is made."
            )
        if _marks(self._trained) != self._weights:
            raise PrivacyError(
                "weights must be moved by released gradients alone, but something else "
                "has written to them between two steps. Remove the callback that does."
            )

    def note_release(self) -> None:
        """Remember the gradients that the optimizer may act on, once."""
        self._gradients = [p.grad for p in self._trained]
        self._released = _marks(self._gradients)

    def _check_covered(self, optimizer: Any) -> None:  # noqa: ANN401
        """Refuse to train what the clip does not cover, before the step is paid."""
        there = list(self._model.parameters())
        now = [id(p) for p in there if p.requires_grad]
        optimized = {id(p) for group in optimizer.param_groups for p in group["params"]}
        foreign = optimized - set(map(id, there))
        if now != [id(p) for p in self._trained] or foreign:
            raise PrivacyError(
                "what is trained must stay what the clip covers, but parameters were "
                "thawed, frozen or added while training. Do so before the trainer is "
                "made."
            )

    def _refuse_others(self, *_: object) -> None:
        """Refuse a step on anything but the gradients of the last release."""
        released, self._released = self._released, None
        self._gradients = []
        if released is None or released != _marks([p.grad for p in self._trained]):
            raise PrivacyError(
                "the optimizer must act once on each released gradient, but something "
                "else has called it, or written to the gradients. Remove the callback "
                "that does."
            )

    def _note_weights(self, *_: object) -> None:
        """Remember how the optimizer left the weights."""
        self._weights = _marks(self._trained)


def _marks(values: list[Any]) -> list[tuple[object, ...]]:
    """Tell tensors from what they are once something has written to them."""
    return [() if value is None else _mark(value) for value in values]


def _mark(value: Tensor) -> tuple[object, ...]:
    """Tell a tensor, or a rank's part of one, from what is written to it."""
    with torch.no_grad():  # else a part is a view whose writes are counted apart
        part = held(value)
    return id(value), part.data_ptr(), value._version, part._version


def _hooks(modules: Iterable[nn.Module]) -> list[dict[int, Any]]:
    """List what is called beside every module."""
    parts = (vars(module) for module in modules)
    return [dict(fields[hooks]) for fields in parts for hooks in _HOOKS]


def _checked(model: nn.Module) -> tuple[object, ...]:
    """Tell the way through a model from others, by names: modes are set anew."""
    names = [
        {getattr(hook, "__qualname__", type(hook).__name__) for hook in hooks.values()}
        for hooks in _hooks(model.modules())
    ]
    return model, model.forward, names


def _built(model: nn.Module) -> list[object]:
    """Tell the way through a model from every other."""
    modules = list(model.modules())
    return [*((m, m.forward) for m in modules), *_hooks(modules)]
