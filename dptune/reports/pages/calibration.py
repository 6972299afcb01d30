"""The page of a calibration: the plan, its promises, and the choices around it."""

from collections.abc import Iterator, Sequence

from dptune.privacy import CertificateStatus, NeighboringRelation, Notion
from dptune.reports.blocks import (
    Cell,
    Chip,
    Notice,
    Page,
    Plot,
    Section,
    Table,
    page,
    section,
    side_by_side,
    table,
    table_of,
)
from dptune.reports.figures.runs import calibration_plots
from dptune.reports.formatting import (
    MISSING,
    count,
    duration,
    epsilon,
    number,
    percent,
    upper,
    words,
)
from dptune.results import (
    AttackCost,
    AuditPower,
    Calibration,
    EpsilonGrid,
    NoiseCost,
    StageCost,
    WhatIf,
)

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
        "the sensitive words of a unit",
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
    what_if = calibration.what_if
    stages = [_stage_column(stage) for stage in calibration.stages]
    return page(
        section(
            "What the plan promises",
            table_of(
                calibration.promises,
                (
                    "promise",
                    lambda p: _marked(_PROMISES[p.notion, p.relation][0], p.is_target),
                ),
                ("protects", lambda p: _PROMISES[p.notion, p.relation][1]),
                ("ε of the noisy stages", lambda p: upper(p.noisy_epsilon)),
                ("ε of the run", lambda p: epsilon(p.epsilon)),
                (
                    "status",
                    lambda p: (
                        f"conditional on {', '.join(p.assumptions)}"
                        if p.status is CertificateStatus.CONDITIONAL and p.assumptions
                        else _STATUS[p.status]
                    ),
                ),
                numeric=(2, 3),
                caption="Epsilons of different promises are never compared or added.",
            ),
        ),
        section(
            "Will the gate be able to decide?",
            _power_table(calibration.power) if calibration.power else None,
        ),
        section(
            "Stages",
            table(
                ("", *(words(stage.stage) for stage in calibration.stages)),
                ((name, *(c[name] for c in stages)) for name in stages[0]),
                numeric=range(1, len(stages) + 1),
                caption=_NOISE_CAPTION,
            ),
        ),
        section(
            "What attacks will take",
            attack_table(calibration.attacks) if calibration.attacks else None,
        ),
        *(_what_if_sections(calibration, what_if) if what_if else ()),
        *(_grid_sections(what_if) if what_if else ()),
        label="Calibration",
        title=f"{calibration.config}: recipe {calibration.recipe}",
        subtitle="What a run would cost, computed before any training: "
        f"{count(calibration.num_units)} privacy units ({calibration.units_from}), "
        f"δ = {upper(calibration.target_delta)}. Nothing was spent.",
    )


def attack_table(costs: Sequence[AttackCost]) -> Table:
    """Return what attacks will take on the machine that was asked."""
    total = sum(cost.seconds for cost in costs)
    return table_of(
        costs,
        ("attack", lambda c: c.attack),
        ("tokens at most", lambda c: count(c.num_tokens)),
        ("time", lambda c: duration(round(c.seconds))),
        numeric=(1, 2),
        caption=f"Together {duration(round(total))} on this machine, of model and "
        "base, from two passes that were timed. Every record counts as the longest.",
    )


def _power_table(power: AuditPower) -> Table:
    """Show whether the gate will have the evidence that it asks for."""
    answer = (
        "Nothing that is planned stands in the way of a pass."
        if power.enough
        else "As planned, the gate cannot say PASS: change the configuration before "
        "training."
    )
    return table_of(
        power.lines,
        ("evidence", lambda line: line.name),
        ("planned", lambda line: number(line.planned)),
        ("asked for", lambda line: number(line.needed)),
        ("", lambda line: "enough" if line.enough else "too little"),
        ("what it means", lambda line: line.meaning),
        numeric=(1, 2),
        caption=f"Under policy {power.policy}. {answer}",
    )


def _stage_column(stage: StageCost) -> dict[str, str]:
    """Return the facts of one stage by name."""
    noise, cap = stage.noise, stage.max_batch_size
    return {
        "text": stage.view,
        "who joins a step": words(stage.sampling),
        "expected batch": count(stage.expected_batch_size),
        "largest batch": count(cap) if cap else ("no limit" if noise else MISSING),
        "sample rate": percent(stage.sample_rate) if noise else MISSING,
        "epochs": number(stage.epochs),
        "steps": count(stage.num_steps),
        "C": number(stage.max_grad_norm),
        "noise multiplier": _multiplier(noise) if noise else "none",
        "bands of the noise": count(noise.num_bands) if noise else MISSING,
        "noise in one step's mean, over C": number(noise.step_noise if noise else None),
        "noise per step over the run, over C": number(
            noise.run_noise if noise else None
        ),
        "signal-to-noise of the run": number(noise.signal_to_noise if noise else None),
    }


