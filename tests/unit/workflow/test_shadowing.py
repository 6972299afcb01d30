"""Shadows are the base, trained on the halves that the attack draws."""

import math
from dataclasses import replace

import pytest
import torch

from dptune.attacks.settings import AttackSettings, ShadowSettings
from dptune.models.loading import load_saved, save_model
from dptune.workflow import shadows as shadowing
from dptune.workflow.shadows import shadow_training

from .conftest import PERFORMANCE


def training(bundle, *, said=lambda _: None, **changes):
    return shadow_training(
        load_saved(bundle.path),
        AttackSettings(**changes),
        max_tokens=8,
        performance=PERFORMANCE,
        say=said,
    )


def sequences(num=48):
    generator = torch.Generator().manual_seed(0)
    return torch.randint(3, 250, (num, 8), generator=generator).tolist()


@torch.inference_mode()
def loss_of(model, tokens):
    return float(model(input_ids=tokens, labels=tokens).loss)


def test_attacks_train_shadows_unless_they_are_told_not_to(bundle):
    assert training(bundle).settings == ShadowSettings()
    assert training(bundle, shadows=None) is None


def test_shadows_learn_their_half_and_leave_the_base_alone(bundle):
    said = []
    shadows = training(bundle, said=said.append, shadows={"learning_rate": 0.01})
    base = shadows.base.model
    before = [p.clone() for p in base.parameters()]
    rows = sequences()
    (first, _), (second, _) = (
        shadows.train(0, rows[:24]),
        shadows.train(1, rows[24:]),
    )
    assert not torch.equal(*(next(m.parameters()) for m in (first, second)))
    assert all(
        torch.equal(a, b) for a, b in zip(before, base.parameters(), strict=True)
    )
    tokens = torch.tensor(rows[:24])
    losses = [loss_of(model, tokens) for model in (first, second)]
    assert losses[0] < losses[1]
    assert len(said) == 1
    assert "4 shadow models" in said[0]


def test_shadows_end_when_they_know_their_records_well_enough(bundle):
    rows, losses = sequences(16), []
    for until in (math.inf, -math.inf):
        shadows = training(bundle, shadows={"learning_rate": 0.01, "epochs": 6})
        model, _ = shadows.train(0, rows, until=until)
        tokens = torch.tensor(rows)
        losses.append(loss_of(model, tokens))
    assert losses[1] < losses[0] - 0.1


def test_shadows_of_a_large_base_train_adapters(bundle, monkeypatch):
    monkeypatch.setattr(shadowing, "LARGEST_WHOLE", 10)
    shadows = training(bundle, shadows={"learning_rate": 0.01})
    model, _ = shadows.train(0, sequences(16))
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)


def test_adapters_of_shadows_lie_over_the_memory_of_the_base(
    bundle, monkeypatch, tmp_path
):
    """A card that holds a large base and its model has no room for a third."""
    monkeypatch.setattr(shadowing, "LARGEST_WHOLE", 10)
    loaded = load_saved(bundle.path)
    save_model(loaded.model.bfloat16(), loaded.tokenizer, tmp_path / "m")
    start = load_saved(tmp_path / "m", dtype=None)
    before = {n: p.clone() for n, p in start.model.named_parameters()}
    settings = AttackSettings(shadows={"learning_rate": 0.01})
    limits = {"max_tokens": 8, "performance": PERFORMANCE, "say": lambda _: None}
    model, _ = shadow_training(start, settings, **limits).train(0, sequences(16))
    layers = {
        p.data_ptr()
        for n, p in model.named_parameters()
        if "lora_" not in n and p.dim() == 2
    }
    assert layers == {p.data_ptr() for p in start.model.parameters() if p.dim() == 2}
    for name, weight in start.model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.dtype == torch.bfloat16
    tokens = torch.tensor(sequences(16))
    assert loss_of(model.float(), tokens) < loss_of(start.model.float(), tokens)


@pytest.mark.parametrize("until", [math.inf, 3.0, -math.inf])
def test_a_shadow_says_where_any_other_loss_would_have_ended_it(bundle, until):
    """What `ends_alike` promises is what a training until that loss does."""
    shadows = training(bundle, shadows={"learning_rate": 0.01, "epochs": 3})
    first, course = shadows.train(0, sequences(16), until=until)
    alike = []
    for other in (math.inf, 5.0, 3.0, 2.0, -math.inf):
        second, _ = shadows.train(0, sequences(16), until=other)
        pairs = zip(first.parameters(), second.parameters(), strict=True)
        alike.append(all(torch.equal(a, b) for a, b in pairs))
        assert course.ends_alike(other) == alike[-1]
    assert True in alike
    assert False in alike


def test_two_models_of_a_base_have_one_opponent_and_others_their_own(bundle):
    same = {"tokens": [[1, 2], [3]], "texts": ["a", "b"]}
    of = shadowing.opponent_of(bundle, **same, max_tokens=8, attacks=AttackSettings())
    others = [
        {"tokens": [[1, 2], [4]]},
        {"tokens": [[1], [2, 3]]},
        {"texts": ["a", "c"]},
        {"labels": [0, 1]},
        {"max_tokens": 9},
        {"attacks": AttackSettings(shadows={"epochs": 1})},
        {"base": replace(bundle, digest="other")},
    ]
    kept = {"base": bundle, **same, "max_tokens": 8, "attacks": AttackSettings()}
    assert shadowing.opponent_of(**kept) is of
    for change in others:
        assert shadowing.opponent_of(**kept | change) is not of, change
        assert shadowing.opponent_of(**kept) is of


def test_shadow_steps_are_passes_over_half_of_the_attacked():
    settings = ShadowSettings(epochs=1.5, batch_size=8)
    assert [settings.num_steps(num) for num in (200, 201, 2)] == [19, 19, 1]


@pytest.mark.parametrize("number", [2, 5])
def test_shadows_without_pairs_are_refused(number):
    with pytest.raises(ValueError, match="num_models"):
        AttackSettings(shadows={"num_models": number})
