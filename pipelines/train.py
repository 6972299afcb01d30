"""From raw text to a gate decision: the wiring of one training run."""

from dataclasses import dataclass
from typing import Any

from zenml import pipeline
from zenml.config.schedule import Schedule

from dptune.config import TrainConfig
from dptune.detection.recognizer import OWN_RECOGNIZERS
from dptune.recipes import View
from materializers import failures
from steps._alerting import alert_failure
from steps.attack import attack
from steps.calibrate import calibrate
from steps.detect import detect
from steps.detect_shard import detect_shard
from steps.gate import gate
from steps.ingest import ingest
from steps.measure_champion import measure_champion
from steps.plant_canaries import plant_canaries
from steps.prepare_model import prepare_model
from steps.promote import promote
from steps.redact import redact
from steps.register import register
from steps.reserve_budget import reserve_budget
from steps.score import score
from steps.settle_budget import settle_budget
from steps.train_stage import train_stage

__all__ = ["failures"]


def remember_failure(exception: BaseException) -> None:
    """Keep the exception of a failed step for the command line, and alert."""
    failures.append(exception)
    alert_failure(exception)


_BEFORE = ("ingest", "plant_canaries")
_BETWEEN = (
    *("detect", "redact", "calibrate", "reserve_budget", "score", "prepare_model"),
)
_AFTER = (
    *("settle_budget", "attack", "measure_champion", "register", "gate", "promote"),
)


def step_names(config: TrainConfig) -> list[str]:
    """Name every step of a run, as `train_pipeline` does."""
    stages = [f"train_{stage.name}" for stage in config.recipe.stages]
    return [*_BEFORE, *_shards(config), *_BETWEEN, *stages, *_AFTER]


