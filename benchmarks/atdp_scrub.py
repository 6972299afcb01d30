"""What ATDP's scrub forgets, what it costs, and what it leaves of the language.

    python benchmarks/atdp_scrub.py --seeds 0
    python benchmarks/atdp_scrub.py --seeds 1 2 --scrubs one-step larger-step
        --checkpoints 1
    python benchmarks/atdp_scrub.py --seeds 90 --scrubs one-step --checkpoints 1
        --folder FOLDER --results FILE --set atdp.optimizer.learning_rate=1.0e-2

Every seed is a fresh invented corpus with two groups of canaries, planted once and
planted ten times, beside controls that nobody saw. What is trained on it:

- `no_dp_atdp`: without protection, and the scrub on its model;
- `redacted_atdp`: the scrub after redacted text whose detector missed every canary;
- `jft`: the private stage after the same redacted text.

Four scrubs were chosen on seed 90: seven steps at two learning rates, gentle and
hard, and a single step at the hard one and at a larger one. Scrub and JFT's private
stage are told of the canaries (ATDP's protocol: the first phase misses them, the second
does not), see the same units, and are calibrated to one epsilon. Every stage is
measured at its checkpoints: perplexity of sensitive and of other tokens, and the rank
of every canary; seconds are those of the processor, without the measuring.
Randomness is seeded so that runs repeat: no run here is private.

Prints Markdown; writes `benchmarks/results/atdp_scrub.json`, `atdp_scrub.csv` and
`atdp_scrub.png`, of the first seed. What the JSON holds is not measured again; with
`--folder`, what scrubs start from is not trained again either.
"""

import argparse
import csv
import json
import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from invented import (
    REPOSITORY,
    World,
    base_of,
    dialogue_values,
    marked_corpus,
    masked,
    plan_of,
    recipe_of,
    train_stage,
)
from matplotlib.axes import Axes
from scipy.stats import mannwhitneyu

from dptune.attacks.canaries import CanarySet, CanarySpec, draw_canaries
from dptune.attacks.planting import apply_setting, plant
from dptune.attacks.settings import AttackSettings
from dptune.config import ModelSettings, PerformanceSettings
from dptune.configfile import validate
from dptune.models.loading import LoadedModel, load_saved, save_model
from dptune.planning import RunPlan
from dptune.privacy import Notion
from dptune.reports.figures import canvas as fig
from dptune.reports.figures.canvas import plain_ticks, series_style
from dptune.workflow.canary_ranking import CanaryRanking
from dptune.workflow.tracing import Tracer

RESULTS = REPOSITORY / "benchmarks" / "results" / "atdp_scrub.json"
SPEED = PerformanceSettings(
    physical_batch_size=8, evaluation_batch_size=64, block_size=1000
)
EPSILON = 8.0
COPIES, DIGITS = 10, 5
STAGES = (
    "finetune.epochs=7",
    "finetune.expected_batch_size=16",
    "finetune.optimizer.learning_rate=3.0e-3",
    "redacted_finetune.epochs=7",
    "redacted_finetune.expected_batch_size=16",
    "redacted_finetune.optimizer.learning_rate=3.0e-3",
    "private_finetune.epochs=5",
    "private_finetune.optimizer.learning_rate=1.0e-3",
    "atdp.epochs=0.4",
    "atdp.expected_batch_size=32",
)
SCRUBS = {
    "gentle": ("atdp.optimizer.learning_rate=3.0e-3",),
    "hard": ("atdp.optimizer.learning_rate=1.5e-2",),
    "one-step": ("atdp.optimizer.learning_rate=1.5e-2", "atdp.epochs=0.06"),
    "larger-step": ("atdp.optimizer.learning_rate=2.0e-2", "atdp.epochs=0.06"),
}
RUNS = (
    ("no_dp_atdp", "finetune", ""),
    ("no_dp_atdp", "atdp", "finetune"),
    ("redacted_atdp", "redacted_finetune", ""),
    ("redacted_atdp", "atdp", "redacted_finetune"),
    ("jft", "private_finetune", "redacted_finetune"),
)
"""Recipe, its stage that is measured, and the stage that it starts from."""
GROUPS = ("once", "ten", "held_out")
KINDS = ("perplexity", "sensitive_perplexity", "ordinary_perplexity")


