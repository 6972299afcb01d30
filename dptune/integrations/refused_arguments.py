"""Training arguments that would break the claim, each with the way out.

A value is refused for what it does to the claim, or because nobody has checked what it
does; the message says which.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch.distributed as dist
from accelerate.utils import get_cpu_distributed_information
from transformers import TrainingArguments

from dptune.errors import Problem
from dptune.integrations.arguments import PrivacyArguments

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
        next_step="Start the script with torchrun; for a model that fits on no single "
        "device, set fsdp.",
    ),
    _Rule(
        name="deepspeed_plugin",
        allowed=_unset,
        wanted="None",
        reason="it sums gradients before they are clipped by unit",
        next_step="Launch without DeepSpeed; for a model that fits on no single "
        "device, set fsdp.",
    ),
    _Rule(
        name="save_on_each_node",
        allowed=_unset,
        wanted="False",
        reason="all ranks share one output_dir, and the first one writes",
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
        name="skip_memory_metrics",
        allowed=bool,
        wanted="True",
        reason="how much memory a drawn batch took is private",
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
REPORTS_INSIDE: Final = (
    "Set privacy.reports_stay_inside if what is kept stays inside the trust boundary, "
    "or report to none."
)
IF_PUBLIC: Final = (
    "Evaluate on public records and set privacy.evaluation_is_public, or drop it."
)


def is_layerwise(optimizer: str) -> bool:
    """Whether an optimizer of this name steps in the backward pass."""
    return "lomo" in optimizer or "layerwise" in optimizer


def argument_problems(
    args: TrainingArguments, privacy: PrivacyArguments
) -> list[Problem]:
    """Say which training arguments a claim cannot live with."""
    found = [_told(rule, args) for rule in _RULES if not _holds(rule, args)]
    if not privacy.evaluation_is_public:
        found += [
            _told(rule, args, next_step=IF_PUBLIC)
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
    """Refuse devices and processes that are no ranks of one group."""
    found = []
    started = get_cpu_distributed_information().world_size
    has_group = dist.is_available() and dist.is_initialized()
    joined = dist.get_world_size() if has_group else 1
    if args.n_gpu > 1:
        found.append(
            Problem(
                path="args.world_size",
                message=f"must be one process for each device, got {args.n_gpu} "
                "devices in one: gradients would be averaged before they are clipped "
                "by unit.",
                next_step="Start the script with torchrun --nproc-per-node, or show it "
                "one device.",
            )
        )
    if args.world_size != joined or (started > 1 and joined == 1):
        found.append(
            Problem(
                path="args.world_size",
                message=f"must be the number of processes, got {args.world_size} where "
                f"{max(started, joined)} were started: each would train by itself.",
                next_step="Start the script with torchrun or accelerate launch, set "
                "use_cpu where there is no GPU, and leave the process group to "
                "TrainingArguments.",
            )
        )
    return [*found, *_sharding_problems(args)] if args.fsdp else found


def _sharding_problems(args: TrainingArguments) -> list[Problem]:
    """Refuse forms of sharding that the engine does not have."""
    given = args.fsdp_config if isinstance(args.fsdp_config, dict) else {}
    stored = given.get("state_dict_type", "FULL_STATE_DICT")
    checks = {
        "fsdp": (
            args.world_size > 1,
            "must have several processes to shard a model over.",
            "Start the script with torchrun, or drop fsdp.",
        ),
        "fsdp_config": (
            int(given.get("version", 2)) == 2,
            (
                "must have version 2: FSDP1 flattens weights, and sums gradients "
                "before they are clipped by unit."
            ),
            "Set version to 2.",
        ),
        "fsdp_config.cpu_offload": (
            not given.get("cpu_offload"),
            f"must be off: {_UNTESTED}.",
            "Drop it.",
        ),
        "fsdp_config.xla": (not given.get("xla"), f"must be off: {_UNTESTED}.", ""),
        "fsdp_config.activation_checkpointing": (
            not given.get("activation_checkpointing"),
            "must be off: the engine recomputes layers itself.",
            "Set gradient_checkpointing in TrainingArguments.",
        ),
        "fsdp_config.state_dict_type": (
            stored == "FULL_STATE_DICT",
            f"must be FULL_STATE_DICT, got {stored}: weights are stored whole.",
            "Drop it: tensors are gathered one at a time.",
        ),
    }
    return _broken(checks)


def _value_problems(
    args: TrainingArguments, privacy: PrivacyArguments
) -> list[Problem]:
    """Refuse values that depend on other values."""
    clip, config = args.max_grad_norm, args.accelerator_config
    given = args.activation_checkpointing_kwargs
    recompute = given if isinstance(given, dict) else {}
    trackers = {args.report_to} if isinstance(args.report_to, str) else args.report_to
    told = sorted(set(trackers or ()) - {"none"})
    optimizer = str(getattr(args.optim, "value", args.optim))  # an enum, or its name
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
                "would be kept there."
            ),
            REPORTS_INSIDE,
        ),
        "optim": (
            not is_layerwise(optimizer),
            (
                f"must not be {optimizer}: it sees gradients in the backward pass, "
                "before they are clipped and noised."
            ),
            "Use adamw_torch, or another one that steps at the end.",
        ),
        "gradient_checkpointing_kwargs": (
            not recompute.get("use_reentrant", False),
            (
                "must not ask for use_reentrant, nor under its other name "
                "activation_checkpointing_kwargs: its first pass has no graph."
            ),
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
    return _broken(checks)


def _broken(checks: Mapping[str, tuple[bool, str, str]]) -> list[Problem]:
    """List the checks that do not hold: argument -> (holds, what is wrong, way out)."""
    return [
        Problem(path=f"args.{name}", message=message, next_step=next_step)
        for name, (holds, message, next_step) in checks.items()
        if not holds
    ]
