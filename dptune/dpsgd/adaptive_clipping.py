"""Adaptive clipping: one C by noisy counts, or clip norms that a controller steers.

**One C by a rule** (`MovingClip`). With z the noise multiplier of a step and f the
share of its budget that counts get, a step releases at once

    sum of clip_C(gradient) + N(0, (C z / sqrt(1 - f))^2 I)
    sum of counts           + N(0, (z / sqrt(f))^2 I),

where C follows from earlier releases alone and a unit's counts have norm at most 1.
Divided by its noise, what one unit adds has squared norm at most (1 - f) / z^2 +
f / z^2 = 1 / z^2: together they are one Gaussian mechanism of multiplier z, sampled as
the step is, and under replacement one of z / 2. So the event of a stage is what it is
without the counts. With f = 0 counts are released as they are: that is no private
mechanism, and the event says so.

**One C_i for each group, by a controller** (`SteeredClip`). There are n groups of d_i
parameters. Before a step the controller names a clip norm C_i for each, and n + 1
thresholds, from earlier releases and public values alone. With z the multiplier that
the run's budget granted for the step and f as above, the step releases at once

    sum of (clip_C_i(gradient of group i))_i + noise of stddev s_i in group i,
    sum of counts                            + N(0, (z / sqrt(f))^2 I), where

    s_i^2 = z^2 / (1 - f) * (C_i / sqrt(d_i)) * sum over j of C_j sqrt(d_j).

A unit's counts are n + 1 entries of +-1 / sqrt(n + 1): whether its norm in each group,
and its loss, is at or below the threshold. Divided by its noise, what one unit adds has
squared norm at most sum of C_i^2 / s_i^2 + f / z^2 = (1 - f) / z^2 + f / z^2 = 1 / z^2:
the same one mechanism, which is what the budget's terms describe. This s_i has the
least total variance, sum of d_i s_i^2, of all that do.

Norms and thresholds are copied when the step opens; clip, counts and noise all read
that copy. A controller that changes its mind later changes the next step.

| case of a steered step | result |
|---|---|
| a norm or a threshold that is not a finite number above 0 | `PrivacyError`, no draw |
| a unit with a gradient or a loss that is not finite | adds no counts |
| f = 0, "raw" | no private mechanism, and the plan's event says so |

A raw run is RLDP as it is written: s_i = z C_i (its equation 6), and the controller
sees norms and losses as they are.

References:
    Andrew, Thakkar, McMahan, Ramaswamy (2021), theorem 1,
    https://arxiv.org/abs/1905.03871v5 (a sum and a count under one multiplier);
    McMahan et al. (2018), https://arxiv.org/abs/1812.06210 (one mechanism for groups of
    unequal noise).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dptune.dpsgd.clipping import SMALLEST_MAX_GRAD_NORM, BoundedGroups
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.noise import add_gaussian_noise
from dptune.dpsgd.randomness import GaussianStream
from dptune.dpsgd.schedule import Controller
from dptune.errors import PrivacyError

_LARGEST_FACTOR = 1e6
# Leaves a share that can be enforced to each of a million groups.
_SMALLEST_MOVED_NORM = 1e3 * SMALLEST_MAX_GRAD_NORM


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Public figures of the step whose counts were released.

    Args:
        max_grad_norm: C of the step.
        expected_batch_size: public number of units that a step draws on average.
        gradient_multiplier: noise stddev of the gradients / C.
        num_parameters: entries of the gradient.
    """

    max_grad_norm: float
    expected_batch_size: float
    gradient_multiplier: float
    num_parameters: int


class NormRule(Protocol):
    """Counts norms, and moves C by the noisy counts: a frozen dataclass."""

    @property
    def name(self) -> str:
        """Tells rules apart in fingerprints."""
        ...

    @property
    def num_counts(self) -> int:
        """Length of a unit's counts."""
        ...

    def counts(self, norms: Tensor, *, max_norm: float) -> Tensor:
        """Return counts of norm at most 1 for each unit, `(units, num_counts)`.

        Args:
            norms: of whole gradients, `(units,)`; what is returned for one that is not
                finite does not matter.
            max_norm: C.
        """
        ...

    def next_norm(self, counts: Sequence[float], figures: StepFigures) -> float:
        """Return the next C from noisy counts and public figures."""
        ...


