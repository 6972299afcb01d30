"""Audits: do bounds stay below the truth, and are planted privacy bugs caught?

python benchmarks/audits.py [--mechanisms 1000] [--seeds 20] [--output FILE]

1. Mechanisms of known epsilon (Gaussian, randomized response, subset selection), each
   audited by every method: in how many is a bound above the truth?
2. A small GPT-2 trained for real on filler and canaries, by the engine as it is (so
   many seeds) and with each of five bugs planted in it. Every model is audited, its
   ranks are held against its claim, and the engine's steps are checked.
"""

import argparse
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from dptune.accounting.accountants import epsilon
from dptune.audits.canary_audit import AuditedClaim, audit_canaries
from dptune.audits.noise_checks import check_noise
from dptune.audits.release_checks import check_blocks
from dptune.audits.sampling_checks import check_sampling
from dptune.audits.step_checks import check_sensitivity, probe_units
from dptune.audits.tails import guess_tail
from dptune.dpsgd import clipping, noise, sampling
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.randomness import GaussianStream
from dptune.dpsgd.trainer import train_stage
from dptune.gates.null_law import contradiction_p_value
from dptune.privacy import NeighboringRelation, Notion
from dptune.results import CanaryExposure, ExposureReport
from tests.support import models
from tests.support.mechanisms import (
    Simulated,
    gaussian_mechanism,
    randomized_response,
    subset_selection,
)

REPLACE = NeighboringRelation.REPLACE_ONE
ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
CURVE = (1e-5, 1e-3, 1e-2, 0.05, 0.15, 0.3)
NUM_CANARIES, NUM_FILLER, DIGITS, STEPS = 50, 150, 4, 150
PREFIX = (21, 22, 23, 24)
PLAN = GradientPlan(
    noise_multiplier=8.0, sample_rate=0.2, max_grad_norm=0.1, expected_batch_size=40.0
)
LOSS = CausalLoss(loss_normalizer=8.0)


def mechanism(generator: np.random.Generator) -> tuple[str, Simulated]:
    """Draw a mechanism of a random kind, epsilon and number of canaries."""
    num = int(generator.choice([20, 50, 100, 200]))
    kind = generator.choice(["gaussian", "randomized response", "subset selection"])
    if kind == "gaussian":
        mu = generator.uniform(0.1, 2)
        return kind, gaussian_mechanism(generator, mu=mu, num=num)
    if kind == "randomized response":
        value = generator.uniform(0.1, 4)
        return kind, randomized_response(generator, epsilon=value, num=num)
    top = int(generator.choice([1, 10, 1_000, 10**5]))
    value = generator.uniform(0.1, 8)
    return kind, subset_selection(generator, epsilon=value, top=top, num=num)


def bounds(num: int, *, confidence: float) -> dict[str, object]:
    """Audit mechanisms of known epsilon."""
    generator, started = np.random.default_rng(0), time.perf_counter()
    above, single, audits_made = 0, Counter(), Counter()
    for _ in range(num):
        _, made = mechanism(generator)
        found = audit_canaries(made.report, made.claims, confidence=confidence)
        over = [a for a in found if a.epsilon_lower_bound > made.epsilon(a.relation)]
        above += bool(over)
        single.update(a.method for a in over)
        audits_made.update(a.method for a in found)
    return {
        "mechanisms": num,
        "confidence, all bounds of a mechanism together": confidence,
        "share with any bound above the truth": above / num,
        "bar": 1 - confidence + 0.01,
        "bounds above the truth": dict(single),
        "bounds": dict(audits_made),
        "seconds": round(time.perf_counter() - started, 1),
    }


def at_the_boundary(num: int) -> dict[str, object]:
    """One count of randomized response at its own epsilon: the level is spent."""
    right = np.random.default_rng(1).binomial(200, 1 / (1 + np.exp(-1.0)), num)
    tails = [
        guess_tail(int(v), guesses=200, canaries=200, epsilon=1.0, delta=0.0)
        for v in right
    ]
    return {
        "runs": num,
        "level": 0.05,
        "share refuted at the truth": sum(t <= 0.05 for t in tails) / num,
    }


# a small model, trained for real


def sequence(index: int) -> np.ndarray:
    """The record of one candidate: a template and its digits."""
    return np.array([*PREFIX, *(1 + int(d) for d in f"{index:0{DIGITS}d}")])


