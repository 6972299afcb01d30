"""Models through which one row reaches another must not train; others must.

Each is a tiny random one of transformers, put through the check of a private stage.
"""

import copy
import dataclasses
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BartConfig,
    BigBirdConfig,
    CanineConfig,
    ConvBertConfig,
    DebertaV2Config,
    GPT2Config,
    ModernBertConfig,
    NystromformerConfig,
    OPTConfig,
    T5Config,
    T5EncoderModel,
    YosoConfig,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from dptune.dpsgd import chance, isolation, selfcheck
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.prechecks import check_private
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.trainer import train_stage
from dptune.errors import ModelError
from dptune.models.build import add_lora
from tests.support import models

WIDTH = 16
FIELDS = {
    "vocab_size": 40,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": 128,
    "num_labels": 3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CANINE = CanineConfig(**FIELDS, local_transformer_stride=16)
LEAKY = {
    "nystromformer": NystromformerConfig(**FIELDS),
    "yoso": YosoConfig(**FIELDS),
    "canine": CanineConfig(**FIELDS, downsampling_rate=2, local_transformer_stride=16),
    "convbert": ConvBertConfig(**FIELDS, embedding_size=WIDTH, head_ratio=2),
}
TARGETS = {"convbert": ["query", "value"]}


def build(config, *, lora=(), kind=AutoModelForSequenceClassification):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind.from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
    if lora:
        return add_lora(model, rank=2, alpha=4, target_modules=lora)
    return model


def leaky(name):
    if name == "canine":  # has no adapters in peft
        model = build(LEAKY[name])
        for parameter, value in model.named_parameters():
            value.requires_grad_("encoder" in parameter and ".value." in parameter)
        return model
    return build(LEAKY[name], lora=TARGETS.get(name, ["query", "value"]))


def data(*lengths):
    draws = np.random.default_rng(0)
    return UnitDataset(
        sequences=Ragged.of([draws.integers(3, 29, n) for n in lengths], np.int64),
        loss_weights=Ragged.of([np.ones(n, np.float32) for n in lengths], np.float32),
        units=Ragged.of([np.asarray([i]) for i in range(len(lengths))], np.int64),
        labels=np.arange(len(lengths)) % 3,
    )


def feed(**changes):
    fields = {
        "data": data(3, 60, 20),
        "record_loss": ClassificationLoss(),
        "physical_batch_size": 8,
        "max_tokens": 64,
        "pad_token_id": 0,
        "device": torch.device("cpu"),
        "autocast": False,
    }
    return Feed(**fields | changes)


def check(model, **changes):
    check_private(model, feed(**changes), seed=0)


def causal(**changes):
    loss = {"record_loss": CausalLoss(loss_normalizer=8.0), "max_tokens": 24}
    return loss | {"data": dataclasses.replace(data(3, 20), labels=None)} | changes


@pytest.mark.parametrize("name", LEAKY)
def test_model_whose_padding_reaches_a_loss_is_refused_before_a_charge(name):
    charges = []
    stops = (
        "row of 1 tokens without padding" if name == "canine" else "padding must not"
    )
    with pytest.raises(ModelError, match=f"{stops}.*fixed_shapes to true"):
        train_stage(
            leaky(name),
            data(3, 60, 20),
            plan=GradientPlan(
                noise_multiplier=1.0,
                sample_rate=0.5,
                max_grad_norm=1.0,
                expected_batch_size=2.0,
            ),
            num_steps=1,
            optimizer=OptimizerSettings(name="sgd", learning_rate=0.1),
            physical_batch_size=8,
            pad_token_id=0,
            loss_normalizer=64.0,
            checkpoint_dir=None,
            block_size=1,
            charge=lambda first, count: charges.append(first),
            seed=0,
            record_loss=ClassificationLoss(),
            max_tokens=64,
        )
    assert charges == []


def test_fixed_shapes_cure_padding():
    check(leaky("convbert"), fixed_shapes=True)


def test_one_row_at_a_time_has_no_padding():
    check(leaky("convbert"), physical_batch_size=1)


def smaller(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(3)
    return model


def shortened(longest, *, several):
    return [5, 4, 3, 3, 4, 5, 4] if several else [5, 4, 3, 4, 5, 4]


def test_rows_one_token_apart_miss_padding(monkeypatch):
    """The twin that was there before."""
    monkeypatch.setattr(isolation, "_lengths", shortened)
    monkeypatch.setattr(selfcheck, "_APART", 1e-3)
    monkeypatch.setattr(selfcheck, "_EXPONENTS", (0,))
    check(smaller(leaky("convbert")))


def test_losses_alone_miss_padding():
    """The twin that compares losses to 1e-3, in evaluation mode, and no gradient."""
    model = smaller(leaky("convbert")).eval()
    probe = isolation.make_probe(model, feed())
    with torch.no_grad():
        together = probe.feed.losses(model, probe.batch(probe.companies[0]))
        alone = [
            probe.feed.losses(model, probe.batch((unit,)))
            for unit in probe.companies[0]
        ]
    torch.testing.assert_close(torch.cat(alone), together, rtol=1e-3, atol=1e-6)
    with pytest.raises(ModelError, match="padding"):
        check(model)


@pytest.mark.parametrize("rows", range(2, 9))
def test_whoever_can_have_company_has_it(rows):
    several = dataclasses.replace(data(3, 60, 20), max_sequences_per_unit=2)
    fed = feed(physical_batch_size=rows, data=several)
    probe = isolation.make_probe(build(LEAKY["yoso"]), fed)
    units = probe.feed.data.units
    assert all(sum(len(units[u]) for u in c) <= rows for c in probe.companies)
    together = {unit for c in probe.companies if len(c) > 1 for unit in c}
    assert {u for u in isolation.COMPARED if len(units[u]) < rows} <= together
    assert set(isolation.COMPARED) <= set().union(*probe.companies)


class MovesItsWeight(nn.Module):
    """Adds to its own weight whenever gradients are computed."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.inner.weight.requires_grad_(False)

    def forward(self, x):
        if torch.is_grad_enabled():
            self.inner.weight.data[0] *= 1 + 2e-7  # moves no gradient by 1e-5
        return self.inner(x)


def test_weight_that_changes_where_gradients_are_computed_is_refused(monkeypatch):
    model = models.tiny_gpt2()
    model.transformer.ln_f = MovesItsWeight(model.transformer.ln_f)
    with pytest.raises(ModelError, match=r"ln_f\.inner\.weight must not change"):
        check(model, **causal())
    monkeypatch.setattr(selfcheck, "_refuse_changed", lambda _: None)
    check(model, **causal())  # the twin that does not look


class MixesInTraining(nn.Module):
    """What follows `inner` sees the mean over rows, in training only."""

    def __init__(self, inner, *, size):
        super().__init__()
        self.inner = inner
        self.size = size

    def forward(self, x):
        x = self.inner(x)
        return x + self.size * x.mean(0, keepdim=True) if self.training else x


def test_rows_mixed_in_training_only_are_refused():
    model = models.tiny_gpt2()
    model.transformer.ln_f = MixesInTraining(model.transformer.ln_f, size=1e-3)
    with pytest.raises(ModelError, match="must not depend on the other records"):
        check(model, **causal())


def test_check_in_evaluation_mode_misses_what_training_mixes(monkeypatch):
    model = models.tiny_gpt2()
    model.transformer.ln_f = MixesInTraining(model.transformer.ln_f, size=1e-3)
    model.eval()
    monkeypatch.setattr(nn.Module, "train", lambda self, mode=True: self)
    check(model, **causal())


class T5Classifier(nn.Module):
    """The encoder of T5 with a head on its first position."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.encoder = T5EncoderModel(config)
        for name, parameter in self.encoder.named_parameters():  # no rows of its own
            parameter.requires_grad_("relative_attention_bias" not in name)
        self.head = nn.Linear(config.d_model, 3)

    def forward(self, input_ids, attention_mask):
        hidden = self.encoder(input_ids, attention_mask=attention_mask)
        return SequenceClassifierOutput(logits=self.head(hidden[0][:, 0]))


T5 = {
    "d_model": WIDTH, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2,
    "vocab_size": 40, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
SOUND = {
    "gpt2": lambda: (models.tiny_gpt2(dropout=0.1), causal()),
    "llama": lambda: (models.tiny_llama(), causal()),
    "bert": lambda: (models.tiny_bert_classifier(), {"max_tokens": 24}),
    "modernbert": lambda: (build(ModernBertConfig(**FIELDS)), {}),
    "deberta": lambda: (build(DebertaV2Config(**FIELDS)), {}),
    "t5_encoder": lambda: (T5Classifier(T5Config(**T5)), {}),
    "canine_alone": lambda: (
        leaky("canine"),
        {"physical_batch_size": 1, "fixed_shapes": True},  # stopped by short rows
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_model_passes(name):
    model, changes = SOUND[name]()
    check(model, **changes)


@pytest.mark.parametrize("config", [T5Config(**T5, num_labels=3), BartConfig(
    vocab_size=40, d_model=WIDTH, encoder_layers=1, decoder_layers=1,
    encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32,
    decoder_ffn_dim=32, max_position_embeddings=64, num_labels=3,
)], ids=["t5", "bart"])  # fmt: skip
def test_classifier_that_counts_end_tokens_is_refused_by_name(config):
    with pytest.raises(ModelError, match="ForSequenceClassification reads a row off"):
        check(build(config))


def test_model_that_short_rows_stop_is_refused_with_the_way_out():
    model = smaller(build(CANINE))
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    with pytest.raises(ModelError, match=r"row of 3 tokens.*Set fixed_sh"):
        check(model)


def test_error_of_a_models_code_names_the_model_and_what_it_could_not():
    model = models.tiny_gpt2(positions=10)
    with pytest.raises(ModelError, match=r"GPT2LMHeadModel cannot compute a row of 24"):
        check(model, **causal())


BIG_BIRD = BigBirdConfig(
    **FIELDS | {"max_position_embeddings": 128}, block_size=8, num_random_blocks=1
)


def test_attention_that_a_short_batch_switches_is_refused_and_put_back():
    model = build(BIG_BIRD, lora=["query", "value"])
    before = model.get_base_model().bert.encoder.layer[0].attention.self
    with pytest.raises(ModelError, match=r"whatever came before.*attention_type"):
        check(model, max_tokens=128)
    base = model.get_base_model().bert
    assert base.attention_type == "block_sparse"
    assert base.encoder.layer[0].attention.self is before


def test_layer_that_is_left_out_for_a_whole_batch_is_refused():
    fields = {"hidden_size": WIDTH, "ffn_dim": 32, "word_embed_proj_dim": WIDTH}
    config = OPTConfig(**FIELDS | fields, layerdrop=0.1)
    with pytest.raises(ModelError, match=r"nothing but dropout.*rand in OPTDecoder"):
        check(build(config, lora=["q_proj"], kind=AutoModelForCausalLM), **causal())
    config.layerdrop = 0.0  # the coin is still drawn, and moves nothing
    check(build(config, lora=["q_proj"], kind=AutoModelForCausalLM), **causal())


class HashesLongRows(nn.Module):
    """Moves the last token but one of a row of full length, and by very little."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        result = self.inner(x)
        if x.shape[1] != 24:
            return result
        return result + 1e-3 * (torch.arange(24) == 22)[:, None] * torch.randn(1)


def test_draws_that_move_few_rows_by_little_are_refused(monkeypatch):
    model = models.tiny_gpt2()
    model.transformer.ln_f = HashesLongRows(model.transformer.ln_f)
    with pytest.raises(ModelError, match=r"dropout.*randn in HashesLongRows"):
        check(model, **causal())
    monkeypatch.setattr(chance, "_SAME_LOSS_DRAWN", chance._SAME_LOSS)
    check(model, **causal())  # the twin that looks as for other kernels lets it pass


class Scaled(nn.Module):
    """Scales a row by what is drawn for it; keeps that for rows that follow, or not."""

    def __init__(self, inner, draw, *, keeps=False):
        super().__init__()
        self.inner, self.draw, self.keeps, self.kept = inner, draw, keeps, None

    def forward(self, x):
        if self.kept is None or not self.keeps:
            self.kept = self.draw()
        return self.inner(x) * (0.5 + self.kept)


def scaled(draw, **options):
    model = models.tiny_gpt2()
    model.transformer.ln_f = Scaled(model.transformer.ln_f, draw, **options)
    return model


@pytest.mark.parametrize("draw", [lambda: torch.rand(1), lambda: torch.randn(1)])
def test_row_that_is_alone_may_have_chances_of_its_own(draw):
    check(scaled(draw), **causal(physical_batch_size=1))
    with pytest.raises(ModelError, match=r"nothing but dropout.*physical_batch_size"):
        check(scaled(draw), **causal())


def test_row_that_is_alone_may_not_have_chances_of_a_known_seed():
    known = torch.Generator().manual_seed(0)
    draws = {
        "rand": lambda: torch.rand(1, generator=known) < 1e-6,
        "randn": lambda: torch.randn(1, generator=known),
        "random": lambda: 1.0 * random.random(),  # noqa: S311 - as models do
        "uniform": lambda: np.random.uniform(0, 1),  # noqa: NPY002
    }
    for name, draw in draws.items():
        with pytest.raises(ModelError, match=rf"but {name} in .*seeds that a script"):
            check(scaled(draw), **causal(physical_batch_size=1))


def test_chance_that_rows_alone_share_is_refused():
    model = scaled(lambda: torch.rand(1), keeps=True)
    with pytest.raises(ModelError, match="whatever came before"):
        check(model, **causal(physical_batch_size=1))


class SharesItsMask(nn.Module):
    """Dropout of what all rows share, such as an embedding of positions."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.inner(x) * self.drop(torch.ones_like(x[:1]))


def test_dropout_with_one_mask_for_all_rows_is_refused():
    model = models.tiny_gpt2()
    model.transformer.ln_f = SharesItsMask(model.transformer.ln_f)
    with pytest.raises(ModelError, match=r"SharesItsMask\.forward has one for all"):
        check(model, **causal())
    model.transformer.ln_f.drop.p = 0.0
    check(model, **causal())


class Remembers(nn.Module):
    """Adds what it saw of the batch before."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.seen = 0.0

    def forward(self, x):
        result = self.inner(x) * (1 + 1e-3 * self.seen)
        self.seen = float(x.detach().mean()) + 1
        return result


def test_what_an_earlier_batch_left_behind_is_refused_and_put_back():
    model = models.tiny_gpt2()
    model.transformer.ln_f = Remembers(model.transformer.ln_f)
    with pytest.raises(ModelError, match=r"whatever came before.*ln_f\.seen"):
        check(model, **causal())
    assert model.transformer.ln_f.seen == 0.0


class Competes(nn.Module):
    """Only the first rows get through: capacity that rows compete for."""

    def __init__(self, inner, *, capacity):
        super().__init__()
        self.inner = inner
        self.capacity = capacity

    def forward(self, x):
        lets = torch.arange(len(x)) < self.capacity
        return self.inner(x) * lets[:, None, None]


class RootOfNothing(nn.Module):
    """Has a loss and no gradient."""

    def forward(self, x):
        return x + (x - x).square().sum((1, 2), keepdim=True).sqrt()


class FirstBatch(nn.Module):
    """Takes the mean of the first batch that it sees for a constant."""

    mean = None

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        if self.mean is None:
            self.mean = x.detach().mean()
        return self.inner(x) * (1 + self.mean)


@pytest.mark.parametrize("size", [1, 8])
def test_what_the_first_batch_left_behind_is_refused(size, monkeypatch):
    model = models.tiny_llama()
    model.model.layers[0].mlp = FirstBatch(model.model.layers[0].mlp)
    fields = causal(physical_batch_size=size)
    with pytest.raises(ModelError, match="alike whatever came before"):
        check(model, **fields)
    apart = isolation.Isolation.apart  # a twin that never puts the model back
    monkeypatch.setattr(
        isolation.Isolation, "apart", lambda self, **_: apart(self, casts=nullcontext)
    )
    check(model, **fields)


def test_gradient_that_is_not_finite_is_refused():
    model = models.tiny_gpt2()
    model.transformer.drop = RootOfNothing()
    with pytest.raises(ModelError, match="must have finite gradients"):
        check(model, **causal())


def test_rows_that_compete_are_refused_even_with_fixed_shapes():
    model = models.tiny_gpt2()
    model.transformer.ln_f = Competes(model.transformer.ln_f, capacity=2)
    with pytest.raises(ModelError, match="must not depend on the other records"):
        check(model, **causal())
    with pytest.raises(ModelError, match="which are on, do not help"):
        check(model, **causal(fixed_shapes=True))


@pytest.mark.parametrize("leaks", [True, False])
def test_model_is_left_bit_for_bit_even_if_refused(leaks):
    model = leaky("convbert") if leaks else build(ModernBertConfig(**FIELDS))
    next(p for p in model.parameters() if p.requires_grad).grad = None
    weights = {n: v.clone() for n, v in model.state_dict().items()}
    modes = {n: (m.training, sorted(m.__dict__)) for n, m in model.named_modules()}
    flags = [p.requires_grad for p in model.parameters()]
    config = copy.deepcopy(model.config.to_dict())
    states = torch.get_rng_state(), random.getstate()
    if leaks:
        with pytest.raises(ModelError):
            check(model)
    else:
        check(model)
    assert all(torch.equal(v, weights[n]) for n, v in model.state_dict().items())
    after = {n: (m.training, sorted(m.__dict__)) for n, m in model.named_modules()}
    assert after == modes
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert model.config.to_dict() == config
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


@pytest.mark.parametrize("changes", [
    {"autocast": True, "fixed_shapes": True},
    {"data": dataclasses.replace(data(3, 60, 20), max_sequences_per_unit=2)},
], ids=["bfloat16", "several_rows"])  # fmt: skip
def test_bfloat16_hides_no_leak_and_units_of_several_rows_pass(changes):
    check(models.tiny_bert_classifier(), **{"max_tokens": 24} | changes)
    mixing = models.tiny_bert_classifier()
    mixing.bert.pooler = MixesInTraining(mixing.bert.pooler, size=1e-3)
    with pytest.raises(ModelError, match="must not depend on the other records"):
        check(mixing, **{"max_tokens": 24} | changes)


def test_leak_below_a_unit_next_to_nothing_is_seen_over_its_own_norm(monkeypatch):
    """What is compared is what a clipped unit adds, not what the largest one does."""
    model = models.tiny_gpt2()
    probe = isolation.make_probe(model, feed(**causal()))
    short = probe.length(isolation.COMPARED[-1])
    assert short == 3
    with isolation.PerUnitGradients(model) as engine:
        found = isolation.Isolation(model, engine, probe)
        assert found.gradient(isolation.COMPARED[-1]).keys() == engine.parameters.keys()
        total = isolation._largest(found.gradient(isolation.COMPARED[-1])).distance
        assert total == pytest.approx(1, rel=1e-5)


class OverPrompts(CausalLoss):
    """Divides by what all rows of a batch have of prompts, which are no targets."""

    def __call__(self, model, batch):
        prompts = (batch.loss_weights == 0) & (batch.attention_mask == 1)
        return super().__call__(model, batch) / (1 + prompts.sum())


@pytest.mark.parametrize("fixed_shapes", [False, True])
def test_loss_that_looks_at_the_prompts_of_others_is_refused(fixed_shapes):
    loss = OverPrompts(loss_normalizer=8.0)
    with pytest.raises(ModelError, match="other records of its batch"):
        check(
            models.tiny_gpt2(),
            **causal(record_loss=loss, fixed_shapes=fixed_shapes),
        )


def test_classifier_without_a_padding_token_is_told_to_name_one():
    config = GPT2Config(
        vocab_size=29, n_embd=16, n_layer=1, n_head=2, n_positions=64, num_labels=3
    )
    model = build(config)
    with pytest.raises(ModelError, match=r"token is defined.*Set pad_token_id of its"):
        check(model)
    model.config.pad_token_id = 0
    check(model)
