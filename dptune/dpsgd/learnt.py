"""What a model has learnt in this process: a certificate counts one journal.

Two trainings of one model on the same rows, each with a journal of its own, make two
certificates of which neither counts the other's steps. That is found out here for as
long as the process lives: of the model, of its copies, and of models that the weights
which a training ended with were loaded into, where rows have the same tokens. Weights
of another process, or of the middle of a training, are a base model like any other: the
assumption `base_model_is_public` speaks of it.
"""

import hashlib
import heapq
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from weakref import WeakSet, WeakValueDictionary

import torch
from torch import Tensor, nn

from dptune.accounting.chain import LedgerJournal
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.guard import sum_of_bits
from dptune.dpsgd.sharding import held
from dptune.errors import PrivacyError

_Lesson = tuple[frozenset[bytes], tuple[int, int, str], bool]
"""Rows, where their journal ended then, and whether a budget adds them up."""

_Weight = tuple[int, int]
"""How many numbers a tensor has, and the sum of their bits."""

_NOTED: Final = "_dptune_has_learnt"
_MOST_TENSORS: Final = 8
_ENDED_WITH: Final[dict[_Weight, dict[bytes, _Lesson]]] = {}
"""What trainings of this process made of their largest tensors."""

_ROWS: Final[WeakValueDictionary[str, frozenset[bytes]]] = WeakValueDictionary()
_KEY: Final = secrets.token_bytes(16)
"""Whoever pickles a model writes nothing down that tells its rows."""


@dataclass(frozen=True, kw_only=True)
class Learning:
    """A model that learns from rows, and where that is charged.

    Args:
        model: copies of it have learnt what it has.
        data: that it is trained on.
        journal: that is charged; what it holds already, its certificate counts.
        adds_up: whether a budget is charged too. Where all trainings on the rows do
            that, it counts them all.
    """

    model: nn.Module
    data: UnitDataset = field(repr=False)
    journal: LedgerJournal
    adds_up: bool

    def check(self, *, way_out: str) -> None:
        """Refuse rows that the model has learnt from, where that is not counted.

        Args:
            way_out: what a script can do, a sentence or more.

        Raises:
            PrivacyError: some of the rows were trained on under another journal, or
                under this one before it lost charges.
        """
        self._refuse("model", self._lessons(), way_out=way_out)

    def check_beside(self, module: nn.Module, *, way_out: str) -> None:
        """Refuse rows that a module has learnt from, which is asked beside the model.

        Args:
            module: such as a layer of a teacher; what it has by itself is looked at.
            way_out: see `check`.

        Raises:
            PrivacyError: see `check`.
        """
        known = list(module.__dict__.get(_NOTED, {}).items())
        if module not in self._beside:
            self._beside.add(module)
            known += _told_by(module.parameters(recurse=False))
        what = "a model that the loss asks, such as a teacher,"
        self._refuse(what, known, way_out=way_out)

    def _refuse(
        self, what: str, lessons: Iterable[tuple[bytes, _Lesson]], *, way_out: str
    ) -> None:
        """Refuse lessons of these rows that no certificate here would count."""
        others: set[bytes] = set()
        for name, (rows, end, added_up) in set(lessons):
            is_counted = name == self._name and self.journal.goes_on_from(end)
            if not is_counted and not (self.adds_up and added_up):
                others |= rows
        known = len(self._rows & others) if others else 0
        if known:
            raise PrivacyError(
                f"{what} must not have learnt from these rows before, but has from "
                f"{known} of {len(self._rows)}, for which another journal was charged: "
                f"a certificate of this one would not count that. {way_out}"
            )

    def note(self) -> None:
        """Note that the model learns what the journal was charged for.

        Every module that trains something notes it: where adapters are merged, or the
        model is wrapped, those around the trained layers stay.
        """
        _ = self._began_with
        for module in self.model.modules():
            if not any(parameter.requires_grad for parameter in module.parameters()):
                continue
            held: dict[str, Any] = module.__dict__
            lessons: dict[bytes, _Lesson] = held.setdefault(_NOTED, {})
            added_up = self._name not in lessons or lessons[self._name][2]
            end = self.journal.end
            lessons[self._name] = (self._rows, end, added_up and self.adds_up)

    def note_weights(self) -> None:
        """Note what the training has made of the model, wherever that is loaded.

        Weights that are as they were before the first charge have learnt nothing.
        """
        if "_began_with" not in vars(self):
            return
        lessons = dict(self._lessons())
        for weight in _largest(self.model) - self._began_with:
            _ENDED_WITH.setdefault(weight, {}).update(lessons)

    @contextmanager
    def noting_weights(self) -> Iterator[None]:
        """Note the weights that a training leaves, however it ends."""
        try:
            yield
        finally:
            self.note_weights()

    @cached_property
    def _beside(self) -> WeakSet[nn.Module]:
        """What else is asked, and whose weights were looked at."""
        return WeakSet()

    @cached_property
    def _began_with(self) -> frozenset[_Weight]:
        """The largest of the trained tensors, when it is first asked for."""
        return _largest(self.model)

    @cached_property
    def _name(self) -> bytes:
        """Tells journals and their data from others, in this process."""
        path = self.journal.path.resolve()
        return _digest(f"{path} {self.data.digest()}".encode())

    @cached_property
    def _rows(self) -> frozenset[bytes]:
        """Digests of the rows' tokens, under the key of this process; kept once."""
        name = self.data.digest()
        if (known := _ROWS.get(name)) is None:
            rows = (_digest(row.astype("<i8").tobytes()) for row in self.data.sequences)
            known = _ROWS[name] = frozenset(rows)
        return known

    def _lessons(self) -> Iterator[tuple[bytes, _Lesson]]:
        """Yield what the modules have noted, or weights tell, by names of journals."""
        for module in self.model.modules():
            yield from module.__dict__.get(_NOTED, {}).items()
        yield from _told_by(self.model.parameters())


def _told_by(parameters: Iterable[nn.Parameter]) -> Iterator[tuple[bytes, _Lesson]]:
    """Yield what was learnt by trainings that ended with such weights."""
    sizes = {size for size, _ in _ENDED_WITH}
    known = (p for p in parameters if p.numel() in sizes)
    for weight in _weights(known) & _ENDED_WITH.keys():
        yield from _ENDED_WITH[weight].items()


def _largest(model: nn.Module) -> frozenset[_Weight]:
    """Tell the largest tensors that a model trains from all others."""
    trained = (p for p in model.parameters() if p.requires_grad)
    return _weights(heapq.nlargest(_MOST_TENSORS, trained, key=Tensor.numel))


def _weights(parameters: Iterable[Tensor]) -> frozenset[_Weight]:
    """Tell tensors of float32 from others, by content."""
    with torch.no_grad():
        parts = [held(parameter).detach() for parameter in parameters]
    return frozenset(
        (part.numel(), int(sum_of_bits(part.flatten())))
        for part in parts
        if part.dtype is torch.float32
    )


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, key=_KEY, digest_size=8).digest()
