"""Adapters that are scaled between their factors are the adapters of peft."""

import pytest
import torch
from peft import IA3Config, LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from transformers import MambaConfig, MambaForCausalLM

from dptune.dpsgd import adapters, bypassed, selfcheck
from dptune.dpsgd.adapters import inputs_as_given, narrow_scales
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.prechecks import check_private
from dptune.errors import ModelError
from dptune.models.build import add_lora
from tests.support import models, oracles

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)
MODELS = {"gpt2": models.tiny_gpt2, "llama": models.tiny_llama}
LOSS = CausalLoss(loss_normalizer=8.0)
TARGETS = ["q_proj", "o_proj", "down_proj"]


def drawn(model):
    """Move adapters away from where they add nothing."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.train()


def adapted(name="llama", **options):
    return drawn(add_lora(MODELS[name](), rank=2, alpha=5, **options))


def with_config(**options):
    config = LoraConfig(r=2, lora_alpha=5, target_modules=TARGETS, **options)
    return drawn(get_peft_model(models.tiny_llama(), config))


def losses_of(model):
    with torch.no_grad():
        return LOSS(model, oracles.random_data().collate(range(4), 0))


@pytest.mark.parametrize("use_rslora", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_clipped_sums_are_those_of_a_loop_through_peft(name, use_rslora):
    model = adapted(name, use_rslora=use_rslora)
    data = oracles.random_data(rows_per_unit=(1, 3, 2))
    units = oracles.naive_unit_gradients(model, LOSS, data, pad_token_id=0)
    expected = oracles.naive_clipped_sum(units, max_grad_norm=0.1)
    batch = data.collate(range(3), 0)
    with narrow_scales(model), PerUnitGradients(model) as engine:
        sums = engine.zeros()
        with engine.record(batch.rows_of_unit) as tape:
            total = LOSS(model, batch).sum()
            norms = tape.backward(total, lambda n: (0.1 / n).clamp(max=1), sums)
    assert oracles.distance(sums, expected) < 1e-3 * oracles.norm(expected)
    wanted = [oracles.norm(unit) for unit in units]
    assert norms[0].tolist() == pytest.approx(wanted, rel=1e-3)


def test_twin_that_forgets_the_scale_is_caught(monkeypatch):
    honest = adapters._forward

    def unscaled(layer, forward, inputs):
        scaling, layer.scaling = layer.scaling, dict.fromkeys(layer.scaling, 1.0)
        try:
            return honest(layer, forward, inputs)
        finally:
            layer.scaling = scaling

    monkeypatch.setattr(adapters, "_forward", unscaled)
    with pytest.raises(AssertionError):
        test_clipped_sums_are_those_of_a_loop_through_peft("llama", False)


@pytest.mark.parametrize(
    "options", [{"lora_bias": True}, {"use_dora": True}], ids=lambda o: next(iter(o))
)
def test_adapters_of_another_form_are_left_to_peft(options):
    model = models.tiny_llama()
    for layer in model.modules():  # which a bias of an adapter needs to merge
        if isinstance(layer, torch.nn.Linear) and layer.bias is None:
            layer.bias = torch.nn.Parameter(torch.zeros(layer.out_features))
    config = LoraConfig(r=2, lora_alpha=5, target_modules=TARGETS, **options)
    model = drawn(get_peft_model(model, config))
    expected = losses_of(model)
    with narrow_scales(model):
        assert torch.equal(losses_of(model), expected)


def test_adapters_may_be_merged_and_switched_off_meanwhile():
    model = with_config()
    expected = losses_of(model)
    with model.disable_adapter():
        without = losses_of(model)
    with narrow_scales(model):
        torch.testing.assert_close(losses_of(model), expected)
        with model.disable_adapter():
            assert torch.equal(losses_of(model), without)
        model.merge_adapter()
        torch.testing.assert_close(losses_of(model), expected)
        model.unmerge_adapter()
    assert not torch.allclose(expected, without)


def test_several_active_adapters_add_up():
    model = with_config()
    model.add_adapter("other", LoraConfig(r=3, lora_alpha=2, target_modules=TARGETS))
    model.base_model.set_adapter(["default", "other"])
    drawn(model)
    expected = losses_of(model)
    with narrow_scales(model):
        torch.testing.assert_close(losses_of(model), expected)


def test_model_is_as_before_whatever_is_raised():
    model = adapted()
    with pytest.raises(ZeroDivisionError), narrow_scales(model):
        raise ZeroDivisionError
    assert not any("forward" in vars(module) for module in model.modules())


def test_who_has_replaced_a_layers_forward_keeps_it():
    model = adapted()
    layer = next(m for m in model.modules() if hasattr(m, "lora_A"))
    layer.forward = own = layer.base_layer.forward
    with narrow_scales(model):
        assert layer.forward is own
    assert layer.forward is own


def state_space(*targets):
    config = MambaConfig(
        vocab_size=29, hidden_size=16, state_size=4, num_hidden_layers=1
    )
    lora = LoraConfig(r=2, lora_alpha=5, target_modules=list(targets))
    return get_peft_model(MambaForCausalLM(config), lora)


def check(model, *, physical_batch_size=4):
    feed = Feed(
        data=oracles.random_data(),
        record_loss=LOSS,
        physical_batch_size=physical_batch_size,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )
    before = [parameter.requires_grad for parameter in model.parameters()]
    try:
        check_private(model, feed, seed=0)
    finally:
        assert [p.requires_grad for p in model.parameters()] == before


@pytest.mark.parametrize("targets", [["dt_proj"], ["in_proj", "dt_proj"]])
def test_adapter_that_the_model_reads_past_is_refused(targets):
    with pytest.raises(ModelError, match=r"takes the weight of .*mixer\.dt_proj by"):
        check(state_space(*targets))


def test_adapter_that_is_read_past_changes_the_merged_model(monkeypatch):
    """The twin trains it: what is stored is not what was trained."""
    check(state_space("in_proj"))
    monkeypatch.setattr(selfcheck, "check_adapters", lambda *_: None)
    model = state_space("in_proj", "dt_proj")
    check(model)
    model = drawn(model).eval()
    for name, parameter in model.named_parameters():
        if "dt_proj.lora" in name:
            parameter.data.mul_(10)
    tokens = torch.tensor([[3, 5, 7, 9]])
    with torch.no_grad():
        trained = model(tokens).logits
        merged = model.merge_and_unload()(tokens).logits
    # In float32, a merge that is right differs by less than 1e-6.
    assert (trained - merged).abs().max() > 1e-4


def with_second_adapter(*, active):
    model = with_config()
    model.add_adapter("second", LoraConfig(r=2, target_modules=TARGETS))
    model.base_model.set_adapter(active)
    return model


def thawed(model):
    """Train all adapters, whichever are active."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora" in name)
    return model


