"""Data sets that differ in one unit, through the functions that the steps call.

Raw files in, certificates and clipped sums out: `run_recipe` reads, plants, marks,
redacts, plans, scores and trains in the order of `pipelines/train.py`; `compare` says
how far two such runs are apart in what is claimed of them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from transformers import BertConfig, BertModel

from dptune.accounting.certificates import Certificate
from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import draw_canaries
from dptune.attacks.planting import plant, plant_assumes
from dptune.config import TrainConfig
from dptune.configfile import read_yaml, train_config_of
from dptune.data.records import Corpus
from dptune.models.loading import save_model
from dptune.models.source import ModelBundle
from dptune.planning import RunPlan
from dptune.privacy import CertificateStatus, NeighboringRelation, Notion
from dptune.recipes import View
from dptune.results import ValidationReport
from dptune.review.store import ReviewState
from dptune.workflow import redact
from dptune.workflow.detect import label_corpus
from dptune.workflow.ingest import read_corpus
from dptune.workflow.inputs import StageInputs
from dptune.workflow.planned_units import ledger_of, units_for
from dptune.workflow.preflight import plan_for
from dptune.workflow.prepare_model import prepare_base, with_canary_tokens
from dptune.workflow.redact import redact_corpus
from dptune.workflow.score import score_corpus
from dptune.workflow.train_stage import run_stage
from tests.coupled import Recording, coupled, worst_distance
from tests.neighbor_pairs import Relation, Row
from tests.support.encoders import word_tokenizer

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
RECIPES = tuple(sorted(path.stem for path in (CONFIGS / "recipes").glob("*.yaml")))

MAX_TOKENS = 112
PUBLIC_UNITS = 29
BATCH = 12
STEPS = 3
DELTA = 1e-4
_WORDS = """
the is was very film good bad long and of to my name mail in on at we saw it
maria lopez john smith . , @ example com 7 31 1234
"""


@dataclass(kw_only=True)
class World:
    """Where a recipe is run, and with which configuration.

    Args:
        config: of every run here.
        folder: of data, models and runs.
        base: model before fine-tuning.
        review: lists of the project, if it has any.
        by_content: coins belong to what units hold, not to their names.
    """

    config: TrainConfig
    folder: Path
    base: ModelBundle
    review: ReviewState | None = None
    by_content: bool = False
    plans: dict[str, RunPlan] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one run left.

    Args:
        stages: recording of every stage, with the digest of what it trained on.
        weights: digest of the weights after every stage.
        public: everything else that leaves the run, as JSON.
        certificates: what is claimed.
    """

    stages: dict[str, Recording] = field(repr=False)
    private: tuple[bool, ...]
    weights: tuple[str, ...]
    public: dict[str, Any] = field(repr=False)
    certificates: tuple[Certificate, ...] = field(repr=False)

    def claim(self, notion: Notion, relation: NeighboringRelation) -> Certificate:
        """Return the certificate of a notion."""
        return next(
            c
            for c in self.certificates
            if c.notion is notion and c.relation is relation
        )


def make_world(
    folder: Path, name: str, changes: Mapping[str, Any] | None = None
) -> World:
    """Make a configuration, a data set's place and a model for a recipe.

    Args:
        folder: of everything.
        name: of the recipe.
        changes: `a.b.c` keys of the configuration and their values.
    """
    values = read_yaml(ROOT / "tests" / "configs" / "tiny.yaml")
    values |= {"recipe": name, "stages": {name: _few_steps(name)}}
    recipe = read_yaml(CONFIGS / "recipes" / f"{name}.yaml")
    is_local = recipe.get("notion") == "local"
    values["data"] = {
        "source": {
            "kind": "jsonl",
            "path": "data.jsonl",
            "id_column": "id",
            "unit_column": "user",
            **({"label_column": "label"} if is_local else {}),
        },
        "privacy_unit": "user",
        "min_records": 10,
        "duplicates": "keep",
        "splits": {"validation": 0.0, "test": 0.1},
        "public_units": PUBLIC_UNITS,
    }
    none = {"num_planted": 0, "num_held_out": 0}
    values["canaries"] = {"template": "The code is {secret}", **none}
    if is_local:
        values["model"] = {
            "source": {"kind": "path", "path": "encoder"},
            "task": "sequence_classification",
            "labels": ["no", "yes"],
            "max_tokens": 12,
            "max_sequences_per_unit": 1,
            "public_text": {"kind": "jsonl", "path": "public.jsonl", "id_column": "id"},
        }
    else:
        values["model"] = {
            "source": {
                **values["model"]["source"],
                "num_layers": 1,
                "hidden_size": 16,
                "max_tokens": MAX_TOKENS,
                "vocab_size": 300,
            },
            "max_tokens": MAX_TOKENS,
            "max_sequences_per_unit": 4,
        }
    if name == "sa_adp":
        values["detection"] = {"tier": "high_entity"}  # has secrets of both tiers
    notion = "local" if is_local else "selective"
    values["privacy"] = {
        "notion": notion,
        "relation": "replace_one",
        "target_epsilon": 8.0 if is_local else None,
        "target_delta": DELTA,
    }
    values["performance"] = {
        "physical_batch_size": 32,
        "block_size": 50,
        "device": "cpu",
    }
    for key, value in (changes or {}).items():
        _put(values, key.split("."), value)
    config = train_config_of(values, configs=CONFIGS)
    folder.mkdir(parents=True, exist_ok=True)
    if is_local:
        _write_encoder(folder)
    base = prepare_base(
        config.model, config.performance, data_root=folder, folder=folder / "models"
    )
    base = with_canary_tokens(base, config.canaries, folder=folder / "models")
    return World(config=config, folder=folder, base=base)


