"""What is handed to a trainer beside its arguments and would break the claim.

Each with the way out; all are told at once, before anything is charged.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from accelerate.utils import DistributedType
from peft.tuners.adalora import AdaLoraModel
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset
from transformers import (
    EarlyStoppingCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK
from transformers.optimization import GreedyLR

from dptune.data.collated import piece_problems, repeated_problems
from dptune.dpsgd.gradients import check_modules
from dptune.dpsgd.optimizer import needs_more
from dptune.dpsgd.parameters import hooked_parameters, trainable_parameters
from dptune.errors import ModelError, Problem
from dptune.integrations.arguments import PrivacyArguments
from dptune.integrations.refused_arguments import (
    IF_PUBLIC,
    REPORTS_INSIDE,
    is_layerwise,
)

_KINDS: Final = (
    DistributedType.NO,
    DistributedType.MULTI_CPU,
    DistributedType.MULTI_GPU,
)
_TRACKERS: Final = tuple(INTEGRATION_TO_CALLBACK.values())
_OVERRIDES: Final = (
    "compute_loss",
    "training_step",
    "get_train_dataloader",
    "_get_train_sampler",
    "get_batch_samples",
    "_get_num_items_in_batch",
    "_inner_training_loop",
    "_clip_grad_norm",
    "floating_point_ops",
)


def trainer_problems(
    cls: type, base: type, attributes: Iterable[str] = ()
) -> list[Problem]:
    """Refuse a subclass that computes losses, batches or steps of its own.

    Args:
        cls: of the trainer.
        base: that is ours.
        attributes: set on the trainer itself.
    """
    own = cls.__mro__[: cls.__mro__.index(base)]
    names = {name for part in own for name in vars(part)} | set(attributes)
    return [
        Problem(
            path=f"{cls.__name__}.{name}",
            message="must not be overridden: losses of single rows, batches and steps "
            "are the engine's, and one that mixes records has no clip.",
            next_step="Drop the override.",
        )
        for name in _OVERRIDES
        if name in names
    ]


def part_problems(
    *,
    compute_loss_func: object,
    model_init: object,
    callbacks: Sequence[TrainerCallback | type[TrainerCallback]],
    scheduler: object,
    train_dataset: object,
    privacy: PrivacyArguments,
) -> list[Problem]:
    """Refuse what is handed to a trainer beside its arguments."""
    kinds = [c if isinstance(c, type) else type(c) for c in callbacks]
    stops = any(issubclass(kind, EarlyStoppingCallback) for kind in kinds)
    columns, owner = getattr(train_dataset, "column_names", None), privacy.unit_column
    checks = {
        "compute_loss_func": (
            compute_loss_func is None,
            "must be None: it gets a batch, and what it returns may mix records.",
            "Drop it: the loss of each row is the mean over its targets.",
        ),
        "model_init": (
            model_init is None,
            "must be None: the model that is checked must be the one that is trained.",
            "Pass a model.",
        ),
        "callbacks": (
            not stops or privacy.evaluation_is_public,
            (
                "must not hold EarlyStoppingCallback: when to stop is measured on "
                "records that no noise protects."
            ),
            IF_PUBLIC,
        ),
        "optimizers": (
            not isinstance(scheduler, ReduceLROnPlateau | GreedyLR)
            or privacy.evaluation_is_public,
            (
                "must have a schedule of steps alone: this one's rate follows what is "
                "measured on records that no noise protects."
            ),
            IF_PUBLIC,
        ),
        "train_dataset": (
            train_dataset is not None
            and not isinstance(train_dataset, IterableDataset | Mapping)
            and hasattr(train_dataset, "__len__")
            and hasattr(train_dataset, "__getitem__"),
            (
                "must be a data set of known length whose rows can be drawn in any "
                f"order, got {type(train_dataset).__name__}."
            ),
            "Load it without streaming, and take one split.",
        ),
        "privacy.unit_column": (
            owner is None or columns is None or owner in columns,
            "must be a column of train_dataset, got another name.",
            "Keep the column: the model never sees it.",
        ),
    }
    found = [
        Problem(path=name, message=message, next_step=next_step)
        for name, (holds, message, next_step) in checks.items()
        if not holds
    ]
    if checks["train_dataset"][0] and owner is None:
        owners = "privacy.unit_column"
        found += repeated_problems("train_dataset", train_dataset, owners=owners)
        found += piece_problems("train_dataset", train_dataset, owners=owners)
    if not privacy.reports_stay_inside:
        found += _tracker_problems(kinds)
    return found


def _tracker_problems(kinds: Iterable[type[TrainerCallback]]) -> Iterator[Problem]:
    """Refuse callbacks that keep the training loss elsewhere."""
    if trackers := sorted(k.__name__ for k in kinds if issubclass(k, _TRACKERS)):
        yield Problem(
            path="callbacks",
            message=f"must not hold {', '.join(trackers)}: the training loss is "
            "private, and would be kept there.",
            next_step=REPORTS_INSIDE,
        )


def model_problems(model: nn.Module) -> list[Problem]:
    """Refuse models that no clip by unit fits, before they are tried."""
    found = []
    for check in (check_modules, trainable_parameters):
        try:
            check(model)
        except ModelError as error:
            found.append(Problem(path="model", message=str(error)))
    config: Any = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        found.append(
            _bad_model(
                "be a causal model or a classifier, got one that has "
                "an encoder and a decoder"
            )
        )
    if isinstance(getattr(model, "base_model", None), AdaLoraModel):
        found.append(
            Problem(
                path="model",
                message="must have adapters without a loss of their own, got AdaLoRA's:"
                " it adds a term of its weights, and moves ranks between two steps.",
                next_step="Use LoRA, or make_private with a `loss` of yours and "
                "physical_batch_size=1, where ranks stay as they are.",
            )
        )
    if getattr(config, "output_router_logits", False):
        found.append(
            Problem(
                path="model",
                message="must have output_router_logits off: the loss of its routers "
                "is a mean over the batch.",
                next_step="Set it to False in the model's configuration; TRL, which "
                "sets it by itself, leaves it off with router_aux_loss_coef=0.0 in "
                "SFTConfig.",
            )
        )
    if getattr(config, "problem_type", None) in (
        "regression",
        "multi_label_classification",
    ):
        found.append(
            _bad_model(
                f"have one class for each row, got problem_type {config.problem_type}"
            )
        )
    if isinstance(model, DataParallel | DistributedDataParallel) or any(
        isinstance(value, DTensor) for value in model.parameters()
    ):
        found.append(
            _bad_model(
                "be whole and not wrapped, got one that is spread over devices "
                "or processes already: the engine does so itself"
            )
        )
    hooked = hooked_parameters(model)
    if hooked:
        found.append(
            _bad_model(
                f"have no hooks on gradients, got {len(hooked)}: they "
                "see them before they are clipped and noised"
            )
        )
    return found


def sharding_problems(model: nn.Module, optimizers: object) -> list[Problem]:
    """Refuse what cannot be spread over ranks."""
    given = optimizers if isinstance(optimizers, tuple) else ()
    types = {str(value.dtype) for value in model.parameters()} - {"torch.float32"}
    found = []
    if types:
        found.append(
            Problem(
                path="model",
                message=f"must be float32 to be sharded, got {', '.join(sorted(types))}"
                " as well: a part of a weight has the type of its block.",
                next_step="Load it in float32, or drop fsdp.",
            )
        )
    if any(part is not None for part in given):
        found.append(
            Problem(
                path="optimizers",
                message="must be None with fsdp: the weights that they hold are "
                "replaced by parts.",
                next_step="Say optim and lr_scheduler_type in TrainingArguments.",
            )
        )
    return found


def optimizer_problems(model: nn.Module, optimizer: object) -> list[Problem]:
    """Refuse an optimizer of other parameters, or one that a release is not enough for.

    Args:
        model: that is trained.
        optimizer: that was handed over, perhaps wrapped; None if none was.
    """
    inner = getattr(optimizer, "optimizer", optimizer)
    if isinstance(inner, torch.optim.Optimizer) and (more := needs_more(inner)):
        return [
            Problem(
                path="optimizers",
                message=f"must need one gradient for a step, {more}.",
                next_step="Use AdamW or SGD.",
            )
        ]
    groups = getattr(optimizer, "param_groups", ())
    known = {id(value) for value in model.parameters()}
    foreign = sum(id(p) not in known for group in groups for p in group["params"])
    if not foreign:
        return []
    return [
        Problem(
            path="optimizers",
            message=f"must hold parameters of the model alone, got {foreign} others: "
            "no clip covers them.",
            next_step="Make the optimizer from model.parameters().",
        )
    ]


def missing_optimizer(
    cls: type, args: TrainingArguments, given: Mapping[str, Any]
) -> list[Problem]:
    """Refuse an optimizer that no installed library makes, before budgets are held.

    Args:
        cls: of the trainer, which may make another one itself.
        args: that name it.
        given: to the trainer: its model, and an optimizer in place of that one.
    """
    name = str(getattr(args.optim, "value", args.optim))
    is_own = getattr(cls, "create_optimizer", None) is not Trainer.create_optimizer
    is_given = (given.get("optimizers") or (None,))[0] is not None
    other = is_given or given.get("optimizer_cls_and_kwargs") is not None
    if is_own or other or is_layerwise(name):  # which is refused as such
        return []
    try:
        Trainer.get_optimizer_cls_and_kwargs(args, given["model"])
    except (ImportError, RuntimeError, ValueError) as error:
        why = " ".join(str(error).split()).rstrip(".")
        message = f"must be an optimizer that can be made here, got {name}: {why}."
        next_step = "Do so, or use adamw_torch."
        return [Problem(path="args.optim", message=message, next_step=next_step)]
    return []


def seen_rows(name: str) -> Problem:
    """Refuse an evaluation on the training data."""
    return Problem(
        path=name,
        message="must not be the training data: what is measured on it is released "
        "without noise.",
        next_step="Hold rows out, whose units are not in train_dataset.",
    )


def changed_arguments(
    agreed: Mapping[str, object], now: Mapping[str, object]
) -> list[Problem]:
    """Refuse arguments that were changed on the trainer: nobody has looked at them."""
    names = [
        name
        for name in sorted(agreed.keys() | now.keys())
        if name not in agreed or name not in now or agreed[name] != now[name]
    ]
    return [
        Problem(
            path=f"args.{name}",
            message="must stay what the trainer was made with, but was changed since.",
            next_step="Make a trainer with the arguments that you want.",
        )
        for name in names
        if not name.startswith("_")
    ]


def no_search() -> Problem:
    """Refuse to search."""
    return Problem(
        path="hyperparameter_search",
        message="must not be used: every trial trains on the private data, and what is "
        "best is told by them.",
        next_step="Tune on public data, or charge each trial to a ScriptBudget with "
        "purpose tuning.",
    )


def accelerator_problems(accelerator: Any) -> list[Problem]:  # noqa: ANN401 - untyped
    """Refuse what comes from outside of the script, by a launcher's settings."""
    precision, kind = accelerator.mixed_precision, accelerator.distributed_type
    checks = {
        f"compute in {precision} by itself: the engine would not know": (
            precision == "no",
            "Unset ACCELERATE_MIXED_PRECISION; use bf16 with privacy.max_tokens.",
        ),
        f"run as {kind}: gradients would be summed before they are clipped by unit": (
            kind in _KINDS,
            (
                "Launch processes alone, such as with torchrun, and ask for sharding "
                "by fsdp of TrainingArguments."
            ),
        ),
    }
    return [
        Problem(path="accelerator", message=f"must not {what}.", next_step=next_step)
        for what, (holds, next_step) in checks.items()
        if not holds
    ]


def _bad_model(message: str) -> Problem:
    """Refuse a model."""
    return Problem(path="model", message=f"must {message}.", next_step="Use another.")
