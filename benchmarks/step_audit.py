"""What does the audit of steps cost? Processor seconds on the quickstart's records.

    PYTHONPATH=. python benchmarks/step_audit.py [--steps 2]

A private stage of a few steps of 256 units on the quickstart's invented records and its
small model: training, the recorder's part of it, and the audit afterwards.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dptune.accounting.ledger import PrivacyLedger
from dptune.audits.recorder import StepRecorder
from dptune.config import PerformanceSettings
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.source import SyntheticSource
from dptune.models.loading import load_model, model_digest, save_model
from dptune.models.source import ArchitectureSource, ModelBundle
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.workflow.inputs import StageInputs
from dptune.workflow.train_stage import run_stage
from dptune.workflow.whitebox import audit_stage

PERFORMANCE = PerformanceSettings(physical_batch_size=8, device="cpu")
TAPS = (
    *("started", "drawn", "clipped", "summed", "released", "offered", "stepped"),
    "stored",
)


def inputs_of(folder: Path, *, steps: int) -> StageInputs:
    """Inputs of a private stage of so many steps."""
    corpus = build_corpus(
        SyntheticSource(num_records=1240, seed=0),
        privacy_unit=PrivacyUnit.RECORD,
        duplicates=Duplicates.KEEP,
    )
    source = ArchitectureSource.model_validate(
        {
            "kind": "architecture",
            "num_layers": 3,
            "num_heads": 4,
            "hidden_size": 96,
            "max_tokens": 320,
            "vocab_size": 1024,
            "tokenizer": {"kind": "trained"},
        }
    )
    loaded = load_model(source)
    save_model(loaded.model, loaded.tokenizer, folder)
    units = corpus.report.num_units["train"]
    stage = {
        "name": "private",
        "view": "original",
        "epochs": steps * 256 / units,
        "expected_batch_size": 256,
        "optimizer": {"name": "adamw", "learning_rate": 1e-3},
        "clipping": {"max_grad_norm": 0.1},
        "noise": {"noise_multiplier": 1.0},
    }
    recipe = Recipe.model_validate({"name": "r", "title": "R", "stages": [stage]})
    plan = plan_run(
        recipe,
        num_units=units,
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=None,
        target_delta=1e-4,
    )
    return StageInputs(
        model=ModelBundle(path=folder, digest=model_digest(folder)),
        corpus=corpus,
        plan=plan.stages[0],
        recipe="r",
        max_tokens=320,
        max_sequences_per_unit=1,
        seed=None,
    )


def timed(spent: list[float], real: Callable[..., Any]) -> Callable[..., Any]:
    """Add the processor time of a function's calls to `spent`."""

    def call(*arguments: object, **options: object) -> object:
        started = time.process_time()
        result = real(*arguments, **options)
        spent.append(time.process_time() - started)
        return result

    return call


def main() -> None:
    """Print seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=2)
    steps = parser.parse_args().steps
    recorder: list[float] = []
    for tap in TAPS:
        setattr(StepRecorder, tap, timed(recorder, getattr(StepRecorder, tap)))
    with tempfile.TemporaryDirectory() as name:
        inputs = inputs_of(Path(name) / "model", steps=steps)
        folder, whole = Path(name) / "runs", list[float]()
        done = timed(whole, run_stage)(
            inputs, PrivacyLedger(), folder=folder, performance=PERFORMANCE
        )
        looked = sum(recorder)
        audit = timed(whole, audit_stage)(
            inputs,
            done.ledger,
            performance=PERFORMANCE,
            home=folder / inputs.key(),
        )
    print(f"stage of {done.report.num_steps} steps: {whole[0]:.1f} s of processor")
    print(f"the recorder's part of it: {looked:.3f} s")
    print(f"audit afterwards: {whole[1]:.1f} s, failed: {audit.failed}")


if __name__ == "__main__":
    main()
