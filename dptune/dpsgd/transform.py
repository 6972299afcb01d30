"""Clipping in a space that past releases chose: transform, clip, add noise, undo.

With a and M functions of earlier releases alone, a step releases

    w = sum over drawn units of clip_C(M (g_u - a)) + N(0, (C z)^2 I),

and all that follows, the gradient M^-1 w / B + a among it, is computed from w and from
earlier releases.

**Formal guarantee.** Given the earlier releases, M and a are constants. A unit that
joins adds one vector of norm at most C to the sum, whatever M and a are; a unit that is
not drawn, or whose gradient is not finite, adds nothing, and above all not -M a. So the
sensitivity of w is C, or 2C where a unit is replaced, each step is the Gaussian
mechanism of multiplier z that a step without a transform is, and adaptive composition
gives the same event. Nothing is asked of M: not that it can be inverted, nor that it is
any good. What breaks the claim is an M or an a that looks at anything that was not
released.

| case | result |
|---|---|
| nobody is drawn | noise, transformed back, plus a |
| a unit whose gradient, or whose transform, is not finite | contributes zero there |

The norms that matter are those after the transform, which the engine's book-keeping
does not have. So gradients of single units are written down, a physical batch at a
time: memory for `physical_batch_size` times the trained parameters.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from dptune.dpsgd.parameters import DEFAULT_MATERIALIZE_BYTES, trainable_parameters
from dptune.dpsgd.rounding import by_unit, rounded_up
from dptune.dpsgd.tape import Tape
from dptune.dpsgd.terms import Dense, norm_of_sum
from dptune.errors import ConfigError, Problem

TransformState = Mapping[str, Tensor]
"""What a transform has learned from releases, and checkpoints keep."""

_BYTES_PER_ENTRY = 2 * 4  # the gradients and their transforms, float32
_SUM = "transformed"


class GradientTransform(Protocol):
    """Chooses a and M from what was released: a frozen dataclass of pure functions.

    Vectors are all trained parameters, flat and end to end.
    """

    @property
    def name(self) -> str:
        """Tells transforms apart in fingerprints."""
        ...

    def start(self, num_parameters: int) -> TransformState:
        """Return the state before anything was released."""
        ...

    def forward(self, gradients: Tensor, state: TransformState) -> Tensor:
        """Return M (g - a) for every row, `(units, parameters)`, in new memory."""
        ...

    def back(self, mean: Tensor, state: TransformState) -> Tensor:
        """Return M^-1 w + a, `(parameters,)`."""
        ...

    def follow(
        self, released: Tensor, state: TransformState, *, noise_stddev: float
    ) -> TransformState:
        """Return the state after a release.

        Args:
            released: noisy mean gradient, transformed back, `(parameters,)`.
            state: under which it was released.
            noise_stddev: of the mean's entries in the transformed space.
        """
        ...


class TransformedSums:
    """The one sum that is noised, in the transformed space, and its way back.

    Args:
        transform: of the plan.
        parameters: trainable parameters by name.
        state: where an earlier process left it; None starts anew.
    """

    def __init__(
        self,
        transform: GradientTransform,
        parameters: Mapping[str, nn.Parameter],
        *,
        state: TransformState | None,
    ) -> None:
        self._transform = transform
        self._parameters = parameters
        device = next(iter(parameters.values())).device
        size = sum(value.numel() for value in parameters.values())
        start = state or transform.start(size)
        self.state: TransformState = {k: v.to(device) for k, v in start.items()}
        self.owned: Mapping[str, Tensor] = {_SUM: torch.zeros(size, device=device)}
        self.lent = self.owned

    def clear(self) -> None:
        """Start a step: no gradient, a sum of zero."""
        self.owned[_SUM].zero_()
        for parameter in self._parameters.values():
            parameter.grad = None

    def combine(self) -> None:
        """Do nothing: there is one process."""

    @torch.no_grad()
    def add(self, tape: Tape, clip: Callable[[Tensor], Tensor]) -> None:
        """Transform the gradients of a backward pass that ran, clip them, add them up.

        Args:
            tape: of the pass.
            clip: norms `(1, units)` to factors of that shape; 0 for inf and NaN.
        """
        spoilt = ~torch.isfinite(tape.norms()[0])
        rows = self._transform.forward(self._rows(tape, spoilt), self.state)
        norms = rounded_up(norm_of_sum([Dense(rows)]))
        spoilt |= ~torch.isfinite(norms)
        rows.masked_fill_(spoilt[:, None], 0)
        factors = clip(norms.masked_fill(spoilt, torch.inf)[None])[0]
        Dense(rows).add_weighted_sum(factors.contiguous(), self.owned[_SUM])

    @torch.no_grad()
    def hand_out(self) -> None:
        """Put what was released, transformed back, into `grad`."""
        released = self._transform.back(self.owned[_SUM], self.state)
        sizes = [value.numel() for value in self._parameters.values()]
        pieces = torch.split(released, sizes)
        for parameter, piece in zip(self._parameters.values(), pieces, strict=True):
            parameter.grad = piece.view_as(parameter).clone()

    @torch.no_grad()
    def follow(self, *, noise_stddev: float) -> None:
        """Learn from what `hand_out` released; see `GradientTransform.follow`."""
        grads = [parameter.grad for parameter in self._parameters.values()]
        released = torch.cat([grad.flatten() for grad in grads if grad is not None])
        self.state = self._transform.follow(
            released, self.state, noise_stddev=noise_stddev
        )

    def _rows(self, tape: Tape, spoilt: Tensor) -> Tensor:
        """Return every unit's gradient, `(units, parameters)`; zero where spoilt."""
        found = tape.unit_gradients()
        columns = [
            by_unit(found[name])
            if name in found
            else torch.zeros(len(spoilt), value.numel(), device=spoilt.device)
            for name, value in self._parameters.items()
        ]
        return torch.cat(columns, dim=1).masked_fill_(spoilt[:, None], 0)


def check_transform(
    model: nn.Module,
    *,
    physical_batch_size: int,
    streams: bool,
    num_processes: int,
    max_bytes: int = DEFAULT_MATERIALIZE_BYTES,
) -> None:
    """Refuse, before anything is charged, what a transform cannot be run on.

    Args:
        model: whose trainable parameters are transformed.
        physical_batch_size: units whose gradients are written down at once.
        streams: whether gradient checkpointing is on.
        num_processes: ranks of the run.
        max_bytes: memory for gradients of single units.

    Raises:
        ConfigError: gradients of single units do not fit, or are not to be had.
    """
    entries = sum(value.numel() for value in trainable_parameters(model).values())
    fitting = max_bytes // (_BYTES_PER_ENTRY * entries)
    problems = []
    if physical_batch_size > fitting:
        problems.append(
            Problem(
                path="performance.physical_batch_size",
                message=f"must be at most {fitting} where gradients of {entries} "
                f"trained parameters are transformed, got {physical_batch_size}: each "
                f"unit takes {_BYTES_PER_ENTRY * entries} of {max_bytes} bytes.",
                next_step="Lower it, or train adapters (trains: lora).",
            )
        )
    if streams:
        problems.append(
            Problem(
                path="performance.gradient_checkpointing",
                message="must be false where gradients are transformed: it never "
                "holds the gradients of a unit together.",
            )
        )
    if num_processes > 1:
        problems.append(
            Problem(
                path="performance.num_processes",
                message="must be 1 where gradients are transformed, got "
                f"{num_processes}.",
            )
        )
    if problems:
        raise ConfigError(problems)
