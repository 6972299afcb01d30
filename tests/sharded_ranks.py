"""What ranks of sharded models compute, and what they leave to go on from.

Scenarios are those of `tests.ranks`, which runs them; four ranks are two nodes of two.
"""

import math
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from dptune.dpsgd import checkpoint
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.noise import IndependentNoise, noise_stream
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.sharding import ShardedSums
from dptune.dpsgd.step import PrivateGradients
from tests import ranks as base
from tests.ranks import PER_NODE, refused, save
from tests.support import models

FSDP = {"sharding": "fsdp"}
HSDP = {"sharding": "hsdp", "ranks_per_node": PER_NODE}
LAYOUTS = {2: (FSDP, 2), 3: (FSDP, 3), 4: (HSDP, PER_NODE)}
"""Settings and number of shards, by the number of ranks."""
BEFORE = {2: 1, 3: 2, 4: 2}
"""How many ranks began what so many go on with."""
EVERYBODY = replace(base.PLAN, sample_rate=1.0)
ADAM = OptimizerSettings(name="adamw", learning_rate=0.01)
STOP = 4
HSDP_PLANS = {
    "quiet": base.QUIET,
    "plain": base.PLAIN,
}
SUMS = (("tied", "uneven"), ("lora", "one"), ("llama", "uneven"), ("tied", "nobody"))
NODES = {"unknown": None, "one-node": 4, "single": 1, "rest": 3}


def run_to(folder, *, stop=None, rank=0, shards=1, **changes):
    """Train with noise that follows from step and name alone, however it is sharded.

    Stops where a block that begins with `stop` is charged, and then returns nothing.
    """
    shapes = {n: p.shape for n, p in models.tiny_gpt2().named_parameters()}

    def add(self, sums, *, step):
        for number, (name, shape) in enumerate(sorted(shapes.items())):
            generator = torch.Generator().manual_seed(100 * step + number)
            noise = self._noise_stddev(step) * torch.randn(shape, generator=generator)
            rows = math.ceil(len(noise) / shards)
            if name in sums:
                sums[name].add_(noise[rank % shards * rows :][: len(sums[name])])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IndependentNoise, "add", add)
        patch.setattr(checkpoint, "_FILE_BYTES", 2**12)  # hence several files a rank
        train = partial(
            base.trained_unchecked,
            plan=EVERYBODY,
            optimizer=ADAM,
            checkpoint_dir=folder,
            **changes,
        )
        if stop is None:
            return train()
        patch.setattr(DTensor, "full_tensor", None)  # nobody gathers
        return refused(partial(train, charge=base.stop_at(stop)))


def begin(folder, ranks):
    """Leave the checkpoint of step 4 to others."""
    layout, shards = LAYOUTS[ranks.size]
    place = folder / f"begun-by-{ranks.size}"
    run_to(place, stop=STOP, rank=ranks.rank, shards=shards, **layout)


def go_on(folder, ranks):
    """Go on from what another number of ranks has left."""
    layout, shards = LAYOUTS[ranks.size]
    place = folder / f"for-{ranks.size}"
    if ranks.is_first:
        shutil.copytree(folder / f"begun-by-{BEFORE[ranks.size]}", place)
    dist.barrier()
    weights, figures = run_to(place, rank=ranks.rank, shards=shards, **layout)
    save(folder, f"on-{ranks.size}", ranks, tensors=weights, figures=figures)


