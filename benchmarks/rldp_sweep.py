"""RLDP over interval, batch and updates, beside baselines at equal certified epsilon.

    DPTUNE_DATA_ROOT=../shared/data python benchmarks/rldp_sweep.py --epsilon 3

CustomerSim dialogues on a Llama of 260,000 weights, adapters only. Every line is one
run: validation perplexity, the base model's, certified and nominal epsilon of the plan,
actions after the warm-up, seconds. All runs have the same units, steps, batch and
learning rate; rewards come from WikiText, which is public. Randomness is seeded so that
runs repeat: the claim is the plan's, and no run here is private.

`--mechanisms` adds what the sound form is made of: clips that follow their
medians without a policy (clip_span 1), and those without a deck (noise_range 1).
"""

import argparse
import itertools
import json
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.signals import utility_report
from dptune.config import PerformanceSettings
from dptune.configfile import read_yaml
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.records import Corpus
from dptune.data.source import JsonlSource, TextSource
from dptune.models.encode import encode_corpus
from dptune.models.loading import LoadedModel, load_saved, model_digest
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan, plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.workflow.forward import PublicText
from dptune.workflow.train_stage import StageInputs, run_stage

DATA = Path(os.environ.get("DPTUNE_DATA_ROOT", "../shared/data"))
RECIPES = Path(__file__).parents[1] / "configs" / "recipes"
MODEL = DATA / "stories260k"
DELTA, TOKENS = 1e-5, 64
_RECIPES = (
    *("dp_lora", "autoclip", "automatic", "dc_sgd_p", "dc_sgd_e", "adaclip"),
    *("geoclip", "psac", "rldp_static", "rldp", "rldp_h", "rldp_l"),
)


def corpus(num_units: int) -> Corpus:
    """Some dialogues; `num_units` of them train."""
    source = JsonlSource(
        train="customersim/train.jsonl.gz",
        validation="customersim/valid.jsonl.gz",
        id_column="id",
        ids_are_per_split=True,
    )
    return build_corpus(
        source,
        data_root=DATA,
        privacy_unit=PrivacyUnit.RECORD,
        duplicates=Duplicates.KEEP,
        near_duplicate_threshold=None,
        max_records=num_units,
    )


def planned(
    name: str,
    changes: Mapping[str, Any],
    *,
    num_units: int,
    options: argparse.Namespace,
) -> RunPlan:
    """A recipe of the repository at the size of this benchmark."""
    content = dict(read_yaml(RECIPES / f"{name}.yaml"))
    stage = dict(content["stages"][0])
    stage |= {"epochs": options.epochs, "expected_batch_size": options.batch}
    stage["optimizer"] = dict(stage["optimizer"]) | {"learning_rate": options.rate}
    if "controller" in stage:
        stage["controller"] = dict(stage["controller"]) | dict(changes)
    recipe = Recipe.model_validate(content | {"stages": [stage]})
    return plan_run(
        recipe,
        num_units=num_units,
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=options.epsilon,
        target_delta=DELTA,
    )


def perplexities(
    data: Corpus, model: LoadedModel, base: LoadedModel
) -> tuple[float, float]:
    """Of the trained and of the base model on held-out dialogues."""
    held_out = data.split("validation")
    rows = held_out.select(range(min(200, len(held_out))))
    encoded = encode_corpus(
        rows, model.tokenizer, max_tokens=TOKENS, long_records="truncate"
    )
    report = utility_report(
        encoded["input_ids"],
        model=model.model,
        base_model=base.model,
        model_digest="",
        corpus_fingerprint=data.fingerprint,
        split="validation",
    )
    return report.perplexity, report.base_perplexity


def run(
    name: str,
    changes: Mapping[str, Any],
    data: Corpus,
    *,
    seed: int,
    options: argparse.Namespace,
) -> dict[str, object]:
    """Train once and measure."""
    num_units = data.report.num_units["train"]
    plan = planned(name, changes, num_units=num_units, options=options)
    inputs = StageInputs(
        model=ModelBundle(path=MODEL, digest=model_digest(MODEL)),
        corpus=data,
        plan=plan.stages[0],
        recipe=name,
        max_tokens=TOKENS,
        max_sequences_per_unit=1,
        seed=seed,
        public_text=PublicText(
            source=TextSource(path="wikitext-2/wiki.valid.raw.gz"), data_root=DATA
        ),
    )
    performance = PerformanceSettings(
        physical_batch_size=64, block_size=1000, device="cpu"
    )
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        done = run_stage(
            inputs, PrivacyLedger(), folder=Path(folder), performance=performance
        )
        seconds = time.perf_counter() - started
        after, before = perplexities(
            data, load_saved(done.bundle.path), load_saved(MODEL)
        )
    control = done.report.controller
    return {
        "recipe": name,
        **changes,
        "seed": seed,
        "perplexity": round(after, 4),
        "base_perplexity": round(before, 4),
        "certified_epsilon": round(plan.epsilon, 4),
        "nominal_epsilon": round(plan.nominal_epsilon or math.nan, 4),
        "noise_multiplier": round(plan.stages[0].noise_multiplier or 0.0, 4),
        "steps": plan.stages[0].num_steps,
        "actions": control.num_actions if control else 0,
        "seconds": round(seconds, 2),
    }


def cells(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Recipes as they are, what the sound form is made of, then the grid."""
    yield from ((name, {}) for name in options.recipes)
    if options.mechanisms:
        yield "rldp", {"clip_span": 1.0}
        yield "rldp", {"clip_span": 1.0, "noise_range": 1.0}
    grid = itertools.product(options.intervals, options.batches, options.updates)
    for interval, batch, updates in grid:
        yield (
            "rldp",
            {"interval": interval, "batch_size": batch, "num_updates": updates},
        )


def main() -> None:
    """Run every cell for every seed; one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--units", type=int, default=1500)
    parser.add_argument("--epochs", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=75)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--intervals", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--batches", type=int, nargs="*", default=[4, 16])
    parser.add_argument("--updates", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--mechanisms", action="store_true")
    parser.add_argument("--recipes", nargs="*", default=_RECIPES)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = corpus(options.units)
    for seed, (name, changes) in itertools.product(
        range(options.first_seed, options.first_seed + options.seeds),
        list(cells(options)),
    ):
        line = json.dumps(run(name, changes, data, seed=seed, options=options))
        print(line, flush=True)
        if options.out is not None:
            with options.out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
