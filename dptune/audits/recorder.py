"""A run's own audit: the recorder looks on at every step, and keeps verdicts only.

Of every parameter it follows some entries through the step: the clipped sum, the noisy
mean, the gradient that the optimizer is offered, the weight. What noise was asked for
is compared with what units were clipped to; what noise came, with its law; the weights,
with a small optimizer of its own that sees released values alone.

**Privacy**: all that it holds is private, noise before all, and stays in memory. Its
file has verdicts and one-way digests of streams.
"""

import json
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dptune.accounting.adaptive import AdaptiveBudget
from dptune.audits.count_checks import ROUNDING, CountTally
from dptune.audits.noise_checks import (
    generator_identity,
    multiplier_of,
    product_limit,
    squares_check,
    streams_check,
)
from dptune.audits.sampling_checks import SamplingTally
from dptune.audits.step_report import Segment, StepCheck, read_segments
from dptune.dpsgd.checkpoint import TrainingState
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.parameters import group_parameters, trainable_parameters
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.randomness import GaussianStream, StreamIdentity
from dptune.dpsgd.sampling import UnitIndices
from dptune.dpsgd.schedule import AdaptiveNoise
from dptune.dpsgd.sharding import is_sharded
from dptune.dpsgd.witness import StepWitness
from dptune.errors import BudgetExceededError

_ENTRIES: Final = 8192
_MOST, _FEWEST = 512, 4
_REMEMBERED: Final = 128
_FAR, _FEW = 20_000, 512
"""Steps of whose noise some entries are remembered, and how many."""
_ORDER: Final = ("drawn", "summed", "released", "offered", "stepped")
_WHAT: Final = {
    "every_step": "each step is charged, drawn, noised and followed, in order",
    "grants_are_paid": "what a controller was granted is in the terms of the charge",
    "units_reach_the_step": "those who were drawn, and nobody else, are clipped",
    "noise_covers_clip": "what units are clipped to is covered by their step's noise",
    "noise_as_planned": "noise is asked for every parameter, of the planned size",
    "clip_follows_counts": "what moves the clip is shown released counts alone",
    "optimizer_sees_releases": "the optimizer is offered what was released",
    "weights_follow_releases": "weights move as their optimizer moves them by released "
    "values alone",
    "frozen_weights_stay": "weights and buffers that are not trained do not move",
}


