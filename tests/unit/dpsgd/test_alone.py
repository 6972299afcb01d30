"""Rows that run by themselves: any module, against a loop over single rows."""

from contextlib import nullcontext
from itertools import combinations

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GptOssConfig,
    MambaConfig,
    MixtralConfig,
    OPTConfig,
)

from dptune.dpsgd import gradients, selfcheck
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.large_units import LargeUnit
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.rules import find_gradient_rule
from dptune.dpsgd.tape import Tape
from dptune.dpsgd.untouched import widened
from dptune.errors import ModelError, PrivacyError
from dptune.models.build import add_lora
from tests.support import models, oracles
from tests.unit.dpsgd.test_company import causal, check
from tests.unit.dpsgd.test_modes import C as BOUND
from tests.unit.dpsgd.test_modes import by_loop, plan_of, stepped

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)

LOSS = CausalLoss(loss_normalizer=8.0)
DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
SIZES = {
    "vocab_size": models.VOCABULARY,
    "hidden_size": models.WIDTH,
    "intermediate_size": 2 * models.WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": models.POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": False,
}
CONFIGS = {
    "experts": MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=2),
    "sinks": GptOssConfig(
        **SIZES, num_local_experts=3, num_experts_per_tok=2, head_dim=4
    ),
    "states": MambaConfig(**SIZES, state_size=4),
    "flat": OPTConfig(
        **SIZES, ffn_dim=2 * models.WIDTH, word_embed_proj_dim=models.WIDTH, dropout=0.0
    ),
}


