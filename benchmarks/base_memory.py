"""What do adapters over a real base take, by how the base is held?

    PYTHONPATH=. python benchmarks/base_memory.py MODEL --threads 1

MODEL is a directory in the Hugging Face layout, stored in bfloat16. Every base has a
process of its own, which loads it, adds adapters to all linear layers, takes two
private steps and writes the merged model; what memory rises by, above the bare program,
is read after each. Freed tensors are given back at once, so that it is what the work
needs and not what the allocator keeps. `--rounds` steps of the float32 base, private,
ordinary and as a tutorial would write them, take turns in one process: a ratio compares
neighbours in time. Prints Markdown and writes `benchmarks/results/base_memory*.json`.
"""

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from torch import nn

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.prechecks import modes_of
from dptune.dpsgd.step import gradient_source
from dptune.models.build import add_lora
from dptune.models.digest import weight_files
from dptune.models.frozen import freeze_base
from dptune.models.loading import LoadedModel, load_saved, save_model

RESULTS = Path(__file__).parent / "results"
CASES = {
    "float32": (torch.float32, None, False),
    "stored, computed in float32": (None, None, False),
    "stored": (None, None, True),
    "8 bits": (None, 8, True),
    "4 bits": (None, 4, True),
}
"""Type that is loaded (None: stored), bits, whether bfloat16 computes."""
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
GB = 1e9


def load(model: Path, case: str) -> LoadedModel:
    """Load a base with adapters."""
    dtype, bits, _ = CASES[case]
    loaded = load_saved(model, dtype=dtype)
    adapted = add_lora(loaded.model, rank=16, alpha=16)
    freeze_base(adapted, bits=bits)
    return LoadedModel(model=adapted.train(), tokenizer=loaded.tokenizer)


def feed_of(args: argparse.Namespace, *, autocast: bool, device: str = "cpu") -> Feed:
    """Make records of one length."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(10, 4000, (args.batch, args.tokens), generator=generator)
    data = UnitDataset.from_columns(
        tokens.tolist(),
        [[1.0] * args.tokens] * args.batch,
        list(range(args.batch)),
        max_sequences_per_unit=1,
    )
    return Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=float(args.tokens)),
        physical_batch_size=args.batch,
        pad_token_id=0,
        device=torch.device(device),
        autocast=autocast,
        max_tokens=args.tokens,
    )


def our_step(
    stack: ExitStack,
    model: nn.Module,
    feed: Feed,
    *,
    private: bool,
    recomputes: bool = False,
) -> partial[None]:
    """Make a step of this project."""
    batch = feed.physical_batch_size
    plan = (
        GradientPlan(
            noise_multiplier=1.0,
            sample_rate=1.0,
            max_grad_norm=1.0,
            expected_batch_size=float(batch),
        )
        if private
        else PlainPlan(batch_size=batch)
    )
    optimizer = OptimizerSettings(learning_rate=1e-4).build(
        [p for p in model.parameters() if p.requires_grad]
    )
    indices = torch.arange(batch).numpy()
    stack.enter_context(modes_of(model, feed, recomputes=recomputes))
    source = stack.enter_context(
        gradient_source(model, plan=plan, feed=feed, seed=0, attempt=0)
    )

    def step() -> None:
        source.compute(indices, step=0)
        optimizer.step()

    return partial(step)


def resident(field: str) -> int:
    """Read what is resident now (VmRSS), or was at most (VmHWM), in bytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", status).group(1))


