"""The tables of a comparison: for the page, for the terminal, and as CSV."""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dptune.reports.blocks import Cell, Chip, Table, table, verdict_chip
from dptune.reports.card.page import STATUS_TONES, epsilon_text
from dptune.reports.comparison import (
    CellResult,
    ComparisonReport,
    ComparisonRow,
    Spread,
    comparison_rows,
)
from dptune.reports.formatting import (
    MISSING,
    between,
    epsilon,
    interval,
    number,
    p_value,
    percent,
    sentence_case,
    upper,
    words,
)
from dptune.reports.pages.attacks import OUTSIDE_EPSILON

FEW = 4
"""So many trainings have headlines, columns and figures of their own."""
_NOT_TUNED = "No fine-tuning"
_NO_CLAIM = "none of this notion"
_STATISTICS = (
    "perplexity",
    "accuracy",
    "next_token_accuracy",
    "exposure",
    "held_out_exposure",
    "base_exposure",
    "membership",
    "blind",
    "seconds",
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_POINT = (
    *("stage", "step", "perplexity", "sensitive_perplexity", "ordinary_perplexity"),
    *("accuracy", "exposure", "held_out_exposure"),
)


@dataclass(frozen=True)
class _Measure:
    """One measure of all recipes: a column, or a line where there are few.

    Args:
        group: what it is about.
        name: its head.
        fill: what a recipe's cell says.
        untuned: what that of the model before fine-tuning says.
        detail: whether there is room for it only where there are few recipes.
    """

    group: str
    name: str
    fill: Callable[[ComparisonRow], Cell]
    untuned: Cell = MISSING
    detail: bool = False


def comparison_tables(
    report: ComparisonReport, rows: Sequence[ComparisonRow]
) -> tuple[Table, ...]:
    """Return what each recipe keeps, leaks, guarantees and costs.

    Returns:
        One table with a column for each recipe, or two with a line for each where there
        are many. Measures that no recipe has are left out.
    """
    seeds = max((row.seconds.count for row in rows if row.seconds), default=1)
    majority = [c.utility.majority_accuracy for c in report.finished if c.utility]
    constant = next((value for value in majority if value is not None), None)
    leaks = (
        f"Mean ± standard deviation over {seeds} seeds. "
        if seeds > 1
        else "One seed, which says nothing of the spread. "
    )
    if constant is not None:
        leaks += f"Always naming the most frequent class: {percent(constant)} right. "
    leaks += (
        "Exposure in bits; against chance: the smallest p-value of any seed. "
        f"{OUTSIDE_EPSILON}"
    )
    promises = (
        "Epsilons of different claims must not be compared with each other; "
        "nominal figures are the papers' own and guarantee nothing. Gate: what the "
        "policy would say to each seed. Time and memory of training, relative to "
        f"{report.baseline or 'nothing: there is no baseline'}."
    )
    both = [
        [m for m in measures if any(m.fill(row) != MISSING for row in rows)]
        for measures in (_leakage(report, rows), _guarantees(rows))
    ]
    if len(report.cells) <= FEW:
        lines = [*both[0], *both[1]]
        wide = table(
            ("Measure", *map(_title, rows), _NOT_TUNED),
            ((m.name, *map(m.fill, rows), m.untuned) for m in lines),
            caption=f"{leaks} {promises}",
        )
        return (replace(wide, groups=tuple(Counter(m.group for m in lines).items())),)
    found = []
    for measures, caption in zip(both, (leaks, promises), strict=True):
        shown = [m for m in measures if not m.detail]
        body: list[tuple[Cell, ...]] = [(_NOT_TUNED, *(m.untuned for m in shown))]
        body += [(_title(row), *(m.fill(row) for m in shown)) for row in rows]
        heads = ("Recipe", *(m.name for m in shown))
        found.append(table(heads, body, caption=caption))
    return tuple(found)


def rows_csv(report: ComparisonReport) -> str:
    """Return one line for each recipe and budget; empty cells were not measured."""
    lines = [_row_values(row) for row in comparison_rows(report)]
    return _csv(list(lines[0]), [list(line.values()) for line in lines])


def cells_csv(report: ComparisonReport) -> str:
    """Return one line for each training, the failed ones with their reason."""
    lines = [_cell_values(cell) for cell in report.cells]
    return _csv(list(lines[0]), [list(line.values()) for line in lines])


def trace_csv(report: ComparisonReport) -> str:
    """Return one line for each checkpoint that was measured on the way."""
    cells = ("label", "recipe", "target_epsilon", "seed")
    lines = [
        [getattr(cell, name) for name in cells]
        + [getattr(point, name) for name in _POINT]
        for cell in report.cells
        for point in cell.trace
    ]
    return _csv([*cells, *_POINT], lines)


def spread_text(value: Spread | None, *, as_percent: bool = False) -> str:
    """Return `17.2 ± 0.31`, without the deviation for a single seed."""
    if value is None:
        return MISSING
    scale, unit = (100, " %") if as_percent else (1, "")
    if value.std is None or not math.isfinite(value.mean):
        form = percent if as_percent else number
        return _whole(form(value.mean))
    mean, std = number(scale * value.mean), number(scale * value.std, digits=2)
    return _whole(f"{mean} ± {std}{unit}")


def claim_cell(row: ComparisonRow) -> str:
    """Return epsilon with the claim that it belongs to."""
    if row.certificate is None:
        return _NO_CLAIM if row.seconds else MISSING
    if math.isinf(row.certificate.epsilon):
        return epsilon(row.certificate.epsilon)
    delta = _whole(f"δ {upper(row.certificate.delta)}")
    return f"{epsilon(row.certificate.epsilon)}, {row.certificate.label}, {delta}"


def nominal_cell(row: ComparisonRow) -> str:
    """Return the papers' figure, with the interval of the missing rate if known."""
    text = epsilon(row.nominal_epsilon)
    if row.nominal_interval is None:
        return text
    return f"{text} ({between(row.nominal_interval)})"


def _leakage(
    report: ComparisonReport, rows: Sequence[ComparisonRow]
) -> Iterator[_Measure]:
    """Name what recipes keep and leak, and what no fine-tuning comes to."""
    rates = {row.low_fpr for row in rows if row.low_fpr is not None}
    at = _whole(f"at {percent(min(rates))} FPR") if len(rates) == 1 else "at a low FPR"
    base = next((c.utility for c in report.finished if c.utility), None)
    bits = next((r.base_exposure for r in rows if r.base_exposure), None)
    keeps, knows, tells = "Utility", "Canary exposure (bits)", "Membership inference"
    yield _Measure(
        keeps,
        "Test perplexity",
        lambda r: spread_text(r.perplexity),
        number(base.base_perplexity) if base else MISSING,
    )
    yield _Measure(
        keeps,
        "Accuracy",
        lambda r: spread_text(r.accuracy, as_percent=True),
        percent(base.base_accuracy) if base else MISSING,
    )
    yield _Measure(
        keeps,
        "Next token",
        lambda r: spread_text(r.next_token_accuracy, as_percent=True),
        percent(base.base_token_accuracy) if base else MISSING,
    )
    yield _Measure(
        knows,
        "Exposure, planted",
        lambda r: spread_text(r.exposure),
        spread_text(bits),
    )
    yield _Measure(knows, "held out", lambda r: spread_text(r.held_out_exposure))
    yield _Measure(knows, "against chance", lambda r: p_value(r.exposure_p_value))
    yield _Measure(knows, "Canaries", _canaries, detail=True)
    yield _Measure(
        tells, f"TPR {at}", lambda r: spread_text(r.membership, as_percent=True)
    )
    yield _Measure(tells, "TPR interval", _tpr_interval, detail=True)
    yield _Measure(tells, "blind", lambda r: spread_text(r.blind, as_percent=True))
    yield _Measure(
        tells,
        "Strongest attack",
        lambda r: (
            ", ".join(
                dict.fromkeys(
                    words(c.membership.strongest().name)
                    for c in r.cells
                    if c.membership
                )
            )
            or MISSING
        ),
        detail=True,
    )
    yield _Measure(tells, "AUC", lambda r: spread_text(r.membership_auc), detail=True)
    yield _Measure(tells, "Blind AUC", lambda r: spread_text(r.blind_auc), detail=True)


def _guarantees(rows: Sequence[ComparisonRow]) -> Iterator[_Measure]:
    """Name what recipes guarantee, what their papers would say, what they cost."""
    holds, costs = "What is guaranteed", "What it costs"
    nothing = "0: nothing was learned from the corpus"
    yield _Measure(holds, "Certified ε", claim_cell, nothing)
    yield _Measure(
        holds,
        "Status",
        lambda r: (
            Chip(text=r.certificate.status, tone=STATUS_TONES[r.certificate.status])
            if r.certificate
            else MISSING
        ),
    )
    for label in dict.fromkeys(c.label for row in rows for c in row.claims):
        claim = partial(_claim, label=label)
        yield _Measure("Every claim", sentence_case(label), claim, detail=True)
    paper = "Nominal: the papers' formulas, no guarantee"
    yield _Measure(paper, _whole("Nominal ε"), nominal_cell)
    yield _Measure("What the gate says", "Gate", _gates)
    yield _Measure(costs, "Time", lambda r: _times(r.relative_time), "0")
    yield _Measure(costs, "Memory", lambda r: _times(r.relative_memory))


def _claim(row: ComparisonRow, *, label: str) -> str:
    """Return epsilon, delta and status of one claim."""
    found = (epsilon_text(c) for c in row.claims if c.label == label)
    return next(found, MISSING)


def _canaries(row: ComparisonRow) -> str:
    """Return number, copies and setting of the planted canaries."""
    found = {
        f"{len(planted)} × {max(c.insertions for c in planted)} copies, "
        f"{words(cell.measured.setting)}"
        if planted
        else "none"
        for cell in row.cells
        if cell.measured
        for planted in [cell.measured.planted()]
    }
    return "; ".join(sorted(found)) or MISSING


def _tpr_interval(row: ComparisonRow) -> str:
    """Return the interval of the strongest attack; several seeds have a deviation."""
    found = [c.membership.strongest() for c in row.cells if c.membership]
    if len(found) != 1:
        return MISSING
    return interval(found[0].tpr_at_low_fpr_interval, as_percent=True)


def _title(row: ComparisonRow) -> str:
    """Name recipe and budget, which stay in one line."""
    return row.title.replace("ε ", "ε\u00a0")


def _gates(row: ComparisonRow) -> Cell:
    """Return the outcome, or how many of each."""
    kinds = dict.fromkeys(row.outcomes)
    if len(kinds) == 1:
        return verdict_chip(row.outcomes[0])
    return ", ".join(f"{row.outcomes.count(k)} {k}" for k in kinds) or MISSING


def _times(value: float | None) -> str:
    """Return a ratio."""
    return MISSING if value is None else f"{number(value)} ×"


def _whole(text: str) -> str:
    """Keep a figure and its unit in one line."""
    return text.replace(" ", "\u00a0")


def _row_values(row: ComparisonRow) -> dict[str, object]:
    """Name what a line of the table holds."""
    claim, interval = row.certificate, row.nominal_interval
    values: dict[str, object] = {
        "label": row.label,
        "recipe": row.recipe,
        "target_epsilon": row.target_epsilon,
        "num_seeds": row.seconds.count if row.seconds else 0,
        "num_failed": row.num_failed,
    }
    for name in _STATISTICS:
        value: Spread | None = getattr(row, name)
        values[f"{name}_mean"] = value.mean if value else None
        values[f"{name}_std"] = value.std if value else None
    return values | {
        "exposure_p_value": row.exposure_p_value,
        "low_fpr": row.low_fpr,
        "notion": claim.notion if claim else None,
        "relation": claim.relation if claim else None,
        "certified_epsilon": claim.epsilon if claim else None,
        "delta": claim.delta if claim else None,
        "status": claim.status if claim else None,
        "nominal_epsilon": row.nominal_epsilon,
        "nominal_low": interval.low if interval else None,
        "nominal_high": interval.high if interval else None,
        "relative_time": row.relative_time,
        "relative_memory": row.relative_memory,
        "gate": " ".join(row.outcomes),
    }


def _cell_values(cell: CellResult) -> dict[str, object]:
    """Name what one training's line holds."""
    utility, claim = cell.utility, cell.certificate
    return {
        "label": cell.label,
        "recipe": cell.recipe,
        "target_epsilon": cell.target_epsilon,
        "seed": cell.seed,
        "failure": cell.failure,
        "perplexity": utility.perplexity
        if utility and utility.accuracy is None
        else None,
        "accuracy": utility.accuracy if utility else None,
        "nll_per_token": utility.nll_per_token if utility else None,
        "seconds": cell.seconds,
        "peak_memory_bytes": cell.peak_memory_bytes,
        "certified_epsilon": claim.epsilon if claim else None,
        "nominal_epsilon": cell.nominal_epsilon,
    }


def _csv(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table; what is not there is left empty."""
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_cell_text(value) for value in row] for row in rows)
    return sink.getvalue()


def _cell_text(value: object) -> object:
    """Write text so that no spreadsheet computes it: as a formula it could send data.

    Numbers stay numbers, negative ones too.

    References: OWASP, CSV Injection,
    https://owasp.org/www-community/attacks/CSV_Injection.
    """
    if not isinstance(value, str):
        return "" if value is None else value
    plain = value.replace("\r", " ")  # it ends a row, and is not quoted
    return f"'{plain}" if value.startswith(_FORMULA) else plain