def build(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(CONFIGS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.float().train()


def error(model, *, grouping, recomputes=False):
    """Distance of a step to a loop over rows."""
    expected = by_loop(model, LOSS, DATA, grouping)
    mode = (1, False, recomputes, 0)
    found = stepped(model, LOSS, DATA, plan_of(grouping), mode=mode)
    return oracles.distance(found, expected) / oracles.norm(expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_any_module_trains_row_by_row_as_in_a_loop(name):
    model = build(name)
    with pytest.raises(ModelError, match=" physical_batch_size to 1"):
        check(model, **causal())
    check(model, **causal(physical_batch_size=1))
    assert error(model, grouping=Grouping.FLAT) < 1e-5
    assert error(model, grouping=Grouping.PER_LAYER, recomputes=True) < 1e-5


def test_rows_clipped_by_themselves_are_caught(monkeypatch):
    add = LargeUnit.add

    def clipped(unit, tape, losses, batch):
        backward = tape.backward
        tape.backward = lambda loss, _, sums: backward(
            loss, lambda norms: (BOUND / norms).clamp(max=1), sums
        )
        add(unit, tape, losses, batch)

    monkeypatch.setattr(LargeUnit, "add", clipped)
    assert error(build("flat"), grouping=Grouping.FLAT) > 1e-3


def test_row_that_is_not_finite_contributes_zero():
    model = build("sinks")
    plan, mode = plan_of(Grouping.FLAT), (1, False, False, 0)
    units = [
        stepped(model, LOSS, DATA, plan, mode=mode, indices=[unit])
        for unit in (0, 2, 4)
    ]
    run = Tape.run

    def spoilt(tape, loss):
        spoilt.passes += 1
        run(tape, loss * (torch.nan if spoilt.passes == 2 else 1.0))

    spoilt.passes = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tape, "run", spoilt)
        found = stepped(model, LOSS, DATA, plan, mode=mode, indices=[0, 2, 4])
    assert spoilt.passes == 3
    left = [
        {name: one[name] + other[name] for name in found}
        for one, other in combinations(units, 2)
    ]
    assert min(oracles.distance(found, pair) for pair in left) < 1e-6


def test_two_rows_cannot_pass_for_one():
    model = models.tiny_llama()
    with PerUnitGradients(model, alone=True) as engine:
        for rows in ([[0], [1]], [[0, 1]]):
            with (
                pytest.raises(PrivacyError, match="one row"),
                engine.record(torch.tensor(rows)),
            ):
                pass


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_subclass_with_a_forward_of_its_own_inherits_no_rule():
    assert find_gradient_rule(nn.Linear(2, 2)) is not None
    assert find_gradient_rule(type("Same", (nn.Linear,), {})(2, 2)) is not None
    assert find_gradient_rule(Doubled(2, 2)) is None
    patched = nn.Linear(2, 2)
    patched.forward = lambda x: x
    assert find_gradient_rule(patched) is None


def test_subclass_without_a_rule_trains_row_by_row():
    model = models.tiny_llama().train()
    layer = model.model.layers[0].mlp
    layer.down_proj.__class__ = Doubled
    with pytest.raises(ModelError, match=r"down_proj.*Doubled has no gradient rule"):
        PerUnitGradients(model)
    assert error(model, grouping=Grouping.FLAT) < 1e-5


def test_code_that_asks_for_float32_computes_in_float64():
    values, weights = torch.randn(5, 3).double(), torch.randn(2, 3, 4).double()
    ends = torch.tensor([2, 4], dtype=torch.int32)
    with widened():
        assert values.float().dtype == torch.float64
        assert values.to(torch.float32).dtype == torch.float64
        assert values.softmax(-1, dtype=torch.float32).dtype == torch.float64
        assert torch.zeros(2).dtype == torch.float64
        products = nn.functional.grouped_mm(values, weights, offs=ends)
    for rows, matrix in ((slice(2), 0), (slice(2, 4), 1)):
        torch.testing.assert_close(products[rows], values[rows] @ weights[matrix])
    assert torch.zeros(2).dtype == torch.float32


def test_rounding_of_experts_is_told_from_a_leak(monkeypatch):
    model = add_lora(build("sinks"), rank=2, alpha=4)
    monkeypatch.setattr(selfcheck, "_APART", 3e-7)  # above the rounding of sums alone
    check(model, **causal())
    monkeypatch.setattr(selfcheck, "widened", nullcontext)
    with pytest.raises(ModelError, match="in GptOssForCausalLM"):
        check(model, **causal())


def test_adapters_of_bare_parameters_train_row_by_row(monkeypatch):
    config = LoraConfig(
        r=2, target_modules=["q_proj"], target_parameters=["mlp.experts.gate_up_proj"]
    )
    model = get_peft_model(build("experts"), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.constant_(parameter, 0.1)
    with pytest.raises(ModelError, match=r"experts.lora_A.default.weight.*no gradient"):
        PerUnitGradients(model)
    assert error(model, grouping=Grouping.FLAT) < 1e-5
    monkeypatch.setattr(gradients, "ParamWrapper", Doubled)
    with pytest.raises(ModelError, match="differs from autograd"):
        check(model, **causal())


class Late(nn.Module):
    """Uses a weight behind its module's back, and in late positions alone."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.late = nn.Linear(models.WIDTH, models.WIDTH)

    def forward(self, x):
        is_late = torch.arange(x.shape[1])[:, None] >= 6
        return self.base(x) + is_late * nn.functional.linear(x, self.late.weight)


def test_weight_that_short_rows_do_not_reach_is_compared_on_a_long_one(monkeypatch):
    model = models.tiny_llama()
    model.model.layers[0].mlp = Late(model.model.layers[0].mlp)
    with pytest.raises(ModelError, match=r"late.weight differs from autograd"):
        check(model, **causal())
    monkeypatch.setattr(selfcheck, "check_long_gradient", lambda *_: None)
    check(model, **causal())


class Remembers(nn.Linear):
    def forward(self, x):
        self.weight.data[0] += x.detach().mean()
        return super().forward(x)


def test_weight_that_computing_changes_is_refused():
    model = models.tiny_llama()
    model.model.layers[0].mlp.down_proj.__class__ = Remembers
    model.model.layers[0].requires_grad_(False)
    for size in (1, 8):
        with pytest.raises(ModelError, match=r"down_proj.weight must not change"):
            check(model, **causal(physical_batch_size=size))


def test_frozen_embedding_that_writes_to_its_weight_is_refused():
    model = models.tiny_llama()
    embedding = model.model.embed_tokens
    embedding.max_norm = 0.1
    embedding.weight.requires_grad_(False)
    for alone in (False, True):
        with pytest.raises(ModelError, match="embed_tokens must not use max_norm"):
            PerUnitGradients(model, alone=alone)
