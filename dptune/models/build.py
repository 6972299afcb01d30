"""Build a small GPT-2 on the spot."""

from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dptune.errors import ModelError
from dptune.models._context import seeded


def build_gpt2(
    tokenizer: PreTrainedTokenizerFast,
    *,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    max_tokens: int,
    seed: int,
    tie_word_embeddings: bool = True,
    dropout: float = 0.0,
) -> GPT2LMHeadModel:
    """Build a GPT-2 with fresh weights, in evaluation mode and fp32.

    The initial weights depend on `seed` and the sizes only; they are public, and the
    global random state is left as it was. Forward passes keep no key-value cache unless
    asked (`use_cache=True`), since training has no use for it; `generate` keeps one.
    Attention is torch's scaled dot product, the default of transformers.

    Args:
        tokenizer: gives the vocabulary size and the special tokens.
        num_layers: transformer blocks, at least 1.
        num_heads: attention heads; divides `hidden_size`.
        hidden_size: width.
        max_tokens: longest record in tokens, at least 2.
        seed: of the initial weights.
        tie_word_embeddings: share the input embedding with the output layer.
        dropout: in [0, 1), for embeddings, attention and residuals.

    Raises:
        ModelError: the sizes do not fit together.
    """
    _check_sizes(
        num_layers=num_layers,
        num_heads=num_heads,
        hidden_size=hidden_size,
        max_tokens=max_tokens,
        dropout=dropout,
    )
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=max_tokens,
        n_embd=hidden_size,
        n_layer=num_layers,
        n_head=num_heads,
        activation_function="gelu_pytorch_tanh",  # gelu_new, in one kernel
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=tie_word_embeddings,
        use_cache=False,
    )
    with seeded(seed):
        model = GPT2LMHeadModel(config)
    if model.generation_config is not None:
        model.generation_config.use_cache = True
    model.train(mode=False)
    return model


def _check_sizes(
    *,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    max_tokens: int,
    dropout: float,
) -> None:
    """Refuse sizes that make no model."""
    if min(num_layers, num_heads, hidden_size) < 1 or max_tokens < 2:
        raise ModelError(
            "num_layers, num_heads and hidden_size must be at least 1 and max_tokens "
            f"at least 2, got num_layers={num_layers}, num_heads={num_heads}, "
            f"hidden_size={hidden_size}, max_tokens={max_tokens}."
        )
    if hidden_size % num_heads:
        raise ModelError(
            f"hidden_size must be a multiple of num_heads={num_heads}, "
            f"got hidden_size={hidden_size}."
        )
    if not 0.0 <= dropout < 1.0:
        raise ModelError(f"dropout must be in [0, 1), got dropout={dropout}.")
