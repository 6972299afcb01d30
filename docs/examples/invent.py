"""Invent what the tutorials train on: python docs/examples/invent.py.

data/my.jsonl      letters, with `id`, `customer` and `text`
data/gold.jsonl    500 of them, with where their personal data stand
data/chats.jsonl   the same letters as chats, with `id` and `messages`
data/small_model   a GPT-2 of two layers with random weights, and a chat template
"""

import json
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from dptune.data.synthetic import SyntheticRecord, generate_dialogues

NUM_LETTERS = 2600
FOLDER = Path("data")
ROLES = {"SYS": "assistant", "USR": "user"}
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def short(letter: SyntheticRecord) -> SyntheticRecord:
    """Keep four turns, for time's sake."""
    lines = letter.text.splitlines(keepends=True)
    start = len(lines[0])
    text = "".join(lines[1:5]).rstrip()
    spans = [
        replace(span, start=span.start - start, end=span.end - start)
        for span in letter.spans
        if start <= span.start < start + len(text)
    ]
    return replace(letter, text=text, spans=tuple(spans))


def messages(text: str) -> list[dict[str, str]]:
    """Tell turns by their first letters; neighboring turns of one role become one."""
    turns = [line.split(": ", 1) for line in text.splitlines()]
    return [
        {"role": ROLES[role], "content": " ".join(said for _, said in group)}
        for role, group in groupby(turns, key=lambda turn: turn[0])
    ]


def tokenizer() -> PreTrainedTokenizerFast:
    """Learn 512 tokens from invented text that names nobody."""
    public = generate_dialogues(num_records=500, private=False, seed=1)
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    special = ["<s>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator((record.text for record in public), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=special[0],
        eos_token=special[0],
        pad_token=special[0],
        additional_special_tokens=special[1:],
        chat_template=TEMPLATE,
    )


def main() -> None:
    """Write letters, chats and model."""
    FOLDER.mkdir(exist_ok=True)
    whole = generate_dialogues(num_records=NUM_LETTERS, private=True, seed=0)
    letters = [short(one) for one in whole]
    with (FOLDER / "my.jsonl").open("w") as file:
        for one in letters:
            row = {"id": one.id, "customer": one.unit_id, "text": one.text}
            file.write(json.dumps(row) + "\n")
    with (FOLDER / "gold.jsonl").open("w") as file:
        for one in letters[:500]:
            spans = [[span.start, span.end, span.entity_type] for span in one.spans]
            file.write(json.dumps({"text": one.text, "entities": spans}) + "\n")
    with (FOLDER / "chats.jsonl").open("w") as file:
        for one in letters:
            row = {"id": one.id, "messages": messages(one.text)}
            file.write(json.dumps(row) + "\n")
    words = tokenizer()
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 128}
    config = GPT2Config(
        vocab_size=len(words),
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **sizes,
    )
    GPT2LMHeadModel(config).save_pretrained(FOLDER / "small_model")
    words.save_pretrained(FOLDER / "small_model")


if __name__ == "__main__":
    main()
