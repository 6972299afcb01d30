"""How fast, and how strong, are the attacks?

    python benchmarks/attacks.py exposure huge membership   # or some; needs ../shared

`exposure` ranks planted canaries among all 10^6 six-digit codes under a GPT-2
architecture of about 10 million parameters with GPT-2's own tokenizer, beside brute
force on a sample of the candidates in the same run, and one memorised code of 36^10.
`membership` trains a small GPT-2 on reviews, fine-tunes it for one epoch without
protection on 500 others, one at a time, and attacks it. On a busy machine, read the
seconds of the processor, with `OMP_NUM_THREADS=1`. Prints Markdown and writes
`benchmarks/results/attacks_<part>.json`.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.torch import load_model, save_model
from torch import nn
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dptune.attacks.canaries import CanarySet, CanarySpec, draw_canaries
from dptune.attacks.exposure import rank_canaries, score_candidates
from dptune.attacks.large_spaces import LargeSpaceSettings, measure_large_space
from dptune.attacks.membership import membership_report
from dptune.attacks.pieces import Spelling
from dptune.attacks.search import search
from dptune.attacks.trie import CandidateTrie, load_or_build
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import PlainPlan
from dptune.dpsgd.trainer import train_stage
from dptune.models.build import build_gpt2
from dptune.models.tokenizer import train_tokenizer

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"
DATA = REPOSITORY.parent / "shared" / "data"
CACHE = Path(tempfile.gettempdir()) / "dptune-benchmark-attacks"
SAMPLE = 256
SEED = 1
"""Of the membership part. Its sizes and rates were chosen on seed 0."""
TOKENS = 128
HUGE = CanarySpec(
    template="secret_id={secret}",
    alphabet="alphanumeric",
    length=10,
    num_planted=1,
    num_held_out=9,
)


def gpt2_10m() -> tuple[nn.Module, PreTrainedTokenizerFast]:
    """Return a model of about 10 million parameters over GPT-2's vocabulary."""
    tokenizer = AutoTokenizer.from_pretrained(DATA / "gpt2_tokenizer")
    model = build_gpt2(
        tokenizer,
        num_layers=6,
        num_heads=5,
        hidden_size=160,
        max_tokens=128,
        seed=0,
    )
    return model, tokenizer


def learn(model: nn.Module, sequences: list[list[int]], *, steps: int) -> None:
    """Learn a few sequences by heart; Adam's moments of unused tokens go denormal."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        for sequence in sequences:
            tokens = torch.tensor([sequence])
            optimizer.zero_grad()
            model(input_ids=tokens, labels=tokens).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def learn_once(
    model: nn.Module, tokenizer: PreTrainedTokenizerFast, known: str
) -> CanarySet:
    """Learn one code of each space, or read what was learnt: no part of any timing."""
    huge = draw_canaries(HUGE, seed=0)
    file = CACHE / "benchmark-model.safetensors"
    if file.is_file():
        load_model(model, file)
        return huge
    texts = [known, HUGE.record(huge.planted[0])]
    learn(model, [encode(tokenizer, text) for text in texts], steps=100)
    CACHE.mkdir(parents=True, exist_ok=True)
    save_model(model, file)
    return huge


def brute_force(
    model: nn.Module, trie: CandidateTrie, tokenizer: PreTrainedTokenizerFast
) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Score a sample of whole records: seconds and tokens per candidate, and scores."""
    spec, bos = trie.spec, tokenizer.bos_token_id
    drawn = np.random.default_rng(0).integers(0, spec.space_size, SAMPLE)
    texts = [spec.record(spec.secret_at(int(i))) for i in drawn]
    rows = [[bos, *ids] for ids in tokenizer(texts)["input_ids"]]
    first = len(trie.context)  # the template ends with the secret: up to the end
    losses, begun = np.empty(SAMPLE), time.perf_counter()
    with torch.inference_mode():
        for start in range(0, SAMPLE, 64):
            batch = rows[start : start + 64]
            width = max(map(len, batch))
            tokens = torch.tensor([ids + [0] * (width - len(ids)) for ids in batch])
            logp = model(input_ids=tokens).logits[:, :-1].log_softmax(-1)
            for row, ids in enumerate(batch):
                losses[start + row] = -sum(
                    logp[row, t - 1, ids[t]].item() for t in range(first, len(ids))
                )
    seconds = (time.perf_counter() - begun) / SAMPLE
    return seconds, float(np.mean([len(ids) for ids in rows])), drawn, losses