def failing(folder, ranks):
    """The second rank has no space for its shard of the second checkpoint."""
    place, honest, calls = folder / "failing", checkpoint._write_shard, []

    def write(*arguments, **keywords):
        calls.append(1)
        if len(calls) == 2 and ranks.rank == 1:
            raise OSError(28, "No space left on device")
        return honest(*arguments, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_write_shard", write)
        with pytest.raises(Exception, match="No space left") as caught:
            base.trained_unchecked(checkpoint_dir=place, num_steps=4, **FSDP)
    steps = sorted(path.name for path in place.glob("step-*"))
    save(folder, "failing", ranks, figures=[caught.typename, steps])
    dist.barrier()
    _, figures = base.trained_unchecked(checkpoint_dir=place, num_steps=4, **FSDP)
    save(folder, "mended", ranks, figures=figures)


def damaged(folder, ranks):
    """One bit of the second rank's shard has changed."""
    place = folder / "damaged"
    if ranks.is_first:
        shutil.copytree(folder / f"begun-by-{ranks.size}", place)
        file = min(place.glob("step-*/shard-00002-*"))
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    dist.barrier()
    save(folder, "damaged", ranks, figures=refused(partial(run_to, place, **FSDP)))


def hsdp_sums(folder, ranks):
    """Sums before noise."""
    for kind, drawn in SUMS:
        found, totals = base.sum_before_noise(kind, drawn, ranks=ranks, sharded="hsdp")
        figures = [totals.num_tokens, totals.nll, totals.weight]
        save(folder, f"sum-{kind}-{drawn}", ranks, tensors=found, figures=figures)


def hsdp_noise(folder, ranks):
    """Noise alone."""
    found = base.noise_alone(ranks=ranks, sharded="hsdp")
    save(folder, "noise", ranks, tensors=found)


def twin_noise_in_every_node(folder, ranks):
    """Every node adds noise to its shards before those of all nodes are added up."""

    def compute(self, indices, *, step):
        self._sums.clear()
        parts, stream = self._sums._parts, noise_stream(fixed_seed=1, rank=ranks.rank)
        noise = self._plan.noise(stream, sums=parts)
        self._plan.release(parts, step=step, noise=noise)
        self._sums.combine()
        self._sums.hand_out()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PrivateGradients, "compute", compute)
        found = base.noise_alone(ranks=ranks, sharded="hsdp")
    save(folder, "twin-every-node", ranks, tensors=found)


def twin_nodes_alone(folder, ranks):
    """Nodes keep their sums to themselves."""
    honest = ShardedSums.__init__

    def forget(self, *arguments, **keywords):
        honest(self, *arguments, **keywords)
        self._copies = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardedSums, "__init__", forget)
        found, _ = base.sum_before_noise("tied", "uneven", ranks=ranks, sharded="hsdp")
        save(folder, "twin-nodes-alone", ranks, tensors=found)
        found = base.noise_alone(ranks=ranks, sharded="hsdp")
        save(folder, "twin-nodes-alone-noise", ranks, tensors=found)


def twin_units_by_shard(folder, ranks):
    """Both nodes take the same units."""
    honest = Feed._share

    def share(self, indices):
        place = replace(ranks, rank=ranks.rank % PER_NODE, size=PER_NODE)
        return honest(replace(self, ranks=place), indices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Feed, "_share", share)
        found, _ = base.sum_before_noise("tied", "uneven", ranks=ranks, sharded="hsdp")
    save(folder, "twin-units-by-shard", ranks, tensors=found)


def hsdp_training(folder, ranks):
    """Whole runs."""
    for name, plan in HSDP_PLANS.items():
        weights, figures = base.trained_unchecked(plan=plan, num_steps=4, **HSDP)
        save(folder, f"train-{name}", ranks, tensors=weights, figures=figures)


def hsdp_refusals(folder, ranks):
    """Nodes that do not fit."""
    uneven = 3 if ranks.rank < 3 else 1
    for name, per_node in (*NODES.items(), ("uneven", uneven)):
        charges = []
        train = partial(
            base.trained_unchecked,
            sharding="hsdp",
            ranks_per_node=per_node,
            charge=lambda *block, paid=charges: paid.append(block),
        )
        save(folder, f"refused-{name}", ranks, figures=[refused(train), charges])


SCENARIOS = {
    2: (begin, failing, damaged, go_on),
    3: (go_on,),
    4: (
        begin,
        go_on,
        hsdp_sums,
        hsdp_noise,
        hsdp_training,
        hsdp_refusals,
        twin_noise_in_every_node,
        twin_nodes_alone,
        twin_units_by_shard,
    ),
}
