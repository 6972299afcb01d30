"""What callbacks do to a model while it trains: refused before it is paid for.

Mutants: a guard that looks at nothing after the first step; one that lets the optimizer
act on whatever is in `grad`; steps whose number may come twice; settings of an
optimizer, its state, or parts of a trainer that may change on the way.
"""

import copy
import functools

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from dptune.errors import PrivacyError
from dptune.integrations import steering
from tests.support import models
from tests.unit.integrations.conftest import asked, make_rows


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


def setting(name, value):
    def act(state, *, optimizer, **_):
        optimizer.param_groups[0][name] = value

    return act


def forget(state, *, optimizer, **_):
    optimizer.state.clear()


def leave_out(state, *, optimizer, **_):
    del optimizer.param_groups[0]["params"][1:]


def weaken_momentum(state, *, optimizer, **_):
    for entries in optimizer.state.values():
        entries["exp_avg"].mul_(0.5)


STEERS = {
    "lr": setting("lr", 0.5),
    "weight_decay": setting("weight_decay", 0.5),
    "betas": setting("betas", (0.5, 0.9)),
    "eps": setting("eps", 1.0),
    "state": forget,
    "momentum": weaken_momentum,
    "params": leave_out,
}
PLACES = ["on_pre_optimizer_step", "on_optimizer_step", "on_step_end"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("act", STEERS.values(), ids=STEERS)
def test_callback_that_steers_the_optimizer_is_refused(script, paid, place, act):
    trainer = script(parts={"callbacks": [calling(place, act)]})
    with pytest.raises(PrivacyError, match="must step by what it began with"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert paid() == [4]


def weaken_unmarked(state, *, optimizer, **_):
    for entries in optimizer.state.values():
        entries["exp_avg"].data.mul_(0.5)


@pytest.mark.parametrize("place", PLACES)
def test_state_that_a_callback_writes_without_a_mark_is_refused(script, paid, place):
    trainer = script(parts={"callbacks": [calling(place, weaken_unmarked)]})
    with pytest.raises(PrivacyError, match="must step by what it began with"):
        trainer.train()
    has_acted = place == "on_optimizer_step"  # then it is found before the next act
    assert trainer.state.global_step == 2 + has_acted
    assert paid() == [4]


def test_twin_that_lets_a_callback_steer_ends_with_other_weights(
    script, paid, monkeypatch
):
    monkeypatch.setattr(steering.WatchedSchedule, "check", lambda *_: None)
    act = STEERS["weight_decay"]
    trainer = script(parts={"callbacks": [calling("on_step_end", act)]})
    trainer.train()
    assert trainer.optimizer.param_groups[0]["weight_decay"] == 0.5
    assert sum(paid()) == 15


@pytest.mark.parametrize(
    ("schedule", "args"),
    [
        (torch.optim.lr_scheduler.OneCycleLR, {"max_lr": 0.1, "total_steps": 16}),
        (torch.optim.lr_scheduler.CyclicLR, {"base_lr": 0.01, "max_lr": 0.1}),
        (torch.optim.lr_scheduler.ConstantLR, {}),
    ],
)
def test_schedule_of_a_script_may_set_what_it_sets(script, paid, schedule, args):
    """Two of them move the momentum of SGD, too; a resumed training goes on."""

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            control.should_training_stop = state.global_step == 5

    def trainer(*callbacks):
        model = models.tiny_gpt2(num_layers=1)
        by = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        parts = {"optimizers": (by, schedule(by, **args)), "callbacks": list(callbacks)}
        return script(model=model, parts=parts)

    trainer(Stop()).train()
    done = trainer()
    done.train(resume_from_checkpoint=True)
    assert type(done.lr_scheduler) is schedule
    assert done.state.global_step == 15


def test_schedule_that_follows_public_records_may_act(script):
    trainer = script(
        privacy=asked(evaluation_is_public=True),
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"patience": 0, "threshold": 10.0},
        eval_strategy="steps",
        eval_steps=5,
        parts={"eval_dataset": Dataset.from_list(make_rows(8, seed=5))},
    )
    trainer.train()
    assert trainer.optimizer.param_groups[0]["lr"] < 1e-2


PARTS = {
    "model": lambda t: copy.deepcopy(t.model),
    "optimizer": lambda t: torch.optim.SGD(t.model.parameters(), lr=1e-2),
    "lr_scheduler": lambda t: torch.optim.lr_scheduler.ConstantLR(t.optimizer),
}


@pytest.mark.parametrize("step", [2, 15])
@pytest.mark.parametrize("name", PARTS)
def test_callback_that_replaces_a_part_is_refused(script, paid, name, step):
    class Replace(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            if state.global_step == step:
                setattr(trainer, name, PARTS[name](trainer))

    trainer = script(parts={"callbacks": [Replace()]}, lr_scheduler_type="constant")
    with pytest.raises(PrivacyError, match=rf"trainer\.{name} must stay"):
        trainer.train()
    assert trainer.state.global_step == step
