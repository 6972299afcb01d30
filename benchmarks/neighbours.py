"""Do neighbours stay within what is claimed of them, from raw files to clipped sums?

    PYTHONPATH=. python benchmarks/neighbours.py
    PYTHONPATH=. python benchmarks/neighbours.py --cases jft --pairs 5
    PYTHONPATH=. python benchmarks/neighbours.py --settings --pairs 5

For every recipe and every relation under which its run is certified, or conditional on
named assumptions that the pairs keep: pairs of raw files that differ in one unit
(joined, gone, replaced, or one record with other secrets), through the functions that
the steps call, in their order (`tests/neighbours.py`), with coins that belong to units
and the first run's releases replayed into the second (`tests/coupled.py`). A line gives
the largest distance of clipped sums of any step and pair, in units of C, as the ledger
was charged for it; `inf` where anything public differs, or weights that follow from
replayed releases. The claim is 1 for a unit that joins or leaves, 2 for one that holds
something else, and (local) for one text.

`--settings` runs other settings in the place of recipes: units, sources, canaries,
duplicates, modes of the engine, bfloat16.

A tiny model, a few steps, some dozen units. Lines that the results have are not
computed again. Exits with 1 if a distance is beyond its claim by more than 1e-6.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import torch

from dptune.errors import DataError
from dptune.privacy import Notion
from tests.neighbor_pairs import Relation, corpus_rows, kind_of, neighbor_pairs
from tests.neighbours import (
    LIMITS,
    RECIPES,
    claimed,
    compare,
    make_world,
    public_differences,
    run_recipe,
)

RESULTS = Path(__file__).resolve().parent / "results" / "neighbours.jsonl"
RELATIONS: tuple[Relation, ...] = ("add", "remove", "replace", "selective")
ROUNDING = 1e-6

Line = dict[str, object]

_STAGE = "stages.dp_sgd.private_finetune"
_CANARIES = {"canaries.num_planted": 3, "canaries.num_held_out": 1}
SETTINGS: dict[str, tuple[str, dict[str, object]]] = {
    "records are units": ("dp_sgd", {"data.privacy_unit": "record"}),
    "documents are units": ("dp_sgd", {"data.privacy_unit": "document"}),
    "duplicates as they come": (
        "dp_sgd",
        {"data.privacy_unit": "record", "data.duplicates": "auto"},
    ),
    "duplicates within units": ("dp_sgd", {"data.duplicates": "drop_within_units"}),
    "a sample of units": ("dp_sgd", {"data.sample_share": 0.8}),
    "canaries": ("dp_sgd", _CANARIES | {"canaries.insertions": 2}),
    "canaries, jft": ("jft", _CANARIES | {"canaries.setting": "missed"}),
    "wide detection": ("jft", {"detection.tier": "high_contextual"}),
    "spans deleted": ("jft", {"redaction.operator": "delete"}),
    "masks of their own": ("jft", {"redaction.merge_adjacent": False}),
    "fixed shapes": ("dp_sgd", {"performance.fixed_shapes": True}),
    "checkpointing": ("dp_sgd", {"performance.gradient_checkpointing": True}),
    "four rows at once": ("dp_sgd", {"performance.physical_batch_size": 4}),
    "layers clipped apart": ("dp_sgd", {f"{_STAGE}.clipping": {"kind": "per_layer"}}),
    "pairs clipped apart": (
        "dp_lora",
        {"stages.dp_lora.private_finetune.clipping": {"kind": "per_lora_pair"}},
    ),
    "bfloat16": ("dp_sgd", {"performance.dtype": "bfloat16"}),
    "bfloat16, jft": ("jft", {"performance.dtype": "bfloat16"}),
    "bfloat16, fixed shapes": (
        "dp_sgd",
        {"performance.dtype": "bfloat16", "performance.fixed_shapes": True},
    ),
}


def measure(name: str, relations: Sequence[Relation], *, pairs: int) -> Iterator[Line]:
    """Run a recipe once, and its neighbours after it; yield a line per relation.

    Args:
        name: of a recipe, or of settings.
        relations: that are wanted.
        pairs: of each.
    """
    recipe, changes = SETTINGS.get(name, (name, {}))
    single = changes.get("data.privacy_unit") == "record"
    with tempfile.TemporaryDirectory(prefix="dptune-neighbours-") as folder:
        world = make_world(Path(folder), recipe, changes)
        world.by_content = changes.get("data.duplicates") == "auto"
        is_local = world.config.privacy.notion is Notion.LOCAL
        first = run_recipe(world, corpus_rows(labelled=is_local, single=single))
        for relation in relations:
            started = time.monotonic()
            line: Line = {"case": name, "relation": relation}
            claim = claimed(first, relation)
            if claim is None:
                yield line | {"status": "none"}
                continue
            worst, at, refused = 0.0, "", []
            differing: set[str] = set()
            for label, _, rows in neighbor_pairs(
                relation,
                count=pairs,
                labelled=is_local,
                single=single,
                tiers=recipe == "sa_adp",
            ):
                try:
                    second = run_recipe(world, rows, after=first, checked=False)
                except DataError:  # nothing is released, but the run that ends is seen
                    refused.append(label)
                    continue
                kind = kind_of(label) if recipe == "sa_adp" else None
                found = compare(first, second, kind=kind)
                differing |= set(public_differences(first, second))
                if found > worst:
                    worst, at = found, label
            yield line | {
                "notion": str(claim.notion),
                "status": str(claim.status),
                "pairs": pairs,
                "limit": LIMITS[relation],
                "worst": worst if math.isfinite(worst) else "inf",
                "at": at,
                "public differences": sorted(differing),
                "refused": refused,
                "seconds": round(time.monotonic() - started, 1),
            }


def holds(line: Line) -> bool:
    """Whether a line is within its claim."""
    if line["status"] == "none":
        return True
    worst, limit = float(str(line["worst"])), float(str(line["limit"]))
    return worst <= limit * (1 + ROUNDING)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the results lack; print a line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cases = (*RECIPES, *SETTINGS)
    parser.add_argument("--cases", nargs="+", choices=cases, default=RECIPES)
    parser.add_argument("--settings", action="store_true", help="all settings instead")
    parser.add_argument("--relations", nargs="+", choices=RELATIONS, default=RELATIONS)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    known: dict[tuple[object, object], Line] = {}
    if options.out.is_file():
        lines = options.out.read_text(encoding="utf-8").splitlines()
        known = {(row["case"], row["relation"]): row for row in map(json.loads, lines)}
    for name in SETTINGS if options.settings else options.cases:
        missing = [r for r in options.relations if (name, r) not in known]
        for line in measure(name, missing, pairs=options.pairs) if missing else ():
            known[line["case"], line["relation"]] = line
            print(json.dumps(line), flush=True)
            with options.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    beyond = [key for key, line in known.items() if not holds(line)]
    print(f"{len(known)} lines, beyond their claim: {beyond or 'none'}")
    return 1 if beyond else 0


if __name__ == "__main__":
    sys.exit(main())