def _shards(config: TrainConfig) -> list[str]:
    """Name the steps that read one part of the corpus each; none if one reads all."""
    count = config.performance.detection_shards
    return [f"detect_{index}" for index in range(count)] if count > 1 else []


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Artifacts of a model that was trained and attacked, as later steps take them."""

    model: Any
    labelled: Any
    base: Any
    results: list[Any]
    samples: Any


def train_and_attack(
    run: TrainConfig,
    fingerprint: str,
    *,
    retrain: bool,
    review: str,
    scheduled: bool = False,
) -> Measured:
    """Wire a run up to the attacks; every stage of the recipe is a step of its own.

    Args:
        run: what to train.
        fingerprint: of the source as the preflight saw it.
        retrain: train again although an identical run was finished before.
        review: digest of the project's reviews as they are now.
        scheduled: whether the orchestrator's clock started it; see `ingest`.
    """
    corpus, counts = ingest.with_options(enable_cache=not scheduled)(
        data=run.data,
        fingerprint=fingerprint,
        scheduled=run.model_dump(mode="json") if scheduled else None,
    )
    planted, canaries = plant_canaries(
        corpus, spec=run.canaries, seed=run.seed, repetition=run.repetition
    )
    labelled, detection = _detected((planted, canaries), run, review=review)
    redacted, redaction = redact(labelled, settings=run.redaction)
    plan, ledger = calibrate(
        counts,
        canaries=run.canaries,
        recipe=run.recipe,
        privacy=run.privacy,
        scoring=run.scoring,
        data=run.data,
    )
    reservation = reserve_budget(corpus, plan, config=run, retrain=retrain)
    sensitivity, ledger = score(
        labelled,
        plan,
        ledger,
        reservation,
        settings=run.scoring,
        corpus_is_public=run.data.corpus_is_public,
        seed=run.seed,
        retrain=retrain,
    )
    base = prepare_model.with_options(enable_cache=not run.model.reads_files)(
        model=run.model,
        performance=run.performance,
        canaries=run.canaries,
        after=[reservation],
    )
    model, ledger, step_audits, trained = _train_stages(
        run,
        base,
        {View.ORIGINAL: labelled, View.REDACTED: redacted},
        ledger,
        plan=plan,
        reservation=reservation,
        sensitivity=sensitivity,
        retrain=retrain,
        canaries=canaries,
    )
    budget = settle_budget(reservation, plan, ledger)
    *leakage, samples = _attacked(run, model, base, labelled, canaries, trained=trained)
    made = (plan, ledger, counts, detection, redaction, budget)
    results = [*made, *step_audits, *leakage]
    return Measured(
        model=model, labelled=labelled, base=base, results=results, samples=samples
    )


def _attacked(
    run: TrainConfig,
    model: object,
    base: object,
    labelled: object,
    canaries: object,
    *,
    trained: list[Any],
) -> Any:  # noqa: ANN401 - artifacts of ZenML
    """Wire up the attacks on a model and its base."""
    return attack(
        model,
        base,
        labelled,
        canaries,
        trained=trained,
        settings=run.model,
        attacks=run.attack,
        detection=run.detection,
        performance=run.performance,
        data_set=run.budget.data_set,
    )


def _train_stages(
    run: TrainConfig,
    model: object,
    views: dict[View, object],
    ledger: object,
    **shared: Any,  # noqa: ANN401 - artifacts of ZenML
) -> tuple[Any, Any, list[Any], list[Any]]:
    """Wire the recipe's stages, each going on with the model of the one before.

    Returns:
        The last model, its ledger, and the stages' audits and trained canaries.
    """
    audits, trained = [], []
    for stage in run.recipe.stages:
        model, ledger, _, audit, canaries = train_stage(
            model=model,
            corpus=views[stage.view],
            ledger=ledger,
            labelled=views[View.ORIGINAL],
            stage=stage.name,
            settings=run.model,
            performance=run.performance,
            seed=run.seed,
            repetition=run.repetition,
            attacks=run.attack,
            audit=run.audit,
            id=f"train_{stage.name}",
            **shared,
        )
        audits.append(audit)
        trained.append(canaries)
    return model, ledger, audits, trained


def _detected(
    artifacts: tuple[Any, Any], run: TrainConfig, *, review: str
) -> tuple[Any, Any]:
    """Wire detection, in parts where the profile asks for them, and its report."""
    planted, canaries = artifacts
    # Another run asks about what failed, and other packages and models may change.
    asks = not {*run.detection.recognizers} <= OWN_RECOGNIZERS
    names = _shards(run)
    shards = [
        detect_shard.with_options(enable_cache=not asks)(
            planted,
            settings=run.detection,
            data_set=run.budget.data_set,
            review=review,
            index=index,
            num_shards=len(names),
            id=name,
        )
        for index, name in enumerate(names)
    ]
    labelled, detection = detect.with_options(enable_cache=not asks)(
        planted,
        canaries,
        shards=shards,
        settings=run.detection,
        corpus_is_public=run.data.corpus_is_public,
        data_set=run.budget.data_set,
        review=review,
    )
    return labelled, detection


@pipeline(name="train", enable_step_logs=False, on_failure=remember_failure)
def train_pipeline(
    config: dict[str, Any],
    fingerprint: str,
    *,
    retrain: bool,
    review: str = "",
    scheduled: bool = False,
) -> None:
    """Wire one run, from raw text to a gate decision.

    Args:
        config: a `TrainConfig` as JSON values.
        fingerprint: of the source as the preflight saw it.
        retrain: train again although an identical run was finished before.
        review: digest of the project's reviews as they are now.
        scheduled: whether the orchestrator's clock started it; see `ingest`.
    """
    run = TrainConfig.model_validate(config)
    done = train_and_attack(
        run, fingerprint, retrain=retrain, review=review, scheduled=scheduled
    )
    champion = measure_champion(
        done.base,
        done.labelled,
        model_name=run.registry.model_name,
        settings=run.model,
        performance=run.performance,
    )
    version = register(done.model, [*done.results, champion], config=run)
    decision, _ = gate(version, policy=run.gate)
    promote(version, decision)


def schedule_pipeline(
    config: TrainConfig, *, name: str, cron: str, options: dict[str, Any]
) -> None:
    """Hand the pipeline to the orchestrator's own scheduler.

    Args:
        config: of every run.
        name: of the schedule.
        cron: when.
        options: of the pipeline, see `infra.pods.run_options`.
    """
    train_pipeline.with_options(
        run_name=f"{config.name}-{config.recipe.name}-{{date}}-{{time}}",
        schedule=Schedule(name=name, cron_expression=cron),
        tags=[config.name, config.recipe.name],
        **options,
    )(
        config=config.model_dump(mode="json"),
        fingerprint="",  # whatever is there when it runs
        retrain=False,
        scheduled=True,
    )
