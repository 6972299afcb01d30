"""Does every recipe run from text to a verdict? One `run.py train` for each file.

    DPTUNE_DATA_ROOT=../shared/data python benchmarks/every_recipe.py
    DPTUNE_DATA_ROOT=../shared/data python benchmarks/every_recipe.py --recipes jft

A slice of CustomerSim for language models, of SST-2 for recipes of the local notion,
and few, small steps: nothing is learnt, and no figure here says how good a recipe is. A
project folder is made for the purpose, and all commands run in this process, one
after another. Every line is one recipe: exit code (0 passed, 1 refused by its
gate; 2 and 3 are faults), the gate's outcome, the claim that its budget speaks of, and
seconds. Recipes that the results have without a fault are not run
again, unless the command names them. Exits with 1 if any recipe failed.
"""

import argparse
import contextlib
import io
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from cli.main import main as command_line
from cli.runs import CONFIGS, FinishedRun, read_config
from dptune.configfile import read_yaml
from dptune.gates.decision import GateDecision
from dptune.reports.card.statements import PrivacyCard

RESULTS = Path(__file__).resolve().parent / "results" / "every_recipe.jsonl"
TARGET = 8.0
PRIVACY = {
    "record": ("add_or_remove_one", "default"),
    "selective": ("replace_one", "selective"),
    "local": ("replace_one", "classifier_local"),
}
SLICE = (
    "model.max_sequences_per_unit=1",
    "attack.num_members=50",
    "attack.num_bootstrap=100",
    "attack.extraction=null",
    f"privacy.target_epsilon={TARGET}",
    "privacy.target_delta=1.0e-4",
)
LANGUAGE = (
    *("model.max_tokens=64", "canaries.length=2"),
    *("canaries.num_planted=4", "canaries.num_held_out=4"),
    "data.sample_share=0.022",  # of 12,000 records
)
CLASSES = ("model.max_tokens=16", "data.sample_share=0.004")  # of 67,349


def settings(name: str) -> tuple[Path, list[str]]:
    """Return the configuration of a recipe and what is changed in it."""
    recipe = read_yaml(CONFIGS / "recipes" / f"{name}.yaml")
    notion = recipe.get("notion", "selective")
    relation, gate = PRIVACY[notion]
    base, sizes = ("sst2", CLASSES) if notion == "local" else ("customersim", LANGUAGE)
    changes = [
        *(*SLICE, *sizes, f"recipe={name}", f"gate={gate}"),
        *(f"privacy.notion={notion}", f"privacy.relation={relation}"),
        f"registry.model_name=every-{name.replace('_', '-')}",
        f"budget.data_set=every-{base}",
    ]
    for stage in recipe["stages"]:
        path = f"stages.{name}.{stage['name']}"
        changes += [f"{path}.{key}={value}" for key, value in _few_steps(stage).items()]
    return CONFIGS / "train" / f"{base}.yaml", changes


def _few_steps(stage: dict[str, Any]) -> dict[str, str]:
    """Shorten a stage; a controller needs steps enough for its actions."""
    actions = stage.get("controller", {}).get("min_actions", 0)
    epochs = str(max(1, 3 * actions // 10))
    changes = {"epochs": epochs}
    if "screened" in stage:  # trains on ten records
        return changes
    changes["expected_batch_size"] = "32"
    if "relative_batch" in stage:
        changes["relative_batch"] = "null"
    return changes


def train(name: str) -> tuple[int, str, FinishedRun | None]:
    """Run the command; return its exit code, what it printed, and the run."""
    from zenml.client import Client  # noqa: PLC0415 - after the project is isolated

    path, changes = settings(name)
    parts = [part for change in changes for part in ("--set", change)]
    sys.argv = ["run.py", "train", str(path), *parts]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = command_line()
    if code > 1:
        return code, printed.getvalue(), None
    (newest,) = Client().list_pipeline_runs(sort_by="desc:created", size=1).items
    run = Client().get_pipeline_run(newest.id)
    return (
        code,
        printed.getvalue(),
        FinishedRun(config=read_config(path, changes), response=run),
    )


def measure(name: str) -> dict[str, object]:
    """Run one recipe and say what came of it."""
    started = time.monotonic()
    code, text, run = train(name)
    line: dict[str, object] = {"recipe": name, "exit": code}
    if run is not None:
        decision: GateDecision = run.output("gate", "decision")
        card: PrivacyCard = run.output("gate", "privacy_card")
        privacy = run.config.privacy
        wanted = (privacy.notion, privacy.relation)
        claim = next(c for c in card.certificates if (c.notion, c.relation) == wanted)
        line |= {
            "verdict": decision.outcome.value,
            "data": run.config.name,
            "notion": str(privacy.notion),
            "relation": str(privacy.relation),
            "epsilon": _number(claim.epsilon),
            "status": str(claim.status),
            "nominal": claim.nominal_epsilon and _number(claim.nominal_epsilon),
        }
    else:
        line["fault"] = " ".join(text.split())[-600:]
    return line | {"seconds": round(time.monotonic() - started, 1)}


def _number(epsilon: float) -> float | str:
    """Round for a line of JSON, which has no infinity."""
    return round(epsilon, 3) if math.isfinite(epsilon) else "inf"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every recipe that has no line yet; print one line each."""
    names = sorted(path.stem for path in (CONFIGS / "recipes").glob("*.yaml"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipes", nargs="+", choices=names)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    known: dict[str, dict[str, object]] = {}
    if options.out.is_file():
        lines = options.out.read_text(encoding="utf-8").splitlines()
        rows = map(json.loads, lines)
        known = {row["recipe"]: row for row in rows if row["exit"] in {0, 1}}
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
    with (
        tempfile.TemporaryDirectory(prefix="dptune-recipes-") as home,
        Progress(*columns, TimeRemainingColumn()) as progress,
    ):
        os.environ["DPTUNE_HOME"] = home
        wanted = options.recipes or [n for n in names if n not in known]
        for name in progress.track(wanted, description="recipes"):
            known[name] = measure(name)
            progress.console.print(_text(known[name]), highlight=False)
            texts = [json.dumps(known[n]) + "\n" for n in names if n in known]
            options.out.write_text("".join(texts), encoding="utf-8")
    failed = [n for n, line in known.items() if line["exit"] not in {0, 1}]
    print(f"{len(known) - len(failed)} of {len(names)} ran; failed: {failed or 'none'}")
    return 1 if failed else 0


def _text(line: dict[str, object]) -> str:
    """Write a line for people."""
    what = line.get("fault") or (
        f"{line['verdict']:<13} {line['notion']} {line['relation']}, "
        f"ε {line['epsilon']} {line['status']}, nominal {line['nominal']}"
    )
    return f"{line['recipe']:<24} exit {line['exit']}  {what}  {line['seconds']} s"


if __name__ == "__main__":
    sys.exit(main())