def _what_if_sections(
    calibration: Calibration, what_if: WhatIf
) -> Iterator[Section | None]:
    """Return figures and tables of other choices."""
    batches = what_if.batches
    targets, epochs, noises = calibration_plots(calibration, what_if)
    yield section(
        "At a glance",
        *side_by_side(
            Plot(
                svg=targets,
                title="What a target costs",
                caption="A larger epsilon buys less noise. Hiding what a unit holds "
                "costs more than hiding whether it is there.",
            ),
            Plot(
                svg=epochs,
                title="Batch size and epochs",
                caption="A larger batch at the same noise multiplier spends more, and "
                "its mean has less noise.",
            ),
            Plot(
                svg=noises,
                title="Noise and epochs",
                caption="More noise or fewer epochs spend less.",
            ),
        ),
    )
    yield section(
        "What if the target were",
        table_of(
            what_if.targets,
            ("target ε", lambda t: _marked(number(t.target_epsilon), t.is_planned)),
            (
                "noise multiplier (add or remove)",
                lambda t: _multiplier(t.add_or_remove),
            ),
            ("noise per step, over C", lambda t: _run_noise(t.add_or_remove)),
            ("noise multiplier (replace, selective)", lambda t: _multiplier(t.replace)),
            ("noise per step, over C", lambda t: _run_noise(t.replace)),
            numeric=range(1, 5),
            caption=f"For stage {words(what_if.stage)}; bands and other settings as "
            "planned.",
        ),
    )
    yield section(
        "Same target, another batch size",
        table_of(
            batches,
            ("batch", lambda b: _marked(count(b.expected_batch_size), b.is_planned)),
            ("steps", lambda b: count(b.num_steps)),
            ("noise multiplier", lambda b: _multiplier(b.noise)),
            ("noise per step, over C", lambda b: _run_noise(b.noise)),
            (
                "signal-to-noise",
                lambda b: number(b.noise.signal_to_noise if b.noise else None),
            ),
            numeric=range(1, 5),
            caption="Epochs as planned, so the work is the same.",
        )
        if batches
        else None,
        Notice(text=what_if.hint) if batches and what_if.hint else None,
    )


def _grid_sections(what_if: WhatIf) -> Iterator[Section | None]:
    """Return tables of epsilon around the plan."""
    grid, noise = what_if.by_batch, what_if.by_noise
    yield section(
        "What epsilon would be: batch size and epochs",
        _grid(
            "batch",
            grid,
            [count(round(size)) for size in grid.rows],
            [
                [f"{upper(e)} @ {count(steps)}" for e, steps in zip(*row, strict=True)]
                for row in zip(grid.epsilon, grid.num_steps, strict=True)
            ],
            caption="ε @ steps, at the planned noise multiplier.",
        ),
    )
    yield section(
        "What epsilon would be: noise and epochs",
        _grid(
            "noise multiplier",
            noise,
            [number(multiplier) for multiplier in noise.rows],
            [[upper(value) for value in row] for row in noise.epsilon],
            caption="ε at the planned batch size.",
        ),
    )


def _grid(
    name: str,
    grid: EpsilonGrid,
    heads: Sequence[str],
    cells: Sequence[Sequence[str]],
    *,
    caption: str,
) -> Table:
    """Return a table with a column for each number of epochs; the plan is marked."""
    rows: list[list[Cell]] = [[h, *row] for h, row in zip(heads, cells, strict=True)]
    row, column = grid.planned
    rows[row][column + 1] = Chip(text=cells[row][column])
    return table(
        (name, *(f"{number(epochs)} epochs" for epochs in grid.epochs)),
        rows,
        numeric=range(1, len(grid.epochs) + 1),
        caption=caption,
    )


def _marked(text: str, is_planned: bool) -> str:  # noqa: FBT001 - one cell, one flag
    """Mark the planned choice."""
    return f"{text} {PLAN}" if is_planned else text


def _multiplier(noise: NoiseCost | None) -> str:
    """Return a noise multiplier; a target that no noise reaches is impossible."""
    return number(noise.noise_multiplier, digits=4) if noise else "impossible"


def _run_noise(noise: NoiseCost | None) -> str:
    """Return the noise that counts over the run."""
    return number(noise.run_noise if noise else None)