def peak_of(work: "partial[object]", bare: int) -> tuple[object, float]:
    """Return what some work returns, and its peak above the bare program, in GB."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    result = work()
    return result, (resident("VmHWM") - bare) / GB


def measure(case: str, args: argparse.Namespace) -> dict[str, float]:
    """Load, step and save in this process."""
    feed = feed_of(args, autocast=CASES[case][2])
    bare = resident("VmRSS")
    loaded, loading = peak_of(partial(load, args.model, case), bare)
    with ExitStack() as stack:
        options = {"private": True, "recomputes": args.checkpointing}
        step = our_step(stack, loaded.model, feed, **options)
        _, stepping = peak_of(partial(lambda: [step(), step()]), bare)
    held = {p.data_ptr(): p.nbytes for p in loaded.model.parameters()}
    home = Path(tempfile.mkdtemp())
    before = (resident("VmRSS") - bare) / GB
    try:
        write = partial(save_model, loaded.model, loaded.tokenizer, home / "m")
        _, saving = peak_of(partial(write, dtype=torch.bfloat16), bare)
    finally:
        shutil.rmtree(home)
    return {
        "bare": bare / GB,
        "weights": sum(held.values()) / GB,
        "files": sum(f.stat().st_size for f in weight_files(args.model)) / GB,
        "loading": loading,
        "step": stepping,
        "before_saving": before,
        "saving": saving,
    }


def plain_step(_stack: ExitStack, model: nn.Module, feed: Feed) -> Callable[[], None]:
    """Make the step that a tutorial would write."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0)
    tokens = torch.stack([torch.from_numpy(s) for s in feed.data.sequences])
    tokens = tokens.to(feed.device)
    precision = partial(
        torch.autocast, feed.device.type, torch.bfloat16, enabled=feed.autocast
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with precision():
            loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()

    return step


def times(args: argparse.Namespace) -> dict[str, list[float]]:
    """Let three kinds of step take turns over the float32 base.

    Each turn opens its own engine, since ours changes how a model computes, and makes a
    step first that is not timed.
    """
    feed = feed_of(args, autocast=False)
    model = load(args.model, "float32").model
    kinds = {
        "private": partial(our_step, private=True),
        "ordinary": partial(our_step, private=False),
        "plain torch": plain_step,
    }
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(args.rounds):
        for name, kind in kinds.items():
            with ExitStack() as stack:
                step = kind(stack, model, feed)
                step()
                started = time.perf_counter()
                step()
                seconds[name].append(time.perf_counter() - started)
    return seconds


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5, help="0: no times")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure every case in a process of its own, then times in this one."""
    warnings.simplefilter("ignore")
    args = parse()
    torch.set_num_threads(args.threads)
    if args.one:
        print(json.dumps(measure(args.one, args)))
        return
    shape = ["--batch", str(args.batch), "--tokens", str(args.tokens)]
    shape += ["--threads", str(args.threads)]
    shape += ["--checkpointing"] if args.checkpointing else []
    rows = {}
    print("| base | weights GB | loading | a step | over float32 | saving |")
    print("|---|---|---|---|---|---|")
    for case in args.cases:
        done = subprocess.run(
            [sys.executable, __file__, str(args.model), *shape, "--one", case],
            env={**os.environ, **GIVE_BACK},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        row = rows[case] = json.loads(done.stdout.splitlines()[-1])
        whole = row["step"] / rows.get("float32", row)["step"]
        print(
            f"| {case} | {row['weights']:.3f} | {row['loading']:.3f} | "
            f"{row['step']:.3f} | {whole:.2f} | {row['saving']:.3f} |",
            flush=True,
        )
    found = times(args) if args.rounds else {}
    ratios = {
        f"private over {other}": statistics.median(
            mine / its for mine, its in zip(found["private"], found[other], strict=True)
        )
        for other in found
        if other != "private"
    }
    print(json.dumps(ratios))
    machine = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    result = {"machine": machine, "batch": args.batch, "tokens": args.tokens}
    result |= {
        "checkpointing": args.checkpointing,
        "gigabytes": rows,
        "seconds": found,
        "ratios": ratios,
    }
    if set(args.cases) == set(CASES):
        name = f"base_memory{'_checkpointing' * args.checkpointing}.json"
        (RESULTS / name).write_text(
            json.dumps(result, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
