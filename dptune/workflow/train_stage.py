"""One training stage: encode, plan, charge, train, store, and extend the ledger."""

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from peft import PeftModel
from torch import nn

from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySet
from dptune.config import PerformanceSettings
from dptune.conversation import is_conversation
from dptune.dpsgd.checkpoint import steps_taken
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.plan import is_adaptive
from dptune.dpsgd.schedule import Controller
from dptune.dpsgd.steps import Charge
from dptune.dpsgd.trainer import StepProgress, TrainingOutcome
from dptune.errors import ConfigError, PrivacyError
from dptune.mechanisms.rldp_controller import RldpController
from dptune.models.adapters import save_adapter
from dptune.models.chat import note_training
from dptune.models.check import most_positions
from dptune.models.digest import model_digest
from dptune.models.encode import count_cut
from dptune.models.loading import LoadedModel, save_model
from dptune.models.source import ModelBundle
from dptune.results import StageCurvePoint, StageReport, TrainedCanaries
from dptune.workflow.budget import Spender
from dptune.workflow.charging import Spend, charge_to
from dptune.workflow.controller import (
    PREFIX,
    controller_report,
    stage_controller,
    store_controller,
)
from dptune.workflow.device import place_processes
from dptune.workflow.forward import train_on_releases
from dptune.workflow.inputs import StageInputs, load_job
from dptune.workflow.job import TrainingJob, only_one, run_job, stored_dtype
from dptune.workflow.ranks import train_on_ranks
from dptune.workflow.retraining import start_again
from dptune.workflow.shared_job import Launcher, SharedJob
from dptune.workflow.trained import (
    refuse_beyond_positions,
    refuse_untrained,
    trained_canaries,
)

_CURVE_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class StageOutcome:
    """What one stage leaves behind."""

    bundle: ModelBundle
    ledger: PrivacyLedger
    report: StageReport
    trained: TrainedCanaries


def run_stage(
    inputs: StageInputs,
    ledger: PrivacyLedger,
    *,
    folder: Path,
    performance: PerformanceSettings,
    retrain: bool = False,
    run: str = "",
    spend: Spend | None = None,
    on_step: Callable[[StepProgress], None] | None = None,
    controller: Controller | None = None,
    watch: Callable[[int, LoadedModel], None] | None = None,
    canaries: CanarySet | None = None,
    launch: Launcher | None = None,
) -> StageOutcome:
    """Train one stage, or resume it, or return it if an identical one is finished.

    The ledger's journal is on disk before any noise of a block is drawn, in a folder
    that belongs to this computation, so that a killed run never under-reports. A
    finished stage is answered from its folder: no noise is drawn, nothing is charged.

    Args:
        inputs: what to compute.
        ledger: what was spent by the stages before.
        folder: home of all stages; this one gets `folder / inputs.key()`.
        performance: memory, speed, and steps that are charged and stored together.
        retrain: charge and train again although a finished result is there. The
            earlier training is put aside with its journal: what it spent stays spent,
            but it is no part of the new model's own claim.
        run: that retrains, so that it resumes its own training if it is started again.
        spend: charges a block to the data set's budget, before the journal is charged
            and before its noise is drawn; raises to refuse it. None keeps no budget.
        on_step: called after every step.
        controller: wishes for the noise of an adaptive plan, which trains in one
            process; a stage with `controller` settings builds its own.
        watch: called before the first step and after every step with the model, which
            it must not change; not for stages that other processes train.
        canaries: that were planted in the corpus; those that the stage trains on are
            counted, and none at all is refused before anything is charged.
        launch: trains on `performance.nodes` machines, if these are several.

    Raises:
        ConfigError: nobody starts the machines; or the stage needs one process.
    """
    if (performance.nodes > 1) is not (launch is not None):
        raise ConfigError(
            "performance.nodes must be said by the profile that starts their pods, got "
            f"{performance.nodes}. Say it there, or set it to 1."
        )
    home = _home_of(inputs, folder, again=run if retrain else None)
    job = TrainingJob(
        model=inputs.model.path,
        plan=inputs.plan,
        max_tokens=inputs.max_tokens,
        seed=inputs.seed,
        checkpoint_dir=home / "checkpoint",
        performance=performance,
        base=inputs.base,
    )
    loaded, data = load_job(job, inputs, folder=home)
    trained = _trained_canaries(inputs, loaded, data, canaries)
    steering = _steering(inputs, loaded)
    journal = LedgerJournal(job.journal)
    on_step = _watched(on_step, watch, loaded)
    target = home / "model"
    if watch is not None and not target.is_dir():
        watch(0, loaded)
    charge = charge_to(
        journal,
        inputs.corpus.report,
        inputs.plan,
        recipe=inputs.recipe,
        fixed_seed=inputs.seed is not None,
        spend=spend,
    )
    if isinstance(spend, Spender) and not target.is_dir():
        _ensure(job, inputs, journal, spend)
    outcome = _train(
        job,
        loaded,
        data,
        inputs,
        is_finished=target.is_dir(),
        charge=charge,
        spend=spend,
        on_step=on_step,
        controller=controller or steering,
        launch=launch,
    )
    report = _report(inputs, outcome, loaded, steering)
    if not target.is_dir():
        _store(inputs, loaded, target, controller=steering, report=report)
    return StageOutcome(
        bundle=ModelBundle(path=target, digest=model_digest(target)),
        ledger=ledger.extend(journal.read()),
        report=report,
        trained=trained,
    )


