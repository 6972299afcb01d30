"""The page of a comparison: one table, what stands behind it, figures, and cards."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dptune.privacy import CertificateStatus
from dptune.reports.attack_pages import OUTSIDE_EPSILON
from dptune.reports.blocks import (
    Block,
    Cell,
    Chip,
    Notice,
    Page,
    Section,
    Table,
    Tone,
    facts,
    table,
    verdict_chip,
)
from dptune.reports.card_page import card_page
from dptune.reports.cells import (
    CellResult,
    ComparisonReport,
    ComparisonRow,
    PairedRow,
    Spread,
    comparison_rows,
    paired_rows,
)
from dptune.reports.compare_plots import trace_plots, trade_off_plots
from dptune.reports.formatting import (
    MISSING,
    duration,
    epsilon,
    number,
    p_value,
    share,
)

_TONES = {
    CertificateStatus.CERTIFIED: Tone.PASS,
    CertificateStatus.CONDITIONAL: Tone.INCONCLUSIVE,
    CertificateStatus.EMPIRICAL: Tone.NEUTRAL,
    CertificateStatus.NONE: Tone.BLOCK,
}
_NOT_TUNED = "No fine-tuning"
_NO_CLAIM = "none of this notion"


@dataclass(frozen=True)
class _Column:
    """A column of the main table.

    Args:
        name: its head.
        fill: what a row says.
        untuned: what it says of the model before fine-tuning.
    """

    name: str
    fill: Callable[[ComparisonRow], Cell]
    untuned: Cell = MISSING


def compare_page(report: ComparisonReport) -> Page:
    """Put recipes side by side, row by row, with what each really guarantees.

    Privacy: shows attack and utility figures, which are outside epsilon; no record
    text, no secret, no training loss.
    """
    rows = comparison_rows(report)
    found = (
        Section(title="What did not finish", blocks=_failures(report)),
        Section(title="Side by side", blocks=_side_by_side(report, rows)),
        Section(title="Against the reference", blocks=_paired(paired_rows(report))),
        Section(title="What privacy costs", blocks=trade_off_plots(report, rows)),
        Section(title="While training", blocks=trace_plots(report)),
        Section(title="Every training", blocks=(_cells(report),)),
        Section(title="What it spent", blocks=_spent(report)),
    )
    failed = len(report.failed)
    return Page(
        kicker="dptune comparison",
        title=report.title,
        lede=report.intro,
        chip=Chip(text=f"{failed} FAILED", tone=Tone.BLOCK) if failed else None,
        sections=tuple(section for section in found if section.blocks),
        folds=tuple(_card(cell) for cell in _first_seeds(report.finished) if cell.card),
        folds_title="Privacy cards",
    )


def cell_page(cell: CellResult) -> Page:
    """Show one training of a comparison as its card does, with its row."""
    alone = ComparisonReport(name="cell", title=_cell_name(cell), cells=(cell,))
    return replace(compare_page(alone), kicker="Training of a comparison")


def leakage_table(report: ComparisonReport, rows: Sequence[ComparisonRow]) -> Table:
    """Return what each recipe keeps and what it leaks, beside the untuned model."""
    seeds = max((_count(row) for row in rows), default=1)
    over = "One seed, which says nothing of the spread. "
    if seeds > 1:
        over = f"Mean ± standard deviation over {seeds} seeds. "
    return _table(
        _leakage_columns(report, rows),
        rows,
        caption=f"{over}{_majority(report)}Exposure in bits; against chance: the "
        f"smallest p-value of any seed. {OUTSIDE_EPSILON}",
    )


def guarantee_table(report: ComparisonReport, rows: Sequence[ComparisonRow]) -> Table:
    """Return what each recipe guarantees, what its paper would say, what it costs."""
    return _table(
        _guarantee_columns(),
        rows,
        caption="Epsilons of different claims must not be compared with each other; "
        "nominal figures are the papers' own and guarantee nothing. Gate: what the "
        "policy would say to each seed. Time and memory of training, relative to "
        f"{report.baseline or 'nothing: there is no baseline'}.",
    )


def _table(
    columns: Sequence[_Column], rows: Sequence[ComparisonRow], *, caption: str
) -> Table:
    """Fill a table; columns that no row has are left out."""
    shown = [c for c in columns if any(_text(c.fill(row)) != MISSING for row in rows)]
    body: list[tuple[Cell, ...]] = [(_NOT_TUNED, *(c.untuned for c in shown))]
    body += [(_row_name(row), *(c.fill(row) for c in shown)) for row in rows]
    return table(("Recipe", *(c.name for c in shown)), body, caption=caption)


def spread_text(value: Spread | None, *, as_share: bool = False) -> str:
    """Return `17.2 ± 0.31`, without the spread for a single seed."""
    if value is None:
        return MISSING
    form = share if as_share else number
    if value.std is None:
        return _whole(form(value.mean))
    if as_share:
        text = f"{number(100 * value.mean)} ± {number(100 * value.std, digits=2)} %"
        return _whole(text)
    return _whole(f"{number(value.mean)} ± {number(value.std, digits=2)}")


def claim_cell(row: ComparisonRow) -> str:
    """Return epsilon with the claim that it belongs to."""
    if row.certificate is None:
        return _NO_CLAIM if row.seconds else MISSING
    if math.isinf(row.certificate.epsilon):
        return epsilon(row.certificate.epsilon)
    delta = _whole(f"δ {number(row.certificate.delta)}")
    return f"{number(row.certificate.epsilon)}, {row.certificate.label}, {delta}"


def nominal_cell(row: ComparisonRow) -> str:
    """Return the papers' figure, with the interval of the missing rate if known."""
    text = epsilon(row.nominal_epsilon)
    if row.nominal_interval is None:
        return text
    low, high = row.nominal_interval.low, row.nominal_interval.high
    return f"{text} ({number(low)} to {number(high)})"


