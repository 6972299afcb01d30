"""What a rank of a stage does under two agents of torch; tests compare it with one.

    torchrun --nnodes 2 --nproc-per-node 1 ... -m tests.agent_ranks FOLDER

Every rank runs the job in `FOLDER/honest` as it is, and those of twins in the process
group that is there already. `tests.forked_agents` forks agents and ranks. What the
optimizer was given is kept for each step, and on the first rank the sum before noise.
"""

import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from dptune.dpsgd.distributed import Ranks, ReplicatedSums
from dptune.dpsgd.noise import IndependentNoise
from dptune.workflow import rank
from dptune.workflow.shared_job import read_job, train_share
from tests.support.checked import use_passed_checks


def noise_on_every_rank(patch):
    """Let the second rank add noise to its part before sums are added up."""
    combine = ReplicatedSums.combine

    def noisy(self):
        for value in self.lent.values():
            if not self._ranks.is_first:
                value.add_(0.5 * torch.randn_like(value))
        combine(self)

    patch.setattr(ReplicatedSums, "combine", noisy)


def draws_of_their_own(patch):
    """Let every rank draw for itself."""
    patch.setattr(Ranks, "drawn", lambda self, draw: (draw(), draw())[self.rank])


TWINS = {"noise-twice": noise_on_every_rank, "own-draws": draws_of_their_own}


def flat(values):
    """All entries of a sum, by name."""
    return torch.cat([values[name].flatten().clone() for name in sorted(values)])


def watch(patch):
    """Keep sums before noise, on the first rank, and what the optimizer is given."""
    kept = {"sums": [], "given": []}
    add, hand_out = IndependentNoise.add, ReplicatedSums.hand_out

    def seen_add(self, sums, *, step):
        kept["sums"] += [flat(sums)] if sums else []
        add(self, sums, step=step)

    def seen_hand_out(self):
        hand_out(self)
        kept["given"].append(flat(self.lent))

    patch.setattr(IndependentNoise, "add", seen_add)
    patch.setattr(ReplicatedSums, "hand_out", seen_hand_out)
    return kept


def keep(folder, name, kept):
    """Write what a rank saw."""
    found = {key: torch.stack(steps) for key, steps in kept.items() if steps}
    save_file(found, folder / f"{name}.{os.environ['RANK']}.safetensors")


def main(folder):
    """Run the honest job, then the twins."""
    with pytest.MonkeyPatch.context() as patch:
        use_passed_checks(patch, sys.modules[__name__])
        _run(folder)


def _run(folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "destroy_process_group", lambda: None)
        kept = watch(patch)
        rank.main(folder / "honest")
    keep(folder, "honest", kept)
    for name, plant in TWINS.items():
        with pytest.MonkeyPatch.context() as patch:
            plant(patch)
            kept = watch(patch)
            job = read_job(folder / name)
            train_share(job, folder / name, device="cpu", budget_url=None)
        keep(folder, name, kept)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
