"""How much does detection find, how much does it mask, and what does it cost?

    export PYTHONPATH=.
    python benchmarks/detection.py                  all parts; about 8 minutes
    python benchmarks/detection.py quality speed    some parts
    python benchmarks/detection.py --table          only rewrite the table in docs/

`quality`: recall, masked share and types on the gold sets of a data folder, and on
numbers drawn at random and written in many ways. Gold sets that are absent are skipped.

`models`: the same with the small spaCy pipeline of the data folder, alone and united
with the rules.

`speed`: words per second of processor time against spaCy in the same run; rounds take
turns, and the median of their ratios counts. `processes`: two against one. `rerun`:
over unchanged WikiText-2.

Run it with OMP_NUM_THREADS=1. A busy machine does not matter: processor time is counted
where one process works, and two are as fast as what the parent does by itself and half
of what its children do together. Results are kept in
`benchmarks/results/detection.json` and shown in `docs/DETECTION.md`.
"""

import argparse
import json
import platform
import resource
import statistics
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time
from typing import Any

import datasets
import spacy

from dptune.detection.engine import DetectionEngine, build_engine
from dptune.detection.labelling import detect_dataset
from dptune.detection.recognizer import DEFAULT_RECOGNIZERS, Tier
from tests import detection_gold as gold

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "detection.json"
TABLE = ROOT / "docs" / "DETECTION.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
SEED = 20_260

Row = dict[str, Any]


def row(what: str, figure: float, bar: float, *, at_most: bool = False) -> Row:
    """Write down one figure and the bar that it must reach."""
    met = figure <= bar if at_most else figure >= bar
    sign = "<=" if at_most else ">="
    found = {"what": what, "figure": round(figure, 4), "bar": f"{sign} {bar:g}"}
    print({**found, "met": met}, flush=True)
    return {**found, "met": met}


def quality(data: Path) -> Iterator[Row]:
    """Measure the default recognizers on every gold set that is there."""
    engines = {tier: build_engine(tier=tier) for tier in Tier}
    low, high = engines[Tier.LOW_ENTITY], engines[Tier.HIGH_ENTITY]
    if (data / "presidio_synth").is_dir():
        found = gold.measure_presidio(data, high.detect)
        yield row("presidio_synth: spans fully covered", found.span_recall, 0.95)
        found = gold.measure_presidio(data, low.detect)
        yield row("presidio_synth, default tier: covered", found.span_recall, 0.97)
        found = gold.measure_presidio(data, low.detect, lower=True)
        yield row("presidio_synth, lower case: covered", found.span_recall, 0.93)
        types = gold.measure_types(data, high.detect)
        yield row("presidio_synth: type accuracy", types.accuracy, 0.80)
    if (data / "uner_ewt").is_dir():
        for style, bar in (
            ("as it is", 0.96),
            ("lower case", 0.90),
            ("capitals", 0.92),
        ):
            rows = gold.styled(gold.uner(data, "test"), style)
            words = gold.measure_words(rows, low.detect)
            yield row(f"UNER EWT test, {style}: token recall", words.recall, bar)
            what = f"UNER EWT test, {style}: words masked"
            yield row(what, words.masked_share, 0.17, at_most=True)
    share = gold.share_of_words_masked(gold.clean_text(), low.detect)
    yield row("text without personal data: words masked", share, 0.05, at_most=True)
    share = gold.share_of_words_masked(gold.clean_text("products"), low.detect)
    yield row("of these, product names: words masked", share, 0.12, at_most=True)
    share = gold.share_of_words_masked(gold.clean_text("others"), low.detect)
    yield row("such text by other hands: words masked", share, 0.05, at_most=True)
    if (data / "abcd").is_dir():
        words = gold.measure_abcd_names(data, low.detect)
        yield row("ABCD test: names found", words.recall, 0.99)
    if (data / "ud_ewt").is_dir():
        yield from contextual(data, engines)
    if (data / "wikitext-2").is_dir():
        total, kept = gold.measure_days(data, low.detect)
        what = f"WikiText-2: of {total:,} dates with a day, kept"
        yield row(what, kept, 0, at_most=True)
    for form, recall in gold.measure_records(low.detect, seed=SEED, rounds=4).items():
        yield row(f"drawn records, {form}: recall", recall, 0.95)
    yield from structured(low)


