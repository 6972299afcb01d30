"""The engine against one backward pass per row, for every architecture."""

import dataclasses

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from dptune.dpsgd.clipping import FlatClip, GroupClip
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.parameters import Grouping, group_parameters, trainable_parameters
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.rounding import norm_bound
from dptune.dpsgd.terms import Dense, Outer, Scatter
from dptune.errors import DataError, ModelError, PrivacyError
from tests.support import models, oracles

# peft 0.21 asks transformers 5.23 by a name that is on its way out.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)

CAUSAL = CausalLoss(loss_normalizer=8.0)
CLASSIFY = oracles.FirstTokenClassification()
C = 0.3
TOLERANCE = 1e-5


def lora(model, *, targets, fan_in_fan_out=False, **options):
    config = LoraConfig(
        r=3,
        lora_alpha=8,
        lora_dropout=0.0,
        target_modules=targets,
        fan_in_fan_out=fan_in_fan_out,
        task_type="CAUSAL_LM",
        **options,
    )
    adapted = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.3, generator=generator)
    return adapted


def bitfit(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model


MODELS = {
    "gpt2_tied": (models.tiny_gpt2, CAUSAL),
    "gpt2_untied": (lambda: models.tiny_gpt2(tied=False), CAUSAL),
    "gpt2_eager": (lambda: models.tiny_gpt2(attention="eager"), CAUSAL),
    "gpt2_biases_only": (lambda: bitfit(models.tiny_gpt2()), CAUSAL),
    "llama": (models.tiny_llama, CAUSAL),
    "llama_tied": (lambda: models.tiny_llama(tied=True), CAUSAL),
    "llama_eager": (lambda: models.tiny_llama(attention="eager"), CAUSAL),
    "mistral": (models.tiny_mistral, CAUSAL),
    "bert": (models.tiny_bert_classifier, CLASSIFY),
    "roberta": (models.tiny_roberta_classifier, CLASSIFY),
    "gpt2_lora": (
        lambda: lora(
            models.tiny_gpt2(), targets=["c_attn", "c_proj"], fan_in_fan_out=True
        ),
        CAUSAL,
    ),
    "llama_lora": (
        lambda: lora(models.tiny_llama(), targets=["q_proj", "v_proj", "down_proj"]),
        CAUSAL,
    ),
    "gpt2_lora_of_embedding": (
        lambda: lora(models.tiny_gpt2(), targets=["wte", "c_fc"], fan_in_fan_out=True),
        CAUSAL,
    ),
    "llama_lora_and_head": (
        lambda: lora(
            models.tiny_llama(),
            targets=["q_proj"],
            modules_to_save=["lm_head", "embed_tokens"],
        ),
        CAUSAL,
    ),
}


def recorded(model, loss, data, *, clip=None, pad=1, indices=None, budget=1 << 30):
    """Norms and clipped sum of one batch."""
    batch = data.collate(range(data.num_units) if indices is None else indices, pad)
    with PerUnitGradients(model, materialize_bytes=budget) as engine:
        sums = engine.zeros()
        with engine.record(batch.rows_of_unit) as tape:
            factors = (clip or FlatClip(C)).factors
            norms = tape.backward(loss(model, batch).sum(), factors, sums)
    return norms, sums


def relative_error(sums, expected):
    return oracles.distance(sums, expected) / oracles.norm(expected)


@pytest.mark.parametrize("rows", [(1, 1, 1, 1), (1, 3, 2), (2, 2)])
@pytest.mark.parametrize("budget", [1 << 30, 0], ids=["dense", "ghost"])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sum_equals_naive_loop(name, budget, rows, monkeypatch):
    if budget:  # write everything down, which the tiny shapes would not call for
        monkeypatch.setattr("dptune.dpsgd.tape._DENSE_PASS_COST", 0)
    build, loss = MODELS[name]
    model = build().train()
    data = oracles.random_data(rows_per_unit=rows, seed=len(rows))
    naive = oracles.naive_unit_gradients(model, loss, data, pad_token_id=1)
    norms, sums = recorded(model, loss, data, budget=budget)
    expected = torch.tensor([oracles.norm(g) for g in naive])
    torch.testing.assert_close(norms[0], expected, rtol=TOLERANCE, atol=0)
    clipped = oracles.naive_clipped_sum(naive, max_grad_norm=C)
    assert (expected > C).any()
    assert relative_error(sums, clipped) < TOLERANCE
    size = oracles.norm(clipped)
    for key, value in sums.items():
        error = (value - clipped[key]).norm()
        assert error <= TOLERANCE * clipped[key].norm() + 1e-7 * size, key


def test_clipped_sum_of_neighbors_differs_by_at_most_the_bound():
    model = models.tiny_gpt2()
    data = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1), seed=5)
    for bound in (0.05, C):
        clip = FlatClip(bound)
        _, everyone = recorded(model, CAUSAL, data, clip=clip)
        for absent in range(data.num_units):
            rest = [unit for unit in range(data.num_units) if unit != absent]
            _, fewer = recorded(model, CAUSAL, data, clip=clip, indices=rest)
            assert oracles.distance(everyone, fewer) <= bound * (1 + 1e-6)


