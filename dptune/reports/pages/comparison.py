"""The page of a comparison: one table, what stands behind it, figures, and cards.

Where there are few trainings, each has a headline, a column of its own and its own
figures; where there are many, each has a line.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from dptune.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Chip,
    Facts,
    Folds,
    Headline,
    Headlines,
    Notice,
    Page,
    Plot,
    Prose,
    Section,
    Table,
    Tone,
    facts,
    page,
    section,
    side_by_side,
    table_of,
    verdict_chip,
)
from dptune.reports.card.page import card_page, epsilon_text
from dptune.reports.card.statements import exposure_means
from dptune.reports.comparison import (
    CellResult,
    ComparisonReport,
    PairedRow,
    comparison_rows,
    paired_rows,
)
from dptune.reports.figures.attacks import exposure_plot, roc_plot
from dptune.reports.figures.comparison import steps_to_utility, trade_off_plots
from dptune.reports.formatting import (
    MISSING,
    between,
    duration,
    epsilon,
    number,
    p_value,
    percent,
    sentence_case,
)
from dptune.reports.pages.attacks import (
    EXPOSURE_CAPTION,
    ROC_CAPTION,
    SAMPLES_NOTE,
    samples_tables,
)
from dptune.reports.pages.decisions import (
    change_bullets,
    criteria_table,
    headline_reason,
)
from dptune.reports.pages.training import exposure_plots
from dptune.reports.tables import FEW, comparison_tables, spread_text


def compare_page(report: ComparisonReport, *, next_steps: Sequence[str] = ()) -> Page:
    """Put trainings side by side, with what each really guarantees.

    Privacy: shows attack and utility figures, which are outside epsilon; no record
    text, no secret, no training loss.

    Args:
        report: the trainings.
        next_steps: what a reader will want to do now, one sentence each.
    """
    rows, failed = comparison_rows(report), len(report.failed)
    few = {c.name: c for c in report.finished} if len(report.cells) <= FEW else {}
    first = list({cell.title: cell for cell in reversed(report.finished)}.values())[
        ::-1
    ]
    headlines = tuple(_headline(cell) for cell in few.values())
    gates = tuple(_gate_fold(cell) for cell in first if cell.decision)
    cards = tuple(
        replace(card_page(cell.card), title=cell.title, label="")
        for cell in first
        if cell.card
    )
    return page(
        section("", Headlines(items=headlines) if headlines else None),
        section(
            "What did not finish",
            *(
                Notice(title=f"{cell.name}:", text=cell.failure, tone=Tone.BLOCK)
                for cell in report.failed
            ),
        ),
        section("Side by side", *comparison_tables(report, rows)),
        section("Against the reference", _paired(paired_rows(report))),
        section("What privacy costs", *side_by_side(*trade_off_plots(report, rows))),
        section("While training", *side_by_side(*_trace_plots(report.finished))),
        *_leak_sections(few),
        section("What models say", *_samples(few)),
        section("Every training", _every_training(report)),
        section("What it spent", _spent(report)),
        section("Gate decisions", _folds(gates, open_failed=True)),
        section("Privacy cards", _folds(cards)),
        section(
            "What to do next",
            Bullets(items=tuple(next_steps), ordered=True) if next_steps else None,
        ),
        label="dptune comparison",
        title=report.title,
        subtitle=report.intro,
        chip=Chip(text=f"{failed} FAILED", tone=Tone.BLOCK) if failed else None,
    )


def _samples(few: Mapping[str, CellResult]) -> tuple[Block, ...]:
    """Return completions of the same prompts by all models, the base first."""
    shown = {name: cell.samples for name, cell in few.items() if cell.samples}
    tables = samples_tables(shown)
    return (Prose(paragraphs=(SAMPLES_NOTE,)), *tables) if tables else ()


def _leak_sections(few: Mapping[str, CellResult]) -> Iterator[Section | None]:
    """Return figures of exposure and membership where there is room for each."""
    yield section(
        "Does the model know the planted secrets?",
        *side_by_side(
            *(
                Plot(svg=exposure_plot(cell.measured, title=name), title=name)
                for name, cell in few.items()
                if cell.measured and cell.measured.canaries
            ),
            caption=EXPOSURE_CAPTION,
        ),
    )
    yield section(
        "Can a member of the training data be told apart?",
        *side_by_side(
            *(
                Plot(svg=roc_plot(cell.membership, title=name), title=name)
                for name, cell in few.items()
                if cell.membership
            ),
            caption=ROC_CAPTION,
        ),
    )


def _every_training(report: ComparisonReport) -> Table | None:
    """Return a line for each training."""
    return table_of(
        report.cells,
        ("Training", lambda c: c.name),
        ("Utility", _utility),
        (
            "Exposure",
            lambda c: (
                number(exposure_means(c.measured).planted) if c.measured else MISSING
            ),
        ),
        (
            "Certified ε",
            lambda c: epsilon(c.certificate.epsilon) if c.certificate else MISSING,
        ),
        (
            "Time",
            lambda c: MISSING if c.seconds is None else duration(c.seconds),
        ),
        caption="Time in training steps alone. A training that was "
        "interrupted counts the steps that it kept.",
    )


def _spent(report: ComparisonReport) -> Facts | None:
    """Return what a sweep spent; trainings that were registered say it themselves."""
    if len(report.cells) < 2 or any(cell.version for cell in report.cells):
        return None
    return facts(
        (
            "All trainings together",
            _endless(report.total_epsilon),
            "planned, all trainings composed, charged to one data set as a sweep",
        ),
        ("Those with noise", _endless(report.private_epsilon)),
    )


def cell_page(cell: CellResult) -> Page:
    """Show one training of a comparison as its card does, with its row."""
    alone = ComparisonReport(name="cell", title=cell.name, cells=(cell,))
    return replace(compare_page(alone), label="Training of a comparison")


def _headline(cell: CellResult) -> Headline:
    """Return what one training comes to."""
    utility, membership = cell.utility, cell.membership
    classifies = utility is not None and utility.accuracy is not None
    means = exposure_means(cell.measured) if cell.measured else None
    best = membership.strongest() if membership else None
    registered = f" · version {cell.version}" if cell.version else ""
    return Headline(
        title=cell.title,
        subtitle=f"{cell.recipe}{registered}",
        chip=verdict_chip(cell.outcome or "not decided"),
        reason=headline_reason(cell.decision)
        if cell.decision
        else ("" if cell.outcome else "The gate has not decided on this training."),
        figures=facts(
            (
                "Test perplexity",
                number(utility.perplexity),
                f"base model {number(utility.base_perplexity)}",
            )
            if utility and not classifies
            else None,
            (
                "Test accuracy",
                percent(utility.accuracy),
                f"base model {percent(utility.base_accuracy)}",
            )
            if utility and classifies
            else None,
            (
                "Mean exposure",
                f"{number(means.planted)} bits",
                f"held out {number(means.held_out)}\n{p_value(means.p_value)}",
            )
            if means and means.planted is not None
            else None,
            (
                f"TPR at {percent(best.low_fpr)} FPR",
                percent(best.tpr_at_low_fpr),
                f"blind {percent(membership.blind.tpr_at_low_fpr)}",
            )
            if best and membership
            else None,
        ),
        claims=facts(*((sentence_case(c.label), epsilon_text(c)) for c in cell.claims)),
    )


def _folds(pages: tuple[Page, ...], *, open_failed: bool = False) -> Folds | None:
    """Return pages to be opened, if there are any."""
    return Folds(items=pages, open_failed=open_failed) if pages else None


def _gate_fold(cell: CellResult) -> Page:
    """Return one training's criteria, to be folded."""
    decision = cell.decision
    if decision is None:
        return Page(title=cell.title)
    total = len(decision.criteria)
    return page(
        section("Criteria", criteria_table(decision)),
        section("What would change it", change_bullets(decision)),
        title=cell.title,
        label=f"{len(decision.failed())} of {total} criteria not met",
        chip=verdict_chip(decision.outcome),
    )


