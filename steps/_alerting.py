"""ZenML hooks that alert: of a failed step, a verdict, a budget that ends."""

import logging
from typing import Any

from zenml import get_step_context
from zenml.client import Client

from dptune.results import BudgetReport
from infra.alerts import BUDGET_SHARE, Alert, Event, alert_refusal, send_alert

_LOG = logging.getLogger(__name__)
_PASS = "PASS"  # noqa: S105 - an outcome


def alert_failure(exception: BaseException) -> None:
    """Hook: a step failed for good."""
    try:
        context = get_step_context()
        name, step = context.pipeline_run.name, context.step_run.name
    except RuntimeError:
        name, step = "a run", ""
    alert_refusal(exception, run=name, step=step)


def alert_verdict() -> None:
    """Hook of the gate: the version passed, or was refused."""
    found = _metadata()
    if "gate" not in found:
        return
    passed = found["gate"] == _PASS
    name = get_step_context().pipeline_run.name
    fields = {"run": name, "gate": str(found["gate"])}
    fields |= {k: str(found[k]) for k in ("model", "criteria") if found.get(k)}
    alert = Alert(
        event=Event.SUCCESS if passed else Event.REFUSAL,
        title=f"{name} {'passed' if passed else 'was refused by the gate'}",
        fields=fields,
    )
    send_alert(alert)


def alert_budget() -> None:
    """Hook of the last accounting step: a budget has little left."""
    found = _metadata()
    share = found.get("budget_share")
    if not isinstance(share, float) or share < BUDGET_SHARE:
        return
    data_set = str(found.get("data_set", ""))
    alert = Alert(
        event=Event.BUDGET,
        title=f"{share:.0%} of the budget of {data_set} is spent",
        fields={"data set": data_set, "run": get_step_context().pipeline_run.name},
    )
    send_alert(alert)


def budget_share(report: BudgetReport) -> float:
    """Return the largest part of any grant that is spent; 0 where nothing is granted.

    A grant of nothing counts as spent; an infinite epsilon as all of it and more.
    """
    shares = [
        line.spent / line.allowance if line.allowance else 1.0
        for line in report.lines
        if line.allowance is not None
    ]
    return min(max(shares, default=0.0), 9.99)


def _metadata() -> dict[str, Any]:
    """Read what the step that just ended logged of itself."""
    try:
        step = Client().get_run_step(get_step_context().step_run.id)
    except Exception as error:  # noqa: BLE001 - an alert never fails a run
        _LOG.warning("no alert: the step cannot be read (%s)", type(error).__name__)
        return {}
    return dict(step.run_metadata)