def _ensure(
    job: TrainingJob, inputs: StageInputs, journal: LedgerJournal, spend: Spender
) -> None:
    """Hold what is left to draw, so that no grant ends in the middle of it.

    A run that was finished elsewhere, or whose folder was removed, holds nothing more.

    Raises:
        BudgetExceededError: it does not fit; nothing was charged.
    """
    plan, charged = inputs.plan, journal.read().entries
    if charged and is_adaptive(plan.training_plan()):  # charged once
        return
    drawn = steps_taken(job.checkpoint_dir)
    if plan.settings.local is not None:
        drawn = sum(entry.num_steps for entry in charged)
    spend.ensure(
        plan,
        inputs.corpus.report,
        recipe=inputs.recipe,
        block_size=job.performance.block_size,
        seeded=inputs.seed is not None,
        first_step=drawn,
    )


def _home_of(inputs: StageInputs, folder: Path, *, again: str | None) -> Path:
    """Make the folder of a stage, empty if a run of that name trains it again."""
    home = folder / inputs.key()
    if again is not None:
        with only_one(home) if home.is_dir() else nullcontext():
            start_again(home, run=again)
    home.mkdir(parents=True, exist_ok=True)
    (home / "stage.json").write_text(
        json.dumps({"corpus": inputs.corpus.fingerprint, "recipe": inputs.recipe}),
        encoding="utf-8",
    )
    return home


def _trained_canaries(
    inputs: StageInputs,
    loaded: LoadedModel,
    data: UnitDataset,
    canaries: CanarySet | None,
) -> TrainedCanaries:
    """Count the canaries that the stage trains on; none at all is refused."""
    stage = inputs.plan.settings.name
    if canaries is None or loaded.class_names:
        return TrainedCanaries(stage=stage, copies=())
    positions = most_positions(loaded.model.config)
    refuse_beyond_positions(canaries, loaded.tokenizer, positions=positions)
    found = trained_canaries(data, canaries, loaded.tokenizer, stage=stage)
    refuse_untrained(found, inputs.plan, max_tokens=inputs.max_tokens)
    return found


def _steering(inputs: StageInputs, loaded: LoadedModel) -> RldpController | None:
    """Build the controller that the stage's settings name, if they name one."""
    if inputs.plan.settings.controller is None:
        return None
    return stage_controller(
        inputs.plan,
        loaded,
        public=inputs.public_text,
        max_tokens=inputs.max_tokens,
        seed=inputs.seed,
    )


def _watched(
    on_step: Callable[[StepProgress], None] | None,
    watch: Callable[[int, LoadedModel], None] | None,
    loaded: LoadedModel,
) -> Callable[[StepProgress], None] | None:
    """Show the model to `watch` after every step."""
    if watch is None:
        return on_step

    def show(now: StepProgress) -> None:
        if on_step is not None:
            on_step(now)
        watch(now.step, loaded)

    return show