@dataclass(frozen=True, kw_only=True)
class PlantedWorld(World):
    """A world with canaries.

    Args:
        original: labels of the second phase, which misses no canary.
        redacted: by the labels of the first phase, which misses all of them.
        canaries: the first half of the planted ones stands there once.
    """

    canaries: CanarySet


def world(seed: int, options: argparse.Namespace, folder: Path) -> PlantedWorld:
    """Invent, plant, mark and redact one corpus; train the base model once."""
    values = dialogue_values(seed, options.num_records)
    counts = {"num_planted": 2 * options.canaries, "num_held_out": options.canaries}
    counts |= {"length": DIGITS, "insertions": COPIES}
    spec = validate(CanarySpec, values["canaries"] | counts)
    canaries = draw_canaries(spec, seed=seed)
    corpus = marked_corpus(values, lambda rows: plant(rows, canaries))
    views = {}
    for setting in ("missed", "not_missed"):
        told = spec.model_copy(update={"setting": setting})
        labelled = apply_setting(
            corpus.dataset, canaries.model_copy(update={"spec": told})
        )
        kept = [i for i, row in enumerate(labelled["id"]) if stays(row, options)]
        views[setting] = corpus.with_dataset(labelled.select(kept))
    model = validate(ModelSettings, values["model"])
    return PlantedWorld(
        base=base_of(model, SPEED, folder=folder),
        model=model,
        original=views["not_missed"],
        redacted=masked(views["missed"]),
        canaries=canaries,
    )


def stays(row_id: str, options: argparse.Namespace) -> bool:
    """Whether a row is no further copy of a canary that is planted once."""
    name, _, rest = row_id.partition("-")
    if name != "canary":
        return True
    number, _, copy = rest.partition("-")
    return int(number) >= options.canaries or copy == "0"


