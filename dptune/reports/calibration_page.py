"""The page of a calibration: the plan, its promises, and the choices around it."""

from collections.abc import Iterator

from dptune.privacy import CertificateStatus, NeighboringRelation, Notion
from dptune.reports.blocks import (
    Block,
    Cell,
    Chip,
    Notice,
    Page,
    Plot,
    Plots,
    Section,
    Table,
    Tone,
    table,
)
from dptune.reports.calibration import (
    AuditPower,
    BatchChoice,
    Calibration,
    EpsilonGrid,
    NoiseCost,
    Promise,
    StageCost,
    TargetChoice,
    WhatIf,
)
from dptune.reports.calibration_plots import batch_plot, noise_plot, target_plot
from dptune.reports.formatting import MISSING, count, epsilon, number, share, words

PLAN = "◂ plan"
_PROMISES = {
    (Notion.RECORD, NeighboringRelation.ADD_OR_REMOVE_ONE): (
        "record, add or remove one",
        "whether a unit was in the data",
    ),
    (Notion.RECORD, NeighboringRelation.REPLACE_ONE): (
        "record, replace one",
        "what a unit holds",
    ),
    (Notion.SELECTIVE, NeighboringRelation.REPLACE_ONE): (
        "selective, replace one",
        "the sensitive words of one record",
    ),
    (Notion.LOCAL, NeighboringRelation.REPLACE_ONE): (
        "local, replace one",
        "one text, its label apart, against the server",
    ),
}
_STATUS = {
    CertificateStatus.CERTIFIED: "certified",
    CertificateStatus.CONDITIONAL: "conditional",
    CertificateStatus.NONE: "none: read without noise, or under noise of a known seed",
}
_NOISE_CAPTION = (
    "Noise per step, over C: the independent noise in the mean of a step that would "
    "leave as much in the sum of the steps; compare plans by it. Signal-to-noise: what "
    "a run could add up in one direction if all gradients agreed, over the noise "
    "there. No run comes near; it ranks plans."
)


def calibration_page(calibration: Calibration) -> Page:
    """Return the tables and figures of a calibration."""
    return Page(
        kicker="Calibration",
        title=f"{calibration.config}: recipe {calibration.recipe}",
        lede="What a run would cost, computed before any training: "
        f"{count(calibration.num_units)} privacy units ({calibration.units_from}), "
        f"δ = {number(calibration.target_delta)}. Nothing was spent.",
        sections=(
            Section(
                title="What the plan promises", blocks=(_promise_table(calibration),)
            ),
            *_power_sections(calibration.power),
            Section(title="Stages", blocks=(_stage_table(calibration.stages),)),
            *_what_if_sections(calibration),
        ),
    )


def _power_sections(power: AuditPower | None) -> Iterator[Section]:
    """Say whether the gate will be able to decide."""
    if power is None:
        return
    yield Section(
        title="Will the gate be able to decide?",
        blocks=(
            table(
                ("evidence", "planned", "asked for", "", "what it means"),
                (
                    (
                        line.name,
                        number(line.planned),
                        number(line.needed),
                        "enough" if line.enough else "too little",
                        line.meaning,
                    )
                    for line in power.lines
                ),
                numeric=(1, 2),
                caption=f"Under policy {power.policy}. "
                + (
                    "Nothing that is planned stands in the way of a pass."
                    if power.enough
                    else "As planned, the gate cannot say PASS: change the "
                    "configuration before training."
                ),
            ),
        ),
    )


def _what_if_sections(calibration: Calibration) -> Iterator[Section]:
    """Return figures and tables of other choices."""
    what_if = calibration.what_if
    if what_if is None:
        return
    yield Section(title="At a glance", blocks=(_plots(calibration, what_if),))
    yield Section(title="What if the target were", blocks=(_target_table(what_if),))
    if what_if.batches:
        blocks: tuple[Block, ...] = (_batch_table(what_if.batches),)
        if what_if.hint:
            blocks = (*blocks, Notice(text=what_if.hint))
        yield Section(title="Same target, another batch size", blocks=blocks)
    yield Section(
        title="What epsilon would be: batch size and epochs",
        blocks=(_batch_grid(what_if.by_batch),),
    )
    yield Section(
        title="What epsilon would be: noise and epochs",
        blocks=(_noise_grid(what_if.by_noise),),
    )


def _promise_table(calibration: Calibration) -> Table:
    """Put the relations side by side."""
    return table(
        ("promise", "protects", "ε of the noisy stages", "ε of the run", "status"),
        (_promise_row(promise) for promise in calibration.promises),
        numeric=(2, 3),
        caption="Epsilons of different promises are never compared or added.",
    )


def _promise_row(promise: Promise) -> tuple[Cell, ...]:
    """Return one promise."""
    name, protects = _PROMISES[promise.notion, promise.relation]
    is_conditional = promise.status is CertificateStatus.CONDITIONAL
    rests_on = ", ".join(promise.assumptions) if is_conditional else ""
    return (
        f"{name} {PLAN}" if promise.is_target else name,
        protects,
        number(promise.noisy_epsilon),
        epsilon(promise.epsilon),
        " on ".join(filter(None, [_STATUS[promise.status], rests_on])),
    )


def _stage_table(stages: tuple[StageCost, ...]) -> Table:
    """Return a column for each stage."""
    columns = [_stage_column(stage) for stage in stages]
    return table(
        ("", *(words(stage.stage) for stage in stages)),
        ((name, *(c[name] for c in columns)) for name in columns[0]),
        numeric=range(1, len(stages) + 1),
        caption=_NOISE_CAPTION,
    )


