"""Are privacy bugs caught, by the tests and by a run's own audit?

    PYTHONPATH=. python benchmarks/planted_bugs.py [--jobs 2] [--only NAME ...]
    PYTHONPATH=. python benchmarks/planted_bugs.py --write     the list in docs

Every mutation of `mutations.py` is planted in a throwaway copy of the tree. There its
tests run until one fails, and, where the bug acts in a run, tiny stages are trained and
audited as the pipeline does it. Text that is no longer there is reported as stale.
Results are kept under `benchmarks/results/` and taken up by the next start; without any
mutation, tests and audit must pass.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))

from mutations import (
    BANDED,
    CAPPED,
    LAYERS,
    MOVING,
    MUTATIONS,
    PLAIN,
    RISING,
    STEERED,
    TIERS,
    TRANSFORMED,
    Mutation,
)

REPOSITORY: Final = Path(__file__).parents[1]
RESULTS: Final = REPOSITORY / "benchmarks" / "results" / "planted_bugs.json"
LIST: Final = REPOSITORY / "docs" / "PLANTED_BUGS.md"
START, END = "<!-- mutations: begin -->", "<!-- mutations: end -->"
SECONDS: Final = 900

STAGES: Final[dict[str, dict[str, Any]]] = {
    PLAIN: {},
    BANDED: {
        "noise": {"noise_multiplier": 1.0, "correlation": "banded", "num_bands": 2}
    },
    CAPPED: {"sampling": {"kind": "truncated_poisson", "max_batch_size": 9}},
    MOVING: {
        "clipping": {
            "max_grad_norm": 0.5,
            "moving": {"rule": "quantile", "count_share": 0.1},
        }
    },
    LAYERS: {"clipping": {"kind": "per_layer", "max_grad_norm": 0.5}},
    RISING: {
        "epochs": 3,
        "noise": {
            "noise_multiplier": 1.0,
            "schedule": "rise_reset",
            "rise_reset": {"growth": 2.0, "ceiling": 3.0},
        },
        "token_weights": None,
    },
    TRANSFORMED: {
        "trains": "lora",
        "lora": {"rank": 2, "alpha": 4},
        "clipping": {
            "max_grad_norm": 0.5,
            "transform": {
                "rule": "adaclip",
                "mean_decay": 0.9,
                "spread_decay": 0.9,
                "floor": 1e-12,
                "ceiling": 10.0,
            },
        },
    },
    TIERS: {"tiers": {"noise_ratio": 1.5}},
    STEERED: {
        "trains": "lora",
        "lora": {"rank": 2, "alpha": 4},
        "epochs": 6.0,
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
        "clipping": {"kind": "per_lora_pair", "max_grad_norm": 0.5},
        "controller": {"interval": 1},
    },
}


def key_of(mutation: Mutation | None) -> str:
    """Name a mutation as it is now, so that a changed one runs again."""
    return hashlib.sha256(repr(mutation).encode()).hexdigest()[:12]


@contextmanager
def copied() -> Iterator[Path]:
    """Copy what git knows, as it lies here, into a folder of its own."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, check=True)
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        for name in names.stdout.decode().split("\0"):
            source = REPOSITORY / name
            if name and source.is_file() and not source.is_symlink():
                target = tree / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        shared = REPOSITORY.parent / "shared"
        if shared.exists():
            (Path(folder) / "shared").symlink_to(shared.resolve())
        yield tree


@contextmanager
def planted(tree: Path, mutation: Mutation | None) -> Iterator[bool]:
    """Plant a bug in a copy, and take it out again; says whether its text is there."""
    if mutation is None:
        yield True
        return
    path = tree / mutation.file
    text = path.read_text(encoding="utf-8")
    found = text.count(mutation.old) == 1
    try:
        if found:
            changed = text.replace(mutation.old, mutation.new)
            path.write_text(changed, encoding="utf-8")
        yield found
    finally:
        path.write_text(text, encoding="utf-8")


