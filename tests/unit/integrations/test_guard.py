"""What callbacks do to a model while it trains: refused before it is paid for.

Mutants: a guard that looks at nothing after the first step; one that lets the optimizer
act on whatever is in `grad`; steps whose number may come twice.
"""

import functools

import pytest
import torch
from transformers import TrainerCallback

from dptune.errors import PrivacyError


def calling(hook, act):
    """A callback that does something once, behind the second step."""

    class Callback(TrainerCallback):
        def __init__(self):
            self.is_done = False

    def called(self, args, state, control, **named):
        if state.global_step == 2 and not self.is_done:
            self.is_done = True
            act(state, **named)

    setattr(Callback, hook, called)
    return Callback()


def loss_of(model):
    ids = torch.tensor([[1, 2, 3, 4]])
    return model(input_ids=ids, labels=ids).loss


def add_gradient(state, *, model, **_):
    loss_of(model).backward()


def replace_gradients(state, *, model, **_):
    values = list(model.parameters())
    found = torch.autograd.grad(loss_of(model), values)
    for value, gradient in zip(values, found, strict=True):
        value.grad = gradient


def step_by_hand(state, *, model, optimizer, **_):
    loss_of(model).backward()
    optimizer.step()


def write_weights(state, *, model, **_):
    with torch.no_grad():
        next(model.parameters()).add_(1.0)


def wrap(state, *, model, **_):
    forward = model.forward
    model.forward = functools.partial(forward)


def hook(state, *, model, **_):
    model.transformer.h[0].register_forward_hook(lambda *_: None)


def count_back(state, **_):
    state.global_step -= 1


@pytest.mark.parametrize(
    ("place", "act", "match"),
    [
        ("on_pre_optimizer_step", add_gradient, "act once on each released"),
        ("on_pre_optimizer_step", replace_gradients, "act once on each released"),
        ("on_step_end", step_by_hand, "act once on each released"),
        ("on_step_end", write_weights, "moved by released gradients alone"),
        ("on_step_end", wrap, "must stay as it was checked"),
        ("on_step_end", hook, "must stay as it was checked"),
        ("on_step_end", count_back, "one after another"),
    ],
)
def test_callback_that_moves_what_was_not_released_is_refused(
    script, paid, place, act, match
):
    trainer = script(parts={"callbacks": [calling(place, act)]})
    with pytest.raises(PrivacyError, match=match):
        trainer.train()
    assert paid() == [4]  # the block that had begun


def test_callback_that_only_looks_is_let(script, paid):
    looked = []

    def look(state, *, model, **_):
        looked.extend(value.grad for value in model.parameters())

    trainer = script(parts={"callbacks": [calling("on_pre_optimizer_step", look)]})
    trainer.train()
    assert paid() == [4, 4, 4, 3]
    assert looked
    assert not trainer.optimizer.optimizer._optimizer_step_pre_hooks
