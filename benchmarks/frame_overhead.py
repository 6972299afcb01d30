"""What does the frame cost? Orchestrator, tracking, validation; hardly any training.

    python benchmarks/frame_overhead.py

Runs the whole pipeline in a fresh project folder on a corpus and a model so small that
training and attacks take no time, then again in the same folder. The wall time of the
first run is an upper bound on the frame's fixed cost, imports and databases included.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
TINY = (
    "data.source.num_records=240",
    "canaries.length=2",
    "canaries.num_planted=20",
    "canaries.num_held_out=20",
    "canaries.insertions=1",
    "model.source.num_layers=1",
    "model.source.num_heads=1",
    "model.source.hidden_size=8",
    "model.source.vocab_size=300",
    "model.pretraining.source.num_records=100",
    "model.pretraining.epochs=0.2",
    "stages.jft.redacted_finetune.epochs=0.1",
    "stages.jft.private_finetune.epochs=1",
    "stages.jft.private_finetune.expected_batch_size=100",
    "attack.num_members=100",
    "attack.num_bootstrap=100",
    "privacy.target_delta=1.0e-3",
)


def timed_run(home: str) -> float:
    """Run the tiny pipeline once and return its wall time."""
    command = [sys.executable, "run.py", "train", "configs/train/quickstart.yaml"]
    for setting in TINY:
        command += ["--set", setting]
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=REPOSITORY,
        env={**os.environ, "DPTUNE_HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in {0, 1}:  # the gate may refuse so small a model
        raise SystemExit(done.stdout + done.stderr)
    return time.monotonic() - started


def main() -> None:
    """Measure the first and the second run."""
    with tempfile.TemporaryDirectory(prefix="dptune-frame-") as home:
        seconds = {"first": timed_run(home), "second": timed_run(home)}
    rounded = {name: round(value, 1) for name, value in seconds.items()}
    print(f"frame: first run {rounded['first']} s, second run {rounded['second']} s")
    results = REPOSITORY / "benchmarks" / "results" / "frame_overhead.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(rounded) + "\n")


if __name__ == "__main__":
    main()
