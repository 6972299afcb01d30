"""`make_private`: the engine of a stage in a loop of one's own, and what it refuses."""

import copy
import itertools
import re
from contextlib import nullcontext
from dataclasses import replace

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)
from transformers import BertConfig, BertForMaskedLM, default_data_collator

from dptune.accounting.certificates import Certificate
from dptune.api import private, rows
from dptune.api.loop import PrivateLoop
from dptune.api.private import make_private
from dptune.dpsgd.guard import StepGuard
from dptune.dpsgd.memory import Memory
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.sampling import PoissonSampler
from dptune.dpsgd.trainer import train_stage
from dptune.errors import (
    BudgetExceededError,
    ConfigError,
    DataError,
    InfeasibleBudgetError,
    ModelError,
    PrivacyError,
)
from dptune.planning import plan_run
from dptune.privacy import CertificateStatus, NeighboringRelation, Notion, PrivacyUnit
from dptune.recipes import Recipe
from dptune.testing import tiny_model

ROWS = [{"input_ids": [1, 2, 3 + number % 7, number % 16]} for number in range(40)]
WANTED = {
    "target_epsilon": 8.0,
    "target_delta": 1e-3,
    "num_steps": 3,
    "expected_batch_size": 8,
    "max_grad_norm": 0.5,
    "max_tokens": 4,
    "pad_token_id": 0,
}


@pytest.fixture
def model():
    return tiny_model(num_tokens=8)


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def make(model, journal):
    """Call `make_private` with numbers that work, and changes."""

    def made(*, model=model, optimizer=None, data=ROWS, **changes):
        chosen = optimizer or torch.optim.SGD(trainable(model), lr=0.1)
        return make_private(
            model, chosen, data, **{**WANTED, "journal": journal, **changes}
        )

    return made


@pytest.fixture
def unchecked(monkeypatch):
    """Leave the self-check out, which other tests see to."""
    monkeypatch.setattr(private, "check_private", lambda *_, **__: None)


def trainable(model):
    return [p for p in model.parameters() if p.requires_grad]


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def per_row(model, batch):
    """Next-token losses of each row, as a script writes them."""
    logits = model(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
    ).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    losses = functional.cross_entropy(logits.mT, targets, reduction="none")
    return losses.sum(1) / WANTED["max_tokens"]


# what it does


@pytest.mark.parametrize("loss", [None, per_row])
def test_loop_is_the_stage_of_a_run_bit_for_bit(make, model, loss):
    other = copy.deepcopy(model)
    loop = make(loss=loss, seed=7)
    lengths = [step.num_steps for step in loop]
    assert lengths == [3, 3, 3]
    train_stage(
        other,
        loop._feed.data,
        plan=loop.plan,
        num_steps=3,
        optimizer=OptimizerSettings(name="sgd", learning_rate=0.1),
        physical_batch_size=8,
        pad_token_id=0,
        loss_normalizer=4.0,
        checkpoint_dir=None,
        block_size=10,
        charge=lambda *_: None,
        seed=7,
        max_tokens=4,
    )
    assert (weights(other) - weights(model)).abs().max() <= (
        0 if loss is None else 1e-6
    )


def masked(model, batch):
    """Losses of masked words of each row, which the rows hold unmasked."""
    is_masked = batch["labels"] != -100
    logits = model(
        input_ids=batch["input_ids"].masked_fill(is_masked, 0),
        attention_mask=batch["attention_mask"],
    ).logits
    losses = functional.cross_entropy(logits.mT, batch["labels"], reduction="none")
    return losses.sum(1) / WANTED["max_tokens"]


def test_masked_words_are_trained_by_the_way_out_that_is_named(make):
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=16,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForMaskedLM(config)
    model.cls.predictions.bias.requires_grad_(False)  # it has no gradient rule
    rows = [row | {"labels": [-100, 2, -100, -100]} for row in ROWS]
    loop = make(model=model, data=rows, loss=masked)
    assert len(list(loop)) == 3
    assert loop.certificate().epsilon <= 8


