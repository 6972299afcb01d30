"""What two ranks compute in one process group; tests compare it with one rank.

Processes are forked from one that has imported torch and transformers, which takes most
of the time. Every rank writes what it got to `<scenario>.<rank>.safetensors` or
`.json`. A scenario is a function of `(folder, ranks)`, and twins are planted here.
"""

import faulthandler
import json
import math
import sys
import traceback
from dataclasses import replace
from datetime import timedelta
from functools import partial, partialmethod
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import multiprocessing

from dptune.accounting.adaptive import Card, DeckTerms
from dptune.dpsgd import step as step_module
from dptune.dpsgd import trainer as trainer_module
from dptune.dpsgd.adaptive_clipping import MovingClip
from dptune.dpsgd.distributed import Ranks, ReplicatedSums
from dptune.dpsgd.factorization import band_coefficients
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.noise import noise_stream
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.sampling import SamplingKind
from dptune.dpsgd.sharding import gathered, shard_model
from dptune.dpsgd.step import PrivateGradients, gradient_source
from dptune.dpsgd.trainer import train_stage
from dptune.errors import BudgetExceededError, DptuneError
from dptune.mechanisms.clip_rules import Automatic, DcSgd, Psac, QuantileClip
from dptune.models.build import add_lora
from tests.forks import run_forked
from tests.support import models, oracles
from tests.support.checked import use_passed_checks

CPU = torch.device("cpu")
PER_NODE = 2
DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1, 2), seed=3)
PLAN = GradientPlan(
    noise_multiplier=1.0, sample_rate=0.5, max_grad_norm=0.3, expected_batch_size=3.0
)
QUIET = replace(PLAN, noise_multiplier=0.0)
CYCLIC = replace(
    PLAN,
    sample_rate=0.25,
    sampling=SamplingKind.CYCLIC_POISSON,
    noise_coefficients=band_coefficients(num_bands=2, num_steps=6),
)
CAPPED = replace(
    PLAN,
    sampling=SamplingKind.TRUNCATED_POISSON,
    max_batch_size=3,
    num_units=DATA.num_units,
)
MOVED = replace(PLAN, norm_rule=QuantileClip(), count_share=0.1)
GRANTED = replace(
    PLAN,
    adaptive=DeckTerms(
        cards=tuple(
            (Card(sample_rate=0.5, noise_multiplier=noise), 2)
            for noise in (0.7, 1.1, 1.3)
        )
    ),
)
PLAIN = PlainPlan(batch_size=3)
SGD = OptimizerSettings(name="sgd", learning_rate=0.5, momentum=0.5)
DRAWN = {"uneven": (0, 1, 3, 4, 6), "one": (3,), "nobody": ()}


class Follower:
    """A controller whose wish follows from what was released."""

    def __init__(self):
        self.norm = 0.0

    def wish(self, step):
        return 0.5 + self.norm % 1.0

    def observe(self, released, *, step):
        self.norm = sum(float(v.square().sum()) for v in released.values()) ** 0.5


class NanWhereLong(CausalLoss):
    """A record loss that is NaN for rows of eight tokens or more."""

    def __call__(self, model, batch):
        losses = super().__call__(model, batch)
        long = batch.attention_mask.sum(1) >= 8
        return losses * torch.where(long, torch.nan, 1.0)


class BatchMean(CausalLoss):
    """A loss that depends on how many rows there are."""

    def __call__(self, model, batch):
        return super().__call__(model, batch) / batch.num_rows


def lora():
    """A GPT-2 with adapters."""
    with scoped_randomness(seed_sequence(RandomStream.MODEL, seed=5)):
        model = add_lora(models.tiny_gpt2(), rank=4, alpha=8)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def recomputing():
    """A GPT-2 whose blocks run again in the backward pass."""
    model = models.tiny_gpt2()
    model.activation_checkpointing_enable({"use_reentrant": False})
    return model.train()


MODELS = {
    "tied": models.tiny_gpt2,
    "untied": partial(models.tiny_gpt2, tied=False),
    "llama": models.tiny_llama,
    "lora": lora,
    "recomputing": recomputing,
}
GROUPINGS = {"tied": Grouping.FLAT, "llama": Grouping.PER_LAYER}


