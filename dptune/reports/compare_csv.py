"""A comparison as CSV tables: its rows, every training, every checkpoint."""

import csv
import io
from collections.abc import Iterable, Sequence

from dptune.reports.cells import (
    CellResult,
    ComparisonReport,
    ComparisonRow,
    Spread,
    comparison_rows,
)

_SPREADS = (
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


def rows_csv(report: ComparisonReport) -> str:
    """Return one line for each recipe and budget; empty cells were not measured."""
    heads = [
        *("label", "recipe", "target_epsilon", "num_seeds", "num_failed"),
        *(f"{name}_{part}" for name in _SPREADS for part in ("mean", "std")),
        *("exposure_p_value", "low_fpr", "notion", "relation", "certified_epsilon"),
        *("delta", "status", "nominal_epsilon", "nominal_low", "nominal_high"),
        *("relative_time", "relative_memory", "gate"),
    ]
    return _csv(heads, [_row(row) for row in comparison_rows(report)])


def cells_csv(report: ComparisonReport) -> str:
    """Return one line for each training, the failed ones with their reason."""
    heads = [
        *("label", "recipe", "target_epsilon", "seed", "failure", "perplexity"),
        *("accuracy", "nll_per_token", "seconds", "peak_memory_bytes"),
        *("certified_epsilon", "nominal_epsilon"),
    ]
    return _csv(heads, [_cell(cell) for cell in report.cells])


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


def _row(row: ComparisonRow) -> list[object]:
    """Fill one line of the table."""
    spreads = [getattr(row, name) for name in _SPREADS]
    claim, interval = row.certificate, row.nominal_interval
    return [
        *(row.label, row.recipe, row.target_epsilon),
        *(row.seconds.count if row.seconds else 0, row.num_failed),
        *(part for value in spreads for part in _parts(value)),
        *(row.exposure_p_value, row.low_fpr),
        *(
            (claim.notion, claim.relation, claim.epsilon, claim.delta, claim.status)
            if claim
            else (None,) * 5
        ),
        row.nominal_epsilon,
        *((interval.low, interval.high) if interval else (None, None)),
        *(row.relative_time, row.relative_memory, " ".join(row.outcomes)),
    ]


def _cell(cell: CellResult) -> list[object]:
    """Fill one training's line."""
    utility, claim = cell.utility, cell.certificate
    return [
        *(cell.label, cell.recipe, cell.target_epsilon, cell.seed, cell.failure),
        utility.perplexity if utility and utility.accuracy is None else None,
        utility.accuracy if utility else None,
        utility.nll_per_token if utility else None,
        *(cell.seconds, cell.peak_memory_bytes),
        *(claim.epsilon if claim else None, cell.nominal_epsilon),
    ]


def _parts(value: Spread | None) -> tuple[float | None, float | None]:
    """Return mean and standard deviation."""
    return (value.mean, value.std) if value else (None, None)


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
