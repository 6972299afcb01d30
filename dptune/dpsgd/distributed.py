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
  weights are replicated, the rank of the shard where they are sharded. Sums go to
  their owners, only owners add noise, and only what was noised leaves them. Owners of
  different entries have streams of their own.
* **One charge.** The first rank charges a block before it draws, and no rank goes on
  until that has returned.

Messages between ranks that steer a run are numbers and JSON on the CPU.

**Sharded models** (FSDP2) fit on no single device: every rank holds one part of the
rows of each parameter. FSDP2 gathers the weights of a block for its forward and
backward pass and drops them again, so that the hooks of `PerUnitGradients` see what
they would see in one process: full weights, and whole gradients of the units of this
rank. Norms and factors need no communication. Clipped sums leave parameter by
parameter: a rank never holds more than one of full size. Ranks must run the same number
of passes, since each of them gathers weights: see `Feed.batches`.

References:
    Zhao et al. (2023), "PyTorch FSDP", https://arxiv.org/abs/2304.11277.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

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
        if not self.is_first:
            return _outcome(self._broadcast(b""))
        try:
            result = float(action() or 0)
        except Exception as error:
            self._broadcast(json.dumps(describe_error(error)).encode())
            raise
        self._broadcast(json.dumps({"result": result.hex()}).encode())
        return result

    def drawn(self, draw: Callable[[], UnitIndices]) -> UnitIndices:
        """Return the units that the first rank draws; private."""
        if self.is_alone:
            return draw()
        payload = draw().tobytes() if self.is_first else b""
        return np.frombuffer(self._broadcast(payload), dtype=np.int64)

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
        """Whether the digest of any rank is another one than the first rank's."""
        if self.is_alone:
            return False
        first = self._broadcast(digest.encode() if self.is_first else b"").decode()
        return self.greatest(int(first != digest)) > 0

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

    def _broadcast(self, payload: bytes) -> bytes:
        """Send bytes of the first rank to all; the others' payload is ignored."""
        length = torch.tensor([len(payload)])
        dist.broadcast(length, 0, group=self.messages)
        buffer = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first and payload:
            buffer = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
        if len(buffer):
            dist.broadcast(buffer, 0, group=self.messages)
        return buffer.numpy().tobytes()


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
            name: torch.zeros_like(value, dtype=torch.float32)
            for name, value in parameters.items()
        }
        self.owned: Mapping[str, Tensor] = self.lent if ranks.is_first else {}

    def clear(self) -> None:
        """Start a step: no gradient, all sums zero."""
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self.lent[name].zero_()

    def combine(self) -> None:
        """Reduce every sum to the first rank."""
        if self._ranks.is_alone:
            return
        _wait([dist.reduce(v, 0, async_op=True) for v in self.lent.values()])

    def hand_out(self) -> None:
        """Broadcast what the first rank released."""
        if not self._ranks.is_alone:
            _wait([dist.broadcast(v, 0, async_op=True) for v in self.lent.values()])
        for name, parameter in self._parameters.items():
            parameter.grad = self.lent[name]


def add_up_gradients(parameters: Mapping[str, nn.Parameter], *, ranks: Ranks) -> None:
    """Replace every `grad` by its sum over ranks, for training without privacy."""
    if ranks.is_alone:
        return
    for parameter in parameters.values():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    _wait([dist.all_reduce(p.grad, async_op=True) for p in parameters.values()])


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


def _outcome(reply: bytes) -> float:
    """Return what the first rank's action returned, or raise what it raised."""
    content = json.loads(reply)
    if "result" in content:
        return float.fromhex(content["result"])
    raise revive_error(content, who="rank 0")


def _wait(works: list[dist.Work | None]) -> None:
    """Wait for collectives that run at the same time."""
    for work in works:
        if work is not None:
            work.wait()


