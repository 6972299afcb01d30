"""A loop in place of a script's loader: its body stays, and what it may not do."""

import copy
import functools
import itertools
import multiprocessing
import re
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from transformers import GPT2LMHeadModel, default_data_collator

from dptune.accounting.assumptions import Assumption
from dptune.api import loop as loops
from dptune.api import private, stand_ins, target
from dptune.api.private import make_private
from dptune.api.refusing import clipped_again
from dptune.api.stand_ins import DrawnColumn, PrivateNumber
from dptune.dpsgd import guard
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.sampling import PoissonSampler
from dptune.errors import ConfigError, ModelError, PrivacyError
from dptune.models.build import add_lora
from dptune.privacy import CertificateStatus
from dptune.testing import tiny_model
from tests.support import models
from tests.support.bodies import (
    AS_IT_WAS,
    NUMBERS,
    REAL,
    REFUSED,
    ROWS,
    STEERING,
    step,
    train,
    weights,
)

WANTED = {
    "target_epsilon": 8.0,
    "target_delta": 1e-3,
    "max_grad_norm": 0.5,
    "max_tokens": 4,
    "num_steps": 4,
    "block_size": 1,
    "seed": 3,
}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    """Leave out what other tests see to: the self-check, and to look for noise."""
    monkeypatch.setattr(private, "check_private", lambda *_, **__: None)
    monkeypatch.setattr(target, "calibrate_noise_multiplier", noise)


calibrate = target.calibrate_noise_multiplier
found = {}


def noise(event_at, **options):
    if not found:
        found[0] = calibrate(event_at, **options)
    return found[0]


def nothing(*_, **__):
    """What a check that is left out does."""


@functools.cache
def base():
    return tiny_model(num_tokens=8)


@pytest.fixture
def made(tmp_path):
    """Make a script whose loader has two batches, of four steps in all."""

    def scripted(**changes):
        model = changes.pop("model", None) or copy.deepcopy(base())
        trained = [value for value in model.parameters() if value.requires_grad]
        optimizer = changes.pop("optimizer", torch.optim.AdamW)(trained, lr=0.01)
        kind, first = changes.pop("loader", DataLoader), changes.pop("first", None)
        rows = [*changes.pop("rows", ROWS)]
        if first is not None:
            row = [first, *NUMBERS[0][1:]]
            rows[0] = {"input_ids": row, "attention_mask": [1] * 4, "labels": row}
        loader = kind(rows, 20, shuffle=True, collate_fn=default_data_collator)
        journal = tmp_path / "ledger.jsonl"
        loop = make_private(
            model, optimizer, loader, **{**WANTED, "journal": journal, **changes}
        )
        return SimpleNamespace(
            model=model, optimizer=optimizer, loader=loop, journal=journal, plain=loader
        )

    return scripted


def charged(script):
    return (
        len(script.journal.read_text().splitlines()) if script.journal.exists() else 0
    )