def test_noise_and_claim_are_those_of_a_run_with_the_same_numbers(make, unchecked):
    stage = {
        "name": "private_finetune",
        "view": "original",
        "epochs": 3 * 8 / 40,
        "expected_batch_size": 8,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "clipping": {"kind": "flat", "max_grad_norm": 0.5},
        "noise": {"correlation": "independent"},
    }
    recipe = Recipe.model_validate(
        {"name": "x", "title": "x", "notion": "record", "stages": [stage]}
        | {"reference": "x"}
    )
    planned = plan_run(
        recipe,
        num_units=40,
        notion=Notion.RECORD,
        relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        target_epsilon=8.0,
        target_delta=1e-3,
    )
    loop = make()
    of_run = planned.stages[0].training_plan()
    assert replace(of_run, steps_per_level=1) == loop.plan  # of one level
    for _ in loop:
        pass
    claim = loop.certificate()
    assert claim.accounted_epsilon == pytest.approx(planned.epsilon, rel=2e-3)
    assert claim.epsilon <= 8.0


def test_exact_number_of_units_is_an_assumption_and_a_declared_one_is_none(
    make, unchecked
):
    assert run(make()).status is CertificateStatus.CONDITIONAL


def test_declared_number_of_units_is_certified(make, unchecked):
    claim = run(make(public_units=50))
    assert claim.status is CertificateStatus.CERTIFIED
    assert claim.privacy_unit is PrivacyUnit.RECORD


def run(loop) -> Certificate:
    for _ in loop:
        pass
    return loop.certificate()


