"""Train the tagger that ships with the package.

    export PYTHONPATH=. OMP_NUM_THREADS=1
    python benchmarks/tagger_corpus.py WORK_FOLDER       once; about 6 minutes
    python benchmarks/train_tagger.py WORK_FOLDER        about 10 minutes of one core

writes `tagger.safetensors` into the folder; copy it to `dptune/detection/` and say in
docs/TAGGER.md what changed. The texts are those of `tagger_corpus.py`. Every pass over
them draws anew: a style for each piece (as it is, lower case, capitals, chat, typos),
other names in the place of those that were found, rare nouns in the place of nouns.
Weights and activations are rounded to integers afterwards; thresholds are scores of the
rounded network.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
import safetensors.numpy
import safetensors.torch
import torch
from tagger_corpus import DATA, Labelled, uner_dev
from tagger_names import Fillers, fill_carriers
from tagger_terms import software, wordnet_nouns
from torch import nn

from dptune.detection import features
from dptune.detection.features import NUM_PADS, TokenizedTexts, describe
from dptune.detection.names import TOKEN, form
from dptune.detection.tagger import (
    LARGEST_ACTIVATION,
    LARGEST_SUM,
    LAYERS,
    TYPES,
)
from dptune.detection.words import CLOSED, NOUN, PROPER_TOO, SPEAKER, public_words

SEED = 20_261
THRESHOLDS = {
    "unit": 1.0,
    "add": -3.6,
    "add_closed": 0.0,
    "add_small": -1.8,
    "term": 0.8,
    "keep_known": -5.2,
    "keep_capital": -7.5,
    "keep_unknown": -6.2,
}
"""Log odds from which a word is a name: one that the lexicon does not mark, one of a
closed class, a small one that no list names where capitals are kept, a term of medicine
or computing, and those that the lexicon marks: known words, unknown ones with a
capital, and without."""
WIDTH, HIDDEN = 48, 64
PASSES, RATE, BATCH, SHARE = 10, 4e-3, 4000, 0.6
LABELS = ("O", *TYPES, "MISC")
_LONGEST_PIECE = 60


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of a piece of text: gap before, string, label, weight, entity number."""

    source: str
    gaps: tuple[str, ...]
    tokens: tuple[str, ...]
    labels: tuple[int, ...]
    weights: tuple[float, ...]
    entities: tuple[int, ...]


def pieces_of(row: Labelled) -> Iterator[Piece]:
    """Cut a text at ends of sentences."""
    text, source = row["text"], row["source"]
    marks = np.zeros(len(text) + 1, dtype=np.int64)
    numbers = np.full(len(text) + 1, -1)
    unsure = np.zeros(len(text) + 1, dtype=bool)
    for number, (start, end, label) in enumerate(row["spans"]):
        if label == "UNSURE":
            unsure[start:end] = True
        else:
            marks[start:end], numbers[start:end] = LABELS.index(label), number
    made: list[tuple[str, str, int, float, int]] = []
    position = 0
    for match in TOKEN.finditer(text):
        at, token = match.start(), match.group()
        label = int(marks[at])
        is_word = token[0].isalpha() and text.startswith(":", match.end())
        if is_word and form(token)[2] & SPEAKER:
            label = 0  # `USR:`
        if source == "docs" and LABELS[label] == "ORG":
            label = LABELS.index("MISC")  # mostly products and classes
        weight = _weight(source, LABELS[label], is_unsure=bool(unsure[at]))
        made.append((text[position:at], token, label, weight, int(numbers[at])))
        position = match.end()
        is_end = token in {".", "!", "?", "\n"} or token.endswith(".")
        if (is_end and len(made) > 8) or len(made) >= _LONGEST_PIECE:
            yield Piece(source, *zip(*made, strict=True))
            made = []
    if made:
        yield Piece(source, *zip(*made, strict=True))