def _train(
    job: TrainingJob,
    loaded: LoadedModel,
    data: UnitDataset,
    inputs: StageInputs,
    *,
    is_finished: bool,
    charge: Charge,
    spend: Spend | None,
    on_step: Callable[[StepProgress], None] | None,
    controller: Controller | None,
    launch: Launcher | None,
) -> TrainingOutcome:
    """Train here, or on ranks whose last checkpoint is then read here."""
    placement = place_processes(job.performance)
    if inputs.plan.settings.local is not None:
        charged = LedgerJournal(job.journal).read()
        return train_on_releases(
            loaded,
            data,
            plan=inputs.plan,
            num_positions=inputs.max_tokens,
            public=inputs.public_text,
            home=job.checkpoint_dir.parent,
            num_charged=sum(entry.num_steps for entry in charged.entries),
            charge=charge,
            on_step=on_step,
            seed=inputs.seed,
            device=placement.device,
        )
    if not Ranks.current().is_alone:
        raise ConfigError(
            "a stage must not be run by processes that are ranks already: it starts "
            "its own. Set performance.num_processes in place of torchrun."
        )
    if is_finished or placement.num_processes == 1:
        with nullcontext() if is_finished else only_one(job.journal.parent):
            return run_job(
                job.alone(),
                loaded,
                data,
                device=placement.device,
                charge=charge,
                on_step=on_step,
                controller=controller,
            )
    if controller is not None:
        raise ConfigError(
            "performance.num_processes must be 1 for a controller, which lives in one "
            f"process, got {placement.num_processes}."
        )
    if spend is not None and not isinstance(spend, Spender):
        raise ConfigError(
            "spend must be a Spender where several processes train: the first of them "
            "pays, and other functions cannot be handed to it."
        )
    shared = SharedJob(
        job=job,
        corpus=inputs.corpus.report,
        recipe=inputs.recipe,
        device=placement.device if launch is None else launch.device,
        reservation=None if spend is None else spend.reservation,
    )
    done_before = steps_taken(job.checkpoint_dir)
    train = launch or partial(
        train_on_ranks,
        num_processes=placement.num_processes,
        budget_url=None if spend is None else spend.url,
    )
    train(shared, data, on_step=on_step or (lambda _: None))
    done = run_job(job.alone(), loaded, data, device="cpu", charge=_refuse_to_train)
    return replace(done, resumed_from_step=done_before or None)


def _refuse_to_train(first_step: int, _: int) -> None:
    """Refuse to draw what ranks have not drawn, who have ended well."""
    raise PrivacyError(
        f"ranks must leave the checkpoint of the last step, got one of step "
        f"{first_step}. Start the run again."
    )


def _store(
    inputs: StageInputs,
    loaded: LoadedModel,
    target: Path,
    *,
    controller: RldpController | None,
    report: StageReport,
) -> None:
    """Write the model, so that a killed process leaves no half of one.

    Beside the weights lie the parts of a model that was split and what controllers
    left; adapters are kept by themselves too, in a folder beside the model.

    Args:
        inputs: what was computed.
        loaded: the model.
        target: directory that must not be there yet.
        controller: whose policy and trace are kept too.
        report: of the stage.
    """
    parts = target.with_name("parts")
    model: nn.Module = loaded.model  # or a PeftModel around it
    extras = [
        (file, file.name) for file in sorted(inputs.model.path.glob(f"{PREFIX}*"))
    ]
    if parts.is_dir():
        extras += [(part, f"local_{part.name}") for part in sorted(parts.iterdir())]
    adapter, half = target.with_name("adapter"), target.with_name("model.half")
    for folder in (adapter, half):
        shutil.rmtree(folder, ignore_errors=True)
    texts = inputs.corpus.dataset["text"][:1]
    note_training(loaded.tokenizer, on_chats=any(map(is_conversation, texts)))
    if isinstance(model, PeftModel):
        save_adapter(model, loaded.tokenizer, adapter)
    dtype = stored_dtype(loaded, inputs.base)
    save_model(loaded.model, loaded.tokenizer, half, dtype=dtype)
    for file, name in extras:
        shutil.copy(file, half / name)
    if controller is not None and report.controller is not None:
        store_controller(controller, report.controller, half)
    half.rename(target)


def _report(
    inputs: StageInputs,
    outcome: TrainingOutcome,
    loaded: LoadedModel,
    steering: RldpController | None,
) -> StageReport:
    """Summarize the outcome; the curve is thinned to a few hundred points."""
    every = max(1, len(outcome.curve) // _CURVE_POINTS)
    curve = outcome.curve[::every]
    return StageReport(
        stage=inputs.plan.settings.name,
        recipe=inputs.recipe,
        num_steps=outcome.num_steps,
        num_units=inputs.plan.num_units,
        num_tokens=outcome.num_tokens,
        seconds=outcome.seconds,
        tokens_per_second=outcome.num_tokens / max(outcome.seconds, 1e-9),
        resumed_from_step=outcome.resumed_from_step,
        fixed_seed=inputs.seed is not None,
        curve=tuple(StageCurvePoint(step=s, loss=loss) for s, loss in curve),
        controller=steering and controller_report(inputs.plan, steering, loaded.model),
        cut=count_cut(
            inputs.corpus.split("train"), loaded.tokenizer, max_tokens=inputs.max_tokens
        ),
    )
