"""Time exact ranks, and those of a head and intervals, on a model of one's own.

    python benchmarks/exposure_intervals.py MODEL --output benchmarks/results/FILE.json

Canaries are turns of an assistant where the tokenizer has a template, among 10^6 codes.
Nothing is trained: what ranks cost does not depend on what a model knows.
"""

import argparse
import json
import os
import platform
import time
from functools import partial
from pathlib import Path

import torch

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import measure_exposure
from dptune.attacks.large_spaces import measure_with_intervals
from dptune.attacks.trie import CandidateTrie
from dptune.models.loading import load_model
from dptune.workflow.chats import written_canaries
from infra.allocator import freed_memory_kept


def main() -> None:
    """Measure both ways, intervals first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--canaries", type=int, default=64)
    parser.add_argument("--sampled", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-exact", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    loaded = load_model(chosen.model)
    half = chosen.canaries // 2
    spec = CanarySpec(
        template="My access code is {secret}.",
        role="assistant" if loaded.tokenizer.chat_template else None,
        num_planted=chosen.canaries - half,
        num_held_out=half,
    )
    asked = written_canaries(draw_canaries(spec, seed=chosen.seed), loaded.tokenizer)
    began = time.perf_counter()
    trie = CandidateTrie.build(asked.canaries.spec, asked.tokenizer, bos=asked.bos)
    found = {
        "model": chosen.model.name,
        "canaries": chosen.canaries,
        "candidates": spec.space_size,
        "sampled": chosen.sampled,
        "threads": chosen.threads,
        "context_tokens": len(trie.context),
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "trie_seconds": time.perf_counter() - began,
    }
    ways = {"intervals": partial(measure_with_intervals, num_sampled=chosen.sampled)}
    if not chosen.without_exact:
        ways["exact"] = measure_exposure
    ranked = {}
    for name, measure in ways.items():
        load, began, used = os.getloadavg()[0], time.perf_counter(), time.process_time()
        with freed_memory_kept("cpu"):
            ranked[name] = measure(loaded.model, trie, asked.canaries)
        found[name] = {
            "seconds": time.perf_counter() - began,
            "processor_seconds": time.process_time() - used,
            "token_forwards": ranked[name].num_token_forwards,
            "load_before_and_after": (load, os.getloadavg()[0]),
        }
        print(name, found[name], flush=True)
    bounds = ranked["intervals"].canaries
    found["canaries_ranked_exactly"] = sum(c.method == "exact" for c in bounds)
    if "exact" in ranked:
        pairs = zip(bounds, ranked["exact"].canaries, strict=True)
        found["ranks_held"] = sum(
            one.rank == truth.rank
            if one.exposure_interval is None
            else one.exposure_interval.low - 1e-9 <= truth.exposure <= one.exposure
            for one, truth in pairs
        )
    chosen.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
