"""Train a byte-level BPE tokenizer on public text, and read that text."""

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from dptune.errors import ModelError
from dptune.jsons import parse_json
from dptune.models.source import BYTE_VOCAB_SIZE

END_OF_TEXT = "<|endoftext|>"
PAD = "<|pad|>"


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; the same texts give the same tokenizer.

    Text is split as in GPT-2 (a word keeps its leading space), except that every digit
    is a token of its own and the space before a number stays with neither: `" 42"` is
    the tokens `" "`, `"4"`, `"2"`. Any candidate of a numeric canary then has the same
    number of tokens. Any Unicode text survives `decode(encode(text))`.

    Token 0, `<|endoftext|>`, begins and ends a record; token 1, `<|pad|>`, pads.

    Privacy:
        The vocabulary shows which words are frequent in `texts` and is released with
        the model. Pass public text only: nothing here is accounted for.

    Args:
        texts: public texts; none at all gives one token per byte.
        vocab_size: largest number of tokens, special ones included, at least 258.
            Fewer come out where the texts hold fewer pairs that occur twice.

    Raises:
        ModelError: `vocab_size` cannot hold the 256 bytes.

    References:
        Radford et al. (2019), "Language Models are Unsupervised Multitask Learners",
        section 2.2.
    """
    if vocab_size < BYTE_VOCAB_SIZE:
        raise ModelError(
            f"vocab_size must be at least {BYTE_VOCAB_SIZE} (256 bytes and two special "
            f"tokens), got vocab_size={vocab_size}. Common choices are 2048 to 8192."
        )
    tokenizer = _untrained()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        special_tokens=[END_OF_TEXT, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
    )


def _untrained() -> Tokenizer:
    """Byte-level BPE whose offsets include the leading space, as GPT-2's do."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def read_public_text(files: Sequence[Path]) -> Iterator[str]:
    """Yield lines of `.txt` files and the `text` of `.jsonl` files, gzipped or not.

    Raises:
        ModelError: a file cannot be read, or a JSON line has no `text`.
    """
    for path in files:
        try:
            yield from _texts(path)
        except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"the public text {path} must be readable UTF-8 lines, or JSON lines "
                f"with a text field ({type(error).__name__}). Check the path."
            ) from None


def _texts(path: Path) -> Iterator[str]:
    """Yield the texts of one file."""
    is_json = ".jsonl" in path.suffixes
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield parse_json(line)["text"] if is_json else line
