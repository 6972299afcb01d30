"""What one training stage computes from: the model, the text, and the units in it."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from datasets import Dataset

from dptune.config import ModelSettings, PerformanceSettings
from dptune.data.records import Corpus
from dptune.detection.scoring import SensitivityTable
from dptune.dpsgd.dataset import UnitDataset
from dptune.errors import PrivacyError
from dptune.mechanisms.sa_adp import Tier
from dptune.models.encode import encode_classes, encode_corpus
from dptune.models.loading import LoadedModel
from dptune.models.source import Base, ModelBundle
from dptune.parts import values_of
from dptune.planning import RunPlan
from dptune.privacy import UnitsFrom
from dptune.stages import StagePlan
from dptune.workflow.charging import sees_marks
from dptune.workflow.forward import PublicText
from dptune.workflow.job import TrainingJob, load_start
from dptune.workflow.prepare_model import public_digest
from dptune.workflow.token_weights import (
    count_leaks,
    in_tiers,
    screened_rows,
    tiers_for,
    weighted,
)

DEFAULT_BASE = Base()


@dataclass(frozen=True, kw_only=True)
class StageInputs:
    """Everything that decides what one stage computes.

    Args:
        model: the model it starts from.
        corpus: the view it reads; only the `train` split is used.
        plan: the stage with its noise.
        recipe: name of the recipe, for the ledger.
        max_tokens: longest sequence; longer records are split within their unit.
        max_sequences_per_unit: public contribution bound.
        seed: fixes all randomness; None takes it from the operating system.
        public_text: what a recipe may learn from besides, such as an autoencoder.
        repetition: tells equal trainings apart; seeds nothing.
        sensitivity: of the types of secrets, for a stage with tiers.
        base: how weights are held that the stage does not train.
    """

    model: ModelBundle
    corpus: Corpus
    plan: StagePlan
    recipe: str
    max_tokens: int
    max_sequences_per_unit: int
    seed: int | None
    public_text: PublicText | None = None
    repetition: int = 0
    sensitivity: SensitivityTable | None = None
    base: Base = DEFAULT_BASE

    @classmethod
    def of(
        cls,
        model: ModelBundle,
        corpus: Corpus,
        plan: RunPlan,
        stage: str,
        settings: ModelSettings,
        *,
        seed: int | None,
        data_root: Path | None = None,
        repetition: int = 0,
        sensitivity: SensitivityTable | None = None,
    ) -> Self:
        """Pick one stage out of a run's plan."""
        return cls(
            model=model,
            corpus=corpus,
            plan=next(p for p in plan.stages if p.settings.name == stage),
            recipe=plan.recipe,
            max_tokens=settings.max_tokens,
            max_sequences_per_unit=settings.max_sequences_per_unit,
            seed=seed,
            repetition=repetition,
            public_text=None
            if settings.public_text is None
            else PublicText(source=settings.public_text, data_root=data_root or Path()),
            sensitivity=sensitivity,
            base=Base(**settings.model_dump(include=set(Base.model_fields))),
        )

    @property
    def tier_of(self) -> dict[str, Tier] | None:
        """Tier of every type of secret, of a stage that tells them apart."""
        tiers = self.plan.settings.tiers
        return None if tiers is None else tiers_for(tiers, self.sensitivity)

    def key(self) -> str:
        """Name this computation: equal keys may share a finished result."""
        values: dict[str, object] = {
            "model": self.model.digest,
            "corpus": self.corpus.fingerprint,
            "texts": _texts_digest(
                self.corpus,
                with_spans=self.plan.settings.token_weights is not None,
                with_types=self.plan.settings.tiers is not None,
            ),
            "plan": self.plan.model_dump(mode="json"),
            "recipe": self.recipe,
            "tokens": [self.max_tokens, self.max_sequences_per_unit],
            "seed": self.seed,
        }
        settings = self.plan.settings
        learns = settings.local is not None or settings.controller is not None
        if learns and self.public_text is not None:
            public, root = self.public_text.source, self.public_text.data_root
            digest = public_digest(public, data_root=root)
            values["public"] = [public.model_dump(mode="json"), digest]
        if rests_on := self._rests_on():
            values["rests_on"] = rests_on
        if self.plan.settings.lora is not None and self.base != DEFAULT_BASE:
            values["base"] = self.base.model_dump(mode="json")
        if self.repetition:
            values["repetition"] = self.repetition
        if self.tier_of is not None:
            values["tiers"] = self.tier_of
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _rests_on(self) -> list[str]:
        """Name what the claim rests on, so that no entry without it is taken over."""
        report = self.corpus.report
        marks = report.marks_assume if sees_marks(self.plan.settings) else ()
        return sorted({*report.assumes, *marks})


