"""Does `best` earn its name? Perplexity by recipe at one certified epsilon and notion.

    python benchmarks/best_recipe.py
    python benchmarks/best_recipe.py --seeds 90 --recipes best --set
        private_finetune.optimizer.learning_rate=2.0e-3

Every seed is a fresh invented corpus, redacted by rules; all of them start from one
small GPT-2 that was trained on the public half of another seed. Settings of `best` were
fixed on seed 90, with the second form; the comparison is on other seeds. All recipes
run with the settings of their files. Prints Markdown and writes
`benchmarks/results/best_recipe.json`; what it holds already is not measured again.
"""

import argparse
import itertools
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from dptune.accounting.ledger import PrivacyLedger
from dptune.config import (
    DataSettings,
    DetectionSettings,
    ModelSettings,
    PerformanceSettings,
    RedactionSettings,
)
from dptune.configfile import apply_overrides, read_yaml, validate
from dptune.data.corpus import Corpus
from dptune.detection.engine import detect_dataset
from dptune.models.bundle import ModelBundle
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion
from dptune.recipes import Recipe, View
from dptune.workflow.detectors import engine_of
from dptune.workflow.evaluation import measure_utility
from dptune.workflow.ingestion import GOLD, read_corpus
from dptune.workflow.inputs import StageInputs
from dptune.workflow.preparation import prepare_base
from dptune.workflow.redacting import redact_corpus
from dptune.workflow.training import run_stage

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "best_recipe.json"
CONFIG = REPOSITORY / "configs" / "train" / "quickstart.yaml"
DELTA = 1e-4
SHAPE = {"num_layers": 1, "num_heads": 2, "hidden_size": 32, "vocab_size": 512}
SPEED = PerformanceSettings(physical_batch_size=32, block_size=1000)
RELATIONS = {
    Notion.SELECTIVE: NeighboringRelation.REPLACE_ONE,
    Notion.RECORD: NeighboringRelation.ADD_OR_REMOVE_ONE,
}
RECIPES = {
    Notion.SELECTIVE: ("best", "jft", "crt", "dp_adam", "dp_lora", "dp_sgd"),
    Notion.RECORD: ("best_record", "dp_default", "crt", "dp_adam", "dp_lora", "dp_sgd"),
}
"""A guarantee for records is one for sensitive tokens too, at its replace epsilon."""


@dataclass(frozen=True, kw_only=True)
class World:
    """One seed's text, in both views, and the model that all recipes start from."""

    base: ModelBundle
    original: Corpus
    redacted: Corpus
    model: ModelSettings


@cache
def world(seed: int, num_records: int, folder: Path) -> World:
    """Invent, mark and redact one corpus; train the base model once."""
    values = read_yaml(CONFIG)
    values["data"]["source"] |= {"seed": seed, "num_records": num_records}
    values["data"]["splits"] = {"validation": 0.0, "test": 0.3}
    values["model"]["source"] |= SHAPE
    values["model"]["pretraining"]["source"]["num_records"] = 1200
    model = validate(ModelSettings, values["model"])
    data = validate(DataSettings, values["data"])
    detection = validate(DetectionSettings, values["detection"])
    corpus = read_corpus(data, data_root=REPOSITORY)
    marked = detect_dataset(corpus.dataset, engine_of(detection))
    corpus = corpus.with_dataset(marked.remove_columns(GOLD))
    redacted, _ = redact_corpus(corpus, RedactionSettings(), key=bytes)
    base = prepare_base(model, SPEED, data_root=REPOSITORY, folder=folder / "base")
    return World(base=base, original=corpus, redacted=redacted, model=model)