def shard_model(model: nn.Module, *, ranks: Ranks, device: torch.device) -> None:
    """Shard every parameter over all ranks, in place and for good.

    Each block of layers is gathered by itself. Gradients that autograd computes, in
    training without privacy, are summed over ranks, not averaged.

    Args:
        model: equal on all ranks; parts of it move to `device`.
        ranks: at least two.
        device: of this rank.

    Raises:
        ConfigError: there is no process group, or no second process in it.
    """
    if ranks.is_alone:
        raise ConfigError(
            "sharding must be none in a single process, got fsdp. Start several, for "
            "example with performance.num_processes or torchrun."
        )
    mesh = init_device_mesh(device.type, (ranks.size,))
    from transformers.modeling_layers import (  # noqa: PLC0415 - plans need none of it
        GradientCheckpointingLayer,
    )

    blocks = (m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
    for module in (*blocks, model):
        _sum_gradients(fully_shard(module, mesh=mesh))


def _sum_gradients(module: FSDPModule) -> None:
    """Turn off the division by the number of ranks; gloo knows no other reduction."""
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)


def is_sharded(parameters: Mapping[str, Tensor]) -> bool:
    """Whether parameters are parts that several ranks hold."""
    return any(isinstance(value, DTensor) for value in parameters.values())


def gathered(tensor: Tensor) -> Tensor:
    """Return all rows of a tensor; collective if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def held(tensor: Tensor) -> Tensor:
    """Return what this rank holds of a tensor, in place."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def part_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return the part of `whole` that this rank holds of `like`, in the same form."""
    if not isinstance(like, DTensor):
        return whole
    mesh = like.device_mesh
    start = mesh.get_local_rank() * _rows_per_rank(like)
    local = whole[start : start + len(held(like))].to(held(like).device)
    return _like(like, local)


class ShardedSums(Mapping[str, Tensor]):
    """Sums where every rank owns its shard of each parameter.

    As a mapping it lends one full-size tensor at a time: asking for another parameter
    sends the last one's rows to their owners. Asking is collective, so all ranks must
    ask for the same names in the same order; the tape does, since they run the same
    layers.

    Args:
        parameters: trainable parameters by name, all sharded by `shard_model`.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._parameters: Mapping[str, DTensor] = parameters
        self._open: str | None = None
        self._buffer = torch.empty(0)
        self.owned: Mapping[str, Tensor] = {
            name: torch.zeros_like(held(value.detach()), dtype=torch.float32)
            for name, value in self._parameters.items()
        }

    @property
    def lent(self) -> Mapping[str, Tensor]:
        """See the class."""
        return self

    def __getitem__(self, name: str) -> Tensor:
        """Lend the sum of one parameter, until another one is asked for."""
        if self._open != name:
            self.combine()
            self._open = name
            self._buffer = self._zeros(name)
        return self._buffer[: len(self._parameters[name])]

    def __iter__(self) -> Iterator[str]:
        """Iterate over names."""
        return iter(self._parameters)

    def __len__(self) -> int:
        """Count parameters."""
        return len(self._parameters)

    def clear(self) -> None:
        """Start a step: no gradient, all sums zero."""
        self._open = None
        for name, parameter in self._parameters.items():
            parameter.grad = None
            self.owned[name].zero_()

    def combine(self) -> None:
        """Send the rows of the tensor that is lent, if any, to their owners."""
        if self._open is None:
            return
        parameter, owned = self._parameters[self._open], self.owned[self._open]
        mine = owned.new_empty(_rows_per_rank(parameter), *parameter.shape[1:])
        group = parameter.device_mesh.get_group()
        dist.reduce_scatter_single(mine, self._buffer, group=group)
        owned.add_(mine[: len(owned)])
        self._open = None
        self._buffer = torch.empty(0)

    def hand_out(self) -> None:
        """Put the owned parts into `grad`; nobody else needs them."""
        for name, parameter in self._parameters.items():
            parameter.grad = _like(parameter, self.owned[name])

    def _zeros(self, name: str) -> Tensor:
        """Return zeros of full size, with as many rows for each rank."""
        parameter = self._parameters[name]
        num_rows = _rows_per_rank(parameter) * parameter.device_mesh.size()
        return self.owned[name].new_zeros(num_rows, *parameter.shape[1:])


def _rows_per_rank(parameter: DTensor) -> int:
    """Return the rows of every rank but the last ones, which may have fewer."""
    return math.ceil(len(parameter) / parameter.device_mesh.size())


def _like(parameter: DTensor, local: Tensor) -> DTensor:
    """Wrap a local part as one of a tensor shaped like a parameter."""
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