def test_batch_mean_loss_breaks_the_bound_that_record_loss_keeps():
    """Seven short units and a long one, whose absence makes a batch mean seven times
    larger for all the others."""

    def batch_mean_loss(model, batch):
        losses = CausalLoss(loss_normalizer=1.0)(model, batch)
        return losses / batch.loss_weights[:, 1:].sum()

    short, long = np.array([2, 3, 4]), np.arange(2, 16)
    data = UnitDataset(
        sequences=Ragged.of((*[short] * 7, long), np.int64),
        loss_weights=Ragged.of(
            (*[np.ones(3, np.float32)] * 7, np.ones(14, np.float32)), np.float32
        ),
        units=Ragged.of([np.array([unit]) for unit in range(8)], np.int64),
    )
    model = models.tiny_gpt2()
    for loss, keeps in ((CAUSAL, True), (batch_mean_loss, False)):
        largest, _ = recorded(model, loss, data, indices=[0, 1, 2, 3, 4, 5, 6])
        bound = float(largest.max())
        clip = FlatClip(bound)
        _, fewer = recorded(model, loss, data, clip=clip, indices=list(range(7)))
        _, everyone = recorded(model, loss, data, clip=clip)
        moved = oracles.distance(everyone, fewer)
        assert (moved <= bound * (1 + 1e-6)) is keeps
        assert keeps or moved > 2 * bound


def test_norm_of_tied_weight_without_cross_term_is_caught(monkeypatch):
    model = models.tiny_gpt2(tied=True)
    data = oracles.random_data(seed=2)
    naive = oracles.naive_unit_gradients(model, CAUSAL, data, pad_token_id=1)
    expected = torch.tensor([oracles.norm(g) for g in naive])
    monkeypatch.setattr(
        "dptune.dpsgd.tape.norm_of_sum",
        lambda terms: norm_bound([term.size() for term in terms]),
    )
    norms, _ = recorded(model, CAUSAL, data, budget=0)
    assert ((norms[0] - expected).abs() / expected).max() > 1e-3


@pytest.mark.parametrize("budget", [1 << 30, 0], ids=["dense", "ghost"])
def test_nan_in_one_unit_contributes_zero(budget, monkeypatch):
    if budget:
        monkeypatch.setattr("dptune.dpsgd.tape._DENSE_PASS_COST", 0)
    model = models.tiny_gpt2()
    data = oracles.random_data(rows_per_unit=(1, 2, 1), seed=4)
    _, expected = recorded(model, CAUSAL, data, indices=[0, 2], budget=budget)

    def broken(value):
        def loss(model, batch):
            losses = CAUSAL(model, batch)
            return losses * torch.tensor([1.0, value, 1.0, 1.0])

        return loss

    for value in (float("nan"), float("inf"), 1e30):
        norms, sums = recorded(model, broken(value), data, budget=budget)
        assert norms[0, 1] == torch.inf
        assert relative_error(sums, expected) < TOLERANCE


def test_nan_unit_scaled_by_zero_is_caught(monkeypatch):
    """The twin that multiplies by 0 instead of overwriting."""
    for kind in (Dense, Outer, Scatter):
        monkeypatch.setattr(kind, "without", lambda self, units: self)
    model = models.tiny_gpt2()
    data = oracles.random_data(rows_per_unit=(1, 1), seed=4)
    _, sums = recorded(
        model, lambda m, b: CAUSAL(m, b) * torch.tensor([1.0, torch.nan]), data
    )
    assert not all(value.isfinite().all() for value in sums.values())


