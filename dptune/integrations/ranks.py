"""A script that a launcher starts several times: its processes are ranks of one run.

The launcher is the script's (`torchrun`, `accelerate launch`), and so is the process
group, which `TrainingArguments` initialises. What the ranks do together is what
`dptune.dpsgd.distributed` says: one draw, noise once for each entry of the sum, one
charge, each by the first rank. Here is what the loop of a trainer would do otherwise:

| the loop of transformers | here |
|---|---|
| wraps the model, so that gradients are averaged over ranks | leaves it as it is |
| FSDP2 by Accelerate, whose sums no clip has seen | the engine shards the model |
| every rank reads, writes and decides by itself | the first rank, for all |

Weights and optimizer of a sharded model are stored whole, so that any number of ranks
goes on from them, also one.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from transformers import TrainingArguments

from dptune.dpsgd.distributed import ALONE, Ranks
from dptune.dpsgd.guard import StepGuard
from dptune.dpsgd.parameters import trainable_parameters
from dptune.dpsgd.sharding import gathered, part_like, shard_model
from dptune.dpsgd.steps import Charge
from dptune.errors import ConfigError, PrivacyError, Problem

_SHARED: Final = (
    "activation_checkpointing",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "bf16",
    "eval_on_start",
    "eval_steps",
    "eval_strategy",
    "fsdp",
    "gradient_accumulation_steps",
    "learning_rate",
    "logging_steps",
    "logging_strategy",
    "lr_scheduler_kwargs",
    "lr_scheduler_type",
    "max_steps",
    "num_train_epochs",
    "optim",
    "optim_args",
    "per_device_train_batch_size",
    "save_steps",
    "save_strategy",
    "warmup_steps",
    "weight_decay",
)
"""Training arguments that steer what all ranks compute, and when they meet."""


class RankedTraining:
    """What makes a trainer of transformers leave its ranks to the engine.

    Attributes:
        ranks: this process among those that train; alone before training.
        shards: whether the engine keeps a part of every weight on each rank.
    """

    args: TrainingArguments  # what the other base has
    model: nn.Module
    optimizer: Any
    ranks: Ranks = ALONE
    shards: bool = False
    _guard: StepGuard

    def _inner_training_loop(self, *positional: object, **named: object) -> object:
        """Begin with one model: the first rank's weights on all, or parts of them."""
        if not self.ranks.is_alone:
            self._guard.check_model(self.model)
            self.ranks.equalise(trainable_parameters(self.model))
            model: Any = self.model
            model._is_accelerate_prepared = True  # else it is wrapped, and averages
        if self.shards:
            shard_model(self.model, ranks=self.ranks, device=self.args.device)
            self._guard = StepGuard(self.model)
        return super()._inner_training_loop(*positional, **named)  # type: ignore[misc]

    def _move_model_to_device(self, model: nn.Module, device: torch.device) -> None:
        """Leave a model where it is that may be too large for one device."""
        if not self.shards:
            super()._move_model_to_device(model, device)  # type: ignore[misc]

    def close_weights(self) -> None:
        """Drop the weights that an evaluation has gathered and not let go of."""
        if isinstance(self.model, FSDPModule):
            self.model.reshard()

    @property
    def _is_sharded(self) -> bool:
        """Whether this rank holds parts of the weights."""
        return isinstance(self.model, FSDPModule)

    def whole_state(self) -> dict[str, Tensor]:
        """Return all weights and buffers by name; tied ones share their memory.

        Where weights are sharded, every rank must call this, and the first one alone
        gets them.
        """
        if not self._is_sharded:
            return dict(self.model.state_dict())
        self.close_weights()
        state = self.model.state_dict(keep_vars=True)
        found: dict[int, Tensor | None] = {}
        for value in state.values():
            if id(value) not in found:
                whole = gathered(value.detach())
                found[id(value)] = whole.cpu() if self.ranks.is_first else None
        named = ((name, found[id(value)]) for name, value in state.items())
        return {name: whole for name, whole in named if whole is not None}

    def save_model(
        self,
        output_dir: str | None = None,
        _internal_call: bool = False,  # noqa: FBT001, FBT002 - its signature
    ) -> None:
        """Save as transformers does; where weights are sharded, on every rank.

        Args:
            output_dir: as in transformers.
        """
        if not self._is_sharded:
            super().save_model(output_dir, _internal_call)  # type: ignore[misc]
            return
        whole = self.whole_state()
        if self.args.should_save:
            self._save(output_dir, state_dict=whole)  # type: ignore[attr-defined]

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the state of the optimizer whole."""
        with ExitStack() as stack:
            if self._is_sharded:
                whole = _whole_optimizer(self._steps_of, self.ranks)
                hook = self._steps_of.register_state_dict_post_hook
                stack.callback(hook(lambda *_: whole).remove)
            super()._save_optimizer_and_scheduler(output_dir)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Take this rank's part of a state that was stored whole."""
        with ExitStack() as stack:
            if self._is_sharded:
                hook = self._steps_of.register_load_state_dict_pre_hook
                stack.callback(hook(_parts_of_optimizer).remove)
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]

    @property
    def _steps_of(self) -> torch.optim.Optimizer:
        """The optimizer itself, without what Accelerate puts around it."""
        found: torch.optim.Optimizer = getattr(
            self.optimizer, "optimizer", self.optimizer
        )
        return found