def measure(
    recipe: Recipe, made: World, *, notion: Notion, target: float, seed: int, home: Path
) -> dict[str, object]:
    """Train one recipe at one target; return its perplexity on held-out originals."""
    started = time.monotonic()
    plan = plan_run(
        recipe,
        num_units=made.original.report.num_units["train"],
        notion=notion,
        relation=RELATIONS[notion],
        target_epsilon=target,
        target_delta=DELTA,
    )
    model = made.base
    for stage in plan.stages:
        is_redacted = stage.settings.view is View.REDACTED
        inputs = StageInputs.of(
            model,
            made.redacted if is_redacted else made.original,
            plan,
            stage.settings.name,
            made.model,
            seed=seed,
        )
        done = run_stage(
            inputs, PrivacyLedger(entries=()), folder=home, performance=SPEED
        )
        model = done.bundle
    utility = measure_utility(
        model,
        made.base,
        made.original,
        max_tokens=made.model.max_tokens,
        performance=SPEED,
    )
    noisy = plan.stages[-1]
    return {
        "recipe": recipe.name,
        "notion": str(notion),
        "target": target,
        "epsilon": round(plan.epsilon, 3),
        "seed": seed,
        "perplexity": round(utility.perplexity, 3),
        "noise_multiplier": round(noisy.noise_multiplier or 0.0, 3),
        "bands": noisy.num_bands,
        "steps": noisy.num_steps,
        "seconds": round(time.monotonic() - started),
    }


def recipe_of(name: str, changes: Sequence[str]) -> Recipe:
    """Read a recipe, with `<stage>.<key>=<value>` changes of stages that it has."""
    values = read_yaml(REPOSITORY / "configs" / "recipes" / f"{name}.yaml")
    stages = [
        apply_overrides(
            stage,
            [c.partition(".")[2] for c in changes if c.startswith(stage["name"] + ".")],
        )
        for stage in values["stages"]
    ]
    return validate(Recipe, values | {"stages": stages})


def cell(row: dict[str, object]) -> tuple[object, ...]:
    """Name what a row measured."""
    return row["recipe"], row["notion"], row["target"], row["seed"]


def summary(rows: Sequence[dict[str, object]]) -> str:
    """Write a table: mean and range over seeds, lowest first."""
    lines = [
        "| notion | epsilon | recipe | perplexity | seeds | bands |",
        "|---" * 6 + "|",
    ]
    cells: dict[tuple[object, object, object], list[dict[str, object]]] = {}
    for row in rows:
        cells.setdefault((row["notion"], row["target"], row["recipe"]), []).append(row)
    means = {
        key: statistics.mean(float(str(r["perplexity"])) for r in found)
        for key, found in cells.items()
    }
    for key in sorted(cells, key=lambda k: (str(k[0]), k[1], means[k])):
        found = [float(str(r["perplexity"])) for r in cells[key]]
        spread = f"{means[key]:.2f} ({min(found):.2f} to {max(found):.2f})"
        bands = cells[key][0]["bands"]
        lines.append(
            f"| {key[0]} | {key[1]} | {key[2]} | {spread} | {len(found)} | {bands} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure all recipes and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0, 8.0])
    parser.add_argument("--recipes", nargs="+")
    parser.add_argument("--notions", type=Notion, nargs="+", default=list(RECIPES))
    parser.add_argument("--num-records", type=int, default=430)
    parser.add_argument("--set", dest="changes", nargs="+", default=[])
    parser.add_argument("--folder", type=Path, help="keeps finished models")
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    rows = json.loads(chosen.results.read_text()) if chosen.results.is_file() else []
    found = {cell(row) for row in rows}
    with tempfile.TemporaryDirectory(prefix="dptune-best-") as temporary:
        folder = chosen.folder or Path(temporary)
        wanted = itertools.product(chosen.seeds, chosen.epsilons, chosen.notions)
        for seed, target, notion in wanted:
            for name in chosen.recipes or RECIPES[notion]:
                if (name, notion, target, seed) in found:
                    continue
                row = measure(
                    recipe_of(name, chosen.changes),
                    world(seed, chosen.num_records, folder),
                    notion=notion,
                    target=target,
                    seed=seed,
                    home=folder / f"stages-{seed}",
                )
                rows.append(row)
                print(json.dumps(row), flush=True)
                chosen.results.parent.mkdir(exist_ok=True)
                chosen.results.write_text(json.dumps(rows, indent=1) + "\n")
    print("\n" + summary(rows))


if __name__ == "__main__":
    main()
