"""What does a private step cost? Against ordinary steps, Opacus hooks and ghost.

    PYTHONPATH=. python benchmarks/engine.py       # CPU, 6x256, all three shapes
    PYTHONPATH=. python benchmarks/engine.py --device cuda --size gpt2

`ordinary` is this project's own loop without clip and noise, `plain_torch` what a
tutorial would write. Every method trains the same model on the same batch in a process
of its own, as users do: in one process, the tensors of one would decide which memory
the allocator has at hand for the next. The processes take turns, one step each, so that
a busy machine slows all of them; a ratio compares neighbours in time, and the table has
medians over rounds. Memory is taken with freed tensors given back at once, so that it
is what the method needs and not what the allocator keeps. Prints Markdown and writes
`benchmarks/results/engine_<device>_<size>_<threads>_threads.json`.
"""

import argparse
import json
import math
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Self

import torch
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.pytorch_utils import Conv1D

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.step import gradient_source
from infra.allocator import freed_memory_kept

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
SHAPES = ("untied", "tied", "lora")
METHODS = ("ordinary", "dptune", "plain_torch", "opacus_hooks", "opacus_ghost")
SIZES = {
    "small": {"n_layer": 6, "n_embd": 256, "n_head": 4, "vocab_size": 8192},
    "gpt2": {"n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257},
}
TIME = {"small": 128, "gpt2": 512}
C, NOISE, RATE = 1.0, 1.0, 1e-4
WARM_UP = 3

Step = Callable[[], object]


def build_model(shape: str, size: str, *, positions: int) -> nn.Module:
    """Return a GPT-2 with random weights, linear layers, and adapters if asked."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            **SIZES[size],
            n_positions=positions,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            tie_word_embeddings=shape != "untied",
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )
    if shape == "lora":
        model = get_peft_model(
            model,
            LoraConfig(
                r=8,
                lora_alpha=16,
                target_modules=["c_attn", "c_proj", "c_fc"],
                fan_in_fan_out=True,
                task_type="CAUSAL_LM",
            ),
        )
    return model


def for_opacus(model: nn.Module) -> nn.Module:
    """Exchange GPT-2's Conv1D for Linear, which Opacus has samplers for."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Conv1D):
                linear = nn.Linear(child.nx, child.nf)
                linear.weight.data = child.weight.data.t().contiguous()
                linear.bias = child.bias
                linear.weight.requires_grad_(child.weight.requires_grad)
                linear.bias.requires_grad_(child.bias.requires_grad)
                setattr(module, name, linear)
    return model


def our_step(shape: str, size: str, batch: int, device: str, *, private: bool) -> Step:
    """Make a step of the project's own loop, with or without privacy."""
    time_steps = TIME[size]
    model = build_model(shape, size, positions=time_steps).to(device).train()
    tokens = make_tokens(size, batch)
    data = UnitDataset.from_columns(
        tokens.tolist(),
        [[1.0] * time_steps] * batch,
        list(range(batch)),
        max_sequences_per_unit=1,
    )
    feed = Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=float(time_steps)),
        physical_batch_size=batch,
        pad_token_id=0,
        device=torch.device(device),
        autocast=False,
    )
    plan = (
        GradientPlan(
            noise_multiplier=NOISE,
            sample_rate=1.0,
            max_grad_norm=C,
            expected_batch_size=float(batch),
        )
        if private
        else PlainPlan(batch_size=batch)
    )
    stack = ExitStack()  # stays open as long as the step
    stack.enter_context(freed_memory_kept(device))  # as the steps of the pipeline do
    source = stack.enter_context(
        gradient_source(model, plan=plan, feed=feed, seed=0, attempt=0)
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = OptimizerSettings(learning_rate=RATE).build(trained)
    indices = torch.arange(batch).numpy()

    def step() -> ExitStack:
        source.compute(indices, step=0)
        optimizer.step()
        return stack

    return step


def opacus_step(shape: str, size: str, batch: int, device: str, *, ghost: bool) -> Step:
    """Make a step of Opacus on the same model and batch.

    Ghost mode refuses tied weights, so it has no figure for the tied shape.
    """
    model = for_opacus(build_model(shape, size, positions=TIME[size]))
    model = model.to(device).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    inner = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    options = {
        "noise_multiplier": NOISE,
        "max_grad_norm": C,
        "expected_batch_size": batch,
        "loss_reduction": "sum",
    }
    if ghost:
        wrapped = GradSampleModuleFastGradientClipping(
            model, max_grad_norm=C, use_ghost_clipping=True, loss_reduction="sum"
        )
        optimizer = DPOptimizerFastGradientClipping(inner, **options)
    else:
        wrapped = GradSampleModule(model, loss_reduction="sum")
        optimizer = DPOptimizer(inner, **options)
    tokens = make_tokens(size, batch).to(device)
    positions = torch.arange(TIME[size], device=device).expand(batch, -1).contiguous()

    def losses() -> Tensor:
        logits = wrapped(input_ids=tokens, position_ids=positions).logits
        each = cross_entropy(
            logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )
        return each.view(batch, -1).sum(1) / TIME[size]

    def hooks_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        losses().sum().backward()
        optimizer.step()

    def ghost_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        per_unit = losses()
        per_unit.sum().backward(retain_graph=True)
        optimizer.zero_grad(set_to_none=True)
        factors = wrapped.get_clipping_coef()
        wrapped.disable_hooks()
        (factors * per_unit).sum().backward()
        wrapped.enable_hooks()
        for parameter in trained:
            if parameter.grad is not None:
                parameter.summed_grad = parameter.grad
        optimizer.step()

    return ghost_step if ghost else hooks_step


def plain_step(shape: str, size: str, batch: int, device: str) -> Step:
    """Make the step that a tutorial would write: built-in loss, torch's AdamW."""
    model = build_model(shape, size, positions=TIME[size]).to(device).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
    tokens = make_tokens(size, batch).to(device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def make_tokens(size: str, batch: int) -> Tensor:
    """Draw made-up tokens."""
    generator = torch.Generator().manual_seed(1)
    shape = (batch, TIME[size])
    return torch.randint(0, SIZES[size]["vocab_size"], shape, generator=generator)


def make_step(method: str, shape: str, size: str, batch: int, device: str) -> Step:
    """Make the step of one method."""
    if method in {"ordinary", "dptune"}:
        return our_step(shape, size, batch, device, private=method == "dptune")
    if method == "plain_torch":
        return plain_step(shape, size, batch, device)
    return opacus_step(shape, size, batch, device, ghost=method == "opacus_ghost")


def measure_times(shape: str, args: argparse.Namespace) -> dict[str, list[float]]:
    """Return seconds of every round by method."""
    methods = [m for m in METHODS if available(m, shape) and m in args.methods]
    times: dict[str, list[float]] = {m: [] for m in methods}
    with ExitStack() as stack:
        processes = {
            m: stack.enter_context(_Process("--steps", m, shape, args=args))
            for m in methods
        }
        for round_number in range(args.rounds + WARM_UP):
            for method in methods:
                seconds = processes[method].ask()
                if round_number >= WARM_UP:
                    times[method].append(seconds)
    return times


def median_ratio(times: Mapping[str, list[float]], method: str, base: str) -> float:
    """Return the median over rounds of a method's time over that of another."""
    if base not in times:
        return math.nan
    pairs = zip(times[method], times[base], strict=True)
    return statistics.median(mine / other for mine, other in pairs)


class _Process:
    """This program in a process of its own, which answers a line with a number."""

    def __init__(
        self,
        *words: str,
        args: argparse.Namespace,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        command = [sys.executable, __file__, *words, "--device", args.device]
        command += ["--size", args.size, "--batch", str(args.batch)]
        command += ["--threads", str(args.threads)]
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # closes its input, at which it ends

    def ask(self) -> float:
        """Let it go on and return its number."""
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())


def steps_on_demand(method: str, shape: str, args: argparse.Namespace) -> None:
    """Take a step for every line of the input and print its seconds."""
    step = make_step(method, shape, args.size, args.batch, args.device)
    for _ in sys.stdin:
        started = time.perf_counter()
        step()
        synchronize(args.device)
        print(time.perf_counter() - started, flush=True)


def available(method: str, shape: str) -> bool:
    """Whether a method can train a shape at all."""
    return not (method == "opacus_ghost" and shape == "tied")


def synchronize(device: str) -> None:
    """Wait for the accelerator."""
    if device != "cpu":
        torch.cuda.synchronize()


def measure_memory(method: str, shape: str, args: argparse.Namespace) -> float:
    """Return the peak memory of steps, in MiB."""
    # Without this, glibc keeps freed tensors, and the peak shows its habits.
    tuned = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    with _Process("--peak", method, shape, args=args, environment=tuned) as process:
        return process.ask()


def peak(method: str, shape: str, args: argparse.Namespace) -> float:
    """Take three steps and return how far memory rose above the bare program, MiB."""
    make_tokens(args.size, 1)
    before = process_bytes("VmRSS")
    step = make_step(method, shape, args.size, args.batch, args.device)
    for _ in range(3):
        step()
    if args.device != "cpu":
        return torch.cuda.max_memory_allocated() / 2**20
    return (process_bytes("VmHWM") - before) / 2**20


def process_bytes(field: str) -> int:
    """Read a figure of this process: resident now (VmRSS), or at most (VmHWM)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(re.search(rf"{field}:\s+(\d+)", status).group(1))


def markdown(rows: list[dict[str, object]]) -> str:
    """Render the table of the README."""
    columns = ("shape", "method", "seconds", "over plain", "over ordinary")
    columns += ("peak MiB", "over plain", "over ordinary")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [
        "| {shape} | {method} | {seconds:.3f} | {time_over_plain:.2f} | "
        "{time_over_ordinary:.2f} | {mib:.0f} | {memory_over_plain:.2f} | "
        "{memory_over_ordinary:.2f} |".format(**row)
        for row in rows
    ]
    return "\n".join(lines)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0, help="0: torch decides")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--steps", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Measure all shapes and methods, or one method's memory."""
    warnings.simplefilter("ignore")
    args = parse()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.steps:
        steps_on_demand(*args.steps, args)
        return
    if args.peak:
        print(peak(*args.peak, args))
        return
    rows: list[dict[str, object]] = []
    for shape in args.shapes:
        times = measure_times(shape, args)
        memory = {
            m: math.nan if args.no_memory else measure_memory(m, shape, args)
            for m in times
        }
        rows += [
            {
                "shape": shape,
                "method": method,
                "seconds": statistics.median(times[method]),
                "time_over_plain": median_ratio(times, method, "plain_torch"),
                "time_over_ordinary": median_ratio(times, method, "ordinary"),
                "mib": memory[method],
                "memory_over_plain": memory[method]
                / memory.get("plain_torch", math.nan),
                "memory_over_ordinary": memory[method]
                / memory.get("ordinary", math.nan),
            }
            for method in times
        ]
        print(markdown(rows[-len(times) :]), flush=True)
    machine = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "processor": platform.machine(),
        "device": torch.cuda.get_device_name()
        if args.device == "cuda"
        else args.device,
    }
    result = {"machine": machine, "batch": args.batch, "rows": rows}
    if not args.no_memory and set(args.methods) == set(METHODS):
        threads = torch.get_num_threads()
        name = f"engine_{args.device}_{args.size}_{threads}_threads.json"
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / name).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
