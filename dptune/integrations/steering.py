"""What steers the steps of a script beside gradients: its schedule, and nothing else.

Callbacks are told the training loss. Where one sets a learning rate or a weight decay
by it, or forgets a momentum, the weights tell that loss, which no noise protects.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dptune.dpsgd.sharding import held
from dptune.dpsgd.untouched import bits_of
from dptune.errors import PrivacyError


class WatchedSchedule:
    """Stands before a schedule, which alone may change what an optimizer steps by.

    **Formal guarantee**: while `watching`, groups, settings and state of the optimizer
    are, before each of its steps and of the schedule's, as the last of these left them;
    otherwise `check` or the step raises. What is written to the state through `.data`,
    so that its bits add up to another number, is found before the optimizer's next
    step.

    Args:
        schedule: of the script, or of its loop.
        optimizer: that it acts on, without what others put around it.
    """

    def __init__(self, schedule: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401 - any library's
        self._schedule = schedule
        self._optimizer = optimizer
        self._note()

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # loops ask what kind it is
        """Pass for the schedule."""
        return type(self._schedule)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Hand out what the schedule has."""
        return getattr(self._schedule, name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look before each step of the optimizer, and let go of it afterwards."""
        before = self._optimizer.register_step_pre_hook(self._check_content)
        after = self._optimizer.register_step_post_hook(self._note_content)
        self._note_content()
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def step(self, *args: object, **named: object) -> None:
        """Let the schedule act, unless something else has acted before.

        Raises:
            PrivacyError: see `check`.
        """
        self.check()
        self._schedule.step(*args, **named)
        self._note()

    def check(self, *_: object) -> None:
        """Refuse what something else has set.

        Raises:
            PrivacyError: settings or state of the optimizer have changed.
        """
        if _steered_by(self._optimizer) != self._noted:
            raise _steered()

    def _note(self) -> None:
        """Remember what the next step goes by."""
        self._noted = _steered_by(self._optimizer)

    def _check_content(self, *_: object) -> None:
        """Refuse what something else has set or written, whatever mark that leaves."""
        self.check()
        now = _content(self._optimizer)
        if any(not was.equal(now[device]) for device, was in self._written.items()):
            raise _steered()

    def _note_content(self, *_: object) -> None:
        """Remember what the optimizer has written to its state."""
        self._note()
        self._written = _content(self._optimizer)


def check_same(began: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Refuse parts of a trainer that were replaced while it trains.

    Raises:
        PrivacyError: names the part.
    """
    replaced = [name for name, part in began.items() if part is not now[name]]
    if replaced:
        raise PrivacyError(
            f"trainer.{replaced[0]} must stay what training began with, but something, "
            "such as a callback, has replaced it: nobody has checked another one. Do "
            "so before training, or behind it."
        )


def _steered() -> PrivacyError:
    """Say what steers."""
    return PrivacyError(
        "the optimizer must step by what it began with and its schedule sets, but "
        "something, such as a callback, has changed its learning rate, weight decay, "
        "another setting, or its state: weights tell these, and one that follows the "
        "training loss tells that loss, which no noise protects. Give the trainer a "
        "schedule of steps in `optimizers`."
    )


def _content(optimizer: torch.optim.Optimizer) -> dict[torch.device, Tensor]:
    """Add up the bits of each tensor of the state, by device."""
    found: dict[torch.device, list[Tensor]] = {}
    with torch.no_grad():
        for value in _tensors(list(optimizer.state.values())):
            part = held(value).detach()
            found.setdefault(part.device, []).append(bits_of(part))
        return {device: torch.stack(sums) for device, sums in found.items()}


def _tensors(value: object) -> Iterator[Tensor]:
    """Yield the tensors of a state."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)


def _steered_by(optimizer: torch.optim.Optimizer) -> list[object]:
    """Tell what an optimizer steps by from what is set or written anew."""
    groups = [
        {name: _told(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]
    trained = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    state = {id(owner): _told(found) for owner, found in optimizer.state.items()}
    return [groups, trained, state]


def _told(value: object) -> object:
    """Tell a setting from others, and a tensor from what is written to it."""
    if isinstance(value, Mapping):
        return {name: _told(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    return (id(value), value._version) if isinstance(value, Tensor) else value
