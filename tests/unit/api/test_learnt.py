"""A model that has learnt from rows: a certificate of another journal is refused."""

import copy

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from dptune.api import target
from dptune.api.private import make_private
from dptune.api.training import train
from dptune.dpsgd import learnt
from dptune.dpsgd.plan import GradientPlan
from dptune.errors import ConfigError, PrivacyError
from dptune.integrations.transformers import DPTrainer, PrivacyArguments
from dptune.testing import tiny_model
from tests.unit.integrations.conftest import TrainingArguments, pad

WANTED = {
    "target_epsilon": 8.0,
    "target_delta": 1e-3,
    "num_steps": 2,
    "expected_batch_size": 8,
    "max_grad_norm": 0.5,
    "max_tokens": 4,
    "pad_token_id": 0,
}


@pytest.fixture(autouse=True)
def noise(monkeypatch):
    """Search for no multiplier: this is about what is charged to which journal."""
    monkeypatch.setattr(target, "calibrate_noise_multiplier", lambda *_, **__: 2.0)


def rows(first, last):
    """Rows of four tokens, no two of which are alike."""
    return [
        {"input_ids": [1, 2 + n // 49, n // 7 % 7, n % 7]} for n in range(first, last)
    ]


def trained(model, folder, data=None, **changes):
    """Train for two steps."""
    data = rows(0, 40) if data is None else data
    return train(model, data, folder=folder, learning_rate=0.1, **(WANTED | changes))


def looped(model, journal, data=None, **changes):
    """Take two steps of a loop."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    data = rows(0, 40) if data is None else data
    loop = make_private(model, optimizer, data, journal=journal, **(WANTED | changes))
    assert len(list(loop)) == 2
    return loop


def by_trainer(model, folder):
    """Train by `DPTrainer`."""
    extra = {"attention_mask": [1] * 4}
    data = [row | extra | {"labels": row["input_ids"]} for row in rows(0, 40)]
    arguments = TrainingArguments(
        str(folder), max_steps=2, per_device_train_batch_size=8, report_to=[]
    )
    privacy = PrivacyArguments(
        noise_multiplier=1.0,
        target_delta=1e-3,
        max_grad_norm=0.5,
        block_size=2,
        rows_are_single_units=True,
    )
    trainer = DPTrainer(
        model, arguments, train_dataset=data, data_collator=pad, privacy=privacy
    )
    trainer.train()
    return trainer


def adapted():
    """A tiny model with adapters, whose model is found below them."""
    settings = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(tiny_model(num_tokens=8), settings)


def itself(model):
    return model


def merged(model):
    return model.merge_and_unload().requires_grad_(True)


def wrapped_anew(model):
    return peft.get_peft_model(model.unload(), model.peft_config["default"])


def loaded_again(model, folder):
    """Write a model, forget it, and read it as another script would."""
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.mark.parametrize("first", [trained, looped, by_trainer])
def test_weights_that_a_training_ended_with_are_known_where_they_are_loaded(
    tmp_path, first
):
    base = tiny_model(num_tokens=8)
    model = copy.deepcopy(base)
    first(model, tmp_path / "first")
    again = loaded_again(model, tmp_path / "model")
    del model
    with pytest.raises(PrivacyError, match="from 40 of 40, for which another"):
        trained(again, tmp_path / "second")
    trained(loaded_again(base, tmp_path / "base"), tmp_path / "third")


def test_loop_that_was_left_early_has_taught_what_it_charged(tmp_path):
    model = tiny_model(num_tokens=8)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    changes = WANTED | {"journal": tmp_path / "ledger.jsonl"}
    for _ in make_private(model, optimizer, rows(0, 40), **changes):
        break
    again = loaded_again(model, tmp_path / "model")
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        trained(again, tmp_path / "second")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
def test_adapters_that_were_stored_alone_bring_what_they_have_learnt(tmp_path):
    model = adapted()
    trained(model, tmp_path / "first")
    model.save_pretrained(tmp_path / "adapters")
    fresh = tiny_model(num_tokens=8)
    trained(copy.deepcopy(fresh), tmp_path / "second")
    again = peft.PeftModel.from_pretrained(
        fresh, tmp_path / "adapters", is_trainable=True
    )
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        trained(again, tmp_path / "third")


def test_training_that_took_no_step_leaves_its_base_unknown(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise MemoryError

    base = tiny_model(num_tokens=8)
    with monkeypatch.context() as broken:
        broken.setattr(GradientPlan, "release", fail)
        with pytest.raises(MemoryError):
            looped(copy.deepcopy(base), tmp_path / "ledger.jsonl")
    assert (tmp_path / "ledger.jsonl").exists()
    trained(base, tmp_path / "second")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
@pytest.mark.parametrize("later", [itself, copy.deepcopy, merged, wrapped_anew])
def test_rows_are_not_learnt_again_under_another_journal(tmp_path, later):
    model = adapted()
    trained(model, tmp_path / "first")
    for again in (trained, looped, by_trainer):
        with pytest.raises(PrivacyError, match="from 40 of 40, for which another"):
            again(later(copy.deepcopy(model)), tmp_path / again.__name__)
        assert not list((tmp_path / again.__name__).rglob("ledger.jsonl"))


@pytest.mark.parametrize("first", [looped, by_trainer])
def test_loops_and_trainers_note_what_a_model_learns(tmp_path, first):
    model = tiny_model(num_tokens=8)
    first(model, tmp_path / "first")
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        trained(model, tmp_path / "second")


def test_some_rows_are_enough_and_others_are_free(tmp_path):
    model = tiny_model(num_tokens=8)
    trained(model, tmp_path / "first")
    with pytest.raises(PrivacyError, match="from 3 of 30"):
        trained(model, tmp_path / "second", rows(37, 67))
    trained(model, tmp_path / "second", rows(40, 80))
    with pytest.raises(PrivacyError, match="from 80 of 90"):
        trained(model, tmp_path / "third", rows(0, 90))


def test_one_journal_counts_all_that_it_was_charged_for(tmp_path):
    model, journal = tiny_model(num_tokens=8), tmp_path / "ledger.jsonl"
    first, second = (looped(model, journal).certificate() for _ in range(2))
    assert first.epsilon < second.epsilon
    done = trained(model := tiny_model(num_tokens=8), tmp_path / "folder")
    assert trained(model, tmp_path / "folder").certificate == done.certificate


def test_journal_that_lost_its_charges_counts_nothing(tmp_path):
    model, journal = tiny_model(num_tokens=8), tmp_path / "ledger.jsonl"
    looped(model, journal)
    for file in tmp_path.iterdir():
        file.unlink()
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        looped(model, journal)


def test_checkpoint_brings_what_was_learnt_into_a_model(tmp_path):
    trained(tiny_model(num_tokens=8), tmp_path / "first")
    trained(model := tiny_model(num_tokens=8), tmp_path / "first")
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        trained(model, tmp_path / "second")


def test_budget_counts_both_where_both_are_charged_to_it(tmp_path):
    spent = []
    model = tiny_model(num_tokens=8)
    trained(model, tmp_path / "first", spend=spent.append)
    trained(model, tmp_path / "second", spend=spent.append)
    assert sum(entry.num_steps for entry in spent) == 4
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        trained(model, tmp_path / "third")
    model = tiny_model(num_tokens=8)
    trained(model, tmp_path / "alone")
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        trained(model, tmp_path / "later", spend=spent.append)


def test_nothing_is_noted_before_it_is_paid(tmp_path):
    def refuse(entry):
        raise ConfigError("no.")

    model = tiny_model(num_tokens=8)
    with pytest.raises(ConfigError):
        trained(model, tmp_path / "first", spend=refuse)
    trained(model, tmp_path / "second")


def test_known_randomness_claims_nothing_that_could_be_wrong(tmp_path):
    model = tiny_model(num_tokens=8)
    trained(model, tmp_path / "first", seed=1)
    trained(model, tmp_path / "second", seed=2)
    with pytest.raises(PrivacyError, match="from 40 of 40"):
        trained(model, tmp_path / "third")


def test_twin_that_forgets_certifies_half_of_what_was_paid(tmp_path, monkeypatch):
    monkeypatch.setattr(learnt.Learning, "note", lambda self: None)
    model, paid = tiny_model(num_tokens=8), []
    claims = [trained(model, tmp_path / n, spend=paid.append) for n in "ab"]
    assert all(one.certificate.epsilon <= 8.0 for one in claims)
    assert [len(one.ledger.entries) for one in claims] == [1, 1]
    assert len(paid) == 2


# models that a loss asks


def distilled(teacher):
    """A loss of each row that follows a teacher."""

    def loss(model, batch):
        given = {name: batch[name] for name in ("input_ids", "attention_mask")}
        with torch.no_grad():
            wanted = teacher(**given).logits.softmax(-1)
        found = model(**given).logits.log_softmax(-1)
        apart = (wanted * found).sum(-1) * batch["attention_mask"]
        return -apart.sum(1) / WANTED["max_tokens"]

    return loss


def students(tmp_path):
    """Calls that train another model by a teacher, under a journal of its own."""
    return [
        lambda loss: looped(
            tiny_model(num_tokens=8, seed=1), tmp_path / "l", loss=loss
        ),
        lambda loss: trained(
            tiny_model(num_tokens=8, seed=1), tmp_path / "t", loss=loss
        ),
    ]


@pytest.mark.parametrize("first", [trained, looped, by_trainer])
def test_teacher_that_has_learnt_from_the_rows_is_refused(tmp_path, first):
    """The student's certificate counted none of the teacher's steps."""
    teacher = tiny_model(num_tokens=8)
    first(teacher, tmp_path / "first")
    for asked in (teacher, loaded_again(teacher, tmp_path / "model")):
        for student in students(tmp_path):
            with pytest.raises(PrivacyError, match=r"a teacher.*from 40 of 40"):
                student(distilled(asked))
    assert not [*tmp_path.glob("l"), *tmp_path.glob("t/ledger.jsonl")]


def test_teacher_that_has_learnt_elsewhere_or_is_counted_is_asked(tmp_path):
    teacher = tiny_model(num_tokens=8)
    trained(teacher, tmp_path / "first", rows(40, 80))
    for student in students(tmp_path):
        student(distilled(teacher))
    counted = tiny_model(num_tokens=8)
    looped(counted, tmp_path / "one")
    looped(tiny_model(num_tokens=8, seed=1), tmp_path / "one", loss=distilled(counted))


def test_teacher_that_learns_meanwhile_is_refused(tmp_path):
    teacher, student = (tiny_model(num_tokens=8, seed=seed) for seed in (0, 1))
    optimizer = torch.optim.SGD(student.parameters(), 0.1)
    given = {"journal": tmp_path / "one", "loss": distilled(teacher), **WANTED}
    loop = iter(make_private(student, optimizer, rows(0, 40), **given))
    next(loop)
    looped(teacher, tmp_path / "two")
    with pytest.raises(PrivacyError, match="a teacher"):
        next(loop)


def test_twin_that_asks_no_teacher_what_it_has_learnt_counts_half(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(learnt.Learning, "check_beside", lambda *_, **__: None)
    teacher = tiny_model(num_tokens=8)
    epsilons = [looped(teacher, tmp_path / "one").certificate().epsilon]
    student = looped(
        tiny_model(num_tokens=8, seed=1), tmp_path / "two", loss=distilled(teacher)
    )
    assert student.certificate().epsilon == epsilons[0]