def test_trained_adapter_that_is_not_active_is_refused_by_name(monkeypatch):
    check(with_second_adapter(active="default"))
    check(with_second_adapter(active=["default", "second"]))
    for active, other in (("default", "second"), ("second", "default")):
        with pytest.raises(ModelError, match=f"must not train adapter {other}, which"):
            check(thawed(with_second_adapter(active=active)))
    monkeypatch.setattr(bypassed, "_check_read", lambda *_: None)
    check(thawed(with_second_adapter(active="default")))  # it learns noise alone


def test_merged_adapters_are_refused_by_what_is_wrong():
    model = with_config()
    model.merge_adapter()
    with pytest.raises(ModelError, match=r"adapters merged.* Call unmerge_adapter"):
        check(model)
    model.unmerge_adapter()
    check(model)


@pytest.mark.parametrize("kind", [LoHaConfig, LoKrConfig])
def test_adapter_without_a_rule_names_lora_as_the_way_out(kind):
    model = get_peft_model(models.tiny_llama(), kind(r=2, target_modules=TARGETS))
    with pytest.raises(
        ModelError, match=r"peft\.\S+ has no gradient rule.*adapters of LoRA"
    ):
        check(model)
    check(model, physical_batch_size=1)  # the other way out


@pytest.mark.parametrize("kind", ["lora", "ia3", "tokens"])
def test_inputs_of_every_kind_of_adapter_are_left_to_autocast(kind):
    """peft's context raised where an adapter has no switch for it."""
    config = {
        "lora": LoraConfig(r=2, target_modules=TARGETS),
        "ia3": IA3Config(target_modules=TARGETS, feedforward_modules=["down_proj"]),
        "tokens": LoraConfig(
            r=2, target_modules=TARGETS, trainable_token_indices=[3, 5]
        ),
    }[kind]
    model = get_peft_model(models.tiny_llama(), config)
    switch = "cast_input_dtype_enabled"
    layers = [module for module in model.modules() if hasattr(module, switch)]
    assert bool(layers) is (kind != "ia3")
    with inputs_as_given(model, active=True):
        assert not any(getattr(layer, switch) for layer in layers)
    with inputs_as_given(model, active=False):
        assert all(getattr(layer, switch) for layer in layers)