def run_in(tree: Path, *arguments: str) -> tuple[int, str]:
    """Run this Python in a copy, on one thread."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end after {SECONDS} seconds"
    return done.returncode, done.stdout + done.stderr


def tested(tree: Path, tests: tuple[str, ...]) -> dict[str, str]:
    """Run tests until one fails: which one it is, or what else happened."""
    flags = ("-q", "-x", "--no-header", "-p", "no:cacheprovider", "--tb=line")
    code, output = run_in(tree, "-m", "pytest", *flags, *tests)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    if code == 1 and failed:
        return {"caught_by": failed[1]}
    return {} if code == 0 else {"broken": output[-400:]}


def audited(tree: Path, stages: tuple[str, ...]) -> dict[str, list[str]]:
    """Train and audit stages in a copy: checks that fail, or the error, by stage."""
    code, output = run_in(tree, "benchmarks/planted_bugs.py", "--audit", *stages)
    line = output.rpartition("AUDIT ")[2].partition("\n")[0]
    if code or not line:
        return {stage: ["error: " + output.strip()[-300:]] for stage in stages}
    found: dict[str, list[str]] = json.loads(line)
    return found


def audit_here(stages: list[str]) -> dict[str, list[str]]:
    """Train tiny stages with the code that is imported, and audit what they left."""
    from dptune.accounting.ledger import PrivacyLedger
    from dptune.config import PerformanceSettings
    from dptune.errors import DptuneError
    from dptune.workflow.training import run_stage
    from dptune.workflow.whitebox import audit_stage

    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        corpus, bundle = _start(Path(folder) / "model")
        performance = PerformanceSettings(
            physical_batch_size=8, block_size=2, device="cpu"
        )
        for stage in stages:
            inputs = _inputs(corpus, bundle, STAGES[stage])
            try:
                done = run_stage(
                    inputs,
                    PrivacyLedger(),
                    folder=Path(folder) / stage,
                    performance=performance,
                )
                audit = audit_stage(inputs, done.ledger, performance=performance)
            except (DptuneError, ValueError) as error:
                found[stage] = [f"refused: {error}"[:200]]
                continue
            found[stage] = [c.name for c in audit.checks if not c.passed]
    return found


def _start(target: Path) -> tuple[Any, Any]:
    """Some forty invented records, and a tiny model."""
    from dptune.data.building import build_corpus
    from dptune.data.source import SyntheticSource
    from dptune.models.bundle import ModelBundle
    from dptune.models.loading import load_model, model_digest
    from dptune.models.saving import save_model
    from dptune.models.source import ArchitectureSource
    from dptune.privacy import PrivacyUnit

    corpus = build_corpus(
        SyntheticSource(num_records=40, seed=2),
        privacy_unit=PrivacyUnit.RECORD,
        drop_exact_duplicates=False,
    )
    spans = [
        [
            {"start": 0, "end": 8, "entity_type": "TIME"},
            {"start": 8, "end": 16, "entity_type": "PERSON"},
        ]
        for _ in corpus.dataset
    ]
    corpus = corpus.with_dataset(corpus.dataset.add_column("spans", spans))
    source = ArchitectureSource.model_validate(
        {
            "kind": "architecture",
            "num_layers": 1,
            "num_heads": 2,
            "hidden_size": 16,
            "max_tokens": 32,
            "vocab_size": 258,
            "tokenizer": {"kind": "trained"},
        }
    )
    loaded = load_model(source)
    save_model(loaded.model, loaded.tokenizer, target)
    return corpus, ModelBundle(path=target, digest=model_digest(target))


def _inputs(corpus: Any, bundle: Any, changes: dict[str, Any]) -> Any:  # noqa: ANN401
    """Inputs of a stage of a few steps."""
    from dptune.detection.scoring import public_counts, score_entity_types
    from dptune.planning import plan_run
    from dptune.privacy import NeighboringRelation, Notion
    from dptune.recipes import Recipe
    from dptune.workflow.inputs import StageInputs

    stage = {
        "name": "private",
        "view": "original",
        "epochs": 1.25,
        "expected_batch_size": 8,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "clipping": {"max_grad_norm": 0.5},
        "noise": {"noise_multiplier": 1.0},
    } | changes
    recipe = Recipe.model_validate({"name": "r", "title": "R", "stages": [stage]})
    plan = plan_run(
        recipe,
        num_units=corpus.report.num_units["train"],
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=None,
        target_delta=1e-3,
    )
    return StageInputs(
        model=bundle,
        corpus=corpus,
        plan=plan.stages[0],
        recipe="r",
        max_tokens=24,
        max_sequences_per_unit=8,
        seed=None,
        sensitivity=score_entity_types(public_counts(), counts_are_public=True),
    )


def outcome(tree: Path, mutation: Mutation | None, part: str) -> dict[str, Any]:
    """What the tests, or the audit, make of one bug, or of none."""
    tests = tuple(dict.fromkeys(t for m in MUTATIONS for t in m.tests))
    with planted(tree, mutation) as found:
        if not found:
            return {"stale": True}
        if part == "tests":
            return tested(tree, mutation.tests if mutation else tests)
        return audited(tree, mutation.stages if mutation else tuple(STAGES))


def summary(results: dict[str, Any]) -> str:
    """Say what was caught, and name what was not."""
    lines, caught, seen, acting = [], 0, 0, 0
    for mutation in MUTATIONS:
        tests = results.get(f"{mutation.name} tests", {}).get("found", {})
        audit = results.get(f"{mutation.name} audit", {}).get("found", {})
        caught += (is_caught := "caught_by" in tests)
        acting += (acts := bool(mutation.stages))
        seen += (is_seen := acts and all(audit.get(s) for s in mutation.stages))
        if not is_caught:
            lines.append(f"{mutation.name}: not caught by tests {tests}")
        if acts and not is_seen:
            lines.append(f"{mutation.name}: not seen by the audit {audit}")
    lines.append(
        f"tests {caught} of {len(MUTATIONS)}, audit {seen} of {acting} that act in runs"
    )
    return "\n".join(lines)


def table(results: dict[str, Any]) -> str:
    """Write the list for the docs."""
    lines = ["| room | planted bug | caught by | the audit |", "|---|---|---|---|"]
    for mutation in MUTATIONS:
        test = results[f"{mutation.name} tests"]["found"].get("caught_by", "nothing")
        audit = results.get(f"{mutation.name} audit", {}).get("found", {})
        checks = {check for found in audit.values() for check in found}
        told = ", ".join(sorted({"an error" if " " in c else f"`{c}`" for c in checks}))
        told = told or ("nothing" if mutation.stages else mutation.unseen)
        test = test.partition("[")[0]
        lines.append(f"| {mutation.room} | {mutation.what} | `{test}` | {told} |")
    return "\n".join(lines)


def plant_all(names: list[str], parts: list[str], jobs: int) -> dict[str, Any]:
    """Plant what is asked for, or all that has no result yet."""
    results: dict[str, Any] = {}
    if RESULTS.exists():
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
    waiting: SimpleQueue[tuple[Mutation | None, str]] = SimpleQueue()
    for part in parts:
        for mutation in (*MUTATIONS, None):
            name = mutation.name if mutation else "none"
            if part == "audit" and mutation and not mutation.stages:
                continue
            done = results.get(f"{name} {part}", {}).get("key") == key_of(mutation)
            if name in names or not (names or done):
                waiting.put((mutation, part))

    def work(_: int) -> None:
        with copied() as tree:
            while not waiting.empty():
                mutation, part = waiting.get()
                name = f"{mutation.name if mutation else 'none'} {part}"
                found = outcome(tree, mutation, part)
                results[name] = {"key": key_of(mutation), "found": found}
                text = json.dumps(results, indent=1, sort_keys=True)
                RESULTS.write_text(text + "\n", encoding="utf-8")
                print(name, json.dumps(found), flush=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, range(jobs)))
    return results


def main() -> int:
    """Plant bugs, or write the list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--parts", nargs="*", default=["tests", "audit"])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--audit", nargs="*")
    options = parser.parse_args()
    if options.audit is not None:
        print("AUDIT " + json.dumps(audit_here(options.audit)))
        return 0
    if options.write:
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        head, _, rest = LIST.read_text(encoding="utf-8").partition(START)
        tail = rest.partition(END)[2]
        text = f"{head}{START}\n{table(results)}\n{END}{tail}"
        LIST.write_text(text, encoding="utf-8")
        return 0
    report = summary(plant_all(options.only, options.parts, options.jobs))
    print(report)
    return 1 if report.count("\n") else 0


if __name__ == "__main__":
    sys.exit(main())
