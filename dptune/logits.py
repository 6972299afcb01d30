"""Logits and losses of language models without the logits of a whole batch.

The last layer of a language model turns a hidden state into a logit for every token of
the vocabulary: at 1,024 positions and 49,152 tokens, 200 MB in float32, held through
the backward pass. Where that layer is frozen, as under adapters, its logits are left
unwritten until something asks for them. A loss asks for those of a few positions at a
time, takes the gradient of their hidden states at once, and keeps nothing else. An
attack asks for those that it measures, whether the layer is trained or not. Any other
function of torch gets all of them: models that scale or cap their logits are computed
as they are written.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

NO_TARGET = -100
_PIECE_ENTRIES = (1 << 24, 1 << 18)
_HELD_ENTRIES = (1 << 26, 1 << 23)
_PART_ENTRIES = 1 << 21


class UnwrittenLogits(Tensor):
    """What a frozen linear layer returns, written out when it is first used.

    Args:
        head: layer with a `weight`, and a method `dense`, which writes that out, where
            it is held in another form; see `dptune.models.frozen`.
        hidden: its input, `(..., width)`.
    """

    _head: nn.Module
    _hidden: Tensor
    _written: Tensor | None

    def __new__(cls, head: nn.Module, hidden: Tensor) -> Self:
        """Make a tensor without entries: whatever looks at it writes it out."""
        made: Self = hidden.new_empty(0).as_subclass(cls)
        made._head, made._hidden, made._written = head, hidden, None
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Call any function with logits that are written out."""
        args, options = tree_map_only(cls, cls.written, (args, dict(kwargs or {})))
        return func(*args, **options)

    def written(self) -> Tensor:
        """Return the logits, always the same tensor."""
        if self._written is None:
            self._written = type(self._head).forward(self._head, self._hidden)
        return self._written

    def at(self, *places: Any) -> Tensor:  # noqa: ANN401 - as torch takes them
        """Write out the logits of some positions alone.

        Args:
            places: indices of all dimensions but the last.
        """
        if self._written is not None:
            return self._written[places]
        written: Tensor = type(self._head).forward(self._head, self._hidden[places])
        return written

    def cross_entropy(self, targets: Tensor) -> Tensor:
        """Return what `cross_entropy` does of all positions, `(positions,)`."""
        if self._written is not None:
            return cross_entropy(self._written.flatten(0, -2), targets)
        hidden, kind = self._hidden.flatten(0, -2), self._hidden.device.type
        if torch.is_autocast_enabled(kind):
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        losses: Tensor = _FrozenHead.apply(hidden, self._head, targets)  # type: ignore[no-untyped-call]
        return losses


def logits_at(logits: Tensor, *places: Any) -> Tensor:  # noqa: ANN401 - as torch takes them
    """Return the logits of some positions; others stay unwritten, if they are."""
    return logits.at(*places) if isinstance(logits, UnwrittenLogits) else logits[places]


def vocabulary_size(logits: Tensor) -> int:
    """Return how many logits a position has, written or not."""
    if not isinstance(logits, UnwrittenLogits):
        return logits.shape[-1]
    head: Any = logits._head
    return int(getattr(head, "shape", head.weight.shape)[0])


@contextmanager
def unwritten_logits(model: nn.Module) -> Iterator[None]:
    """Let the head of a language model return `UnwrittenLogits`, unless it learns.

    It learns where it is trained and gradients are on. A head that is hooked into is
    left alone: per-unit gradients need its input and the gradient of its output.
    """
    named: Any = getattr(model, "get_output_embeddings", lambda: None)
    head = named()
    if not _is_frozen_linear(head):
        yield
        return
    head.forward = lambda hidden: UnwrittenLogits(head, hidden)
    try:
        yield
    finally:
        del head.forward


def _is_frozen_linear(head: Any) -> bool:  # noqa: ANN401 - whatever a model names
    """Whether a layer multiplies by a weight of its own, and nothing else wants it."""
    kind = type(head)
    is_linear = kind is nn.Linear or (
        hasattr(kind, "decompresses") and hasattr(kind, "dense")
    )
    return (
        is_linear
        and type(head.weight) is nn.Parameter  # no part of one, no codes of torchao
        and not getattr(head, "is_transposed", False)
        and not ("forward" in vars(head) or head._forward_hooks)
        and not (head._forward_pre_hooks or head._backward_hooks)
        and not (
            torch.is_grad_enabled()
            and any(value.requires_grad for value in head.parameters())
        )
    )


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return -log softmax(logits)[target] of each row, in pieces that fit the cache.

    Forward and backward hold nothing of the size of `logits` but `logits` itself, of
    whose memory the gradient takes possession. torch's own holds it three times.

    Args:
        logits: `(rows, classes)`; computed with in float32 whatever their type.
        targets: classes, or -100 for rows that have none, `(rows,)`.

    Returns:
        `(rows,)`, float32; 0 where there is no target, even if its logits are infinite.
    """
    losses: Tensor = _CrossEntropy.apply(logits, targets)  # type: ignore[no-untyped-call]
    return losses


class _CrossEntropy(torch.autograd.Function):
    """See `cross_entropy`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:  # noqa: ANN401 - torch's
        ctx.save_for_backward(logits, targets)
        return _losses(logits, targets)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401 - torch's
        logits, targets = ctx.saved_tensors
        keeps_graph = torch._C._autograd._get_current_graph_task_keep_graph()
        result = torch.empty_like(logits) if keeps_graph else logits.detach()
        _write_gradient(logits, targets, grad, result)
        return result, None


