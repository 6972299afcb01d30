"""Pages of what privacy costs: a run's plan, its ledger, and a data set's budget.

The same tables stand on the privacy card, so that a stranger sees what the choice of a
model's settings has cost.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from dptune.accounting.assumptions import EXPLANATIONS, Assumption, weakens
from dptune.accounting.certificates import RELATIONS
from dptune.accounting.events import is_non_private, mechanism_counts
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.accounting.progress import ledger_curves
from dptune.planning import RunPlan
from dptune.privacy import Mode, Notion, UnitsFrom
from dptune.reports.blocks import (
    Cell,
    Chip,
    Facts,
    Page,
    Plot,
    Table,
    Tone,
    facts,
    page,
    section,
    table_of,
)
from dptune.reports.card.statements import SpentStatement
from dptune.reports.figures.runs import budget_plot, epsilon_plot
from dptune.reports.formatting import (
    MISSING,
    count,
    epsilon,
    lower,
    number,
    percent,
    short_digest,
    upper,
    words,
)
from dptune.results import BudgetReport, LedgerCurve
from dptune.stages import StagePlan

PLOTTED_DELTA: Final = 1e-5
"""Of the ledger's figure: a ledger has no delta of its own."""
_RELATIONS = {
    "add_or_remove_one": "add or remove one privacy unit",
    "replace_one": "replace one privacy unit",
}
_NOTIONS = {
    "record": "record: the presence of one whole privacy unit",
    "selective": "selective: the sensitive tokens of one record",
    "local": "local: one sequence, against a server that is not trusted",
}


def plan_page(plan: RunPlan) -> Page:
    """Describe a run's stages and its predicted epsilon."""
    return page(
        section("What it will cost", _planned_cost(plan)),
        section(
            "Stages",
            table_of(
                plan.stages,
                ("Stage", lambda s: words(s.settings.name)),
                ("Text", lambda s: s.settings.view),
                (
                    "Trains",
                    lambda s: s.settings.trains.replace("lora", "LoRA"),
                ),
                ("Steps", lambda s: count(s.num_steps)),
                ("Sample rate", lambda s: percent(s.sample_rate)),
                (
                    "Clip norm C",
                    lambda s: number(
                        s.settings.clipping.max_grad_norm
                        if s.settings.clipping
                        else None
                    ),
                ),
                ("Noise / C", _planned_noise),
                (
                    "Bands",
                    lambda s: count(s.num_bands) if s.noise_multiplier else "none",
                ),
                ("Expected batch", lambda s: count(s.expected_batch_size)),
                (
                    "Largest batch",
                    lambda s: (
                        count(s.settings.sampling.max_batch_size)
                        if s.settings.sampling.max_batch_size
                        else "no limit"
                    ),
                ),
                numeric=range(3, 10),
                caption="Steps of stages without noise carry no epsilon: what "
                "they reveal depends on the text that they read. With several "
                "bands (banded matrix factorization) the noise of a step takes back "
                "some of the last ones'.",
            ),
        ),
        label="Run plan",
        title=f"Recipe {plan.recipe}",
        subtitle="Computed before any training, from public numbers only.",
    )


