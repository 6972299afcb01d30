"""Privacy bugs as one-line mutations of the source; `planted_bugs.py` plants them.

Each is a mistake that somebody could make, somewhere on the way of an epsilon: who is
drawn, how gradients are clipped, what noise is added, what is charged, what is claimed.
"""

from dataclasses import dataclass
from typing import Final

ENGINE: Final = "dptune/dpsgd/"
LEDGER: Final = "dptune/accounting/"
UNIT: Final = "tests/unit/"

PLAIN, BANDED, CAPPED = "plain", "banded", "capped"
MOVING, LAYERS, RISING = "moving", "layers", "rising"
TRANSFORMED, TIERS, STEERED = "transformed", "tiers", "steered"


@dataclass(frozen=True, kw_only=True)
class Mutation:
    """One planted bug.

    Args:
        name: unique.
        room: part of the way of an epsilon.
        what: in plain words.
        file: that it is planted in.
        old: text that occurs there exactly once.
        new: what takes its place.
        tests: files or folders that should see it, the nearest first.
        stages: kinds of stage, see `planted_bugs.STAGES`, in whose run it acts so that
            the run's own audit must see it; none where no run shows it by itself.
        unseen: why no run shows it.
    """

    name: str
    room: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    stages: tuple[str, ...] = ()
    unseen: str = ""


_SAMPLING: Final = (
    f"{UNIT}dpsgd/test_sampling.py",
    "tests/statistical/test_sampling.py",
)
_CLIP: Final = (f"{UNIT}dpsgd/test_clipping.py", f"{UNIT}dpsgd/test_gradients.py")
_NOISE: Final = (f"{UNIT}dpsgd/test_noise.py", "tests/statistical/test_noise.py")
_STEP: Final = (f"{UNIT}dpsgd/test_step.py", f"{UNIT}dpsgd/test_trainer.py")
_PLAN: Final = (f"{UNIT}dpsgd/test_plan.py", f"{UNIT}dpsgd/test_banding.py")
_MOVING: Final = (f"{UNIT}dpsgd/test_moving_clip.py",)
_RESUMED: Final = "it shows where a run is killed and resumed"
_CLAIM: Final = "it changes what is said of a run, not what the run does"
_POWER: Final = "it shows after a power cut, or where processes race"

