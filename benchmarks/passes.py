"""What do passes by length save? Steps over short and long rows, cut by length or not.

    PYTHONPATH=. python benchmarks/passes.py

The model of `dialogues.yaml` on batches of its shape: half of the rows are canaries of
34 tokens, the others dialogues of 190 or so. Both ways take turns, draw by draw, and
pass sixteen rows at once at most; processor time of one thread, medians of ratios.
Prints Markdown.
"""

import math
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from dptune.dpsgd import feed as feeding
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.dpsgd.step import gradient_source

ROWS, SHORT, LONG, SPREAD, VOCABULARY, POSITIONS = 2_000, 34, 190, 30, 1024, 320
ROUNDS = 12


def corpus() -> UnitDataset:
    """Invent rows of two kinds."""
    draw = np.random.default_rng(0)
    long = np.clip(draw.normal(LONG, SPREAD, ROWS), SHORT, POSITIONS).astype(int)
    lengths = np.where(np.arange(ROWS) % 2, long, SHORT)
    rows = [draw.integers(1, VOCABULARY, size) for size in lengths]
    return UnitDataset.from_columns(
        rows,
        [np.ones(size) for size in lengths],
        list(range(ROWS)),
        max_sequences_per_unit=1,
    )


def stepper(stack: ExitStack, data: UnitDataset, batch: int, *, private: bool):  # noqa: ANN201
    """Return a function that takes a step over some units."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=POSITIONS,
        n_embd=96,
        n_layer=3,
        n_head=3,
        activation_function="gelu_pytorch_tanh",
        bos_token_id=None,
        eos_token_id=None,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    feed = Feed(
        data=data,
        record_loss=CausalLoss(loss_normalizer=float(POSITIONS)),
        physical_batch_size=16,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )
    plan = (
        GradientPlan(
            noise_multiplier=1.0,
            sample_rate=batch / ROWS,
            max_grad_norm=0.1,
            expected_batch_size=float(batch),
        )
        if private
        else PlainPlan(batch_size=batch)
    )
    model = GPT2LMHeadModel(config).train()
    source = stack.enter_context(
        gradient_source(model, plan=plan, feed=feed, seed=0, attempt=0)
    )
    return lambda units: source.compute(units, step=0)


def timed(
    step: Callable[[np.ndarray], object], units: np.ndarray, cost: float
) -> float:
    """Return the processor time of a step where a pass costs so much padding."""
    with patch.object(feeding, "_PASS_COST", cost):
        started = time.process_time()
        step(units)
        return time.process_time() - started


def main() -> None:
    """Print ratios of steps cut by length over those that are not."""
    torch.set_num_threads(1)
    data, cut = corpus(), feeding._PASS_COST
    print("| step | units | whole, ms | cut by length | ratio |\n|---|---|---|---|---|")
    with ExitStack() as stack:
        for private, batch in ((False, 16), (False, 64), (True, 64), (True, 256)):
            step = stepper(stack, data, batch, private=private)
            draw = np.random.default_rng(1)
            pairs = []
            for _ in range(ROUNDS + 1):
                units = draw.choice(ROWS, batch, replace=False)
                pairs.append([timed(step, units, cost) for cost in (math.inf, cut)])
            whole, parts = zip(*pairs[1:], strict=True)  # the first one warms up
            ratio = statistics.median(b / a for a, b in pairs[1:])
            name = "private" if private else "ordinary"
            middle = [1e3 * statistics.median(one) for one in (whole, parts)]
            print(
                f"| {name} | {batch} |",
                *(f"{m:.0f} |" for m in middle),
                f"{ratio:.2f} |",
            )


if __name__ == "__main__":
    main()