def test_claim_of_a_loop_that_was_left_rests_on_what_ended_it(made):
    """A body sees the loss: one that breaks by a record's tells whether it is there."""
    script = made(seed=None, public_units=len(ROWS))
    claims = [script.loader.certificate()]
    for _ in range(2):
        for batch in script.loader:
            step(script, batch)
            claims.append(script.loader.certificate())
    named = [Assumption.END_IS_PUBLIC in claim.assumptions for claim in claims]
    assert named == [False, True, True, True, False]
    conditional, certified = CertificateStatus.CONDITIONAL, CertificateStatus.CERTIFIED
    statuses = [claim.status for claim in claims[1:]]
    assert statuses == [conditional] * 3 + [certified]


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """Weights of the loop that steps by itself, from the same seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(private, "check_private", lambda *_, **__: None)
        patch.setattr(target, "calibrate_noise_multiplier", noise)
        model = copy.deepcopy(base())
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        journal = tmp_path_factory.mktemp("loop") / "ledger.jsonl"
        rows = [{"input_ids": numbers} for numbers in NUMBERS]
        options = {**WANTED, "expected_batch_size": 20, "journal": journal}
        for _ in make_private(model, optimizer, rows, **options):
            pass
        return weights(model)


@pytest.mark.parametrize("body", AS_IT_WAS)
def test_body_that_stays_trains_bit_for_bit_as_the_loop_that_steps(
    made, expected, body
):
    script = made()
    body(script)
    assert torch.equal(weights(script.model), expected)
    assert charged(script) == 4
    assert "forward" not in vars(script.model)
    assert not script.optimizer._optimizer_step_pre_hooks


def test_curve_without_noise_is_that_of_the_script(made, monkeypatch):
    batches = np.random.default_rng(1).integers(0, 40, size=(50, 4))
    drawn = iter(batches)
    monkeypatch.setattr(GradientPlan, "noise_stddev", lambda *_, **__: 0.0)
    monkeypatch.setattr(PoissonSampler, "sample", lambda *_: next(drawn))
    script = made(model=models.tiny_llama(), max_grad_norm=1e6, num_steps=50)
    private_curve = []
    while len(private_curve) < 50:
        private_curve += [step(script, batch).item() for batch in script.loader]
    plain = SimpleNamespace(model=models.tiny_llama())
    plain.optimizer = torch.optim.AdamW(plain.model.parameters(), lr=0.01)
    curve = [
        step(plain, default_data_collator([ROWS[i] for i in batch])).item()
        for batch in batches
    ]
    np.testing.assert_allclose(private_curve, curve, rtol=1e-4)


@pytest.mark.parametrize("body", STEERING)
def test_body_that_steers_the_optimizer_is_let(made, body):
    script = made(num_steps=2)
    body(script)
    assert charged(script) == 2


def test_clip_of_a_released_gradient_is_computed_from_it():
    released = [torch.randn(3, 2), None, torch.randn(5), torch.zeros(0)]
    for written in (
        [0.3 * released[0] * (1 + 1e-7), None, 0.3 * released[2], released[3]],
        [released[0].clamp(-0.5, 0.5), None, released[2].clamp(-0.5, 0.5), released[3]],
    ):
        again = clipped_again(written, released)
        assert again[1] is None
        torch.testing.assert_close(again[0], written[0])
        assert again[0] is not written[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda grads: [g + 1e-3 * torch.randn_like(g) for g in grads],
        lambda grads: [grads[0], -grads[1]],
        lambda grads: [2 * grads[0], grads[1]],
        lambda grads: [2 * g for g in grads],
        lambda grads: [g * torch.nan for g in grads],
        lambda grads: [g * 0 for g in grads],
        lambda grads: [-g for g in grads],
        lambda grads: [grads[0], None],
        lambda grads: [grads[0], grads[1][:2]],
    ],
)
def test_other_writes_to_a_released_gradient_are_no_clip(change):
    released = [torch.randn(3, 2), torch.randn(5)]
    assert clipped_again(change(released), released) is None


def moves_by_epoch(script):
    """Whether each step moves weights, where a body stops in its second epoch."""
    moves = []
    for epoch in range(2):
        script.optimizer.param_groups[0]["lr"] = 0.01 * (1 - epoch)
        for batch in script.loader:
            before = weights(script.model).clone()
            step(script, batch)
            moves.append(float((weights(script.model) - before).norm()) > 0)
    return moves


EPOCHS = {
    "public_units": ({"public_units": 40}, {}, [True] * 2 + [False] * 2),
    "owners": (
        {"owners": [n // 2 for n in range(40)], "max_rows_per_unit": 4},
        {"owners": [n // 2 for n in range(40)] + [19], "max_rows_per_unit": 4},
        [True, False],
    ),
}


@pytest.mark.parametrize("name", EPOCHS)
def test_number_of_rows_ends_no_epoch(made, tmp_path, name):
    units, more, moves = EPOCHS[name]
    assert moves_by_epoch(made(**units)) == moves
    rows, journal = [*ROWS, {"input_ids": [1, 9]}], tmp_path / "other.jsonl"
    neighbor = made(**{**units, **more}, rows=rows, journal=journal)
    assert moves_by_epoch(neighbor) == moves


@pytest.mark.parametrize("units", [{}, EPOCHS["public_units"][0]])
def test_steps_that_are_counted_by_rows_are_warned_of(made, units):
    """100 rows gave another number of steps than 101, under one claim."""
    rows = [{"input_ids": [1, 2, 3, number]} for number in range(100)]
    given = {"rows": rows} | (units or {"owners": [n // 3 for n in range(100)]})
    with pytest.warns(UserWarning, match=r"3 times len\(loader\).* say num_steps=6\."):
        made(num_steps=15, **given)
    made(num_steps=6, **given)


@pytest.mark.parametrize("name", REFUSED)
def test_body_that_no_claim_covers_is_refused_by_name(made, name):
    body, words, paid = REFUSED[name]
    script = made()
    with pytest.raises(PrivacyError, match=words):
        body(script)
    assert charged(script) == paid


def test_compiled_model_and_pickled_one_are_told_the_way_out(made, tmp_path):
    script = made()
    for batch in script.loader:
        step(script, batch)
        with pytest.raises(ModelError, match="save_pretrained"):
            torch.save(script.model, tmp_path / "model")
        break
    compiled = tiny_model(num_tokens=8)
    compiled.compile(backend="eager")
    other = made(model=compiled, loss=rows_of_loss, journal=tmp_path / "other")
    with pytest.raises(ModelError, match="must not be compiled"):
        next(iter(other.loader))


def takes_adapters_out(script, change):
    for number, batch in enumerate(script.loader):
        if number == 1:
            getattr(script.model.base_model, change)()
        step(script, batch)


@pytest.mark.parametrize("change", ["merge_adapter", "disable_adapter_layers"])
def test_adapters_that_a_body_takes_out_end_it_before_a_step_is_paid(made, change):
    script = made(model=add_lora(tiny_model(num_tokens=8), rank=2, alpha=4))
    with pytest.raises(PrivacyError, match="while training"):
        takes_adapters_out(script, change)
    assert charged(script) == 1


def test_twin_that_sees_no_merge_pays_for_a_step_without_gradients(made, monkeypatch):
    monkeypatch.setattr(guard, "_ADAPTERS", ())
    script = made(model=add_lora(tiny_model(num_tokens=8), rank=2, alpha=4))
    with pytest.raises(RuntimeError, match="does not require grad"):
        takes_adapters_out(script, "merge_adapter")
    assert charged(script) == 2


class Focal(GPT2LMHeadModel):
    """A causal model with a loss of its own."""

    def forward(self, *args, **named):
        output = super().forward(*args, **named)
        if output.loss is not None:
            output.loss = output.loss * (1 - torch.exp(-output.loss)) ** 2
        return output


class WayOfItsOwn(DataLoader):
    """A loader that draws by a law of its own."""

    def __iter__(self):
        yield from itertools.islice(super().__iter__(), 1)


def focal():
    return Focal(base().config)


def test_model_with_a_loss_of_its_own_is_refused(made):
    with pytest.raises(
        ModelError, match=r"another, such as .*: it is what is trained.*`loss`"
    ):
        made(model=focal())
    assert made(model=focal(), loss=rows_of_loss)


def rows_of_loss(model, batch):
    """A loss of a script's, of each row."""
    return model(batch["input_ids"]).logits.logsumexp(-1).mean(1)