def gradients(model, indices, *, plan, ranks, sharded, seed=0, loss=CausalLoss):
    """What the optimizer of this rank would see; whole, by parameter."""
    if sharded:
        layout = "hsdp" if sharded == "hsdp" else "fsdp"
        shard_model(
            model, ranks=ranks, device=CPU, sharding=layout, ranks_per_node=PER_NODE
        )
    feed = Feed(
        data=DATA,
        record_loss=loss(loss_normalizer=8.0),
        physical_batch_size=3,
        pad_token_id=0,
        device=CPU,
        autocast=False,
        ranks=ranks,
        in_step=bool(sharded),
    )
    units = np.asarray(indices, np.int64)
    with gradient_source(model, plan=plan, feed=feed, seed=seed, attempt=0) as source:
        parameters = step_module.trainable_parameters(model)
        totals = source.compute(units, step=0)
        found = {n: gathered(p.grad).clone() for n, p in parameters.items()}
    return found, totals


def sum_before_noise(kind, drawn, *, ranks, sharded, loss=CausalLoss):
    """The clipped sum of one logical batch, and its private figures."""
    plan = replace(QUIET, expected_batch_size=1.0)
    plan = replace(plan, grouping=GROUPINGS.get(kind, Grouping.FLAT))
    return gradients(
        MODELS[kind](),
        DRAWN[drawn],
        plan=plan,
        ranks=ranks,
        sharded=sharded,
        loss=loss,
    )


def noise_alone(*, ranks, sharded):
    """A step that drew nobody."""
    return gradients(wide(), (), plan=PLAN, ranks=ranks, sharded=sharded)[0]


def wide():
    """A model with some 200,000 trained entries."""
    return models.tiny_gpt2(vocabulary=1000, width=64, num_heads=2)


def trained(**changes):
    """Train a tiny model; returns whole weights, charges and private figures."""
    charges, norms = [], []
    settings = {
        "plan": PLAN,
        "num_steps": 6,
        "optimizer": SGD,
        "physical_batch_size": 4,
        "pad_token_id": 0,
        "loss_normalizer": 8.0,
        "checkpoint_dir": None,
        "block_size": 2,
        "charge": lambda first, count: charges.append((first, count)),
        "seed": 7,
    } | changes
    model = settings.pop("model", models.tiny_gpt2)()
    data = settings.pop("data", DATA)
    if isinstance(plan := settings["plan"], GradientPlan) and plan.adaptive:
        settings["controller"] = Follower()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MovingClip, "release", partialmethod(_watched_release, norms))
        outcome = train_stage(model, data, **settings)
    parameters = step_module.trainable_parameters(model)
    weights = {name: gathered(p.detach()).clone() for name, p in parameters.items()}
    figures = {
        "charges": charges,
        "clip_norms": norms,
        "num_tokens": outcome.num_tokens,
        "resumed_from_step": outcome.resumed_from_step,
        "curve": [loss for _, loss in outcome.curve],
    }
    return weights, figures


_honest_release = MovingClip.release


def _watched_release(self, norms, **noise):
    """Move C, and write it down."""
    _honest_release(self, **noise)
    norms.append(self.max_grad_norm)


def stop_at(start):
    """A charge that refuses the block starting at some step."""

    def charge(first, count):
        if first == start:
            raise BudgetExceededError("no budget left")

    return charge


def _sums(folder, ranks):
    for kind in MODELS:
        for drawn in DRAWN:
            for sharded in (False, True):
                found, totals = sum_before_noise(
                    kind, drawn, ranks=ranks, sharded=sharded
                )
                name = f"sum-{kind}-{drawn}-{'fsdp' if sharded else 'ddp'}"
                figures = [totals.num_tokens, totals.nll, totals.weight]
                save(folder, name, ranks, tensors=found, figures=figures)