def _stage_column(stage: StageCost) -> dict[str, str]:
    """Return the facts of one stage by name."""
    noise = stage.noise
    cap = stage.max_batch_size
    return {
        "text": stage.view,
        "who joins a step": words(stage.sampling),
        "expected batch": count(stage.expected_batch_size),
        "largest batch": count(cap) if cap else ("no limit" if noise else MISSING),
        "sample rate": share(stage.sample_rate) if noise else MISSING,
        "epochs": number(stage.epochs),
        "steps": count(stage.num_steps),
        "C": number(stage.max_grad_norm),
        "noise multiplier": number(noise.noise_multiplier, digits=4)
        if noise
        else "none",
        "bands of the noise": count(noise.num_bands) if noise else MISSING,
        "noise in one step's mean, over C": _step_noise(noise),
        "noise per step over the run, over C": _run_noise(noise),
        "signal-to-noise of the run": _ratio(noise),
    }


def _target_table(what_if: WhatIf) -> Table:
    """Return the noise that other targets need, under both relations."""
    return table(
        (
            "target ε",
            "noise multiplier (add or remove)",
            "noise per step, over C",
            "noise multiplier (replace, selective)",
            "noise per step, over C",
        ),
        (_target_row(choice) for choice in what_if.targets),
        numeric=range(1, 5),
        caption=f"For stage {words(what_if.stage)}; bands and other settings as "
        "planned.",
    )


def _target_row(choice: TargetChoice) -> tuple[str, ...]:
    """Return one target."""
    target = number(choice.target_epsilon)
    return (
        f"{target} {PLAN}" if choice.is_planned else target,
        _multiplier(choice.add_or_remove),
        _run_noise(choice.add_or_remove),
        _multiplier(choice.replace),
        _run_noise(choice.replace),
    )


def _batch_table(batches: tuple[BatchChoice, ...]) -> Table:
    """Return the noise that other batch sizes need at the same target."""
    return table(
        (
            "batch",
            "steps",
            "noise multiplier",
            "noise per step, over C",
            "signal-to-noise",
        ),
        (
            (
                f"{count(b.expected_batch_size)} {PLAN}"
                if b.is_planned
                else count(b.expected_batch_size),
                count(b.num_steps),
                _multiplier(b.noise),
                _run_noise(b.noise),
                _ratio(b.noise),
            )
            for b in batches
        ),
        numeric=range(1, 5),
        caption="Epochs as planned, so the work is the same.",
    )


def _batch_grid(grid: EpsilonGrid) -> Table:
    """Return epsilon for batch sizes and epochs, at the planned noise."""
    return table(
        ("batch", *(f"{number(e)} epochs" for e in grid.epochs)),
        (
            (
                count(round(size)),
                *(
                    _mark(f"{number(value)} @ {count(steps)}", (i, j) == grid.planned)
                    for j, (value, steps) in enumerate(
                        zip(values, all_steps, strict=True)
                    )
                ),
            )
            for i, (size, values, all_steps) in enumerate(
                zip(grid.rows, grid.epsilon, grid.num_steps, strict=True)
            )
        ),
        numeric=range(1, len(grid.epochs) + 1),
        caption="ε @ steps, at the planned noise multiplier.",
    )


def _noise_grid(grid: EpsilonGrid) -> Table:
    """Return epsilon for noise multipliers and epochs, at the planned batch."""
    return table(
        ("noise multiplier", *(f"{number(e)} epochs" for e in grid.epochs)),
        (
            (
                number(noise),
                *(
                    _mark(number(value), (i, j) == grid.planned)
                    for j, value in enumerate(values)
                ),
            )
            for i, (noise, values) in enumerate(
                zip(grid.rows, grid.epsilon, strict=True)
            )
        ),
        numeric=range(1, len(grid.epochs) + 1),
        caption="ε at the planned batch size.",
    )


def _plots(calibration: Calibration, what_if: WhatIf) -> Plots:
    """Return the three figures."""
    return Plots(
        items=(
            Plot(
                svg=target_plot(what_if),
                title="What a target costs",
                caption="A larger epsilon buys less noise. Hiding what a unit holds "
                "costs more than hiding whether it is there.",
            ),
            Plot(
                svg=batch_plot(calibration, what_if),
                title="Batch size and epochs",
                caption="A larger batch at the same noise multiplier spends more, and "
                "its mean has less noise.",
            ),
            Plot(
                svg=noise_plot(calibration, what_if),
                title="Noise and epochs",
                caption="More noise or fewer epochs spend less.",
            ),
        )
    )


def _mark(text: str, planned: bool) -> Cell:  # noqa: FBT001 - one cell, one flag
    """Mark the planned cell."""
    return Chip(text=text, tone=Tone.NEUTRAL) if planned else text


def _multiplier(noise: NoiseCost | None) -> str:
    """Return a noise multiplier; a target that no noise reaches is impossible."""
    return number(noise.noise_multiplier, digits=4) if noise else "impossible"


def _step_noise(noise: NoiseCost | None) -> str:
    """Return the noise in one step."""
    return number(noise.step_noise) if noise else MISSING


def _run_noise(noise: NoiseCost | None) -> str:
    """Return the noise that counts over the run."""
    return number(noise.run_noise) if noise else MISSING


def _ratio(noise: NoiseCost | None) -> str:
    """Return the signal-to-noise."""
    return number(noise.signal_to_noise) if noise else MISSING