def test_groups_have_their_own_norms():
    model = models.tiny_gpt2()
    data = oracles.random_data(seed=6)
    batch = data.collate(range(4), 0)
    names = [name for name, _ in model.named_parameters()]
    group = {name: int("attn" in name) + 2 * int("ln_" in name) for name in names}
    with PerUnitGradients(model, parameter_groups=group.__getitem__) as engine:
        assert engine.num_groups == 3
        sums = engine.zeros()
        factors = torch.tensor([[1.0], [0.0], [2.0]])
        with engine.record(batch.rows_of_unit) as tape:
            norms = tape.backward(CAUSAL(model, batch).sum(), factors.expand_as, sums)
    naive = oracles.naive_unit_gradients(model, CAUSAL, data, pad_token_id=0)
    for unit, gradients in enumerate(naive):
        for index in range(3):
            own = {n: g for n, g in gradients.items() if group[n] == index}
            assert float(norms[index, unit]) == pytest.approx(
                oracles.norm(own), rel=TOLERANCE
            )
    for name, value in sums.items():
        wanted = (1.0, 0.0, 2.0)[group[name]] * sum(g[name] for g in naive)
        assert oracles.distance({"": value}, {"": wanted}) <= 1e-5 * (
            oracles.norm({"": wanted}) + 1e-3
        )


def test_model_is_unchanged_after_use():
    model = models.tiny_gpt2()
    data = oracles.random_data()
    recorded(model, CAUSAL, data)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_dropout_is_recorded_as_drawn():
    """With dropout there is no naive loop; the sum must match autograd on one graph."""
    model = models.tiny_gpt2(dropout=0.3).train()
    batch = oracles.random_data().collate(range(4), 0)
    with PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(batch.rows_of_unit, skip_autograd=False) as tape:
            tape.backward(CAUSAL(model, batch).sum(), torch.ones_like, sums)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(sums[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_unknown_parameter_is_refused_by_name():
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.strength = nn.Parameter(torch.ones(3))

    model = nn.Sequential(nn.Linear(3, 3), Gain())
    with pytest.raises(ModelError, match=r"1\.strength.*register_gradient_rule"):
        PerUnitGradients(model)
    model[1].strength.requires_grad_(False)
    PerUnitGradients(model)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "batch normalisation"),
        (nn.Embedding(3, 2, max_norm=1.0), "max_norm"),
        (nn.Embedding(3, 2, scale_grad_by_freq=True), "scale_grad_by_freq"),
        (nn.Linear(2, 2).double(), "float32"),
        (nn.Linear(2, 2).requires_grad_(False), "trainable"),
        (nn.LazyLinear(2), "weight must have values.*lazy"),
        (nn.Linear(2, 2, device="meta"), "weight must have values.*device_map"),
    ],
)
def test_unsafe_model_is_refused(model, message):
    with pytest.raises(ModelError, match=message):
        PerUnitGradients(model)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("grouping", [Grouping.PER_LAYER, Grouping.PER_LORA_PAIR])
def test_groups_are_clipped_by_themselves(grouping, stream):
    model = MODELS["llama_lora"][0]().train()
    model = checkpointed(model) if stream else model
    data = oracles.random_data(rows_per_unit=(1, 2, 1), seed=8)
    naive = oracles.naive_unit_gradients(model, CAUSAL, data, pad_token_id=1)
    groups = group_parameters(trainable_parameters(model), grouping)
    num_groups = 1 + max(groups.values())
    share = C / num_groups**0.5
    batch = data.collate(range(3), 1)
    with PerUnitGradients(model, parameter_groups=groups.__getitem__) as engine:
        sums = engine.zeros()
        with engine.record(batch.rows_of_unit) as tape:
            clip = GroupClip(C, num_groups=num_groups)
            norms = tape.backward(CAUSAL(model, batch).sum(), clip.factors, sums)
    assert norms.shape == (num_groups, 3)
    for number in range(num_groups):
        names = [name for name, group in groups.items() if group == number]
        part = [{name: unit[name] for name in names} for unit in naive]
        expected = oracles.naive_clipped_sum(part, max_grad_norm=share)
        mine = {name: sums[name] for name in names}
        assert relative_error(mine, expected) < TOLERANCE


def checkpointed(model):
    model.activation_checkpointing_enable({"use_reentrant": False})
    return model


def streamed(model, loss, data, *, clip, pad=1):
    """Norms and clipped sum of one batch, by the pass that a step takes."""
    batch = data.collate(range(data.num_units), pad)
    with PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(batch.rows_of_unit) as tape:
            norms = tape.backward(loss(model, batch).sum(), clip.factors, sums)
        with pytest.raises(PrivacyError, match="checkpointing"):
            tape.unit_gradients()
    return norms, sums


