"""The steps of a run up to the gradients that an optimizer may see.

Whatever loop asks for them, of ours or of another library, a step is three things in
this order: a block that begins is charged, units are drawn, and their clipped gradients
are summed and noised.
"""

import os
from collections.abc import Callable
from functools import partial

import numpy as np

from dptune.dpsgd.feed import Feed, StepTotals
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.sampling import UnitIndices, sampling_generator
from dptune.dpsgd.schedule import AdaptiveNoise
from dptune.dpsgd.step import GradientSource
from dptune.dpsgd.witness import UNWATCHED, StepWitness
from dptune.errors import PrivacyError

Charge = Callable[[int, int], None]


class ChargedSteps:
    """One process's steps, each paid for before anything of it is drawn.

    **Formal guarantee**: `charge` has returned for a block before a unit is drawn or
    noise is made for any of its steps, in this process and whatever an earlier one has
    paid. Units and noise are drawn from streams of this process start.

    **Privacy**: who is drawn is private; what `compute` leaves in `grad` is released.

    Args:
        plan: private or plain.
        feed: data and loss.
        source: of gradients, see `gradient_source`.
        first_step: where this process starts.
        num_steps: of the run.
        block_size: steps that are charged together, a whole block of the plan.
        charge: called with (first step, number of steps), on the first rank only.
        seed: None for secret draws.
        attempt: number of this process start.
        granted: what an adaptive plan takes its noise from; it has charged already.
        witness: looks on.
    """

    def __init__(
        self,
        *,
        plan: GradientPlan | PlainPlan,
        feed: Feed,
        source: GradientSource,
        first_step: int,
        num_steps: int,
        block_size: int,
        charge: Charge,
        seed: int | None,
        attempt: int,
        granted: AdaptiveNoise | None = None,
        witness: StepWitness = UNWATCHED,
    ) -> None:
        self.source = source
        self._process = os.getpid()
        self.block_end = first_step
        """Steps up to here are paid for."""
        self._feed = feed
        self._next = first_step
        self._num_steps = num_steps
        self._block_size = block_size
        self._charge = charge
        self._granted = granted
        self._witness = witness
        self._seed = seed
        self._attempt = attempt if isinstance(plan, GradientPlan) else 0
        """Number that a seed is mixed with: a plain run repeats itself on purpose."""
        self._sampler = plan.sampler(feed.data.num_units)
        self.generator: np.random.Generator = sampling_generator(
            fixed_seed=seed, attempt=self._attempt
        )
        if isinstance(plan, PlainPlan):
            for _ in range(first_step):  # a plain run goes on where it stopped
                self._sampler.sample(self.generator)

    def draw(self, step: int) -> UnitIndices | None:
        """Pay if a block begins, then draw who joins; None if a budget has ended.

        Raises:
            PrivacyError: no such step was planned, it is not the next one, or this
                process is a fork of the one that pays.
        """
        if os.getpid() != self._process:
            raise PrivacyError(
                "steps must be drawn in the process that pays for them, got a fork: it "
                "would draw the same noise once more, on another sum. Fork before "
                "training, or after it."
            )
        if step != self._next:
            raise PrivacyError(
                f"steps must come one after another, got step {step} where step "
                f"{self._next} was due: one that is drawn twice is paid once. Leave "
                "the count of steps to the loop."
            )
        if step >= self._num_steps:
            raise PrivacyError(
                f"a run must end after its {self._num_steps} steps, got another one: "
                "nobody has paid for it. Plan more steps."
            )
        ranks = self._feed.ranks
        if step >= self.block_end:
            size = min(self._block_size, self._num_steps - step)
            if self._granted is None:
                ranks.once(partial(self._charge, step, size))
                self._witness.charged(step, size)
            self.block_end = step + size
        if self._granted is not None and not self._granted.ask(step, once=ranks.once):
            return None
        self._witness.granted(self._granted, step=step)
        indices = ranks.drawn(partial(self._sampler.sample, self.generator))
        self._next = step + 1
        self._witness.drawn(indices, step=step)
        return indices

    def compute(self, indices: UnitIndices, *, step: int) -> StepTotals:
        """Leave the released gradients of a step in `grad`; figures are private."""
        randomness = seed_sequence(
            RandomStream.MODEL,
            seed=self._seed,
            attempt=self._attempt,
            step=step,
            rank=self._feed.ranks.rank,
        )
        with scoped_randomness(randomness, device=self._feed.device):
            return self.source.compute(indices, step=step)
