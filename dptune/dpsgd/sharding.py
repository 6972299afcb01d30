"""Models that fit on no single device: FSDP2 shards, and clipped sums that follow them.

Every rank holds one part of the rows of each parameter. FSDP2 gathers the weights of a
block for its forward and backward pass and drops them again, so that the hooks of
`PerUnitGradients` see what they would see in one process: full weights, and whole
gradients of the units of this rank. Norms and factors need no communication. Clipped
sums leave parameter by parameter: a rank never holds more than one of full size.

Ranks must run the same number of passes, since each of them gathers weights: see
`Feed.batches`.

References:
    Zhao et al. (2023), "PyTorch FSDP", https://arxiv.org/abs/2304.11277.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from dptune.dpsgd.distributed import Ranks
from dptune.errors import ConfigError


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
