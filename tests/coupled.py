"""Two runs under common randomness, at the same weights: how far apart are they?

Of two runs on neighbouring data sets the first is recorded. In the second, every unit
has the coins that it had in the first, whatever its place, and whatever the first
released is put in the place of what the second would release: both are at the same
weights, in the same space and at the same clip norm in every step. What is left of a
step is its sums before their noise. Their distance in units of the noise that was
really added, times the noise multiplier that the ledger was charged for the step, is
what one unit moves them by in units of C: at most 1 where it is added or removed, 2
where it is replaced, if the claim is true.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from dptune.accounting.events import mechanism_counts
from dptune.dpsgd import sampling, trainer
from dptune.dpsgd import step as step_module
from dptune.dpsgd import steps as charged_steps
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.noise import BandedNoise
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.randomness import GaussianStream, RandomStream, seed_sequence
from dptune.dpsgd.schedule import AdaptiveNoise
from dptune.local import training as local_training
from dptune.workflow import controller
from dptune.workflow import train_stage as workflow_training

NAMES = "_names_of_units"


@dataclass(kw_only=True)
class Release:
    """One noisy release: the sum before its noise, and after it."""

    private: Tensor = field(repr=False)
    stddev: float
    released: Tensor = field(repr=False)


@dataclass(kw_only=True)
class Step:
    """One step of a stage, or one batch of a stage with forward noise.

    Args:
        multiplier: what the ledger is charged for it: noise stddev / C.
        shares: of the parts that units are clipped in, if they are.
        max_grad_norm: C.
        divisor: of the noisy sum.
        clear: gradient that joins without noise.
        joined: names of the units that were drawn.
    """

    multiplier: float
    shares: tuple[float, ...] = ()
    max_grad_norm: float = math.nan
    divisor: float = math.nan
    releases: list[Release] = field(default_factory=list)
    clear: Tensor | None = field(default=None, repr=False)
    joined: tuple[str, ...] = field(default=(), repr=False)

    def public(self) -> tuple[Any, ...]:
        """Return everything but the data: equal for neighbours."""
        return (
            self.multiplier,
            self.shares,
            self.max_grad_norm,
            self.divisor,
            *((r.stddev, tuple(r.private.shape)) for r in self.releases),
        )


@dataclass(kw_only=True)
class Recording:
    """What a run of one stage did, step by step."""

    steps: list[Step] = field(default_factory=list)
    names: tuple[str, ...] = field(default=(), repr=False)
    num_bands: int = 1


def distance(step: Step, other: Step, *, kind: int | None = None) -> float:
    """Return how far the sums of two steps are apart, in units of C.

    Args:
        step: of the first run.
        other: the same of the second; its public figures must be those of the first.
        kind: of the part that neighbours differ in alone; None where they may differ
            in all that a unit has.
    """
    if step.public() != other.public():
        return math.inf
    clear = [s.clear for s in (step, other) if s.clear is not None]
    if len(clear) == 2 and not torch.equal(*clear):
        return math.inf
    square = sum(
        float((a.private.double() - b.private.double()).square().sum()) / a.stddev**2
        for a, b in zip(step.releases, other.releases, strict=True)
    )
    whole = sum(step.shares) or 1.0
    share = whole if kind is None else step.shares[kind]
    return math.sqrt(square) * step.multiplier / share


def worst_distance(
    first: Recording, second: Recording, *, kind: int | None = None
) -> float:
    """Return the largest distance of any step of a stage; infinite where they differ.

    With banded noise a unit must join at most once in as many steps, or its
    participations would add up.
    """
    if len(first.steps) != len(second.steps):
        return math.inf
    for recording in (first, second):
        window: list[str] = []
        for number, step in enumerate(recording.steps):
            if number % recording.num_bands == 0:
                window = []
            if recording.num_bands > 1 and set(window) & set(step.joined):
                return math.inf
            window += step.joined
    pairs = zip(first.steps, second.steps, strict=True)
    return max((distance(a, b, kind=kind) for a, b in pairs), default=0.0)


class Coins:
    """Stands in for the generator of a sampler: coins that belong to units."""

    def __init__(self, names: Sequence[str], seed: int = 0) -> None:
        self._names = names
        self._seed = seed
        self._round = 0
        self.bit_generator = np.random.default_rng().bit_generator  # who looks on asks

    def random(self, size: int) -> np.ndarray:
        """Return a number in [0, 1) for each unit, by its name and the round."""
        return self._of_units(size, "coin")

    def integers(self, most: int, *, size: int) -> np.ndarray:
        """Return a group for each unit, by its name."""
        return (self._of_units(size, "group") * most).astype(np.int64)

    def permutation(self, size: int) -> np.ndarray:
        """Return the units in the order of their coins."""
        return np.argsort(self._of_units(size, "order"), kind="stable")

    def _of_units(self, size: int, purpose: str) -> np.ndarray:
        """Hash the name of every unit."""
        if size != len(self._names):
            raise AssertionError(f"{len(self._names)} units are known, asked {size}")
        self._round += 1
        texts = (
            f"{self._seed}\x1f{purpose}\x1f{self._round}\x1f{n}" for n in self._names
        )
        digests = (hashlib.blake2b(t.encode(), digest_size=8).digest() for t in texts)
        return np.array([int.from_bytes(d, "big") >> 11 for d in digests]) / 2.0**53


class _Coupled:
    """Hooks that record a stage, and replay the releases of an earlier recording."""

    def __init__(
        self, replayed: Recording | None, *, seed: int, by_content: bool
    ) -> None:
        self.recording = Recording()
        self._by_content = by_content
        self._replayed = replayed
        self._seed = seed
        self._granted: dict[int, float] = {}
        self._in_bands = False

    # -- what is known of the data ------------------------------------------------

    def load_job(self, *arguments: Any, **keywords: Any) -> Any:
        loaded, data = _LOAD_JOB(*arguments, **keywords)
        self.recording.names = (
            tuple(data.sequences[rows[0]].tobytes().hex() for rows in data.units)
            if self._by_content
            else getattr(data, NAMES)
        )
        return loaded, data

    def sampling_generator(self, **_: Any) -> Coins:
        return Coins(self.recording.names, self._seed)

    # -- steps --------------------------------------------------------------------

    def compute(self, source: Any, indices: Any, *, step: int) -> Any:
        """Open a step of DP-SGD, let it run, and note what followed from it."""
        plan: GradientPlan = source._plan
        moved = source.max_grad_norm
        now = Step(
            multiplier=math.nan if plan.adaptive else charged_multiplier(plan, step),
            shares=plan.part_shares,
            max_grad_norm=plan.max_grad_norm if moved is None else moved,
            divisor=plan.expected_batch_size,
            joined=tuple(self.recording.names[i] for i in indices),
        )
        self.recording.num_bands = plan.num_bands
        if self.recording.steps and self.recording.steps[-1].releases == []:
            now.clear = self.recording.steps.pop().clear
        self.recording.steps.append(now)
        totals = _COMPUTE(source, indices, step=step)
        if plan.adaptive:
            now.multiplier = self._granted[step]
        return totals

    def compute_public(self, source: Any, step: int) -> Any:
        """Keep the gradient that joins the step that comes now without noise."""
        totals = _COMPUTE_PUBLIC(source, step)
        grads = [p.grad for p in source._parameters.values() if p.grad is not None]
        clear = torch.cat([g.detach().flatten().clone() for g in grads])
        self.recording.steps.append(Step(multiplier=math.nan, clear=clear))
        return totals

    def take(self, noise: AdaptiveNoise, step: int) -> float:
        """Note what an adaptive budget granted."""
        self._granted[step] = _TAKE(noise, step)
        return self._granted[step]

    def release_states(self, hidden: Tensor, **keywords: Any) -> Tensor:
        """Open a step of a stage with forward noise."""
        bound, stddev = keywords["max_norm"], keywords["noise_stddev"]
        self.recording.steps.append(
            Step(multiplier=stddev / bound, max_grad_norm=bound)
        )
        return _RELEASE(hidden, **keywords)

    # -- noise --------------------------------------------------------------------

    def add_to(self, stream: GaussianStream, *sums: Tensor, stddev: float) -> None:
        """Add noise to sums, or what the first run released of them."""
        if self._in_bands:
            _ADD_TO(stream, *sums, stddev=stddev)
            return
        private = [values.detach().clone() for values in sums]
        _ADD_TO(stream, *sums, stddev=stddev)
        for before, values in zip(private, sums, strict=True):
            self._note(before, stddev, [values])

    def add_banded(
        self, noise: BandedNoise, sums: Mapping[str, Tensor], *, step: int
    ) -> None:
        """Add banded noise to the sums of a step, or what the first run released."""
        values = list(sums.values())
        private = torch.cat([value.detach().flatten() for value in values])
        self._in_bands = True
        try:
            _ADD_BANDED(noise, sums, step=step)
        finally:
            self._in_bands = False
        self._note(private, noise._noise_stddev, values)

    def _note(self, private: Tensor, stddev: float, values: list[Tensor]) -> None:
        """Keep a release; where another run is replayed, put its release in place."""
        now = self.recording.steps[-1]
        place = (len(self.recording.steps) - 1, len(now.releases))
        released = torch.cat([value.detach().flatten() for value in values])
        replayed = None if self._replayed is None else _at(self._replayed, *place)
        if replayed is not None and replayed.released.shape == released.shape:
            released = replayed.released
            sizes = [value.numel() for value in values]
            pieces = torch.split(released, sizes)
            for value, piece in zip(values, pieces, strict=True):
                value.copy_(piece.view_as(value))
        now.releases.append(
            Release(private=private, stddev=stddev, released=released.clone())
        )


def _at(recording: Recording, step: int, number: int) -> Release | None:
    """Return one release of a recording, if it has it."""
    steps = recording.steps
    if step < len(steps) and number < len(steps[step].releases):
        return steps[step].releases[number]
    return None


def charged_multiplier(plan: GradientPlan, step: int) -> float:
    """Return the noise multiplier of the mechanism that a step is charged as."""
    if plan.part_shares:  # a part of share 1 keeps the multiplier of the step
        plan_event = plan.part_event(0, 1, first_step=step)
        scale = plan.part_shares[0]
    else:
        plan_event, scale = plan.dp_event(1, first_step=step), 1.0
    ((mechanism, count),) = mechanism_counts(plan_event)
    inner = getattr(mechanism, "event", mechanism)
    if count != 1 or not hasattr(inner, "noise_multiplier"):
        return math.inf  # nothing is claimed
    return float(inner.noise_multiplier) * scale


def _tossed(coins: Coins, num_units: int, rate: float) -> np.ndarray:
    """Let units join whose coins, which are theirs by name, lie below the rate."""
    return np.flatnonzero(coins.random(num_units) < rate)


def _named(data_class: type[UnitDataset], *arguments: Any, **keywords: Any) -> Any:
    """Build a data set that remembers whose units it holds."""
    data = _FROM_COLUMNS(data_class, *arguments, **keywords)
    units = arguments[2] if len(arguments) > 2 else keywords["unit_ids"]
    object.__setattr__(data, NAMES, tuple(dict.fromkeys(map(str, units))))
    return data


_LOAD_JOB = workflow_training.load_job
_COMPUTE = step_module.PrivateGradients.compute
_COMPUTE_PUBLIC = step_module.PlainGradients.compute_public
_TAKE = AdaptiveNoise.take
_RELEASE = local_training.release
_ADD_TO = GaussianStream.add_to
_ADD_BANDED = BandedNoise.add
_FROM_COLUMNS = UnitDataset.from_columns.__func__  # type: ignore[attr-defined]


@contextmanager
def coupled(
    replayed: Recording | None = None,
    *,
    seed: int = 0,
    checked: bool = True,
    by_content: bool = False,
) -> Iterator[Recording]:
    """Record the stage that runs inside; replay another one's releases.

    Args:
        replayed: of the neighbour that ran first; None for the first.
        seed: of the coins.
        checked: run the self-check too, which is about the model alone.
        by_content: coins belong to what a unit holds, not to its name: where a claim
            is about a set of texts.
    """
    hooks = _Coupled(replayed, seed=seed, by_content=by_content)

    def known(stream: RandomStream, **_: Any) -> np.random.SeedSequence:
        return seed_sequence(stream, seed=seed)

    changes: list[tuple[Any, str, Any]] = [
        (UnitDataset, "from_columns", classmethod(_named)),
        (workflow_training, "load_job", hooks.load_job),
        (charged_steps, "sampling_generator", hooks.sampling_generator),
        (sampling, "_tossed", _tossed),
        (step_module.PrivateGradients, "compute", _method(hooks.compute)),
        (step_module.PlainGradients, "compute_public", _method(hooks.compute_public)),
        (AdaptiveNoise, "take", _method(hooks.take)),
        (local_training, "release", hooks.release_states),
        (GaussianStream, "add_to", _method(hooks.add_to)),
        (BandedNoise, "add", _method(hooks.add_banded)),
        (controller, "seed_sequence", known),
    ]
    if not checked:
        changes.append((trainer, "check_private", lambda *_, **__: None))
    with ExitStack() as stack:
        for owner, name, value in changes:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield hooks.recording


def _method(hook: Any) -> Any:
    """Let a hook be called as a method of what it is put into."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return hook(self, *arguments, **keywords)

    return method