def contextual(data: Path, engines: dict[Tier, DetectionEngine]) -> Iterator[Row]:
    """Measure the contextual tiers on EWT test."""
    for tier, recall, masked in (
        (Tier.LOW_CONTEXTUAL, 0.985, 0.45),
        (Tier.HIGH_CONTEXTUAL, 0.98, 0.54),
    ):
        name = tier.value.replace("_", " ")
        rows = list(gold.contextual(data, "test", high=tier is Tier.HIGH_CONTEXTUAL))
        words = gold.measure_words(rows, engines[tier].detect)
        yield row(f"EWT test, {name}: recall", words.recall, recall)
        share = words.masked_token_share
        yield row(f"EWT test, {name}: tokens masked", share, masked, at_most=True)


def structured(engine: DetectionEngine) -> Iterator[Row]:
    """Measure numbers and addresses drawn at random, and near misses."""
    found = gold.measure_structured(engine.detect, seed=SEED, rounds=1000)
    for kind, recall in found.items():
        yield row(f"{kind}, drawn and perturbed: recall", recall, 0.98)
    called, flagged = gold.measure_near_misses(engine.detect, seed=SEED, rounds=1000)
    for kind, share in (called | flagged).items():
        yield row(f"near misses, {kind}: flagged", share, 0.05, at_most=True)


def models(data: Path) -> Iterator[Row]:
    """Measure the small spaCy pipeline alone and united with the rules; no bars."""
    pipeline = str(data / "en_core_web_sm")
    for name, recognizers in (
        ("en_core_web_sm", ("spacy",)),
        ("rules, tagger and en_core_web_sm", DEFAULT_RECOGNIZERS),
    ):

        def engine(tier: Tier, names: tuple[str, ...] = recognizers) -> DetectionEngine:
            return build_engine(tier=tier, recognizers=names, spacy_pipeline=pipeline)

        found = gold.measure_presidio(data, engine(Tier.HIGH_ENTITY).detect)
        detect = engine(Tier.LOW_ENTITY).detect
        words = gold.measure_words(list(gold.uner(data, "test")), detect)
        tier = Tier.LOW_CONTEXTUAL
        rows = list(gold.contextual(data, "test", high=False))
        low = gold.measure_words(rows, engine(tier).detect)
        made = {
            "detector": name,
            "presidio_synth spans": round(found.span_recall, 4),
            "UNER EWT recall": round(words.recall, 4),
            "UNER EWT words masked": round(words.masked_share, 4),
            "EWT low contextual recall": round(low.recall, 4),
            "EWT low contextual tokens masked": round(low.masked_token_share, 4),
        }
        print(made, flush=True)
        yield made


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """Return the processor time of one call in this process and in its children."""
    before = (process_time(), children_time())
    work()
    return process_time() - before[0], children_time() - before[1]


