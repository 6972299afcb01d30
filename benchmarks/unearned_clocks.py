"""Ways by clocks and by the budget store; see `unearned.py`."""

import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from unearned import BOTH, BUDGET, CLOCK, COMMANDS, ENVIRONMENT, Answer, Play, way
from unearned_world import CLEAN, MODEL, SECOND, World, clock

from steps import _champions, _evidence

# clocks


def _shifted(days: float) -> Play:
    def play(world: World) -> Answer:
        with clock(timedelta(days=days)):
            return world.gate()

    return play


way(
    "clocks",
    "decided with a clock 300 days behind",
    rights=CLOCK,
    says="clock|after the decision",
)(_shifted(-300))
way(
    "clocks",
    "decided with a clock 300 days ahead",
    rights=CLOCK,
    says="evidence_age",
)(_shifted(300))


@way(
    "clocks",
    "refused with a clock behind, and back to it",
    rights=CLOCK,
    says="refused since|newest decision",
)
def _(world: World) -> Answer:
    """The refusal carries an earlier time than the pass that made it the champion."""
    with clock(timedelta(days=-30)):
        world.refused_now()
    return world.rollback("--to", CLEAN)


@way(
    "clocks",
    "promoted with a clock ahead, then another with the right one",
    rights=CLOCK,
    says="version 1 is the champion",
)
def _(world: World) -> Answer:
    """The trail must end with what was promoted last, whatever the clocks said."""
    with clock(timedelta(days=400)):
        world.rollback("--to", CLEAN)
        world.rollback("--to", SECOND)
    world.rollback("--to", CLEAN)
    last = _champions.champion(MODEL)
    return refused_if(last == CLEAN), f"refused version {last} is the champion"


def refused_if(fine: bool) -> int:  # noqa: FBT001 - reads as a word
    """Stand for the refusal that a state has no command for."""
    return int(fine)


@way(
    "clocks",
    "time zones of both ends of the world",
    rights=CLOCK,
    says="stays as old",
)
def _(world: World) -> Answer:
    ages = set()
    for zone in ("Pacific/Kiritimati", "Etc/GMT+12"):
        os.environ["TZ"] = zone
        time.tzset()
        strict = world.policy_file(max_evidence_age_days=1e-6)
        _, said = world.gate(policy=strict)
        ages.add("oldest attack ran 0 days" in said and "INCONCLUSIVE" in said)
    return refused_if(ages == {True}), "refused: evidence stays as old as it is"


@way(
    "clocks",
    "the age of the evidence edited",
    rights=BOTH,
    says="evidence_origin|is INVALID",
)
def _(world: World) -> Answer:
    def young(values: dict[str, Any]) -> None:
        now = datetime.now(tz=UTC).isoformat()
        values["measured_at"] = now
        for part in ("exposure", "membership", "extraction", "utility"):
            values[part]["measured_at"] = now

    world.change(CLEAN, young)
    world.tag(CLEAN, evidence=_evidence.digest_of(world.evidence().read_text()))
    return world.gate()


# budget and attempts


SPENT = "budget and attempts"


@way(SPENT, "the budget store deleted", rights=BUDGET, says="budget store")
def _(world: World) -> Answer:
    for file in world.home.glob("budget.db*"):
        file.unlink()
    return [world.gate(), world.train()]


@way(SPENT, "an empty store in its place", rights=BUDGET, says="budget store")
def _(world: World) -> Answer:
    for file in world.home.glob("budget.db*"):
        file.unlink()
    grant = ("--epsilon", "9", "--delta", "1e-4")
    world.run("budget", "grant", "default", *grant)
    return [world.gate(), world.train()]


@way(
    SPENT,
    "another store by DPTUNE_BUDGET_URL",
    rights=ENVIRONMENT,
    says="budget store",
)
def _(world: World) -> Answer:
    os.environ["DPTUNE_BUDGET_URL"] = f"sqlite:///{world.outside / 'other.db'}"
    return [world.gate(), world.train()]


@way(SPENT, "evaluations deleted from the log", rights=BUDGET, says="budget store|log")
def _(world: World) -> Answer:
    world.budget_sql("DELETE FROM log WHERE content LIKE '%\"evaluation\"%'")
    strict = world.policy_file(max_evaluations=2)
    return world.gate(policy=strict)


@way(SPENT, "one evaluation edited to a grant", rights=BUDGET, says="budget store|log")
def _(world: World) -> Answer:
    world.budget_sql(
        "UPDATE log SET content = replace(content, '\"evaluation\"', '\"decision\"')"
    )
    return world.gate(policy=world.policy_file(max_evaluations=2))


@way(
    SPENT,
    "more evaluations than the policy allows",
    rights=COMMANDS,
    says="attempts: Data set",
)
def _(world: World) -> Answer:
    return world.gate(policy=world.policy_file(max_evaluations=2))
