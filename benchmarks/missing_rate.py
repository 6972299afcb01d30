"""JFT's low and high epsilon: its figure at both ends of a missing rate's interval.

    DPTUNE_DATA_ROOT=../shared/data python benchmarks/missing_rate.py

The paper draws .01 % of the training data ten times, has people count what the detector
missed, and reports its figure for the lightly noised phase at both ends of a 95 %
interval of the missing rate (section 3.1, table 3). Here gold spans of presidio_synth
stand for people, and the recipe is `jft_light`. Two intervals: Student's t over the
ten samples, as one reads the paper, and the project's own, which knows that
misses cluster. What is certified, which no missing rate changes, stands beside them,
and the figure at the rate of the whole corpus. Samples are drawn five times.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from scipy import stats

from dptune.configfile import read_yaml
from dptune.data.gold import read_gold
from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.recognizer import Tier
from dptune.planning import RunPlan, plan_run
from dptune.privacy import NeighboringRelation, Notion
from dptune.recipes import Recipe
from dptune.results import DetectionReport, Interval
from dptune.review.quality import MissCounts, count_misses, missing_rate
from dptune.text import Span
from dptune.workflow.assess import nominal_interval

DATA = Path(os.environ.get("DPTUNE_DATA_ROOT", "../shared/data"))
RECIPE = Path(__file__).parents[1] / "configs" / "recipes" / "jft_light.yaml"
CONFIDENCE, DRAWS = 0.95, 10


def counted(engine: DetectionEngine) -> list[MissCounts]:
    """Count missed words of every text."""
    gold = read_gold(DATA / "presidio_synth" / "synth_dataset_v2.json.gz")
    found = engine.detect([one.text for one in gold])
    return [
        count_misses(one.text, _ranges(one.spans), _ranges(spans))
        for one, spans in zip(gold, found, strict=True)
    ]


def _ranges(spans: Iterable[Span]) -> list[tuple[int, int]]:
    """Return where spans lie."""
    return [(span.start, span.end) for span in spans]


def student(samples: list[list[MissCounts]]) -> Interval:
    """Return the paper's interval: t over the rates of its samples."""
    rates = [
        sum(c.missed for c in sample) / max(1, sum(c.words for c in sample))
        for sample in samples
    ]
    half = float(
        stats.t.ppf((1 + CONFIDENCE) / 2, len(rates) - 1)
        * np.std(rates, ddof=1)
        / np.sqrt(len(rates))
    )
    mean = float(np.mean(rates))
    low, high = max(0.0, mean - half), min(1.0, mean + half)
    return Interval(low=low, high=high, confidence=CONFIDENCE)


def planned(num_units: int, target: float) -> RunPlan:
    """Plan `jft_light` at a certified epsilon."""
    return plan_run(
        Recipe.model_validate(read_yaml(RECIPE)),
        num_units=num_units,
        notion=Notion.SELECTIVE,
        relation=NeighboringRelation.REPLACE_ONE,
        target_epsilon=target,
        target_delta=1e-5,
    )


def at(plan: RunPlan, rate: Interval) -> str:
    """Write the paper's figure at both ends."""
    report = DetectionReport(
        fingerprint="",
        tier=Tier.HIGH_ENTITY,
        recognizers=(),
        num_records=0,
        num_records_with_spans=0,
        num_spans={},
        masked_character_share=0.0,
        missing_rate_interval=rate,
    )
    found = nominal_interval(plan, report)
    if found is None:
        raise ValueError("jft_light has no stage that counts on a missing rate")
    ends = f"{100 * rate.low:.2f} to {100 * rate.high:.2f} %"
    return f"{ends} | {found.low:.3f} to {found.high:.3f}"


def main() -> None:
    """Print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--units", type=int, default=10000)
    parser.add_argument("--epsilon", type=float, default=3.0)
    options = parser.parse_args()
    counts = counted(build_engine(tier=Tier.HIGH_ENTITY))
    plan = planned(options.units, options.epsilon)
    size = max(1, round(1e-4 * options.units))
    missed, words = (sum(getattr(c, n) for c in counts) for n in ("missed", "words"))
    print(
        f"{len(counts)} texts, {missed} of {words} words missed "
        f"({100 * missed / words:.2f} %); jft_light, {options.units} units, certified "
        f"{plan.epsilon:.3f} (selective, replace, delta 1e-5)\n"
    )
    print("| samples | interval | missing rate | nominal epsilon, low to high |")
    print("|---|---|---|---|")
    for seed in range(5):
        rows = np.random.default_rng(seed).choice(len(counts), (DRAWS, size))
        samples = [[counts[i] for i in sample] for sample in rows]
        print(f"| draw {seed} | t | {at(plan, student(samples))} |")
        flat = [count for sample in samples for count in sample]
        _, ours = missing_rate(flat, confidence=CONFIDENCE)
        print(f"| draw {seed} | clusters | {at(plan, ours)} |")
    _, whole = missing_rate(counts, confidence=CONFIDENCE)
    print(f"| all {len(counts)} | clusters | {at(plan, whole)} |")


if __name__ == "__main__":
    main()
