"""The commands `init`, `configs` and `invent`: what a project begins with."""

import json
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.printing import folding_table, say_next, speaker
from infra.workspace import REPOSITORY, STATE, data_root

if TYPE_CHECKING:  # takes long to import, and --help is to be quick
    from transformers import PreTrainedTokenizerFast

    from dptune.data.synthetic import SyntheticRecord

_IGNORED = f"/{STATE}/\n/data/\n"
_README = """A project of dptune. `dptune --help` lists the commands.

| here | is |
|---|---|
| `configs/train/` | runs: copy `own_text.yaml` or `own_chat.yaml`, and say six things |
| `configs/recipes/`, `configs/gates/` | what a run trains by, and what it must pass |
| `data/` | texts; paths in configurations start from this folder |
| `.dptune/` | what runs leave: text, models, and **the record of spent budget** |

    dptune quickstart                          # the whole product on invented text
    dptune invent                              # letters, chats and a small model to try
    dptune calibrate configs/train/mine.yaml   # what it will cost, and what is wrong
    dptune train configs/train/mine.yaml       # from raw text to a verdict

`data/` and `.dptune/` hold personal text: they are in `.gitignore`, and their owner's
alone. Deleting `.dptune/` forgets what was spent.
"""


_NUM_LETTERS = 2600
_NUM_GOLD = 500
_NUM_TURNS = 4
_VOCABULARY = 512
_ROLES = {"SYS": "assistant", "USR": "user"}
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def init(
    folder: Annotated[
        Path, typer.Argument(help="Made if it is not there.", show_default=False)
    ] = Path(),
) -> None:
    """Make a project folder: configurations, a place for data. Overwrites nothing."""
    made, kept = [], 0
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        folder / "configs" / file.relative_to(REPOSITORY / "configs"): file.read_bytes()
        for file in sorted((REPOSITORY / "configs").rglob("*.yaml"))
    }
    wanted |= {folder / "README.md": _README.encode()}
    wanted |= {folder / ".gitignore": _IGNORED.encode()}
    for target, content in wanted.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("xb") as sink:
                sink.write(content)
            made.append(target)
        except FileExistsError:
            kept += 1
    for private in ("data", STATE):
        (folder / private).mkdir(mode=0o700, exist_ok=True)
    console = speaker()
    console.print(f"project {folder.resolve()}", soft_wrap=True)
    console.print(f"{len(made)} files made, {kept} were there and stay as they are")
    if folder.resolve() != Path.cwd():
        say_next(console, f"cd {shlex.quote(str(folder))}")
    say_next(console, "dptune quickstart")
    start = Path("configs", "train", "own_text.yaml")
    mine = start.with_name("mine.yaml")
    if not (folder / mine).exists():  # it would overwrite what was edited
        say_next(console, f"cp {start} {mine}  (edit, train)")


def configs() -> None:
    """List the configurations, recipes and gate policies there are."""
    from cli.runs import CONFIGS
    from dptune.configfile import read_yaml

    console = speaker()
    for folder, use in (
        ("train", "dptune train configs/train/NAME.yaml"),
        ("compare", "dptune compare configs/compare/NAME.yaml"),
        ("recipes", "--set recipe=NAME"),
        ("gates", "--set gate=NAME"),
        ("profiles", "--profile NAME"),
    ):
        table = folding_table(f"configs/{folder}: {use}", "name", "what")
        for file in sorted((CONFIGS / folder).glob("*.yaml")):
            what = read_yaml(file).get("title") or _first_sentence(file)
            table.add_row(file.stem, str(what))
        console.print(table)


def _first_sentence(file: Path) -> str:
    """Read what a configuration is from the comment below its command."""
    lines = file.read_text(encoding="utf-8").splitlines()[1:]
    comment = takewhile(lambda line: line.startswith("# "), lines)
    return " ".join(line[2:] for line in comment).split(". ", 1)[0].rstrip(".")


def invent() -> None:
    """Make up letters, chats and a small model in data/, for the tutorials.

    Nobody and nothing in them exists. Overwrites nothing.
    """
    from dptune.data.synthetic import generate_dialogues

    folder = data_root() / "data"
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
    console = speaker()
    for name, write in writers.items():
        stays = (folder / name).exists()
        if not stays:
            write(folder / name)
        how = "stays" if stays else "made "
        console.print(f"{how}   {folder / name}", soft_wrap=True)


def _shortened(letter: "SyntheticRecord") -> "SyntheticRecord":
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
    from dptune.files import replacing

    with replacing(file) as half, half.open("w", encoding="utf-8") as sink:
        sink.writelines(json.dumps(row) + "\n" for row in rows)


def _write_model(folder: Path) -> None:
    """Write a GPT-2 of two layers with random weights, and its tokenizer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from dptune.dpsgd.randomness import RandomStream, scoped_randomness, seed_sequence

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


def _tokenizer() -> "PreTrainedTokenizerFast":
    """Learn tokens from invented text that names nobody, and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from dptune.data.synthetic import generate_dialogues

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