def _whole_optimizer(optimizer: torch.optim.Optimizer, ranks: Ranks) -> dict[str, Any]:
    """Gather the state of an optimizer of parts; only the first rank keeps it."""
    found = optimizer.state_dict()  # whose inner dictionaries are the optimizer's own
    state: dict[int, dict[str, Any]] = {}
    for index, entries in found["state"].items():
        state[index] = {}
        for key, value in entries.items():
            whole = gathered(value).cpu() if isinstance(value, Tensor) else value
            if ranks.is_first:
                state[index][key] = whole
    return found | {"state": state}


def _parts_of_optimizer(
    optimizer: torch.optim.Optimizer, stored: dict[str, Any]
) -> dict[str, Any]:
    """Cut a whole state to the parts that this rank holds of the parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {
            key: part_like(value, parameters[index])
            if isinstance(value, Tensor) and value.shape == parameters[index].shape
            else value
            for key, value in entries.items()
        }
        for index, entries in stored["state"].items()
    }
    return stored | {"state": state}


@contextmanager
def first_rank_pays(
    ranks: Ranks, paying: AbstractContextManager[Charge]
) -> Iterator[Charge]:
    """Hold a budget on the first rank alone; the others hear of every refusal.

    Args:
        ranks: all of which must enter and leave together.
        paying: what holds the budget, and hands out what charges it.

    Raises:
        DptuneError: what the first rank raised on its way in or out, on every rank.
    """
    with ExitStack() as stack:
        held: list[Charge] = [_refuse_to_pay]
        ranks.once(lambda: held.append(stack.enter_context(paying)))
        yield held[-1]
        ranks.once(stack.close)


def _refuse_to_pay(first_step: int, num_steps: int) -> None:  # noqa: ARG001 - a charge
    """Say that only the first rank can charge."""
    raise PrivacyError("the first rank must charge for all, and no other one.")


def check_alike(ranks: Ranks, digests: Mapping[str, str], *, whole: str = "") -> None:
    """Refuse ranks that would train different things; all differences at once.

    Args:
        ranks: all of which must call this.
        digests: of what must be the same, by its name in a script.
        whole: digest of these and of the model.

    Raises:
        ConfigError: on every rank.
    """
    differing = [name for name, digest in digests.items() if ranks.differs(digest)]
    if ranks.differs(whole) and not differing:
        differing = ["model"]
    if differing:
        raise ConfigError([_unlike(name) for name in differing])


def shared_arguments(args: TrainingArguments) -> str:
    """Write down the training arguments that must be the same on every rank."""
    return repr([str(getattr(args, name, None)) for name in _SHARED])


def _unlike(name: str) -> Problem:
    """Refuse what is not the same on every rank."""
    return Problem(
        path=name,
        message="must be the same on every rank, got differences.",
        next_step=_WAYS_OUT[name],
    )


_WAYS_OUT: Final = {
    "train_dataset": "Give every rank all rows in one order: units are dealt out by "
    "the engine, and a shuffle needs one seed.",
    "privacy": "Give every rank the same PrivacyArguments.",
    "args": "Give every rank the same TrainingArguments.",
    "model": "Load the same model on every rank, and freeze the same weights.",
    "output_dir": "Give every rank one folder on a disk that all of them see.",
}
