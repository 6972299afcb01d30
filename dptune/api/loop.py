"""A loop of private steps, taken by itself or by a body that is the script's."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dptune.accounting.certificates import Certificate
from dptune.api.refusing import clipped_again
from dptune.api.stand_ins import (
    DrawnBatch,
    DrawnColumn,
    PrivateNumber,
    answering_drawn,
)
from dptune.api.target import Account, Sizes
from dptune.dpsgd.feed import Feed, StepTotals
from dptune.dpsgd.guard import StepGuard
from dptune.dpsgd.parameters import trainable_parameters
from dptune.dpsgd.prechecks import as_written, is_checkpointing, modes_of, training_mode
from dptune.dpsgd.rounding import check_float32_products, full_precision
from dptune.dpsgd.step import gradient_source
from dptune.dpsgd.steps import ChargedSteps
from dptune.dpsgd.trainer import StepProgress
from dptune.errors import PrivacyError

_OURS: Final = (
    "The loop steps by itself: remove what does; `close()` gives model and optimizer "
    "back."
)
_OF_BODY: Final = (
    "Each batch has one loss.backward() and one optimizer.step(), between which "
    "clip_grad_norm_ or clip_grad_value_ may clip gradients, and nothing else touches "
    "them or the weights: load and move them before make_private; `close()` gives both "
    "back."
)
_COPY: Final = (
    "two would add the same noise, and the difference of what they release has none. "
    "Call make_private for each, in its own process and with a journal of its own."
)
_WHOLE: Final = (
    "A batch is whole already: let the loader's batch_size be all rows of a step, and "
    "`physical_batch_size` what fits into memory."
)


@dataclass(frozen=True, kw_only=True)
class Batches:
    """What a script's own loader tells of its batches.

    Args:
        length: how many steps make an epoch; public.
        columns: that each of them has.
        has_own_loss: whether the loss is the script's, given beforehand.
    """

    length: int
    columns: tuple[str, ...]
    has_own_loss: bool


class PrivateLoop:
    """Private steps, one each time round a `for`; see `make_private`, which makes it.

    Args:
        model: whose trainable parameters the optimizer has.
        optimizer: steps on released gradients only.
        feed: data and loss.
        account: charges blocks; its plan owns the claim.
        sizes: of blocks, and the seed: None for secret randomness.
        batches: of the loader in whose place the loop comes; None where each step is
            the loop's own.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        feed: Feed,
        account: Account,
        sizes: Sizes,
        batches: Batches | None = None,
    ) -> None:
        self.num_steps = account.target.num_steps
        self.plan = account.plan
        self.batches = batches
        self._model = model
        self._optimizer = optimizer
        self._feed = feed
        self._account = account
        self._parameters = list(trainable_parameters(model).values())
        self._taken = self._passes = 0
        self._is_releasing = False
        self._turn: _Turn | None = None
        self._guard = StepGuard(model, way_out=_OURS if batches is None else _OF_BODY)
        self._open = ExitStack()
        hook = optimizer.register_step_pre_hook(self._before_step)
        self._open.callback(hook.remove)
        self._open.enter_context(self._guard.watching(optimizer))
        self._sizes = sizes
        self._steps: ChargedSteps | None = None
        self._is_over = False
        self._process = os.getpid()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or written.

        Raises:
            PrivacyError: always.
        """
        raise PrivacyError(
            f"a loop must stay the only one, got a copy of it: {_COPY} Save a model by "
            "save_pretrained or its state_dict."
        )

    def __len__(self) -> int:
        """Return how many steps there are; in place of a loader, in an epoch."""
        return self.num_steps if self.batches is None else self.batches.length

    def __iter__(self) -> Iterator[Any]:
        """Train, a step each time.

        In place of a loader, an epoch's steps, and the next ones when it is gone
        through again, until all are taken: a batch each time, which the body hands to
        the model. Else a `StepProgress`, whose `loss` and `tokens` are private.

        Raises:
            PrivacyError: something else changed gradients or weights, a body left its
                step undone, or all steps are taken. Nothing is charged or drawn then.
        """
        self._check_open()
        return self._pass(min(self._taken + len(self), self.num_steps))

    def certificate(self) -> Certificate:
        """State what all charged steps guarantee, those of earlier loops included.

        As long as steps are left, conditional on what ends it here (`end_is_public`): a
        body sees the loss.

        Raises:
            ArtifactError: the journal was tampered with.
        """
        is_cut_short = 0 < self._taken < self.num_steps
        return self._account.certificate(is_cut_short=is_cut_short)

    def close(self) -> None:
        """Let go of model and optimizer; a loop that runs to its end does so itself."""
        self._is_over = True
        self._steps = self._turn = None
        self._open.close()

    def _pass(self, end: int) -> Iterator[Any]:
        """Go through the data once; what was charged for steps left out stays so."""
        self._passes = number = self._passes + 1
        try:
            while self._taken < end:
                self._check_open()
                if self._steps is None:
                    self._steps = self._begun()
                if self.batches is None:
                    yield self._step()
                else:
                    turn = self._turn = _Turn(self, self.batches)
                    yield turn.batch
                    turn.check_done()
        finally:
            self._account.learning.note_weights()
            is_left = self.batches is None or self._taken == self.num_steps
            if number == self._passes and is_left:
                self.close()

    def _check_open(self) -> None:
        """Refuse to go on where the loop has let go of model and optimizer."""
        if self._is_over:
            raise PrivacyError(
                "a loop must run once: its steps are paid for once. The model keeps "
                "what it has learnt: end the script's loop there and save it. More "
                "steps are planned in num_steps, or by another make_private with the "
                "same journal."
            )

    def _begun(self) -> ChargedSteps:
        """Open the engine on the model, and hold it until the loop is over."""
        self._guard.check(self._optimizer)
        for parameter in self._parameters:
            if parameter.grad is not None:
                self._refuse_gradient()
        enter = self._open.enter_context
        recomputes = is_checkpointing(self._model)
        enter(modes_of(self._model, self._feed, recomputes=recomputes))
        seed = self._sizes.seed
        with self._as_usual():
            source = enter(
                gradient_source(
                    self._model, plan=self.plan, feed=self._feed, seed=seed, attempt=0
                )
            )
        if self.batches is not None:
            enter(answering_drawn(self._model))
        for parameter in self._parameters:
            hook = parameter.register_hook(self._refuse_gradient)  # type: ignore[no-untyped-call]
            self._open.callback(hook.remove)
        self._guard.note_built()
        return ChargedSteps(
            plan=self.plan,
            feed=self._feed,
            source=source,
            first_step=0,
            num_steps=self.num_steps,
            block_size=self._sizes.block_size,
            charge=self._account.charge,
            seed=seed,
            attempt=0,
        )

    def release(self) -> StepTotals:
        """Pay for a step if it is the first of a block, draw it, and fill `grad`.

        Raises:
            PrivacyError: something else changed weights or the model, or it has ended.
        """
        if self._steps is None:
            raise PrivacyError("a loop must be at work to draw, got one that is over.")
        if os.getpid() != self._process:
            raise PrivacyError(
                f"a loop must draw in the process that has made it, got a fork: {_COPY}"
            )
        check_float32_products()
        self._check_settings()
        self._guard.check(self._optimizer)
        self._is_releasing = True
        try:
            with self._as_usual(), training_mode(self._model):
                indices = self._steps.draw(self._taken)
                if indices is None:
                    raise PrivacyError("a plan of fixed noise must draw in every step.")
                totals = self._steps.compute(indices, step=self._taken)
        except BaseException:
            self.close()  # what is drawn once is drawn no more
            raise
        finally:
            self._is_releasing = False
        self._taken += 1
        return totals

    @contextmanager
    def _as_usual(self) -> Iterator[None]:
        """Compute as written, whatever modes of torch a script has around its loop."""
        with as_written(self._feed.device), full_precision(self._feed.device):
            yield

    def take(self) -> list[Tensor | None]:
        """Take what is in `grad` out of the optimizer's reach."""
        found = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return found

    def hand_out(self, gradients: Sequence[Tensor | None]) -> None:
        """Let the optimizer act once on what was released."""
        with torch.inference_mode(mode=False):
            copies = _copies(gradients)
        for parameter, gradient in zip(self._parameters, copies, strict=True):
            parameter.grad = gradient
        self._guard.note_release()

    def check_at(self, turn: "_Turn") -> None:
        """Refuse a batch that is over, and a model with other weights in it.

        Raises:
            PrivacyError: it was not given out last, or trained weights were replaced.
        """
        if self._turn is not turn:
            raise PrivacyError(
                "a batch must be used before the next one is drawn, got one of an "
                "earlier time round, whose step is paid for once. Take one batch at a "
                "time, from one loop."
            )
        self._guard.check_covered(self._optimizer)

    def _step(self) -> StepProgress:
        """Release one gradient and let the optimizer act on it."""
        totals = self.release()
        self._guard.note_release()
        self._optimizer.step()
        self.take()
        return StepProgress(
            step=self._taken,
            num_steps=self.num_steps,
            tokens=totals.num_tokens,
            seconds=0.0,
            tokens_per_second=0.0,
            loss=PrivateNumber(totals.loss),
        )

    def _before_step(
        self, _: object, args: Sequence[object], kwargs: dict[str, object]
    ) -> None:
        """Refuse what decides a step; compute a script's clip from what is released."""
        if kwargs.get("closure", args[1:]) not in ((), (None,), None):
            raise PrivacyError(
                "optimizer.step must be called without a closure: a loss that is "
                "computed again is drawn again, and was paid for once. Call "
                "loss.backward() before it."
            )
        self._check_settings()
        if self._turn is None:
            return
        released = self._turn.stepped()
        if released and not self._guard.holds:
            clipped = clipped_again([p.grad for p in self._parameters], released)
            if clipped is not None:
                self.hand_out(clipped)

    def _check_settings(self) -> None:
        """Refuse an optimizer that is steered by what is private."""
        groups = self._optimizer.param_groups
        found = (v for group in groups for name, v in group.items() if name != "params")
        if any(isinstance(value, PrivateNumber) for value in tree_leaves(list(found))):
            raise PrivacyError(
                "learning rates and other settings of the optimizer must not follow "
                "the training loss, which is private. Let them follow steps."
            )

    def _refuse_gradient(self, *_: Tensor) -> None:
        """Refuse gradients of weights that are not the engine's own."""
        if not self._is_releasing:
            raise PrivacyError(
                "gradients must come from the loop alone, got a backward pass of the "
                "script, which is neither clipped nor noised, and cannot be "
                "accumulated. Remove it, or run it under torch.no_grad; `close()` lets "
                "go of a loop that was left early."
            )