def _nan_units(folder, ranks):
    for sharded in (False, True):
        found, totals = sum_before_noise(
            "tied", "uneven", ranks=ranks, sharded=sharded, loss=NanWhereLong
        )
        name = f"nan-{'fsdp' if sharded else 'ddp'}"
        save(folder, name, ranks, tensors=found, figures=totals.nll)


def _twin_whole_batch(folder, ranks):
    """Every rank takes all units that were drawn."""
    honest = Feed._share
    Feed._share = lambda self, indices: indices
    try:
        found, _ = sum_before_noise("tied", "uneven", ranks=ranks, sharded=False)
    finally:
        Feed._share = honest
    save(folder, "twin-whole-batch", ranks, tensors=found)


def _twin_mean_over_ranks(folder, ranks):
    """Sums are averaged over ranks, as DistributedDataParallel does."""
    honest = ReplicatedSums.combine

    def combine(self):
        honest(self)
        for value in self.lent.values():
            value.div_(ranks.size)

    ReplicatedSums.combine = combine
    try:
        found, _ = sum_before_noise("tied", "uneven", ranks=ranks, sharded=False)
    finally:
        ReplicatedSums.combine = honest
    save(folder, "twin-mean", ranks, tensors=found)


def _noise(folder, ranks):
    for sharded in (False, True):
        name = f"noise-{'fsdp' if sharded else 'ddp'}"
        found = noise_alone(ranks=ranks, sharded=sharded)
        save(folder, name, ranks, tensors=found)


def _twin_noise_per_rank(folder, ranks):
    """Every rank adds its noise before the sums are added up."""
    honest = PrivateGradients.compute

    def compute(self, indices, *, step):
        self._sums.clear()
        stream = noise_stream(fixed_seed=1, rank=ranks.rank)
        self._plan.release(
            self._sums.lent,
            step=step,
            noise=self._plan.noise(stream, sums=self._sums.lent),
        )
        self._sums.combine()
        self._sums.hand_out()

    PrivateGradients.compute = compute
    try:
        found = noise_alone(ranks=ranks, sharded=False)
    finally:
        PrivateGradients.compute = honest
    save(folder, "twin-per-rank", ranks, tensors=found)


def _twin_noise_on_one_shard(folder, ranks):
    """Only the first rank adds noise, to its own shard."""
    honest = GradientPlan.release

    def release(self, sums, *, step, noise):
        honest(self, sums if ranks.is_first else {}, step=step, noise=noise)

    GradientPlan.release = release
    try:
        found = noise_alone(ranks=ranks, sharded=True)
    finally:
        GradientPlan.release = honest
    save(folder, "twin-one-shard", ranks, tensors=found)


def _same_stream(honest, *, rank, **options):
    """Forget which rank asks."""
    del rank
    return honest(**options)


def _twin_shared_stream(folder, ranks):
    """All ranks start their streams from one seed."""
    honest = step_module.noise_stream
    step_module.noise_stream = partial(_same_stream, honest)
    try:
        found = noise_alone(ranks=ranks, sharded=True)
    finally:
        step_module.noise_stream = honest
    save(folder, "twin-shared-stream", ranks, tensors=found)


def _training(folder, ranks):
    for name, changes in RUNS.items():
        weights, figures = trained(**changes)
        save(folder, f"train-{name}", ranks, tensors=weights, figures=figures)


RUNS = {
    "noisy": {},
    "banded": {"plan": CYCLIC},
    "capped": {"plan": CAPPED},
    "moving": {"plan": MOVED},
    "moving-fsdp": {
        "plan": replace(MOVED, noise_multiplier=0.0),
        "sharding": "fsdp",
    },
    "granted": {"plan": GRANTED},
    "quiet-fsdp": {"plan": QUIET, "sharding": "fsdp"},
    "plain": {"plan": PLAIN},
    "plain-fsdp": {"plan": PLAIN, "sharding": "fsdp"},
}


