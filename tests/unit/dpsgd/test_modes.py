"""A whole step in every mode that changes speed or memory, against a plain loop."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch

from dptune.dpsgd import step as step_module
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.gradients import PerUnitGradients
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.parameters import Grouping, group_parameters, trainable_parameters
from dptune.dpsgd.plan import GradientPlan
from dptune.dpsgd.prechecks import check_private, checkpointing, modes_of
from dptune.models.build import add_lora
from tests.support import models, oracles

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)

C, DIVISOR = 0.3, 2.0
CAUSAL, CLASSIFY = CausalLoss(loss_normalizer=8.0), ClassificationLoss()
DATA = oracles.random_data(rows_per_unit=(1, 2, 1, 3, 1, 1), seed=3)
LABELLED = UnitDataset(
    sequences=DATA.sequences,
    loss_weights=DATA.loss_weights,
    units=DATA.units,
    labels=np.arange(len(DATA.sequences)) % 3,
    max_sequences_per_unit=3,
)


def lora(model):
    adapted = add_lora(model, rank=3, alpha=8)
    generator = torch.Generator().manual_seed(3)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.3, generator=generator)
    return adapted


BUILDS = {
    "gpt2_tied": (models.tiny_gpt2, CAUSAL, DATA, Grouping.PER_LAYER),
    "gpt2_untied": (
        partial(models.tiny_gpt2, tied=False),
        CAUSAL,
        DATA,
        Grouping.PER_LAYER,
    ),
    "llama": (models.tiny_llama, CAUSAL, DATA, Grouping.PER_LAYER),
    "gpt2_lora": (
        lambda: lora(models.tiny_gpt2()),
        CAUSAL,
        DATA,
        Grouping.PER_LORA_PAIR,
    ),
    "bert": (models.tiny_bert_classifier, CLASSIFY, LABELLED, Grouping.PER_LAYER),
}
MODES = [
    (size, fixed, recomputes, (1 << 30) * ((fixed + recomputes + (size > 4)) % 2))
    for size, fixed, recomputes in product((3, 100), (False, True), (False, True))
]
"""Rows in memory, fixed shapes, gradient checkpointing, bytes for gradients of single
units."""


def stepped(model, loss, data, plan, *, mode, indices=range(6), dtype="float32"):
    """Clipped sum of one step."""
    size, fixed, recomputes, budget = mode
    feed = Feed(
        data=data,
        record_loss=loss,
        physical_batch_size=size,
        pad_token_id=0,
        device=torch.device("cpu"),
        autocast=dtype == "bfloat16",
        fixed_shapes=fixed,
        max_tokens=12,
    )
    engine = partial(PerUnitGradients, materialize_bytes=budget)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "PerUnitGradients", engine)
        if budget:  # write down what these small shapes would not call for
            patch.setattr("dptune.dpsgd.tape._DENSE_PASS_COST", 0)
        with (
            checkpointing(model) if recomputes else nullcontext(),
            step_module.gradient_source(
                model, plan=plan, feed=feed, seed=0, attempt=0
            ) as source,
        ):
            source.compute(np.array(list(indices), np.int64), step=0)
            return {
                name: DIVISOR * value.grad
                for name, value in trainable_parameters(model).items()
            }


def by_loop(model, loss, data, grouping):
    """Clipped sum of a loop over rows; each group is clipped by itself."""
    naive = oracles.naive_unit_gradients(model, loss, data, pad_token_id=0)
    groups = group_parameters(trainable_parameters(model), grouping)
    count = 1 + max(groups.values())
    total = {}
    for number in range(count):
        names = [name for name, group in groups.items() if group == number]
        part = [{name: unit[name] for name in names} for unit in naive]
        total |= oracles.naive_clipped_sum(part, max_grad_norm=C / count**0.5)
    return total


def plan_of(grouping):
    return GradientPlan(
        noise_multiplier=0.0,
        sample_rate=0.5,
        max_grad_norm=C,
        expected_batch_size=DIVISOR,
        grouping=grouping,
    )


@pytest.mark.parametrize("whole", [True, False], ids=["flat", "grouped"])
@pytest.mark.parametrize("name", BUILDS)
def test_step_equals_a_plain_loop_in_every_mode(name, whole):
    build, loss, data, grouping = BUILDS[name]
    grouping = Grouping.FLAT if whole else grouping
    model = build().train()
    expected = by_loop(model, loss, data, grouping)
    for mode in MODES:
        found = stepped(model, loss, data, plan_of(grouping), mode=mode)
        error = oracles.distance(found, expected) / oracles.norm(expected)
        assert error < 3e-5, mode  # 1.4e-5 seen, by CPU


@pytest.mark.parametrize("name", BUILDS)
def test_unit_in_bfloat16_never_adds_more_than_the_bound(name):
    build, loss, data, _ = BUILDS[name]
    model = build().train()
    for mode, unit in product(MODES[::3], (0, 3)):
        alone = stepped(
            model,
            loss,
            data,
            plan_of(Grouping.FLAT),
            mode=mode,
            indices=[unit],
            dtype="bfloat16",
        )
        assert 0 < oracles.norm(alone) <= C * (1 + 1e-6), mode


def test_loop_is_left_by_a_mode_that_clips_rows(monkeypatch):
    build, loss, data, _ = BUILDS["gpt2_tied"]
    model = build().train()
    expected = by_loop(model, loss, data, Grouping.FLAT)
    collate = UnitDataset.collate

    def twin(self, units, pad_token_id):
        batch = collate(self, units, pad_token_id)
        rows = torch.arange(batch.num_rows)[:, None]
        return replace(batch, rows_of_unit=rows, num_real_units=batch.num_rows)

    monkeypatch.setattr(UnitDataset, "collate", twin)
    for mode in MODES[::3]:
        found = stepped(model, loss, data, plan_of(Grouping.FLAT), mode=mode)
        error = oracles.distance(found, expected) / oracles.norm(expected)
        assert error > 1e-2, mode


def test_layers_are_computed_again_under_the_dropout_of_the_first_pass():
    """A model that drops, and recomputes, passes its check and steps as without."""
    found = []
    for recomputes in (False, True):
        torch.manual_seed(0)
        model = models.tiny_gpt2(dropout=0.1)
        model.train()
        feed = Feed(
            data=DATA,
            record_loss=CAUSAL,
            physical_batch_size=3,
            pad_token_id=0,
            device=torch.device("cpu"),
            autocast=False,
        )
        with modes_of(model, feed, recomputes=recomputes):
            check_private(model, feed, seed=0)
        mode = (3, False, recomputes, 0)
        plan = plan_of(Grouping.FLAT)
        torch.manual_seed(1)
        found.append(stepped(model, CAUSAL, DATA, plan, mode=mode))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value)
