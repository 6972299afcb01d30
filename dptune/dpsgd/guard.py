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
from torch.nn.modules import module

from dptune.dpsgd.parameters import gradient_hooks, hooked_parameters
from dptune.dpsgd.sharding import held
from dptune.errors import PrivacyError

_HOOKS: Final = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_ADAPTERS: Final = ("merged_adapters", "_active_adapter", "_disable_adapters")
"""What says which adapters a layer of PEFT reads beside its weight."""


class StepGuard:
    """Refuses to go on where something else moved what a claim is about.

    **Formal guarantee**: while `watching`, the optimizer acts on gradients as they were
    released, once for each release, and neither weights nor the way through the model
    change between two steps; otherwise `check` or the optimizer's step raises. Not
    found: what is written through `.data` so that the bits of a weight or gradient add
    up to the same, such as two entries that change places.

    Args:
        model: as it was checked, with the parameters that the clip covers.
        way_out: what to do where something else has moved weights or gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        way_out: str = "Remove what does, such as a callback.",
    ) -> None:
        self._model = model
        self._way_out = way_out
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._checked = _checked(model)
        self._built: list[object] = []
        self._weights: list[tuple[object, ...]] = []
        self._content = torch.zeros(0)
        self._gradients: list[Tensor | None] = []
        self._gradient_content = torch.zeros(0)
        self._released: list[tuple[object, ...]] | None = None
        self._before_steps: dict[int, Any] = {}

    def check_begin(self, model: nn.Module, optimizer: Any) -> None:  # noqa: ANN401 - wrapped
        """Refuse to begin with another model than the one that was checked.

        Raises:
            PrivacyError: something was put around it, is trained beside it, or hooks
                its gradients, as some optimizers do that are made after the check.
        """
        self.check_model(model)
        self.check_covered(optimizer)
        if hooked := hooked_parameters(model):
            raise PrivacyError(
                f"the model must have no hooks on gradients, got {len(hooked)}, maybe "
                "an optimizer's: they see them before they are clipped and noised. "
                f"{self._way_out}"
            )

    def check_model(self, model: nn.Module) -> None:
        """Refuse another model than the one that was checked.

        Raises:
            PrivacyError: something was put around it.
        """
        if _checked(model) != self._checked:
            raise PrivacyError(
                "the model must be trained as it was checked, but something has put "
                "another forward pass around it. Wrap it before training."
            )

    @contextmanager
    def watching(self, optimizer: Any) -> Iterator[None]:  # noqa: ANN401
        """Look at every step of an optimizer, and let go of it afterwards."""
        self.note_built()
        self._note_weights()
        steps = getattr(optimizer, "optimizer", optimizer)
        before = steps.register_step_pre_hook(self._refuse_others)
        after = steps.register_step_post_hook(self._note_weights)
        self._before_steps = dict(steps._optimizer_step_pre_hooks)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def check(self, optimizer: Any = None) -> None:  # noqa: ANN401
        """Refuse a step on what the clip or the check does not cover.

        Raises:
            PrivacyError: parameters, weights or the forward pass have changed.
        """
        self.check_covered(optimizer)
        if _built(self._model, self._trained) != self._built:
            raise PrivacyError(
                "the model must stay as it was checked, but something has put hooks "
                "or another forward pass on it, or merged or switched its adapters, "
                "while training. Do so before or after it; unmerge_adapter takes a "
                "merge back."
            )
        self._check_weights(holds=_marks(self._trained) == self._weights)

    @contextmanager
    def left_alone(self) -> Iterator[None]:
        """Refuse what moves the model meanwhile, such as a function of a script's own.

        Raises:
            PrivacyError: parameters, weights or the forward pass have changed.
        """
        self.note_built()
        self._note_weights()
        yield
        self.check()
        self._check_weights(holds=self._content.equal(_sums_of_bits(self._trained)))

    def note_built(self) -> None:
        """Remember the way through the model, with what the engine has put there."""
        self._built = _built(self._model, self._trained)

    def note_release(self) -> None:
        """Remember the gradients that the optimizer may act on, once."""
        self._gradients = [p.grad for p in self._trained]
        self._gradient_content = _sums_of_bits(self._gradients)
        self._released = _marks(self._gradients)

    def check_covered(self, optimizer: Any) -> None:  # noqa: ANN401
        """Refuse to train what the clip does not cover, before the step is paid."""
        there = list(self._model.parameters())
        now = [id(p) for p in there if p.requires_grad]
        groups = getattr(optimizer, "param_groups", ())
        foreign = {id(p) for group in groups for p in group["params"]}
        foreign -= set(map(id, there))
        if now != [id(p) for p in self._trained] or foreign:
            raise PrivacyError(
                "what is trained must stay what the clip covers, but parameters were "
                "thawed, frozen or added while training. Do so before training."
            )

    def note_scaled_by_one(self) -> None:
        """Remember that gradients were written anew, and must be what they were."""
        self._released = _marks([p.grad for p in self._trained])

    @property
    def holds(self) -> bool:
        """Whether the optimizer would find the gradients of the last release."""
        now = [p.grad for p in self._trained]
        return self._released == _marks(now) and self._gradient_content.equal(
            _sums_of_bits(now)
        )

    def _refuse_others(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Refuse a step on anything but the gradients of the last release."""
        same = _marks(self._trained) == self._weights
        self._check_weights(
            holds=same and self._content.equal(_sums_of_bits(self._trained))
        )
        holds, self._released, self._gradients = self.holds, None, []
        holds &= optimizer._optimizer_step_pre_hooks == self._before_steps
        if not holds or _has_others(optimizer, self._trained):
            raise PrivacyError(
                "the optimizer must act once on each released gradient, but something "
                f"else has called it, or written to the gradients. {self._way_out}"
            )

    def _check_weights(self, *, holds: bool) -> None:
        """Refuse weights that the optimizer has not left so."""
        if not holds:
            raise PrivacyError(
                "weights must be moved by released gradients alone, but something else "
                f"has written to them between two steps. {self._way_out}"
            )

    def _note_weights(self, *_: object) -> None:
        """Remember how the optimizer left the weights."""
        self._weights = _marks(self._trained)
        self._content = _sums_of_bits(self._trained)