def _weight(source: str, label: str, *, is_unsure: bool) -> float:
    """Return how far a label is believed."""
    if source in {"uner", "carrier"}:
        return 1.0
    if source == "docs":  # the pipeline takes classes for persons and places
        return {"O": 1.0, "MISC": 0.4}.get(label, 0.0)
    if source == "diseases":
        return 1.0
    if label == "MISC":
        return 0.4
    return 0.25 if is_unsure and label == "O" else 0.8


def restyle(piece: Piece, draw: Random, fillers: Fillers) -> Piece:
    """Draw names, rare nouns, typos and capitals anew."""
    rows = list(
        zip(
            piece.gaps, piece.tokens, piece.labels, piece.weights, piece.entities,
            strict=True,
        )
    )  # fmt: skip
    rows = _exchange_names(rows, draw, fillers)
    if piece.source != "uner" or draw.random() < 0.3:
        rows = [_exchange_noun(row, draw, fillers) for row in rows]
    style = _draw_style(piece.source, draw)
    tokens = [
        _write(row, style, draw, is_first=number == 0)
        for number, row in enumerate(rows)
    ]
    gaps, _, labels, weights, entities = zip(*rows, strict=True)
    return Piece(piece.source, gaps, tuple(tokens), labels, weights, entities)


Row = tuple[str, str, int, float, int]


def _exchange_names(rows: list[Row], draw: Random, fillers: Fillers) -> list[Row]:
    """Put other names in the place of some persons and places."""
    made: list[Row] = []
    position = 0
    while position < len(rows):
        gap, _, label, weight, entity = rows[position]
        end = position + 1
        while end < len(rows) and entity >= 0 and rows[end][4] == entity:
            end += 1
        kind = LABELS[label]
        share = {"PERSON": 0.7, "PLACE": 0.25}.get(kind, 0.0)
        if entity >= 0 and weight and end - position <= 3 and draw.random() < share:
            name = fillers.name_like(kind, end - position, draw)
            for number, match in enumerate(TOKEN.finditer(name)):
                made.append(
                    (gap if not number else " ", match.group(), label, weight, entity)
                )
        else:
            made += rows[position:end]
        position = end
    return made


def _exchange_noun(row: Row, draw: Random, fillers: Fillers) -> Row:
    """Put a rare noun, or a noun with a capital, in the place of a plain one."""
    gap, token, label, _, entity = row
    if label or not token[0].isalpha() or draw.random() > 0.05:
        return row
    _, _, reading, capital, _ = form(token)
    if reading & (CLOSED | PROPER_TOO) or not reading & NOUN or capital:
        return row
    if draw.random() < 0.75:
        return gap, fillers.noun(draw), 0, 1.0, entity
    return gap, token.capitalize(), 0, 0.6, entity


_STYLES = (
    "as is", "lower", "upper", "first capital", "names lower", "typos", "title",
    "contract",
)  # fmt: skip
_SHARES = {
    "carrier": (0.27, 0.33, 0.10, 0.10, 0.00, 0.10, 0.05, 0.05),
    "docs": (0.59, 0.14, 0.06, 0.03, 0.00, 0.05, 0.04, 0.09),
    "diseases": (0.50, 0.20, 0.10, 0.05, 0.00, 0.05, 0.10, 0.00),
    "uner": (0.40, 0.28, 0.16, 0.04, 0.05, 0.05, 0.02, 0.00),
}
_OTHER_SHARES = (0.38, 0.26, 0.13, 0.05, 0.06, 0.06, 0.03, 0.03)


def _draw_style(source: str, draw: Random) -> str:
    return draw.choices(_STYLES, _SHARES.get(source, _OTHER_SHARES))[0]


