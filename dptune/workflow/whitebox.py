"""The audit of a stage: its ledger, its record, and its steps measured once more."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.audits.noise_checks import check_noise, check_streams
from dptune.audits.rehearsal import rehearse
from dptune.audits.release_checks import (
    check_blocks,
    check_release_events,
    check_releases,
)
from dptune.audits.sampling_checks import check_sampling
from dptune.audits.step_checks import check_sensitivity, probe_units, unit_lengths
from dptune.audits.step_report import (
    StepAudit,
    StepCheck,
    count_steps,
    merged_checks,
    read_segments,
)
from dptune.config import PerformanceSettings
from dptune.dpsgd.feed import Feed
from dptune.dpsgd.plan import GradientPlan, PlainPlan
from dptune.files import replacing
from dptune.local.split import StackedAutoencoder, split_model
from dptune.local.training import UserSequences
from dptune.mechanisms.sa_adp import PROTECTED
from dptune.models.loading import LoadedModel
from dptune.privacy import Notion
from dptune.workflow.device import pick_device, place_processes
from dptune.workflow.inputs import StageInputs, count_tier_leaks, load_stage
from dptune.workflow.job import optimizer_of, record_file, record_loss_of

_SHARDED = "Weights were spread over processes: nobody looked on."
_LOCAL = "Releases are measured again, not recorded."


def audit_stage(
    inputs: StageInputs,
    ledger: PrivacyLedger,
    *,
    performance: PerformanceSettings,
    num_steps: int = 6,
    home: Path | None = None,
) -> StepAudit:
    """Say whether a stage did, and the engine does, what the plan says.

    The ledger must have paid for every step, block by block. What was recorded while
    the stage trained must show no fault. And a few steps are run again on the stage's
    own data, through the functions that train, on a model that is thrown away.

    **Privacy**: verdicts, and figures of fresh noise; no noise that was used is drawn
    again, and nothing is charged.

    Args:
        inputs: model, data and plan that the stage started from.
        ledger: what the run was charged, this stage's blocks among it.
        performance: memory and speed.
        num_steps: of the training that is run again, at least 1.
        home: folder of the stage, whose record is read; None for none.
    """
    if inputs.plan.settings.local is not None:
        return _report(
            inputs, _releases(inputs, ledger, performance), unrecorded=_LOCAL
        )
    plan = inputs.plan.training_plan()
    if isinstance(plan, PlainPlan):
        return _report(inputs, [_unprotected(inputs, ledger)], is_private=False)
    events = _events(inputs, ledger, plan)
    if plan.steering and not plan.count_share:
        return _report(inputs, events, unrecorded="Nothing is claimed.")
    found = [*events, *_steps_again(inputs, plan, performance, num_steps=num_steps)]
    if home is None:
        return _report(inputs, found)
    segments = read_segments(record_file(home / "checkpoint"))
    sharded = performance.sharding != "none" and (
        place_processes(performance).num_processes > 1
    )
    claims = plan.claims_something
    ran = max((s.first_step + s.num_steps for s in segments), default=0)
    return _report(
        inputs,
        [*merged_checks(segments), *found],
        num_steps=ran if plan.adaptive is not None and ran else None,
        num_recorded=count_steps(segments) if claims and not sharded else None,
        unrecorded="" if claims and not sharded else _SHARDED,
    )


def kept_audit(
    inputs: StageInputs,
    ledger: PrivacyLedger,
    *,
    performance: PerformanceSettings,
    num_steps: int,
    home: Path,
) -> StepAudit:
    """Audit a stage once, and keep what was found beside it.

    Args:
        inputs: see `audit_stage`, as for all that follow.
        ledger: what the run was charged.
        performance: memory and speed.
        num_steps: 0 returns an audit without checks.
        home: folder of the stage.
    """
    file = home / "audit.json"
    if file.is_file():
        return StepAudit.model_validate_json(file.read_bytes())
    if num_steps == 0:
        is_private = inputs.plan.settings.private
        return _report(inputs, [], is_private=is_private)
    started = time.perf_counter()
    audit = audit_stage(
        inputs, ledger, performance=performance, num_steps=num_steps, home=home
    )
    audit = audit.model_copy(update={"seconds": time.perf_counter() - started})
    with replacing(file) as half:
        half.write_text(audit.model_dump_json(), encoding="utf-8")
    return audit


def _report(
    inputs: StageInputs,
    checks: Sequence[StepCheck],
    *,
    is_private: bool = True,
    num_steps: int | None = None,
    num_recorded: int | None = None,
    unrecorded: str = "",
) -> StepAudit:
    """Put an audit together."""
    return StepAudit(
        stage=inputs.plan.settings.name,
        recipe=inputs.recipe,
        data_fingerprint=inputs.corpus.fingerprint,
        checks=tuple(checks),
        is_private=is_private,
        num_steps=inputs.plan.num_steps if num_steps is None else num_steps,
        num_recorded=num_recorded,
        unrecorded=unrecorded,
    )


def _steps_again(
    inputs: StageInputs,
    plan: GradientPlan,
    performance: PerformanceSettings,
    *,
    num_steps: int,
) -> list[StepCheck]:
    """Measure the engine on the stage's data; the model is used up."""
    loaded, data = load_stage(inputs, performance)
    device = torch.device(pick_device(performance.device))
    model: nn.Module = loaded.model
    model.to(device)
    feed = Feed(
        data=data,
        record_loss=record_loss_of(inputs.plan, data, max_tokens=inputs.max_tokens),
        # Two units at least are put together, if the run does so.
        physical_batch_size=min(
            max(8, 2 * data.largest_unit), performance.physical_batch_size
        ),
        pad_token_id=int(loaded.tokenizer.pad_token_id),
        device=device,
        autocast=performance.dtype == "bfloat16",
    )
    units = probe_units(data)
    return [
        *check_sensitivity(model, plan, feed, units=units),
        *check_noise(model, plan, feed),
        check_streams(device=device),
        *check_sampling(plan, num_units=data.num_units, lengths=unit_lengths(data)),
        *_tiers_apart(inputs, plan, performance),
        *rehearse(
            model,
            plan,
            feed,
            units=units,
            num_steps=num_steps,
            optimizer=optimizer_of(inputs.plan),
            gradient_checkpointing=performance.gradient_checkpointing,
        ),
    ]


