"""Units that take several passes, against units in one pass and a loop over rows."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from dptune.audits.noise_checks import check_noise
from dptune.audits.step_checks import check_sensitivity
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.large_units import LargeUnit
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.parameters import Grouping
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.prechecks import check_numbers
from dptune.dpsgd.ragged import Ragged
from dptune.errors import ConfigError
from tests.support import models, oracles
from tests.unit.dpsgd.test_modes import DIVISOR, by_loop, lora, plan_of, stepped
from tests.unit.dpsgd.test_modes import C as BOUND

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)

CAUSAL, CLASSIFY = CausalLoss(loss_normalizer=8.0), ClassificationLoss()
DATA = oracles.random_data(rows_per_unit=(1, 7, 2, 12, 1, 5), seed=4)
LABELLED = replace(DATA, labels=np.arange(len(DATA.sequences)) % 3)
BUILDS = {
    "gpt2": (models.tiny_gpt2, CAUSAL, DATA, Grouping.PER_LAYER),
    "lora": (lambda: lora(models.tiny_llama()), CAUSAL, DATA, Grouping.PER_LORA_PAIR),
    "bert": (models.tiny_bert_classifier, CLASSIFY, LABELLED, Grouping.FLAT),
}
MODES = [
    (size, fixed, recomputes, (1 << 30) * (size > 1))
    for size in (1, 3, 5)
    for fixed, recomputes in ((False, False), (True, True), (True, False))
]
"""As in `test_modes`, with fewer rows in memory than units have."""


def errors(name, grouping=None):
    """Distance to a loop over rows, in every mode."""
    build, loss, data, own = BUILDS[name]
    grouping = grouping or own
    model = build().train()
    expected = by_loop(model, loss, data, grouping)
    for mode in MODES:
        found = stepped(model, loss, data, plan_of(grouping), mode=mode)
        yield oracles.distance(found, expected) / oracles.norm(expected), mode


@pytest.mark.parametrize("name", BUILDS)
def test_units_of_several_passes_equal_a_loop_over_rows(name):
    for error, mode in errors(name):
        assert error < 1e-5, mode


def add_clipped(self, tape, losses, batch):
    """The twin clips every pass by itself: a unit of n passes adds up to n C."""
    tape.backward(losses.sum(), lambda n: (BOUND / n).clamp(max=1), self._total)


def clip_nothing(self, factors_of, sums):
    """The twin's pieces are clipped already."""
    for name, value in self._total.items():
        sums[name] += value


def test_units_clipped_pass_by_pass_are_caught(monkeypatch):
    monkeypatch.setattr(LargeUnit, "add", add_clipped)
    monkeypatch.setattr(LargeUnit, "clip", clip_nothing)
    assert all(error > 1e-2 for error, _ in errors("bert"))


def audit(physical_batch_size):
    """What the audit of a stage says of units with more rows than fit."""
    model = lora(models.tiny_llama()).train()
    plan = GradientPlan(
        noise_multiplier=0.5,
        sample_rate=0.5,
        max_grad_norm=BOUND,
        expected_batch_size=DIVISOR,
    )
    feed = large_feed(physical_batch_size)
    checks = [
        *check_sensitivity(model, plan, feed, units=(1, 3)),
        *check_noise(model, plan, feed),
    ]
    return {check.name for check in checks if not check.passed}


def large_feed(physical_batch_size):
    return Feed(
        data=DATA,
        record_loss=CAUSAL,
        physical_batch_size=physical_batch_size,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=False,
    )