def test_rows_of_one_owner_are_one_unit(make, unchecked):
    loop = make(owners=[n // 4 for n in range(40)], max_rows_per_unit=3, num_steps=1)
    assert loop._feed.data.num_units == 10
    assert loop._feed.data.num_dropped_sequences == 10
    assert run(loop).privacy_unit is PrivacyUnit.USER


def test_seed_voids_the_claim(make, unchecked):
    assert run(make(seed=1)).status is CertificateStatus.NONE


def test_loop_under_autocast_computes_in_float32(tmp_path, make, model):
    def run(around, journal):
        trained = copy.deepcopy(model)
        with around:
            for _ in make(model=trained, seed=1, journal=tmp_path / journal):
                pass
        return weights(trained)

    narrow = torch.autocast("cpu", dtype=torch.bfloat16)
    assert run(narrow, "narrow").equal(run(nullcontext(), "whole"))


def test_schedulers_and_evaluation_of_the_script_work(make, model, unchecked):
    optimizer = torch.optim.AdamW(trainable(model), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    model.eval()
    rates = []
    for _ in make(optimizer=optimizer):
        assert not model.training  # the loop's own passes are over
        with torch.no_grad():
            model(torch.tensor([[1, 2]]))
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    assert rates == [0.1, 0.05, 0.025]
    optimizer.step()  # the loop has ended: the optimizer is the script's again


def test_data_of_the_datasets_package_with_masks_and_labels(make, unchecked):
    rows = [
        {
            "input_ids": [1, 2, 3 + number, 0],
            "attention_mask": [1, 1, 1, 0],
            "labels": [-100, 2, 3 + number, -100],
        }
        for number in range(40)
    ]
    loop = make(data=datasets.Dataset.from_list(rows), num_steps=1)
    assert loop._feed.data.sequences[0].tolist() == [1, 2, 3]
    assert loop._feed.data.loss_weights[0].tolist() == [0, 1, 1]


def blocks(length, *, last=None):
    """Forty rows of one length, of which the last may be another."""
    rows = [[*range(1, length), number] for number in range(39)]
    return [{"input_ids": ids} for ids in [*rows, list(range(2, 2 + (last or length)))]]


@pytest.mark.parametrize("last", [None, 5])
@pytest.mark.usefixtures("unchecked")
def test_rows_that_look_like_blocks_of_texts_are_told(make, journal, last):
    given = {"model": tiny_model(num_tokens=40), "max_tokens": 40}
    with pytest.warns(UserWarning, match="have one length"):
        make(data=blocks(36, last=last), **given)
    make(data=blocks(36, last=last), owners=range(40), **given)
    make(data=[*blocks(36)[:30], *blocks(20)[:10]], **given)
    assert not journal.exists()


class Queue:
    """Compares rows with those of earlier passes, once there are enough of them."""

    def __init__(self, size=40):
        self.size, self.held = size, []

    def __call__(self, model, batch):
        losses = per_row(model, batch)
        full = len(self.held) >= self.size
        before = torch.stack(self.held[-self.size :]) if full else losses[:0]
        self.held += list(losses.detach())
        return losses * (1 + before.mean()) if full else losses


class RunningMean:
    """Divides by what losses were, after a while."""

    def __init__(self):
        self.mean, self.passes = 1.0, 0

    def __call__(self, model, batch):
        losses = per_row(model, batch)
        self.passes += 1
        self.mean = 0.9 * self.mean + 0.1 * losses.detach().mean()
        return losses / self.mean if self.passes > 12 else losses


class Logged:
    """Keeps what losses were, for logs."""

    def __init__(self):
        self.losses = []

    def __call__(self, model, batch):
        losses = per_row(model, batch)
        self.losses.append(float(losses.detach().mean()))
        return losses


@pytest.mark.parametrize("loss", [Queue, RunningMean])
@pytest.mark.usefixtures("unchecked")
def test_loss_that_remembers_rows_is_refused_before_it_shows(make, model, loss):
    """It is tried on made-up rows, and began behind them: others were moved unclipped.

    In a queue of 64, one record moved 12 of 20 steps, where it was drawn in three.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    optimizer.register_step_pre_hook(lambda *_: gradients.append(1))
    loop = make(loss=loss(), optimizer=optimizer, num_steps=20)
    with pytest.raises(PrivacyError, match="whatever was computed before"):
        list(loop)
    assert 1 <= len(gradients) < 12


@pytest.mark.usefixtures("unchecked")
def test_loss_that_keeps_logs_is_taken(make):
    logged = Logged()
    list(make(loss=logged, num_steps=10))
    assert logged.losses


@pytest.mark.parametrize("loss", [Queue, RunningMean])
@pytest.mark.usefixtures("unchecked")
def test_twin_that_looks_at_no_rows_lets_a_loss_remember(make, monkeypatch, loss):
    monkeypatch.setattr(Memory, "_losses", lambda _: torch.zeros(1))
    list(make(loss=loss(), num_steps=20))


def trained_on(make, model, data, journal, **changes):
    """Weights after a loop on rows, from one seed, and its claim."""
    own = copy.deepcopy(model)
    loop = make(model=own, data=data, journal=journal, seed=3, **changes)
    list(loop)
    return weights(own), loop.certificate()


def written_anew(rows):
    """Rows once more, as `map` behind an oversampling leaves them."""
    return [{"input_ids": [*row["input_ids"]]} for row in rows]


@pytest.mark.filterwarnings("ignore:data has")
def test_copies_of_a_record_move_no_weight(make, model, unchecked, tmp_path):
    """A record in ten copies was ten units, and moved sums by up to 10 C."""
    data = [*ROWS, *written_anew(ROWS[:1] * 9)]
    once, _ = trained_on(make, model, ROWS, tmp_path / "once.jsonl")
    again, _ = trained_on(make, model, data, tmp_path / "again.jsonl")
    assert torch.equal(once, again)


@pytest.mark.filterwarnings("ignore:data has")
def test_twin_that_leaves_copies_in_is_moved_by_them(
    make, model, unchecked, tmp_path, monkeypatch
):
    def kept(records, **_):
        return range(len(records))

    monkeypatch.setattr(rows, "without_copies", kept)
    with pytest.raises(AssertionError):
        test_copies_of_a_record_move_no_weight(make, model, unchecked, tmp_path)


def test_rows_of_owners_may_say_the_same(make, model, unchecked, tmp_path):
    data = [*ROWS, *written_anew(ROWS[:8])]
    own = make(model=model, data=data, owners=range(48))
    assert own._feed.data.num_units == 48


def test_row_that_a_replacement_makes_a_copy_changes_the_rate_and_the_claim_says_so(
    make, model, unchecked, tmp_path
):
    wanted = {"relation": "replace_one", "seed": None}
    status = {}
    for name, more in {"exact": {}, "public": {"public_units": 40}}.items():
        loop = make(
            model=copy.deepcopy(model), journal=tmp_path / name, **wanted, **more
        )
        list(loop)
        status[name] = loop.certificate().status
    assert status == {
        "exact": CertificateStatus.CONDITIONAL,
        "public": CertificateStatus.CERTIFIED,
    }


# what is charged, and when


def charged(journal):
    return len(journal.read_text().splitlines()) if journal.exists() else 0


def test_every_block_is_charged_before_it_is_drawn(make, journal, monkeypatch):
    """Its twin, which charges behind the draw, fails."""
    assert draws_before_charges(make, journal, monkeypatch) == []


def test_search_for_draws_before_charges_finds_one(make, journal, monkeypatch):
    monkeypatch.setattr(private.Account, "charge", lambda *_: None)
    assert draws_before_charges(make, journal, monkeypatch) == [0, 1, 2]


def draws_before_charges(make, journal, monkeypatch):
    """Numbers of draws that no charge on disk had paid for."""
    found, draws = [], itertools.count()
    sample = PoissonSampler.sample

    def seen(self, generator):
        number = next(draws)
        if charged(journal) * 2 <= number:
            found.append(number)
        return sample(self, generator)

    monkeypatch.setattr(PoissonSampler, "sample", seen)
    monkeypatch.setattr(private, "check_private", lambda *_, **__: None)
    for _ in make(block_size=2):
        pass
    return found


def test_refusal_of_the_budget_ends_the_loop_before_the_noise(
    make, journal, model, unchecked
):
    def refuse(entry):
        raise BudgetExceededError(f"{entry.num_steps} steps are too many")

    before = weights(model)
    with pytest.raises(BudgetExceededError, match="3 steps"):
        next(iter(make(spend=refuse)))
    assert charged(journal) == 0
    assert torch.equal(weights(model), before)


def test_journal_counts_against_the_target(make, journal, unchecked):
    first = make(target_epsilon=4.0)
    assert run(first).epsilon <= 4.0
    second = make(target_epsilon=8.0)
    other = {"model": tiny_model(num_tokens=8), "journal": journal.with_name("other")}
    alone = make(target_epsilon=8.0, **other)
    assert second.plan.noise_multiplier > alone.plan.noise_multiplier
    assert 7.5 < run(second).epsilon <= 8.0
    with pytest.raises(InfeasibleBudgetError):
        make(target_epsilon=4.0)


def test_journal_of_other_data_is_refused(make, journal, unchecked):
    run(make())
    lines = charged(journal)
    with pytest.raises(PrivacyError, match="these rows and units only"):
        make(data=ROWS[:39])
    with pytest.raises(PrivacyError, match="these rows and units only"):
        make(owners=range(40))
    assert charged(journal) == lines


def test_loop_that_is_left_keeps_what_it_charged_and_lets_go(
    make, journal, model, unchecked
):
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    steps = iter(make(optimizer=optimizer, block_size=2))
    next(steps)
    steps.close()
    assert charged(journal) == 1
    optimizer.step()


# misuse: refused with a way out, and nothing charged


class Normed(nn.Module):
    """A language model with a batch norm in it."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 16)

    def forward(self, input_ids, attention_mask=None, use_cache=False):
        hidden = self.norm(self.embed(input_ids).mT).mT
        return type("Output", (), {"logits": self.head(hidden)})


class Scaled(nn.Module):
    """A language model with a parameter that no rule knows."""

    def __init__(self):
        super().__init__()
        self.inner = tiny_model(num_tokens=8)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, **inputs):
        output = self.inner(**inputs)
        output.logits = output.logits * self.scale
        return output


class Plain(nn.Module):
    """A language model of torch's own layers, which says nothing of its tokens."""

    def __init__(self, num_tokens):
        super().__init__()
        self.embed = nn.Embedding(num_tokens, 4)
        self.places = nn.Embedding(16, 4)
        self.head = nn.Linear(4, num_tokens)

    def forward(self, input_ids, attention_mask=None, use_cache=False):
        places = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        hidden = self.embed(input_ids) + self.places(places)
        return type("Output", (), {"logits": self.head(hidden)})


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ROWS)


def frozen_first(model):
    parameter = next(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameter.requires_grad_(False)
    return {"optimizer": optimizer}


def some_left_out(model):
    return {"optimizer": torch.optim.SGD(trainable(model)[1:], lr=0.1)}


def of_another_model(model):
    other = tiny_model(num_tokens=8)
    return {"optimizer": torch.optim.SGD(other.parameters(), lr=0.1)}


def second_order(model):
    return {"optimizer": torch.optim.LBFGS(trainable(model))}


def no_optimizer(model):
    return {"optimizer": object()}


def foreign_optimizer(model):
    kind = type("DPOptimizer", (torch.optim.SGD,), {"__module__": "opacus.optimizers"})
    return {"optimizer": kind(trainable(model), lr=0.1)}


def backward_before(model):
    model(torch.tensor([[1, 2]])).logits.sum().backward()
    return {}


def half_precision(model):
    return {"model": model.half()}


def nothing_trainable(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.requires_grad_(False)
    return {"optimizer": optimizer}


def one_per_batch(model, batch):
    return per_row(model, batch).mean()


def mean_in_disguise(model, batch):
    return per_row(model, batch) / len(batch["input_ids"])


def mixed_rows(model, batch):
    losses = per_row(model, batch)
    return losses + 0.1 * losses.flip(0)


def own_mean(model, batch):
    losses = per_row(model, batch)
    return losses - losses.mean() / 2


def no_tensor(model, batch):
    return 0.5


def loaded(rows, collate):
    loader = DataLoader(rows, 8, collate_fn=collate)
    return {"data": loader, "expected_batch_size": None}


def joined(rows):
    return {"input_ids": torch.tensor([row["input_ids"] for row in rows])}


def packed(rows):
    return {"input_ids": joined(rows)["input_ids"].view(1, -1)}


MISUSES = {
    "optimizer_has_frozen_parameters": (frozen_first, ConfigError, "1 others: frozen"),
    "optimizer_lacks_parameters": (some_left_out, ConfigError, "never be trained"),
    "optimizer_of_another_model": (of_another_model, ConfigError, "another model"),
    "optimizer_needs_a_closure": (second_order, ConfigError, "LBFGS"),
    "optimizer_is_none": (no_optimizer, ConfigError, "must be torch's"),
    "optimizer_of_another_library": (foreign_optimizer, ConfigError, "that it wraps"),
    "gradients_are_there": (backward_before, ConfigError, "zero_grad"),
    "model_is_not_float32": (half_precision, ModelError, "must be float32"),
    "model_trains_nothing": (nothing_trainable, ModelError, "trainable parameter"),
    "model_is_wrapped": (
        lambda m: {"model": nn.DataParallel(m)},
        ConfigError,
        "Pass what it wraps",
    ),
    "batch_norm": (lambda _: {"model": Normed()}, ModelError, "batch normalisation"),
    "table_without_the_tokens": (
        lambda _: {"model": Plain(num_tokens=4)},
        ModelError,
        r"below 4, which Plain .* got others in \d\d rows",
    ),
    "parameter_without_a_rule": (
        lambda _: {"model": Scaled()},
        ModelError,
        "no gradient rule",
    ),
    "loss_is_reduced": (lambda _: {"loss": one_per_batch}, ModelError, "reduction out"),
    "loss_is_no_tensor": (lambda _: {"loss": no_tensor}, ModelError, "got float"),
    "loss_over_rows_of_batch": (
        lambda _: {"loss": mean_in_disguise},
        ModelError,
        "other records of its batch",
    ),
    "loss_mixes_rows": (lambda _: {"loss": mixed_rows}, ModelError, "from autograd"),
    "loss_less_the_mean": (lambda _: {"loss": own_mean}, ModelError, "from autograd"),
    "loader_has_no_batch_size": (
        lambda _: {"data": DataLoader(ROWS, batch_sampler=[[0, 1], [2]])},
        ConfigError,
        "public divisor",
    ),
    "loader_prefers_rows": (
        lambda _: {"data": DataLoader(ROWS, 8, sampler=WeightedRandomSampler([1], 9))},
        ConfigError,
        "WeightedRandomSampler",
    ),
    "loader_draws_rows_again": (
        lambda _: {"data": DataLoader(ROWS, 8, sampler=RandomSampler(ROWS, True))},
        ConfigError,
        "one chance for all",
    ),
    "loader_and_batch_size": (
        lambda _: {"data": DataLoader(ROWS, 8)},
        ConfigError,
        "left to the loader",
    ),
    "loader_of_a_stream": (
        lambda _: loaded(Stream(), default_data_collator),
        ConfigError,
        "have a length",
    ),
    "loader_packs": (
        lambda _: loaded(ROWS, packed),
        ConfigError,
        "each row by itself",
    ),
    "loader_makes_no_batch": (
        lambda _: loaded(ROWS, lambda rows: 1 / 0),
        ConfigError,
        "ZeroDivisionError",
    ),
    "loader_pads_nothing": (
        lambda _: loaded([{"input_ids": [1] * (1 + n % 3)} for n in range(40)], joined),
        ConfigError,
        "one that pads",
    ),
    "data_has_no_length": (lambda _: {"data": Stream()}, ConfigError, "have a length"),
    "data_is_a_generator": (lambda _: {"data": iter(ROWS)}, ConfigError, "a length"),
    "data_is_empty": (lambda _: {"data": []}, DataError, "at least one row"),
    "data_is_a_frame": (
        lambda _: {"data": pd.DataFrame({"input_ids": 40 * [[1, 2]]})},
        DataError,
        "read by its number, which raised KeyError. Pass a list of mappings",
    ),
    "data_is_text": (lambda _: {"data": ["a"] * 40}, DataError, "Tokenize"),
    "rows_are_too_long": (lambda _: {"max_tokens": 3}, DataError, "max_tokens=3"),
    "rows_have_other_columns": (
        lambda _: {"data": [row | {"pixel_values": [1]} for row in ROWS]},
        DataError,
        "pixel_values",
    ),
    "rows_are_padded_on_the_left": (
        lambda _: {"data": [row | {"attention_mask": [0, 1, 1, 1]} for row in ROWS]},
        DataError,
        "padded on the right",
    ),
    "labels_are_other_tokens": (
        lambda _: {"data": [row | {"labels": [9, 9, 9, 9]} for row in ROWS]},
        DataError,
        "must repeat input_ids",
    ),
    "labels_are_tags": (
        lambda _: {"data": [row | {"labels": [0, 1, 0, 0]} for row in ROWS]},
        DataError,
        "mask them there in a `loss` of make_private",
    ),
    "rows_are_preferences": (
        lambda _: {"data": [{"prompt": "a", "chosen": "b"} for _ in range(40)]},
        DataError,
        "got the columns chosen of preferences",
    ),
    "owners_are_too_few": (lambda _: {"owners": [1, 2]}, ConfigError, "every row"),
    "batch_is_larger_than_the_data": (
        lambda _: {"expected_batch_size": 41},
        ConfigError,
        "expected_batch_size",
    ),
    "delta_publishes_a_record": (
        lambda _: {"target_delta": 0.1},
        ConfigError,
        "target_delta",
    ),
    "no_steps": (lambda _: {"num_steps": 0}, ConfigError, "num_steps"),
    "clip_is_infinite": (
        lambda _: {"max_grad_norm": float("inf")},
        ConfigError,
        "max_grad_norm",
    ),
    "epsilon_is_zero": (
        lambda _: {"target_epsilon": 0.0},
        ConfigError,
        "target_epsilon",
    ),
    "no_rows_in_memory": (
        lambda _: {"physical_batch_size": 0},
        ConfigError,
        "physical_batch_size",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_misuse_is_refused_before_anything_is_charged(make, model, journal, misuse):
    change, kind, words = misuse
    with pytest.raises(kind, match=words):
        make(**change(model))
    assert charged(journal) == 0


def test_plain_model_with_a_token_for_every_id_is_trained(make):
    model = Plain(num_tokens=16)
    assert sum(step.num_steps for step in make(model=model)) > 0


def test_all_faults_of_an_optimizer_are_told_at_once(make, model):
    model(torch.tensor([[1, 2]])).logits.sum().backward()
    other = torch.optim.LBFGS([nn.Parameter(torch.ones(1))])
    with pytest.raises(ConfigError) as caught:
        make(optimizer=other)
    assert len(caught.value.problems) == 4


# misuse in the loop: nothing more is charged


def own_step(model, optimizer):
    optimizer.step()


def own_backward(model, optimizer):
    model(torch.tensor([[1, 2]])).logits.sum().backward()


def own_backward_and_step(model, optimizer):
    own_backward(model, optimizer)
    optimizer.step()


def second_optimizer(model, optimizer):
    own_backward(model, optimizer)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    optimizer.zero_grad()


def written_weights(model, optimizer):
    with torch.no_grad():
        next(model.parameters()).add_(1.0)


def frozen_later(model, optimizer):
    next(model.parameters()).requires_grad_(False)


IN_THE_LOOP = [
    (own_step, "act once on each released gradient"),
    (own_backward, "neither clipped nor noised"),
    (own_backward_and_step, "neither clipped nor noised|act once"),
    (second_optimizer, "neither clipped nor noised|moved by released"),
    (written_weights, "moved by released gradients alone"),
    (frozen_later, "what the clip covers"),
]


def let_through(make, model, act, *, before=False):
    """Whether a loop goes on after a script did something in it, or before it."""
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    loop = make(optimizer=optimizer, block_size=1)
    try:
        if before:
            act(model, optimizer)
        for number, _ in enumerate(loop):
            if number == 0 and not before:
                act(model, optimizer)
    except PrivacyError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("before", [False, True], ids=["in_the_loop", "before_it"])
@pytest.mark.parametrize(("act", "words"), IN_THE_LOOP)
def test_what_a_script_does_beside_the_loop_stops_it(
    make, model, journal, unchecked, act, words, before
):
    assert re.search(words, let_through(make, model, act, before=before))
    assert charged(journal) == (0 if before else 1)


@pytest.mark.parametrize("act", [own_backward, second_optimizer, written_weights])
def test_without_the_check_a_script_gets_through(
    make, model, unchecked, monkeypatch, act
):
    for check in ("check", "_check_weights"):
        monkeypatch.setattr(StepGuard, check, lambda *_, **__: None)
    monkeypatch.setattr(PrivateLoop, "_refuse_gradient", lambda *_: None)
    assert not let_through(make, model, act)


def test_without_the_guard_a_step_gets_through(make, model, unchecked, monkeypatch):
    monkeypatch.setattr(StepGuard, "check", lambda *_: None)
    monkeypatch.setattr(StepGuard, "_refuse_others", lambda *_: None)
    monkeypatch.setattr(PrivateLoop, "_refuse_gradient", lambda *_: None)
    assert not let_through(make, model, own_backward_and_step)


def test_loop_runs_once(make, journal, unchecked):
    loop = make()
    for _ in loop:
        pass
    lines = charged(journal)
    with pytest.raises(PrivacyError, match="must run once"):
        iter(loop)
    assert charged(journal) == lines


def test_two_loops_do_not_share_an_optimizer(make, model, journal, unchecked):
    optimizer = torch.optim.SGD(trainable(model), lr=0.1)
    make(optimizer=optimizer, journal=journal.with_name("first.jsonl"))
    with pytest.raises(PrivacyError, match="gives model and optimizer back"):
        next(iter(make(optimizer=optimizer)))


class Tag:
    """An owner that equals none but itself."""


@pytest.mark.parametrize(
    "owners",
    [
        torch.arange(6) // 2,
        np.arange(6) // 2,
        [0, "0", 1, "1", np.int64(2), np.str_("2")],
        [torch.tensor(0), np.array(0), "1", torch.tensor(1), 2, "2"],
    ],
)
def test_owners_of_one_name_are_one_unit_whatever_holds_them(owners):
    assert rows._numbered(owners) == [0, 0, 1, 1, 2, 2]


def test_twin_that_compares_owners_makes_two_users_of_one():
    """What was the rule before: mixed columns hold an id as a number and as text."""
    owners = [n // 4 if n % 2 else str(n // 4) for n in range(40)]

    def twin(given):
        numbers = {}
        return [numbers.setdefault(owner, len(numbers)) for owner in given]

    assert len(set(twin(owners))) == 20
    assert len(set(rows._numbered(owners))) == 10


@pytest.mark.parametrize(
    "other",
    ["Jose\u0301", "Jos\u00e9 ", "\tJos\u00e9", "Jos\u200b\u00e9"],
    ids=["form", "blank", "tab", "nothing"],
)
def test_owner_that_looks_like_another_is_refused(make, other, unchecked):
    """Else a person would be two units, and the claim would hide each alone."""
    names = [f"user {n}" for n in range(38)]
    with pytest.raises(ConfigError, match="1 differ from others only by") as caught:
        make(owners=["Jos\u00e9", other, *names])
    assert "Jos" not in str(caught.value)


@pytest.mark.parametrize(
    "owner",
    [
        None,
        float("nan"),
        1.0,
        True,
        np.True_,
        "",
        b"ann",
        [1],
        ("ann", float("nan")),
        Tag(),
        pd.NA,
        pd.NaT,
        torch.tensor([1]),
    ],
    ids=lambda owner: type(owner).__name__,
)
def test_owner_that_names_no_unit_is_refused_by_row(make, owner, unchecked):
    """A null is no unit: it may be many users, of whom only one would be hidden."""
    with pytest.raises(ConfigError, match=r"row 1, 2, 3, 4, 5 and 34 more\.") as caught:
        make(owners=["SECRET"] + 39 * [owner], max_rows_per_unit=3)
    assert [problem.path for problem in caught.value.problems] == ["owners"]
    assert "SECRET" not in str(caught.value)
