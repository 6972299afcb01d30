"""RLDP's controller: SAC names the clip norm of every LoRA pair, and wishes for noise.

| | sound | raw, as the paper has it |
|---|---|---|
| state | see below | quartiles and moments of the batch's norms, its loss |
| utility | loss on public text, or a tracked median | loss of the private batch |
| clip before it acts | tracked median | median of the batch |
| noise | card of the deck nearest to the wish | the wish |
| guarantee | of `dptune.dpsgd.adaptive_clipping` and the deck | none |

The sound state holds noisy shares of units below the medians that they move (Andrew et
al. 2021), what of each pair's released gradient is above its noise, the medians, clip
norms, noise and nominal epsilon. Without public text the tracked median of losses is
what rewards come from.

Where the sound form differs, its numbers are released under the step's own noise, or
public: the controller is post-processing, which the paper's corollary B.12 claims for a
controller that reads private batches.

References:
    Khadangi et al. (2025), RLDP, algorithm 1; line numbers are given in place.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dptune.dpsgd.adaptive_clipping import SteeredStep
from dptune.dpsgd.clipping import SMALLEST_MAX_GRAD_NORM
from dptune.errors import PrivacyError
from dptune.mechanisms.nominal import gdp_to_epsilon
from dptune.mechanisms.rldp import (
    clip_around,
    due,
    next_clip,
    next_sigma,
    paper_state,
    reward,
    signal_share,
    track_median,
    utility,
)
from dptune.mechanisms.sac import SacSettings, SoftActorCritic

UtilitySource = Literal["public_text", "released", "private_batch"]

_TRACKING_RATE = 0.3
_LARGEST_FACTOR = 1e6
_DELTA = 1e-5


@dataclass(frozen=True, kw_only=True)
class ControlTerms:
    """What is fixed before training. All public.

    Args:
        group_of: number of the LoRA pair that a parameter belongs to, from 0.
        start_norm: clip norm of every pair before the first step.
        start_noise: sigma_0.
        sample_rate: q.
        num_steps: of the stage.
        warmup: steps before the first action.
        interval: steps between two actions.
        clip_span: of `clip_around`; None takes equation 10 as it is.
        largest_loss: R_max, which the paper does not give.
        raw: run as the paper has it, without a guarantee.
    """

    group_of: Mapping[str, int]
    start_norm: float
    start_noise: float
    sample_rate: float
    num_steps: int
    warmup: int
    interval: int
    clip_span: float | None = 2.0
    largest_loss: float = 5.0
    raw: bool = False

    @property
    def num_pairs(self) -> int:
        """LoRA pairs, n."""
        return 1 + max(self.group_of.values())

    @property
    def state_size(self) -> int:
        """Entries of the state."""
        return 3 * self.num_pairs + 8 if self.raw else 4 * self.num_pairs + 4


class RldpController:
    """Acts every few steps, learns from what came of it; a `ClipController`.

    **Privacy**: with `terms.raw` False it reads what was released, and public text, and
    nothing else. Its state may be stored beside a checkpoint, and its policy published.

    Args:
        terms: fixed before training.
        sac: the paper's numbers.
        generator: its coins, which must not depend on data.
        public_loss: mean loss per token of the model as it is now, on public text; None
            takes what was released.
    """

    def __init__(
        self,
        terms: ControlTerms,
        *,
        sac: SacSettings,
        generator: torch.Generator,
        public_loss: Callable[[], float] | None = None,
    ) -> None:
        self._terms = terms
        self._sac = SoftActorCritic(
            state_size=terms.state_size,
            action_size=terms.num_pairs + 1,
            settings=sac,
            generator=generator,
        )
        self._public_loss = None if terms.raw else public_loss
        n = terms.num_pairs
        self._references = (terms.start_norm,) * n
        self._loss_reference = 1.0
        self._sigma = terms.start_noise
        self._mu_squared = 0.0
        self._raw_state: Tensor | None = None
        self._raw_loss = 0.0
        self._action: Tensor | None = None
        self._before: tuple[Tensor, float, float] | None = None
        self._sums = torch.zeros(2 * n + 1, dtype=torch.float64)
        self._num_seen = 0
        self._latest: SteeredStep | None = None
        self._trace: list[tuple[float, ...]] = []
        self._actions_at: list[int] = []

    @property
    def trace(self) -> tuple[tuple[float, ...], ...]:
        """Step, granted noise multiplier, and clip norms, of every released step."""
        return tuple(self._trace)

    @property
    def actions_at(self) -> tuple[int, ...]:
        """Steps before which the controller acted."""
        return tuple(self._actions_at)

    @property
    def utility_source(self) -> UtilitySource:
        """What rewards are computed from."""
        if self._terms.raw:
            return "private_batch"
        return "public_text" if self._public_loss else "released"

    def policy(self) -> dict[str, Tensor]:
        """Return encoder and policy."""
        return self._sac.policy()

    def wish(self, step: int) -> float:
        """Act if it is time; return sigma."""
        terms = self._terms
        if due(step, warmup=terms.warmup, interval=terms.interval):
            self._act(step)
        return self._sigma

    def clip_norms(self, step: int) -> Sequence[float]:  # noqa: ARG002 - of the protocol
        """Return C_i: equation 10, or the tracked median before the first action.

        None is below what a clip can enforce, which would end a stage that was paid.
        """
        return tuple(max(norm, SMALLEST_MAX_GRAD_NORM) for norm in self._named_norms())

    def _named_norms(self) -> Sequence[float]:
        """Return what the policy, or before it the median, names for every pair."""
        if self._action is None:
            return self._references
        actions = self._action[:-1].tolist()
        if self._terms.clip_span is None:
            return tuple(next_clip(action) for action in actions)
        span = self._terms.clip_span
        pairs = zip(self._references, actions, strict=True)
        return tuple(clip_around(ref, action, span=span) for ref, action in pairs)

    def thresholds(self, step: int) -> Sequence[float]:  # noqa: ARG002 - of the protocol
        """Return the tracked medians of norms, and that of losses."""
        return (*self._references, self._loss_reference)

    def observe_step(self, figures: SteeredStep) -> None:
        """Move the medians by noisy shares; note what the step was granted."""
        self._latest = figures
        rate, sigma = self._terms.sample_rate, figures.noise_multiplier
        self._mu_squared += rate**2 * math.expm1(min(sigma**-2, 700.0))
        self._trace.append((figures.step, sigma, *figures.clip_norms))
        if not figures.shares:
            return
        n = self._terms.num_pairs
        self._sums[: n + 1] += torch.tensor(figures.shares, dtype=torch.float64)
        self._num_seen += 1
        moved = track_median(
            self.thresholds(figures.step), figures.shares, rate=_TRACKING_RATE
        )
        starts = (self._terms.start_norm,) * n + (1.0,)
        bounded = tuple(map(_bounded, moved, starts))
        self._references, self._loss_reference = bounded[:-1], bounded[-1]

    def observe(self, released: Mapping[str, Tensor], *, step: int) -> None:  # noqa: ARG002 - of the protocol
        """See how much of the released gradients is above their noise."""
        if self._terms.raw or self._latest is None:
            return
        n = self._terms.num_pairs
        squares, sizes = [0.0] * n, [0] * n
        for name, value in released.items():
            group = self._terms.group_of[name]
            squares[group] += float(value.square().sum())
            sizes[group] += value.numel()
        rows = zip(squares, sizes, self._latest.noise_stddevs, strict=True)
        signals = [signal_share(q, num_entries=d, noise_stddev=s) for q, d, s in rows]
        self._sums[n + 1 :] += torch.tensor(signals, dtype=torch.float64)

    def observe_raw(self, norms: Tensor, *, loss: float) -> None:
        """Keep the paper's statistics, lines 12 to 15; in a raw run only."""
        if not self._terms.raw:
            raise PrivacyError(
                "a controller with a guarantee must not be shown private norms. Set "
                "count_share to 0 to run RLDP as it is written, with none."
            )
        norms = torch.nan_to_num(norms.float().cpu())
        self._raw_loss = loss if math.isfinite(loss) else self._raw_loss
        self._raw_state = paper_state(
            norms, loss=self._raw_loss, epsilon=self._epsilon(self._mu_squared)
        )
        if self._action is None and norms.shape[1]:
            medians = norms.median(dim=1).values.clamp(min=1e-8)
            self._references = tuple(medians.tolist())

    def _act(self, step: int) -> None:
        """One decision: lines 18 to 39, in their order."""
        epsilon = self._epsilon(self._mu_squared)
        state, value = self._look(epsilon)
        action = self._sac.act(state)
        previous, self._action = self._action, action
        largest = self._epsilon(self._planned_mu_squared())
        self._sigma = next_sigma(
            float(action[-1]),
            sigma=self._sigma,
            start=self._terms.start_noise,
            spent=epsilon / max(largest, 1e-12),
        )
        if self._before is not None and previous is not None:
            then, value_then, epsilon_then = self._before
            gained = reward(
                value - value_then,
                epsilon - epsilon_then,
                largest_loss=self._terms.largest_loss,
            )
            self._sac.remember(then, previous, gained, state)
            self._sac.learn()
        self._before = (state, value, epsilon)
        self._actions_at.append(step)
        self._sums.zero_()
        self._num_seen = 0

    def _look(self, epsilon: float) -> tuple[Tensor, float]:
        """Return state and utility of now."""
        if self._terms.raw:
            seen = self._raw_state
            if seen is None:
                seen = torch.zeros(self._terms.state_size)
            # The paper re-normalises its states and does not say how.
            return seen.sign() * seen.abs().log1p(), utility(self._raw_loss)
        if self._public_loss is not None:
            value = utility(self._public_loss())
        else:
            value = utility(self._loss_reference)
        means = (self._sums / max(self._num_seen, 1)).float()
        start, references = self._terms.start_norm, self._references
        rows = zip(self.clip_norms(0), references, strict=True)
        own = [
            *(math.log(ref / start) for ref in references),
            *(math.log(clip / ref) for clip, ref in rows),
            value,
            epsilon,
            math.log(self._sigma / self._terms.start_noise),
        ]
        return torch.cat((means, torch.tensor(own))), value

    def _planned_mu_squared(self) -> float:
        """Return mu^2 of the whole stage at sigma_0."""
        one = self._terms.sample_rate**2 * math.expm1(
            min(self._terms.start_noise**-2, 700.0)
        )
        return self._terms.num_steps * one

    def _epsilon(self, mu_squared: float) -> float:
        """Return the nominal epsilon that rewards are counted in."""
        return min(gdp_to_epsilon(math.sqrt(mu_squared), delta=_DELTA), 1e6)

    def state(self) -> dict[str, Tensor]:
        """Return all that a resumed run needs to go on exactly here."""
        n = self._terms.num_pairs
        scalars = [
            *self._references,
            self._loss_reference,
            self._sigma,
            self._mu_squared,
            self._raw_loss,
            float(self._num_seen),
        ]
        parts = {
            "scalars": torch.tensor(scalars, dtype=torch.float64),
            "sums": self._sums.clone(),
            "trace": torch.tensor(self._trace, dtype=torch.float64).reshape(-1, n + 2),
            "actions_at": torch.tensor(self._actions_at, dtype=torch.int64),
            **{f"sac/{name}": value for name, value in self._sac.state().items()},
        }
        if self._raw_state is not None:
            parts["raw_state"] = self._raw_state
        if self._action is not None and self._before is not None:
            parts["action"] = self._action
            parts["before"] = self._before[0]
            parts["before_values"] = torch.tensor(self._before[1:], dtype=torch.float64)
        return parts

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        n = self._terms.num_pairs
        scalars = state["scalars"].tolist()
        self._references, rest = tuple(scalars[:n]), scalars[n:]
        self._loss_reference, self._sigma, self._mu_squared = rest[:3]
        self._raw_loss, self._num_seen = rest[3], int(rest[4])
        self._sums = state["sums"].clone()
        self._trace = [tuple(row) for row in state["trace"].tolist()]
        self._actions_at = [int(step) for step in state["actions_at"].tolist()]
        self._raw_state = state.get("raw_state")
        if "action" in state:
            self._action = state["action"]
            value, epsilon = state["before_values"].tolist()
            self._before = (state["before"], value, epsilon)
        inner = {k.removeprefix("sac/"): v for k, v in state.items() if "sac/" in k}
        self._sac.restore(inner)


def _bounded(value: float, start: float) -> float:
    """Keep a tracked value within what float32 clips can enforce."""
    return min(max(value, start / _LARGEST_FACTOR), start * _LARGEST_FACTOR)