def _has_others(optimizer: torch.optim.Optimizer, trained: Iterable[Tensor]) -> bool:
    """Whether an optimizer would move what no release is of, such as frozen weights."""
    own = set(map(id, trained))
    given = (p for group in optimizer.param_groups for p in group["params"])
    return any(p.grad is not None and id(p) not in own for p in given)


def _sums_of_bits(values: Iterable[Tensor | None]) -> Tensor:
    """Tell contents from others: what is written through `.data` leaves no mark."""
    with torch.no_grad():
        there = (held(value).detach() for value in values if value is not None)
        sums = [sum_of_bits(part.flatten()) for part in there]
        return torch.stack(sums) if sums else torch.zeros(0)


def sum_of_bits(flat: Tensor) -> Tensor:
    """Add numbers up as whole ones, two at a time, which is as fast as memory."""
    if flat.storage_offset() % 2:
        flat = flat.clone()
    if len(flat) % 2 == 0:
        return flat.view(torch.int64).sum()
    return flat[:-1].view(torch.int64).sum() + flat[-1:].view(torch.int32).sum()


def _marks(values: list[Any]) -> list[tuple[object, ...]]:
    """Tell tensors from what they are once something has written to them."""
    with torch.no_grad():  # else a part is a view whose writes are counted apart
        return [() if value is None else _mark(value) for value in values]


def _mark(value: Tensor) -> tuple[object, ...]:
    """Tell a tensor, or a rank's part of one, from what is written to it."""
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
    return model, model.forward, model._compiled_call_impl, names


def _built(model: nn.Module, trained: Iterable[Tensor]) -> list[object]:
    """Tell the way through a model from every other."""
    modules = list(model.modules())
    ways = ((m, m.forward, m._compiled_call_impl) for m in modules)
    of_all = (dict(getattr(module, f"_global{hooks}")) for hooks in _HOOKS)
    of_gradients = map(gradient_hooks, trained)
    read = [repr([vars(m).get(name) for name in _ADAPTERS]) for m in modules]
    return [*ways, *_hooks(modules), *of_all, *of_gradients, *read]
