"""What is checked before a stage is charged, and the modes that a model trains in."""

import math
from collections.abc import Iterator, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from typing import Any, Self

import torch
from peft import PeftType
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from dptune.dpsgd.adapters import inputs_as_given, narrow_scales
from dptune.dpsgd.adaptive_clipping import ClipController
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.distributed import Ranks
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.isolation import COMPARED, make_probe, num_tokens
from dptune.dpsgd.norms import recomputed_norms
from dptune.dpsgd.parameters import Grouping, group_parameters, trainable_parameters
from dptune.dpsgd.plan import GradientPlan, PlainPlan, is_adaptive
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.dpsgd.schedule import Controller
from dptune.dpsgd.selfcheck import check_model
from dptune.dpsgd.untouched import untouched
from dptune.errors import ConfigError, ModelError, PrivacyError, Problem


def check_numbers(
    num_steps: int,
    block_size: int,
    physical_batch_size: int,
    data: UnitDataset,
    *,
    max_tokens: int | None = None,
    needs_whole_units: bool = False,
) -> None:
    """Check what no other part checks; report all at once.

    Where `needs_whole_units`, the rows of a unit must be in memory together: where
    gradients are transformed, or weights sharded.
    """
    least = {
        "num_steps": (num_steps, 1, ""),
        "block_size": (block_size, 1, ""),
        "physical_batch_size": (
            physical_batch_size,
            max(1, data.largest_unit) if needs_whole_units else 1,
            "Raise it to the largest unit, or lower max_sequences_per_unit.",
        ),
        "max_tokens": (
            data.longest_sequence if max_tokens is None else max_tokens,
            data.longest_sequence if data.num_units else 0,
            "Cut longer sequences, or raise it.",
        ),
        "num_units": (data.num_units, 1, "Check that the training split is not empty."),
        "num_targets": (
            data.num_targets,
            min(1, data.num_units),
            "Noise alone would train: weigh tokens behind the first, or cut less.",
        ),
    }
    problems = [
        Problem(
            path=name, message=f"must be at least {low}, got {got}.", next_step=next_
        )
        for name, (got, low, next_) in least.items()
        if got < low
    ]
    if problems:
        raise ConfigError(problems)


def check_shapes(
    plan: GradientPlan | PlainPlan, *, dtype: str, max_tokens: int | None
) -> None:
    """Refuse shapes that would follow the longest sequence, where they must not."""
    if isinstance(plan, GradientPlan) and dtype == "bfloat16" and max_tokens is None:
        raise ConfigError(
            "max_tokens must be given for a private stage in bfloat16, got None: its "
            "shapes are fixed, and the longest sequence is private."
        )


def check_controller(
    plan: GradientPlan | PlainPlan, controller: Controller | None, *, sharding: str
) -> None:
    """Refuse a controller without terms to ask within, and terms without one."""
    adaptive = is_adaptive(plan)
    if adaptive != (controller is not None):
        raise ConfigError(
            "controller must be given exactly when plan.adaptive is, got "
            f"controller {'missing' if adaptive else 'without terms'}. Its wishes are "
            "granted within those terms only."
        )
    steering = isinstance(plan, GradientPlan) and plan.steering
    if steering and not isinstance(controller, ClipController):
        raise ConfigError(
            "controller must be a ClipController where the plan says steering, got "
            f"{type(controller).__name__}."
        )
    if steering and not Ranks.current().is_alone:
        raise ConfigError(
            "a controller that steers clip norms must train in one process."
        )
    if adaptive and sharding != "none":
        raise ConfigError(
            f"sharding must be none for an adaptive plan, got {sharding}: a "
            "controller looks at whole gradients."
        )


def row_problems(
    data: UnitDataset, model: nn.Module, *, path: str, own_loss: bool = False
) -> list[Problem]:
    """Refuse classes and tokens that the model does not have.

    Args:
        data: of the run.
        model: as it will be trained.
        path: what a script calls the rows.
        own_loss: classes are of a script's own loss, which may have more of them.
    """
    config = getattr(model, "config", None)
    classes = getattr(config, "num_labels", math.inf)
    tokens = num_tokens(model)
    faulty = _beyond(data, tokens)
    found = []
    given = 0 if own_loss or data.labels is None else max(2, 1 + data.labels.max())
    if given > classes:
        found.append(
            Problem(
                path=path,
                message=f"must have classes below num_labels={classes} of the model, "
                "which must be two at least.",
                next_step="Load the model with as many labels as the data has.",
            )
        )
    if faulty:
        found.append(
            Problem(
                path=path,
                message=f"must have tokens from 0 to below {tokens:.0f}, which the "
                f"model has embeddings for, got others in {faulty} rows.",
                next_step="Tokenize with the model's own tokenizer, or resize its "
                "embeddings beforehand.",
            )
        )
    return found


def _beyond(data: UnitDataset, tokens: float) -> int:
    """Count rows with a token that is none of so many."""
    return sum(
        int(row.min()) < 0 or int(row.max()) >= tokens
        for row in data.sequences
        if len(row)
    )