def _put(values: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Set a nested value."""
    for key in keys[:-1]:
        values = values.setdefault(key, {})
    values[keys[-1]] = value


def _few_steps(name: str) -> dict[str, dict[str, Any]]:
    """Let every stage take a few steps, with noise that is given."""
    found = {}
    for stage in read_yaml(CONFIGS / "recipes" / f"{name}.yaml")["stages"]:
        changes: dict[str, Any] = {
            "epochs": 1 if "local" in stage else STEPS * BATCH / PUBLIC_UNITS
        }
        if "controller" in stage:
            changes["epochs"] = 24 * BATCH / PUBLIC_UNITS  # it must act twenty times
            changes["controller"] = {
                "warmup_steps": 1,
                "interval": 1,
                "min_actions": 20,
            }
        if "screened" not in stage:
            changes["expected_batch_size"] = BATCH
            if "relative_batch" in stage:
                changes["relative_batch"] = None
        if "noise" in stage:
            changes["noise"] = {"noise_multiplier": 1.0}
            if stage["noise"].get("correlation") == "auto":
                banded = {"correlation": "banded", "num_bands": 2}
                changes["noise"] |= banded
        transform = stage.get("clipping", {}).get("transform", {})
        if transform.get("rule") == "geoclip":
            changes["clipping"] = {"transform": {"rank": 3}}
        if "local" in stage:
            changes["local"] = {"layer": 1}
            if stage["local"].get("autoencoder"):
                changes["local"] |= {"autoencoder": [8], "autoencoder_steps": 5}
        found[stage["name"]] = changes
    return found


def _write_encoder(folder: Path) -> None:
    """Store a tiny BERT and public text for an autoencoder."""
    config = BertConfig(
        vocab_size=len(_WORDS.split()) + 8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    save_model(BertModel(config), word_tokenizer(_WORDS.split()), folder / "encoder")
    texts = ["the film was very good and long , we saw it on the 7 of the 31"] * 20
    lines = [json.dumps({"id": i, "text": text}) for i, text in enumerate(texts)]
    (folder / "public.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_recipe(
    world: World,
    rows: Sequence[Row],
    *,
    after: Run | None = None,
    checked: bool = True,
) -> Run:
    """Run a recipe on raw rows, as the pipeline does.

    Args:
        world: where.
        rows: of the raw file.
        after: replay the releases of this run.
        checked: run the self-check of every stage, and validate redacted text.
    """
    config, folder = world.config, world.folder
    world.number += 1
    runs = folder / f"runs-{world.number}"
    lines = [json.dumps(dict(row), ensure_ascii=False) for row in rows]
    file = folder / "data.jsonl"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = read_corpus(config.data, data_root=folder, validate=False)
    canaries = _canaries(world)
    planted = corpus.with_dataset(plant(corpus.dataset, canaries))
    planted = planted.assuming(*plant_assumes(canaries.spec))
    labelled, _ = label_corpus(
        planted,
        canaries,
        config.detection,
        corpus_is_public=config.data.corpus_is_public,
        data_set=config.budget.data_set,
        review=world.review,
    )
    with nullcontext() if checked else _unvalidated():
        redacted, _ = redact_corpus(labelled, config.redaction, key=lambda: b"k" * 32)
    views = {View.ORIGINAL: labelled, View.REDACTED: redacted}
    plan = _plan(world, corpus)
    sensitivity, ledger = score_corpus(
        labelled,
        config.scoring,
        ledger_of(plan, corpus.report),
        recipe=plan.recipe,
        corpus_is_public=config.data.corpus_is_public,
        folder=runs,
        seed=config.seed,
    )
    model, weights, stages = world.base, [], {}
    for stage in config.recipe.stages:
        inputs = StageInputs.of(
            model,
            views[stage.view],
            plan,
            stage.name,
            config.model,
            seed=config.seed,
            data_root=folder,
            sensitivity=sensitivity,
        )
        replayed = after.stages[stage.name] if after else None
        with coupled(
            replayed, checked=checked, by_content=world.by_content
        ) as recording:
            done = run_stage(
                inputs, ledger, folder=runs, performance=config.performance
            )
        model, ledger = done.bundle, done.ledger
        weights.append(model.digest)
        stages[stage.name] = recording
    return Run(
        stages=stages,
        private=tuple(stage.private for stage in config.recipe.stages),
        weights=tuple(weights),
        public=_public(plan, ledger),
        certificates=_certificates(world, ledger, after=after),
    )


def _unvalidated() -> Any:
    """Leave out the check of the redacted text, half of a small run."""
    report = ValidationReport(view="redacted", success=True, expectations=())
    return mock.patch.object(redact, "validate_redacted", return_value=report)


def _canaries(world: World) -> Any:
    """Draw the canaries of a world, the same ones for all of its runs."""
    return draw_canaries(world.config.canaries, seed=0)


def _plan(world: World, corpus: Corpus) -> RunPlan:
    """Plan as the step does; the same plan is not made twice."""
    config = world.config
    units = units_for(config.data, config.canaries, corpus.report)
    key = str(units)
    if key not in world.plans:
        world.plans[key] = plan_for(
            config.recipe,
            config.privacy,
            units=units,
            counts_noise_multiplier=config.scoring.noise_multiplier,
        )
    return world.plans[key]


def _public(plan: RunPlan, ledger: PrivacyLedger) -> dict[str, Any]:
    """Collect what leaves a run beside its weights and their vocabulary."""
    left_out = {"data_fingerprint"}  # a keyed name, which stays inside
    return {
        "plan": plan.model_dump(mode="json"),
        "ledger": [
            {k: v for k, v in e.model_dump(mode="json").items() if k not in left_out}
            for e in ledger.entries
        ],
    }


def _certificates(
    world: World, ledger: PrivacyLedger, *, after: Run | None
) -> tuple[Certificate, ...]:
    """State every claim; those of equal ledgers are not computed twice."""
    if after is not None:
        return after.certificates  # `compare` asks whether the ledgers are equal
    return ledger.certificates(world.config.privacy.target_delta)


def compare(first: Run, second: Run, *, kind: int | None = None) -> float:
    """Return the largest distance of two runs in units of C, over all their stages.

    Infinite where neighbours differ in what is public, in what has no noise, or in the
    weights that replayed releases lead to.
    """
    if first.public != second.public:
        return math.inf
    worst = 0.0
    for name, is_private in zip(first.stages, first.private, strict=True):
        if is_private:
            found = worst_distance(first.stages[name], second.stages[name], kind=kind)
            worst = max(worst, found)
    return worst if first.weights == second.weights else math.inf


def public_differences(first: Run, second: Run) -> list[str]:
    """Name what is public and differs."""
    a, b = first.public, second.public
    plans = [f"plan.{key}" for key in a["plan"] if a["plan"][key] != b["plan"].get(key)]
    rest = [key for key in a if key != "plan" and a[key] != b[key]]
    return [*plans, *rest]


LIMITS: Mapping[Relation, float] = {
    "add": 1.0,
    "remove": 1.0,
    "replace": 2.0,
    "selective": 2.0,
}
_MEANT = frozenset({CertificateStatus.CERTIFIED, CertificateStatus.CONDITIONAL})
_NOTIONS: Mapping[Relation, tuple[Notion, NeighboringRelation]] = {
    "add": (Notion.RECORD, NeighboringRelation.ADD_OR_REMOVE_ONE),
    "remove": (Notion.RECORD, NeighboringRelation.ADD_OR_REMOVE_ONE),
    "replace": (Notion.RECORD, NeighboringRelation.REPLACE_ONE),
    "selective": (Notion.SELECTIVE, NeighboringRelation.REPLACE_ONE),
}


def claimed(run: Run, relation: Relation) -> Certificate | None:
    """Return the claim that pairs of a relation test; None if nothing is claimed."""
    notion, neighbors = _NOTIONS[relation]
    if any(c.notion is Notion.LOCAL for c in run.certificates):
        if relation in {"add", "remove"}:
            return None
        if relation == "replace":
            notion = Notion.LOCAL
    found = run.claim(notion, neighbors)
    return found if found.status in _MEANT else None
