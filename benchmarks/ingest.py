"""Measure reading, checking, deduplicating and splitting a corpus.

    .venv/bin/python benchmarks/ingest.py --records 100000 --folder .dptune/work

Writes records of 60 words, of which one in a hundred is an exact copy and one nearly
so, and makes a corpus of them. Prints processor time for each record, and peak memory
beside what libraries take alone. `--repository` measures another checkout in the same
minute, such as an older one, and prints the ratio.
"""

import argparse
import inspect
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_HERE = Path(__file__).resolve().parents[1]
_WORDS = 20_000


def main() -> None:
    """Measure one size, here and elsewhere."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="private folder for work files")
    parser.add_argument("--repository", type=Path, help="another checkout")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure is not None:
        print(json.dumps(measure(asked.measure, asked.folder)))
        return
    asked.folder = asked.folder and asked.folder.resolve()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        file = Path(folder) / "records.jsonl"
        write_records(file, asked.records)
        here = _measured(_HERE, file, asked.folder)
        print(json.dumps({"here": here}))
        if asked.repository is not None:
            there = _measured(asked.repository.resolve(), file, None)
            ratio = here["microseconds"] / there["microseconds"]
            equal = here["fingerprint"] == there["fingerprint"]
            print(json.dumps({"there": there, "ratio": ratio, "equal": equal}))


def write_records(file: Path, number: int) -> None:
    """Write JSON lines of invented words, three records to a user."""
    draw = random.Random(0)  # noqa: S311 - nothing is secret
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [
        "".join(draw.choices(letters, k=draw.randint(2, 9))) for _ in range(_WORDS)
    ]
    text = ""
    with file.open("w", encoding="utf-8") as sink:
        for i in range(number):
            if i % 100 == 8:
                changed = text.split()
                changed[draw.randrange(60)] = draw.choice(words)
                text = " ".join(changed)
            elif i % 100 != 7:
                text = " ".join(draw.choices(words, k=60))
            row = {"id": f"r{i}", "user": f"u{i // 3}", "text": text}
            sink.write(json.dumps(row) + "\n")


def measure(file: Path, folder: Path | None) -> dict[str, object]:
    """Make a corpus in this process."""
    from dptune.data.building import build_corpus  # noqa: PLC0415 - of any checkout
    from dptune.data.source import JsonlSource, SyntheticSource  # noqa: PLC0415
    from dptune.privacy import PrivacyUnit  # noqa: PLC0415

    more = {"folder": folder} if folder is not None else {}
    if "folder" not in inspect.signature(build_corpus).parameters:
        more = {}
    build_corpus(SyntheticSource(num_records=50), privacy_unit=PrivacyUnit.USER)
    before, start = _peak(), time.process_time()
    corpus = build_corpus(
        JsonlSource(path=file, id_column="id", unit_column="user", max_bytes=1 << 40),
        privacy_unit=PrivacyUnit.USER,
        **more,
    )
    spent, report = time.process_time() - start, corpus.report
    return {
        "records": report.num_read,
        "microseconds": round(spent / report.num_read * 1e6, 1),
        "peak_mib": round(_peak()),
        "libraries_mib": round(before),
        "exact": report.num_exact_duplicates,
        "near": report.num_near_duplicates,
        "fingerprint": corpus.fingerprint[:16],
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measured(repository: Path, file: Path, folder: Path | None) -> dict[str, float]:
    """Measure a checkout in a process of its own."""
    place = [] if folder is None else ["--folder", str(folder)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).resolve()), "--measure", file, *place],
        cwd=repository,
        env=os.environ | {"PYTHONPATH": str(repository), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