def _trace_plots(cells: Sequence[CellResult]) -> tuple[Plot, ...]:
    """Draw one traced training of every recipe: first seed, smallest budget."""
    traced: dict[str, CellResult] = {}
    for cell in cells:
        if cell.trace:
            traced.setdefault(cell.label, cell)
    if not traced:
        return ()
    plot = Plot(
        svg=steps_to_utility(list(traced.values())),
        title="Steps to utility",
        caption="Measured on some held-out records; steps of all stages of a "
        "training are counted through, and steps of different recipes are not "
        "equally expensive.",
    )
    return (plot, *exposure_plots({c.title: c.trace for c in traced.values()}))


def _paired(rows: Sequence[PairedRow]) -> Table | None:
    """Return the paired differences."""
    if not rows:
        return None
    beyond = {True: "yes", False: "no", None: MISSING}
    return table_of(
        rows,
        ("Recipe", lambda r: r.label),
        ("ε", lambda r: number(r.target_epsilon)),
        (
            f"Nats per token more than {rows[0].reference}",
            lambda r: spread_text(r.change),
        ),
        (
            "95 % over records",
            lambda r: between(r.interval),
        ),
        ("Better", _better),
        ("Beyond the deviations", lambda r: beyond[r.beyond_spread]),
        caption="Differences on the same held-out records, per shared seed; minus "
        "is better. The interval comes from records resampled in pairs and says "
        "nothing of training noise. Beyond the deviations: the means lie further "
        "apart than both standard deviations over seeds together.",
    )


def _better(row: PairedRow) -> Cell:
    """Say who is better, as far as the records can tell."""
    if row.interval.high < 0:
        return Chip(text="better", tone=Tone.PASS)
    if row.interval.low > 0:
        return Chip(text="worse", tone=Tone.BLOCK)
    return Chip(text="no difference shown", tone=Tone.NEUTRAL)


def _utility(cell: CellResult) -> Cell:
    """Return what a training is good for, or that it failed."""
    if cell.failure:
        return Chip(text="FAILED", tone=Tone.BLOCK)
    if cell.utility is None:
        return MISSING
    if cell.utility.accuracy is not None:
        return percent(cell.utility.accuracy)
    return number(cell.utility.perplexity)


def _endless(value: float | None) -> str:
    """Return an epsilon; None is infinite."""
    return epsilon(math.inf if value is None else value)