def ledger_page(ledger: PrivacyLedger) -> Page:
    """Describe a ledger; its figure is drawn at a delta that is not the run's own."""
    named = dict.fromkeys(a for e in ledger.entries for a in e.assumptions)
    return page(
        section(
            "Epsilon so far", _curve_plot(ledger_curves(ledger, delta=PLOTTED_DELTA))
        ),
        section(
            "Entries",
            facts(
                ("Privacy unit", words(ledger.privacy_unit)),
                ("Entries", count(len(ledger.entries))),
            ),
            table_of(
                ledger.entries,
                ("Stage", lambda e: words(e.stage)),
                ("Recipe", lambda e: e.recipe),
                ("Text", lambda e: e.view),
                ("Steps", lambda e: count(e.num_steps)),
                ("Sample rate", lambda e: percent(e.sample_rate)),
                ("Noise / C", lambda e: number(e.noise_multiplier)),
                ("Bands", lambda e: count(e.num_bands)),
                ("Clip norm C", lambda e: number(e.max_grad_norm)),
                ("Noise", _noise),
                ("Nominal ε", lambda e: epsilon(e.nominal_epsilon)),
                numeric=(3, 4, 5, 6, 7, 9),
                caption="Nominal ε is what the paper's formula yields for the stage. "
                "It is no guarantee. Bands are steps of which one unit can join only "
                "one.",
            ),
        ),
        section(
            "What follows",
            table_of(
                Notion,
                ("Notion", lambda notion: _NOTIONS[notion]),
                ("What the entries cost together", lambda n: _cost(ledger, n)),
            ),
        ),
        section(
            "What is taken for granted",
            assumption_table(tuple(named)) if named else None,
        ),
        label="Privacy ledger",
        title="What touched the private data",
        subtitle="Entries are appended before noise is sampled and never removed. The "
        "privacy card states the epsilon of every notion, at the delta of the run; "
        "the run's budget says what is left for others.",
    )


def budget_page(report: BudgetReport) -> Page:
    """Describe a budget after a run has settled."""
    lines = [SpentStatement.of(line) for line in report.lines]
    unit, trials = report.privacy_unit, sum(report.sweeps.values())
    sweeps = ", ".join(f"{name}: {count(n)}" for name, n in report.sweeps.items())
    svg = budget_plot(report.lines)
    caption = "Tuning is part of what is spent. Notions without a guarantee left out."
    return page(
        section(
            "What is left",
            Plot(svg=svg, caption=caption) if svg else None,
            budget_table(lines, unit=unit, num_trials=trials),
        ),
        section("How this run spent", _curve_plot(report.curves)),
        section(
            "Who is charged",
            facts(
                ("Privacy units", count(report.num_units), unit),
                ("Runs", count(report.num_runs), f"{count(report.num_open)} open"),
                ("Trials of sweeps", sweeps or "none"),
                (
                    "Log",
                    f"{count(report.head_sequence)} entries",
                    f"last hash {short_digest(report.head_hash)}",
                ),
            ),
        ),
        label="Budget",
        title=f"Data set {report.data_set}, all runs",
        subtitle="Epsilon of everything that ever ran on the data set, composed for "
        "the units that were charged most. Never add two lines, nor a run to a run.",
    )


def budget_table(
    lines: Iterable[SpentStatement], *, unit: str, num_trials: int
) -> Table:
    """List what was spent, what of it by trials, and what is left."""
    return table_of(
        lines,
        (
            "Notion",
            lambda x: (
                f"All runs{', adaptive' if x.adaptive else ''}: {x.notion} "
                f"({words(x.relation)} {unit})"
            ),
        ),
        ("Spent on tuning ε", lambda x: epsilon(x.tuning)),
        ("Spent in all ε", lambda x: epsilon(x.spent)),
        (
            "Allowed ε",
            lambda x: "not granted" if x.allowance is None else lower(x.allowance),
        ),
        ("Left ε", lambda x: lower(x.left)),
        ("δ", lambda x: upper(x.delta)),
        numeric=range(1, 6),
        caption="For the units that were charged most, under the assumptions of every "
        "run. What tuning spent is part of what was spent in all "
        f"({count(num_trials)} trial{'' if num_trials == 1 else 's'}). Left: allowed "
        "less what is spent or held by open runs, a guide, since epsilons do not add. "
        "Adaptive: whatever runs were chosen for what earlier ones had shown.",
    )


def assumption_table(assumptions: tuple[Assumption, ...]) -> Table:
    """Explain assumptions in plain words, and which claims hang on them."""
    return table_of(
        assumptions,
        ("Assumption", words),
        ("In plain words", lambda a: EXPLANATIONS[a].sentence),
        (
            "Makes conditional",
            lambda a: (
                ", ".join(
                    f"{notion} ({words(relation)})"
                    for notion, relations in RELATIONS.items()
                    for relation in relations
                    if weakens(a, notion, relation)
                )
                or MISSING
            ),
        ),
    )