@pytest.mark.parametrize("name", [name for name in MODELS if "biases" not in name])
def test_checkpointing_changes_nothing(name):
    build, loss = MODELS[name]
    model = checkpointed(build()).train()
    data = oracles.random_data(rows_per_unit=(1, 3, 2), seed=3)
    naive = oracles.naive_unit_gradients(model, loss, data, pad_token_id=1)
    norms, sums = streamed(model, loss, data, clip=FlatClip(C))
    expected = torch.tensor([oracles.norm(g) for g in naive])
    torch.testing.assert_close(norms[0], expected, rtol=TOLERANCE, atol=0)
    clipped = oracles.naive_clipped_sum(naive, max_grad_norm=C)
    assert relative_error(sums, clipped) < TOLERANCE


def test_checkpointed_unit_without_finite_gradient_contributes_zero():
    model = checkpointed(models.tiny_gpt2()).train()
    data = oracles.random_data(rows_per_unit=(1, 1), seed=3)
    naive = oracles.naive_unit_gradients(model, CAUSAL, data, pad_token_id=1)

    def spoilt(model, batch):
        losses = CAUSAL(model, batch)
        return losses * torch.tensor([1.0, torch.inf])

    norms, sums = streamed(model, spoilt, data, clip=FlatClip(1e6))
    assert norms[0, 1] == torch.inf
    assert relative_error(sums, naive[0]) < TOLERANCE


def test_reentrant_checkpointing_is_refused():
    model = models.tiny_gpt2().train()
    model.activation_checkpointing_enable({"use_reentrant": True})
    with (
        PerUnitGradients(model) as engine,
        pytest.raises(ModelError, match="use_reentrant"),
        engine.record(torch.tensor([[0]])),
    ):
        pass


def test_unit_gradients_are_those_of_the_loop():
    model = models.tiny_gpt2()
    data = oracles.random_data(rows_per_unit=(1, 2), seed=4)
    naive = oracles.naive_unit_gradients(model, CAUSAL, data, pad_token_id=1)
    batch = data.collate(range(2), 1)
    with PerUnitGradients(model) as engine:
        with engine.record(batch.rows_of_unit) as tape:
            CAUSAL(model, batch).sum().backward()
        written = tape.unit_gradients()
        for unit, expected in enumerate(naive):
            mine = {name: value[unit] for name, value in written.items()}
            assert relative_error(mine, expected) < TOLERANCE


def test_tiers_of_a_unit_are_clipped_by_themselves():
    """Rows 0 and 1 are two tiers of unit 0, rows 2 and 3 those of unit 1."""
    model = models.tiny_gpt2()
    data = oracles.random_data(rows_per_unit=(1, 1, 1, 1), seed=6)
    naive = oracles.naive_unit_gradients(model, CAUSAL, data, pad_token_id=1)
    bounds = torch.tensor([0.2, 0.5])
    tiers = torch.tensor([[[0], [2]], [[1], [3]]])  # (tiers, units, 1)
    batch = data.collate(range(4), 1)
    with PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(tiers) as tape:
            norms = tape.backward(
                CAUSAL(model, batch).sum(),
                lambda norms: (bounds[:, None] / norms).clamp(max=1),
                sums,
            )
    assert norms.shape == (2, 2)
    expected = oracles.naive_clipped_sum(naive[0::2], max_grad_norm=0.2)
    second = oracles.naive_clipped_sum(naive[1::2], max_grad_norm=0.5)
    total = {name: expected[name] + second[name] for name in expected}
    assert relative_error(sums, total) < TOLERANCE


def test_module_whose_first_dimension_is_not_the_batch_is_refused():
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(x.transpose(0, 1)).transpose(0, 1)

    model = TimeFirst()
    with (
        PerUnitGradients(model) as engine,
        pytest.raises(ModelError, match="first dimension is the batch"),
        engine.record(torch.arange(3)[:, None]),
    ):
        model(torch.randn(3, 5, 4))
    assert model.inner.weight.requires_grad


@pytest.mark.parametrize("rows", [[[0], [0]], [[1], [2]], [[0, 1], [1, -1]]])
def test_row_without_exactly_one_unit_is_refused(rows):
    model = nn.Linear(2, 2)
    with (
        PerUnitGradients(model) as engine,
        pytest.raises(PrivacyError, match="exactly one unit"),
        engine.record(torch.tensor(rows)),
    ):
        pass


def test_clipped_sum_needs_finite_factors():
    model = models.tiny_gpt2()
    batch = oracles.random_data().collate(range(4), 0)
    with (
        PerUnitGradients(model) as engine,
        engine.record(batch.rows_of_unit) as tape,
        pytest.raises(PrivacyError, match="finite"),
    ):
        tape.backward(
            CAUSAL(model, batch).sum(), lambda n: n * torch.nan, engine.zeros()
        )