def _leakage_columns(
    report: ComparisonReport, rows: Sequence[ComparisonRow]
) -> list[_Column]:
    """Name the columns of the first table, and what no fine-tuning comes to."""
    rates = {row.low_fpr for row in rows if row.low_fpr is not None}
    at = _whole(f"at {share(min(rates))} FPR") if len(rates) == 1 else "at a low FPR"
    utility = next((c.utility for c in report.finished if c.utility), None)
    base = next((r.base_exposure for r in rows if r.base_exposure), None)
    return [
        _Column(
            "Test perplexity",
            lambda r: spread_text(r.perplexity),
            number(utility.base_perplexity) if utility else MISSING,
        ),
        _Column(
            "Accuracy",
            lambda r: spread_text(r.accuracy, as_share=True),
            share(utility.base_accuracy) if utility else MISSING,
        ),
        _Column(
            "Next token",
            lambda r: spread_text(r.next_token_accuracy, as_share=True),
            share(utility.base_token_accuracy) if utility else MISSING,
        ),
        _Column(
            "Exposure, planted",
            lambda r: spread_text(r.exposure),
            number(base.mean) if base else MISSING,
        ),
        _Column("held out", lambda r: spread_text(r.held_out_exposure)),
        _Column("against chance", lambda r: p_value(r.exposure_p_value)),
        _Column(
            f"Members found {at}", lambda r: spread_text(r.membership, as_share=True)
        ),
        _Column("blind", lambda r: spread_text(r.blind, as_share=True)),
    ]


def _guarantee_columns() -> list[_Column]:
    """Name the columns of the second table."""
    return [
        _Column("Certified ε", claim_cell, "0: nothing was learned from the corpus"),
        _Column("Status", _status),
        _Column(_whole("Nominal ε"), nominal_cell),
        _Column("Gate", _gates),
        _Column("Time", lambda r: _times(r.relative_time), "0"),
        _Column("Memory", lambda r: _times(r.relative_memory)),
    ]


def _row_name(row: ComparisonRow) -> str:
    """Name recipe and budget."""
    if row.target_epsilon is None:
        return row.label
    return f"{row.label}, {_whole(f'ε {number(row.target_epsilon)}')}"


def _status(row: ComparisonRow) -> Cell:
    """Return how the claim is founded."""
    if row.certificate is None:
        return MISSING
    status = row.certificate.status
    return Chip(text=status.value, tone=_TONES[status])


def _gates(row: ComparisonRow) -> Cell:
    """Return the outcome, or how many of each."""
    kinds = dict.fromkeys(row.outcomes)
    if len(kinds) == 1:
        return verdict_chip(row.outcomes[0])
    return ", ".join(f"{row.outcomes.count(k)} {k}" for k in kinds) or MISSING


def _times(value: float | None) -> str:
    """Return a ratio."""
    return MISSING if value is None else f"{number(value)} ×"


def _count(row: ComparisonRow) -> int:
    """Return how many seeds are behind a row."""
    return row.seconds.count if row.seconds else 0