def _write(row: Row, style: str, draw: Random, *, is_first: bool) -> str:
    """Write a token in a style."""
    token = row[1]
    if not token[0].isalpha() or style == "as is":
        return token
    if style == "upper":
        return token.upper()
    if style == "title":
        return token.capitalize() if len(token) > 3 else token
    if style == "first capital":
        return token.capitalize() if is_first else token.lower()
    if style == "contract":
        is_term = not row[2] and form(token)[2] & NOUN and draw.random() < 0.4
        return token.capitalize() if is_term else token
    if style == "names lower":
        return token.lower() if row[2] else token
    if style == "typos":
        token = token.lower() if draw.random() < 0.7 else token
        return _misspell(token, draw) if draw.random() < 0.12 else token
    return token.lower()


def _misspell(token: str, draw: Random) -> str:
    """Swap, drop or double a letter of a word of at least four."""
    if len(token) < 4:
        return token
    at = draw.randrange(1, len(token) - 1)
    kind = draw.randrange(3)
    if kind == 0:
        return token[:at] + token[at + 1] + token[at] + token[at + 2 :]
    return (
        token[:at] + token[at + 1 :]
        if kind == 1
        else token[:at] + token[at : at + 1] + token[at:]
    )


class RowTable:
    """Rows of every token string seen, kept flat."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._rows: list[tuple[int, ...]] = []
        self.cases: list[int] = []
        self.closed: list[bool] = []
        self.ends: list[bool] = []

    def ids(self, tokens: Sequence[str]) -> np.ndarray:
        """Return a number for each token."""
        return np.fromiter(map(self._id, tokens), np.int64, len(tokens))

    def _id(self, token: str) -> int:
        found = self._ids.get(token)
        if found is None:
            found = self._ids[token] = len(self._rows)
            made = describe(token)
            self._rows.append(made.rows)
            self.cases.append(made.case)
            self.closed.append(made.is_closed)
            self.ends.append(made.ends_sentence)
        return found

    def bags(self, ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return flat rows and offsets of some tokens."""
        rows = [self._rows[i] for i in ids]
        offsets = np.cumsum([0, *map(len, rows)][:-1])
        return torch.tensor([r for row in rows for r in row]), torch.from_numpy(offsets)


@dataclass(frozen=True)
class Batch:
    """What the network reads and should say; all of shape (places,) but bags."""

    places: torch.Tensor
    bags: tuple[torch.Tensor, torch.Tensor]
    capitals: torch.Tensor
    glue: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


def batch_of(pieces: Sequence[Piece], table: RowTable) -> Batch:
    """Lay pieces out in one row."""
    tokens, starts, ends = [""] * NUM_PADS, [0] * NUM_PADS, [0] * NUM_PADS
    labels, weights = [0] * NUM_PADS, [0.0] * NUM_PADS
    for piece in pieces:
        position = 0
        for gap, token in zip(piece.gaps, piece.tokens, strict=True):
            position += len(gap)
            starts.append(position)
            position += len(token)
            ends.append(position)
        tokens += [*piece.tokens, *[""] * NUM_PADS]
        labels += [*piece.labels, *[0] * NUM_PADS]
        weights += [*piece.weights, *[0.0] * NUM_PADS]
        starts += [0] * NUM_PADS
        ends += [0] * NUM_PADS
    ids = table.ids(tokens)
    texts = TokenizedTexts(
        tokens=tokens, starts=starts, ends=ends, first_places=[], num_tokens=[]
    )
    capitals, glue = features.rows_by_place(
        texts,
        np.asarray(table.cases)[ids],
        np.asarray(table.closed)[ids],
        np.asarray(table.ends)[ids],
    )
    unique, places = np.unique(ids, return_inverse=True)
    return Batch(
        places=torch.from_numpy(places),
        bags=table.bags(unique),
        capitals=torch.from_numpy(capitals),
        glue=torch.from_numpy(glue),
        labels=torch.tensor(labels),
        weights=torch.tensor(weights),
    )


