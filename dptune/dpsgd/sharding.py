"""Models that fit on no single device (FSDP2): every rank holds a part of each weight.

Every rank holds some rows of each parameter. FSDP2 gathers the weights of a block for
its forward and backward pass and drops them again, so that the hooks of
`PerUnitGradients` see what they would see in one process: full weights, and whole
gradients of the units of this rank. Norms and factors need no communication. Clipped
sums leave parameter by parameter: a rank never holds more than one of full size, beside
those of small parameters that are added up together. Ranks must run the same number of
passes, since each of them gathers weights: see `Feed.batches`.

Over several nodes (HSDP) a model is sharded inside of each, where talk is cheap, and
copied from one to another: weights are gathered inside a node, and once in a step the
clipped sums of shards travel to the first node, and come back noised. Units are dealt
out to all ranks of all nodes, and only the first node adds noise.

References:
    Zhao et al. (2023), "PyTorch FSDP", https://arxiv.org/abs/2304.11277.
"""

import math
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from dptune.dpsgd.distributed import Ranks, wait_for
from dptune.errors import ConfigError

Sharding = Literal["none", "fsdp", "hsdp"]


def shard_model(
    model: nn.Module,
    *,
    ranks: Ranks,
    device: torch.device,
    sharding: Literal["fsdp", "hsdp"] = "fsdp",
    ranks_per_node: int | None = None,
) -> None:
    """Shard every parameter over all ranks or those of a node, in place and for good.

    Each block of layers is gathered by itself. Gradients that autograd computes, in
    training without privacy, are summed over ranks, not averaged.

    Args:
        model: equal on all ranks; parts of it move to `device`.
        ranks: at least two.
        device: of this rank.
        sharding: `fsdp` over all ranks; `hsdp` over those of a node, each of which has
            a copy.
        ranks_per_node: at least two, and the same on at least two nodes, for `hsdp`.
            Those of a node have numbers in a row, as `torchrun` deals them out.

    Raises:
        ConfigError: there is no process group, or no second process in it; or nodes
            are not as `hsdp` needs them.
    """
    if ranks.is_alone:
        raise ConfigError(
            f"sharding must be none in a single process, got {sharding}. Start "
            "several, for example with performance.num_processes or torchrun."
        )
    shape, names = [ranks.size], ["shard"]
    if sharding == "hsdp":
        nodes = _count_nodes(ranks, ranks_per_node)
        shape, names = [nodes, ranks.size // nodes], ["copy", *names]
    mesh = init_device_mesh(device.type, tuple(shape), mesh_dim_names=tuple(names))
    from transformers.modeling_layers import (  # noqa: PLC0415 - plans need none of it
        GradientCheckpointingLayer,
    )

    blocks = (m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
    for module in (*blocks, model):
        _sum_gradients(fully_shard(module, mesh=mesh))


def _count_nodes(ranks: Ranks, ranks_per_node: int | None) -> int:
    """Count nodes that each hold the model; refuse those that cannot."""
    there = ranks.each(lambda: ranks_per_node or 0)
    width: int = there[0]
    if len(set(there)) > 1 or width < 2 or ranks.size <= width or ranks.size % width:
        sizes = ", ".join(map(str, sorted(set(there))))
        raise ConfigError(
            "sharding must be none or fsdp unless there are several nodes with equally "
            f"many ranks, at least 2, got hsdp with {ranks.size} ranks and "
            f"ranks_per_node={sizes}. Start as many on each node."
        )
    return ranks.size // width


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


def is_owned(tensor: Tensor, ranks: Ranks) -> bool:
    """Whether what this rank holds of a tensor is its own, and no other rank's."""
    if not isinstance(tensor, DTensor):
        return ranks.is_first
    mesh = tensor.device_mesh
    return mesh.ndim == 1 or mesh["copy"].get_local_rank() == 0


def part_like(whole: Tensor, like: Tensor) -> Tensor:
    """Return the part of `whole` that this rank holds of `like`, in the same form."""
    if not isinstance(like, DTensor):
        return whole
    start = like.device_mesh["shard"].get_local_rank() * _rows_per_rank(like)
    local = whole[start : start + len(held(like))].to(held(like).device)
    return _like(like, local)


class ShardedSums(Mapping[str, Tensor]):
    """Sums where every rank, or every one of the first node, owns its shard of each.

    As a mapping it lends one full-size tensor at a time: asking for another parameter
    sends the last one's rows to their owners. Asking is collective, so all ranks must
    ask for the same names in the same order; the tape does, since they run the same
    layers.

    Args:
        parameters: trainable parameters by name, all sharded by `shard_model`.
        ranks: this process among the others.
    """

    def __init__(self, parameters: Mapping[str, Any], *, ranks: Ranks) -> None:
        self._parameters: Mapping[str, DTensor] = parameters
        self._open: str | None = None
        self._buffer = torch.empty(0)
        self._parts: Mapping[str, Tensor] = {
            name: held(value.detach()).new_zeros(held(value).shape, dtype=torch.float32)
            for name, value in self._parameters.items()
        }
        mesh = next(iter(self._parameters.values())).device_mesh
        self._copies = mesh["copy"].get_group() if mesh.ndim > 1 else None
        self.owned: Mapping[str, Tensor] = {
            name: part
            for name, part in self._parts.items()
            if is_owned(self._parameters[name], ranks)
        }

    @property
    def lent(self) -> Mapping[str, Tensor]:
        """See the class."""
        return self

    def __getitem__(self, name: str) -> Tensor:
        """Lend the sum of one parameter, until another one is asked for."""
        if self._open != name:
            self._send()
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
            self._parts[name].zero_()

    def combine(self) -> None:
        """Send what is still lent, and the sums of other nodes to the first one."""
        self._send()
        if self._copies:
            first = partial(dist.reduce, group_dst=0, group=self._copies, async_op=True)
            wait_for(map(first, self._parts.values()))

    def hand_out(self) -> None:
        """Put parts into `grad`, after the first node has told the others."""
        if self._copies:
            told = partial(
                dist.broadcast, group_src=0, group=self._copies, async_op=True
            )
            wait_for(map(told, self._parts.values()))
        for name, parameter in self._parameters.items():
            parameter.grad = _like(parameter, self._parts[name])

    def _send(self) -> None:
        """Send the rows of the tensor that is lent, if any, to who holds them."""
        if self._open is None:
            return
        parameter, part = self._parameters[self._open], self._parts[self._open]
        mine = part.new_empty(_rows_per_rank(parameter), *parameter.shape[1:])
        group = parameter.device_mesh["shard"].get_group()
        dist.reduce_scatter_single(mine, self._buffer, group=group)
        part.add_(mine[: len(part)])
        self._open = None
        self._buffer = torch.empty(0)

    def _zeros(self, name: str) -> Tensor:
        """Return zeros of full size, with as many rows for each rank."""
        parameter = self._parameters[name]
        num_rows = _rows_per_rank(parameter) * parameter.device_mesh["shard"].size()
        return self._parts[name].new_zeros(num_rows, *parameter.shape[1:])


def _rows_per_rank(parameter: DTensor) -> int:
    """Return the rows of every rank but the last ones, which may have fewer."""
    return math.ceil(len(parameter) / parameter.device_mesh["shard"].size())


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
