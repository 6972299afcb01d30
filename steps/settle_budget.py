"""Step: give back what the run never drew, and report the data set's budget."""

from typing import Annotated

from zenml import log_metadata, step

from dptune.accounting.ledger import PrivacyLedger
from dptune.planning import RunPlan
from dptune.results import BudgetReport, BudgetReservation
from infra.workspace import current_workspace
from steps._alerting import alert_budget, budget_share
from steps._caching import NEVER


@step(enable_cache=False, cache_policy=NEVER, on_success=alert_budget)
def settle_budget(
    reservation: BudgetReservation, plan: RunPlan, ledger: PrivacyLedger
) -> Annotated[BudgetReport, "budget"]:
    """Return what all runs on the data set have spent together, and this one's course.

    The ledger is that of the last stage: nothing of this run is drawn after it.
    """
    from dptune.workflow.budget import settle_budget as settle

    url = current_workspace().budget_url
    report = settle(url, reservation, delta=plan.target_delta, ledger=ledger)
    log_metadata({"data_set": report.data_set, "budget_share": budget_share(report)})
    return report
