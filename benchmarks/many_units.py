"""Measure what a step does before its tokens reach the model, for many units.

    .venv/bin/python benchmarks/many_units.py --units 10000000 --folder .dptune/work

Invents units of one sequence of 20 to 60 tokens in an Arrow file, reads them as a
training does, with tokens on disk, and draws, groups and collates logical batches.
Prints milliseconds a batch (median of several), how much of them it takes to read its
tokens alone, how long the data took to open, and resident memory beyond that of the
libraries, which are loaded before; pages of files that the system may drop at any time
are told apart from memory that it may not.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset

from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.sampling import PoissonSampler

_PART = 100_000


def main() -> None:
    """Measure one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=10_000_000)
    parser.add_argument("--batch", type=int, default=4_096)
    parser.add_argument("--rows", type=int, default=32, help="of a physical batch")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        file = Path(folder) / "encoded.arrow"
        write(file, options.units)
        before = resident()
        started = time.perf_counter()
        with pa.memory_map(str(file)) as source:
            encoded = Dataset(pa.ipc.open_stream(source).read_all())
            data = UnitDataset.from_encoded(
                encoded, max_sequences_per_unit=1, folder=Path(folder)
            )
            del encoded
        opened = time.perf_counter() - started
        sampler = PoissonSampler(
            num_units=options.units, sample_rate=options.batch / options.units
        )
        generator = np.random.default_rng(0)
        found = [
            measure(data, sampler, generator, rows=options.rows)
            for _ in range(options.repeats)
        ]
        beyond = {name: now - before[name] for name, now in resident().items()}
    names = ("draw", "group_and_collate", "read_alone")
    figures = {
        f"{name}_ms": round(1e3 * statistics.median(times), 1)
        for name, times in zip(names, zip(*found, strict=True), strict=True)
    }
    print(json.dumps({"units": options.units, "open_s": round(opened, 1)} | figures))
    print(json.dumps({f"{name}_mib": round(value) for name, value in beyond.items()}))


def write(file: Path, num_units: int) -> None:
    """Invent encoded rows, part by part."""
    draws = np.random.default_rng(0)
    schema = pa.schema(
        {
            "unit_id": pa.string(),
            "input_ids": pa.list_(pa.int32()),
            "loss_weights": pa.list_(pa.float32()),
        }
    )
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for first in range(0, num_units, _PART):
            count = min(_PART, num_units - first)
            ends = np.cumsum([0, *draws.integers(20, 61, count)]).astype(np.int32)
            tokens = draws.integers(3, 50_000, ends[-1], dtype=np.int32)
            columns = [
                pa.array([f"{i:016x}" for i in range(first, first + count)]),
                pa.ListArray.from_arrays(ends, tokens),
                pa.ListArray.from_arrays(ends, np.ones(ends[-1], np.float32)),
            ]
            writer.write_batch(pa.record_batch(columns, schema))


def measure(
    data: UnitDataset,
    sampler: PoissonSampler,
    generator: np.random.Generator,
    *,
    rows: int,
) -> tuple[float, float, float]:
    """Return seconds to draw, to group and collate, and to read the tokens alone."""
    started = time.perf_counter()
    drawn = sampler.sample(generator)
    after_draw = time.perf_counter()
    taken = data.units.select(drawn).flat()
    for column in (data.sequences, data.loss_weights):
        column.select(taken).flat().sum()
    after_read = time.perf_counter()
    for _ in data.physical_batches(drawn, physical_batch_size=rows, pad_token_id=0):
        pass
    ended = time.perf_counter()
    return after_draw - started, ended - after_read, after_read - after_draw


def resident() -> dict[str, float]:
    """Return MiB of memory, and of mapped files, that this process holds."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {
        "memory": int(found["RssAnon"].split()[0]) / 1024,
        "files": int(found["RssFile"].split()[0]) / 1024,
    }


if __name__ == "__main__":
    main()