def test_without_the_check_a_loss_of_its_own_is_replaced(made, monkeypatch):
    monkeypatch.setattr(private, "check_own_loss", nothing)
    train(made(model=focal()))


class Twice(torch.optim.AdamW):
    """An optimizer whose step is around another."""

    def step(self, closure=None):
        return super().step(closure)


def hooked():
    model = copy.deepcopy(base())
    next(model.parameters()).register_hook(lambda grad: grad)
    return model


UNFIT = {
    "hooks on gradients": ({"model": hooked}, "no hooks on gradients"),
    "steps in steps": ({"optimizer": Twice}, "at once, got Twice.* Use AdamW itself"),
    "loader": ({"loader": WayOfItsOwn}, "torch's own DataLoader, got WayOfItsOwn"),
    "rows twice": ({"rows": [*ROWS, ROWS[0]]}, "but 1 are another row once more"),
    "tokens": ({"first": 999}, "tokens from 0 to below 257"),
    "tokens below 0": ({"first": -1}, "tokens from 0 to below 257"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_no_loop_can_be_made_of_is_refused_before_it_is_charged(made, name):
    changes, words = UNFIT[name]
    changes = {**changes}
    if "model" in changes:
        changes["model"] = changes["model"]()
    with pytest.raises(ConfigError, match=words):
        made(**changes)


def test_journal_that_nobody_named_is_not_gone_on_with(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(made(journal=None, seed=None))
    with pytest.raises(ConfigError, match=r'Say journal="ledger.jsonl"'):
        made(journal=None)
    again = made(target_epsilon=16.0, seed=None)
    train(again)
    assert charged(again) == 8
    assert 8 < again.loader.certificate().epsilon <= 16


def test_checkpointed_model_is_trained_and_stays_so(made, expected):
    model = copy.deepcopy(base())
    model.activation_checkpointing_enable()
    script = made(model=model)
    train(script)
    torch.testing.assert_close(weights(model), expected, rtol=1e-3, atol=1e-3)
    assert model.is_activation_checkpointing


def kept_gradients(script):
    """Gradients that a script keeps, of each step, and what they were then."""
    kept = []
    for batch in script.loader:
        script.model(**batch).loss.backward()
        kept += [(p.grad, p.grad.clone()) for p in script.model.parameters()]
        script.optimizer.step()
    return kept


def test_gradients_that_a_script_keeps_stay_what_was_released(made):
    assert all(now.equal(then) for now, then in kept_gradients(made()))


def test_gradients_that_the_engine_sums_in_show_what_has_no_noise(made, monkeypatch):
    monkeypatch.setattr(loops, "_copies", list)
    assert not all(now.equal(then) for now, then in kept_gradients(made()))


def gradients_on_frozen_weights(made):
    """What a script does to frozen weights that it hands to the optimizer late."""
    model = copy.deepcopy(base())
    frozen = model.transformer.wte.weight.requires_grad_(False)
    script = made(model=model)
    script.optimizer.add_param_group({"params": [frozen]})
    before = frozen.clone()
    for batch in script.loader:
        script.model(**batch).loss.backward()
        frozen.grad = torch.ones_like(frozen)
        script.optimizer.step()
    return not before.equal(frozen)


def test_gradients_on_frozen_weights_are_refused(made):
    with pytest.raises(PrivacyError, match="act once on each released gradient"):
        gradients_on_frozen_weights(made)


def test_optimizer_that_is_not_looked_into_moves_frozen_weights(made, monkeypatch):
    monkeypatch.setattr(guard, "_has_others", lambda *_: False)
    assert gradients_on_frozen_weights(made)


def step_in_a_fork(script):
    """What a child process says of its step, where its parent has begun the loop."""
    batches = iter(script.loader)
    step(script, next(batches))
    context = multiprocessing.get_context("fork")
    told, tell = context.Pipe(duplex=False)

    def child():
        try:
            step(script, next(batches))
            tell.send(weights(script.model).tolist())
        except PrivacyError as error:
            tell.send(str(error))

    process = context.Process(target=child)
    process.start()
    said = told.recv()
    process.join()
    step(script, next(batches))
    return said


def test_fork_of_a_loop_draws_nothing(made):
    script = made(seed=None, public_units=len(ROWS))
    assert "got a fork: two would add the same noise" in step_in_a_fork(script)
    assert charged(script) == 2


def test_fork_that_is_taken_for_the_loop_adds_the_same_noise(made, monkeypatch):
    monkeypatch.setattr(loops.os, "getpid", lambda: 0)
    script = made(seed=None, model=models.tiny_llama())
    said = torch.tensor(step_in_a_fork(script))
    assert charged(script) == 3
    torch.testing.assert_close(said, weights(script.model))


def rows_seen_by_another_thread(script, monkeypatch):
    """What another thread's evaluation says while a step is computed."""
    told, honest = [], Feed.losses

    def evaluate():
        try:
            with torch.no_grad():
                told.append(len(script.model(**REAL).logits))
        except ModelError as error:
            told.append(str(error))

    def losses(feed, model, batch):
        found = honest(feed, model, batch)
        thread = threading.Thread(target=evaluate)
        thread.start()
        thread.join()
        return found

    monkeypatch.setattr(Feed, "losses", losses)
    train(script)
    return set(told)


def test_evaluation_in_another_thread_is_not_taken_for_the_step(made, monkeypatch):
    assert rows_seen_by_another_thread(made(), monkeypatch) == {2}


def test_engine_that_records_every_thread_takes_it_for_the_step(made, monkeypatch):
    recording = property(lambda engine: engine._tape)
    monkeypatch.setattr(PerUnitGradients, "_recording", recording)
    assert rows_seen_by_another_thread(made(), monkeypatch) != {2}


def test_every_step_is_charged_before_it_is_drawn(made, monkeypatch):
    assert draws_before_charges(made(), monkeypatch) == []


def test_search_for_draws_before_charges_finds_one(made, monkeypatch):
    monkeypatch.setattr(private.Account, "charge", lambda *_: None)
    assert draws_before_charges(made(), monkeypatch) == [1, 2, 3, 4]


def draws_before_charges(script, monkeypatch):
    """Numbers of draws that no charge on disk had paid for."""
    found, drawn, sample = [], itertools.count(1), PoissonSampler.sample

    def seen(sampler, generator):
        number = next(drawn)
        if charged(script) < number:
            found.append(number)
        return sample(sampler, generator)

    monkeypatch.setattr(PoissonSampler, "sample", seen)
    train(script)
    return found


AS_A_TENSOR = classmethod(torch.Tensor.__torch_function__.__func__)
MUTANTS = {
    "columns that are read": (
        [(DrawnColumn, "__torch_function__", AS_A_TENSOR)],
        ["length", "shape", "mixed", "numbers"],
    ),
    "weights and gradients looked at by their marks alone": (
        [(guard, "_sums_of_bits", lambda _: torch.zeros(1))],
        [
            *("data_written", "data_written_between", "trained_by_data"),
            *("added_to_data", "added_to_numbers"),
        ],
    ),
    "hooks that see what is not clipped": (
        [(guard, "gradient_hooks", lambda _: [])],
        ["hook_of_gradients", "hook_behind_gradients"],
    ),
    "settings of any kind": (
        [(loops, "PrivateNumber", type("Nobody", (), {}))],
        ["rate_by_loss", "rate_by_power", "betas_by_loss"],
    ),
    "weights not looked at": (
        [(guard.StepGuard, "_check_weights", nothing)],
        ["weights_written", "weights_written_between", "second_optimizer"],
    ),
    "every write taken for a clip": (
        [(loops, "clipped_again", lambda now, _: list(now))],
        [
            *("added_by_hand", "replaced", "doubled", "added_to_the_last"),
            *("real_and_hushed", "zeros_between"),
        ],
    ),
    "optimizer that acts whenever it is called": (
        [(guard.StepGuard, "_refuse_others", nothing)],
        ["two_steps", "zeroed_between", "hook_of_optimizer"],
    ),
    "gradients of any backward pass": (
        [(loops.PrivateLoop, "_refuse_gradient", nothing)],
        ["real_behind", "gradient_of_real"],
    ),
    "loops that are copied": (
        [(loops.PrivateLoop, "__reduce__", object.__reduce__)],
        ["copied", "pickled"],
    ),
    "options of any kind": (
        [(stand_ins, "_ASKED_FOR", {"smooth"})],
        ["other_ways"],
    ),
    "bodies that leave their step undone": (
        [(loops._Turn, "check_done", nothing)],
        ["no_step", "accumulated"],
    ),
    "batches of any time round": (
        [(loops._Turn, "check", nothing)],
        ["zipped"],
    ),
    "model with other weights in it": (
        [(guard.StepGuard, "check_covered", nothing)],
        ["other_weights"],
    ),
    "numbers that decide": (
        [(PrivateNumber, name, getattr(float, name)) for name in ("__lt__", "__gt__")],
        ["stopped_early"],
    ),
    "schedules and clips by the loss": (
        [(stand_ins, "_refuse_deciders", nothing)],
        ["plateau", "plateau_of_number", "norm_by_loss", "value_by_loss"],
    ),
}


@pytest.mark.parametrize(
    ("mutant", "name"), [(m, n) for m, (_, names) in MUTANTS.items() for n in names]
)
def test_without_its_check_a_body_gets_through(made, monkeypatch, mutant, name):
    for owner, part, bug in MUTANTS[mutant][0]:
        monkeypatch.setattr(owner, part, bug)
    body, words, _ = REFUSED[name]
    script = made()
    try:
        body(script)
    except (PrivacyError, ModelError, TypeError) as error:
        assert not re.search(words, str(error))  # noqa: PT017 - or it gets through


def test_loss_of_a_loop_that_steps_by_itself_decides_nothing_either():
    with pytest.raises(PrivacyError, match="decide nothing"):
        assert PrivateNumber(2.0) / 2 > 1
    assert PrivateNumber(2.0) == 2
