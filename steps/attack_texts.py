"""Step: attack a model that this project did not train."""

from typing import Annotated

from zenml import step

from dptune.attacks.settings import AttackSettings
from dptune.config import PerformanceSettings
from dptune.results import MembershipReport
from dptune.workflow.external_audit import ForeignModel, attack_foreign
from steps._caching import NEVER
from steps._progress import progress_of_many, say


@step(enable_cache=False, cache_policy=NEVER)
def attack_texts(
    foreign: ForeignModel, attacks: AttackSettings, performance: PerformanceSettings
) -> Annotated[MembershipReport, "membership"]:
    """Return how well its members are told from others."""
    with progress_of_many() as tell:
        return attack_foreign(
            foreign, attacks=attacks, performance=performance, say=say, tell=tell
        )
