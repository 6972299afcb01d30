"""The `invent` command: files and a model to try everything on, as the tutorials do."""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dptune.data.synthetic import SyntheticRecord, generate_dialogues
from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence
from dptune.files import replacing

_NUM_LETTERS = 2600
_NUM_GOLD = 500
_NUM_TURNS = 4
_VOCABULARY = 512
_ROLES = {"SYS": "assistant", "USR": "user"}
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def invent_examples(folder: Path) -> None:
    """Write letters, gold spans, chats and a small model; what is there stays.

    Args:
        folder: where they go; made, for its owner alone, if it is not there.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    whole = generate_dialogues(num_records=_NUM_LETTERS, private=True, seed=0)
    letters = [_shortened(one) for one in whole]
    tables: dict[str, Iterable[dict[str, Any]]] = {
        "my.jsonl": (
            {"id": one.id, "customer": one.unit_id, "text": one.text} for one in letters
        ),
        "gold.jsonl": (
            {
                "text": one.text,
                "entities": [[s.start, s.end, s.entity_type] for s in one.spans],
            }
            for one in letters[:_NUM_GOLD]
        ),
        "chats.jsonl": (
            {"id": one.id, "messages": _messages(one.text)} for one in letters
        ),
    }
    writers: dict[str, Callable[[Path], None]] = {
        name: partial(_write_lines, rows) for name, rows in tables.items()
    }
    writers["small_model"] = _write_model
    console = Console(highlight=False)
    for name, write in writers.items():
        stays = (folder / name).exists()
        if not stays:
            write(folder / name)
        how = "stays" if stays else "made "
        console.print(f"{how}   {folder / name}", soft_wrap=True)


def _shortened(letter: SyntheticRecord) -> SyntheticRecord:
    """Keep the turns behind the first, for time's sake."""
    lines = letter.text.splitlines(keepends=True)
    start = len(lines[0])
    text = "".join(lines[1 : 1 + _NUM_TURNS]).rstrip()
    spans = (
        replace(span, start=span.start - start, end=span.end - start)
        for span in letter.spans
        if start <= span.start < start + len(text)
    )
    return replace(letter, text=text, spans=tuple(spans))


def _messages(text: str) -> list[dict[str, str]]:
    """Tell turns by their first letters; neighboring turns of one role become one."""
    turns = [line.split(": ", 1) for line in text.splitlines()]
    return [
        {"role": _ROLES[role], "content": " ".join(said for _, said in group)}
        for role, group in groupby(turns, key=lambda turn: turn[0])
    ]


def _write_lines(rows: Iterable[dict[str, Any]], file: Path) -> None:
    """Write JSON lines."""
    with replacing(file) as half, half.open("w", encoding="utf-8") as sink:
        sink.writelines(json.dumps(row) + "\n" for row in rows)


def _write_model(folder: Path) -> None:
    """Write a GPT-2 of two layers with random weights, and its tokenizer."""
    words = _tokenizer()
    config = GPT2Config(
        vocab_size=len(words),
        n_embd=64,
        n_layer=2,
        n_head=2,
        n_positions=128,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    with scoped_randomness(seed_sequence(RandomStream.MODEL, seed=0)):
        model = GPT2LMHeadModel(config)
    with TemporaryDirectory(dir=folder.parent) as place:
        half = Path(place) / folder.name
        words.save_pretrained(half)
        model.save_pretrained(half)
        half.rename(folder)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Learn tokens from invented text that names nobody, and a chat template."""
    public = generate_dialogues(num_records=500, private=False, seed=1)
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<s>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator((record.text for record in public), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=inner,
        bos_token=special[0],
        eos_token=special[0],
        pad_token=special[0],
        additional_special_tokens=special[1:],
        chat_template=_TEMPLATE,
    )