def load_stage(
    inputs: StageInputs, performance: PerformanceSettings
) -> tuple[LoadedModel, UnitDataset]:
    """Load what a stage starts from: the model, and the units of the training split."""
    return load_job(_unstored(inputs, performance), inputs)


def count_tier_leaks(inputs: StageInputs, performance: PerformanceSettings) -> int:
    """Count rows of a stage with tiers in which one tier reaches another's part."""
    loaded, mask = load_start(_unstored(inputs, performance))
    return count_leaks(
        _encode(inputs, loaded, mask),
        inputs.corpus.split("train"),
        tier_of=inputs.tier_of or {},
        mask=mask,
    )


def _unstored(inputs: StageInputs, performance: PerformanceSettings) -> TrainingJob:
    """Return the job of a stage that stores nothing."""
    return TrainingJob(
        model=inputs.model.path,
        plan=inputs.plan,
        max_tokens=inputs.max_tokens,
        seed=inputs.seed,
        checkpoint_dir=Path(),
        performance=performance,
        base=inputs.base,
    )


def load_job(
    job: TrainingJob, inputs: StageInputs, *, folder: Path | None = None
) -> tuple[LoadedModel, UnitDataset]:
    """Load the model and the units of the training split.

    Args:
        job: what to compute.
        inputs: of the stage.
        folder: private folder for tokens that do not fit into memory; None keeps to it.
    """
    loaded, ignored = load_start(job)
    encoded = _encode(inputs, loaded, ignored, folder=folder)
    data = _units(inputs, encoded, mask=ignored, folder=folder)
    num_units = (data.unnoised or data).num_units
    is_exact = inputs.plan.units_from is UnitsFrom.EXACT
    if is_exact and num_units != inputs.plan.num_units:
        raise PrivacyError(
            "training must see as many units as the plan was made for, got "
            f"{num_units} and planned {inputs.plan.num_units}. Calibrate again."
        )
    return loaded, data


def _units(
    inputs: StageInputs, encoded: Dataset, *, mask: int | None, folder: Path | None
) -> UnitDataset:
    """Group encoded rows by unit, or by unit and tier."""
    if inputs.tier_of is not None:
        return in_tiers(
            encoded,
            inputs.corpus.split("train"),
            tier_of=inputs.tier_of,
            mask=mask,
            max_sequences_per_unit=inputs.max_sequences_per_unit,
        )
    return UnitDataset.from_encoded(
        encoded, max_sequences_per_unit=inputs.max_sequences_per_unit, folder=folder
    )


def _encode(
    inputs: StageInputs,
    loaded: LoadedModel,
    ignored: int | None,
    *,
    folder: Path | None = None,
) -> Dataset:
    """Encode the training split, for a classifier with the class of each record."""
    settings, rows = inputs.plan.settings, inputs.corpus.split("train")
    weights = settings.token_weights
    if settings.screened is not None:
        rows = screened_rows(rows, settings.screened, num_drawn=inputs.plan.num_units)
    if loaded.class_names:
        return encode_classes(
            rows,
            loaded.tokenizer,
            max_tokens=inputs.max_tokens,
            class_names=loaded.class_names,
        )
    encoded = encode_corpus(
        rows,
        loaded.tokenizer,
        max_tokens=inputs.max_tokens,
        ignore_token_id=ignored,
        with_offsets=weights is not None or inputs.tier_of is not None,
        folder=folder,
    )
    return encoded if weights is None else weighted(encoded, rows, weights)


def _texts_digest(corpus: Corpus, *, with_spans: bool, with_types: bool) -> str:
    """Hash the training texts in order: redacted views keep the corpus fingerprint.

    Spans count where tokens are weighed by them, and their types where they are told
    apart by those.
    """
    digest, rows = hashlib.sha256(), corpus.split("train")
    for text in values_of(rows, "text"):
        digest.update(hashlib.sha256(text.encode()).digest())
    for label in values_of(rows, "label") if "label" in rows.column_names else ():
        digest.update(hashlib.sha256(str(label).encode()).digest())
    for spans in values_of(rows, "spans") if with_spans else ():
        ends = [(span["start"], span["end"]) for span in spans]
        digest.update(hashlib.sha256(json.dumps(ends).encode()).digest())
    for spans in values_of(rows, "spans") if with_types else ():
        kinds = [(s["start"], s["end"], s["entity_type"]) for s in spans]
        digest.update(hashlib.sha256(json.dumps(kinds).encode()).digest())
    return digest.hexdigest()