MUTATIONS: Final[tuple[Mutation, ...]] = (
    Mutation(
        name="sampling_fixed_size",
        room="sampling",
        what="batches of one size, drawn without replacement",
        file=f"{ENGINE}sampling.py",
        old="        return np.flatnonzero(joins).astype(np.int64)",
        new="        size = round(self._num_units * self._sample_rate)\n"
        "        return np.sort(generator.choice(self._num_units, size, replace=False))",
        tests=_SAMPLING,
        stages=(PLAIN,),
    ),
    Mutation(
        name="sampling_repeats",
        room="sampling",
        what="units drawn with replacement into one step",
        file=f"{ENGINE}sampling.py",
        old="        return np.flatnonzero(joins).astype(np.int64)",
        new="        return np.sort(generator.integers(self._num_units, size=joins.sum()))",
        tests=_SAMPLING,
        stages=(PLAIN,),
    ),
    Mutation(
        name="sampling_rate",
        room="sampling",
        what="a rate ten percent above the accounted one",
        file=f"{ENGINE}sampling.py",
        old="generator.random(self._num_units) < self._sample_rate",
        new="generator.random(self._num_units) < 1.1 * self._sample_rate",
        tests=_SAMPLING,
        stages=(PLAIN,),
    ),
    Mutation(
        name="sampling_epochs",
        room="sampling",
        what="batches of random size, dealt from shuffled epochs without replacement",
        file=f"{ENGINE}sampling.py",
        old="        return np.flatnonzero(joins).astype(np.int64)",
        new="        left = getattr(self, '_left', np.empty(0, np.int64))\n"
        "        while len(left) < joins.sum():\n"
        "            epoch = generator.permutation(self._num_units)\n"
        "            left = np.concatenate([left, epoch])\n"
        "        batch, self._left = left[: joins.sum()], left[joins.sum() :]\n"
        "        return np.unique(batch)",
        tests=_SAMPLING,
        stages=(PLAIN,),
    ),
    Mutation(
        name="sampling_shuffled",
        room="sampling",
        what="shuffled batches in the place of Poisson sampling",
        file=f"{ENGINE}plan.py",
        old="            return PoissonSampler(num_units=num_units, "
        "sample_rate=self.sample_rate)",
        new="            return ShuffledSampler(\n"
        "                num_units=num_units, batch_size=round(self.expected_batch_size)\n"
        "            )",
        tests=(f"{UNIT}dpsgd/test_plan.py", *_STEP),
        stages=(PLAIN,),
    ),
    Mutation(
        name="sampling_turns_ignored",
        room="sampling",
        what="units join out of their turn under banded noise",
        file=f"{ENGINE}sampling.py",
        old="np.flatnonzero(has_turn & joins)",
        new="np.flatnonzero((has_turn | True) & joins)",
        tests=_SAMPLING,
        stages=(BANDED,),
    ),
    Mutation(
        name="sampling_groups_redrawn",
        room="sampling",
        what="groups drawn anew at every step, so that a unit joins within the bands",
        file=f"{ENGINE}sampling.py",
        old="        if self._groups is None:",
        new="        if self._groups is None or self._num_groups > 1:",
        tests=_SAMPLING,
        stages=(BANDED,),
    ),
    Mutation(
        name="sampling_seeded",
        room="sampling",
        what="a known seed for the sampler of every run",
        file=f"{ENGINE}randomness.py",
        old="    if seed is None:\n        return np.random.SeedSequence(",
        new="    if seed is None and stream is RandomStream.SAMPLING:\n"
        "        return np.random.SeedSequence(1)\n"
        "    if seed is None:\n        return np.random.SeedSequence(",
        tests=(f"{UNIT}dpsgd/test_randomness.py", *_SAMPLING),
        stages=(PLAIN,),
    ),
    Mutation(
        name="sampling_shared",
        room="sampling",
        what="noise from the very stream that draws the units",
        file=f"{ENGINE}randomness.py",
        old="    entropy = [seed, attempt, int(stream), step]",
        new="    entropy = [seed, attempt, 0, step]",
        tests=(f"{UNIT}dpsgd/test_randomness.py",),
        unseen="without a seed every stream has entropy of its own",
    ),
    Mutation(
        name="randomness_32_bits",
        room="sampling",
        what="32 bits of entropy, which can be tried out",
        file=f"{ENGINE}randomness.py",
        old="secrets.randbits(ENTROPY_BITS)",
        new="secrets.randbits(32)",
        tests=(f"{UNIT}dpsgd/test_randomness.py", *_NOISE),
        unseen="32 secret bits look like 256 from outside",
    ),
    Mutation(
        name="truncation_first",
        room="sampling",
        what="a batch above the cap keeps its first units, not random ones",
        file=f"{ENGINE}sampling.py",
        old="kept = generator.choice(joined, self._max_batch_size, replace=False)",
        new="kept = joined[: self._max_batch_size]",
        tests=_SAMPLING,
        stages=(CAPPED,),
    ),
    Mutation(
        name="truncation_off",
        room="sampling",
        what="a batch above the cap is not cut",
        file=f"{ENGINE}sampling.py",
        old="        if len(joined) <= self._max_batch_size:",
        new="        if len(joined) <= self._max_batch_size or len(joined) > 0:",
        tests=_SAMPLING,
        stages=(CAPPED,),
    ),
    Mutation(
        name="clip_per_row",
        room="clip",
        what="rows are clipped, not units",
        file=f"{ENGINE}step.py",
        old="with self._engine.record(batch.rows_of_unit) as tape:",
        new="with self._engine.record(torch.arange(batch.num_rows)[:, None]) as tape:",
        tests=_STEP,
        stages=(PLAIN,),
    ),
    Mutation(
        name="clip_per_batch",
        room="clip",
        what="one factor for a physical batch",
        file=f"{ENGINE}tape.py",
        old="        factors = self._checked(clip(norms))\n",
        new="        company = norms.norm(dim=1, keepdim=True).expand_as(norms)\n"
        "        factors = self._checked(clip(company))\n",
        tests=_CLIP,
        stages=(PLAIN,),
    ),
    Mutation(
        name="loss_batch_mean",
        room="loss",
        what="losses averaged over the physical batch before they are clipped",
        file=f"{ENGINE}step.py",
        old="tape.backward(losses.sum(), clip, self._sums.lent)",
        new="tape.backward(losses.mean(), clip, self._sums.lent)",
        tests=_STEP,
        stages=(PLAIN,),
    ),
    Mutation(
        name="clip_factor_forgotten",
        room="clip",
        what="biases are added without their factor",
        file=f"{ENGINE}tape.py",
        old="            clean.add_weighted_sum(factor, sums[name])",
        new="            if name.endswith('bias'):\n"
        "                factor = (factor > 0).to(factor.dtype)\n"
        "            clean.add_weighted_sum(factor, sums[name])",
        tests=_CLIP,
        stages=(PLAIN,),
    ),
    Mutation(
        name="norm_without_bias",
        room="clip",
        what="biases are left out of the norm",
        file=f"{ENGINE}tape.py",
        old="            terms[:] = merge(terms)\n",
        new="            terms[:] = merge(terms)\n"
        "            if name.endswith('bias'):\n"
        "                continue\n",
        tests=_CLIP,
        stages=(PLAIN,),
    ),
    Mutation(
        name="norm_without_cross_term",
        room="clip",
        what="the cross term of a tied weight is dropped",
        file=f"{ENGINE}terms.py",
        old="        total = total + 2 * inner_product(outer, scatter)",
        new="        total = total + 0 * inner_product(outer, scatter)",
        tests=(f"{UNIT}dpsgd/test_terms.py", *_CLIP),
        unseen="gradients of a model this small are written down, not factored",
    ),
    Mutation(
        name="norm_bfloat16",
        room="clip",
        what="squares are added up in bfloat16",
        file=f"{ENGINE}terms.py",
        old="    flat = values.flatten(1).float()\n    if flat",
        new="    flat = values.flatten(1).bfloat16()\n    if flat",
        tests=(f"{UNIT}dpsgd/test_terms.py", *_CLIP),
        stages=(PLAIN,),
    ),
    Mutation(
        name="clip_of_groups",
        room="clip",
        what="every group of parameters is clipped to C",
        file=f"{ENGINE}clipping.py",
        old="share = np.nextafter(max_grad_norm / math.sqrt(num_groups), 0.0)",
        new="share = np.nextafter(max_grad_norm, 0.0)",
        tests=_CLIP,
        stages=(LAYERS,),
    ),
    Mutation(
        name="clip_rounded_up",
        room="clip",
        what="a factor is rounded away from zero",
        file=f"{ENGINE}clipping.py",
        old="torch.nextafter(largest, torch.zeros_like(largest))",
        new="torch.nextafter(largest, torch.full_like(largest, torch.inf))",
        tests=_CLIP,
        unseen="within C (1 + 1e-6), which is what is promised of a run",
    ),
    Mutation(
        name="clip_nonfinite",
        room="clip",
        what="a unit whose gradient is not finite is not overwritten",
        file=f"{ENGINE}tape.py",
        old="clean = term if self._spoilt is None else term.without(self._spoilt)",
        new="clean = term",
        tests=_CLIP,
        unseen="it shows where a gradient is not finite",
    ),
    Mutation(
        name="clip_of_the_last_step",
        room="clip",
        what="gradients are clipped to the C that the run began with, while it moves",
        file=f"{ENGINE}step.py",
        old="            self._moving.release(gradient_multiplier=gradients, "
        "stddev=counts)\n            self._clip = self._clip_now()",
        new="            self._moving.release(gradient_multiplier=gradients, "
        "stddev=counts)",
        tests=_MOVING,
        stages=(MOVING,),
    ),
    Mutation(
        name="clip_of_parts",
        room="clip",
        what="parts of a unit are clipped to the whole bound",
        file=f"{ENGINE}step.py",
        old="            norms = norms / bounds_of(",
        new="            norms = norms + 0 * bounds_of(",
        tests=(f"{UNIT}dpsgd/test_parts.py",),
        stages=(TIERS,),
    ),
    Mutation(
        name="clip_before_transform",
        room="clip",
        what="norms of gradients before they are transformed",
        file=f"{ENGINE}transform.py",
        old="        norms = Dense(rows).squared_norm().sqrt()",
        new="        norms = tape.norms()[0]",
        tests=(
            f"{UNIT}dpsgd/test_transform.py",
            f"{UNIT}mechanisms/test_transforms.py",
        ),
        stages=(TRANSFORMED,),
    ),
    Mutation(
        name="noise_not_on_empty_steps",
        room="noise",
        what="a step that drew nobody gets no noise",
        file=f"{ENGINE}step.py",
        old="        self._plan.release(self._sums.owned, step=step, noise=self._noise)",
        new="        if len(indices):\n"
        "            self._plan.release(self._sums.owned, step=step, noise=self._noise)",
        tests=_STEP,
        stages=(PLAIN,),
    ),
    *(
        Mutation(
            name=f"noise_again_after_{lag}",
            room="noise",
            what=f"every noise is used again {lag} step{'s' if lag > 1 else ''} later",
            file=f"{ENGINE}noise.py",
            old="        add_gaussian_noise(\n"
            "            sums, noise_stddev=self._noise_stddev(step), "
            "stream=self._stream\n        )",
            new="        old = getattr(self, '_old', {})\n"
            "        self._old = old\n"
            "        for name, value in sums.items():\n"
            f"            key = (name, step % {lag})\n"
            "            fresh = torch.zeros_like(value)\n"
            "            add_gaussian_noise(\n"
            "                {name: fresh},\n"
            "                noise_stddev=self._noise_stddev(step),\n"
            "                stream=self._stream,\n"
            "            )\n"
            "            value.add_(old.pop(key) if key in old else "
            "old.setdefault(key, fresh))",
            tests=(*_NOISE, *_STEP),
            stages=(PLAIN,),
        )
        for lag in (1, 3)
    ),
    Mutation(
        name="noise_of_the_next_norm",
        room="noise",
        what="noise is scaled by the C of the next step",
        file=f"{ENGINE}step.py",
        old="        self._plan.release(self._sums.owned, step=step, noise=self._noise)",
        new="        if self._moving is not None:\n"
        "            kept = self._moving._counts.clone()\n"
        "            now = self._moving.max_grad_norm\n"
        "            z, c = self._plan.noise_shares(step)\n"
        "            self._moving.release(gradient_multiplier=z, stddev=c)\n"
        "        self._plan.release(self._sums.owned, step=step, noise=self._noise)\n"
        "        if self._moving is not None:\n"
        "            self._moving._counts += kept\n"
        "            self._moving.max_grad_norm = now",
        tests=_MOVING,
        stages=(MOVING,),
    ),
    Mutation(
        name="noise_of_parameters_equal",
        room="noise",
        what="all parameters of a step get the same numbers",
        file=f"{ENGINE}noise.py",
        old="            stream.add_to(value, stddev=noise_stddev)\n",
        new="            if value is next(iter(sums.values())):\n"
        "                most = max(v.numel() for v in sums.values())\n"
        "                common = value.new_zeros(most)\n"
        "                stream.add_to(common, stddev=noise_stddev)\n"
        "            value.view(-1).add_(common[: value.numel()])\n",
        tests=_NOISE,
        stages=(PLAIN,),
    ),
    Mutation(
        name="noise_over_root_of_groups",
        room="noise",
        what="the noise of grouped clipping is divided by the root of two groups",
        file=f"{ENGINE}plan.py",
        old="        return self.noise_shares(step)[0] * bound",
        new="        flat = self.grouping is Grouping.FLAT\n"
        "        return self.noise_shares(step)[0] * bound / (1 if flat else 2**0.5)",
        tests=(*_PLAN, *_STEP),
        stages=(LAYERS,),
    ),
    Mutation(
        name="noise_of_one_parameter",
        room="noise",
        what="biases get no noise",
        file=f"{ENGINE}noise.py",
        old="        if noise_stddev > 0:\n",
        new="        if noise_stddev > 0 and not name.endswith('bias'):\n",
        tests=(*_NOISE, *_STEP),
        stages=(PLAIN,),
    ),
    Mutation(
        name="noise_five_percent",
        room="noise",
        what="a standard deviation five percent off",
        file=f"{ENGINE}noise.py",
        old="            stream.add_to(value, stddev=noise_stddev)\n",
        new="            stream.add_to(value, stddev=0.95 * noise_stddev)\n",
        tests=_NOISE,
        stages=(PLAIN,),
    ),
    Mutation(
        name="noise_without_norm",
        room="noise",
        what="noise that is not scaled by C",
        file=f"{ENGINE}plan.py",
        old="        return self.noise_shares(step)[0] * bound",
        new="        return self.noise_shares(step)[0] * min(bound, 0.1)",
        tests=_PLAN,
        stages=(PLAIN,),
    ),
    Mutation(
        name="bands_sign",
        room="noise",
        what="past noise is added, not taken back",
        file=f"{ENGINE}noise.py",
        old="y.add_(past[name], alpha=-band / first)",
        new="y.add_(past[name], alpha=band / first)",
        tests=_NOISE,
        stages=(BANDED,),
    ),
    Mutation(
        name="bands_first",
        room="noise",
        what="banded noise is not divided by its first coefficient",
        file=f"{ENGINE}noise.py",
        old="self._stream.add_to(y, stddev=self._noise_stddev / first)",
        new="self._stream.add_to(y, stddev=self._noise_stddev)",
        tests=_NOISE,
        stages=(BANDED,),
    ),
    Mutation(
        name="counts_without_noise",
        room="noise",
        what="the counts that move C are released as they are",
        file=f"{ENGINE}moving_clip.py",
        old='{"counts": noisy}, noise_stddev=stddev, stream=self._stream',
        new='{"counts": noisy}, noise_stddev=0.0 * stddev, stream=self._stream',
        tests=_MOVING,
        stages=(MOVING,),
    ),
    Mutation(
        name="counts_for_nothing",
        room="noise",
        what="counts take a share of the budget that the gradients keep",
        file=f"{ENGINE}moving_clip.py",
        old="    return noise_multiplier / math.sqrt(1 - share), counts",
        new="    return noise_multiplier, counts",
        tests=_MOVING,
        stages=(MOVING,),
    ),
    Mutation(
        name="counts_unbounded",
        room="noise",
        what="a unit's counts have norm above 1",
        file=f"{ENGINE}moving_clip.py",
        old="        rows = rows / size.clamp(min=1.0)",
        new="        rows = 2 * rows / size.clamp(min=1.0)",
        tests=_MOVING,
        stages=(MOVING,),
    ),
    Mutation(
        name="noise_of_attempts",
        room="noise",
        what="a resumed attempt draws the noise of the first one",
        file=f"{ENGINE}step.py",
        old="                attempt=attempt,\n                rank=",
        new="                attempt=0 * attempt,\n                rank=",
        tests=(f"{UNIT}dpsgd/test_step.py", f"{UNIT}dpsgd/test_trainer.py"),
        unseen="without a seed every attempt has entropy of its own",
    ),
    Mutation(
        name="divisor_drawn",
        room="divisor",
        what="sums are divided by the drawn batch, noise and all",
        file=f"{ENGINE}step.py",
        old="        self._plan.release(self._sums.owned, step=step, noise=self._noise)",
        new="        self._plan.release(self._sums.owned, step=step, noise=self._noise)\n"
        "        for value in self._sums.owned.values():\n"
        "            value.mul_(\n"
        "                self._plan.expected_batch_size / max(1, len(indices))\n"
        "            )",
        tests=_STEP,
        stages=(PLAIN,),
    ),
    Mutation(
        name="rank_takes_all",
        room="ranks",
        what="every rank computes all units that were drawn",
        file=f"{ENGINE}feed.py",
        old="        return indices[order][self.ranks.rank :: self.ranks.size]",
        new="        return indices[order]",
        tests=(f"{UNIT}dpsgd/test_distributed.py",),
        unseen="the audit of a run is one process",
    ),
    Mutation(
        name="event_rate",
        room="accounting",
        what="banded noise is charged at the rate of a step, not of a turn",
        file=f"{ENGINE}plan.py",
        old="            rate_in_turn(self.sample_rate, num_groups=self.num_bands),",
        new="            self.sample_rate,",
        tests=_PLAN,
        stages=(BANDED,),
    ),
    Mutation(
        name="event_count_of_bands",
        room="accounting",
        what="a turn that is not whole is not charged",
        file=f"{ENGINE}plan.py",
        old="        return math.ceil(num_steps / self.num_bands)",
        new="        return max(1, num_steps // self.num_bands)",
        tests=_PLAN,
        stages=(BANDED,),
    ),
    Mutation(
        name="event_count",
        room="accounting",
        what="a block is charged for one step too few",
        file=f"{ENGINE}schedule.py",
        old="    steps = range(first_step, first_step + num_steps)",
        new="    steps = range(first_step, max(first_step + 1, first_step + num_steps - 1))",
        tests=(f"{UNIT}dpsgd/test_schedule.py", *_PLAN),
        stages=(PLAIN,),
    ),
    Mutation(
        name="event_truncated",
        room="accounting",
        what="truncated batches are charged as Poisson batches",
        file=f"{ENGINE}plan.py",
        old="        if self.max_batch_size is not None and self.num_units is not None:\n"
        "            return dp",
        new="        if self.max_batch_size is None and self.num_units is not None:\n"
        "            return dp",
        tests=_PLAN,
        stages=(CAPPED,),
    ),
    Mutation(
        name="event_of_a_tier",
        room="accounting",
        what="a tier alone is charged with the noise of the whole step",
        file=f"{ENGINE}plan.py",
        old="            step_event=lambda multiplier: self._mechanism(multiplier / share),",
        new="            step_event=lambda multiplier: self._mechanism(\n"
        "                max(multiplier, multiplier / share**2)\n            ),",
        tests=(f"{UNIT}dpsgd/test_parts.py", f"{UNIT}workflow/test_tiering.py"),
        stages=(TIERS,),
    ),
    Mutation(
        name="event_of_parts",
        room="accounting",
        what="shares of parts add up in quadrature",
        file=f"{ENGINE}parts.py",
        old="    return tuple(noise_multiplier / math.sqrt(w * sum(shares)) for w in shares)",
        new="    return tuple(noise_multiplier / w for w in shares)",
        tests=(f"{UNIT}dpsgd/test_parts.py",),
        stages=(TIERS,),
    ),
    Mutation(
        name="block_of_the_first_step",
        room="accounting",
        what="every block is described as the first one, while the noise moves",
        file="dptune/workflow/charging.py",
        old="        event = training.dp_event(num_steps, first_step=first_step)",
        new="        event = training.dp_event(num_steps, first_step=0 * first_step)",
        tests=(f"{UNIT}workflow/test_charging.py",),
        stages=(RISING,),
    ),
    Mutation(
        name="block_from_the_start",
        room="accounting",
        what="the trainer charges every block as if it began at step 0",
        file=f"{ENGINE}trainer.py",
        old="ranks.once(partial(charge, state.step, size))",
        new="ranks.once(partial(charge, 0, size))",
        tests=(f"{UNIT}dpsgd/test_trainer.py",),
        stages=(RISING,),
    ),
    Mutation(
        name="block_one_late",
        room="accounting",
        what="a schedule is described from one step late",
        file=f"{ENGINE}schedule.py",
        old="    steps = range(first_step, first_step + num_steps)",
        new="    steps = range(first_step + 1, first_step + 1 + num_steps)",
        tests=(f"{UNIT}dpsgd/test_schedule.py",),
        stages=(RISING,),
    ),
    Mutation(
        name="charge_after_draw",
        room="accounting",
        what="a block is charged after its noise was drawn",
        file=f"{ENGINE}trainer.py",
        old="                if granted is None:\n"
        "                    ranks.once(partial(charge, state.step, size))\n"
        "                for _ in range(size):",
        new="                late = partial(charge, state.step, size)\n"
        "                for i in range(size):\n"
        "                    if granted is None and i == size - 1:\n"
        "                        ranks.once(late)",
        tests=(f"{UNIT}dpsgd/test_trainer.py",),
        unseen=_RESUMED,
    ),
    Mutation(
        name="resumed_block_free",
        room="accounting",
        what="the first block of a resumed run is not charged again",
        file=f"{ENGINE}trainer.py",
        old="            has_more = True\n"
        "            while has_more and state.step < self._num_steps:\n"
        "                size = min(block_size, self._num_steps - state.step)\n"
        "                if granted is None:\n",
        new="            has_more, begun = True, state.step\n"
        "            while has_more and state.step < self._num_steps:\n"
        "                size = min(block_size, self._num_steps - state.step)\n"
        "                if granted is None and not begun or state.step > begun:\n",
        tests=(f"{UNIT}dpsgd/test_trainer.py",),
        unseen=_RESUMED,
    ),
    Mutation(
        name="grants_uncharged",
        room="accounting",
        what="the grants of an adaptive run are never charged",
        file=f"{ENGINE}schedule.py",
        old="            charge()\n            budget.confirm_charge()",
        new="            budget.confirm_charge()",
        tests=(f"{UNIT}dpsgd/test_adaptive_noise.py",),
        stages=(STEERED,),
    ),
    Mutation(
        name="grant_of_the_wish",
        room="accounting",
        what="a controller gets what it wished for, not what was granted",
        file=f"{LEDGER}adaptive.py",
        old="        self._grants.append(granted)\n        return granted",
        new="        self._grants.append(granted)\n        return noise_multiplier",
        tests=(f"{UNIT}accounting/test_adaptive.py",),
        stages=(STEERED,),
    ),
    Mutation(
        name="relation_one_sided",
        room="accounting",
        what="replacing a unit is accounted as removing one",
        file=f"{LEDGER}pairs.py",
        old='    directions: tuple[Direction, ...] = ("replace",)',
        new='    directions: tuple[Direction, ...] = ("remove",)',
        tests=(f"{UNIT}accounting/test_loss_distribution.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="relation_add_only",
        room="accounting",
        what="add or remove is accounted in the cheaper direction alone",
        file=f"{LEDGER}pairs.py",
        old='        directions = ("remove", "add")',
        new='        directions = ("add", "add")',
        tests=(f"{UNIT}accounting/test_loss_distribution.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="delta_twice",
        room="accounting",
        what="epsilon of twice the delta",
        file=f"{LEDGER}accountants.py",
        old="    usable = delta - rounding",
        new="    usable = 2 * delta - rounding",
        tests=(f"{UNIT}accounting/test_accountants.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="rdp_order",
        room="accounting",
        what="a divergence of the next order below",
        file=f"{LEDGER}renyi.py",
        old="log_moment_of_pair(pair, order - 1) for pair in pairs",
        new="log_moment_of_pair(pair, order - 2) for pair in pairs",
        tests=(f"{UNIT}accounting/test_filters.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="filter_delta",
        room="accounting",
        what="the limit of a Renyi filter forgets its delta's order",
        file=f"{LEDGER}renyi.py",
        old="math.log(delta * order) / (order - 1)",
        new="math.log(delta * order) / order",
        tests=(f"{UNIT}accounting/test_filters.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="counts_of_nested_events",
        room="accounting",
        what="a composition of compositions counts its inner one once",
        file=f"{LEDGER}events.py",
        old="        yield from _flatten(event.event, count * event.count)",
        new="        yield from _flatten(event.event, event.count)",
        tests=(f"{UNIT}accounting/test_events.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="ledger_of_the_last_entry",
        room="ledger",
        what="a claim of the last block alone",
        file=f"{LEDGER}ledger.py",
        old="merge_events(entry.event(notion, tier=tier) for entry in self.entries)",
        new="merge_events(\n"
        "            entry.event(notion, tier=tier) for entry in self.entries[-1:]\n"
        "        )",
        tests=(f"{UNIT}accounting/test_ledger.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="journal_uncharged",
        room="ledger",
        what="a block that is paid to the budget store is not written to the journal",
        file="dptune/workflow/training.py",
        old="        journal.charge(entry)",
        new="        if first_step == 0:\n            journal.charge(entry)",
        tests=(f"{UNIT}workflow/test_training.py",),
        stages=(PLAIN,),
    ),
    Mutation(
        name="journal_not_flushed",
        room="ledger",
        what="a charge that is not on the disk when it returns",
        file=f"{LEDGER}chain.py",
        old="            written += os.write(handle, line[written:])\n"
        "        os.fsync(handle)\n",
        new="            written += os.write(handle, line[written:])\n",
        tests=(f"{UNIT}accounting/test_journal.py",),
        unseen=_POWER,
    ),
    Mutation(
        name="journal_head_first",
        room="ledger",
        what="the head is written before the line that it counts",
        file=f"{LEDGER}chain.py",
        old="            _append(self._path, tip.size, line)\n"
        "            after = _Tip(size=tip.size + len(line), count=tip.count + 1, "
        "digest=digest)\n            _write_head(self._path, after)\n",
        new="            after = _Tip(size=tip.size + len(line), count=tip.count + 1, "
        "digest=digest)\n            _write_head(self._path, after)\n"
        "            _append(self._path, tip.size, line)\n",
        tests=(f"{UNIT}accounting/test_journal.py",),
        unseen=_POWER,
    ),
    Mutation(
        name="grants_not_kept",
        room="ledger",
        what="the grants of an adaptive run are not on the disk",
        file=f"{LEDGER}adaptive.py",
        old='            self._chain.append(\n                {"wish"',
        new='            (lambda entry: None)(\n                {"wish"',
        tests=(f"{UNIT}accounting/test_adaptive.py",),
        unseen=_RESUMED,
    ),
    Mutation(
        name="cohort_that_spent_least",
        room="ledger",
        what="the budget looks at the cohort that has spent least",
        file=f"{LEDGER}store/allowances.py",
        old="    return max(spent, key=",
        new="    return min(spent, key=",
        tests=(
            f"{UNIT}accounting/test_store.py",
            f"{UNIT}accounting/test_store_laws.py",
        ),
        unseen="it shows over several runs",
    ),
    Mutation(
        name="extension_unchecked",
        room="ledger",
        what="a run that needs more than it reserved gets it unasked",
        file=f"{LEDGER}store/store.py",
        old="        check(found, alone=wanted.committed.tallies)\n",
        new="",
        tests=(
            f"{UNIT}accounting/test_store.py",
            f"{UNIT}accounting/test_store_laws.py",
        ),
        unseen="it shows over several runs",
    ),
    Mutation(
        name="duplicates_across_units",
        room="data",
        what="a corpus that lost duplicates says nothing of it",
        file="dptune/workflow/charging.py",
        old="    if corpus.deduplicated:\n        found.append",
        new="    if corpus.deduplicated and noisy is None:\n        found.append",
        tests=(f"{UNIT}workflow/test_charging.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="assumption_dropped",
        room="assumptions",
        what="a detector that misses nothing no longer weakens a claim",
        file=f"{LEDGER}assumptions.py",
        old='        "trained on in the clear and has no protection.",\n'
        "        weakens=_SELECTIVE,\n",
        new='        "trained on in the clear and has no protection.",\n',
        tests=(f"{UNIT}accounting/test_ledger.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="redacted_text_hides",
        room="assumptions",
        what="a redacted stage without its assumptions costs nothing",
        file=f"{LEDGER}ledger.py",
        old="        if notion is Notion.SELECTIVE and self.hides_secrets:",
        new="        if notion is Notion.SELECTIVE and self.view is DataView.REDACTED:",
        tests=(f"{UNIT}accounting/test_ledger.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="conditional_as_certified",
        room="certificates",
        what="a conditional claim is printed as certified",
        file=f"{LEDGER}certificates.py",
        old="        return CertificateStatus.CONDITIONAL\n",
        new="        return CertificateStatus.CERTIFIED\n",
        tests=(f"{UNIT}accounting/test_ledger.py",),
        unseen=_CLAIM,
    ),
    Mutation(
        name="seed_certified",
        room="certificates",
        what="noise from a fixed seed does not void a claim",
        file=f"{LEDGER}certificates.py",
        old="    seeded = Assumption.FIXED_SEED_RANDOMNESS in assumptions",
        new="    seeded = Assumption.FIXED_SEED_RANDOMNESS in ()",
        tests=(f"{UNIT}accounting/test_ledger.py",),
        unseen=_CLAIM,
    ),
)
