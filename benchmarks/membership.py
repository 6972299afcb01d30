"""Does the default membership attack find what an independent LiRA finds?

    python benchmarks/membership.py strength --seeds 5
    python benchmarks/membership.py blind --splits 1000

`strength` trains small GPT-2 models, without noise, on invented dialogues until they
memorise some of them, and attacks each twice: by the library with its default settings,
and by LiRA as its paper writes it down, with four shadow models that are trained as the
model was, by a loop of their own. No line of this LiRA is the library's. `blind` splits
dialogues at random and says how often texts alone seem to tell both halves apart, and
how often they do where a tenth of one half holds an odd word. Prints Markdown and
writes `benchmarks/results/membership_<part>.json`.
"""

import argparse
import copy
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import nn
from transformers import PreTrainedTokenizerFast

from dptune.attacks.membership import membership_report
from dptune.attacks.roc import RocSettings, blind_signal
from dptune.attacks.settings import AttackSettings
from dptune.config import PerformanceSettings
from dptune.data.synthetic import generate_dialogues
from dptune.models.build import build_gpt2
from dptune.models.loading import LoadedModel
from dptune.models.tokenizer import train_tokenizer
from dptune.results import STRONGEST_ATTACK
from dptune.workflow.shadows import shadow_training

RESULTS = Path(__file__).resolve().parent / "results"
TOKENS = 64
NUM = 400
"""Members, and as many others."""
EPOCHS = 6
RATE = 2e-3
BATCH = 8
NUM_LIRA = 4
RATIOS = ("auc_ratio", "tpr_ratio", "seconds_ratio")
BLIND_LEVEL = 0.0005