class _Turn:
    """One time round a script's own body: what it may do, once and in which order."""

    def __init__(self, loop: PrivateLoop, batches: Batches) -> None:
        self._loop = loop
        self.columns = batches.columns
        self.has_own_loss = batches.has_own_loss
        columns = {name: DrawnColumn.of(self, name) for name in batches.columns}
        self.batch = DrawnBatch(columns)
        self._totals: StepTotals | None = None
        self._released: list[Tensor | None] = []
        self._has_backward = self._has_step = False

    def check(self) -> None:
        """Refuse what is left of an earlier time round."""
        self._loop.check_at(self)

    def loss(self) -> float:
        """Return the mean loss, of units that are paid for. Private."""
        if self._totals is None:
            self.check()
            self._totals = self._loop.release()
            self._released = self._loop.take()
        return self._totals.loss

    def backward(self) -> None:
        """Leave the released gradient in `grad`, once."""
        self.check()
        if self._has_backward:
            raise PrivacyError(
                "loss.backward must be called once for each batch, got a second call: "
                f"the gradient was released, and paid for, once. {_WHOLE}"
            )
        self.loss()
        self._has_backward = True
        self._loop.hand_out(self._released)

    def stepped(self) -> list[Tensor | None]:
        """Note that the optimizer acts; return what was released for it, once."""
        self._has_step = self._has_backward
        released, self._released = self._released, []
        return released if self._has_backward else []

    def check_done(self) -> None:
        """Refuse a body that has left its step undone.

        Raises:
            PrivacyError: it was not taken whole, or is over already.
        """
        self.check()
        if not self._has_backward:
            raise PrivacyError(
                "loss.backward must be called once for each batch, got a body without "
                "it: every step is planned and paid for. To take fewer steps, plan "
                "fewer in num_steps, or leave the loop with `break`."
            )
        if not self._has_step:
            raise PrivacyError(
                "optimizer.step must be called once for each batch, got a body without "
                f"it: gradients of several batches are not added up. {_WHOLE}"
            )


def _copies(gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Copy what was released: a script may keep it, and the engine sums in its own."""
    return [None if gradient is None else gradient.clone() for gradient in gradients]