def _majority(report: ComparisonReport) -> str:
    """Say what a classifier gets that looks at nothing."""
    found = [c.utility.majority_accuracy for c in report.finished if c.utility]
    known = [value for value in found if value is not None]
    if not known:
        return ""
    return f"Always naming the most frequent class: {share(known[0])} right. "


def _whole(text: str) -> str:
    """Keep a figure and its unit in one line."""
    return text.replace(" ", "\u00a0")


def _text(value: Cell) -> str:
    """Return what a cell says."""
    return value if isinstance(value, str) else value.text


def _side_by_side(
    report: ComparisonReport, rows: Sequence[ComparisonRow]
) -> tuple[Block, ...]:
    """Return both tables."""
    return (leakage_table(report, rows), guarantee_table(report, rows))


def _failures(report: ComparisonReport) -> tuple[Block, ...]:
    """Return a notice for every cell without a result."""
    return tuple(
        Notice(title=f"{_cell_name(cell)}:", text=cell.failure, tone=Tone.BLOCK)
        for cell in report.failed
    )


def _paired(rows: Sequence[PairedRow]) -> tuple[Block, ...]:
    """Return the paired differences."""
    if not rows:
        return ()
    beyond = {True: "yes", False: "no", None: MISSING}
    return (
        table(
            (
                "Recipe",
                "ε",
                f"Nats per token more than {rows[0].reference}",
                "95 % over records",
                "Better",
                "Beyond the spread",
            ),
            (
                (
                    row.label,
                    number(row.target_epsilon),
                    spread_text(row.change),
                    f"{number(row.interval.low)} to {number(row.interval.high)}",
                    _better(row),
                    beyond[row.beyond_spread],
                )
                for row in rows
            ),
            caption="Differences on the same held-out records, per shared seed; minus "
            "is better. The interval comes from records resampled in pairs and says "
            "nothing of training noise. Beyond the spread: the means lie further apart "
            "than both standard deviations over seeds together.",
        ),
    )


def _better(row: PairedRow) -> Cell:
    """Say who is better, as far as the records can tell."""
    if row.interval.high < 0:
        return Chip(text="better", tone=Tone.PASS)
    if row.interval.low > 0:
        return Chip(text="worse", tone=Tone.BLOCK)
    return Chip(text="no difference shown", tone=Tone.NEUTRAL)


def _cells(report: ComparisonReport) -> Table:
    """Return one line for every training."""
    return table(
        ("Training", "Utility", "Exposure", "Certified ε", "Time"),
        (_cell_row(cell) for cell in report.cells),
        caption="Time in training steps alone. A training that was interrupted counts "
        "the steps that it kept.",
    )


def _cell_row(cell: CellResult) -> tuple[Cell, ...]:
    """Return one training's line."""
    if cell.failure:
        mark = Chip(text="FAILED", tone=Tone.BLOCK)
        return (_cell_name(cell), mark, MISSING, MISSING, MISSING)
    one = comparison_rows(ComparisonReport(name="one", title="one", cells=(cell,)))[0]
    utility = (
        spread_text(one.accuracy, as_share=True)
        if one.accuracy
        else spread_text(one.perplexity)
    )
    return (
        _cell_name(cell),
        utility,
        spread_text(one.exposure),
        epsilon(one.certificate.epsilon) if one.certificate else MISSING,
        duration(cell.seconds) if cell.seconds is not None else MISSING,
    )


def _cell_name(cell: CellResult) -> str:
    """Name one training."""
    budget = "" if cell.target_epsilon is None else f", ε {number(cell.target_epsilon)}"
    return f"{cell.label}{budget}, seed {cell.seed}"


def _spent(report: ComparisonReport) -> tuple[Block, ...]:
    """Say what all trainings together cost the data set."""
    if len(report.cells) == 1:
        return ()
    total, private = (
        epsilon(math.inf if value is None else value)
        for value in (report.total_epsilon, report.private_epsilon)
    )
    notes = "planned, all trainings composed, charged to one data set as a sweep"
    return (
        facts(
            ("All trainings together", total, notes),
            ("Those with noise", private),
        ),
    )


def _first_seeds(cells: Sequence[CellResult]) -> list[CellResult]:
    """Keep one training of every recipe and budget."""
    found: dict[tuple[str, float | None], CellResult] = {}
    for cell in cells:
        found.setdefault((cell.label, cell.target_epsilon), cell)
    return list(found.values())


def _card(cell: CellResult) -> Page:
    """Return a card to be folded."""
    if cell.card is None:
        return Page(title=cell.label)
    page = card_page(cell.card)
    return replace(page, title=_cell_name(cell), kicker="")
