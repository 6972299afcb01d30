"""The loop of `transformers.Trainer` with our steps in it.

The loop keeps what it is good at: schedule, callbacks, logging, evaluation and
checkpoints. What a claim rests on is taken out of its hands: it is given no data, so
that it can draw none, and its `training_step` asks the engine for the released
gradients of a step that was paid before. They are all that its optimizer ever sees.
"""

import copy
import inspect
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import TrainingArguments
from transformers.trainer_utils import TrainOutput, sort_checkpoints

from dptune.accounting.certificates import Certificate
from dptune.dpsgd.checkpoint import run_fingerprint
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.guard import StepGuard
from dptune.dpsgd.own_loss import check_own_loss
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.prechecks import (
    as_written,
    check_numbers,
    check_private,
    modes_of,
    row_problems,
)
from dptune.dpsgd.step import gradient_source
from dptune.dpsgd.steps import Charge, ChargedSteps
from dptune.errors import ConfigError, PrivacyError, Problem
from dptune.integrations.arguments import PrivacyArguments, ScriptBudget
from dptune.integrations.checkpoints import checkpoint_to_resume, ended_with
from dptune.integrations.claims import tell_issued
from dptune.integrations.evaluation import EvaluationApart
from dptune.integrations.ranks import (
    RankedTraining,
    check_alike,
    first_rank_pays,
    shared_arguments,
)
from dptune.integrations.refusals import (
    accelerator_problems,
    changed_arguments,
    missing_optimizer,
    model_problems,
    no_search,
    optimizer_problems,
    part_problems,
    sharding_problems,
    trainer_problems,
)
from dptune.integrations.refused_arguments import argument_problems
from dptune.integrations.rows import (
    CountedUnits,
    UnitRows,
    collate_nothing,
)
from dptune.integrations.script_plan import plan_script
from dptune.integrations.script_run import ScriptRun
from dptune.integrations.steering import WatchedSchedule, check_same
from dptune.models.digest import tensors_digest
from dptune.stages import StagePlan
from dptune.workflow.job import optimizer_of, record_loss_of

_PRIVATE: Final = ("loss", "train_loss")
"""What a log may tell callbacks, and no file beside the model."""

_OWN_LOSS: Final = (
    "Use a causal model or a classifier of rows whose loss is that of transformers, or "
    "make_private, which takes a `loss` of yours."
)


