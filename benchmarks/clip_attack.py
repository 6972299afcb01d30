"""How much does a unit add that was made to break the clip? Every norm path and dtype.

    PYTHONPATH=. python benchmarks/clip_attack.py --units 1000

Units that cancel, are huge, subnormal, not finite, repeated or stagnate, and a search
that climbs from the worst of them, go alone through a real step without noise. What it
leaves in `grad` is measured in float64 and divided by C. Prints the worst of each path.

With `--others` it measures how far a unit that adds nothing moves 128 others by
rounding: the distance of clipped sums with and without it, over C.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.step import PrivateGradients, gradient_source
from dptune.mechanisms.clip_rules import Automatic
from dptune.mechanisms.transforms import AdaClip
from tests.support import models
from tests.support.clip_attack import KINDS, PATHS, Arena, make_unit, mutated

RESULTS = Path(__file__).resolve().parent / "results"
NORMS = (1e-6, 1.0, 1e3)


def plan(max_grad_norm: float, **options: object) -> GradientPlan:
    """Return a plan without noise."""
    return GradientPlan(
        noise_multiplier=0.0,
        sample_rate=1.0,
        max_grad_norm=max_grad_norm,
        expected_batch_size=1.0,
        **options,
    )


MODES = {
    "": {},
    "3 rows": {"rows": 3},
    "groups": {"plan": plan(1.0, grouping=Grouping.PER_LAYER)},
    "automatic": {"plan": plan(1.0, scale_rule=Automatic(0.01))},
    "transform": {"plan": plan(1.0, transform=AdaClip(initial_norm=1.0))},
}


def attack(arena: Arena, num_units: int, seed: int) -> dict[str, float]:
    """Return the largest norm that a unit of each kind added, over C."""
    generator = torch.Generator().manual_seed(seed)
    worst = dict.fromkeys((*KINDS, "climbing"), 0.0)
    best, best_unit = 0.0, arena.natural(generator)
    with arena.opened() as added:
        for number in range(num_units):
            climbs = number >= num_units // 2
            kind = "climbing" if climbs else KINDS[number % len(KINDS)]
            natural = arena.natural(generator)
            unit = (
                mutated(best_unit, generator)
                if climbs
                else make_unit(kind, natural, generator)
            )
            share = float(added(unit).norm())
            worst[kind] = max(worst[kind], share)
            if not share <= best:
                best, best_unit = share, unit
    return worst


def influence(*, length: int, size: int, autocast: bool, fixed: bool) -> float:
    """Return how far a unit without targets moves the sum of 128 others, over C."""
    draws = np.random.default_rng(0)
    lengths = [*draws.integers(8, 33, size=128), length]
    weights = [np.ones(n, np.float32) for n in lengths]
    weights[-1][:] = 0
    data = UnitDataset(
        sequences=Ragged.of(
            [draws.integers(2, 512, size=n) for n in lengths], np.int64
        ),
        loss_weights=Ragged.of(weights, np.float32),
        units=Ragged.of(np.arange(129)[:, None], np.int64),
    )
    feed = Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=1.0),
        physical_batch_size=size,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=autocast,
        fixed_shapes=fixed,
        max_tokens=64,
    )
    model = models.tiny_gpt2(vocabulary=512, width=64, num_layers=2, positions=64)
    sums = []
    with gradient_source(model, plan=plan(1.0), feed=feed, seed=0, attempt=0) as source:
        if not fixed and isinstance(source, PrivateGradients):
            source._feed = feed  # the twin: a step in bfloat16 would fix its shapes
        for last in (128, 129):
            source.compute(np.arange(last), step=0)
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            sums.append(torch.cat([grad.flatten() for grad in grads]).double())
    return float((sums[1] - sums[0]).norm())


def print_influences() -> None:
    """Measure others in both types, with and without fixed shapes."""
    print("| dtype | shapes | rows at once | length of the unit | others move by |")
    print("|---" * 5 + "|")
    for autocast, fixed in product((False, True), (False, True)):
        for size, length in product((32, 129), (64,)):
            moved = influence(length=length, size=size, autocast=autocast, fixed=fixed)
            print(
                f"| {'bfloat16' if autocast else 'float32'} | "
                f"{'fixed' if fixed else 'as long as the longest'} | {size} | {length} "
                f"| {moved:.1e} C |",
                flush=True,
            )


def main() -> None:
    """Attack every path in every mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--paths", nargs="+", default=list(PATHS))
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    parser.add_argument("--others", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.others:
        print_influences()
        return
    rows = []
    print(f"| path | mode | {' | '.join((*KINDS, 'climbing'))} | seconds |")
    print("|---" * (len(KINDS) + 4) + "|")
    cases = product(args.paths, args.modes, (False, True), (False, True))
    for seed, (path, mode, autocast, checkpointed) in enumerate(cases):
        if mode == "transform" and checkpointed:
            continue  # refused
        started = time.perf_counter()
        norms = NORMS if mode == "" else (1.0,)
        worst = dict.fromkeys((*KINDS, "climbing"), 0.0)
        for bound in norms:
            options = {"plan": plan(bound)} | MODES[mode]
            arena = Arena(
                path=path, autocast=autocast, checkpointed=checkpointed, **options
            )
            found = attack(arena, args.units // len(norms), seed)
            worst = {kind: max(worst[kind], found[kind]) for kind in worst}
        name = f"{'bfloat16' if autocast else 'float32'} "
        name += f"{'checkpointed ' if checkpointed else ''}{mode}"
        seconds = time.perf_counter() - started
        rows.append({"path": path, "mode": name.strip(), **worst})
        figures = " | ".join(f"{value:.7f}" for value in worst.values())
        print(f"| {path} | {name.strip()} | {figures} | {seconds:.0f} |", flush=True)
    largest = max(value for row in rows for value in list(row.values())[2:])
    print(f"\nlargest of all: {largest:.9f} C")
    if args.units >= 1000 and set(args.paths) == set(PATHS):
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / "clip_attack.json"
        path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
