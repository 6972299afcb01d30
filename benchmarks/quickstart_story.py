"""Does the quickstart's story hold? Unprotected BLOCK, JFT PASS, for many seeds.

    python benchmarks/quickstart_story.py --seeds 10

Each seed is a fresh project folder (only the public model is shared), a
fresh invented corpus, fresh canaries and fresh noise. Prints one row a seed and a
summary as Markdown, and writes `benchmarks/results/quickstart_story.json`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "quickstart_story.json"


def run_seed(seed: int, shared_cache: Path) -> dict[str, object]:
    """Run the quickstart in a folder of its own and read its table."""
    with tempfile.TemporaryDirectory(prefix="dptune-story-") as folder:
        home = Path(folder)
        if shared_cache.is_dir():
            (home / "cache").mkdir(parents=True)
            for model in shared_cache.glob("pretrained-*"):
                shutil.copytree(model, home / "cache" / model.name)
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "run.py", "quickstart", "--seed", str(seed)],
            cwd=REPOSITORY,
            env={**os.environ, "DPTUNE_HOME": folder, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - started
        for model in (home / "cache").glob("pretrained-*"):
            if not (shared_cache / model.name).is_dir():
                shutil.copytree(model, shared_cache / model.name)
    return {
        "seed": seed,
        "exit_code": done.returncode,
        "seconds": round(seconds),
        "blocked_by": next(iter(re.findall(r"No protection: .*", done.stdout)), ""),
        **read_table(done.stdout),
    }


def read_table(output: str) -> dict[str, list[str]]:
    """Take the columns of both recipes of every row of the terminal table."""
    rows: dict[str, list[str]] = {}
    for line in output.replace("\u00a0", " ").splitlines():
        cells = [cell.strip() for cell in re.split(r"[│┃]", line)[1:-1]]
        if len(cells) == 4 and cells[0]:
            rows[cells[0]] = cells[1:3]
    return rows


def main() -> int:
    """Run all seeds and summarize."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cache", type=Path, help="folder of pre-trained models")
    seeds = parser.parse_args()
    cache = seeds.cache or Path(tempfile.mkdtemp(prefix="dptune-story-cache-"))
    found = []
    columns = (
        "Gate",
        "Test perplexity",
        "Exposure, planted",
        "held out",
        "TPR at 1 % FPR",
    )
    print(
        "| seed | seconds | " + " | ".join(f"{c}: none / JFT" for c in columns) + " |"
    )
    print("|---" * (len(columns) + 2) + "|")
    for seed in range(seeds.first, seeds.first + seeds.seeds):
        row = run_seed(seed, cache)
        found.append(row)
        cells = [" / ".join(row.get(c, ["?", "?"])) for c in columns]  # type: ignore[arg-type]
        print(f"| {seed} | {row['seconds']} | " + " | ".join(cells) + " |", flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    if seeds.cache is None:
        shutil.rmtree(cache, ignore_errors=True)
    held = sum(
        row.get("Gate") == ["BLOCK", "PASS"]
        and "memorization" in str(row["blocked_by"])
        for row in found
    )
    print(f"\nstory held in {held} of {len(found)} seeds")
    return 0 if held == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