def _planned_cost(plan: RunPlan) -> Facts:
    """Return target and predicted epsilon."""
    released = plan.counts_noise_multiplier
    origins = {stage.units_from for stage in plan.stages}
    units = plan.units_noise_multiplier
    origin = "declared" if units is None else f"noise {number(units)}"
    return facts(
        ("Notion", _NOTIONS.get(plan.notion, words(plan.notion))),
        ("Neighbors", _relation_words(plan.relation)),
        ("Target epsilon", number(plan.target_epsilon)),
        ("Delta", upper(plan.target_delta)),
        (
            "Epsilon of all noisy stages",
            epsilon(plan.epsilon),
            "over stages and a release of counts; the ledger certifies what is spent",
        ),
        _nominal(plan),
        ("Released counts of entity types, noise / C", number(released))
        if released is not None
        else None,
        ("Privacy units, public", count(plan.num_units), origin)
        if origins and UnitsFrom.EXACT not in origins
        else None,
    )


def _relation_words(relation: str) -> str:
    """Say which two data sets are neighbors."""
    return _RELATIONS.get(relation, words(relation))


def _nominal(plan: RunPlan) -> tuple[str, str, str] | None:
    """Say what the papers would print, and what they leave out."""
    if plan.nominal_epsilon is None:
        return None
    note = "the papers' formulas, added over stages; no guarantee"
    released = plan.counts_nominal_epsilon
    if released is not None:
        note = (
            f"the papers' formulas, added over stages, and {epsilon(released)} for the "
            "release of counts, of which no paper speaks; no guarantee"
        )
    if plan.mode is Mode.PAPER:
        note += "; the target is for this figure"
    return ("Nominal epsilon", epsilon(plan.nominal_epsilon), note)


def _planned_noise(stage: StagePlan) -> str:
    """Say how much noise there is, and how it moves."""
    if not stage.noise_multiplier:
        return "none"
    values = [level * stage.noise_multiplier for level in stage.noise_levels]
    low, high = number(min(values)), number(max(values))
    return low if low == high else f"{low} to {high}"


def _curve_plot(curves: Sequence[LedgerCurve]) -> Plot | None:
    """Draw epsilon so far over the steps of a run, by stage and notion."""
    if not curves:
        return None
    terms = dict.fromkeys((c.notion, c.relation) for c in curves)
    named = "; ".join(f"{n}: {_relation_words(r)}" for n, r in terms)
    caption = f"At δ = {number(curves[0].delta)}. {named}. Steps as they were charged."
    return Plot(svg=epsilon_plot(curves), caption=caption)


def _noise(entry: LedgerEntry) -> Cell:
    """Say whether the entry added noise, and whether its seed is known."""
    if entry.fixed_seed:
        return Chip(text="fixed seed", tone=Tone.BLOCK)
    if entry.dp_event is None:
        return Chip(text="public data")
    if is_non_private(entry.dp_event):
        return Chip(text="none", tone=Tone.BLOCK)
    return Chip(text="secret", tone=Tone.PASS)


def _cost(ledger: PrivacyLedger, notion: Notion) -> Cell:
    """Say what the composed event comes to, without computing an epsilon."""
    event = ledger.event(notion)
    seeded = Assumption.FIXED_SEED_RANDOMNESS
    if any(seeded in entry.claimed(notion) for entry in ledger.entries):
        return Chip(text=f"{epsilon(float('inf'))}: fixed seed", tone=Tone.BLOCK)
    if is_non_private(event):
        return Chip(text=epsilon(float("inf")), tone=Tone.BLOCK)
    mechanisms = mechanism_counts(event)
    if not mechanisms:
        return Chip(text="nothing", tone=Tone.PASS)
    steps = count(sum(n for _, n in mechanisms))
    return f"finite: {steps} noisy steps"
