"""What goes past the engine: adapters that a model bypasses, and weights beside it.

An adapter whose weight the model takes by itself trains on nothing, so that what its
steps release is noise, and merging it adds that noise to a weight that the model does
read. State spaces do so with `dt_proj`, some routers of experts with their own weight.
So does every model with adapters that are merged, or not active.

A weight that is none of the model's, such as a temperature of the loss, gets the
gradient of all rows from autograd, neither clipped nor noised.
"""

from collections.abc import Iterator

import torch
from peft.tuners.lora.layer import LoraLayer, ParamWrapper
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from dptune.dpsgd.isolation import COMPARED, Probe
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.refusals import explained, model_name
from dptune.errors import ModelError


def check_adapters(model: nn.Module, probe: Probe) -> None:
    """Refuse adapters that a model reads past: merged, their noise alone would count.

    An adapter without a gradient is one of them if its layer's weight has one. Others
    are of experts that no made-up row reached.

    Args:
        model: with adapters, or without.
        probe: its made-up rows.

    Raises:
        ModelError: the model takes the weight below an adapter by itself, or an adapter
            is trained that is merged or not active.
    """
    _check_read(model)
    layers = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, LoraLayer) and not isinstance(layer, ParamWrapper)
    }
    halves = {
        name: [w for w in layer.lora_B.parameters() if w.requires_grad]
        for name, layer in layers.items()
    }
    unread = _without_gradient(model, probe, {n: w[0] for n, w in halves.items() if w})
    bare = {n: getattr(layers[n].get_base_layer(), "weight", None) for n in unread}
    weights = {
        name: weight
        for name, weight in bare.items()
        if isinstance(weight, nn.Parameter) and weight.is_floating_point()
    }
    frozen = [weight for weight in weights.values() if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad = True
        for name in weights.keys() - _without_gradient(model, probe, weights):
            raise ModelError(
                f"{model_name(model)} takes the weight of "
                f"{name.removeprefix('base_model.model.')} by itself: an adapter on it "
                "trains on nothing, and changes the model when it is merged. Leave it "
                "out of target_modules."
            )
    finally:
        for weight in frozen:
            weight.requires_grad = False


def check_weights_beside(model: nn.Module, probe: Probe) -> None:
    """Refuse a loss that has a gradient in what is no parameter of the model.

    What a forward pass makes anew, such as embeddings that are told to have a gradient,
    is gone after it; what two passes share is somebody's to train.

    Args:
        model: with its parameters.
        probe: its made-up rows.

    Raises:
        ModelError: there is such a tensor.
    """
    first = _leaves(model, probe)
    if not first:
        return
    second = set(map(id, _leaves(model, probe)))
    for leaf in first:
        if id(leaf) in second:
            raise ModelError(
                f"{model_name(model)} must be trained by its own parameters alone, but "
                f"its loss has a gradient in a tensor of shape {tuple(leaf.shape)} "
                "beside them, which is neither clipped nor noised. Make it a parameter "
                "of the model (nn.Parameter, nn.ModuleList) if it is to be trained; "
                "else freeze it with requires_grad_(False), or ask for it under "
                "torch.no_grad."
            )


def _leaves(model: nn.Module, probe: Probe) -> list[Tensor]:
    """List what the loss of the longest row has a gradient in beside parameters."""
    own = set(map(id, model.parameters()))
    with explained(model, "be differentiated"):
        losses = probe.feed.losses(model, probe.batch((COMPARED[0],)))
    return [leaf for leaf in _ends(losses) if id(leaf) not in own]


def _ends(losses: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that a graph of autograd ends in."""
    waiting, seen = [losses.grad_fn], {losses.grad_fn}
    while waiting:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            yield leaf
        following = {below for below, _ in getattr(node, "next_functions", ())} - seen
        seen |= following
        waiting += following


def _check_read(model: nn.Module) -> None:
    """Refuse to train adapters that are merged, or that are not active."""
    for layer in model.modules():
        if not isinstance(layer, BaseTunerLayer):
            continue
        trained = _trained_adapters(layer)
        if trained and layer.merged:
            raise ModelError(
                f"{model_name(model)} must not have its adapters merged while they are "
                "trained: no loss depends on them. Call unmerge_adapter first."
            )
        active = [] if layer.disable_adapters else layer.active_adapters
        if unread := sorted(trained.difference(active)):
            raise ModelError(
                f"{model_name(model)} must not train adapter {unread[0]}, which is not "
                "active: no loss depends on it, so that it would learn noise alone. "
                "Call set_adapter with what is to be trained, which freezes the others."
            )


def _trained_adapters(layer: BaseTunerLayer) -> set[str]:
    """Name the adapters of a layer that have a weight to train."""
    kinds = [getattr(layer, name, {}) for name in layer.adapter_layer_names]
    weights = (
        (adapter, weight)
        for kind in kinds
        for adapter, part in kind.items()
        for weight in (part.parameters() if isinstance(part, nn.Module) else [part])
    )
    return {adapter for adapter, weight in weights if weight.requires_grad}


def _without_gradient(
    model: nn.Module, probe: Probe, weights: dict[str, nn.Parameter]
) -> set[str]:
    """Name weights that no loss of the longest made-up row depends on.

    Chances are the same each time: a layer that is left out is so for both kinds.
    """
    if not weights:
        return set()
    chances = seed_sequence(RandomStream.MODEL, seed=0)
    with (
        explained(model, "be differentiated"),
        scoped_randomness(chances, device=probe.feed.device),
    ):
        loss = probe.feed.losses(model, probe.batch((COMPARED[0],))).sum()
        if not loss.requires_grad:
            return set(weights)
        found = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
    pairs = zip(weights, found, strict=True)
    return {name for name, gradient in pairs if gradient is None}