def moved_norm(
    rule: NormRule, counts: Sequence[float], figures: StepFigures, *, initial: float
) -> float:
    """Return the next C by a rule, within what float32 clips of groups can enforce.

    Args:
        rule: of the plan.
        counts: as they were released.
        figures: of the step.
        initial: C of the first step of the process.
    """
    smallest = max(min(_SMALLEST_MOVED_NORM, initial), initial / _LARGEST_FACTOR)
    return min(
        max(rule.next_norm(counts, figures), smallest), initial * _LARGEST_FACTOR
    )


class MovingClip:
    """C of a run, from step to step.

    Args:
        rule: counts and moves.
        initial: C of the first step of this process.
        num_parameters: entries of the gradient.
        expected_batch_size: public.
        ranks: the first one adds the noise and decides for all.
        stream: secret; of the first rank where there are several.
        device: of the norms.
    """

    def __init__(
        self,
        rule: NormRule,
        *,
        initial: float,
        num_parameters: int,
        expected_batch_size: float,
        ranks: Ranks,
        stream: GaussianStream,
        device: torch.device,
    ) -> None:
        self._rule = rule
        self._num_parameters = num_parameters
        self._expected_batch_size = expected_batch_size
        self._ranks = ranks
        self._stream = stream
        self._counts = torch.zeros(rule.num_counts, device=device)
        self._initial = initial
        self.max_grad_norm = initial
        self.released: tuple[float, ...] = ()
        """Counts of the last release, where this rank adds the noise."""

    def count(self, norms: Tensor) -> Tensor:
        """Add the counts of some units; private until they are released.

        Args:
            norms: `(groups, units)`, of real units alone.

        Returns:
            What was added, `(units, num_counts)`.
        """
        whole = torch.linalg.vector_norm(norms, dim=0)
        rows = self._rule.counts(whole, max_norm=self.max_grad_norm)
        size = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        bounded: Tensor = rows / size.clamp(min=1.0)
        usable = torch.isfinite(whole) & torch.isfinite(bounded).all(1)
        bounded = bounded.masked_fill(~usable[:, None], 0)
        self._counts += bounded.sum(0)
        return bounded

    def release(self, *, gradient_multiplier: float, stddev: float) -> None:
        """Add the noise to the step's counts, move C, and start counting anew.

        Args:
            gradient_multiplier: z / sqrt(1 - f).
            stddev: z / sqrt(f); 0 releases counts as they are.
        """
        totals = self._ranks.total(*self._counts.tolist())
        figures = StepFigures(
            max_grad_norm=self.max_grad_norm,
            expected_batch_size=self._expected_batch_size,
            gradient_multiplier=gradient_multiplier,
            num_parameters=self._num_parameters,
        )

        def move() -> float:
            noisy = self._counts.new_tensor(totals)
            add_gaussian_noise(
                {"counts": noisy}, noise_stddev=stddev, stream=self._stream
            )
            self.released = tuple(noisy.tolist())
            return moved_norm(self._rule, self.released, figures, initial=self._initial)

        self.max_grad_norm = self._ranks.once(move)
        self._counts.zero_()


def shares(noise_multiplier: float, share: float) -> tuple[float, float]:
    """Split a multiplier: gradient noise / C, and the noise of counts.

    Args:
        noise_multiplier: z, at least 0.
        share: f in [0, 1).

    Returns:
        z / sqrt(1 - f) and z / sqrt(f); the second is 0 where f is 0.

    >>> [round(noise, 3) for noise in shares(1.0, 0.01)]
    [1.005, 10.0]
    """
    counts = noise_multiplier / math.sqrt(share) if share else 0.0
    return noise_multiplier / math.sqrt(1 - share), counts


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
        self.released: tuple[float, ...] = ()
        """Counts of the last release; none in a raw run."""

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
        self.released = tuple(now.counts.tolist()) if self._share else ()
        figures = SteeredStep(
            step=now.step,
            noise_multiplier=now.noise_multiplier,
            clip_norms=now.clip_norms,
            noise_stddevs=tuple(s / size for s in now.noise_stddevs),
            shares=tuple(0.5 + 0.5 * scale * x for x in self.released),
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
