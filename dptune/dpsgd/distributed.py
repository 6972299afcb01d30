"""Several processes, one mechanism: who draws, who owns a sum, who tells the others.

A run may be spread over the ranks of an initialised `torch.distributed` group, one
process per device. `train_stage` notices the group by itself. What the ranks do
together is the mechanism of the plan, and not another one:

* **One draw.** The first rank draws the units of a step with the plan's sampler, for
  all, and tells the others. Each takes a part. The sum over parts is the sum over what
  was drawn, so its law is that of the sampler, truncated and cyclic ones included, by
  whatever rule units are dealt out. (Coins thrown by every rank for units of its own
  would do for plain Poisson sampling, but not for a cap or for groups.)
* **One noise.** Every entry of the sum has exactly one owner: the first rank where
  weights are replicated, the rank of the shard where they are sharded, in the first
  node where each node has such shards. Sums go to their owners, only owners add noise,
  and only what was noised leaves them. Owners of different entries have streams of
  their own.
* **One charge.** The first rank charges a block before it draws, and no rank goes on
  until that has returned.

Messages between ranks that steer a run are numbers and JSON on the CPU.

Models that fit on no single device: `dptune.dpsgd.sharding`.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptune import errors
from dptune.dpsgd.sampling import UnitIndices
from dptune.errors import ConfigError, DptuneError


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Which of how many processes of one run this is.

    Methods other than the properties are collective: every rank must call them, in the
    same order. Alone they cost nothing.

    Args:
        rank: from 0.
        size: number of processes.
        messages: group that carries tensors on the CPU; None is the default one.
    """

    rank: int = 0
    size: int = 1
    messages: "dist.ProcessGroup | None" = field(
        default=None, repr=False, compare=False
    )

    @classmethod
    def current(cls) -> Self:
        """Return this process's place in the initialised group; alone without one.

        Collective where the group carries no tensors on the CPU, as one of NCCL alone:
        a second one of the same processes carries messages then.
        """
        if not dist.is_available() or not dist.is_initialized():
            return cls()
        carries = "cpu:" in dist.get_backend_config()
        return cls(
            rank=dist.get_rank(),
            size=dist.get_world_size(),
            messages=None if carries else dist.new_group(backend="gloo"),
        )

    @property
    def is_first(self) -> bool:
        """Whether this process draws, charges and writes for all."""
        return self.rank == 0

    @property
    def is_alone(self) -> bool:
        """Whether there are no others."""
        return self.size == 1

    def once(self, action: Callable[[], float | None]) -> float:
        """Let the first rank act while the others wait.

        Returns:
            The action's result, the same bits on every rank; 0 for None.

        Raises:
            Exception: that of the action, on the first rank.
            DptuneError: on the others, of the same kind and message where it is ours.
        """
        if self.is_alone:
            return action() or 0
        return float(self.each(action if self.is_first else lambda: None)[0] or 0)

    def each(self, action: Callable[[], Any]) -> list[Any]:
        """Let every rank act, and tell all of them what came of it.

        Args:
            action: returns what JSON can carry.

        Returns:
            Results by rank, floats with all their bits.

        Raises:
            Exception: that of the action, where it failed.
            DptuneError: elsewhere, by `revive_error`, of the first rank that failed.
        """
        if self.is_alone:
            return [action()]
        failure: Exception | None = None
        try:
            mine = json.dumps({"result": action()})
        except Exception as error:  # noqa: BLE001 - it is raised when all have heard
            failure, mine = error, json.dumps(describe_error(error))
        text = mine.encode()
        sent = bytearray(text.ljust(self.greatest(len(text))))
        payload = torch.frombuffer(sent, dtype=torch.uint8)
        heard = [torch.empty_like(payload) for _ in range(self.size)]
        dist.all_gather(heard, payload, group=self.messages)
        outcomes = [json.loads(told.numpy().tobytes()) for told in heard]
        if failure is not None:
            raise failure
        for rank, outcome in enumerate(outcomes):
            if "result" not in outcome:
                raise revive_error(outcome, who=f"rank {rank}")
        return [outcome["result"] for outcome in outcomes]

    def drawn(self, draw: Callable[[], UnitIndices]) -> UnitIndices:
        """Return the units that the first rank draws; private."""
        if self.is_alone:
            return draw()
        mine = torch.from_numpy(draw() if self.is_first else np.empty(0, np.int64))
        length = self.greatest(len(mine))
        units = mine if self.is_first else mine.new_empty(length)
        if length:
            dist.broadcast(units, 0, group=self.messages)
        return units.numpy()

    def total(self, *figures: float) -> tuple[float, ...]:
        """Add up figures over ranks."""
        if self.is_alone:
            return figures
        values = torch.tensor(figures, dtype=torch.float64)
        dist.all_reduce(values, group=self.messages)
        return tuple(values.tolist())

    def greatest(self, value: int) -> int:
        """Return the greatest value of any rank."""
        if self.is_alone:
            return value
        values = torch.tensor([value])
        dist.all_reduce(values, op=dist.ReduceOp.MAX, group=self.messages)
        return int(values)

    def differs(self, digest: str) -> bool:
        """Whether not all ranks have the same digest."""
        return len(set(self.each(lambda: digest))) > 1

    def check_same(self, digest: str) -> None:
        """Refuse ranks that would compute different things.

        Raises:
            ConfigError: the first rank has another digest than this or another one.
        """
        if self.differs(digest):
            raise ConfigError(
                "all ranks must train the same model on the same data by the same "
                "plan and go on from the same step, got differences. Give every rank "
                "the same arguments and one checkpoint_dir."
            )

    def equalise(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Copy the first rank's weights to all, in place."""
        if self.is_alone:
            return
        for value in parameters.values():
            dist.broadcast(value.detach(), 0)


ALONE = Ranks()


class GradientSums(Protocol):
    """Clipped sums of all ranks, on their way from the tape to `grad`."""

    @property
    def lent(self) -> Mapping[str, Tensor]:
        """Full-size float32 tensors by parameter, for `Tape.backward` to add to."""
        ...

    @property
    def owned(self) -> Mapping[str, Tensor]:
        """What this rank adds noise to: every entry is owned by exactly one rank."""
        ...

    def clear(self) -> None:
        """Start a step: no gradient, all sums zero."""
        ...

    def combine(self) -> None:
        """Bring the sums of all ranks to their owners. Private until noised."""
        ...

    def hand_out(self) -> None:
        """Put what the owners released into `grad`, on every rank."""
        ...


class ReplicatedSums:
    """Sums where every rank holds all weights; the first rank owns all of them.

    The owner's noisy sums are broadcast, bit for bit: optimizers that start equal stay
    equal.

    Args:
        parameters: trainable parameters by name.
        ranks: this process among the others.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, ranks: Ranks) -> None:
        self._parameters = parameters
        self._ranks = ranks
        self.lent: Mapping[str, Tensor] = {
            name: torch.zeros(value.shape, dtype=torch.float32, device=value.device)
            for name, value in parameters.items()
        }
        self.owned: Mapping[str, Tensor] = self.lent if ranks.is_first else {}

    def clear(self) -> None:
        """Start a step: no gradient, all sums zero."""
        for parameter in self._parameters.values():
            parameter.grad = None
        torch._foreach_zero_(list(self.lent.values()))

    def combine(self) -> None:
        """Reduce every sum to the first rank."""
        if self._ranks.is_alone:
            return
        wait_for(dist.reduce(v, 0, async_op=True) for v in self.lent.values())

    def hand_out(self) -> None:
        """Broadcast what the first rank released."""
        if not self._ranks.is_alone:
            wait_for(dist.broadcast(v, 0, async_op=True) for v in self.lent.values())
        for name, parameter in self._parameters.items():
            parameter.grad = self.lent[name]


def add_up_gradients(parameters: Mapping[str, nn.Parameter], *, ranks: Ranks) -> None:
    """Replace every `grad` by its sum over ranks, for training without privacy."""
    if ranks.is_alone:
        return
    for parameter in parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    wait_for(dist.all_reduce(p.grad, async_op=True) for p in parameters.values())


def describe_error(error: BaseException) -> dict[str, str]:
    """Name an error's kind and message for another process."""
    return {"kind": type(error).__name__, "message": str(error)}


def revive_error(description: Mapping[str, str], *, who: str) -> DptuneError:
    """Return one of our errors as it was, and any other as a plain one that names it.

    Args:
        description: by `describe_error`.
        who: which process it came from.
    """
    kind, message = description["kind"], description["message"]
    known = getattr(errors, kind, None)
    if isinstance(known, type) and issubclass(known, DptuneError):
        return known(message)
    return DptuneError(
        f"{who} stopped with {kind}: {message}. Its traceback is in the log."
    )


def wait_for(works: Iterable[dist.Work | None]) -> None:
    """Start collectives that may run at the same time, and wait for them."""
    for work in list(works):
        if work is not None:
            work.wait()
