"""Train tiny stages and audit what they left: is anything found?

    PYTHONPATH=. python benchmarks/audited_stages.py plain banded ...

The stages are trained by the real step, on some forty invented records, in blocks of a
few steps, and audited as the pipeline does it. Prints the checks that fail, as JSON;
`planted_bugs.py` starts it where a bug was planted.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from dptune.accounting.ledger import PrivacyLedger
from dptune.config import PerformanceSettings
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.records import Corpus
from dptune.data.source import SyntheticSource
from dptune.detection.scoring import public_counts, score_entity_types
from dptune.errors import DptuneError
from dptune.models.loading import load_model, model_digest, save_model
from dptune.models.source import ArchitectureSource, ModelBundle
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.workflow.inputs import StageInputs
from dptune.workflow.train_stage import run_stage
from dptune.workflow.whitebox import audit_stage

PERFORMANCE: Final = PerformanceSettings(
    physical_batch_size=8, block_size=2, device="cpu"
)
STAGES: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "banded": {
        "noise": {"noise_multiplier": 1.0, "correlation": "banded", "num_bands": 3}
    },
    "capped": {"sampling": {"kind": "truncated_poisson", "max_batch_size": 9}},
    "moving": {
        "clipping": {
            "max_grad_norm": 0.5,
            "moving": {"rule": "quantile", "count_share": 0.1},
        }
    },
    "layers": {"clipping": {"kind": "per_layer", "max_grad_norm": 0.5}},
    "rising": {
        "epochs": 3,
        "noise": {
            "noise_multiplier": 1.0,
            "schedule": "rise_reset",
            "rise_reset": {"growth": 2.0, "ceiling": 3.0},
        },
        "token_weights": None,
    },
    "transformed": {
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
    "tiers": {"tiers": {"noise_ratio": 1.5}},
    "steered": {
        "trains": "lora",
        "lora": {"rank": 2, "alpha": 4},
        "epochs": 6.0,
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
        "clipping": {"kind": "per_lora_pair", "max_grad_norm": 0.5},
        "controller": {"interval": 1},
    },
}


def start(target: Path) -> tuple[Corpus, ModelBundle]:
    """Build the records, each with a time and a name, and a model."""
    corpus = build_corpus(
        SyntheticSource(num_records=40, seed=2),
        privacy_unit=PrivacyUnit.RECORD,
        duplicates=Duplicates.KEEP,
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


def inputs_of(corpus: Corpus, model: ModelBundle, kind: str) -> StageInputs:
    """Inputs of a stage of a few steps."""
    stage = {
        "name": "private",
        "view": "original",
        "epochs": 1.25,
        "expected_batch_size": 8,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "clipping": {"max_grad_norm": 0.5},
        "noise": {"noise_multiplier": 1.0},
    } | STAGES[kind]
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
        model=model,
        corpus=corpus,
        plan=plan.stages[0],
        recipe="r",
        max_tokens=24,
        max_sequences_per_unit=2,
        seed=None,
        sensitivity=score_entity_types(public_counts(), counts_are_public=True),
    )


def found_in(inputs: StageInputs, folder: Path) -> list[str]:
    """Train and audit: names of the checks that fail, or the refusal.

    A stage with bands is one block, whose last turn is not whole.
    """
    blocks = {"block_size": 6 if inputs.plan.num_bands > 1 else 2}
    performance = PERFORMANCE.model_copy(update=blocks)
    try:
        done = run_stage(
            inputs, PrivacyLedger(), folder=folder, performance=performance
        )
        audit = audit_stage(
            inputs,
            done.ledger,
            performance=performance,
            home=folder / inputs.key(),
        )
    except (DptuneError, ValueError) as error:
        return [f"refused: {error}"[:200]]
    return [check.name for check in audit.checks if not check.passed]


def main() -> None:
    """Audit the kinds of stage that are named."""
    with tempfile.TemporaryDirectory() as folder:
        corpus, model = start(Path(folder) / "model")
        found = {
            kind: found_in(inputs_of(corpus, model, kind), Path(folder) / kind)
            for kind in sys.argv[1:]
        }
    print("AUDIT " + json.dumps(found))


if __name__ == "__main__":
    main()
