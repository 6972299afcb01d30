"""Tiny configurations of any architecture of transformers, by the names of fields."""

import inspect
from typing import Any

import transformers
from transformers import AutoConfig

VOCABULARY = 128
PAD = 1
POSITIONS = 640
_SIZES: dict[str, int] = {
    "hidden_size d_model n_embd dim embed_dim model_dim emb_dim n_embed lru_width "
    "word_embed_proj_dim embedding_size d_embed decoder_hidden_size "
    "encoder_hidden_size attention_hidden_size expand_hidden_size "
    "hidden_size_per_layer_input": 32,
    "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers "
    "num_encoder_layers num_decoder_layers num_blocks": 2,
    "num_attention_heads n_head n_heads encoder_attention_heads num_heads "
    "decoder_attention_heads num_encoder_attention_heads "
    "num_decoder_attention_heads linear_num_value_heads": 4,
    "num_key_value_heads n_head_kv linear_num_key_heads num_kv_heads": 2,
    "head_dim d_kv attention_head_size dim_head d_head linear_key_head_dim "
    "linear_value_head_dim global_head_dim qk_nope_head_dim qk_rope_head_dim "
    "v_head_dim rotary_dim": 8,
    "intermediate_size d_ff ffn_dim encoder_ffn_dim decoder_ffn_dim dff n_inner "
    "ffn_hidden_size feed_forward_size feedforward_dim moe_intermediate_size "
    "ff_dim d_inner shared_expert_intermediate_size "
    "expert_intermediate_size": 64,
    "max_position_embeddings n_positions max_seq_len max_sequence_length n_ctx "
    "max_seq_length max_target_positions max_source_positions": POSITIONS,
    "num_experts num_local_experts n_routed_experts moe_num_experts": 4,
    "num_experts_per_tok num_experts_per_token moe_top_k moe_k top_k": 2,
    "n_group topk_group n_shared_experts": 1,
    "q_lora_rank kv_lora_rank o_lora_rank": 16,
    "state_size ssm_state_size mamba_d_state d_state": 8,
    "vocab_size vocab_size_per_layer_input": VOCABULARY,
    "type_vocab_size": 2,
}
SIZES = {name: size for names, size in _SIZES.items() for name in names.split()}
OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "reformer": {
        "axial_pos_shape": [16, 32],
        "axial_pos_embds_dim": [16, 16],
        "attn_layers": ["local", "lsh"],
        "is_decoder": True,
    },
    "modernbert": {"layer_types": None},
    "xlnet": {"d_inner": 64},
    "funnel": {"block_sizes": [1, 1], "d_inner": 64, "num_decoder_layers": 1},
    "big_bird": {"block_size": 16, "num_random_blocks": 2},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "longformer": {"attention_window": 16},
    "squeezebert": {"embedding_size": 32},
    "ctrl": {"dff": 64},
    "bloom": {"n_head": 4},
    "yoso": {"max_position_embeddings": 640},
    "mra": {"max_position_embeddings": 640, "block_per_row": 2},
    "convbert": {"embedding_size": 32, "head_ratio": 2},
    "electra": {"embedding_size": 32},
    "albert": {"embedding_size": 32},
    "lilt": {"hidden_size": 48},
    "canine": {"num_hash_buckets": 64, "local_transformer_stride": 32},
    "rwkv": {"attention_hidden_size": 32, "context_length": 640},
    "xlm": {"n_layers": 2, "max_position_embeddings": 640},
    "flaubert": {"n_layers": 2, "max_position_embeddings": 640},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": 16},
    "esmc": {"num_key_value_heads": 4},
    "dots3_note": {"num_key_value_heads": 4},
    "dots3_note_text": {"num_key_value_heads": 4},
    "hunyuan_v1_dense": {"head_dim": 8, "rope_parameters": {"rope_type": "default",
                         "rope_theta": 10000.0}},
    "hunyuan_v1_moe": {"head_dim": 8, "rope_parameters": {"rope_type": "default",
                       "rope_theta": 10000.0}},
    "ministral": {"head_dim": 8, "rope_parameters": {"rope_type": "default",
                  "rope_theta": 10000.0}},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 4},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "layoutlmv3": {"coordinate_size": 6, "shape_size": 4},
    "xmod": {"default_language": "en_XX"},
    "qwen3_5": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_5_text": {"layer_types": ["linear_attention", "full_attention"]},
    "qwen3_next": {"layer_types": ["linear_attention", "full_attention"]},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 16},
    "perceiver": {"d_latents": 32, "num_latents": 8, "num_self_attends_per_block": 2,
                  "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
                  "d_model": 32, "qk_channels": 32, "v_channels": 32},
    "roc_bert": {"pronunciation_vocab_size": 20, "shape_vocab_size": 20,
                 "pronunciation_embed_dim": 8, "shape_embed_dim": 8},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1},
    "zamba2": {"layers_block_type": None, "num_hidden_layers": 54, "mamba_d_state": 4},
    "jamba": {"mamba_d_state": 8, "mamba_dt_rank": 4, "attn_layer_period": 2,
              "attn_layer_offset": 1, "expert_layer_period": 2,
              "expert_layer_offset": 1},
    "zamba": {"mamba_d_state": 8, "n_mamba_heads": 1, "attention_head_dim": 16,
              "num_hidden_layers": 3, "attn_layer_period": 2, "attn_layer_offset": 1},
    "xlstm": {"num_heads": 2, "qk_dim_factor": 0.5, "chunk_size": 16},
    "recurrent_gemma": {"num_hidden_layers": 3, "attention_window_size": 16},
}  # fmt: skip


