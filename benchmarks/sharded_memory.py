"""What memory does a rank take to store a sharded model, and to go on from it?

    python benchmarks/sharded_memory.py

Two ranks on the CPU share a GPT-2 of some 50 million weights, take a step of AdamW, so
that there are moments, store a checkpoint, and load it as a process does that starts
again. Each measures the peak of its resident memory above what it held before; pages of
files that it maps are included. Beside these: what the whole is, and a rank's part of
it. A rank that gathered the model would need the whole.
"""

import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing
from transformers import GPT2Config, GPT2LMHeadModel

from dptune.dpsgd.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.parameters import trainable_parameters
from dptune.dpsgd.sharding import held, shard_model
from dptune.workflow.device import peak_memory

NUM_RANKS = 2
ADAM = OptimizerSettings(name="adamw", learning_rate=0.01)
CPU = torch.device("cpu")


def main() -> int:
    """Measure, print one line of JSON for each rank."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            _measure, (Path(folder),), nprocs=NUM_RANKS, start_method="fork"
        )
    return 0


def _measure(rank: int, folder: Path) -> None:
    """Store and load on one rank."""
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=NUM_RANKS
    )
    ranks = Ranks.current()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32_000, n_embd=576, n_layer=8))
    whole = sum(p.nbytes for p in model.parameters())
    shard_model(model, ranks=ranks, device=CPU)
    parameters = trainable_parameters(model)
    optimizer = ADAM.build(parameters.values())
    for parameter in parameters.values():
        parameter.grad = parameter.detach().clone()
    optimizer.step()
    optimizer.zero_grad()
    part = sum(held(p.detach()).nbytes for p in parameters.values())
    state = TrainingState(step=1, attempt=0, digest="")
    with peak_memory("cpu") as stored:
        save_checkpoint(folder / "stored", state, parameters, optimizer, ranks=ranks)
    optimizer = ADAM.build(parameters.values())
    with peak_memory("cpu") as loaded:
        load_checkpoint(
            folder / "stored",
            digest="",
            parameters=parameters,
            optimizer=optimizer,
            ranks=ranks,
        )
    figures = {
        "rank": rank,
        "weights": whole // 4,
        "whole_mib": 3 * whole >> 20,  # with both moments
        "part_mib": 3 * part >> 20,
        "storing_mib": (stored.num_bytes or 0) >> 20,
        "loading_mib": (loaded.num_bytes or 0) >> 20,
    }
    print(json.dumps(figures), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
