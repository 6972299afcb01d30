"""What comes next, token by token, is what a pass over all tokens says."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    CpmAntConfig,
    CpmAntForCausalLM,
    FalconH1Config,
    FalconH1ForCausalLM,
    Gemma2Config,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    ProphetNetConfig,
    ProphetNetForCausalLM,
    RobertaConfig,
    RobertaForCausalLM,
)

from dptune.attacks import inference
from dptune.attacks.decoding import Decoding, ending_log_probs
from dptune.attacks.inference import next_logits
from dptune.attacks.signals import token_signals
from dptune.conversation import ScoredTokens
from dptune.errors import ModelError
from tests.support import models

CPU = torch.device("cpu")
SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 40,
}


def mamba():
    sizes = {"vocab_size": 40, "hidden_size": 16, "state_size": 4}
    return MambaForCausalLM(MambaConfig(**sizes, num_hidden_layers=2))


def openai_gpt():
    sizes = {"n_positions": 40, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=40, **sizes))


def hybrid():
    mixer = {"mamba_d_ssm": 16, "mamba_n_heads": 2, "mamba_d_head": 8}
    config = FalconH1Config(
        **SIZES, **mixer, mamba_n_groups=1, mamba_d_state=4, num_key_value_heads=2
    )
    return FalconH1ForCausalLM(config)


def roberta():
    return RobertaForCausalLM(RobertaConfig(**SIZES, is_decoder=True))


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def encoder():
    return BertLMHeadModel(BertConfig(**SIZES))


MODELS = {f.__name__: f for f in (mamba, openai_gpt, hybrid, roberta, llama)}


def made(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = (MODELS | {"encoder": encoder})[name]()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(3)
    return model.eval()


def rows():
    tokens = torch.randint(3, 40, (1, 16), generator=torch.Generator().manual_seed(1))
    tokens = tokens.repeat(3, 1)
    tokens[1, 8:], tokens[2, 8:] = 7, tokens[2, 8:].flip(0)
    return tokens


@torch.no_grad()
def apart(model):
    """How far logits token by token are from those of whole rows."""
    tokens = rows()
    whole = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    found, held = next_logits(model, tokens[:1, :8], [], past=0, device=CPU)
    worst = float((found - whole[:1, 7]).abs().max())
    for place in range(8, 16):
        found, held = next_logits(
            model,
            tokens[:, place : place + 1],
            held,
            past=place,
            device=CPU,
            rows=torch.zeros(3, dtype=torch.long) if place == 8 else None,
        )
        worst = max(worst, float((found - whole[:, place]).abs().max()))
    return worst / float(whole.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_next_logits_are_those_of_a_pass_with_keys_and_values_or_without(name):
    assert apart(made(name)) < 1e-4


def test_keys_and_values_that_count_positions_otherwise_are_seen(monkeypatch):
    """The twin trusts whatever a model keeps."""
    monkeypatch.setattr(inference, "_leads_to_the_same", lambda *_: True)
    assert apart(made("llama")) < 1e-4
    assert apart(made("roberta")) > 1e-2


@pytest.mark.parametrize("name", MODELS)
def test_endings_are_as_likely_as_a_pass_says(name):
    model, tokens = made(name), rows()
    every = Decoding(temperature=1.0, top_k=0, top_p=1.0)
    found = ending_log_probs(model, tokens.tolist(), [8] * 3, decoding=every)
    with torch.no_grad():
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
    chances = logits[:, 7:-1].log_softmax(-1).gather(2, tokens[:, 8:, None])
    assert found.tolist() == pytest.approx(chances.sum((1, 2)).tolist(), rel=1e-4)


@torch.no_grad()
def test_model_that_sees_what_follows_is_refused():
    with pytest.raises(ModelError, match="must be causal to say what comes next"):
        next_logits(made("encoder"), rows()[:1], [], past=0, device=CPU)


def test_losses_of_records_have_the_positions_of_training():
    """RoBERTa counts from behind its padding token; who says 0 asks another model."""
    torch.manual_seed(0)
    config = RobertaConfig(**SIZES | {"max_position_embeddings": 30}, is_decoder=True)
    model = RobertaForCausalLM(config).eval()
    rows = [[5, 6, 7, 8, 9], [10, 11, 12]]
    for row, found in zip(rows, token_signals(model, rows, batch_size=2), strict=True):
        tokens = torch.tensor([row])
        with torch.no_grad():
            logits = model(tokens, attention_mask=torch.ones_like(tokens)).logits
            twin = model(tokens, position_ids=torch.arange(len(row))[None]).logits
        wanted, other = (
            one[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0].numpy()
            for one in (logits, twin)
        )
        assert found.log_probs == pytest.approx(wanted, abs=1e-5)
        assert abs(found.log_probs - other).max() > 1e-3


def cpmant():
    sizes = {"dim_head": 8, "dim_ff": 24, "prompt_length": 4, "segment_types": 8}
    sizes |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return CpmAntForCausalLM(CpmAntConfig(vocab_size=40, **sizes))


def prophetnet():
    sizes = {
        "hidden_size": 16,
        "num_decoder_layers": 2,
        "num_decoder_attention_heads": 2,
    }
    config = ProphetNetConfig(vocab_size=40, **sizes, decoder_ffn_dim=24)
    return ProphetNetForCausalLM(config)


@pytest.mark.parametrize("make", [cpmant, prophetnet])
def test_losses_do_not_depend_on_what_a_record_is_batched_with(make, monkeypatch):
    """Padding reaches the losses of these; the twin does not look."""
    torch.manual_seed(0)
    model = make().eval()
    with torch.no_grad():
        for weight in model.parameters():  # fresh ones say little
            weight.add_(0.2 * torch.randn_like(weight))
    rows = [list(range(3, 3 + length)) for length in (3, 20, 7, 1)]
    every = Decoding(temperature=1.0, top_k=0, top_p=1.0)

    def losses(some):
        signals = token_signals(model, some, batch_size=8)
        endings = ending_log_probs(model, some, [1] * len(some), decoding=every)
        return [(one.nll, ending) for one, ending in zip(signals, endings, strict=True)]

    alone = [losses([row])[0] for row in rows]
    assert np.array(losses(rows)) == pytest.approx(np.array(alone), abs=1e-4)
    monkeypatch.setattr(inference, "apart", lambda model, parts, *_: parts)
    assert abs(np.array(losses(rows)) - np.array(alone)).max() > 1e-2


def test_records_stand_side_by_side_where_padding_moves_nothing():
    """One row at a time is slow."""
    model, passes = made("llama"), []
    model.register_forward_hook(lambda *_: passes.append(1))
    token_signals(model, [[3, 4], [5, 6, 7], [8]], batch_size=8)
    assert len(passes) == 3  # one of which is of all; two look at the padding


def most_rows(model, rows, **options):
    """Signals of rows, and the most that were side by side."""
    seen = []
    hook = model.register_forward_pre_hook(
        lambda _model, _args, kwargs: seen.append(len(kwargs["input_ids"])),
        with_kwargs=True,
    )
    found = token_signals(model, rows, batch_size=8, **options)
    hook.remove()
    return found, max(seen)


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize(("kind", "side_by_side"), [("llama", 3), ("capped", 2)])
def test_logits_that_nobody_asks_for_take_no_room(
    kind, side_by_side, moments, monkeypatch
):
    """Of modern vocabularies a row may have gigabytes; a capped head writes them."""
    model = models.tiny_gemma(Gemma2Config) if kind == "capped" else made(kind)
    rows = [
        ScoredTokens(range(3, 3 + length), [place % 3 == 2 for place in range(length)])
        for length in (5, 4, 3)
    ]
    alone = [most_rows(model, [row], moments=moments)[0][0] for row in rows]
    vocabulary = model.config.vocab_size
    monkeypatch.setattr(inference, "_MAX_LOGITS", 8 * vocabulary)  # eight positions
    found, most = most_rows(model, rows, moments=moments)
    assert most == side_by_side
    for one, expected in zip(found, alone, strict=True):
        assert len(one.log_probs) in {1, 2}
        for name in ("log_probs", "hits", "means", "stddevs"):
            values = getattr(one, name), getattr(expected, name)
            np.testing.assert_allclose(*values, atol=1e-5)
    monkeypatch.setattr(inference, "unwritten_logits", nullcontext)
    assert most_rows(model, rows)[1] == 2  # the twin's are limited by their logits


def test_chances_of_endings_are_those_of_all_logits(monkeypatch):
    model = made("llama")
    rows, decoding = [[3, 4, 5, 6], [7, 8, 9]], Decoding(top_k=0, top_p=1.0)
    found = ending_log_probs(model, rows, [2, 1], decoding=decoding)
    monkeypatch.setattr(inference, "unwritten_logits", nullcontext)
    expected = ending_log_probs(model, rows, [2, 1], decoding=decoding)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_no_records_have_no_losses():
    model = made("llama")
    assert token_signals(model, []) == []
    assert not len(ending_log_probs(model, [], [], decoding=Decoding()))