def shrunk(model_type: str, *, dropout: bool) -> transformers.PreTrainedConfig:
    """Return the configuration of a tiny model."""
    kind = type(AutoConfig.for_model(model_type))
    return _shrunk(kind, OVERRIDES.get(model_type, {}), dropout=dropout)


def _shrunk(
    kind: type[Any], overrides: dict[str, Any], *, dropout: bool
) -> transformers.PreTrainedConfig:
    """Build a configuration from its class, by the names of its fields."""
    full = kind()
    fields: dict[str, Any] = {}
    known = set(inspect.signature(kind.__init__).parameters) | set(vars(full))
    for name, value in vars(full).items():
        if isinstance(value, transformers.PreTrainedConfig):
            fields[name] = _shrunk(type(value), overrides, dropout=dropout)
        elif name in SIZES and isinstance(value, int) and not isinstance(value, bool):
            is_length = SIZES[name] == POSITIONS
            fields[name] = POSITIONS if is_length else min(SIZES[name], value)
            if "key_value" in name and value == getattr(full, "num_attention_heads", 0):
                fields[name] = SIZES["num_attention_heads"]
        elif not dropout and ("drop" in name) and isinstance(value, float):
            fields[name] = 0.0
        elif name.endswith("token_id") and isinstance(value, int):
            fields[name] = value % VOCABULARY if name != "pad_token_id" else PAD
    for alias in getattr(full, "attribute_map", {}):
        if alias in SIZES and full.attribute_map[alias] not in fields:
            value = getattr(full, alias, None)
            if isinstance(value, int) and not isinstance(value, bool):
                fields[full.attribute_map[alias]] = min(SIZES[alias], value)
    fields |= {"pad_token_id": PAD, "eos_token_id": 2, "bos_token_id": 0}
    fields |= {n: v for n, v in overrides.items() if n in known or n in vars(full)}
    fields.setdefault("vocab_size", VOCABULARY)
    for name in ("text_config", "decoder", "encoder"):
        if isinstance(getattr(full, name, None), transformers.PreTrainedConfig):
            fields.pop("vocab_size", None)
    return kind(**fields)