CROSSED_PLANS = {
    "flat": PLAN,
    "layers": replace(PLAN, grouping=Grouping.PER_LAYER),
    "automatic": replace(PLAN, scale_rule=Automatic()),
    "psac": replace(PLAN, scale_rule=Psac()),
    "quantile": MOVED,
    "layers-quantile": replace(MOVED, grouping=Grouping.PER_LAYER),
    "dc-error": replace(MOVED, norm_rule=DcSgd(initial=0.3, choice="error")),
    "dc-share": replace(MOVED, norm_rule=DcSgd(initial=0.3, choice="percentile")),
    "rising": replace(PLAN, noise_levels=(1.0, 0.5, 2.0), steps_per_level=2),
    "banded": CYCLIC,
    "capped": CAPPED,
    "parts": replace(PLAN, part_shares=(1.0, 0.5)),
    "granted": GRANTED,
    "plain": PLAIN,
}
LONGEST = 9  # of `random_data`: no row's own length, which is private in bfloat16
CROSSED_MODES = {
    "tied": {},
    "untied": {"model": partial(models.tiny_gpt2, tied=False)},
    "llama": {"model": models.tiny_llama},
    "lora": {"model": lora},
    "checkpointing": {"gradient_checkpointing": True},
    "bfloat16": {"dtype": "bfloat16", "max_tokens": LONGEST},
    "shapes": {"fixed_shapes": True},
    "bfloat16-checkpointing-shapes": {
        "dtype": "bfloat16",
        "max_tokens": LONGEST,
        "gradient_checkpointing": True,
        "fixed_shapes": True,
    },
}


def crossed(plan, mode, sharding):
    """Changes for `trained`; None where the two are refused together.

    Shards have noise of their own, so that sharded runs are compared without.
    """
    changes = {"plan": CROSSED_PLANS[plan], **CROSSED_MODES[mode]}
    if plan == "parts":
        kinds = np.arange(DATA.num_units, dtype=np.int64) % 2
        rest = None if sharding == "fsdp" else oracles.random_data(seed=9)
        changes["data"] = replace(DATA, kinds=kinds, unnoised=rest)
    if sharding == "fsdp":
        if plan == "granted":
            return None
        if plan != "plain":
            changes["plan"] = replace(changes["plan"], noise_multiplier=0.0)
        changes["sharding"] = "fsdp"
    return changes


def trained_unchecked(**changes):
    """Train without the check of the model, which takes longer than six steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "check_private", lambda *_, **__: None)
        return trained(**changes)


def every_mode(folder, ranks):
    """Train under every plan in every mode, replicated and sharded."""
    for plan in CROSSED_PLANS:
        for mode in CROSSED_MODES:
            for sharding in ("none", "fsdp"):
                changes = crossed(plan, mode, sharding)
                if changes is not None:
                    weights, figures = trained_unchecked(**changes)
                    name = f"cross-{plan}-{mode}-{sharding}"
                    save(folder, name, ranks, tensors=weights, figures=figures)


def _resuming(folder, ranks):
    """Stop after four steps, here; and go on from what one process left."""
    for sharding in ("none", "fsdp"):
        common = {"plan": QUIET, "sharding": sharding}
        begun = folder / f"begun-by-two-{sharding}"
        error = refused(
            partial(trained, **common, checkpoint_dir=begun, charge=stop_at(4))
        )
        save(folder, f"stopped-{sharding}", ranks, figures=error)
        weights, figures = trained(
            **common, checkpoint_dir=folder / f"begun-by-one-{sharding}"
        )
        name = f"resumed-{sharding}"
        save(folder, name, ranks, tensors=weights, figures=figures)


def _different(folder, ranks):
    """The second rank has other data; then its adapters start elsewhere."""
    data = DATA if ranks.is_first else oracles.random_data(seed=4)
    error = refused(partial(trained, data=data))
    save(folder, "different-data", ranks, figures=error)

    def build():
        model = lora()
        if not ranks.is_first:
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.zero_()
        return model

    weights, _ = trained(model=build)
    save(folder, "different-start", ranks, tensors=weights)
    error = refused(partial(trained, block_size=2 + ranks.rank))
    save(folder, "different-blocks", ranks, figures=error)
    mine = folder / f"checkpoints-of-{ranks.rank}"
    if ranks.is_first:
        (mine / "step-00000002").mkdir(parents=True)
    error = refused(partial(trained, checkpoint_dir=mine))
    save(folder, "different-checkpoints", ranks, figures=error)


def _refusals(folder, ranks):
    """What is refused before a charge, on all ranks."""
    for sharding in ("none", "fsdp"):
        charges = []
        error = refused(
            partial(
                trained,
                sharding=sharding,
                record_loss=BatchMean(loss_normalizer=1.0),
                charge=lambda first, count, paid=charges: paid.append(count),
            )
        )
        save(folder, f"unsound-{sharding}", ranks, figures=[error, charges])


def _figures(folder, ranks):
    """Progress is reported once, with the figures of all ranks."""
    seen = []
    trained(plan=PLAIN, on_step=lambda now: seen.append([now.step, now.tokens]))
    save(folder, "progress", ranks, figures=seen)


VALUES = (0.1 + 0.2, 1e-300, math.inf, math.nan, 7)


def _told(folder, ranks):
    """The first rank decides; then all act, of which the second fails."""
    found = [
        ranks.once(lambda value=value: value if ranks.is_first else 0.0)
        for value in VALUES
    ]
    acted = ranks.each(lambda: {"rank": ranks.rank})

    def fail():
        if not ranks.is_first:
            raise BudgetExceededError("no budget left")

    figures = [[value.hex() for value in found], acted]
    error = refused(partial(ranks.each, fail))
    save(folder, "told", ranks, figures=[*figures, error])


def _secret(folder, ranks):
    """Without a seed, the owners' noise is fresh."""
    for attempt in (0, 1):
        found, _ = gradients(
            models.tiny_gpt2(), (), plan=PLAN, ranks=ranks, sharded=True, seed=None
        )
        save(folder, f"secret-{attempt}", ranks, tensors=found)