class Probe:
    """Measures one stage at its checkpoints: both perplexities, and every rank."""

    def __init__(
        self, made: PlantedWorld, plan: RunPlan, stage: str, *, count: int, home: Path
    ) -> None:
        attacks = AttackSettings(num_checkpoints=count)
        self._tracer = Tracer(
            plan=next(p for p in plan.stages if p.settings.name == stage),
            corpus=made.original,
            canaries=draw_canaries(CanarySpec(num_planted=0, num_held_out=0), seed=0),
            attacks=attacks,
            max_tokens=made.model.max_tokens,
            performance=SPEED,
            file=home / f"{plan.recipe}-{stage}.jsonl",
            cache=home.parent,
            enter=lambda: None,  # there is no store that counts
        )
        self._tracer.file.unlink(missing_ok=True)
        self._ranking = CanaryRanking(
            canaries=made.canaries, attacks=attacks, device="cpu", cache=home.parent
        )
        self._half = len(made.canaries.planted) // 2
        self._seconds, self._since = 0.0, time.process_time()
        self.found: dict[int, dict[str, Any]] = {}

    def watch(self, step: int, loaded: LoadedModel) -> None:
        """Stop the clock, and measure if this is a checkpoint."""
        if step:
            self._seconds += time.process_time() - self._since
        self._tracer.watch(step, loaded)
        if step in self._tracer.steps:
            ranks = self._ranks(loaded)
            self.found[step] = {"seconds": round(self._seconds, 2), "ranks": ranks}
        self._since = time.process_time()

    def _ranks(self, loaded: LoadedModel) -> dict[str, list[int]]:
        """Rank every canary under a copy of the model, group by group."""
        groups: dict[str, list[int]] = {name: [] for name in GROUPS}
        with tempfile.TemporaryDirectory() as copy:  # the model itself is in training
            save_model(loaded.model, loaded.tokenizer, Path(copy) / "model")
            found = self._ranking.measure(load_saved(Path(copy) / "model"))
        for one in found.canaries:
            first = int(one.canary_id.rpartition("-")[2]) < self._half
            name = ("once" if first else "ten") if one.planted else "held_out"
            groups[name].append(one.rank)
        return groups

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return what was measured, checkpoint by checkpoint."""
        for point in self._tracer.points():
            yield {
                "step": point.step,
                "perplexity": point.perplexity,
                "sensitive_perplexity": point.sensitive_perplexity,
                "ordinary_perplexity": point.ordinary_perplexity,
            } | self.found[point.step]


def runs(options: argparse.Namespace) -> Iterator[tuple[str, str, str, str]]:
    """Yield recipe, stage, start and, for a scrub, the name of its settings."""
    for name, stage, start in RUNS:
        for kind in options.scrubs if stage == "atdp" else [""]:
            yield name, stage, start, kind


def label(stage: str, kind: str) -> str:
    """Name a stage in results."""
    return f"{kind} {stage}".strip()


def measure(
    seed: int,
    options: argparse.Namespace,
    folder: Path,
    found: Set[tuple[str, str]],
) -> Iterator[dict[str, Any]]:
    """Train what is not `found`, and yield a row for each checkpoint of each stage."""
    made, home = world(seed, options, folder), folder / f"stages-{seed}"
    home.mkdir(parents=True, exist_ok=True)
    trained = {"": made.base}
    for name, stage, start, kind in runs(options):
        is_new = (name, label(stage, kind)) not in found
        if not is_new and stage not in {start for *_, start in RUNS}:
            continue
        changes = [*STAGES, *SCRUBS.get(kind, ()), *options.changes]
        plan = plan_of(
            recipe_of(name, changes),
            num_units=made.num_units,
            notion=Notion.SELECTIVE,
            target=EPSILON,
        )
        probe = Probe(made, plan, stage, count=options.checkpoints, home=home)
        done = train_stage(
            made,
            trained[start],
            plan,
            stage,
            seed=seed,
            home=home,
            performance=SPEED,
            retrain=is_new,
            watch=probe.watch if is_new else None,
        )
        trained[stage] = done.bundle
        if not is_new:
            continue
        noise = next(p for p in plan.stages if p.settings.name == stage)
        facts = {
            "seed": seed,
            "recipe": name,
            "stage": label(stage, kind),
            "steps": done.report.num_steps,
            "noise_multiplier": noise.noise_multiplier,
        }
        for row in probe.rows():
            yield facts | row


def exposures(ranks: Sequence[int]) -> list[float]:
    """Exposure of each rank, bits."""
    return [DIGITS * math.log2(10) - math.log2(rank) for rank in ranks]


def mean_exposure(row: Mapping[str, Any], group: str) -> float:
    """Mean of one group at one checkpoint, bits."""
    return statistics.mean(exposures(row["ranks"][group]))


def last_rows(
    rows: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    """Collect the end of every stage over the seeds."""
    found = defaultdict(list)
    for row in rows:
        if row["step"] == row["steps"]:
            found[row["recipe"], row["stage"]].append(row)
    return found


def pooled(rows: Sequence[Mapping[str, Any]], group: str) -> list[float]:
    """Exposures of one group over all seeds."""
    return [e for row in rows for e in exposures(row["ranks"][group])]


def against_controls(rows: Sequence[Mapping[str, Any]], group: str) -> float:
    """One-sided Mann-Whitney p-value of a group beside the controls of its seeds."""
    mine, others = pooled(rows, group), pooled(rows, "held_out")
    return float(mannwhitneyu(mine, others, alternative="greater").pvalue)


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write the ends of all stages, then what the scrub costs beside JFT's stage."""
    heads = (
        "after",
        *KINDS,
        "once, bits",
        "p",
        "ten times, bits",
        "p",
        "held out, bits",
    )
    lines = ["| " + " | ".join((*heads, "seconds")) + " |", "|---" * 10 + "|"]
    ends = last_rows(rows)
    for (recipe, stage), found in ends.items():
        cells = [f"{recipe}, {stage}"]
        cells += [spread([row[key] for row in found]) for key in KINDS]
        for group in GROUPS:
            per_seed = [mean_exposure(row, group) for row in found]
            cells.append(spread(per_seed))
            if group != "held_out":
                cells.append(f"{against_controls(found, group):.2g}")
        cells.append(spread([row["seconds"] for row in found]))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *costs(rows)])