def test_audit_finds_units_of_several_passes_sound_and_the_twin_not(monkeypatch):
    assert audit(2) == set()
    monkeypatch.setattr(LargeUnit, "add", add_clipped)
    monkeypatch.setattr(LargeUnit, "clip", clip_nothing)
    assert "sensitivity" in audit(2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_unit_of_several_passes_never_adds_more_than_the_bound(dtype):
    build, loss, data, _ = BUILDS["gpt2"]
    model = build().train()
    for mode in MODES:
        alone = stepped(
            model,
            loss,
            data,
            plan_of(Grouping.FLAT),
            mode=mode,
            indices=[3],
            dtype=dtype,
        )
        assert 0.9 * BOUND < oracles.norm(alone) <= BOUND * (1 + 1e-6), mode


def test_passes_that_cancel_leave_nothing_above_the_bound():
    """Rows with large and opposite gradients: what is added is what is measured."""
    data = UnitDataset(
        sequences=Ragged.of((np.arange(2, 9),) * 4, np.int64),
        loss_weights=Ragged.of((np.ones(7, np.float32),) * 4, np.float32),
        units=Ragged.of((np.arange(4),), np.int64),
        max_sequences_per_unit=4,
    )

    class Opposite(CausalLoss):
        def __call__(self, model, batch):
            sign[0] = -sign[0]
            return 1e4 * sign[0] * super().__call__(model, batch)

    sign = [1.0]
    model = models.tiny_gpt2().train()
    plan = plan_of(Grouping.FLAT)
    step = partial(stepped, model, Opposite(loss_normalizer=1.0), data, plan)
    found = step(mode=(1, False, False, 0), indices=[0])
    assert oracles.norm(found) <= BOUND * (1 + 1e-6)


def test_unit_with_one_pass_that_is_not_finite_adds_nothing():
    build, _, data, _ = BUILDS["gpt2"]

    class Broken(CausalLoss):
        def __call__(self, model, batch):
            losses = super().__call__(model, batch)
            is_odd = (batch.input_ids[:, 0] == spoilt) & (
                batch.input_ids[:, 1] == next_
            )
            return torch.where(is_odd, losses * torch.nan, losses)

    row = data.sequences[data.units[3][5]]
    spoilt, next_ = int(row[0]), int(row[1])
    model, plan = build().train(), plan_of(Grouping.FLAT)
    loss = Broken(loss_normalizer=8.0)
    for mode in MODES[:4]:
        step = partial(stepped, model, loss, data, plan, mode=mode)
        assert oracles.norm(step(indices=[3])) == 0, mode
        rest, both = step(indices=[0, 1]), step(indices=[0, 1, 3])
        assert oracles.distance(rest, both) <= 1e-6 * oracles.norm(rest), mode


def test_memory_of_a_large_unit_is_one_copy_of_what_is_trained(monkeypatch):
    rows = []
    collate = UnitDataset.collate

    def watch(self, units, pad_token_id):
        batch = collate(self, units, pad_token_id)
        rows.append(batch.num_rows)
        return batch

    monkeypatch.setattr(UnitDataset, "collate", watch)
    made = []
    start = LargeUnit.__init__

    def count(self, engine):
        made.append(1)
        start(self, engine)

    monkeypatch.setattr(LargeUnit, "__init__", count)
    build, loss, data, _ = BUILDS["lora"]
    mode = (3, False, False, 0)
    stepped(build().train(), loss, data, plan_of(Grouping.FLAT), mode=mode)
    assert max(rows) == 3
    assert len(made) == sum(len(unit) > 3 for unit in data.units)


def test_transforms_want_units_in_one_pass():
    check_numbers(1, 1, 2, DATA)
    with pytest.raises(ConfigError, match="physical_batch_size"):
        check_numbers(1, 1, 2, DATA, needs_whole_units=True)


def test_data_without_anything_to_learn_are_refused():
    rows, owners = [[5, 6, 7], [8]], ["a", "b"]
    for weights, number in (([[1, 0, 0], [1]], 0), ([[0, 0, 1], [1]], 1)):
        data = UnitDataset.from_columns(rows, weights, owners, max_sequences_per_unit=1)
        assert data.num_targets == number
        if number:
            check_numbers(1, 1, 2, data)
        else:
            with pytest.raises(ConfigError, match="num_targets: must be at least 1"):
                check_numbers(1, 1, 2, data)