class Network(nn.Module):
    """Sums of rows, three layers that look around, scores from all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(features.TABLE_SIZE, WIDTH, mode="sum")
        nn.init.normal_(self.table.weight, std=0.08)
        widths = [WIDTH, HIDDEN, HIDDEN]
        self.layers = nn.ModuleList(
            nn.Linear(width * len(offsets), HIDDEN)
            for width, offsets in zip(widths, LAYERS, strict=True)
        )
        self.scores = nn.Linear(HIDDEN * len(LAYERS), 2 + len(TYPES))

    def forward(self, batch: Batch, drop: float = 0.0) -> torch.Tensor:
        """Return scores, shape (places, 2 + types): name, other name, types."""
        return self.inside(batch, drop)[2]

    def inside(
        self, batch: Batch, drop: float = 0.0
    ) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """Return the sums of rows, the activations of each layer, and the scores."""
        rows, offsets = batch.bags
        if drop:
            rows = torch.where(torch.rand(rows.shape) < drop, 0, rows)
        weight = self.table.weight
        words = nn.functional.embedding_bag(
            rows, weight, offsets, mode="sum", padding_idx=features.PADDING
        )
        is_real = (batch.capitals > 0).float()[:, None]
        places = torch.stack((batch.capitals, batch.glue), dim=1)
        state = words[batch.places] + nn.functional.embedding_bag(
            places, weight, mode="sum"
        )
        state = sums = state * is_real
        outputs = []
        for layer, looks in zip(self.layers, LAYERS, strict=True):
            padded = nn.functional.pad(state, (0, 0, NUM_PADS, NUM_PADS))
            seen = [padded[NUM_PADS + o : NUM_PADS + o + len(state)] for o in looks]
            state = torch.relu(layer(torch.cat(seen, dim=1))) * is_real
            outputs.append(state)
        return sums, outputs, self.scores(torch.cat(outputs, dim=1))


def loss_of(scores: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the weighted loss of name, other name, and type."""
    misc = len(LABELS) - 1
    is_name = ((batch.labels > 0) & (batch.labels < misc)).float()
    is_misc = (batch.labels == misc).float()
    entropy = nn.functional.binary_cross_entropy_with_logits
    loss = entropy(scores[:, 0], is_name, batch.weights, reduction="sum")
    loss = loss + 0.3 * entropy(scores[:, 1], is_misc, batch.weights, reduction="sum")
    named = (is_name > 0) & (batch.weights > 0)
    if named.any():
        loss = loss + 0.3 * nn.functional.cross_entropy(
            scores[named, 2:], batch.labels[named] - 1, reduction="sum"
        )
    return loss / batch.weights.sum()


@lru_cache(maxsize=1)
def gold_pieces() -> list[Piece]:
    """Return the gold sentences, one piece each where they are short."""
    return [piece for row in uner_dev(DATA) for piece in pieces_of(row)]


def batches(
    pieces: list[Piece], draw: Random, fillers: Fillers, table: RowTable
) -> Iterator[Batch]:
    """Yield one pass in a new order and new styles."""
    draw.shuffle(pieces)
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        made = restyle(piece, draw, fillers)
        group.append(made)
        size += len(made.tokens) + NUM_PADS
        if size >= BATCH:
            yield batch_of(group, table)
            group, size = [], 0


