"""Measure a corpus from JSON lines to redacted, encoded text: memory and processor.

    PYTHONPATH=. python benchmarks/large_corpus.py 1000000 --folder .dptune/work

Invents records of 60 words, lines of dialogues of which one in four speaks of a person,
three records to a user, and calls what the steps of a run call, in their order; between
two steps the corpus is stored and read back as an artifact, its hash compared. Each
stage prints seconds, processor seconds, peak memory of all processes, beside what is on
disk. `pss` shares pages among the processes that hold them, `rss` counts them for each;
pages of mapped files count in both. A second run with the same `--folder` and `--keep`
goes on behind the parts that a killed one left.
"""

import argparse
import datetime as dt
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dptune.accounting.ledger import PrivacyLedger
from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.planting import plant
from dptune.config import (
    DataSettings,
    DetectionSettings,
    ScoringSettings,
)
from dptune.data.records import Corpus
from dptune.data.synthetic import iter_dialogues
from dptune.dpsgd.dataset import UnitDataset
from dptune.models.encode import encode_corpus
from dptune.models.tokenizer import train_tokenizer
from dptune.redaction.operators import RedactionSettings
from dptune.workflow.detect import label_corpus
from dptune.workflow.ingest import read_corpus
from dptune.workflow.redact import redact_corpus
from dptune.workflow.score import score_corpus
from materializers.corpus import CorpusMaterializer