def corpus(seed: int) -> tuple[UnitDataset, np.ndarray]:
    """Filler and planted canaries, a unit each; and all secrets, planted ones first."""
    generator = np.random.default_rng(seed)
    secrets = generator.choice(10**DIGITS, 2 * NUM_CANARIES, replace=False)
    filler = [generator.integers(1, 21, 8) for _ in range(NUM_FILLER)]
    rows = [*filler, *(sequence(s) for s in secrets[:NUM_CANARIES])]
    data = UnitDataset(
        sequences=Ragged.of([np.asarray(row, np.int64) for row in rows], np.int64),
        loss_weights=Ragged.of(
            [np.ones(len(row), np.float32) for row in rows], np.float32
        ),
        units=Ragged.of([np.array([i]) for i in range(len(rows))], np.int64),
        max_sequences_per_unit=1,
    )
    return data, secrets


def tiny() -> nn.Module:
    """The base model: random weights."""
    return models.tiny_gpt2(width=32, num_layers=2)


@torch.no_grad()
def losses(model: nn.Module) -> np.ndarray:
    """Negative log likelihood of every candidate's digits."""
    model.eval()
    every = torch.tensor(np.stack([sequence(i) for i in range(10**DIGITS)]))
    found = []
    for block in every.split(2_000):
        logits = model(input_ids=block).logits[:, len(PREFIX) - 1 : -1]
        scores = logits.log_softmax(-1).gather(-1, block[:, len(PREFIX) :, None])
        found.append(-scores.squeeze(-1).sum(1).double())
    return torch.cat(found).numpy()


def report(model: nn.Module, base: nn.Module, secrets: np.ndarray) -> ExposureReport:
    """Rank every canary under both models."""

    def canaries(values: np.ndarray) -> tuple[CanaryExposure, ...]:
        ranks = [1 + int((values < values[s]).sum()) for s in secrets]
        return tuple(
            CanaryExposure(
                canary_id=f"{'planted' if i < NUM_CANARIES else 'held-out'}-{i}",
                planted=i < NUM_CANARIES,
                insertions=int(i < NUM_CANARIES),
                rank=rank,
                exposure=float(np.log2(10**DIGITS / rank)),
                nll=float(values[secret]),
            )
            for i, (rank, secret) in enumerate(zip(ranks, secrets, strict=True))
        )

    return ExposureReport(
        model_digest="trained",
        base_model_digest="base",
        canary_set_digest="c",
        space_size=10**DIGITS,
        scoring="sum",
        setting="as_detected",
        exact=True,
        canaries=canaries(losses(model)),
        base_canaries=canaries(losses(base)),
        planted_found=NUM_CANARIES,
        planted_expected=NUM_CANARIES,
        num_token_forwards=1,
        drawn=True,
    )


def claim(relation: NeighboringRelation) -> AuditedClaim:
    """What the plan claims, by its own event."""
    event = PLAN.dp_event(STEPS)
    return AuditedClaim(
        notion=Notion.RECORD,
        relation=relation,
        delta=CURVE[0],
        guarantees=tuple(
            (epsilon(event, delta=d, relation=relation), d) for d in CURVE
        ),
    )


def trained(seed: int) -> dict[str, object]:
    """Train once; audit the model, and check the engine that trained it."""
    data, secrets = corpus(seed)
    model = tiny()
    train_stage(
        model,
        data,
        plan=PLAN,
        num_steps=STEPS,
        optimizer=OptimizerSettings(name="adamw", learning_rate=5e-3),
        physical_batch_size=256,
        pad_token_id=0,
        loss_normalizer=8.0,
        checkpoint_dir=None,
        block_size=STEPS,
        charge=lambda *_: None,
    )
    found = report(model, tiny(), secrets)
    claims = [claim(ADD), claim(REPLACE)]
    audits = audit_canaries(found, claims)
    claimed = {c.relation: c.guarantees[0][0] for c in claims}
    ranks = [c.rank for c in found.planted()]
    p_value = min(
        contradiction_p_value(
            ranks,
            [1] * len(ranks),
            found.space_size,
            epsilon=claimed[relation],
            delta=CURVE[0],
            relation=relation,
        )
        for relation in claimed
    )
    refuting = [
        f"{a.method}, {a.relation}"
        for a in audits
        if a.epsilon_lower_bound > claimed[a.relation]
    ]
    return {
        "mean exposure": round(
            float(np.mean([c.exposure for c in found.planted()])), 2
        ),
        "p-value of the ranks": p_value,
        "audits that refute the claim": refuting,
        "largest bound": {
            str(relation): round(
                max(a.epsilon_lower_bound for a in audits if a.relation is relation), 2
            )
            for relation in claimed
        },
        "claim contradicted": bool(refuting) or 2 * p_value <= 0.01,
        "failed step checks": failed_checks(data),
    }


