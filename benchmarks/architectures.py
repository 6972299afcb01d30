"""Which architectures of transformers train, how, and is any silently wrong?

PYTHONPATH=. python benchmarks/architectures.py --out FILE [--longest 256]

Every causal language model and sequence classifier of transformers is built as a tiny
random model, in full and with adapters on all linear layers, and put through the check
that precedes every private stage: rows side by side first, then, where the refusal says
that it helps, with fixed shapes or row by row. What passes is measured, without
dropout, on units of one to three rows of 3 to 512 tokens:

- `worst`: distance of the sums that training would form with and without one unit, a
  short and a long one, over C, every gradient clipped; at most 1 + 1e-5;
- `loop`: relative distance of such a sum from plain autograd on one row at a time;
- `left`: the same on rows that are padded on the left, from autograd on their batch.

A `loop` or `left` above 1e-3 is silently wrong. Lines that are in the output file
already are not run again. `models_table.py` writes docs/MODELS.md from it.
"""

import argparse
import contextlib
import io
import json
import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tiny_architectures import PAD, VOCABULARY, shrunk
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
)
from transformers.models.auto import modeling_auto

from dptune.dpsgd.clipping import FlatClip
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.large_units import LargeUnit
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.prechecks import check_private, training_mode
from dptune.dpsgd.ragged import Ragged
from dptune.dpsgd.randomness import (
    RandomStream,
    scoped_randomness,
    seed_sequence,
)
from dptune.dpsgd.sampling import UnitIndices
from dptune.errors import DptuneError
from dptune.models.build import add_lora

