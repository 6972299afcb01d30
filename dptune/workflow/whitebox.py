"""Step-level checks of a recorded stage: its data, its plan, its ledger."""

import torch
from torch import nn

from dptune.accounting.events import merge_events
from dptune.accounting.ledger import PrivacyLedger
from dptune.audits.step_checks import (
    check_event,
    check_noise,
    check_sampling,
    check_sensitivity,
    loudest_units,
)
from dptune.audits.step_report import StepAudit, StepCheck
from dptune.config import PerformanceSettings
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.loss import CausalLoss, ClassificationLoss
from dptune.dpsgd.plan import GradientPlan
from dptune.privacy import Notion
from dptune.workflow.device import pick_device
from dptune.workflow.inputs import StageInputs, count_tier_leaks, load_stage

_NUM_PROBES = 4


def audit_stage(
    inputs: StageInputs, ledger: PrivacyLedger, *, performance: PerformanceSettings
) -> StepAudit:
    """Run the steps of a recorded stage again, without training, and measure them.

    **Privacy**: releases pass or fail and figures of noise; no weight is changed, no
    noise that was used is drawn again, and nothing is charged.

    Args:
        inputs: model, data and plan that the stage started from.
        ledger: what the run was charged, this stage's blocks among it.
        performance: memory and speed.
    """
    plan = inputs.plan.training_plan()
    if not isinstance(plan, GradientPlan):
        found = [_unprotected(inputs, ledger)]
    elif plan.steering and not plan.count_share:
        found = [_event(inputs, ledger, plan)]
    else:
        loaded, data = load_stage(inputs, performance)
        device = torch.device(pick_device(performance.device))
        model: nn.Module = loaded.model
        model.to(device)
        feed = Feed(
            data=data,
            record_loss=CausalLoss(loss_normalizer=float(inputs.max_tokens))
            if data.labels is None
            else ClassificationLoss(),
            physical_batch_size=performance.physical_batch_size,
            pad_token_id=int(loaded.tokenizer.pad_token_id),
            device=device,
            autocast=performance.dtype == "bfloat16",
        )
        units = loudest_units(data, num=_NUM_PROBES)
        found = [
            _event(inputs, ledger, plan),
            check_sensitivity(model, plan, feed, units=units),
            *check_noise(model, plan, feed),
            *check_sampling(plan, num_units=data.num_units),
            *_tiers_apart(inputs, plan, performance),
        ]
    return StepAudit(
        stage=inputs.plan.settings.name,
        recipe=inputs.recipe,
        data_fingerprint=inputs.corpus.fingerprint,
        checks=tuple(found),
    )


def _event(inputs: StageInputs, ledger: PrivacyLedger, plan: GradientPlan) -> StepCheck:
    """What the ledger holds of the stage must be what the plan says it cost."""
    name = inputs.plan.settings.name
    blocks = [e for e in ledger.entries if (e.recipe, e.stage) == (inputs.recipe, name)]
    if {e.data_fingerprint for e in blocks} != {inputs.corpus.fingerprint}:
        return StepCheck.failed("event", "The ledger is not of this stage and corpus.")
    tiered = inputs.plan.settings.tiers is not None
    notion = Notion.SELECTIVE if tiered else Notion.RECORD
    event = merge_events(e.event(notion) for e in blocks)
    return check_event(plan, event, num_steps=inputs.plan.num_steps)


def _tiers_apart(
    inputs: StageInputs, plan: GradientPlan, performance: PerformanceSettings
) -> list[StepCheck]:
    """A secret of one tier must reach no gradient but that of its own part."""
    if not plan.part_shares or plan.mixed_parts:
        return []
    leaks = count_tier_leaks(inputs, performance)
    return [
        StepCheck(
            name="tiers_apart",
            passed=leaks == 0,
            measured=float(leaks),
            limit=0.0,
            detail="rows in which another value of a secret reaches a part that has "
            "no noise for it",
        )
    ]


def _unprotected(inputs: StageInputs, ledger: PrivacyLedger) -> StepCheck:
    """A stage without noise must have been charged as one."""
    name = inputs.plan.settings.name
    blocks = [e for e in ledger.entries if (e.recipe, e.stage) == (inputs.recipe, name)]
    claimed = [e for e in blocks if e.noise_multiplier]
    return StepCheck(
        name="event",
        passed=bool(blocks) and not claimed,
        detail="a stage without noise, charged as such",
    )