class _FrozenHead(torch.autograd.Function):
    """Cross-entropy of a frozen linear layer, see `UnwrittenLogits`.

    The gradient of a loss by its hidden state is known with the loss, up to what the
    loss will be multiplied by.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: nn.Module, targets: Tensor) -> Tensor:  # noqa: ANN401 - torch's
        layer: Any = head
        weights, dtype = _in_parts(layer, hidden), hidden.dtype
        num_classes = sum(map(len, weights))
        losses = torch.zeros(len(hidden), device=hidden.device)
        gradient = torch.zeros_like(hidden) if ctx.needs_input_grad[0] else None
        for rows, filled in _targets_in_pieces(targets, num_classes):
            chosen = hidden[filled]
            logits = hidden.new_empty(len(chosen), num_classes)
            parts = torch.split(logits, len(weights[0]), dim=1)
            for part, weight in zip(parts, weights, strict=True):
                torch.mm(chosen, weight.to(dtype).t(), out=part)
            if layer.bias is not None:
                logits += layer.bias.to(dtype)
            losses[rows] = _losses_to_gradient(logits, targets[filled])[: len(rows)]
            if gradient is not None:
                piece = torch.zeros_like(chosen)
                for part, weight in zip(parts, weights, strict=True):
                    piece.addmm_(part, weight.to(dtype))
                gradient[rows] = piece[: len(rows)]
            del logits, parts  # before the next are written
        ctx.save_for_backward(gradient)
        return losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # noqa: ANN401 - torch's
        (gradient,) = ctx.saved_tensors
        return (gradient * grad[:, None]).to(gradient.dtype), None, None


def _targets_in_pieces(
    targets: Tensor, num_classes: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield positions that have a target, a piece at a time, bare and filled up.

    All pieces of a batch have one size, whatever its targets: products are rounded by
    their shape, and how many positions one record asks for would move the others.
    """
    wanted = (targets != NO_TARGET).nonzero()[:, 0]
    size = min(_piece_size(targets, num_classes, _HELD_ENTRIES), len(targets))
    for rows in torch.split(wanted, size) if len(wanted) else ():
        yield rows, functional.pad(rows, (0, size - len(rows)))


def _in_parts(layer: Any, hidden: Tensor) -> Sequence[Tensor]:  # noqa: ANN401 - linear
    """Cut the weight of a head into runs of classes that are written out by turns.

    On a CPU memory for all of them at once would be cleared anew every time. Where sums
    over classes must not be rounded to few bits on the way, there is one run.
    """
    dense = getattr(layer, "dense", layer.weight.to)
    is_coded = getattr(layer, "scale", None) is not None
    if is_coded or not hidden.is_cpu or hidden.dtype != torch.float32:
        return [dense(hidden.dtype)]
    width = layer.weight.shape[1]
    return torch.split(layer.weight, max(1, _PART_ENTRIES // width))


def _losses_to_gradient(logits: Tensor, targets: Tensor) -> Tensor:
    """Return losses of rows, in float32, and leave their gradient in `logits`.

    A row without a target is taken for one of class 0.
    """
    losses = torch.empty(len(logits), device=logits.device)
    for rows in _pieces(logits, logits.shape[1], _PIECE_ENTRIES):
        piece, target = logits[rows].float(), targets[rows, None].clamp(min=0)
        picked, most = piece.gather(1, target), piece.amax(1, keepdim=True)
        total = piece.sub_(most).exp_().sum(1, keepdim=True)
        losses[rows] = (total.log() + most - picked)[:, 0]
        piece.scatter_add_(1, target, -total).div_(total)
        if piece.dtype != logits.dtype:
            logits[rows] = piece
    return losses


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return losses of rows, in float32."""
    losses = torch.empty(len(logits), device=logits.device)
    for rows in _pieces(logits, logits.shape[1], _PIECE_ENTRIES):
        piece, target = logits[rows].float(), targets[rows].clamp(min=0)
        picked = piece.gather(1, target[:, None])[:, 0]
        losses[rows] = piece.logsumexp(1) - picked
    return losses.masked_fill_(targets == NO_TARGET, 0)


def _write_gradient(
    logits: Tensor, targets: Tensor, grad: Tensor, result: Tensor
) -> None:
    """Write the gradient by the logits into `result`, which may be the logits."""
    no_target = targets == NO_TARGET
    for rows in _pieces(logits, logits.shape[1], _PIECE_ENTRIES):
        piece = torch.softmax(logits[rows], 1, dtype=torch.float32)
        target = targets[rows].clamp(min=0)[:, None]
        piece.scatter_add_(1, target, -torch.ones_like(target, dtype=piece.dtype))
        piece.mul_(grad[rows, None]).masked_fill_(no_target[rows, None], 0)
        result[rows] = piece


def _pieces(rows: Tensor, num_classes: int, most: tuple[int, int]) -> Iterator[slice]:
    """Cut rows into runs of so many entries."""
    step = _piece_size(rows, num_classes, most)
    return (slice(start, start + step) for start in range(0, len(rows), step))


def _piece_size(rows: Tensor, num_classes: int, most: tuple[int, int]) -> int:
    """Return how many rows have so many entries on an accelerator, and on a CPU.

    Losses are computed a megabyte at a time on a CPU, as much as its cache holds.
    """
    return max(1, most[rows.device.type == "cpu"] // max(1, num_classes))