def refused(action):
    """Kind and message of the error that `action` raises."""
    try:
        action()
    except DptuneError as error:
        return [type(error).__name__, str(error)]
    return None


SCENARIOS = (
    _sums,
    _nan_units,
    _twin_whole_batch,
    _twin_mean_over_ranks,
    _noise,
    _twin_noise_per_rank,
    _twin_noise_on_one_shard,
    _twin_shared_stream,
    _training,
    _resuming,
    _different,
    _refusals,
    _figures,
    _told,
    _secret,
)


def save(folder: Path, name, ranks, *, tensors=None, figures=None):
    """Write what this rank got."""
    stem = folder / f"{name}.{ranks.rank}"
    if tensors is not None:
        whole = {key: value.contiguous() for key, value in tensors.items()}
        save_file(whole, f"{stem}.safetensors")
    Path(f"{stem}.json").write_text(json.dumps(figures), encoding="utf-8")


def _work(rank: int, size: int, folder: Path, scenarios) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting-of-{size}",
        rank=rank,
        world_size=size,
        timeout=timedelta(minutes=5),
    )
    ranks = Ranks.current()
    with pytest.MonkeyPatch.context() as patch:
        use_passed_checks(patch, sys.modules[__name__])
        for scenario in scenarios:
            try:
                scenario(folder, ranks)
            except Exception as error:
                traceback.print_exc()
                raise RuntimeError(scenario.__name__) from error
    dist.destroy_process_group()


def run_scenarios(folder: Path, scenarios) -> None:
    """Run scenarios, by the number of ranks that they need."""
    names = [
        f"{size} {action.__module__} {action.__name__}"
        for size, actions in scenarios.items()
        for action in actions
    ]
    run_forked("-m", "tests.ranks", folder, *names).check_returncode()


def _fork(folder: Path, names) -> None:
    """Fork ranks when all is imported, which takes longer than what they do."""
    faulthandler.enable()  # one that dies in native code says where
    scenarios = {}
    for size, module, name in map(str.split, names):
        action = getattr(import_module(module), name)
        scenarios.setdefault(int(size), []).append(action)
    for size, actions in scenarios.items():
        multiprocessing.start_processes(
            _work, (size, folder, actions), nprocs=size, start_method="fork"
        )


if __name__ == "__main__":
    _fork(Path(sys.argv[1]), sys.argv[2:])
