"""What does a private step cost on an accelerator, and is it exact there?

    PYTHONPATH=. python benchmarks/accelerator.py [--device cuda] [--cases ...]

Random weights in the shapes of real models; records of one length. For each case:

* the clipped sum of a batch beside that of a loop over its records, each by itself;
* private steps, ordinary ones, and those a tutorial would write, taking turns: each
  turn opens an engine of its own and takes steps first that are not timed;
* what the accelerator holds at most in a private step, and the number of kernels that
  a private and an ordinary step start.

Prints Markdown and writes `benchmarks/results/accelerator.json`.
"""

import argparse
import gc
import json
import statistics
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from base_memory import feed_of, our_step, plain_step
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from dptune.dpsgd.clipping import FlatClip
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.prechecks import modes_of
from dptune.models.build import add_lora
from dptune.models.frozen import freeze_base

RESULTS = Path(__file__).parent / "results"
GB = 1e9
C = 0.1
TIMED = 3

LLAMA = {"use_cache": False, "attention_dropout": 0.0}
CONFIGS = {
    "gpt2": GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    ),
    "smollm2": LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        tie_word_embeddings=True,
        **LLAMA,
    ),
    "llama-7b": LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        vocab_size=32000,
        **LLAMA,
    ),
    "tiny": LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=5000,
        **LLAMA,
    ),
}


@dataclass(frozen=True)
class Case:
    """A shape and how its base is held.

    Args:
        shape: of `CONFIGS`.
        rank: of adapters on all linear layers; None trains everything.
        stored: type of frozen weights.
        bits: of frozen weights that are quantised.
        autocast: whether bfloat16 computes.
    """

    shape: str
    rank: int | None = 16
    stored: torch.dtype = torch.bfloat16
    bits: int | None = None
    autocast: bool = True


CASES = {
    "gpt2, in full, float32": Case("gpt2", None, torch.float32, autocast=False),
    "gpt2, in full, bfloat16": Case("gpt2", None, torch.float32),
    "SmolLM2, adapters, float32": Case("smollm2", 16, torch.float32, autocast=False),
    "SmolLM2, adapters, bfloat16": Case("smollm2"),
    "Llama 7B, adapters, bfloat16": Case("llama-7b"),
    "Llama 7B, adapters, 4 bits": Case("llama-7b", bits=4),
    "tiny, adapters, bfloat16": Case("tiny"),
    "tiny, adapters, float32": Case("tiny", 16, torch.float32, autocast=False),
}


def build(case: Case, device: str) -> nn.Module:
    """Draw a model on the device."""
    torch.manual_seed(0)
    config = CONFIGS[case.shape]
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=case.stored)
    if case.rank is not None:
        model = add_lora(model, rank=case.rank, alpha=case.rank).to(device)
        freeze_base(model, bits=case.bits)
        for name, value in model.named_parameters():
            if ".lora_B." in name:  # zero, it would hide what A does
                nn.init.normal_(value, std=0.02)
    return model.train()


def settle(device: str) -> None:
    """Wait for the device."""
    if device != "cpu":
        torch.cuda.synchronize()


def clipped_sum(model: nn.Module, feed: Feed) -> tuple[Tensor, dict[str, Tensor]]:
    """Return norms and clipped sums of one batch by the engine."""
    clip = FlatClip(C)
    batch = next(iter(feed.batches(torch.arange(feed.physical_batch_size).numpy())))
    with modes_of(model, feed, recomputes=False), PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(batch.rows_of_unit) as tape:
            losses = feed.losses(model, batch)
            norms = tape.backward(losses.sum(), clip.factors, sums)
    return norms[0], sums


