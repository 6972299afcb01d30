"""Clip norms of parameter groups that a controller steers from step to step.

**Formal guarantee.** There are n groups of d_i parameters. Before a step the controller
names a clip norm C_i for each, and n + 1 thresholds, from earlier releases and public
values alone. With z the multiplier that the run's budget granted for the step and f the
share of it that counts get, the step releases at once

    sum of (clip_C_i(gradient of group i))_i + noise of stddev s_i in group i,
    sum of counts                            + N(0, (z / sqrt(f))^2 I), where

    s_i^2 = z^2 / (1 - f) * (C_i / sqrt(d_i)) * sum over j of C_j sqrt(d_j).

A unit's counts are n + 1 entries of +-1 / sqrt(n + 1): whether its norm in each group,
and its loss, is at or below the threshold. Divided by its noise, what one unit adds has
squared norm at most sum of C_i^2 / s_i^2 + f / z^2 = (1 - f) / z^2 + f / z^2 = 1 / z^2.
So gradients and counts are one Gaussian mechanism of multiplier z, sampled as the step
is, and under replacement one of z / 2: what the budget's terms describe.

This s_i has the least total variance, sum of d_i s_i^2, of all that do.

Norms and thresholds are copied when the step opens; clip, counts and noise all read
that copy. A controller that changes its mind later changes the next step.

| case | result |
|---|---|
| a norm or a threshold that is not a finite number above 0 | `PrivacyError`, no draw |
| a unit with a gradient or a loss that is not finite | adds no counts |
| f = 0, "raw" | no private mechanism, and the plan's event says so |

A raw run is RLDP as it is written: s_i = z C_i (its equation 6), and the controller
sees norms and losses as they are.

References:
    Andrew et al. (2021), theorem 1, https://arxiv.org/abs/1905.03871v5 (a sum and a
    count under one multiplier); McMahan et al. (2018),
    https://arxiv.org/abs/1812.06210 (one mechanism for groups of unequal noise).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dptune.dpsgd.clipping import BoundedGroups
from dptune.dpsgd.gaussian import GaussianStream
from dptune.dpsgd.moving_clip import shares
from dptune.dpsgd.noise import add_gaussian_noise
from dptune.dpsgd.schedule import Controller
from dptune.errors import PrivacyError


@dataclass(frozen=True, kw_only=True)
class SteeredStep:
    """One step after its release: public or released figures.

    Args:
        step: from 0.
        noise_multiplier: what the budget granted.
        clip_norms: C_i.
        noise_stddevs: of the released mean gradients, by group.
        shares: noisy share of units at or below each threshold, of the expected batch;
            empty in a raw run.
    """

    step: int
    noise_multiplier: float
    clip_norms: tuple[float, ...]
    noise_stddevs: tuple[float, ...]
    shares: tuple[float, ...] = ()


@runtime_checkable
class ClipController(Controller, Protocol):
    """A controller that steers clip norms beside the noise.

    What `Controller` says of private values holds for all of its methods but
    `observe_raw`, which is called in raw runs only.
    """

    def clip_norms(self, step: int) -> Sequence[float]:
        """Return C_i of the step, one for each group."""
        ...

    def thresholds(self, step: int) -> Sequence[float]:
        """Return what norms of each group, and last the loss, are compared with."""
        ...

    def observe_step(self, figures: SteeredStep) -> None:
        """Look at a step that was released, before `observe` is called for it."""
        ...

    def observe_raw(self, norms: Tensor, *, loss: float) -> None:
        """Look at private norms `(groups, units)` and the loss per token, as RLDP does.

        **Privacy**: voids every claim; the plan's event is infinite where it is called.
        """
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold to go on exactly here."""
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from such a state."""
        ...


@dataclass(kw_only=True)
class _Step:
    """A step that is open: frozen norms, and sums that are private."""

    step: int
    clip_norms: tuple[float, ...]
    thresholds: tuple[float, ...]
    counts: Tensor = field(repr=False)
    raw: list[Tensor] = field(default_factory=list, repr=False)
    noise_multiplier: float | None = None
    noise_stddevs: tuple[float, ...] = ()


class SteeredClip:
    """Clip norms of a run whose controller steers them.

    Args:
        controller: names norms and thresholds.
        group_of: group of each trainable parameter, from 0.
        sizes: d_i.
        share: f, in [0, 1); 0 is a raw run.
        expected_batch_size: public.
        stream: secret; noise of the counts.
        device: of norms and losses.
    """

    def __init__(
        self,
        controller: ClipController,
        *,
        group_of: Mapping[str, int],
        sizes: Sequence[int],
        share: float,
        expected_batch_size: float,
        stream: GaussianStream,
        device: torch.device,
    ) -> None:
        self._controller = controller
        self._group_of = dict(group_of)
        self._sizes = tuple(sizes)
        self._share = share
        self._expected_batch_size = expected_batch_size
        self._stream = stream
        self._device = device
        self._now: _Step | None = None

    def open(self, step: int) -> BoundedGroups:
        """Ask the controller for the step, freeze what it says, return the clip."""
        num_groups = len(self._sizes)
        norms = _checked(self._controller.clip_norms(step), num_groups, "clip norms")
        limits = _checked(
            self._controller.thresholds(step), num_groups + 1, "thresholds"
        )
        self._now = _Step(
            step=step,
            clip_norms=norms,
            thresholds=limits,
            counts=torch.zeros(num_groups + 1, device=self._device),
        )
        return BoundedGroups(norms)

    def count(self, norms: Tensor, losses: Tensor) -> Tensor:
        """Add the counts of some units; private until the noise is added.

        Args:
            norms: `(groups, units)`, of real units alone.
            losses: `(units,)`.

        Returns:
            What was added, `(units, counts)`.
        """
        now = self._opened()
        if not self._share:
            now.raw.append(norms.detach())
            return norms.new_zeros(norms.shape[1], 0)
        values = torch.cat((norms, losses[None].to(norms)))
        limits = torch.tensor(now.thresholds, device=values.device)[:, None]
        signs = torch.where(values <= limits, 1.0, -1.0) / math.sqrt(len(limits))
        usable = torch.isfinite(values).all(0)
        signs = signs.masked_fill(~usable, 0)
        now.counts += signs.sum(1)
        return signs.T

    def draw(self, noise_multiplier: float) -> dict[str, float]:
        """Release the counts under the step's grant; return the noise of gradients.

        Args:
            noise_multiplier: z, granted for this step.

        Returns:
            s_i for each parameter.
        """
        now = self._opened()
        if now.noise_multiplier is not None:
            raise PrivacyError("the noise of a step must be drawn once.")
        gradients, counts = shares(noise_multiplier, self._share)
        if self._share:
            add_gaussian_noise(
                {"counts": now.counts}, noise_stddev=counts, stream=self._stream
            )
        stddevs = self._stddevs(now.clip_norms, gradients)
        now.noise_multiplier, now.noise_stddevs = noise_multiplier, stddevs
        return {name: stddevs[group] for name, group in self._group_of.items()}

    def close(self, *, loss: float) -> None:
        """Tell the controller what was released, and in a raw run what was not.

        Args:
            loss: mean per token of the batch; private.
        """
        now, size = self._opened(), self._expected_batch_size
        if now.noise_multiplier is None:
            raise PrivacyError("a step must be released before it is looked at.")
        scale = math.sqrt(len(now.thresholds)) / size
        noisy = tuple(0.5 + 0.5 * scale * x for x in now.counts.tolist())
        figures = SteeredStep(
            step=now.step,
            noise_multiplier=now.noise_multiplier,
            clip_norms=now.clip_norms,
            noise_stddevs=tuple(s / size for s in now.noise_stddevs),
            shares=noisy if self._share else (),
        )
        self._controller.observe_step(figures)
        if not self._share:
            empty = torch.zeros(len(self._sizes), 0, device=self._device)
            self._controller.observe_raw(torch.cat([empty, *now.raw], 1), loss=loss)
        self._now = None

    def _stddevs(
        self, norms: tuple[float, ...], multiplier: float
    ) -> tuple[float, ...]:
        """Return s_i, see the module."""
        if not self._share:
            return tuple(multiplier * norm for norm in norms)
        return group_stddevs(norms, self._sizes, multiplier=multiplier)

    def _opened(self) -> _Step:
        """Return the step that is open."""
        if self._now is None:
            raise PrivacyError("a steered step must be opened before its clip is used.")
        return self._now


def group_stddevs(
    norms: Sequence[float], sizes: Sequence[int], *, multiplier: float
) -> tuple[float, ...]:
    """Return s_i with sum of C_i^2 / s_i^2 = 1 / multiplier^2 and least sum d_i s_i^2.

    Args:
        norms: C_i.
        sizes: d_i.
        multiplier: of the joint mechanism.
    """
    pairs = list(zip(norms, map(math.sqrt, sizes), strict=True))
    total = sum(norm * root for norm, root in pairs)
    return tuple(multiplier * math.sqrt(norm / root * total) for norm, root in pairs)


def _checked(values: Sequence[float], count: int, name: str) -> tuple[float, ...]:
    """Copy what a controller named; refuse what no clip can enforce."""
    copy = tuple(float(value) for value in values)
    if len(copy) != count or not all(0 < x < math.inf for x in copy):
        raise PrivacyError(
            f"{name} of a step must be {count} finite numbers above 0, got {len(copy)}."
        )
    return copy