def exposure() -> dict[str, object]:
    """Rank 20 of 10^6 codes, and one of 36^10."""
    model, tokenizer = gpt2_10m()
    spec = CanarySpec(length=6, num_planted=20, num_held_out=20)
    canaries = draw_canaries(spec, seed=0)
    known = spec.record(canaries.planted[0])
    learn_once(model, tokenizer, known)
    begun = time.perf_counter()
    trie = load_or_build(spec, tokenizer, bos=tokenizer.bos_token_id, folder=CACHE)
    built = time.perf_counter()
    processed = time.process_time()
    scores = score_candidates(model, trie)
    found = rank_canaries(scores, trie, canaries)
    processed = time.process_time() - processed
    done = time.perf_counter()
    seconds, tokens, drawn, losses = brute_force(model, trie, tokenizer)
    brute_tokens = tokens * spec.space_size
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "candidates": spec.space_size,
        "canaries": len(found),
        "tokenize_once_seconds": built - begun,
        "rank_seconds": done - built,
        "rank_processor_seconds": processed,
        "token_forwards": scores.num_token_forwards,
        "brute_force_token_forwards": round(brute_tokens),
        "token_forwards_ratio": brute_tokens / scores.num_token_forwards,
        "brute_force_seconds_extrapolated": seconds * spec.space_size,
        "seconds_ratio": seconds * spec.space_size / (done - built),
        "largest_difference_nats": float(np.abs(scores.nll[drawn] - losses).max()),
        "memorised_rank": found[0].rank,
    }


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Encode a record with the token that opens it."""
    return [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]


def huge_space() -> dict[str, object]:
    """Rank a memorised code of 36^10 beside 9 that are not."""
    model, tokenizer = gpt2_10m()
    spec = CanarySpec(length=6, num_planted=20, num_held_out=20)
    known = spec.record(draw_canaries(spec, seed=0).planted[0])
    canaries = learn_once(model, tokenizer, known)
    bos = tokenizer.bos_token_id
    begun, processed = time.perf_counter(), time.process_time()
    sample = [*canaries.planted, *canaries.held_out]
    spelling = Spelling.of(HUGE, tokenizer, bos=bos, sample=sample)
    path = spelling.tokens_of(canaries.planted[0])
    found = search(model, spelling, limit=3.0)
    rank, exact = found.rank(found.by_path[path])
    searched, processed = time.perf_counter(), time.process_time() - processed
    report = measure_large_space(
        model,
        tokenizer,
        canaries,
        bos=bos,
        settings=LargeSpaceSettings(num_uniform=500, num_weighted=0),
    )
    whole = time.perf_counter()
    return {
        "huge_candidates": HUGE.space_size,
        "huge_rank": rank,
        "huge_is_exact": exact,
        "huge_nodes": found.num_nodes,
        "huge_search_seconds": searched - begun,
        "huge_search_processor_seconds": processed,
        "huge_report_seconds": whole - searched,
        "huge_methods": sorted({c.method for c in report.canaries}),
    }


def membership() -> dict[str, object]:
    """Fine-tune for one epoch without protection and attack."""
    table = pd.read_parquet(DATA / "imdb" / "train.parquet")
    texts = [str(t)[:600] for t in table["text"].sample(frac=1.0, random_state=SEED)]
    public, members, others = texts[:6000], texts[6000:6500], texts[6500:7000]
    tokenizer = train_tokenizer(public, vocab_size=2048)
    model = small_gpt2(tokenizer)
    begun, processed = time.perf_counter(), time.process_time()
    fit(model, tokenizer, public, rate=3e-3, batch_size=16)
    base = small_gpt2(tokenizer)
    base.load_state_dict(model.state_dict())
    trained = time.perf_counter()
    fit(model, tokenizer, members, rate=1e-3, batch_size=1)
    tuned = time.perf_counter()
    report = membership_report(
        tokenized(tokenizer, members),
        tokenized(tokenizer, others),
        member_texts=members,
        non_member_texts=others,
        model=model,
        base_model=base,
        model_digest="benchmark",
        base_model_digest="benchmark-base",
    )
    done = time.perf_counter()
    return {
        "members": len(members),
        "non_members": len(others),
        "pretraining_seconds": trained - begun,
        "fine_tuning_seconds": tuned - trained,
        "attack_seconds": done - tuned,
        "all_processor_seconds": time.process_time() - processed,
        "signals": {
            s.name: {
                "auc": s.auc,
                "auc_interval": [s.auc_interval.low, s.auc_interval.high],
                "tpr_at_1_percent": s.tpr_at_low_fpr,
            }
            for s in (*report.signals, report.blind)
        },
    }


def small_gpt2(tokenizer: PreTrainedTokenizerFast) -> nn.Module:
    """Return an untrained model of about a million parameters."""
    return build_gpt2(
        tokenizer,
        num_layers=4,
        num_heads=4,
        hidden_size=128,
        max_tokens=TOKENS,
        seed=SEED,
    )


def tokenized(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    """Encode records, cut to the model's length."""
    return [encode(tokenizer, text)[:TOKENS] for text in texts]


def fit(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerFast,
    texts: list[str],
    *,
    rate: float,
    batch_size: int,
) -> None:
    """Train for one epoch with this project's engine, without clip and noise."""
    sequences = tokenized(tokenizer, texts)
    data = UnitDataset.from_columns(
        sequences,
        [[0.0, *[1.0] * (len(s) - 1)] for s in sequences],
        [str(i) for i in range(len(sequences))],
        max_sequences_per_unit=1,
    )
    steps = len(texts) // batch_size
    train_stage(
        model,
        data,
        plan=PlainPlan(batch_size=batch_size),
        num_steps=steps,
        optimizer=OptimizerSettings(
            name="adamw",
            learning_rate=rate,
            warmup_steps=steps // 20,
            schedule="cosine",
        ),
        physical_batch_size=batch_size,
        pad_token_id=int(tokenizer.pad_token_id or 0),
        loss_normalizer=float(TOKENS),
        checkpoint_dir=None,
        block_size=steps,
        charge=lambda *_: None,
        seed=0,
        device="cpu",
    )


PARTS = {"exposure": exposure, "huge": huge_space, "membership": membership}


def main() -> None:
    """Run the parts that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[*PARTS])
    machine = {
        "processor": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "torch": torch.__version__,
    }
    for part in parser.parse_args().parts:
        found = PARTS[part]() | {"machine": machine}
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"attacks_{part}.json"
        path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        show(part, found)


def show(part: str, found: dict[str, object]) -> None:
    """Print one part as Markdown."""
    print(f"## {part}\n\n| figure | value |\n|---|---|")
    for name, value in found.items():
        if isinstance(value, dict):
            for key, inner in value.items():
                print(f"| {name} {key} | {inner} |")
        else:
            print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
