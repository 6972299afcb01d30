"""Step: put the cells of a comparison together, and log them beside each other."""

from typing import Annotated

from zenml import log_metadata, step
from zenml.client import Client

from dptune.reports.comparison import CellResult, ComparisonReport, comparison_rows
from dptune.reports.html import render_fragment
from dptune.reports.tables import cells_csv, rows_csv, trace_csv
from dptune.results import StageReport
from steps._caching import NEVER
from steps._figures import log_comparison


@step(enable_cache=False, cache_policy=NEVER)
def compare(
    plan: ComparisonReport, runs: dict[str, str], parent_run: str
) -> Annotated[ComparisonReport, "comparison"]:
    """Return the comparison with every result that there is.

    Args:
        plan: the comparison with a cell for each training, failed or without results.
        runs: pipeline runs of finished cells, by number of the cell.
        parent_run: MLflow run that those of the cells belong to.
    """
    cells = tuple(
        _finished(cell, runs[str(number)]) if str(number) in runs else cell
        for number, cell in enumerate(plan.cells)
    )
    report = plan.model_copy(update={"cells": cells})
    files = {
        "comparison.html": render_fragment(report.without_samples()),
        "comparison.csv": rows_csv(report),
        "cells.csv": cells_csv(report),
    }
    if any(cell.trace for cell in cells):
        files["trace.csv"] = trace_csv(report)
    log_comparison(parent_run, comparison_rows(report), files=files)
    log_metadata({"cells": len(cells), "failed": len(report.failed)})
    return report


def _finished(cell: CellResult, run_id: str) -> CellResult:
    """Load one cell, with what its stages took."""
    run = Client().get_pipeline_run(run_id)
    found: CellResult = run.steps["assess"].outputs["cell"][0].load()
    reports: list[StageReport] = [
        run.steps[name].outputs["stage_report"][0].load()
        for name in run.steps
        if name.startswith("train_")
    ]
    order = [stage.stage for stage in cell.stages]
    return found.with_stages(sorted(reports, key=lambda r: order.index(r.stage)))
