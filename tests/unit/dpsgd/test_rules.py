import pytest
import torch
from torch import nn
from transformers.models.bart.modeling_bart import BartScaledWordEmbedding
from transformers.models.gemma.modeling_gemma import (
    GemmaRMSNorm,
    GemmaTextScaledWordEmbedding,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm

from dptune.dpsgd import rules
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.rules import find_gradient_rule, register_gradient_rule, sum_over_time
from dptune.dpsgd.terms import Scatter


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x):
        return x * self.gain


def check(model, inputs, *, rows=3):
    """Compare per-row gradients with autograd, one parameter and row at a time."""
    with PerUnitGradients(model) as engine:
        for row in range(rows):
            sums, only = engine.zeros(), torch.eye(rows)[row][None]
            with engine.record(torch.arange(rows)[:, None]) as tape:
                norms = tape.backward(
                    model(inputs).square().sum(), only.expand_as, sums
                )
            loss = model(inputs[row : row + 1]).square().sum()
            names = list(sums)
            wanted = torch.autograd.grad(loss, [engine.parameters[n] for n in names])
            for name, gradient in zip(names, wanted, strict=True):
                torch.testing.assert_close(sums[name], gradient, rtol=1e-5, atol=1e-6)
            norm = torch.stack([g.square().sum() for g in wanted]).sum().sqrt()
            torch.testing.assert_close(norms[0, row], norm, rtol=1e-5, atol=1e-6)


def inputs(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def test_taught_module_is_trained(monkeypatch):
    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    @register_gradient_rule(Scale)
    def scale_rule(module, inputs, grad):
        return {"gain": sum_over_time(inputs * grad)}

    check(nn.Sequential(nn.Linear(4, 4), Scale(4)), inputs(3, 5, 4))


def test_norms_without_bias_or_over_two_dimensions():
    check(nn.LayerNorm(4, bias=False), inputs(3, 5, 4))
    check(nn.LayerNorm((5, 4)), inputs(3, 2, 5, 4))
    check(nn.RMSNorm(4), inputs(3, 5, 4))
    check(nn.RMSNorm((5, 4), eps=1e-3), inputs(3, 5, 4))


def test_copies_of_rms_norm_are_recognised():
    for norm in (GemmaRMSNorm(4), T5LayerNorm(4)):
        check(norm, inputs(3, 5, 4))


class OtherRMSNorm(nn.Module):
    """A gain that is `1 + w` where training begins, and not where it goes."""

    def __init__(self, gain):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4))
        self.eps = 1e-6
        self.gain = gain

    def forward(self, x):
        return nn.functional.rms_norm(x, (4,), eps=self.eps) * self.gain(self.weight)


def test_norm_of_another_gain_has_no_rule_whatever_its_name():
    assert find_gradient_rule(OtherRMSNorm(lambda w: 1 + w)) is not None
    for gain in (
        lambda w: 1 + torch.tanh(w),
        lambda w: 1 + w.clamp(-0.5, 0.5),
        torch.exp,
        lambda w: w.abs(),
        lambda w: w**3,
    ):
        assert find_gradient_rule(OtherRMSNorm(gain)) is None


def test_linear_without_time_or_with_two_of_them():
    check(nn.Linear(4, 2), inputs(3, 4))
    check(nn.Linear(4, 2, bias=False), inputs(3, 2, 5, 4))


def test_padding_row_of_an_embedding_stays_fixed():
    check_ids = torch.tensor([[0, 1, 2], [2, 2, 0], [0, 0, 0]])
    check(nn.Embedding(4, 3, padding_idx=0), check_ids)
    check(nn.Embedding(4, 3), check_ids)


@pytest.mark.parametrize(
    "kind", [GemmaTextScaledWordEmbedding, BartScaledWordEmbedding]
)
def test_embedding_that_scales_is_scaled(kind):
    ids = torch.tensor([[0, 1, 2], [2, 2, 0], [0, 0, 0]])
    check(kind(4, 3, 0, embed_scale=1.75), ids)


def test_twin_without_the_scale_of_an_embedding_is_caught(monkeypatch):
    plain = dict(rules._RULES)
    plain[nn.Embedding] = lambda module, inputs, grad: {
        "weight": Scatter(inputs, grad, module.num_embeddings)
    }
    monkeypatch.setattr(rules, "_RULES", plain)
    with pytest.raises(AssertionError):
        test_embedding_that_scales_is_scaled(GemmaTextScaledWordEmbedding)


def test_module_called_twice_sums_its_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.ids = nn.Embedding(3, 4)

        def forward(self, x):
            same = self.ids(torch.ones(len(x), 2, dtype=torch.long))
            other = self.ids(torch.zeros(1, 1, dtype=torch.long))
            return self.inner(self.inner(x).tanh()) + same.sum(1, True) + other

    check(Twice(), inputs(3, 5, 4))


def test_linear_called_twice_without_time_sums_its_uses():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(self.inner(x).tanh())

    check(Twice(), inputs(3, 4))


def test_rule_that_returns_the_gradient_it_was_given_sums_its_uses(monkeypatch):
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Parameter(torch.ones(4))
            self.second = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return x + self.first + self.second

    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    register_gradient_rule(Shift)(
        lambda _module, _inputs, grad: {"first": grad, "second": grad}
    )
    shift = Shift()
    check(nn.Sequential(shift, nn.Tanh(), shift), inputs(3, 4))


@pytest.mark.parametrize("num_gates", [1, 2], ids=["alone", "stacked"])
def test_scalars_are_trained(num_gates, monkeypatch):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.tensor(0.5))

        def forward(self, x):
            return x * self.gate

    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    register_gradient_rule(Gate)(
        lambda _module, inputs, grad: {"gate": (inputs * grad).sum((1, 2))}
    )
    gates = [Gate() for _ in range(num_gates)]
    check(nn.Sequential(nn.Linear(4, 4), *gates), inputs(3, 5, 4))


def test_unknown_module_has_no_rule():
    assert find_gradient_rule(nn.Conv2d(1, 1, 1)) is None


def test_module_called_by_keyword_is_recorded():
    class Keyword(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return self.inner(input=x)

    check(Keyword(), inputs(3, 5, 4))
