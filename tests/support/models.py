"""Tiny models of the architectures that papers used, with random weights."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence

Attention = Literal["sdpa", "eager"]

VOCABULARY = 29
WIDTH = 16
POSITIONS = 24


def tiny_gpt2(
    *,
    tied: bool = True,
    attention: Attention = "sdpa",
    dropout: float = 0.0,
    vocabulary: int = VOCABULARY,
    width: int = WIDTH,
    num_layers: int = 2,
    num_heads: int = 2,
    positions: int = POSITIONS,
    seed: int = 0,
) -> nn.Module:
    """Return a GPT-2: Conv1D, learned positions, biases, tied head on demand."""
    fields: dict[str, Any] = {
        "vocab_size": vocabulary,
        "n_positions": positions,
        "n_embd": width,
        "n_layer": num_layers,
        "n_head": num_heads,
        "resid_pdrop": dropout,
        "embd_pdrop": dropout,
        "attn_pdrop": dropout,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "use_cache": False,
        "attn_implementation": attention,
    }
    config = GPT2Config(**fields)
    return _initialised(lambda: GPT2LMHeadModel(config), seed=seed)


def tiny_llama(
    *, tied: bool = False, attention: Attention = "sdpa", seed: int = 0
) -> nn.Module:
    """Return a Llama: RMSNorm, rotary positions, gated feed-forward, grouped keys."""
    config = LlamaConfig(**_llama_fields(tied=tied, attention=attention))
    return _initialised(lambda: LlamaForCausalLM(config), seed=seed)


def tiny_mistral(*, attention: Attention = "sdpa", seed: int = 0) -> nn.Module:
    """Return a Mistral: a Llama with a sliding window."""
    fields = _llama_fields(tied=False, attention=attention)
    config = MistralConfig(**fields, sliding_window=4)
    return _initialised(lambda: MistralForCausalLM(config), seed=seed)


def tiny_gemma(config: type[PreTrainedConfig], *, seed: int = 0) -> nn.Module:
    """Return a model of the Gemma family: tied embeddings that scale, `1 + w` norms."""
    fields = _llama_fields(tied=True, attention="eager")
    made = config(**fields, head_dim=4, sliding_window=4)
    return _initialised(lambda: AutoModelForCausalLM.from_config(made), seed=seed)


def tiny_bert_classifier(
    *, attention: Attention = "sdpa", num_labels: int = 3, seed: int = 0
) -> nn.Module:
    """Return a BERT classifier: three embeddings, a pooler, no time in its head."""
    config = BertConfig(**_bert_fields(num_labels, attention))
    return _initialised(lambda: BertForSequenceClassification(config), seed=seed)


def tiny_roberta_classifier(
    *, attention: Attention = "sdpa", num_labels: int = 3, seed: int = 0
) -> nn.Module:
    """Return a RoBERTa classifier: padding rows in its embeddings stay fixed."""
    fields = _bert_fields(num_labels, attention) | {"pad_token_id": 1}
    config = RobertaConfig(**fields)
    return _initialised(lambda: RobertaForSequenceClassification(config), seed=seed)


def _llama_fields(*, tied: bool, attention: Attention) -> dict[str, Any]:
    """Fields that Llama and Mistral share."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": POSITIONS,
        "tie_word_embeddings": tied,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "use_cache": False,
        "attn_implementation": attention,
    }


def _bert_fields(num_labels: int, attention: Attention) -> dict[str, Any]:
    """Fields that BERT and RoBERTa share."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": POSITIONS,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "num_labels": num_labels,
        "attn_implementation": attention,
    }


def _initialised(build: Callable[[], nn.Module], *, seed: int) -> nn.Module:
    """Build a model from a seed; spread its weights so that no gradient is tiny."""
    with scoped_randomness(seed_sequence(RandomStream.MODEL, seed=seed)):
        model = build()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model