def check_private(
    model: nn.Module,
    feed: Feed,
    *,
    grouping: Grouping = Grouping.FLAT,
    seed: int | None,
) -> None:
    """Check precision, gradient rules and company on made-up data, as the run trains.

    Args:
        model: whole, not sharded.
        feed: of the run.
        grouping: of the run's clip.
        seed: None for dropout that nobody can repeat.

    Raises:
        ModelError: the model cannot be trained privately, or does not say how many
            tokens it has and the data has others.
        PrivacyError: torch is set to matrix products below float32.
    """
    precision = torch.get_float32_matmul_precision()
    if precision != "highest":
        raise PrivacyError(
            "matrix products must be computed in full float32 for norms to bound "
            f"gradients, got precision {precision!r}. Call "
            'torch.set_float32_matmul_precision("highest").'
        )
    tokens = num_tokens(model)
    if feed.pad_token_id >= tokens:
        raise ModelError(
            f"pad_token_id must be below the {tokens:.0f} tokens that the model has "
            f"embeddings for, got {feed.pad_token_id}. Pad with a token that it has, "
            "such as that of the end, or call model.resize_token_embeddings first."
        )
    device = next(model.parameters()).device
    randomness = seed_sequence(RandomStream.MODEL, seed=seed)
    groups = group_parameters(trainable_parameters(model), grouping)
    with scoped_randomness(randomness, device=device), training_mode(model):
        fed = feed.for_private_stage(model)
        check_model(model, fed, parameter_groups=groups.__getitem__)
        if math.isinf(tokens):
            _check_table(model, fed)


def _check_table(model: nn.Module, feed: Feed) -> None:
    """Refuse tokens beyond the table of a model that does not say which one it is.

    It is the one that looks up what the model is given.
    """
    batch = make_probe(model, feed).batch((COMPARED[-1],))
    sizes = [math.inf]

    def look(table: nn.Embedding, inputs: tuple[Any, ...]) -> None:
        if inputs and torch.equal(inputs[0], batch.input_ids):
            sizes.append(table.num_embeddings)

    tables = [m for m in model.modules() if isinstance(m, nn.Embedding)]
    with untouched(model), torch.no_grad(), ExitStack() as hooks:
        for table in tables:
            hooks.callback(table.register_forward_pre_hook(look).remove)
        feed.losses(model, batch)
    tokens = min(sizes)
    faulty = _beyond(feed.data, tokens)
    if faulty or feed.pad_token_id >= tokens:
        raise ModelError(
            f"tokens must be from 0 to below {tokens:.0f}, which "
            f"{type(model).__name__} has embeddings for, got others in {faulty} rows "
            f"and pad_token_id {feed.pad_token_id}. Give it a larger table, or "
            "tokenize with fewer."
        )


@contextmanager
def training_mode(model: nn.Module) -> Iterator[None]:
    """Switch dropout on, and back to what it was."""
    was_training = model.training
    model.train()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def checkpointing(model: nn.Module) -> Iterator[None]:
    """Switch gradient checkpointing on, and off again if it was off.

    Raises:
        ModelError: the model cannot do it.
    """
    fields: Any = model
    was_on = is_checkpointing(model)
    if not getattr(model, "supports_gradient_checkpointing", False):
        raise ModelError(
            f"{type(model).__name__} must support gradient checkpointing. Turn "
            "gradient_checkpointing off and lower physical_batch_size."
        )
    peft: Any = getattr(model, "active_peft_config", None)
    if getattr(peft, "peft_type", None) == PeftType.PREFIX_TUNING:
        raise ModelError(
            "gradient checkpointing must be off for prefix tuning, whose prefixes a "
            "layer that is computed again does not get. Turn it off and lower "
            "physical_batch_size, or use LoRA."
        )
    fields.activation_checkpointing_enable(
        {"use_reentrant": False, "context_fn": _as_before}
    )
    try:
        yield
    finally:
        if not was_on:
            fields.activation_checkpointing_disable()


def is_checkpointing(model: nn.Module) -> bool:
    """Whether a model computes activations again in its backward pass."""
    return bool(getattr(model, "is_activation_checkpointing", False))


def _as_before() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Compute again under what a forward pass ran under.

    The self-check turns dropout off by a mode of torch's functions, which a backward
    pass does not know: a layer would be computed again with dropout in it.
    """
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return nullcontext(), _Under(modes)


class _Under(ExitStack):
    """Switches modes of torch's functions on, each time a layer is computed again."""

    def __init__(self, modes: Sequence[TorchFunctionMode]) -> None:
        super().__init__()
        self._modes = tuple(modes)

    def __enter__(self) -> Self:
        """Switch them on."""
        for mode in self._modes:
            self.enter_context(mode)
        return self


@contextmanager
def as_written(device: torch.device) -> Iterator[None]:
    """Compute as the engine says, whatever modes of torch a script has around it.

    A backward pass under a script's autocast would compute below float32, and the norms
    of what it leaves bound nothing.
    """
    with (
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
    ):
        yield


@contextmanager
def modes_of(model: nn.Module, feed: Feed, *, recomputes: bool) -> Iterator[None]:
    """Switch on what a run computes by, and off again.

    Autocast gives adapters inputs of its type, where peft makes a float32 copy for
    every adapter: the engine would hold all of them until the backward pass.

    Args:
        model: to train.
        feed: of the run.
        recomputes: gradient checkpointing.
    """
    with (
        checkpointing(model) if recomputes else nullcontext(),
        inputs_as_given(model, active=feed.autocast),
        recomputed_norms(model) if feed.autocast else nullcontext(),
        narrow_scales(model),
    ):
        yield