def costs(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say at which checkpoint the scrub is at JFT's exposure, and after what share."""
    for seed in sorted({row["seed"] for row in rows}):
        mine = [r for r in rows if r["seed"] == seed]
        by_stage = defaultdict(list)
        for row in mine:
            by_stage[row["recipe"], row["stage"]].append(row)
        jft = by_stage["jft", "private_finetune"][-1]
        level = mean_exposure(jft, "ten")
        yield f"Seed {seed}: JFT's private stage leaves {level:.2f} bits of ten copies."
        for kind in SCRUBS:
            scrub = by_stage["redacted_atdp", label("atdp", kind)]
            if not scrub:
                continue
            low = [r for r in scrub if r["step"] and mean_exposure(r, "ten") <= level]
            there = next(iter(low), None)
            reached = (
                f"is there after {there['seconds'] / jft['seconds']:.3f} of its time, "
                f"perplexity {there['perplexity']:.2f} beside {jft['perplexity']:.2f}"
                if there
                else "does not come down to it"
            )
            whole = scrub[-1]["seconds"] / jft["seconds"]
            yield (
                f"The {kind} scrub {reached}; all of it takes {whole:.3f} and comes to "
                f"{mean_exposure(scrub[-1], 'ten'):.2f} bits, perplexity "
                f"{scrub[-1]['perplexity']:.2f}."
            )


def spread(values: Sequence[float]) -> str:
    """Mean, and the sample standard deviation where there are several seeds."""
    mean = f"{statistics.mean(values):.3g}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.2g}"


def write_csv(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Write a line for each checkpoint, with mean exposures of the groups."""
    heads = ("seed", "recipe", "stage", "step", "steps", "seconds", "perplexity")
    more = ("sensitive_perplexity", "ordinary_perplexity")
    with file.open("w", newline="", encoding="utf-8") as sink:
        out = csv.writer(sink, lineterminator="\n")
        out.writerow([*heads, *more, *(f"exposure_{g}" for g in GROUPS)])
        for row in rows:
            means = [mean_exposure(row, group) for group in GROUPS]
            out.writerow(
                [*(row[h] for h in (*heads, *more)), *(f"{m:.3f}" for m in means)]
            )


def paint(
    axes: Axes, *, rows: Sequence[Mapping[str, Any]], key: str, name: str
) -> None:
    """Draw exposure of ten-times canaries against one perplexity, by checkpoint."""
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["recipe"], row["stage"]), []).append(row)
    for index, (line, points) in enumerate(lines.items()):
        xs = [row[key] for row in points]
        ys = [mean_exposure(row, "ten") for row in points]
        style = series_style(index)
        axes.plot(xs, ys, label=", ".join(line), linewidth=1.4, markersize=5, **style)
        axes.plot(xs[-1:], ys[-1:], markersize=10, **style)
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.set_xlabel(f"perplexity of {name} tokens (log scale)")
    axes.set_ylabel("mean exposure, planted ten times (bits)")
    axes.set_ylim(bottom=0)
    fig.legend_below(axes, columns=2)


def figure(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw the curve of the first seed, for sensitive and for other tokens apart."""
    first = min(row["seed"] for row in rows)
    rows = [row for row in rows if row["seed"] == first]
    kinds = (("sensitive_perplexity", "sensitive"), ("ordinary_perplexity", "other"))
    paints: list[Callable[[Axes], None]] = [
        partial(paint, rows=rows, key=key, name=name) for key, name in kinds
    ]
    return fig.draw_png(paints, height=5.0)


def main() -> None:
    """Measure the seeds that are not there yet, and write table, CSV and figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--num-records", type=int, default=300)
    parser.add_argument("--canaries", type=int, default=40, help="of each group")
    parser.add_argument("--checkpoints", type=int, default=4, help="of each stage")
    parser.add_argument("--scrubs", nargs="+", choices=SCRUBS, default=list(SCRUBS))
    parser.add_argument("--set", dest="changes", nargs="+", default=[])
    parser.add_argument("--folder", type=Path, help="keeps what scrubs start from")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    file = options.results
    rows = json.loads(file.read_text()) if file.is_file() else []
    with tempfile.TemporaryDirectory(prefix="dptune-scrub-") as temporary:
        for seed in options.seeds:
            found = {(r["recipe"], r["stage"]) for r in rows if r["seed"] == seed}
            if found >= {(n, label(s, kind)) for n, s, _, kind in runs(options)}:
                continue
            folder = options.folder or Path(temporary)
            for row in measure(seed, options, folder, found):
                rows.append(row)
                short = {k: v for k, v in row.items() if k != "ranks"}
                means = {
                    g: round(statistics.mean(exposures(row["ranks"][g])), 2)
                    for g in GROUPS
                }
                print(json.dumps(short | means), flush=True)
            file.parent.mkdir(exist_ok=True)
            file.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    write_csv(rows, file.with_suffix(".csv"))
    file.with_suffix(".png").write_bytes(figure(rows))
    print("\n" + summary(rows))


if __name__ == "__main__":
    main()