class PrivateTraining(RankedTraining, EvaluationApart):
    """What makes a trainer of transformers train privately; comes before it as a base.

    **Formal guarantee**: under no `privacy.seed`, the sequence of weights after each
    step is the output, on the rows of `train_dataset`, of what the ledger in
    `output_dir/privacy` has charged, for neighbors that differ in one unit. See
    `dptune.dpsgd.trainer.train_stage`, with which it shares plan, steps and charges.

    Started several times by a launcher, the processes are ranks of one training, with
    one draw, one noise and one charge; see `dptune.dpsgd.distributed`.

    **Privacy**: weights, optimizer state and gradients may be released. The training
    loss is private: callbacks are told, no file beside the model is. What is measured
    on `eval_dataset` is not covered.

    Args:
        privacy: what to guarantee.
        budget: of the data set, to charge it to as well.
        positional, named: of the trainer; an own signature would fall behind it.

    Attributes:
        script_run: what is paid and may be said of it; None before training.

    Raises:
        ConfigError: something would break the claim; all at once, nothing is charged.
    """

    processing_class: Any  # what the other base has
    accelerator: Any
    callback_handler: Any
    lr_scheduler: Any
    state: Any
    compute_loss_func: Any

    def __init__(
        self,
        *positional: Any,  # noqa: ANN401 - those of another library
        privacy: PrivacyArguments,
        budget: ScriptBudget | None = None,
        **named: Any,  # noqa: ANN401
    ) -> None:
        given = inspect.signature(super().__init__).bind(*positional, **named).arguments
        args = given.get("args")
        if not isinstance(args, TrainingArguments):
            raise ConfigError("args must be given: there is no privacy by default.")
        if not isinstance(privacy, PrivacyArguments):
            raise ConfigError(
                f"privacy must be PrivacyArguments, got {type(privacy).__name__}."
            )
        length = getattr(args, "max_length", None)  # TRL cuts rows there
        if privacy.max_tokens is None and length is not None:
            privacy = replace(privacy, max_tokens=length)
        self.privacy = privacy
        self._budget = budget
        self._asked = args
        self.shards = bool(args.fsdp)
        self._steps: ChargedSteps | None = None
        self.script_run: ScriptRun | None = None
        self._seen = []
        _raise_all(self._static_problems(given))
        given["args"] = self._taken_over(args)
        super().__init__(**given)
        self._agreed = dict(vars(self.args))

    def _static_problems(self, given: dict[str, Any]) -> list[Problem]:
        """Say what can be refused without a look at the data."""
        optimizer, scheduler = given.get("optimizers") or (None, None)
        problems = [
            *argument_problems(self._asked, self.privacy),
            *trainer_problems(type(self), PrivateTraining, vars(self)),
            *part_problems(
                compute_loss_func=given.get("compute_loss_func"),
                model_init=given.get("model_init"),
                callbacks=given.get("callbacks") or (),
                scheduler=scheduler,
                train_dataset=given.get("train_dataset"),
                privacy=self.privacy,
            ),
        ]
        model = given.get("model")
        if isinstance(model, nn.Module):
            problems += model_problems(model)
            problems += optimizer_problems(model, optimizer)
            problems += missing_optimizer(type(self), self._asked, given)
            if self.shards:
                problems += sharding_problems(model, given.get("optimizers"))
        return problems

    def _taken_over(self, args: TrainingArguments) -> TrainingArguments:
        """Leave the loop what it shall do, and take the rest."""
        taken = copy.copy(args)
        taken.gradient_accumulation_steps = 1
        taken.max_grad_norm = 0.0
        taken.bf16 = False
        taken.mixed_precision = "no"
        taken.activation_checkpointing = taken.gradient_checkpointing = False
        taken.fsdp = taken.fsdp_plugin_args = None
        return taken

    @property
    def _output(self) -> Path:
        """Folder of the script's results."""
        return Path(self.args.output_dir or "trainer_output")

    @property
    def certificate(self) -> Certificate | None:
        """What is guaranteed after all that was paid until now; None before."""
        return None if self.script_run is None else self.script_run.certificate()

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,  # noqa: FBT001 - its signature
        trial: object = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train privately: check everything, then pay block by block.

        Args:
            resume_from_checkpoint: as in transformers; of the same `output_dir`.
            trial: must be None.
            ignore_keys_for_eval: as in transformers.

        Raises:
            ConfigError: something would break the claim; all at once.
            PrivacyError, ArtifactError: see `ScriptRun.alone` and `ScriptRun.begin`.
            BudgetExceededError: the data set cannot pay for it.
        """
        checkpoint = checkpoint_to_resume(resume_from_checkpoint, self._output)
        self.ranks = ranks = Ranks.current()
        if self.script_run is not None:
            self.script_run.check_place(self._output / "privacy")
        run, feed = self._prepared(trial, checkpoint)
        with ExitStack() as held:
            ranks.once(lambda: held.enter_context(run.alone()))
            attempt = int(ranks.once(partial(run.begin, checkpoint, self.model)))
            check_alike(ranks, {"output_dir": run.id})
            self.script_run = run
            self.args.max_steps = run.stage.num_steps
            self._agreed["max_steps"] = run.stage.num_steps
            if checkpoint and checkpoint.name == f"checkpoint-{run.stage.num_steps}":
                return self._end(run, checkpoint)
            with ExitStack() as stack:
                paying = run.charging(self.model)
                charge = stack.enter_context(first_rank_pays(ranks, paying))
                stack.enter_context(self._computing(feed))
                self._parts: dict[str, object] = {}
                self._open = partial(self._opened, stack, feed, charge, attempt)
                try:
                    done = super().train(  # type: ignore[misc]
                        resume_from_checkpoint=checkpoint and str(checkpoint),
                        ignore_keys_for_eval=ignore_keys_for_eval,
                    )
                    check_same(self._parts, self._steered())
                finally:
                    self._steps = None
            self._finish(run)
        metrics = {k: v for k, v in done.metrics.items() if k not in _PRIVATE}
        return TrainOutput(done.global_step, done.training_loss, metrics)

    def _end(self, run: ScriptRun, checkpoint: Path) -> TrainOutput:
        """End a training that has taken its last step, and may have been cut off."""
        state, kept = ended_with(checkpoint, best=self.args.load_best_model_at_end)
        with first_rank_pays(self.ranks, run.charging(self.model)):
            self._load_from_checkpoint(str(kept))  # type: ignore[attr-defined]
        self.state = state
        self._finish(run)
        return TrainOutput(state.global_step, 0.0, {})

    def _finish(self, run: ScriptRun) -> None:
        """Let the first rank write what may be said; tell listeners on all."""
        weights = tensors_digest(self.whole_state())
        self.ranks.once(partial(run.finish, weights, self.state.global_step))
        tell_issued(run.certificate())

    def _prepared(
        self, trial: object, checkpoint: Path | None
    ) -> tuple[ScriptRun, Feed]:
        """Refuse all that must be, and plan the rest."""
        problems = self._static_problems(
            {
                "model": self.model,
                "optimizers": (self.optimizer, self.lr_scheduler),
                "compute_loss_func": self.compute_loss_func,
                "callbacks": self.callback_handler.callbacks,
                "train_dataset": self.train_dataset,
            }
        )
        problems += changed_arguments(self._agreed, vars(self.args))
        if trial is not None:
            problems.append(no_search())
        problems += accelerator_problems(self.accelerator)
        if problems:
            raise ConfigError(problems)
        rows = self._rows()
        plan = plan_script(
            self.privacy,
            num_units=rows.data.num_units,
            batch_size=self.expected_batch_size,
            epochs=self._asked.num_train_epochs,
            max_steps=self._asked.max_steps,
            learning_rate=self._asked.learning_rate or 1e-3,
        )
        feed = self._feed(rows, plan.stages[0])
        check_numbers(
            plan.stages[0].num_steps,
            self.privacy.block_size,
            feed.physical_batch_size,
            rows.data,
            max_tokens=feed.max_tokens,
            needs_whole_units=self.shards,
        )
        run = ScriptRun(
            folder=self._output / "privacy",
            privacy=self.privacy,
            plan=plan,
            rows=rows,
            digest=self._digest(feed, plan.stages[0]),
            budget=self._budget,
            drops_rows=getattr(self._asked, "max_length", None) is not None,  # TRL
        )
        resumed = checkpoint.name if checkpoint else ""
        digests = {
            "train_dataset": rows.fingerprint,
            "privacy": repr(self.privacy),
            "args": f"{shared_arguments(self._asked)} {resumed}",
        }
        check_alike(self.ranks, digests, whole=run.digest)
        with self._computing(feed):
            check_private(self.model, feed, seed=self.privacy.seed)
            check_own_loss(self.model, feed, next_step=_OWN_LOSS)
            self._guard = StepGuard(self.model)
        return run, feed

    @property
    def expected_batch_size(self) -> int:
        """Units per step that the script's arguments ask for, over all ranks."""
        asked = self._asked
        size = asked.per_device_train_batch_size * asked.gradient_accumulation_steps
        return size * int(asked.world_size)

    def _rows(self) -> UnitRows:
        """Read the data set by units, and look for it in the evaluation sets."""
        found = self._train_rows()
        self._read = None  # other rows may stand there now, and others were seen
        self._seen = []
        faults = row_problems(found.data, self.model, path="train_dataset")
        _raise_all(faults + self._seen_problems(found))
        return found

    def _feed(self, rows: UnitRows, stage: StagePlan) -> Feed:
        """Bring rows to the model as the script's arguments say."""
        config = getattr(self.model, "config", None)
        known = (
            getattr(of, "pad_token_id", None) for of in (config, self.processing_class)
        )
        longest = self.privacy.max_tokens
        return Feed(
            data=rows.data,
            record_loss=record_loss_of(stage, rows.data, max_tokens=longest or 1),
            physical_batch_size=self._asked.per_device_train_batch_size,
            pad_token_id=next((int(pad) for pad in known if pad is not None), 0),
            device=self.args.device,
            autocast=bool(self._asked.bf16),
            fixed_shapes=self.privacy.fixed_shapes,
            max_tokens=longest,
            ranks=self.ranks,
            in_step=self.shards,
        )

    @contextmanager
    def _computing(self, feed: Feed) -> Iterator[None]:
        """Switch on what the engine computes by, whatever a script has around it."""
        recomputes = bool(self._asked.activation_checkpointing)
        with as_written(feed.device), modes_of(self.model, feed, recomputes=recomputes):
            yield

    def _digest(self, feed: Feed, stage: StagePlan) -> str:
        """Tell this training from all others."""
        settings = (
            stage.num_steps,
            feed.pad_token_id,
            repr(feed.record_loss),
            str(self._asked.optim),
            self.privacy.seed,
            "bfloat16" if feed.autocast else "float32",
        )
        return run_fingerprint(
            self.model,
            feed.data,
            plan=stage.training_plan(),
            optimizer=optimizer_of(stage),
            settings=settings,
        )

    def _opened(
        self, stack: ExitStack, feed: Feed, charge: Charge, attempt: int
    ) -> ChargedSteps:
        """Open the engine on the model that the loop trains, where it starts."""
        run = cast("ScriptRun", self.script_run)
        plan = cast("GradientPlan", run.stage.training_plan())
        self._guard.check_begin(self.model, self.optimizer)
        source = stack.enter_context(
            gradient_source(
                self.model,
                plan=plan,
                feed=feed,
                seed=self.privacy.seed,
                attempt=attempt,
            )
        )
        stack.callback(setattr, self, "lr_scheduler", self.lr_scheduler)
        self.lr_scheduler = WatchedSchedule(self.lr_scheduler, self._steps_of)
        stack.enter_context(self.lr_scheduler.watching())
        self._parts = self._steered()
        stack.enter_context(self._guard.watching(self.optimizer))
        return ChargedSteps(
            plan=plan,
            feed=feed,
            source=source,
            first_step=self.state.global_step,
            num_steps=run.stage.num_steps,
            block_size=plan.whole_block(self.privacy.block_size),
            charge=charge,
            seed=self.privacy.seed,
            attempt=attempt,
        )

    def training_step(
        self,
        model: nn.Module,
        inputs: object,  # noqa: ARG002 - of the loop
        num_items_in_batch: object = None,  # noqa: ARG002
    ) -> Tensor:
        """Leave the released gradients of a step in `grad`; the loss is private."""
        self.close_weights()
        if self._steps is None:
            self._steps = self._open()
        check_same(self._parts, self._steered())
        self._guard.check(self.optimizer)
        self.lr_scheduler.check()
        model.train()
        step = int(self.state.global_step)
        indices = self._steps.draw(step)
        if indices is None:
            raise PrivacyError("a step must be paid before it is drawn.")
        totals = self._steps.compute(indices, step=step)
        self._guard.note_release()
        return torch.tensor(totals.loss, device=self.args.device)

    def _steered(self) -> dict[str, object]:
        """Return what steps are taken of, and by."""
        return {
            "model": self.model,
            "optimizer": self._steps_of,
            "lr_scheduler": self.lr_scheduler,
        }

    def _get_grad_norm(self, model: nn.Module, grad_norm: object = None) -> object:
        """Measure the released gradient as the loop does, which scales it by one."""
        found: object = super()._get_grad_norm(model, grad_norm)  # type: ignore[misc]
        self._guard.note_scaled_by_one()
        return found

    def get_train_dataloader(self) -> DataLoader[None]:
        """Return as many empty batches as an epoch has steps, in expectation.

        Raises:
            PrivacyError: there is no training: batches are drawn by the engine alone.
        """
        if self.script_run is None:
            raise PrivacyError(
                "get_train_dataloader must be left to train: rows are drawn there, by "
                "a coin for each unit. Call train, or look at train_dataset."
            )
        units = CountedUnits(self.script_run.stage.num_units)
        size = min(self.expected_batch_size, len(units))
        return DataLoader(units, batch_size=size, collate_fn=collate_nothing)

    def floating_point_ops(self, inputs: object) -> int:  # noqa: ARG002
        """Return 0: how much a drawn batch computes is private."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Tell callbacks everything, and the state that is stored what may be."""
        super().log(logs, start_time)  # type: ignore[misc]
        for name in _PRIVATE:
            self.state.log_history[-1].pop(name, None)

    def hyperparameter_search(self, *_: object, **__: object) -> None:
        """Refuse: every trial would train on the private data.

        Raises:
            ConfigError: always.
        """
        raise ConfigError([no_search()])

    def _save_checkpoint(self, model: nn.Module, trial: object) -> None:
        """Tie a checkpoint to what was paid, before it is written.

        The loop drops those with the earliest times: where the clock was set back, that
        would be the one that it has just written.
        """
        run = cast("ScriptRun", self.script_run)
        new = self._output / f"checkpoint-{self.state.global_step}"
        self.ranks.once(partial(run.note_checkpoint, new))
        earlier = sort_checkpoints(str(self._output)) if self.args.should_save else []
        for folder in map(Path, earlier):
            os.utime(folder)
        super()._save_checkpoint(model, trial)  # type: ignore[misc]


def _raise_all(problems: list[Problem]) -> None:
    """Raise one error with every problem."""
    if problems:
        raise ConfigError(problems)