def failed_checks(data: UnitDataset) -> list[str]:
    """Check the engine's steps on the same data."""
    model = tiny()
    feed = Feed(
        data=data,
        record_loss=LOSS,
        physical_batch_size=256,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )
    checks = [
        check_blocks(PLAN, [(PLAN.dp_event(STEPS), STEPS)], num_steps=STEPS),
        *check_sensitivity(model, PLAN, feed, units=probe_units(data)),
        *check_noise(model, PLAN, feed),
        *check_sampling(PLAN, num_units=data.num_units),
    ]
    return [check.name for check in checks if not check.passed]


def scaled_noise(factor: float) -> contextlib.AbstractContextManager[object]:
    """Noise of another size."""
    real = noise.add_gaussian_noise

    def planted(
        sums: Mapping[str, torch.Tensor], *, noise_stddev: float, stream: GaussianStream
    ) -> None:
        real(sums, noise_stddev=factor * noise_stddev, stream=stream)

    return patch.object(noise, "add_gaussian_noise", planted)


def scaled_clip(factor: float) -> contextlib.AbstractContextManager[object]:
    """A clip at another bound."""
    real = clipping.FlatClip.factors

    def planted(self: clipping.FlatClip, norms: torch.Tensor) -> torch.Tensor:
        if np.isinf(factor):
            return torch.ones_like(norms)
        return real(clipping.FlatClip(factor * self._max_grad_norm), norms)

    return patch.object(clipping.FlatClip, "factors", planted)


def with_replacement() -> contextlib.AbstractContextManager[object]:
    """Batches of a fixed size, drawn with replacement."""

    def planted(
        self: sampling.PoissonSampler, generator: np.random.Generator
    ) -> np.ndarray:
        count = round(self._num_units * self._sample_rate)
        return np.sort(generator.integers(0, self._num_units, count))

    return patch.object(sampling.PoissonSampler, "sample", planted)


def bugs() -> Iterator[tuple[str, contextlib.AbstractContextManager[object]]]:
    """Name each planted bug."""
    yield "no noise", scaled_noise(0.0)
    yield "noise / 10", scaled_noise(0.1)
    yield "no clip", scaled_clip(np.inf)
    yield "clip x 10", scaled_clip(10.0)
    yield "sampling with replacement counted as Poisson", with_replacement()


def engine(seeds: int) -> dict[str, object]:
    """Train with the engine as it is, and with every bug."""
    started = time.perf_counter()
    sound = [trained(seed) for seed in range(seeds)]
    planted = {}
    for name, bug in bugs():
        with bug:
            planted[name] = trained(0)
    return {
        "claimed epsilon at delta 1e-5": {
            str(r): round(claim(r).guarantees[0][0], 3) for r in (ADD, REPLACE)
        },
        "sound engine": {
            "seeds": seeds,
            "claim contradicted": sum(bool(r["claim contradicted"]) for r in sound),
            "a step check failed": sum(bool(r["failed step checks"]) for r in sound),
            "mean exposure": round(
                float(np.mean([r["mean exposure"] for r in sound])), 2
            ),
            "largest bound": max(max(r["largest bound"].values()) for r in sound),
        },
        "planted bugs": planted,
        "caught": {
            name: bool(r["claim contradicted"] or r["failed step checks"])
            for name, r in planted.items()
        },
        "seconds": round(time.perf_counter() - started, 1),
    }


def main() -> None:
    """Run both parts and write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mechanisms", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=20)
    default = Path(__file__).parent / "results" / "audits.json"
    parser.add_argument("--output", type=Path, default=default)
    options = parser.parse_args()
    found = {
        "command": f"python benchmarks/audits.py --mechanisms {options.mechanisms} "
        f"--seeds {options.seeds}",
        "bounds": bounds(options.mechanisms, confidence=0.95),
        "boundary": at_the_boundary(20_000),
        "engine": engine(options.seeds),
    }
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
