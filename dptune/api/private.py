"""A private training step for a loop of one's own."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import get_ident
from types import NoneType
from typing import Any, ClassVar, Final, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader

from dptune.api.arguments import Arguments
from dptune.api.loop import Batches, PrivateLoop
from dptune.api.refusing import check_start
from dptune.api.rows import check_kind, check_loader, rows_of
from dptune.api.target import ADD_UP, Account, Sizes, Spend, asked
from dptune.data.collated import Rows
from dptune.dpsgd.dataset import PhysicalBatch, UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss, RecordLoss
from dptune.dpsgd.own_loss import check_own_loss
from dptune.dpsgd.prechecks import (
    as_written,
    check_private,
    check_shapes,
    is_checkpointing,
    modes_of,
)
from dptune.errors import ModelError
from dptune.logits import NO_TARGET
from dptune.privacy import NeighboringRelation

Batch = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Batch], Tensor]
_JOURNAL: Final = "ledger.jsonl"
_UNNAMED: Final = f"must be named where there is a {_JOURNAL} already."
_NAME_IT: Final = (
    f'Say journal="{_JOURNAL}" to train on the same rows again: what was spent counts '
    "against target_epsilon. Name another file for other rows."
)
_OWN_LOSS: Final = "A loss of your own is the argument `loss` of make_private."
DTYPES: Final[Sequence[Literal["float32", "bfloat16"]]] = ("float32", "bfloat16")


@dataclass(frozen=True, kw_only=True)
class LossOfScript:
    """A loss that a script gives, of each row by itself.

    Args:
        loss: takes the model and `input_ids`, `attention_mask` and `labels` as
            transformers has them; returns `(rows,)`.
        name: of the function: checkpoints belong to it.
        has_classes: `labels` are classes, `(rows,)`; else targets, `(rows, time)`.
        beside: is told of every module that the loss asks beside the model; raises to
            refuse it.
    """

    is_of_script: ClassVar[bool] = True
    loss: Loss = field(repr=False)
    name: str
    has_classes: bool
    beside: Callable[[nn.Module], None] = field(repr=False)

    def __call__(self, model: nn.Module, batch: PhysicalBatch) -> Tensor:
        """Return losses, `(rows,)`.

        Raises:
            ModelError: the script returned something else.
        """
        labels = batch.labels if self.has_classes else None
        if labels is None:
            is_target = batch.loss_weights > 0
            labels = torch.where(is_target, batch.input_ids, NO_TARGET)
        rows = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "labels": labels,
        }
        with _asked_beside(model, self.beside):
            losses = self.loss(model, rows)
        shape = getattr(losses, "shape", None)
        if not isinstance(losses, Tensor) or shape != (batch.num_rows,):
            got = type(losses).__name__ if shape is None else f"shape {tuple(shape)}"
            raise ModelError(
                "loss must return one value for each row, a tensor of shape (rows,), "
                f"got {got}. A mean or sum over the batch cannot be clipped row by "
                "row: leave the reduction out."
            )
        return losses

    def total_nll(self, losses: Tensor, batch: PhysicalBatch) -> tuple[float, float]:
        """Sum losses of real rows that are finite, and count them. Private."""
        real = torch.isfinite(losses) & (batch.loss_weights.sum(1) > 0)
        return float(losses.detach()[real].sum()), float(real.sum())


@contextmanager
def _asked_beside(
    model: nn.Module, tell: Callable[[nn.Module], None]
) -> Iterator[None]:
    """Tell of the modules that this thread calls and that are not of a model."""
    own, thread = set(map(id, model.modules())), get_ident()

    def called(module: nn.Module, _: object) -> None:
        if id(module) not in own and get_ident() == thread:
            tell(module)

    hook = register_module_forward_pre_hook(called)
    try:
        yield
    finally:
        hook.remove()


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Rows | DataLoader[Any],
    *,
    target_epsilon: float,
    target_delta: float,
    num_steps: int,
    expected_batch_size: int | None = None,
    max_grad_norm: float,
    max_tokens: int,
    pad_token_id: int | None = None,
    journal: str | Path | None = None,
    loss: Loss | None = None,
    owners: Sequence[str | int] | None = None,
    max_rows_per_unit: int = 1,
    public_units: int | None = None,
    relation: NeighboringRelation | str = NeighboringRelation.ADD_OR_REMOVE_ONE,
    physical_batch_size: int = 8,
    block_size: int = 10,
    dtype: Literal["float32", "bfloat16"] = "float32",
    fixed_shapes: bool | None = None,
    spend: Spend | None = None,
    seed: int | None = None,
) -> PrivateLoop:
    """Make the steps of a training loop private, one each time round a `for`.

    Given a `DataLoader`, the loop comes in its place, and the body stays the script's:

    ```python
    loader = make_private(model, optimizer, loader, ...)
    for batch in loader:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    ```

    The batch is drawn when the loss is asked for, by a coin for each unit; it, the
    output and the loss are stand-ins that hold no record, and refuse by name whatever
    the claim would not cover. `backward` leaves the released gradient: every unit's own
    is clipped to C, the sum is noised and divided by `expected_batch_size`. Given rows,
    each time round is such a step, of the optimizer too, and the body has none of it.
    The engine, its checks and its accounting are those of `train`, which also resumes
    and trains on several ranks.

    **Formal guarantee**: the weights after all steps are (target_epsilon,
    target_delta)-DP for one unit under `relation`, together with what the journal held
    before, as `certificate()` states with its assumptions. The claim is about the rows
    as they are handed over: where one was made of several people's texts, or depends on
    rows of others (packing, deduplication, a vocabulary), so does the unit.

    | case | what happens |
    |---|---|
    | nobody is drawn | the step is noise only |
    | a unit has a NaN or infinite gradient | it contributes zero |
    | the loop is left early | a block more is charged at most; the claim: conditional |
    | the journal holds charges | they count against the target |

    **Privacy**: `loss` and `tokens` are private: nothing may be decided by them.

    Args:
        model: parameters with `requires_grad` are trained, in float32; on its device.
        optimizer: torch's own, of exactly these parameters.
        data: rows by number, of known length: `input_ids`, and maybe `attention_mask`
            and `labels` (the tokens, -100 where nothing is learnt; or a class). Or a
            loader of such rows, each of which goes through its collator alone.
        target_epsilon: of the whole loop, above 0.
        target_delta: in (0, 1 / number of units).
        num_steps: of the loop, at least 1.
        expected_batch_size: units per step, the public divisor.
        max_grad_norm: C, L2 bound on one unit's gradient.
        max_tokens: public length that no row exceeds; the losses' public normalizer.
        pad_token_id: fills the padding. None takes that of the model's configuration,
            or else 0.
        journal: file that every block is charged to before its noise is drawn. None
            takes a new one, `ledger.jsonl`.
        loss: takes the model and a batch (`input_ids`, `attention_mask`, `labels`) and
            returns one value for each row, `(rows,)`. By default cross-entropy: of
            targets over `max_tokens`, or of the class.
        owners: the unit that owns each row, as text or a whole number: `17` and `"17"`
            are one. None makes each row a unit, and of rows that say the same one: a
            warning says how many are left out.
        max_rows_per_unit: contribution bound; further rows of an owner are left out.
        public_units: number of units as the public knows it, to two digits. None takes
            the exact number for public, and the certificate says so.
        relation: which data sets are neighbors.
        physical_batch_size: rows in memory at once.
        block_size: steps that are charged together.
        dtype: of forward and backward; norms and sums stay float32.
        fixed_shapes: pad every batch to `max_tokens`. None does for large models, where
            the length of one record would move others by rounding.
        spend: charges each block elsewhere too, such as to a `BudgetStore`, before it
            is drawn; raises to refuse it.
        seed: known randomness, for tests: nothing is claimed then.

    Raises:
        ConfigError: numbers, model and optimizer do not fit; all at once.
        DataError: rows that cannot be trained on.
        ModelError: model or loss mix records, or cannot be trained privately.
        PrivacyError: the journal is about other data, the model has learnt from these
            rows under another one, or torch computes below float32.
        InfeasibleBudgetError: no noise is enough.

    >>> import tempfile, torch
    >>> from dptune.testing import tiny_model
    >>> model = tiny_model()
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> folder = tempfile.TemporaryDirectory()
    >>> loop = make_private(
    ...     model,
    ...     optimizer,
    ...     [{"input_ids": [1, 2, 3, number]} for number in range(40)],
    ...     target_epsilon=8.0,
    ...     target_delta=1e-3,
    ...     num_steps=3,
    ...     expected_batch_size=8,
    ...     max_grad_norm=1.0,
    ...     max_tokens=4,
    ...     pad_token_id=0,
    ...     journal=f"{folder.name}/ledger.jsonl",
    ... )
    >>> for step in loop:
    ...     pass  # scheduler.step(), logging, evaluation
    >>> loop.certificate().epsilon <= 8.0
    True
    >>> folder.cleanup()
    """
    given = Arguments()
    path = given.place("journal", _JOURNAL if journal is None else journal, what="file")
    if journal is None and path.exists():
        given.refuse("journal", _UNNAMED, _NAME_IT)
    if isinstance(data, DataLoader):
        with given.also():
            check_loader(data, expected_batch_size)
        expected_batch_size = data.batch_size or 1
    target, sizes = asked(
        given,
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        num_steps=num_steps,
        expected_batch_size=expected_batch_size,
        max_grad_norm=max_grad_norm,
        relation=relation,
        public_units=public_units,
        owned=owners is not None,
        max_tokens=max_tokens,
        pad_token_id=padding_of(model, pad_token_id),
        max_rows_per_unit=max_rows_per_unit,
        physical_batch_size=physical_batch_size,
        block_size=block_size,
        seed=seed,
    )
    precision = given.choice("dtype", dtype, DTYPES)
    given.kind("model", model, nn.Module)
    given.kind("fixed_shapes", fixed_shapes, bool, NoneType)
    given.functions(loss=loss, spend=spend)
    with given.also():
        check_kind(data.dataset if isinstance(data, DataLoader) else data, owners)
    if isinstance(model, nn.Module):
        with given.also():
            check_start(model, optimizer)
    given.check()
    batches, by_rows = None, len(data) if isinstance(data, DataLoader) else None
    data, columns = rows_of(data) if isinstance(data, DataLoader) else (data, ())
    units = sizes.units(data, owners, model=model, own_loss=loss is not None)
    if by_rows is not None:
        length = target.epoch_steps(units)
        _warn_of_rows(target.num_steps, by_rows=by_rows, by_units=length)
        batches = Batches(length=length, columns=columns, has_own_loss=loss is not None)
    account, _ = Account.opened(path, units, target, sizes, model=model, spend=spend)
    check_shapes(account.plan, dtype=precision, max_tokens=sizes.max_tokens)
    feed = _feed(
        model, account, units, sizes, loss=loss, dtype=precision, shapes=fixed_shapes
    )
    modes = modes_of(model, feed, recomputes=is_checkpointing(model))
    with as_written(feed.device), modes:
        check_private(model, feed, seed=sizes.seed)
        if batches is not None and loss is None:
            check_own_loss(model, feed, next_step=_OWN_LOSS)
    return PrivateLoop(
        model=model,
        optimizer=optimizer,
        feed=feed,
        account=account,
        sizes=sizes,
        batches=batches,
    )


def _warn_of_rows(num_steps: int, *, by_rows: int, by_units: int) -> None:
    """Tell whoever counts steps by rows that the number of steps says how many.

    Args:
        num_steps: of all epochs.
        by_rows: steps of an epoch as the loader counts them.
        by_units: steps of an epoch as the plan counts them.
    """
    is_multiple = by_rows > 0 and num_steps % by_rows == 0
    if not is_multiple or num_steps % by_units == 0:
        return
    warnings.warn(
        f"num_steps is {num_steps // by_rows} times len(loader), which counts rows: "
        "whoever sees how many steps were taken learns from it how many rows there "
        "are, which the claim does not cover. An epoch has "
        f"{by_units} steps here: say num_steps={num_steps // by_rows * by_units}.",
        stacklevel=3,
    )


def padding_of(model: object, pad_token_id: int | None) -> int:
    """Return the token that pads: as given, or of a model's configuration, or 0."""
    if pad_token_id is not None:
        return pad_token_id
    config = getattr(model, "config", None)
    return getattr(config, "pad_token_id", None) or 0


def _feed(
    model: nn.Module,
    account: Account,
    units: UnitDataset,
    sizes: Sizes,
    *,
    loss: Loss | None,
    dtype: str,
    shapes: bool | None,
) -> Feed:
    """Return the batches of a loop, on the model's device."""
    return Feed(
        data=units,
        record_loss=loss_of(loss, units, account, max_tokens=sizes.max_tokens),
        physical_batch_size=sizes.physical_batch_size,
        pad_token_id=sizes.pad_token_id,
        device=next(model.parameters()).device,
        autocast=dtype == "bfloat16",
        fixed_shapes=shapes,
        max_tokens=sizes.max_tokens,
    )


def loss_of(
    loss: Loss | None, data: UnitDataset, account: Account, *, max_tokens: int
) -> RecordLoss:
    """Return the script's loss, or the one that suits the data."""
    if loss is not None:
        name = getattr(loss, "__qualname__", type(loss).__qualname__)
        return LossOfScript(
            loss=loss,
            name=name,
            has_classes=data.labels is not None,
            beside=partial(account.learning.check_beside, way_out=ADD_UP),
        )
    if data.labels is not None:
        return ClassificationLoss()
    return CausalLoss(loss_normalizer=float(max_tokens))