def _events(
    inputs: StageInputs, ledger: PrivacyLedger, plan: GradientPlan
) -> list[StepCheck]:
    """What the ledger holds of the stage must be what the plan says it cost."""
    blocks = _blocks(inputs, ledger)
    if foreign := _foreign(inputs, blocks):
        return [foreign]
    if not plan.part_shares:
        paid = [(e.event(Notion.RECORD), e.num_steps) for e in blocks]
        return [check_blocks(plan, paid, num_steps=inputs.plan.num_steps)]
    kinds: Mapping[str, tuple[int | None, str]] = {"event": (None, "")} | {
        f"event_of_{tier.name.lower()}": (kind, tier.name.lower())
        for kind, tier in enumerate(PROTECTED)
    }
    return [
        check_blocks(
            plan,
            [(e.event(Notion.SELECTIVE, tier=tier), e.num_steps) for e in blocks],
            num_steps=inputs.plan.num_steps,
            kind=kind,
            name=name,
        )
        for name, (kind, tier) in kinds.items()
    ]


def _blocks(inputs: StageInputs, ledger: PrivacyLedger) -> list[LedgerEntry]:
    """What was charged for the stage, in order."""
    own = (inputs.recipe, inputs.plan.settings.name)
    return [entry for entry in ledger.entries if (entry.recipe, entry.stage) == own]


def _foreign(inputs: StageInputs, blocks: Sequence[LedgerEntry]) -> StepCheck | None:
    """Refuse a ledger that is not of the stage's corpus."""
    if {e.data_fingerprint for e in blocks} == {inputs.corpus.fingerprint}:
        return None
    return StepCheck.failed("event", "The ledger is not of this stage and corpus.")


def _tiers_apart(
    inputs: StageInputs, plan: GradientPlan, performance: PerformanceSettings
) -> list[StepCheck]:
    """A secret of one tier must reach no gradient but that of its own part."""
    if not plan.part_shares or plan.mixed_parts:
        return []
    return [
        StepCheck(
            name="tiers_apart",
            passed=count_tier_leaks(inputs, performance) == 0,
            detail="no row in which another value of a secret reaches a part that has "
            "no noise for it",
        )
    ]


def _unprotected(inputs: StageInputs, ledger: PrivacyLedger) -> StepCheck:
    """A stage without noise must have been charged as one."""
    blocks = _blocks(inputs, ledger)
    claimed = [e for e in blocks if e.noise_multiplier]
    return StepCheck(
        name="event",
        passed=bool(blocks) and not claimed,
        detail="a stage without noise, charged as such",
    )


def _releases(
    inputs: StageInputs, ledger: PrivacyLedger, performance: PerformanceSettings
) -> list[StepCheck]:
    """Measure a stage whose users release hidden states."""
    blocks = _blocks(inputs, ledger)
    if foreign := _foreign(inputs, blocks):
        return [foreign]
    local = inputs.plan.settings.local
    if local is None:
        return []
    plan = inputs.plan.forward_plan(inputs.plan.noise_multiplier or 0.0)
    loaded, data = load_stage(inputs, performance)
    user, server = split_model(
        loaded.model,
        layer=local.layer,
        autoencoder=_untrained_coder(loaded, local.autoencoder),
        num_positions=inputs.max_tokens,
        max_norm=local.max_norm,
    )
    few = [int(i) for i in np.argsort(-unit_lengths(data))[:8]]
    users = UserSequences.padded(
        [list(map(int, data.sequences[i])) for i in few],
        [0 if data.labels is None else int(data.labels[i]) for i in few],
        num_positions=inputs.max_tokens,
        pad_token_id=int(loaded.tokenizer.pad_token_id),
    )
    return [
        check_release_events(
            plan, [(e.event(Notion.LOCAL), e.num_steps) for e in blocks]
        ),
        *check_releases(user, server, users, plan=plan),
        check_streams(device=torch.device("cpu")),
    ]


def _untrained_coder(
    loaded: LoadedModel, sizes: Sequence[int]
) -> StackedAutoencoder | None:
    """An encoder of the right shape: what it has learnt is public, and no matter."""
    if not sizes:
        return None
    width = int(loaded.model.config.hidden_size)
    generator = torch.Generator().manual_seed(0)
    return StackedAutoencoder((width, *sizes), generator=generator)
