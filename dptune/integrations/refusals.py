"""What of a script would break the claim, each with the way out.

A value is refused for what it does to the claim, or because nobody has checked what it
does; the message says which. All are told at once, before anything is charged.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import nn
from torch.utils.data import IterableDataset
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments

from dptune.dpsgd.dataset import IntArray
from dptune.dpsgd.gradients import check_modules
from dptune.dpsgd.parameters import trainable_parameters
from dptune.errors import ModelError, Problem
from dptune.integrations.arguments import PrivacyArguments

_LOCAL_TRACKERS: Final = frozenset({"none", "tensorboard"})
_PLATEAU: Final = frozenset({"reduce_lr_on_plateau", "greedy"})
_DEFAULT_CLIP: Final = TrainingArguments.max_grad_norm
_UNTESTED: Final = "it was not checked with per-unit gradients"


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """One training argument that must have one of its values.

    Args:
        name: of the argument.
        allowed: whether a value may stay.
        wanted: what it must be, in words.
        reason: why.
        next_step: the way out.
    """

    name: str
    allowed: Callable[[Any], bool]
    wanted: str
    reason: str
    next_step: str = ""


def _unset(value: object) -> bool:
    """Whether a switch is off."""
    return not value


_RULES: Final = (
    _Rule(
        name="train_sampling_strategy",
        allowed=lambda value: value == "random",
        wanted="random",
        reason="who is in a step must be drawn unit by unit, whatever their lengths",
        next_step="Drop it: units are drawn by Poisson sampling.",
    ),
    _Rule(
        name="dataloader_drop_last",
        allowed=_unset,
        wanted="False",
        reason="there is no last batch: every step is drawn from all units",
    ),
    _Rule(
        name="data_seed",
        allowed=lambda value: value is None,
        wanted="None",
        reason="who is in a step must be secret, and a seed would tell",
    ),
    _Rule(
        name="full_determinism",
        allowed=_unset,
        wanted="False",
        reason="noise that can be repeated can be subtracted",
    ),
    _Rule(
        name="ignore_data_skip",
        allowed=_unset,
        wanted="False",
        reason="a resumed training would take more steps than were planned and paid",
    ),
    _Rule(
        name="label_smoothing_factor",
        allowed=_unset,
        wanted="0",
        reason="its loss is a mean over the batch, which mixes records",
    ),
    _Rule(
        name="neftune_noise_alpha",
        allowed=lambda value: value is None,
        wanted="None",
        reason="its noise is scaled by the length of the longest row of the batch",
    ),
    _Rule(
        name="auto_find_batch_size",
        allowed=_unset,
        wanted="False",
        reason="it would start over, and the noise of its first tries was paid for",
        next_step="Lower per_device_train_batch_size and raise "
        "gradient_accumulation_steps: their product is the expected batch.",
    ),
    _Rule(
        name="fp16",
        allowed=_unset,
        wanted="False",
        reason="its loss scale follows from the gradients of the batch",
        next_step="Use bf16 with privacy.max_tokens.",
    ),
    _Rule(
        name="tf32",
        allowed=_unset,
        wanted="None or False",
        reason="norms must be computed in full float32 to bound gradients",
    ),
    _Rule(
        name="packing",
        allowed=_unset,
        wanted="False",
        reason="a row would hold several units, and one clip all of them",
    ),
    _Rule(
        name="padding_free",
        allowed=_unset,
        wanted="False",
        reason="a batch would be one row of several units",
    ),
    _Rule(
        name="loss_type",
        allowed=lambda value: value == "nll",
        wanted="nll",
        reason="the engine computes the loss of each row itself",
    ),
    _Rule(
        name="activation_offloading",
        allowed=_unset,
        wanted="False",
        reason=_UNTESTED,
    ),
    _Rule(name="torch_compile", allowed=_unset, wanted="False", reason=_UNTESTED),
    _Rule(name="use_liger_kernel", allowed=_unset, wanted="False", reason=_UNTESTED),
    _Rule(
        name="deepspeed",
        allowed=_unset,
        wanted="None",
        reason="it sums gradients before they are clipped by unit",
        next_step="Use one process, or `run.py train` with performance.num_processes.",
    ),
    _Rule(
        name="fsdp",
        allowed=_unset,
        wanted="unset",
        reason="it sums gradients before they are clipped by unit",
        next_step="Use `run.py train` with performance.sharding: fsdp.",
    ),
    _Rule(
        name="parallelism_config",
        allowed=lambda value: value is None,
        wanted="None",
        reason=_UNTESTED,
    ),
    _Rule(
        name="push_to_hub",
        allowed=_unset,
        wanted="False",
        reason="it sends more than weights, such as the state of the trainer",
        next_step="Call model.push_to_hub after training.",
    ),
    _Rule(
        name="include_num_input_tokens_seen",
        allowed=lambda value: value in (False, "no"),
        wanted="no",
        reason="how many tokens a drawn batch has is private",
    ),
    _Rule(
        name="debug",
        allowed=_unset,
        wanted="unset",
        reason="it prints what private rows do in the model",
    ),
    _Rule(
        name="use_cache",
        allowed=_unset,
        wanted="False",
        reason=_UNTESTED,
    ),
)
_ABOUT_CHOICE: Final = (
    _Rule(
        name="load_best_model_at_end",
        allowed=_unset,
        wanted="False",
        reason="which model is best is measured on records that no noise protects",
    ),
    _Rule(
        name="save_strategy",
        allowed=lambda value: value != "best",
        wanted="steps, epoch or no",
        reason="which model is kept is measured on records that no noise protects",
    ),
    _Rule(
        name="lr_scheduler_type",
        allowed=lambda value: value not in _PLATEAU,
        wanted="a schedule of steps alone",
        reason="its rate follows what is measured on records that no noise protects",
    ),
)
_IF_PUBLIC: Final = (
    "Evaluate on public records and set privacy.evaluation_is_public, or drop it."
)
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


def argument_problems(
    args: TrainingArguments, privacy: PrivacyArguments
) -> list[Problem]:
    """Say which training arguments a claim cannot live with."""
    found = [_told(rule, args) for rule in _RULES if not _holds(rule, args)]
    if not privacy.evaluation_is_public:
        found += [
            _told(rule, args, next_step=_IF_PUBLIC)
            for rule in _ABOUT_CHOICE
            if not _holds(rule, args)
        ]
    return [*found, *_process_problems(args), *_value_problems(args, privacy)]


def _holds(rule: _Rule, args: TrainingArguments) -> bool:
    """Whether an argument is as it must be; some do not exist everywhere."""
    return not hasattr(args, rule.name) or rule.allowed(getattr(args, rule.name))


def _told(rule: _Rule, args: TrainingArguments, *, next_step: str = "") -> Problem:
    """Say what an argument must be."""
    value = getattr(args, rule.name)
    shown = value if isinstance(value, bool | int | float | str) else "a value"
    return Problem(
        path=f"args.{rule.name}",
        message=f"must be {rule.wanted}, got {shown}: {rule.reason}.",
        next_step=rule.next_step or next_step or "Drop it.",
    )


def _process_problems(args: TrainingArguments) -> list[Problem]:
    """Refuse several devices or processes, of whatever kind."""
    devices = max(args.n_gpu, args.world_size)
    if devices <= 1:
        return []
    return [
        Problem(
            path="args.world_size",
            message=f"must be one process with one device, got {devices}: gradients "
            "would be averaged over devices before they are clipped by unit.",
            next_step="Show the script one device, or use `run.py train` with "
            "performance.num_processes.",
        )
    ]


def _value_problems(
    args: TrainingArguments, privacy: PrivacyArguments
) -> list[Problem]:
    """Refuse values that depend on other values."""
    clip, config = args.max_grad_norm, args.accelerator_config
    given = args.activation_checkpointing_kwargs
    recompute = given if isinstance(given, dict) else {}
    trackers = {args.report_to} if isinstance(args.report_to, str) else args.report_to
    told = sorted(set(trackers or ()) - _LOCAL_TRACKERS)
    layerwise = [mark for mark in ("lomo", "layerwise") if mark in str(args.optim)]
    checks = {
        "max_grad_norm": (
            clip in (None, 0, _DEFAULT_CLIP, privacy.max_grad_norm),
            (
                f"must be 0 or privacy.max_grad_norm, got {clip}: two clips are asked "
                "for, and only the one of units bounds what a unit does."
            ),
            "Say C in privacy.max_grad_norm and drop it here.",
        ),
        "bf16": (
            not args.bf16 or privacy.max_tokens is not None,
            (
                "must come with privacy.max_tokens: in bfloat16 shapes are fixed, and "
                "the longest row is private."
            ),
            "Say the length that rows are cut to.",
        ),
        "report_to": (
            not told or privacy.reports_stay_inside,
            (
                f"must not name {', '.join(told)}: the training loss is private, and "
                "goes there."
            ),
            (
                "Set privacy.reports_stay_inside if the tracker is inside the trust "
                "boundary, or report to tensorboard."
            ),
        ),
        "optim": (
            not layerwise,
            (
                f"must not be {args.optim}: it sees gradients in the backward pass, "
                "before they are clipped and noised."
            ),
            "Use adamw_torch, or another one that steps at the end.",
        ),
        "activation_checkpointing_kwargs": (
            not recompute.get("use_reentrant", False),
            "must not ask for use_reentrant: its first pass has no graph.",
            "Drop it: the engine takes the other form.",
        ),
        "accelerator_config": (
            not getattr(config, "gradient_accumulation_kwargs", None),
            (
                "must have no gradient_accumulation_kwargs: the engine adds up the "
                "pieces of a step itself, each clipped by unit."
            ),
            "Drop it and keep gradient_accumulation_steps.",
        ),
    }
    return [
        Problem(path=f"args.{name}", message=message, next_step=next_step)
        for name, (holds, message, next_step) in checks.items()
        if not holds
    ]


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
    train_dataset: object,
    privacy: PrivacyArguments,
) -> list[Problem]:
    """Refuse what is handed to a trainer beside its arguments."""
    stops = any(
        isinstance(c, EarlyStoppingCallback)
        or (isinstance(c, type) and issubclass(c, EarlyStoppingCallback))
        for c in callbacks
    )
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
            _IF_PUBLIC,
        ),
        "train_dataset": (
            train_dataset is not None
            and not isinstance(train_dataset, IterableDataset)
            and hasattr(train_dataset, "__len__")
            and hasattr(train_dataset, "__getitem__"),
            (
                "must be a data set of known length whose rows can be drawn in any "
                f"order, got {type(train_dataset).__name__}."
            ),
            "Load it without streaming.",
        ),
        "privacy.unit_column": (
            owner is None or columns is None or owner in columns,
            "must be a column of train_dataset, got another name.",
            "Keep the column: the model never sees it.",
        ),
    }
    return [
        Problem(path=name, message=message, next_step=next_step)
        for name, (holds, message, next_step) in checks.items()
        if not holds
    ]


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
    if getattr(config, "output_router_logits", False):
        found.append(
            _bad_model(
                "have output_router_logits off: the loss of its "
                "routers is a mean over the batch"
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
    hooked = [
        name
        for name, value in model.named_parameters()
        if value.requires_grad
        and (
            value._backward_hooks or getattr(value, "_post_accumulate_grad_hooks", None)
        )
    ]
    if hooked:
        found.append(
            _bad_model(
                f"have no hooks on gradients, got {len(hooked)}: they "
                "see them before they are clipped and noised"
            )
        )
    return found


def optimizer_problems(model: nn.Module, optimizer: object) -> list[Problem]:
    """Refuse an optimizer of parameters that are not the model's."""
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