def train(
    network: "Network",
    silver: list[Piece],
    gold: list[Piece],
    fillers: Fillers,
    passes: int,
    rate: float,
) -> None:
    """Train for some passes; the rate falls to nothing along a cosine."""
    draw = Random(SEED)  # noqa: S311  # no secret
    table = RowTable()
    optimizer = torch.optim.Adam(network.parameters(), lr=rate, betas=(0.9, 0.98))
    began, step = time.time(), 0
    for number in range(passes):
        carriers = [p for row in fill_carriers(fillers, draw) for p in pieces_of(row)]
        some = draw.sample(silver, k=int(len(silver) * SHARE))
        pieces = [*some, *carriers, *gold, *gold, *gold]
        total = passes * sum(len(p.tokens) + NUM_PADS for p in pieces) / BATCH
        losses = []
        for batch in batches(pieces, draw, fillers, table):
            share = 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / total))
            optimizer.param_groups[0]["lr"] = rate * max(share, 0.01)
            loss = loss_of(network(batch, drop=0.08), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
        print(
            number,
            step,
            round(float(np.mean(losses)), 4),
            int(time.time() - began),
            flush=True,
        )


def quantize(network: Network, probe: Batch) -> tuple[dict[str, np.ndarray], float]:
    """Round weights and activations to integers.

    Args:
        network: trained.
        probe: public text whose activations decide the scales.

    Returns:
        The tensors, and the score that stands for one unit of log odds.
    """
    with torch.no_grad():
        state, seen, _ = network.inside(probe)
    table = network.table.weight.detach().numpy().copy()
    table[0] = 0
    scale = min(127 / np.abs(table).max(), LARGEST_SUM / float(state.abs().max()))
    made = {"table": np.rint(table * scale).astype(np.int8)}
    for number, (layer, looks) in enumerate(zip(network.layers, LAYERS, strict=True)):
        weight = layer.weight.detach().numpy().reshape(HIDDEN, len(looks), -1)
        unit = 127 / np.abs(weight).max()
        # a power of two between the largest activation and its place in a byte
        top = np.quantile(seen[number][seen[number] > 0], 0.9995)
        shift = max(0, math.ceil(math.log2(top * scale * unit / LARGEST_ACTIVATION)))
        made[f"layer{number}.weight"] = (
            np.rint(weight * unit).transpose(1, 2, 0).astype(np.int8)
        )
        bias = layer.bias.detach().numpy() * scale * unit
        made[f"layer{number}.bias"] = np.rint(bias).astype(np.int32)
        made[f"layer{number}.shift"] = np.array([shift], dtype=np.int8)
        scale = scale * unit / 2**shift
        made[f"_scale{number}"] = scale
    scales = [made.pop(f"_scale{n}") for n in range(len(LAYERS))]
    per_input = np.repeat(scales, HIDDEN)
    weight = network.scores.weight.detach().numpy().T / per_input[:, None]
    unit = 800 / float(np.abs(weight).max())
    made["scores.weight"] = np.rint(weight * unit).astype(np.int16)
    bias = network.scores.bias.detach().numpy() * unit
    made["scores.bias"] = np.rint(bias).astype(np.int32)
    return {name: np.ascontiguousarray(t) for name, t in made.items()}, unit


def main() -> None:
    """Train, round, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--start", type=Path, help="go on from these weights")
    parser.add_argument("--passes", type=int, default=PASSES)
    parser.add_argument("--rate", type=float, default=RATE)
    arguments = parser.parse_args()
    lines = (arguments.folder / "silver.jsonl").read_text("utf8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    silver = [piece for row in rows for piece in pieces_of(row)]
    drugs = (arguments.folder / "drugs.txt").read_text("utf8").split()
    fillers = Fillers.draw(
        rows,
        drugs,
        seed=SEED,
        terms=wordnet_nouns(arguments.folder) & public_words(),
        software=software(arguments.folder),
    )
    gold = [p for number, p in enumerate(gold_pieces()) if number // 40 % 5]
    torch.manual_seed(SEED)
    network = Network()
    if arguments.start:
        network.load_state_dict(safetensors.torch.load_file(arguments.start))
    train(network, silver, gold, fillers, arguments.passes, arguments.rate)
    weights = dict(network.state_dict())
    safetensors.torch.save_file(weights, arguments.folder / "float.safetensors")
    tensors, unit = quantize(network, batch_of(silver[::50], RowTable()))
    path = arguments.folder / "tagger.safetensors"
    thresholds = {name: str(round(odds * unit)) for name, odds in THRESHOLDS.items()}
    safetensors.numpy.save_file(tensors, path, thresholds)


if __name__ == "__main__":
    main()