class StepRecorder(StepWitness):
    """Looks on at a private stage on one process, or on the first of several.

    Args:
        plan: the claim; only its numbers are believed.
        settings: of the optimizer.
        num_steps: of the stage.
        num_units: who can join.
        lengths: tokens of every unit.
        is_secret: whether seeds come from the operating system.
        counts_units: whether every unit of a step passes by here, and nothing else.
        adds_unnoised: whether something joins the release without noise.
        file: where segments are kept; None keeps them in memory.
    """

    def __init__(
        self,
        plan: GradientPlan,
        *,
        settings: OptimizerSettings,
        num_steps: int,
        num_units: int,
        lengths: NDArray[np.int64] | None = None,
        is_secret: bool = True,
        counts_units: bool = True,
        adds_unnoised: bool = False,
        file: Path | None = None,
    ) -> None:
        self._plan, self._settings, self._num_steps = plan, settings, num_steps
        self._is_secret, self._file = is_secret, file
        self._counts_units = counts_units
        self._is_offered = plan.transform is None and not adds_unnoised
        self._tally = SamplingTally(plan=plan, num_units=num_units, lengths=lengths)
        self._faults: Counter[str] = Counter()
        self._streams: list[StreamIdentity] = []
        self._seen: list[str] = []
        self._heard: list[tuple[int, float]] = []
        self._units: list[Tensor] = []
        self._paid_until = self._done = self._first = self._attempt = 0
        self._is_off = False
        self._grants: list[float] = []
        self._terms: AdaptiveBudget | None = None
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._stddevs: list[float] | None = None
        self._counts_asked: list[float] = []
        self._released_counts = CountTally(plan)
        self._squares: NDArray[np.float64] | None = None
        self._grads: Tensor | None = None
        self._asked_before = self._num_drawn = 0

    def opened(self, stream: GaussianStream) -> None:
        """Listen to the noise that is asked for."""
        self._streams.append(getattr(stream, "identity", StreamIdentity("", 0)))
        stream.listener = lambda num, stddev: self._heard.append((num, stddev))

    def started(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: np.random.Generator,
        state: TrainingState,
    ) -> None:
        """Choose entries, copy the optimizer's state of them, and sum up the rest."""
        parameters = trainable_parameters(model)
        self._is_off = is_sharded(parameters)
        if self._is_off:
            return
        self._attempt = state.attempt
        self._released_counts.start(state.max_grad_norm or self._plan.max_grad_norm)
        self._first = self._done = self._paid_until = state.step
        self._streams.append(generator_identity(generator))
        self._groups = group_parameters(parameters, self._plan.grouping)
        each = max(_FEWEST, min(_MOST, _ENTRIES // len(parameters)))
        draws = np.random.default_rng()
        self._entries = {
            name: torch.from_numpy(
                np.sort(draws.choice(p.numel(), min(each, p.numel()), replace=False))
            ).to(p.device)
            for name, p in parameters.items()
        }
        self._shadow = nn.Parameter(self._taken(parameters))
        self._twin = self._settings.build([self._shadow])
        self._copy_state(optimizer, parameters)
        self._rest = _sums_of_rest(model)
        self._raw: deque[Tensor] = deque(maxlen=len(self._plan.noise_coefficients))
        self._rows: deque[Tensor] = deque(maxlen=_REMEMBERED)
        self._few = torch.zeros(0)
        self._pairs, self._worst_pair, self._worst_far = 0, 0.0, 0.0
        self._lags = np.zeros(_REMEMBERED)
        self._lag_counts = np.zeros(_REMEMBERED)

    def charged(self, first_step: int, num_steps: int) -> None:
        """Note that a block was paid for."""
        if first_step != self._paid_until:
            self._faults["every_step"] += 1
        self._paid_until = first_step + num_steps

    def granted(self, budget: AdaptiveNoise | None, *, step: int) -> None:
        """Note a grant, which is paid."""
        if budget is None or self._is_off:
            return
        self._grants.append(budget.of_step(step))
        self._paid_until = self._done + 1
        if self._terms is None:
            self._terms = budget.terms.open()
        try:
            paid = self._terms.ask(self._grants[-1], sample_rate=self._plan.sample_rate)
        except BudgetExceededError:
            paid = 0.0
        if paid != self._grants[-1]:
            self._faults["grants_are_paid"] += 1

    def drawn(self, indices: UnitIndices, *, step: int) -> None:
        """Open a step."""
        if self._is_off:
            return
        if step != self._done or step >= self._paid_until or self._seen:
            self._faults["every_step"] += 1
        self._seen, self._units, self._heard = ["drawn"], [], []
        self._stddevs = self._grads = None
        self._released_counts.open_step()
        self._num_drawn = len(indices)
        self._tally.see(np.asarray(indices))

    def clipped(self, norms: Tensor, factors: Tensor) -> None:
        """Keep what units are clipped to until their noise is known."""
        if self._is_off:
            return
        size = torch.where(factors == 0, torch.zeros_like(norms), norms * factors)
        self._units.append(size.detach().nan_to_num(nan=torch.inf).double().cpu())

    def counted(self, counts: Tensor) -> None:
        """Keep what units add to counts until its noise is known."""
        if not self._is_off:
            self._released_counts.count(counts)

    def summed(self, sums: Mapping[str, Tensor]) -> None:
        """Remember the entries before their noise."""
        if self._is_off:
            return
        self._seen.append("summed")
        self._names = [*sums]
        self._sizes = [value.numel() for value in sums.values()]
        self._places = self._places_in(sums)
        self._before = _gathered(sums, self._places)
        self._asked_before = len(self._heard)

    def released(self, means: Mapping[str, Tensor]) -> None:
        """Take the noise out of the release, and hold it to its law."""
        if self._is_off:
            return
        self._seen.append("released")
        if self._seen[-2] != "summed":
            return
        self._after = _gathered(means, self._places)
        asked = self._heard[self._asked_before :]
        own = asked[max(0, len(asked) - len(self._sizes)) :]
        extra = asked[: len(asked) - len(own)]
        if [num for num, _ in own] != self._sizes or not all(s > 0 for _, s in own):
            self._faults["noise_as_planned"] += 1
            return
        self._counts_asked = [stddev for _, stddev in extra]
        self._stddevs = [stddev for _, stddev in own]
        counts = [len(self._places[name]) for name in self._names]
        per_entry = torch.repeat_interleave(
            torch.tensor(self._stddevs), torch.tensor(counts)
        )
        noise = self._after * self._plan.expected_batch_size - self._before
        self._see_noise((noise / per_entry).double(), counts)

    def moved(self, counts: Sequence[float], *, max_grad_norm: float | None) -> None:
        """Keep released counts, and what C they made."""
        self._released_counts.release(counts, max_grad_norm=max_grad_norm)

    def offered(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Compare what the optimizer is offered with what was released."""
        if self._is_off:
            return
        self._seen.append("offered")
        grads = {n: p.grad for n, p in parameters.items() if p.grad is not None}
        if grads.keys() != parameters.keys():
            self._faults["optimizer_sees_releases"] += 1
            return
        self._grads = _gathered(grads, self._entries)
        is_released = "released" in self._seen and torch.equal(self._grads, self._after)
        if self._is_offered and not is_released:
            self._faults["optimizer_sees_releases"] += 1

    def stepped(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Move the small optimizer likewise, and close the step."""
        if self._is_off:
            return
        self._seen.append("stepped")
        if tuple(self._seen) != _ORDER:
            self._faults["every_step"] += 1
        units = sum(size.shape[1] for size in self._units)
        if self._counts_units and units != self._num_drawn:
            self._faults["units_reach_the_step"] += 1
        self._compare_clip()
        self._follow(self._taken(parameters))
        self._seen = []
        self._done += 1

    def stored(self, model: nn.Module, *, step: int) -> None:
        """Keep the verdicts so far, where there is a file."""
        if self._is_off:
            return
        if step != self._done or step > self._paid_until:
            self._faults["every_step"] += 1
        if not torch.equal(self._taken(trainable_parameters(model)), self._shadow.data):
            self._faults["weights_follow_releases"] += 1
        is_last = step >= self._num_steps
        if is_last and not _equal(self._rest, _sums_of_rest(model)):
            self._faults["frozen_weights_stay"] += 1
        if self._file is None:
            return
        others = [s for s in read_segments(self._file) if s.attempt != self._attempt]
        others.append(self.segment([d for s in others for d in s.streams]))
        half = self._file.with_suffix(".half")
        half.parent.mkdir(parents=True, exist_ok=True)
        values = [s.model_dump(mode="json") for s in others]
        half.write_text(json.dumps(values), encoding="utf-8")
        half.rename(self._file)

    def segment(self, earlier_streams: Sequence[str] = ()) -> Segment:
        """Return verdicts on the steps that this process has run.

        Args:
            earlier_streams: digests of streams of process starts before.
        """
        return Segment(
            attempt=self._attempt,
            first_step=self._first,
            num_steps=self._done - self._first,
            streams=tuple(stream.digest for stream in self._streams),
            checks=tuple(self._checks(earlier_streams)),
        )

    def _checks(self, earlier_streams: Sequence[str]) -> list[StepCheck]:
        """All verdicts."""
        has_counts = self._plan.norm_rule is not None or self._plan.steering
        found = [
            StepCheck(name=name, passed=not self._faults[name], detail=what)
            for name, what in _WHAT.items()
            if has_counts or name != "clip_follows_counts"
        ]
        secret = self._streams if self._is_secret else []
        known = [] if self._is_secret else self._streams
        known = [*known, *(StreamIdentity(d, 0) for d in earlier_streams)]
        found.append(streams_check(secret, known=known))
        found += self._released_counts.checks()
        if self._squares is not None:
            counts = self._counts * (self._done - self._first)
            found += [
                squares_check(
                    "noise_variance",
                    np.array([self._squares.sum()]),
                    np.array([counts.sum()]),
                ),
                squares_check("noise_variance_by_parameter", self._squares, counts),
                self._independence(),
            ]
        return [*found, *self._tally.checks()]

    def _independence(self) -> StepCheck:
        """No step's noise may be that of an earlier one, nor lean to it."""
        pair = self._worst_pair / product_limit(
            float(self._counts.sum()), num_tests=max(1, self._pairs)
        )
        seen = self._lag_counts > 0
        lags = np.abs(self._lags[seen]) / product_limit(
            self._lag_counts[seen], num_tests=_REMEMBERED
        )
        far = self._worst_far / product_limit(
            float(self._few.shape[1]), num_tests=(self._done - self._first) ** 2
        )
        worst = max(float(pair), float(lags.max(initial=0.0)), float(far))
        return StepCheck(
            name="noise_independence",
            passed=worst <= 1.0,
            measured=worst,
            limit=1.0,
            detail=f"correlation of the noise of steps up to {_REMEMBERED} apart, and "
            "of some entries of any two, as a share of what chance allows",
        )

    def _see_noise(self, noise: Tensor, counts: list[int]) -> None:
        """Add one step's standard noise to the statistics."""
        coefficients = self._plan.noise_coefficients
        self._raw.appendleft(noise / coefficients[0])
        pairs = zip(coefficients, self._raw, strict=False)
        own = torch.stack([c * row for c, row in pairs]).sum(0)
        squares = np.array([float(p.square().sum()) for p in torch.split(own, counts)])
        if self._squares is None:
            self._squares, self._counts = np.zeros(len(counts)), np.array(counts)
        self._squares += squares
        if self._rows:
            products = (torch.stack(list(self._rows)) @ own).numpy()
            self._pairs += len(products)
            self._worst_pair = max(self._worst_pair, float(np.abs(products).max()))
            self._lags[: len(products)] += products
            self._lag_counts[: len(products)] += len(own)
        self._rows.appendleft(own)
        self._compare_few(own)

    def _compare_few(self, own: Tensor) -> None:
        """Compare some entries with those of all steps before."""
        some = own[:: max(1, len(own) // _FEW)][:_FEW].float()
        if not len(self._few):
            self._few = torch.zeros(min(self._num_steps, _FAR), len(some))
        seen = self._done - self._first
        products = (self._few[:seen] @ some).abs().numpy()
        self._worst_far = max(self._worst_far, float(products.max(initial=0.0)))
        self._few[seen % len(self._few)] = some

    def _compare_clip(self) -> None:
        """Hold what units were clipped to, and counted, to the noise of the step."""
        plan = self._plan
        if self._stddevs is None:
            return
        step_multiplier = (
            self._grants[-1] if self._grants else multiplier_of(plan, self._done)
        )
        later = self._heard[self._asked_before + len(self._counts_asked) :]
        counts = [*self._counts_asked, *(s for _, s in later[len(self._sizes) :])]
        groups = [self._groups.get(name, 0) for name in self._names]
        stddevs = [math.inf] * (1 + max(groups))
        for group, stddev in zip(groups, self._stddevs, strict=True):
            stddevs[group] = min(stddevs[group], stddev * plan.noise_coefficients[0])
        scale = torch.tensor(stddevs, dtype=torch.float64)[:, None]
        loudest = max(
            (
                float((size / scale).square().sum(0).max())
                for size in self._units
                if size.numel()
            ),
            default=0.0,
        )
        of_counts = sum(s**-2 if s > 0 else math.inf for s in counts)
        if plan.count_share and len(counts) == 1:
            follows = self._released_counts.compare(
                stddev=counts[0] if self._counts_units else None,
                step=self._done,
                num_parameters=sum(self._sizes),
            )
            self._faults["clip_follows_counts"] += not follows
        cost = loudest + self._released_counts.largest**2 * of_counts
        if cost * step_multiplier**2 > 1 + ROUNDING:
            self._faults["noise_covers_clip"] += 1
        if plan.norm_rule is None and not plan.steering:
            planned = step_multiplier * plan.max_grad_norm
            if any(abs(s / planned - 1) > ROUNDING for s in stddevs):
                self._faults["noise_as_planned"] += 1
        elif plan.count_share and len(counts) != 1:
            self._faults["noise_as_planned"] += 1

    def _follow(self, weights: Tensor) -> None:
        """Let the small optimizer take the step, and compare."""
        if self._grads is None:
            return
        before = self._shadow.detach().clone()
        rate = self._settings.learning_rate_at(self._done, num_steps=self._num_steps)
        for group in self._twin.param_groups:
            group["lr"] = rate
        self._shadow.grad = self._grads
        self._twin.step()
        moved = (self._shadow.detach() - before).abs()
        off = (self._shadow.detach() - weights).abs()
        if bool((off > 1e-3 * moved + 4e-6 * before.abs() + 1e-12).any()):
            self._faults["weights_follow_releases"] += 1
        self._shadow.data.copy_(weights)

    def _copy_state(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        """Start the small optimizer where a resumed one stands."""
        states = {name: optimizer.state.get(p, {}) for name, p in parameters.items()}
        copy: dict[str, Any] = {}
        for key, first in next(iter(states.values())).items():
            values = {name: state[key] for name, state in states.items()}
            whole = isinstance(first, Tensor) and all(
                isinstance(v, Tensor) and v.numel() == parameters[n].numel()
                for n, v in values.items()
            )
            if whole and first.dim():
                copy[key] = _gathered(values, self._entries)
            else:
                copy[key] = first.clone().cpu() if isinstance(first, Tensor) else first
        if copy:
            self._twin.state[self._shadow] = copy

    def _places_in(self, sums: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Entries of the sums: the parameters' own, or some of a space of theirs."""
        if [*sums] == [*self._entries]:
            return self._entries
        if self._squares is None:
            self._other = {
                name: torch.arange(0, v.numel(), max(1, v.numel() // _ENTRIES)).to(
                    v.device
                )
                for name, v in sums.items()
            }
        return self._other

    def _taken(self, parameters: Mapping[str, nn.Parameter]) -> Tensor:
        """Weights of the chosen entries."""
        return _gathered({n: p.detach() for n, p in parameters.items()}, self._entries)


def _gathered(values: Mapping[str, Tensor], entries: Mapping[str, Tensor]) -> Tensor:
    """Some entries of every tensor, end to end, on the CPU."""
    found = [values[name].reshape(-1)[places] for name, places in entries.items()]
    return torch.cat(found).float().cpu()


def _sums_of_rest(model: nn.Module) -> dict[str, float]:
    """Sum of every tensor of a model that is not trained."""
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: float(value.detach().sum(dtype=torch.float64))
        for name, value in tensors
        if id(value) not in trained
    }


def _equal(first: Mapping[str, float], second: Mapping[str, float]) -> bool:
    """Whether sums are the same; NaN is equal to NaN."""
    return first.keys() == second.keys() and all(
        np.array_equal(v, second[k], equal_nan=True) for k, v in first.items()
    )
