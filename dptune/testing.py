"""A model and a tokenizer of a few kilobytes, to try things out on: nothing is fetched.

Both are made up: the model has random weights, and the tokenizer knows bytes.
"""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence

_NUM_BYTES = 256


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Return a fast tokenizer with a token for each byte, and `<s>` before them.

    >>> tiny_tokenizer()("no")["input_ids"]
    [78, 79]
    """
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {sign: number for number, sign in enumerate(["<s>", *signs])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
        add_prefix_space=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token="<s>",  # noqa: S106 - a token of text
        eos_token="<s>",  # noqa: S106
        pad_token="<s>",  # noqa: S106
    )


def tiny_model(*, num_tokens: int = 64, seed: int = 0) -> GPT2LMHeadModel:
    """Return a GPT-2 of one layer for `tiny_tokenizer`.

    Args:
        num_tokens: longest sequence.
        seed: of its random weights.

    >>> tiny_model().num_parameters() < 10_000
    True
    """
    config = GPT2Config(
        vocab_size=1 + _NUM_BYTES,
        n_positions=num_tokens,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        use_cache=True,
    )
    randomness = seed_sequence(RandomStream.MODEL, seed=seed)
    with scoped_randomness(randomness, device=torch.device("cpu")):
        return GPT2LMHeadModel(config)