Clip = Callable[[torch.Tensor], torch.Tensor]
LENGTHS = (3, 512, 5, 40, 7, 129, 300, 64, 511, 17)
UNITS = ((0,), (1,), (5,), (2, 3, 4), (8, 9), (6, 7))
BATCH = 4
BAR = 1 + 1e-5
WRONG = 1e-3
HEADS = {
    "classifier": (
        AutoModelForSequenceClassification,
        modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    ),
    "causal": (AutoModelForCausalLM, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One architecture, its head, what trains, and how large its weights are."""

    model_type: str
    head: str
    lora: bool
    scale: int

    @property
    def key(self) -> str:
        """Name in the output."""
        trained = "lora" if self.lora else "full"
        return f"{self.model_type}/{self.head}/{trained}/x{self.scale}"


def build(case: Case, *, dropout: bool) -> nn.Module:
    """Build the model from a public seed, and scale its weights."""
    config = shrunk(case.model_type, dropout=dropout)
    config.num_labels = 3
    with (
        scoped_randomness(seed_sequence(RandomStream.MODEL, seed=0)),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        model: Any = HEADS[case.head][0].from_config(config)
        model.to(torch.float32)
        if model.num_parameters() > 4_000_000:
            raise RuntimeError(f"not tiny: {model.num_parameters()} weights")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(case.scale)
        if case.lora:
            model = adapted(model)
    trained: nn.Module = model
    return trained


def adapted(model: transformers.PreTrainedModel) -> nn.Module:
    """Add adapters to all linear layers, as after some steps: B is not zero."""
    lora = add_lora(model, rank=4, alpha=8)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in lora.named_parameters():
            if "lora_B" in name:
                drawn = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(0.05 * drawn)
    return lora


def feed_of(case: Case, *, longest: int, vocabulary: int) -> Feed:
    """Return made-up units of one to three rows of 3 to 512 tokens."""
    draws = np.random.default_rng(5)
    lengths = [min(n, longest) for n in LENGTHS]
    data = UnitDataset(
        sequences=Ragged.of(
            [draws.integers(3, vocabulary - 2, n) for n in lengths], np.int64
        ),
        loss_weights=Ragged.of([np.ones(n, np.float32) for n in lengths], np.float32),
        units=Ragged.of([np.asarray(rows) for rows in UNITS], np.int64),
        labels=np.arange(len(lengths)) % 3 if case.head == "classifier" else None,
        max_sequences_per_unit=3,
    )
    return Feed(
        data=data,
        record_loss=ClassificationLoss()
        if case.head == "classifier"
        else CausalLoss(loss_normalizer=float(longest)),
        physical_batch_size=BATCH,
        pad_token_id=PAD,
        device=torch.device("cpu"),
        autocast=False,
        max_tokens=longest,
    )


def measure(model: nn.Module, feed: Feed) -> dict[str, float]:
    """Return the figures of the module's docstring."""
    worst = 0.0
    everyone = np.arange(feed.data.num_units)
    with (
        training_mode(model),
        PerUnitGradients(model, alone=feed.rows_are_alone) as engine,
    ):
        norms: list[torch.Tensor] = []
        _sum(model, engine, feed, everyone, lambda n: norms.append(n) or n * 0)
        found = torch.cat(norms, 1)
        bound = max(0.1 * float(found[found > 0].min()), 1e-12)
        clip = FlatClip(bound)
        whole = _sum(model, engine, feed, everyone, clip.factors)
        for unit in (0, 1, 3):
            rest = _sum(model, engine, feed, everyone[everyone != unit], clip.factors)
            worst = max(worst, _norm({n: whole[n] - rest[n] for n in whole}) / bound)
        figures = {"worst": worst, "loop": _from_loop(model, feed, whole, bound)}
        if not feed.rows_are_alone:
            figures["left"] = _from_left(model, engine, feed)
    return figures


def _norm(gradient: dict[str, torch.Tensor]) -> float:
    squares = [float(g.double().square().sum()) for g in gradient.values()]
    return float(np.sqrt(sum(squares)))


def _autograd(model: nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradient of every trainable parameter."""
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    found = torch.autograd.grad(
        loss, list(named.values()), allow_unused=True, retain_graph=True
    )
    pairs = zip(named.items(), found, strict=True)
    return {n: torch.zeros_like(p) if g is None else g for (n, p), g in pairs}


def _from_loop(
    model: nn.Module, feed: Feed, found: dict[str, torch.Tensor], bound: float
) -> float:
    """Compare a clipped sum with plain autograd on one row at a time."""
    total = {name: torch.zeros_like(value) for name, value in found.items()}
    for unit in range(feed.data.num_units):
        whole = {name: torch.zeros_like(value) for name, value in found.items()}
        for row in feed.data.units[unit]:
            one = replace(
                feed.data,
                sequences=feed.data.sequences.select([row]),
                loss_weights=feed.data.loss_weights.select([row]),
                units=Ragged.of([[0]], np.int64),
                labels=None if feed.data.labels is None else feed.data.labels[[row]],
            ).collate([0], PAD)
            if feed.fixed_shapes:
                one = one.filled(num_rows=1, num_tokens=feed.longest, pad_token_id=PAD)
            with _alike():
                loss = feed.losses(model, one).sum()
            for name, value in _autograd(model, loss).items():
                whole[name] += value
        scale = bound / max(_norm(whole), bound)
        for name, value in whole.items():
            total[name] += scale * value
    return _norm({n: found[n] - total[n] for n in found}) / _norm(total)


def _from_left(model: nn.Module, engine: PerUnitGradients, feed: Feed) -> float:
    """Compare rows that are padded on the left with autograd on their batch."""
    batch = feed.data.collate([0, 2, 4], PAD)  # one row, one long one, two
    lengths = batch.attention_mask.sum(1)
    ids, mask, weights = (
        torch.stack([v.roll(-int(n)) for v, n in zip(values, lengths, strict=True)])
        for values in (batch.input_ids, batch.attention_mask, batch.loss_weights)
    )
    batch = replace(batch, input_ids=ids, attention_mask=mask, loss_weights=weights)
    factors = torch.tensor([[0.75, 0.25, 0.5]])
    with engine.record(batch.rows_of_unit, skip_autograd=False) as tape:
        losses = feed.losses(model, batch)
        with engine.paused():
            units = [
                _autograd(model, losses[rows[rows >= 0]].sum())
                for rows in batch.rows_of_unit
            ]
        sums = engine.zeros()
        tape.backward(losses.sum(), factors.expand_as, sums)
    model.zero_grad()
    wanted = {
        n: sum(f * u[n] for f, u in zip(factors[0], units, strict=True)) for n in sums
    }
    size = _norm(wanted)
    if not 0 < size < float("inf"):
        return 0.0  # the model has no gradient there to compare with
    return _norm({n: sums[n] - wanted[n] for n in sums}) / size


def _alike() -> AbstractContextManager[None]:
    """Give whoever is computed the same chances; some draw them for a row alone."""
    return scoped_randomness(seed_sequence(RandomStream.MODEL, seed=3))


def _sum(
    model: nn.Module,
    engine: PerUnitGradients,
    feed: Feed,
    units: UnitIndices,
    clip: Clip,
) -> dict[str, torch.Tensor]:
    """Add up clipped gradients, with the same chance for everybody."""
    sums = engine.zeros()
    large: LargeUnit | None = None
    with _alike():
        for batch in feed.batches(units):
            real = slice(batch.num_real_units)  # others only fill a fixed shape

            def of_real(norms: torch.Tensor, real: slice = real) -> torch.Tensor:
                factors = torch.zeros_like(norms)
                factors[:, real] = clip(norms[:, real])
                return factors

            with engine.record(batch.rows_of_unit) as tape:
                with _alike() if feed.rows_are_alone else nullcontext():
                    losses = feed.losses(model, batch)
                if not batch.is_part:
                    tape.backward(losses.sum(), of_real, sums)
                    continue
                large = large or LargeUnit(engine)
                large.add(tape, losses, batch)
            if not batch.continues:
                large.clip(clip, sums)
                large = None
    return sums


def run(case: Case, *, longest: int) -> dict[str, Any]:
    """Check one case and, if it passes, measure it; say what happened."""
    result: dict[str, Any] = {"case": case.key, "type": case.model_type}
    result["longest"] = longest
    started = time.process_time()
    try:
        model = build(case, dropout=True)
        quiet = build(case, dropout=False)
    except DptuneError as error:
        return result | _done(started, "refused", f"adapters: {error}")
    except Exception as error:  # noqa: BLE001 - anything may be wrong with a guess
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        return result | {"outcome": "not built", "reason": reason}
    text: Any = model.config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None) or VOCABULARY
    feed = feed_of(case, longest=longest, vocabulary=vocabulary)
    outcome, reasons = "trained", list[str]()
    for _ in range(4):
        try:
            check_private(model, feed, seed=0)
            break
        except DptuneError as error:
            reasons.append(" ".join(str(error).split()))
        if "fixed_shapes to true" in reasons[-1]:
            feed = replace(feed, fixed_shapes=True)
            outcome = "trained with fixed shapes"
        elif "physical_batch_size to 1" in reasons[-1]:
            short = any("without padding" in reason for reason in reasons)
            feed = replace(feed, physical_batch_size=1, fixed_shapes=short)
            outcome = "trained row by row"
        else:
            return result | _done(started, "refused", " THEN ".join(reasons))
    else:
        return result | _done(started, "refused", " THEN ".join(reasons))
    checked = time.process_time() - started
    figures = measure(quiet, feed)
    return result | _done(started, outcome, " THEN ".join(reasons)) | figures | {
        "check": round(checked, 2)
    }  # fmt: skip


def _done(started: float, outcome: str, reason: str) -> dict[str, Any]:
    """Return what every line has."""
    seconds = round(time.process_time() - started, 1)
    return {"outcome": outcome, "reason": reason[:700], "seconds": seconds}


def cases(*, every: bool) -> Iterator[Case]:
    """Yield architectures and heads, in full and with adapters, at one scale or two."""
    for again in range(1 + every):
        for head, (_, names) in HEADS.items():
            for index, model_type in enumerate(sorted(names)):
                for lora in (False, True):
                    scale = 3 if (index + lora + again) % 2 else 1
                    yield Case(model_type=model_type, head=head, lora=lora, scale=scale)


def summary(lines: list[dict[str, Any]]) -> str:
    """Count outcomes and types by head and mode; name the worst."""
    rows = []
    for head, mode in product(HEADS, ("full", "lora")):
        some = [line for line in lines if f"/{head}/{mode}/" in line["case"]]
        built = [line for line in some if line["outcome"] != "not built"]
        counts = Counter(line["outcome"] for line in some)
        share = sum("worst" in line for line in built) / max(1, len(built))
        rows.append(f"{head} {mode}: {share:.1%} of {len(built)} built; {dict(counts)}")
    for name, bar in (("worst", BAR), ("loop", WRONG), ("left", WRONG)):
        known = [line for line in lines if name in line]
        worst = max(known, key=lambda line: line[name], default=None)
        beyond = [line["case"] for line in known if not line[name] <= bar]
        rows.append(f"{name} beyond {bar}: {len(beyond)} {beyond}")
        if worst:
            rows.append(f"largest {name}: {worst[name]:.9f} {worst['case']}")
    return "\n".join(rows)


class _Late(BaseException):
    """Passes through whatever turns errors into refusals."""


def _stop(*_: object) -> None:
    raise _Late


def main() -> None:
    """Run what is asked for, one line of JSON for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="model types")
    parser.add_argument("--part", default="0/1", help="this process of how many")
    parser.add_argument("--longest", type=int, default=512)
    parser.add_argument("--seconds", type=int, default=300, help="for one case")
    parser.add_argument("--every", action="store_true", help="all modes of each")
    parser.add_argument("--again", nargs="*", default=(), help="outcomes to run again")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, _stop)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    done: dict[str, dict[str, Any]] = {}
    if arguments.out.exists():
        lines = arguments.out.read_text().splitlines()
        done = {x["case"]: x for x in map(json.loads, lines)}
    part, parts = map(int, arguments.part.split("/"))
    for number, case in enumerate(cases(every=arguments.every)):
        old = done.get(case.key)
        skip = old is not None and old["outcome"] not in arguments.again
        wanted = not arguments.only or case.model_type in arguments.only
        if skip or not wanted or number // 2 % parts != part:
            continue
        signal.alarm(arguments.seconds)
        try:
            line = run(case, longest=arguments.longest)
        except _Late:
            line = {"case": case.key, "type": case.model_type}
            line |= {"outcome": "not finished", "reason": f"{arguments.seconds} s"}
        except Exception as error:  # noqa: BLE001 - what the check must not let through
            found = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            line = {"case": case.key, "type": case.model_type}
            line |= {"outcome": "RAW ERROR", "reason": found}
        signal.alarm(0)
        done[case.key] = line
        with arguments.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(
            line["case"],
            line["outcome"],
            line.get("worst", ""),
            line["reason"][:230],
            line.get("seconds", ""),
            flush=True,
        )
    print(summary(list(done.values())))


if __name__ == "__main__":
    main()
