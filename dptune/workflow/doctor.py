"""Can a model be trained privately and exactly, and what would that take?

Asked before anything is spent: the model is loaded and adapted as a stage does it, goes
through the checks that precede every private stage, and takes a few steps on made-up
tokens. No text is read, nothing is charged and no file is written.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from dptune.config import ModelSettings, PerformanceSettings
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.parameters import group_parameters, trainable_parameters
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.prechecks import check_private, modes_of, training_mode
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.refusals import model_name
from dptune.dpsgd.step import gradient_source
from dptune.dpsgd.transform import check_transform
from dptune.dpsgd.untouched import Undropped, scaled
from dptune.errors import DptuneError, ModelError
from dptune.models.check import check_positions
from dptune.models.loading import LoadedModel, load_source
from dptune.models.metadata import ModelMetadata, read_metadata
from dptune.models.source import ArchitectureSource, Base
from dptune.recipes import StageSettings
from dptune.results.doctor import Examined, Need, Speed
from dptune.stages import plan_stage
from dptune.workflow.device import memory_there, peak_memory, place_processes
from dptune.workflow.job import (
    TrainingJob,
    optimizer_of,
    prepare_start,
    record_loss_of,
    start_dtype,
)

MOST_APART = 1e-3
"""Distance from a loop over single records that still counts as exact."""

_RECORDS = (16, 5, 11, 3)
_NUM_UNITS = 1_000_000
_PAIRS, _SECONDS = 3, 3.0
_USABLE = 0.8
_MOST_ROWS, _MOST_TOKENS = 64, 8192
_FEW_ROWS = 4
_CHEAP = 50_000_000


def built(source: ArchitectureSource, *, data_root: Path) -> LoadedModel:
    """Build an architecture with as many tokens as its tokenizer may learn."""
    loaded = load_source(source, data_root=data_root, class_names=(), dtype=None)
    if source.vocab_size is not None:
        loaded.model.resize_token_embeddings(source.vocab_size, mean_resizing=False)
    return loaded


@dataclass(frozen=True, kw_only=True)
class Examination:
    """One stage of a model, to be examined on this machine.

    Args:
        model: its source, task and lengths.
        performance: memory and speed; `physical_batch_size` is what is measured.
        stage: that clips gradients.
        data_root: folder that the source's path starts from.
        may_choose: whether shapes and checkpointing are to be found, not given.
        on_progress: told what is being done.
    """

    model: ModelSettings
    performance: PerformanceSettings
    stage: StageSettings
    data_root: Path
    may_choose: bool
    on_progress: Callable[[str], None] = lambda _: None

    @cached_property
    def device(self) -> str:
        """Where it is computed."""
        return place_processes(self.performance).device

    @cached_property
    def metadata(self) -> ModelMetadata:
        """What the files say, or would if an architecture had any."""
        source = self.model.source
        if not isinstance(source, ArchitectureSource):
            return read_metadata(source, data_root=self.data_root)
        model = built(source, data_root=self.data_root).model
        return ModelMetadata(
            family=model.config.model_type,
            task="causal_lm",
            num_classes=2,
            num_weights=model.num_parameters(),
            num_bytes=4 * model.num_parameters(),
            types=("float32",),
        )

    @property
    def is_quick(self) -> bool:
        """Whether the model can be examined in more than one way."""
        return self.device != "cpu" or self.metadata.num_weights < _CHEAP

    @cached_property
    def job(self) -> TrainingJob:
        """What a run would do; it has no folder."""
        return TrainingJob(
            model=Path(),
            plan=plan_stage(self.stage, num_units=_NUM_UNITS),
            max_tokens=self.model.max_tokens,
            seed=None,
            checkpoint_dir=Path(),
            performance=self.performance,
            base=Base(**self.model.model_dump(include=set(Base.model_fields))),
        )

    @cached_property
    def plan(self) -> GradientPlan:
        """Clip and noise of a step, without what only a run decides on the way."""
        plan = self.job.plan.with_noise(self.job.plan.noise_multiplier or 1.0)
        return replace(
            plan,
            adaptive=None,
            steering=False,
            count_share=plan.count_share if plan.norm_rule else 0.0,
            part_shares=(),
            mixed_parts=False,
        )

    def with_performance(self, **changes: object) -> "Examination":
        """Return the same with other settings of `performance`."""
        return replace(self, performance=self.performance.model_copy(update=changes))

    def load(self) -> LoadedModel:
        """Load and adapt the model as the stage does.

        Raises:
            DptuneError: it cannot be loaded, or does not fit into memory.
        """
        self._check_room()
        self.on_progress("loading the model")
        source, dtype = self.model.source, start_dtype(self.job)
        if isinstance(source, ArchitectureSource):
            loaded = built(source, data_root=self.data_root)
        else:
            names, root = self.model.class_names, self.data_root
            loaded = load_source(source, data_root=root, class_names=names, dtype=dtype)
        check_positions(loaded.model.config, max_tokens=self.model.max_tokens)
        loaded, _ = prepare_start(loaded, self.job)
        nn.Module.to(loaded.model, self.device)
        return loaded

    def _check_room(self) -> None:
        """Refuse what cannot fit before it fills the machine up."""
        there, files, held = memory_there(self.device), self.metadata, self.model
        weights = 4 * files.num_weights
        if self.stage.trains == "full":  # with the sum of gradients and two moments
            weights *= 4 if self.stage.optimizer.name == "adamw" else 2
        elif held.dtype == "stored":
            weights = files.num_bytes
        if there is not None and weights > there:
            raise ModelError(
                f"{files.num_weights / 1e6:.0f} million weights must fit into memory "
                f"with what trains them, which takes {weights / 1e9:.1f} GB at least, "
                f"but there are {there / 1e9:.1f} GB. Train adapters over a base that "
                "is held as it is stored (model.dtype: stored), or take a larger "
                "machine."
            )

    def feed(self, loaded: LoadedModel, lengths: Iterable[int], *, rows: int) -> Feed:
        """Make records of random tokens, none of them a special one."""
        vocabulary = set(loaded.tokenizer.get_vocab().values())
        usual = vocabulary - set(loaded.tokenizer.all_special_ids)
        tokens = np.array(sorted(usual or vocabulary), np.int64)
        draws = np.random.default_rng(0)  # public constants
        sequences = [draws.choice(tokens, n) for n in lengths]
        classes, length = len(self.model.class_names), self.model.max_tokens
        data = UnitDataset(
            sequences=Ragged.of(sequences, np.int64),
            loss_weights=Ragged.of([np.ones(len(s)) for s in sequences], np.float32),
            units=Ragged.cut(np.arange(len(sequences)), np.ones(len(sequences), int)),
            labels=np.arange(len(sequences)) % classes if classes else None,
            max_sequences_per_unit=self.model.max_sequences_per_unit,
        )
        feed = Feed(
            data=data,
            record_loss=record_loss_of(self.job.plan, data, max_tokens=length),
            physical_batch_size=rows,
            pad_token_id=int(loaded.tokenizer.pad_token_id),
            device=torch.device(self.device),
            autocast=self.performance.dtype == "bfloat16",
            fixed_shapes=self.performance.fixed_shapes,
            max_tokens=length,
        )
        return feed.for_private_stage(loaded.model)

    def full_feed(self, loaded: LoadedModel, rows: int) -> Feed:
        """Make as many records as stand side by side, all of the full length."""
        return self.feed(loaded, [self.model.max_tokens] * rows, rows=rows)


def examine(examination: Examination) -> Examined:
    """Check, compare and measure one stage.

    Where it may choose, records that reach each other by padding or by rounding get
    fixed shapes, those that nothing else keeps apart one pass each, and steps that need
    too much memory gradient checkpointing.

    Args:
        examination: what to look at.

    Returns:
        What was found; a model that is refused is no error.

    Raises:
        DptuneError: the model cannot be loaded at all.
    """
    found = _in_shapes(examination)
    is_short = not found.can or found.rows < min(_FEW_ROWS, found.batch)
    if not examination.may_choose or found.need is None or not is_short:
        return found
    saving = examination.with_performance(
        gradient_checkpointing=True,
        fixed_shapes=found.fixed_shapes,
        physical_batch_size=found.batch,
    )
    saved = _examined(saving).model_copy(update={"instead_of": found.instead_of})
    return saved if saved.can and (saved.rows > found.rows or not found.can) else found


def _in_shapes(examination: Examination) -> Examined:
    """Examine with the shapes that are given, or the first that will do.

    One row at a time has no company, and needs no rule.
    """
    first = found = _examined(examination)
    if not examination.may_choose:
        return first
    attempts = [examination.with_performance(physical_batch_size=1)]
    if not first.fixed_shapes:
        attempts.insert(0, examination.with_performance(fixed_shapes=True))
        attempts.append(attempts[0].with_performance(physical_batch_size=1))
    for attempt in attempts:
        if found.can or found.need is not None or found.distance is not None:
            return found  # what is short of memory, or not exact, is not tried again
        found = _examined(attempt).model_copy(update={"instead_of": first.refusals})
    return found if found.can or found.need is not None else first


def _examined(examination: Examination) -> Examined:
    """Examine with the settings as they are."""
    stage, performance = examination.stage, examination.performance
    loaded = examination.load()
    trained = trainable_parameters(loaded.model)
    feed = examination.full_feed(loaded, performance.physical_batch_size)
    found = Examined(
        stage=stage.name,
        trains=stage.trains,
        architecture=model_name(loaded.model),
        batch=performance.physical_batch_size,
        fixed_shapes=bool(feed.fixed_shapes),
        gradient_checkpointing=performance.gradient_checkpointing,
        num_trained=sum(value.numel() for value in trained.values()),
        layers=_adapted_layers(trained),
    )
    recomputes = performance.gradient_checkpointing
    try:
        with modes_of(loaded.model, feed, recomputes=recomputes):
            need = _checked(examination, loaded, feed)
            apart = _distance(examination, loaded)
            found = found.model_copy(update={"distance": apart})
            if not apart <= MOST_APART:
                raise ModelError(
                    f"the sum of clipped gradients must be that of a loop over single "
                    f"records to {MOST_APART:g} of its norm, got {apart:.2g}. Report "
                    f"this with the version of transformers: {found.architecture} "
                    "passed the checks, and must not."
                )
            need, speed = _measured(examination, loaded, need)
    except DptuneError as error:
        return found.model_copy(update={"refusals": (str(error),)})
    update: dict[str, object] = {"need": need, "speed": speed}
    if speed is None:
        refusal = (
            f"a private step of {performance.physical_batch_size} sequences of "
            f"{examination.model.max_tokens} tokens must fit into memory, but does "
            "not. Lower performance.physical_batch_size or model.max_tokens, or train "
            "adapters."
        )
        update["refusals"] = (refusal,)
    update["rows"] = _rows_that_fit(examination, need)
    return found.model_copy(update=update)


def _adapted_layers(trained: Mapping[str, nn.Parameter]) -> tuple[str, ...]:
    """Name the endings of layers that have adapters."""
    adapted = (name.split(".lora_A.")[0] for name in trained if ".lora_A." in name)
    return tuple(sorted({name.rpartition(".")[2] for name in adapted}))


def _checked(examination: Examination, loaded: LoadedModel, feed: Feed) -> Need:
    """Run the checks that precede a private stage, and note what they take."""
    examination.on_progress("checking that no record reaches another's gradient")
    plan, performance = examination.plan, examination.performance
    if plan.transform is not None:
        check_transform(
            loaded.model,
            physical_batch_size=performance.physical_batch_size,
            streams=performance.gradient_checkpointing,
            num_processes=1,
        )
    with peak_memory(examination.device) as peak:
        check_private(loaded.model, feed, grouping=plan.grouping, seed=None)
    return Need(loaded=peak.held, checked=peak.most, length=feed.longest)


def _distance(examination: Examination, loaded: LoadedModel) -> float:
    """Compare a step without noise with a loop over single records.

    The loop knows plain autograd alone: one record, its gradient, its norm, its clip.
    """
    examination.on_progress("comparing with a loop over single records")
    rows = examination.performance.physical_batch_size
    lengths = [min(n, examination.model.max_tokens) for n in _RECORDS]
    feed = examination.feed(loaded, lengths, rows=rows)
    feed = replace(feed, autocast=False, max_tokens=max(lengths))
    plan = replace(examination.plan, noise_multiplier=0.0)
    model = loaded.model
    with training_mode(model), scaled(model, 0), Undropped():
        apart = _sums_of_loop(model, feed, plan)
        size = _norm(apart.values())
        source = gradient_source(model, plan=plan, feed=feed, seed=0, attempt=0)
        with source as private:
            private.compute(np.arange(feed.data.num_units), step=0)
            for name, parameter in trainable_parameters(model).items():
                if parameter.grad is not None:
                    total = parameter.grad * plan.expected_batch_size
                    apart[name] -= total.to(apart[name].device)
    return _norm(apart.values()) / size if size > 0 else math.inf


def _sums_of_loop(
    model: nn.Module, feed: Feed, plan: GradientPlan
) -> dict[str, Tensor]:
    """Sum clipped gradients of one record after the other."""
    parameters = trainable_parameters(model)
    groups = group_parameters(parameters, plan.grouping)
    num_groups = 1 + max(groups.values())
    clip = plan.clip_policy(num_groups=num_groups)
    sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
    for unit in range(feed.data.num_units):
        record = feed.data.collate([unit], feed.pad_token_id)
        if feed.fixed_shapes:  # padding may reach losses, and is then the same for all
            shape = {"num_rows": 1, "num_tokens": feed.longest}
            record = record.filled(**shape, pad_token_id=feed.pad_token_id)
        loss = feed.losses(model, record.to(feed.device)).sum()
        found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {
            name: gradient
            for name, gradient in zip(parameters, found, strict=True)
            if gradient is not None
        }
        norms = torch.tensor(
            [
                [_norm(g for name, g in gradients.items() if groups[name] == group)]
                for group in range(num_groups)
            ]
        )
        factors = clip.factors(norms)
        for name, gradient in gradients.items():
            sums[name] += float(factors[groups[name], 0]) * gradient
    return sums


def _norm(tensors: Iterable[Tensor]) -> float:
    """L2 norm of all entries."""
    return math.sqrt(sum(float(t.double().square().sum()) for t in tensors))


def _measured(
    examination: Examination, loaded: LoadedModel, need: Need
) -> tuple[Need, Speed | None]:
    """Measure steps of two sizes; no speed where one of the asked size does not fit."""
    asked = examination.performance.physical_batch_size
    few = asked // 2 if asked >= 4 else asked
    sizes = (1,) if asked == 1 else (few, 2 * few) if asked < 4 else (few, asked)
    there = memory_there(examination.device)
    try:
        with training_mode(loaded.model):
            optimizer = _optimizer(examination, loaded)
            for rows in sizes:
                examination.on_progress(f"measuring a private step of {rows} sequences")
                most = need.steps[-1] if need.steps else None
                grown = most and need.loaded + (most[1] - need.loaded) * rows / most[0]
                if grown and there is not None and grown > there:
                    break
                feed = examination.full_feed(loaded, rows)
                opened = _step_of(examination, loaded, optimizer, feed, private=True)
                with peak_memory(examination.device) as peak, opened as step:
                    step()
                steps = (*need.steps, (rows, peak.most))
                need = need.model_copy(update={"steps": steps})
            if asked not in dict(need.steps):
                return need, None
            return need, _speed(examination, loaded, optimizer)
    except (MemoryError, torch.OutOfMemoryError):
        return need, None


def _optimizer(examination: Examination, loaded: LoadedModel) -> torch.optim.Optimizer:
    """Build the optimizer with its moments, which every step but the first finds."""
    trained = trainable_parameters(loaded.model).values()
    optimizer = optimizer_of(examination.job.plan).build(trained)
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def _speed(
    examination: Examination, loaded: LoadedModel, optimizer: torch.optim.Optimizer
) -> Speed:
    """Let private and ordinary steps take turns, for a few seconds."""
    rows = examination.performance.physical_batch_size
    feed = examination.full_feed(loaded, rows)
    examination.on_progress("timing private and ordinary steps")
    seconds: list[list[float]] = []
    begun = time.perf_counter()
    while len(seconds) < _PAIRS and time.perf_counter() - begun < _SECONDS:
        pair = []
        for private in (True, False):
            opened = _step_of(examination, loaded, optimizer, feed, private=private)
            with opened as step:
                pair.append(step())
        seconds.append(pair)
    private, ordinary = (statistics.median(s) for s in zip(*seconds, strict=True))
    tokens = rows * examination.model.max_tokens
    return Speed(
        private=tokens / private,
        ordinary=tokens / ordinary,
        ratio=statistics.median(mine / its for mine, its in seconds),
    )


@contextmanager
def _step_of(
    examination: Examination,
    loaded: LoadedModel,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    *,
    private: bool,
) -> Iterator[Callable[[], float]]:
    """Prepare a step of the trainer on all records, which returns its seconds."""
    model, rows = loaded.model, feed.data.num_units
    plan = examination.plan if private else PlainPlan(batch_size=rows)
    source = gradient_source(model, plan=plan, feed=feed, seed=None, attempt=0)
    with source as gradients:

        def step() -> float:
            started = time.perf_counter()
            gradients.compute(np.arange(rows), step=0)
            optimizer.step()
            if examination.device != "cpu":  # which would go on behind our back
                torch.cuda.synchronize()
            return time.perf_counter() - started

        yield step


def _rows_that_fit(examination: Examination, need: Need) -> int:
    """Double the sequences as long as they fit, and a pass is not large enough."""
    there = memory_there(examination.device)
    asked, length = examination.performance.physical_batch_size, need.length
    if there is None or need.at(1) is None:
        return asked
    most = min(_MOST_ROWS, max(1, _MOST_TOKENS // length))
    rows = 1
    while 2 * rows <= most and (need.at(2 * rows) or 0) <= _USABLE * there:
        rows *= 2
    transforms = examination.plan.transform is not None
    return max(rows, examination.model.max_sequences_per_unit) if transforms else rows