Floats = NDArray[np.float64]


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Encode a record with the token that opens it."""
    return [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]][:TOKENS]


def fit(
    model: nn.Module, sequences: Sequence[list[int]], *, epochs: float, seed: int
) -> nn.Module:
    """Train as a tutorial would."""
    generator = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    order: list[int] = []
    model.train()
    for _ in range(int(np.ceil(epochs * len(sequences) / BATCH))):
        if len(order) < BATCH:
            order = generator.permutation(len(sequences)).tolist()
        batch, order = [sequences[i] for i in order[:BATCH]], order[BATCH:]
        tokens = nn.utils.rnn.pad_sequence(
            list(map(torch.tensor, batch)), batch_first=True, padding_value=-100
        )
        loss = model(input_ids=tokens.clamp_min(0), labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


@torch.inference_mode()
def losses(model: nn.Module, sequences: Sequence[list[int]]) -> Floats:
    """Mean log probability of each record, one by one."""
    found = []
    for sequence in sequences:
        tokens = torch.tensor([sequence])
        found.append(-float(model(input_ids=tokens, labels=tokens).loss))
    return np.array(found)


def independent_lira(
    base: nn.Module,
    sequences: Sequence[list[int]],
    own: Floats,
    *,
    epochs: float,
    seed: int,
) -> dict[str, Floats]:
    """LiRA of Carlini et al. (2022): algorithm 1 and its offline form, few shadows.

    Every record is in half of the shadows; each of the two normal laws has a mean for
    each record and, as section VI.C advises for few shadows, one variance for all.
    """
    generator = np.random.default_rng(10_000 + seed)
    ranks = generator.random((NUM_LIRA, len(sequences))).argsort(axis=0)
    kept = ranks < NUM_LIRA // 2
    rows = []
    for number, keep in enumerate(kept):
        half = [sequences[i] for i in np.flatnonzero(keep)]
        shadow = fit(copy.deepcopy(base), half, epochs=epochs, seed=100 + number)
        rows.append(losses(shadow, sequences))
    found = np.array(rows)
    laws = []
    for mask in (kept, ~kept):
        values = np.where(mask, found, np.nan)
        mean = np.nanmean(values, axis=0)
        laws.append((mean, float(np.sqrt(np.nanmean((values - mean) ** 2) * 2))))
    inside, outside = laws
    return {
        "online": stats.norm.logpdf(own, *inside) - stats.norm.logpdf(own, *outside),
        "offline": stats.norm.cdf(own, *outside),
    }


def figures(scores: Floats) -> dict[str, float]:
    """Area and true positives at 1 % false positives; members come first."""
    members, others = scores[:NUM], np.sort(scores[NUM:])
    threshold = others[len(others) - 1 - int(0.01 * len(others))]
    labels = np.repeat((1, 0), (len(members), len(others)))
    return {
        "auc": float(roc_auc_score(labels, scores)),
        "tpr": float((members > threshold).mean()),
    }


def strength(seeds: int) -> dict[str, object]:
    """Attack models of several seeds both ways."""
    public = [
        record.text
        for record in generate_dialogues(num_records=1500, private=False, seed=1)
    ]
    tokenizer = train_tokenizer(public, vocab_size=512)
    base = build_gpt2(
        tokenizer, num_layers=2, num_heads=4, hidden_size=64, max_tokens=TOKENS, seed=0
    )
    fit(base, [encode(tokenizer, text) for text in public], epochs=1, seed=0)
    runs = []
    for seed in range(seeds):
        run = attack_twice(base, tokenizer, seed=seed)
        ratios = {key: round(run[key], 3) for key in RATIOS}
        print(f"seed {seed}: {ratios}", flush=True)
        runs.append(run)
    print("\n| attack | AUC | TPR at 1 % FPR |\n|---|---|---|")
    for name in runs[0]["figures"]:
        auc, tpr = (
            fmean(run["figures"][name][key] for run in runs) for key in ("auc", "tpr")
        )
        print(f"| {name} | {auc:.3f} | {tpr:.3f} |")
    return {"runs": runs}


def attack_twice(
    base: nn.Module, tokenizer: PreTrainedTokenizerFast, *, seed: int
) -> dict[str, object]:
    """Train one model and attack it by both."""
    records = generate_dialogues(num_records=2 * NUM, private=True, seed=100 + seed)
    order = np.random.default_rng(seed).permutation(2 * NUM)
    texts = [records[i].text for i in order]
    sequences = [encode(tokenizer, text) for text in texts]
    begun = time.process_time()
    model = fit(copy.deepcopy(base), sequences[:NUM], epochs=EPOCHS, seed=seed)
    trained = time.process_time()
    lira = independent_lira(
        base, sequences, losses(model, sequences), epochs=EPOCHS, seed=seed
    )
    start = time.process_time()
    shadows = shadow_training(
        LoadedModel(model=base, tokenizer=tokenizer),
        AttackSettings(),
        max_tokens=TOKENS,
        performance=PerformanceSettings(physical_batch_size=BATCH, device="cpu"),
        say=lambda _: None,
    )
    report = membership_report(
        sequences[:NUM],
        sequences[NUM:],
        member_texts=texts[:NUM],
        non_member_texts=texts[NUM:],
        model=model,
        base_model=base,
        model_digest="model",
        base_model_digest="base",
        train_shadow=shadows.train,
        num_shadows=shadows.settings.num_models,
        seed=seed,
    )
    seconds = time.process_time() - start
    found = {s.name: {"auc": s.auc, "tpr": s.tpr_at_low_fpr} for s in report.signals}
    found |= {f"independent {name}": figures(scores) for name, scores in lira.items()}
    best = {
        key: max(figures(scores)[key] for scores in lira.values())
        for key in ("auc", "tpr")
    }
    return {
        "seed": seed,
        "figures": found,
        "auc_ratio": found[STRONGEST_ATTACK]["auc"] / best["auc"],
        "tpr_ratio": found[STRONGEST_ATTACK]["tpr"] / max(best["tpr"], 1e-9),
        "seconds_ratio": seconds / (trained - begun),
    }


def blind(splits: int) -> dict[str, object]:
    """Split dialogues at random; then hide an odd word in a tenth of one half."""
    records = generate_dialogues(num_records=20_000, private=True, seed=7)
    texts = np.array([record.text for record in records], dtype=object)
    settings = RocSettings(num_resamples=100)
    clean, shifted, seconds = [], [], []
    for seed in range(splits):
        generator = np.random.default_rng(seed)
        drawn = texts[generator.permutation(len(texts))[: 2 * NUM]].tolist()
        begun = time.process_time()
        clean.append(blind_signal(drawn[:NUM], drawn[NUM:], settings=settings).p_value)
        seconds.append(time.process_time() - begun)
        if seed < splits // 10:
            odd = [t + " zyx" if i % 10 == 0 else t for i, t in enumerate(drawn[:NUM])]
            found = blind_signal(odd, drawn[NUM:], settings=settings)
            shifted.append((found.p_value, found.auc))
    figures = {
        "splits": splits,
        "false_alarms": sum(p <= BLIND_LEVEL for p in clean),
        "false_alarms_at_5_percent": sum(p <= 0.05 for p in clean),
        "odd_words": len(shifted),
        "odd_words_found": sum(p <= BLIND_LEVEL for p, _ in shifted),
        "odd_word_largest_p": max((p for p, _ in shifted), default=None),
        "odd_word_mean_auc": fmean([auc for _, auc in shifted] or [0.0]),
        "seconds": fmean(seconds),
    }
    print("| figure | value |\n|---|---|")
    print("\n".join(f"| {name} | {value} |" for name, value in figures.items()))
    return figures


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["strength", "blind"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--splits", type=int, default=1000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = (
        strength(options.seeds) if options.part == "strength" else blind(options.splits)
    )
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"membership_{options.part}.json"
    file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