def test_norm_of_many_equal_entries_is_exact():
    """torch's own vector norm is off by 4e-4 here."""
    values = torch.full((2, 1 << 20), 0.1)
    expected = values.double().square().sum(1)
    assert torch.allclose(Dense(values).size().square, expected, rtol=1e-6)


def with_labels(data, num_labels=3):
    labels = np.arange(len(data.sequences)) % num_labels
    return dataclasses.replace(data, labels=labels.astype(np.int64))


@pytest.mark.parametrize(
    "build", [models.tiny_bert_classifier, models.tiny_roberta_classifier]
)
def test_classifier_learns_from_labels(build):
    model = build().train()
    loss = ClassificationLoss()
    data = with_labels(oracles.random_data(rows_per_unit=(1, 3, 2), seed=3))
    naive = oracles.naive_unit_gradients(model, loss, data, pad_token_id=1)
    norms, sums = recorded(model, loss, data)
    expected = torch.tensor([oracles.norm(g) for g in naive])
    torch.testing.assert_close(norms[0], expected, rtol=TOLERANCE, atol=0)
    clipped = oracles.naive_clipped_sum(naive, max_grad_norm=C)
    assert relative_error(sums, clipped) < TOLERANCE
    with pytest.raises(DataError, match="labels"):
        loss(model, dataclasses.replace(data, labels=None).collate([0], 1))


@pytest.mark.parametrize("task", ["causal", "classify"])
def test_rows_that_fill_a_batch_add_nothing(task):
    causal = task == "causal"
    build = models.tiny_gpt2 if causal else models.tiny_bert_classifier
    model, loss = build().train(), CAUSAL if causal else ClassificationLoss()
    data = with_labels(oracles.random_data(rows_per_unit=(1, 3, 2), seed=3))
    _, expected = recorded(model, loss, data)
    batch = data.collate(range(3), 1)
    batch = batch.filled(num_rows=9, num_tokens=20, pad_token_id=1)
    assert batch.input_ids.shape == (9, 20)
    assert batch.num_real_units == 3
    assert len(batch.rows_of_unit) == 6
    with PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(batch.rows_of_unit) as tape:

            def factors(norms):
                return FlatClip(C).factors(norms) * (torch.arange(6) < 3)

            tape.backward(loss(model, batch).sum(), factors, sums)
    assert relative_error(sums, expected) < TOLERANCE


class Projections(nn.Module):
    """Three products of one input, which may be written over before the last."""

    def __init__(self, *, overwrites: bool) -> None:
        super().__init__()
        self.overwrites = overwrites
        self.parts = nn.ModuleList(nn.Linear(12, 5, bias=False) for _ in range(3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        first, second, third = self.parts
        found = first(inputs) + second(inputs)
        return (
            (found + third(inputs.mul_(3) if self.overwrites else inputs))
            .float()
            .square()
            .sum((1, 2))
        )


def in_bfloat16(
    *, overwrites: bool = False
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return the recorded inputs of every product, and sums of two units."""
    torch.manual_seed(4)
    model, inputs = Projections(overwrites=overwrites), torch.randn(2, 7, 12)
    with PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(torch.tensor([[0], [1]])) as tape:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses = model(inputs.clone())
            kept = [call.inputs for call in engine._calls.values()]
            tape.backward(losses.sum(), torch.ones_like, sums)
    return kept, sums


def test_products_under_autocast_keep_one_copy_of_what_they_multiply():
    kept, _ = in_bfloat16()
    assert {values.dtype for values in kept} == {torch.bfloat16}
    assert len({values.data_ptr() for values in kept}) == 1
    first, second, third = in_bfloat16(overwrites=True)[0]
    assert first.data_ptr() == second.data_ptr() != third.data_ptr()
    torch.testing.assert_close(third, 3 * first)


def test_gradient_under_autocast_is_that_of_what_was_multiplied(monkeypatch):
    kept, sums = in_bfloat16()
    monkeypatch.setattr(PerUnitGradients, "_as_multiplied", lambda _, inputs: inputs)
    whole, others = in_bfloat16()
    assert {values.dtype for values in whole} == {torch.float32}
    for (name, found), low, values in zip(sums.items(), kept, whole, strict=True):
        assert torch.equal(low, values.to(torch.bfloat16))
        apart = float((found - others[name]).norm() / found.norm())
        assert 1e-5 < apart < 1e-2  # autograd multiplies the former