def looped_sum(model: nn.Module, feed: Feed) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the same by autograd, one record after the other."""
    clip = FlatClip(C)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    sums = {name: torch.zeros_like(value) for name, value in trained.items()}
    norms = []
    with modes_of(model, feed, recomputes=False):
        for unit in range(feed.physical_batch_size):
            batch = feed.data.collate([unit], feed.pad_token_id).to(feed.device)
            loss = feed.losses(model, batch).sum()
            found = torch.autograd.grad(loss, list(trained.values()))
            squares = [one.double().square().sum() for one in found]
            norms.append(torch.stack(squares).sum().sqrt().float())
            factor = clip.factors(norms[-1].view(1, 1)).item()
            for total, one in zip(sums.values(), found, strict=True):
                total.add_(one, alpha=factor)
    return torch.stack(norms), sums


def distance(model: nn.Module, feed: Feed) -> dict[str, float]:
    """Compare both: relative, of the norms and of the sum as one vector."""
    norms, sums = clipped_sum(model, feed)
    expected_norms, expected = looped_sum(model, feed)
    apart = sum(float((sums[n] - expected[n]).double().square().sum()) for n in sums)
    whole = sum(float(expected[n].double().square().sum()) for n in sums)
    return {
        "norms": float(((norms - expected_norms) / expected_norms).abs().max()),
        "sum": (apart / whole) ** 0.5,
    }


def kernels_of(step: Callable[[], object], device: str) -> int:
    """Count the kernels that a step starts; on a CPU, torch's operations."""
    kind = ProfilerActivity.CPU if device == "cpu" else ProfilerActivity.CUDA
    with profile(activities=[kind]) as seen:
        step()
        settle(device)
    return sum(row.count for row in seen.key_averages())


def measure(name: str, args: argparse.Namespace) -> dict[str, object]:
    """Measure one case."""
    case, device = CASES[name], args.device
    started = time.perf_counter()
    model = build(case, device)
    settle(device)
    found: dict[str, object] = {"building": time.perf_counter() - started}
    feed = feed_of(args, autocast=case.autocast, device=device)
    found["apart"] = distance(model, feed)
    kinds = {
        "private": partial(our_step, private=True),
        "ordinary": partial(our_step, private=False),
        "plain torch": plain_step,
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    held: dict[str, float] = {}
    kernels: dict[str, int] = {}
    for turn in range(args.rounds):
        for kind, make in kinds.items():
            gc.collect()
            if device != "cpu":
                torch.cuda.reset_peak_memory_stats()
            with ExitStack() as stack:
                step = make(stack, model, feed)
                step()
                step()
                settle(device)
                started = time.perf_counter()
                for _ in range(TIMED):
                    step()
                settle(device)
                seconds[kind].append((time.perf_counter() - started) / TIMED)
                if device != "cpu":
                    held[kind] = torch.cuda.max_memory_allocated() / GB
                if turn == 0:
                    kernels[kind] = kernels_of(step, device)
            for value in model.parameters():
                value.grad = None
    found |= {"seconds": seconds, "gigabytes": held, "kernels": kernels}
    for other in ("ordinary", "plain torch"):
        found[f"over {other}"] = statistics.median(
            mine / its
            for mine, its in zip(seconds["private"], seconds[other], strict=True)
        )
    return found


def main() -> None:
    """Print a line for each case."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    real = [name for name in CASES if not name.startswith("tiny")]
    parser.add_argument("--cases", nargs="+", choices=CASES, default=real)
    parser.add_argument("--output", type=Path, default=RESULTS / "accelerator.json")
    args = parser.parse_args()
    rows: dict[str, object] = {}
    device = args.device
    machine = {
        "torch": torch.__version__,
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
        "batch": args.batch,
        "tokens": args.tokens,
    }
    print(json.dumps(machine))
    print(
        "| case | private, ms | over ordinary | over plain torch | GB | kernels |",
        end="",
    )
    print(" apart: norms | sum |")
    print("|---|---|---|---|---|---|---|---|")
    for name in args.cases:
        try:
            row = rows[name] = measure(name, args)
        except Exception as error:  # noqa: BLE001 - the other cases go on
            print(f"| {name} | {type(error).__name__}: {error} |", flush=True)
            continue
        mine = statistics.median(row["seconds"]["private"]) * 1e3
        print(
            f"| {name} | {mine:.1f} | {row['over ordinary']:.3f} | "
            f"{row['over plain torch']:.3f} | {row['gigabytes'].get('private', 0):.2f}"
            f" | {row['kernels']['private']} beside {row['kernels']['ordinary']} | "
            f"{row['apart']['norms']:.1e} | {row['apart']['sum']:.1e} |",
            flush=True,
        )
        gc.collect()
        if device != "cpu":
            torch.cuda.empty_cache()
        result = {"machine": machine, "cases": rows}
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