_WORDS = 60
_LINES = 8
_STAGES = ("ingest", "plant", "detect", "score", "redact", "encode")
_PERIOD = 0.5


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("records", type=int)
    parser.add_argument("--folder", type=Path, required=True, help="private, for work")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--recognizers", nargs="+", default=["patterns", "lexicon"])
    parser.add_argument("--stages", nargs="+", default=_STAGES, choices=_STAGES)
    parser.add_argument("--keep", action="store_true", help="for a second run")
    parser.add_argument("--watch", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.watch is not None:
        watch(asked.watch)
        return
    folder = (asked.folder / f"large-{asked.records}").resolve()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        Run(folder, asked).all()
    finally:
        if not asked.keep:
            shutil.rmtree(folder)


class Run:
    """One corpus on its way."""

    def __init__(self, folder: Path, asked: argparse.Namespace) -> None:
        self.folder, self.asked, self.cpu = folder, asked, 0.0
        self.peaks = (0, 0)
        self.work = folder / "work"
        self.work.mkdir(exist_ok=True)

    def all(self) -> None:
        """Go through the stages."""
        from datasets import disable_progress_bars  # noqa: PLC0415

        disable_progress_bars()
        file = self.folder / "records.jsonl"
        if not file.is_file():
            write_records(file, self.asked.records)
        started = time.perf_counter()
        with peaks() as self._peak:
            spec = CanarySpec(num_planted=20, num_held_out=20, setting="missed")
            self.canaries = draw_canaries(spec, seed=0)
            corpus = self.stage("ingest", lambda _: self._ingest(file), None)
            corpus = self.stage("plant", self._plant, corpus)
            original = corpus = self.stage("detect", self._detect, corpus)
            self.stage("score", self._score, corpus)
            corpus = self.stage("redact", self._redact, corpus)
            del original
            self.stage("encode", self._encode, corpus)
        line = {
            "all": self.asked.records,
            "seconds": round(time.perf_counter() - started),
            "cpu_seconds": round(self.cpu, 1),
            "microseconds_a_record": round(self.cpu / self.asked.records * 1e6, 1),
            "peak_pss_mib": self.peaks[0],
            "peak_rss_mib": self.peaks[1],
        }
        print(json.dumps(line), flush=True)

    def stage(
        self, name: str, call: Callable[..., object], corpus: Corpus | None
    ) -> Corpus | None:
        """Run a stage, and store what it made as its step does."""
        if name not in self.asked.stages:
            return corpus
        with self._measured(name):
            made = call(corpus)
        del corpus
        if isinstance(made, Corpus):
            place = self.folder / "store" / name
            with self._measured(f"{name}: store"):
                place.mkdir(parents=True, exist_ok=True)
                one = self._materializer(place)
                one.save(made)
                saved = one.compute_content_hash(made)
            del made
            with self._measured(f"{name}: read back"):
                other = self._materializer(place)
                other.expected_content_hash = saved
                made = other.load(Corpus)
        return made

    def _materializer(self, place: Path) -> CorpusMaterializer:
        """Return what stores a corpus in ZenML's local artifact store."""
        from zenml.artifact_stores import (  # noqa: PLC0415
            LocalArtifactStore,
            LocalArtifactStoreConfig,
        )

        now = dt.datetime.now(dt.UTC)
        store = LocalArtifactStore(
            name="local",
            id=uuid.uuid4(),
            config=LocalArtifactStoreConfig(path=str(self.folder / "store")),
            flavor="local",
            type="artifact_store",
            user=None,
            created=now,
            updated=now,
        )
        return CorpusMaterializer(str(place), store)

    def _ingest(self, file: Path) -> Corpus:
        source = {"kind": "jsonl", "path": str(file), "text_column": "text"}
        source |= {"id_column": "id", "unit_column": "user", "max_bytes": 1 << 40}
        data = DataSettings.model_validate({"source": source, "privacy_unit": "user"})
        return read_corpus(data, data_root=self.folder, folder=self.work)

    def _plant(self, corpus: Corpus) -> Corpus:
        return corpus.with_dataset(plant(corpus.dataset, self.canaries))

    def _detect(self, corpus: Corpus) -> Corpus:
        labelled, report = label_corpus(
            corpus,
            self.canaries,
            DetectionSettings(
                recognizers=tuple(self.asked.recognizers),
                num_processes=self.asked.processes,
            ),
            corpus_is_public=False,
            data_set="measured",
            folder=self.folder / "spans",
        )
        marks = sum(report.num_spans.values()) / len(corpus.dataset)
        share = report.masked_character_share
        print(json.dumps({"marks_a_record": marks, "masked_share": share}), flush=True)
        return labelled

    def _score(self, corpus: Corpus) -> None:
        score_corpus(
            corpus,
            ScoringSettings(counts="corpus"),
            PrivacyLedger(),
            recipe="measured",
            corpus_is_public=False,
            folder=self.work,
            seed=None,
        )

    def _redact(self, corpus: Corpus) -> Corpus:
        redacted, _ = redact_corpus(
            corpus,
            RedactionSettings(num_processes=self.asked.processes),
            key=lambda: bytes(32),
            folder=self.folder / "redacted",
        )
        return redacted

    def _encode(self, corpus: Corpus) -> None:
        """Encode all records, also those of other splits, and group them by unit."""
        tokenizer = train_tokenizer(corpus.dataset["text"][:2000], vocab_size=2048)
        encoded = encode_corpus(
            corpus.dataset, tokenizer, max_tokens=256, folder=self.work
        )
        data = UnitDataset.from_encoded(
            encoded, max_sequences_per_unit=3, folder=self.work
        )
        tokens = int(data.sequences.lengths.sum())
        print(json.dumps({"units": data.num_units, "tokens": tokens}), flush=True)

    @contextmanager
    def _measured(self, name: str) -> Iterator[None]:
        started, before = time.perf_counter(), used()
        self._peak()
        yield
        cpu, (pss, rss) = used() - before, self._peak()
        self.cpu += cpu
        self.peaks = max(self.peaks[0], pss), max(self.peaks[1], rss)
        line = {
            "stage": name,
            "seconds": round(time.perf_counter() - started, 1),
            "cpu_seconds": round(cpu, 1),
            "microseconds_a_record": round(cpu / self.asked.records * 1e6, 1),
            "peak_pss_mib": pss,
            "peak_rss_mib": rss,
            "disk_mib": size_of(self.folder),
        }
        print(json.dumps(line), flush=True)


def write_records(file: Path, number: int) -> None:
    """Write JSON lines of 60 words, three records to a user."""
    draw = random.Random(0)  # noqa: S311 - nothing is secret
    lines = [
        line
        for private in (False, False, False, True)
        for record in iter_dialogues(num_records=3000, private=private, seed=0)
        for line in record.text.split("\n")
    ]
    half = file.with_suffix(".half")
    with half.open("w", encoding="utf-8") as sink:
        for i in range(number):
            words = " ".join(draw.choices(lines, k=_LINES)).split()
            text = " ".join((words * 2)[:_WORDS])
            row = {"id": f"r{i}", "user": f"u{i // 3}", "text": text}
            sink.write(json.dumps(row) + "\n")
    half.rename(file)


def used() -> float:
    """Return the processor seconds of this process and its children that ended."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def size_of(folder: Path) -> int:
    """Return MiB that the files of a folder take."""
    sizes = (file.stat().st_blocks for file in folder.rglob("*") if file.is_file())
    return sum(sizes) // 2048


@contextmanager
def peaks() -> Iterator[Callable[[], tuple[int, int]]]:
    """Watch memory from another process; yields what tells peaks since it was asked."""
    command = [
        sys.executable,
        __file__,
        "0",
        "--folder",
        ".",
        "--watch",
        f"{os.getpid()}",
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def tell() -> tuple[int, int]:
            print(file=process.stdin, flush=True)
            found = process.stdout.readline() if process.stdout else ""
            pss, rss = map(int, found.split())
            return pss, rss

        yield tell
        if process.stdin:
            process.stdin.close()


def watch(root: int) -> None:
    """Look again and again how much memory a process and its descendants hold."""
    import selectors  # noqa: PLC0415

    asked = selectors.DefaultSelector()
    asked.register(sys.stdin, selectors.EVENT_READ)
    best = (0, 0)
    while True:
        now = memory(root, without=os.getpid())
        best = max(best[0], now[0]), max(best[1], now[1])
        if asked.select(_PERIOD):
            if not sys.stdin.readline():
                return
            print(*(value // 1024 for value in best), flush=True)
            best = (0, 0)


def memory(root: int, *, without: int) -> tuple[int, int]:
    """Return KiB of a process and its descendants: shared pages once, and for each."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(status.parent.name)] = int(fields[1])
    members, new = {root}, {root}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - members
        members |= new - {without}
    pss = rss = 0
    for pid in members - {without}:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        found = {line.split(":")[0]: line.split()[1] for line in lines[1:]}
        pss, rss = pss + int(found.get("Pss", 0)), rss + int(found.get("Rss", 0))
    return pss, rss


if __name__ == "__main__":
    main()
