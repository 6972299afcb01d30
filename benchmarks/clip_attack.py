"""How much does a unit add that was made to break the clip? Every norm path and dtype.

    PYTHONPATH=. python benchmarks/clip_attack.py --units 1000

Units that cancel, are huge, subnormal, not finite, repeated or stagnate, and a search
that climbs from the worst of them, go alone through a real step without noise. What it
leaves in `grad` is measured in float64 and divided by C. Prints the worst of each path.
"""

import argparse
import json
import time
from itertools import product
from pathlib import Path

import torch

from dptune.dpsgd.grouping import Grouping
from dptune.dpsgd.plan import GradientPlan
from dptune.mechanisms.adaclip import AdaClip
from dptune.mechanisms.automatic import Automatic
from dptune.testing.clip_attack import KINDS, PATHS, Arena, make_unit, mutated

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


def main() -> None:
    """Attack every path in every mode."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--paths", nargs="+", default=list(PATHS))
    parser.add_argument("--modes", nargs="+", default=list(MODES))
    args = parser.parse_args()
    torch.set_num_threads(1)
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
            options = MODES[mode] or {"plan": plan(bound)}
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