def label_problems(labels: IntArray | None, model: nn.Module) -> list[Problem]:
    """Refuse classes that the model does not have."""
    config = getattr(model, "config", None)
    known = getattr(config, "num_labels", math.inf)
    if labels is None or int(labels.max()) < known:
        return []
    return [
        Problem(
            path="train_dataset",
            message=f"must have classes below num_labels={known} of the model.",
            next_step="Load the model with as many labels as the data has.",
        )
    ]


def seen_rows(name: str) -> Problem:
    """Refuse an evaluation on the training data."""
    return Problem(
        path=name,
        message="must not be the training data: what is measured on it is released "
        "without noise.",
        next_step="Hold rows out, whose units are not in train_dataset.",
    )


def no_search() -> Problem:
    """Refuse to search."""
    return Problem(
        path="hyperparameter_search",
        message="must not be used: every trial trains on the private data, and what is "
        "best is told by them.",
        next_step="Tune on public data, or charge each trial to a ScriptBudget with "
        "purpose tuning.",
    )


def own_precision(found: str) -> Problem:
    """Refuse a precision that comes from outside of the script."""
    return Problem(
        path="accelerator",
        message=f"must not compute in {found} by itself: the engine would not know.",
        next_step="Unset ACCELERATE_MIXED_PRECISION; use bf16 with privacy.max_tokens.",
    )


def _bad_model(message: str) -> Problem:
    """Refuse a model."""
    return Problem(path="model", message=f"must {message}.", next_step="Use another.")
