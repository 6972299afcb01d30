"""What programs share that train recipes on invented text: texts, plans and stages.

Randomness is seeded so that runs repeat: no run here is private.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from dptune.accounting.ledger import PrivacyLedger
from dptune.config import (
    DataSettings,
    DetectionSettings,
    ModelSettings,
    PerformanceSettings,
)
from dptune.configfile import apply_overrides, read_yaml, validate
from dptune.data.records import Corpus
from dptune.detection.labelling import detect_dataset
from dptune.models.loading import LoadedModel
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan, plan_run
from dptune.privacy import NeighboringRelation, Notion
from dptune.recipes import Recipe, View
from dptune.redaction.operators import RedactionSettings
from dptune.workflow.detect import engine_of
from dptune.workflow.ingest import GOLD, read_corpus
from dptune.workflow.inputs import StageInputs
from dptune.workflow.prepare_model import prepare_base
from dptune.workflow.redact import redact_corpus
from dptune.workflow.train_stage import StageOutcome, run_stage

REPOSITORY = Path(__file__).resolve().parents[1]
DELTA = 1e-4
RELATIONS = {
    Notion.SELECTIVE: NeighboringRelation.REPLACE_ONE,
    Notion.RECORD: NeighboringRelation.ADD_OR_REMOVE_ONE,
}


@dataclass(frozen=True, kw_only=True)
class World:
    """One seed's text, in both views, and the model that all recipes start from."""

    base: ModelBundle
    model: ModelSettings
    original: Corpus
    redacted: Corpus

    @property
    def num_units(self) -> int:
        """Privacy units that train."""
        return len(set(self.original.split("train")["unit_id"]))


def dialogue_values(seed: int, num_records: int) -> dict[str, Any]:
    """Read the configuration of invented dialogues, for another corpus."""
    values = read_yaml(REPOSITORY / "configs" / "train" / "dialogues.yaml")
    values["data"]["source"] |= {"seed": seed, "num_records": num_records}
    return values


def marked_corpus(
    values: dict[str, Any], change: Callable[[Dataset], Dataset] = lambda rows: rows
) -> Corpus:
    """Invent a corpus, change its records, and mark what the rules detect."""
    data = validate(DataSettings, values["data"])
    engine = engine_of(validate(DetectionSettings, values["detection"]))
    corpus = read_corpus(data, data_root=REPOSITORY)
    marked = detect_dataset(change(corpus.dataset), engine)
    return corpus.with_dataset(marked.remove_columns(GOLD))


def masked(corpus: Corpus) -> Corpus:
    """Return the redacted view."""
    redacted, _ = redact_corpus(corpus, RedactionSettings(), key=bytes)
    return redacted


def base_of(
    model: ModelSettings, performance: PerformanceSettings, *, folder: Path
) -> ModelBundle:
    """Pre-train the base model on public text, once in a folder."""
    return prepare_base(
        model, performance, data_root=REPOSITORY, folder=folder / "base"
    )


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


def plan_of(
    recipe: Recipe, *, num_units: int, notion: Notion, target: float
) -> RunPlan:
    """Calibrate a recipe to one epsilon, under its notion's relation."""
    return plan_run(
        recipe,
        num_units=num_units,
        notion=notion,
        relation=RELATIONS[notion],
        target_epsilon=target,
        target_delta=DELTA,
    )


def train_stage(
    made: World,
    start: ModelBundle,
    plan: RunPlan,
    stage: str,
    *,
    seed: int,
    home: Path,
    performance: PerformanceSettings,
    retrain: bool = False,
    watch: Callable[[int, LoadedModel], None] | None = None,
) -> StageOutcome:
    """Train one stage on the view that it reads."""
    (settings,) = (p.settings for p in plan.stages if p.settings.name == stage)
    view = made.redacted if settings.view is View.REDACTED else made.original
    return run_stage(
        StageInputs.of(start, view, plan, stage, made.model, seed=seed),
        PrivacyLedger(entries=()),
        folder=home,
        performance=performance,
        retrain=retrain,
        watch=watch,
    )