def children_time() -> float:
    """Return the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lines(data: Path) -> list[str]:
    """Return the lines of WikiText-2, training split."""
    text = gold.read(data / "wikitext-2" / "wiki.train.raw.gz")
    return [line for line in text.split("\n") if line.strip()]


def speed(data: Path) -> Iterator[Row]:
    """Compare words per second, in turns."""
    texts = lines(data)[:1500]
    count = sum(len(text.split()) for text in texts)
    pipeline = data / "en_core_web_sm"
    rules = build_engine(tier=Tier.LOW_ENTITY, recognizers=("patterns", "lexicon"))
    both = build_engine(tier=Tier.LOW_ENTITY)
    ours = build_engine(
        tier=Tier.LOW_ENTITY, recognizers=("spacy",), spacy_pipeline=str(pipeline)
    )
    bare = spacy.load(pipeline)
    bare.select_pipes(enable=["ner"])
    works = {
        "rules": lambda: rules.detect(texts),
        "both": lambda: both.detect(texts),
        "bare": lambda: list(bare.pipe(texts)),
        "ours": lambda: ours.detect(texts),
    }
    for work in works.values():
        work()  # loads, and fills caches of words
    rounds = [
        {name: seconds(work)[0] for name, work in works.items()} for _ in range(3)
    ]
    ratios = {
        name: statistics.median(times["bare"] / times[name] for times in rounds)
        for name in works
    }
    best = {name: count / min(times[name] for times in rounds) for name in works}
    print({name: f"{value:,.0f} words per second" for name, value in best.items()})
    yield row("words per second: rules / spaCy NER", ratios["rules"], 10)
    yield row("words per second: rules and tagger / spaCy NER", ratios["both"], 3)
    yield row("words per second: spaCy NER here / bare", ratios["ours"], 0.90)


def processes(data: Path) -> Iterator[Row]:
    """Compare two processes with one on WikiText-2, in turns, with nothing cached."""
    texts = lines(data)
    ids = [str(number) for number in range(len(texts))]
    corpus = datasets.Dataset.from_dict({"id": ids, "text": texts})
    engine = build_engine(tier=Tier.LOW_ENTITY)
    engine.detect(texts[:2000])
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(2):
        for number, found in times.items():
            with tempfile.TemporaryDirectory() as folder:
                own, children = seconds(
                    lambda number=number, folder=folder: detect_dataset(
                        corpus, engine, num_proc=number, cache_dir=Path(folder)
                    )
                )
            found.append(own + children / number)
    print(times)
    ratio = min(times[1]) / min(times[2])
    yield row("words per second: two processes / one", ratio, 1.7)


def rerun(data: Path) -> Iterator[Row]:
    """Label WikiText-2 twice."""
    texts = lines(data)
    engine = build_engine(tier=Tier.LOW_ENTITY)

    def label(texts: list[str], engine: DetectionEngine, folder: str) -> float:
        ids = [str(number) for number in range(len(texts))]
        corpus = datasets.Dataset.from_dict({"id": ids, "text": texts})
        work = lambda: detect_dataset(corpus, engine, cache_dir=Path(folder))  # noqa: E731
        return seconds(work)[0]

    with tempfile.TemporaryDirectory() as folder:
        first = label(texts, engine, folder)
        again = label(texts, engine, folder)
        yield row(
            "rerun over unchanged text / first run", again / first, 0.02, at_most=True
        )


PARTS = {
    "quality": quality,
    "models": models,
    "speed": speed,
    "processes": processes,
    "rerun": rerun,
}
NEEDS = {
    "models": ("en_core_web_sm", "presidio_synth", "uner_ewt", "ud_ewt"),
    "speed": ("en_core_web_sm", "wikitext-2"),
    "processes": ("wikitext-2",),
    "rerun": ("wikitext-2",),
}


def as_markdown(results: dict[str, Any]) -> str:
    """Write the tables."""
    rows = [r for part in PARTS if part != "models" for r in results.get(part, ())]
    text = ["| what | figure | bar | |", "|---|---|---|---|"]
    for found in rows:
        verdict = "met" if found["met"] else "**missed**"
        text.append(
            f"| {found['what']} | {found['figure']:.4g} | {found['bar']} | {verdict} |"
        )
    for number, found in enumerate(results.get("models", ())):
        if number == 0:
            text += ["", f"| {' | '.join(found)} |", "|---" * len(found) + "|"]
        text.append(f"| {' | '.join(map(str, found.values()))} |")
    return "\n".join(text)


def write_table(results: dict[str, Any]) -> None:
    """Put the tables between the marks of the page."""
    page = TABLE.read_text(encoding="utf8")
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    made = f"{head}{BEGIN}\n{as_markdown(results)}\n{END}{tail}"
    TABLE.write_text(made, encoding="utf8")


def main() -> None:
    """Measure, keep, and show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"parts must be of {', '.join(PARTS)}, got {sorted(unknown)}")
    datasets.disable_progress_bars()
    results: dict[str, Any] = {}
    if RESULTS.is_file():
        results = json.loads(RESULTS.read_text(encoding="utf8"))
    for part in () if arguments.table else arguments.parts or PARTS:
        missing = [n for n in NEEDS.get(part, ()) if not (arguments.data / n).is_dir()]
        if missing:
            print(f"{part}: skipped, because {', '.join(missing)} is absent")
            continue
        results[part] = list(PARTS[part](arguments.data))
        results["machine"] = f"{platform.machine()}, one core"
        RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf8")
    write_table(results)


if __name__ == "__main__":
    main()
