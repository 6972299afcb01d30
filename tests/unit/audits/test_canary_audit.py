import math

import numpy as np
import pytest

from dptune.audits.canary_audit import (
    AuditedClaim,
    audit_canaries,
    planned_capacity,
)
from dptune.privacy import NeighboringRelation, Notion
from tests.support.mechanisms import (
    gaussian_mechanism,
    randomized_response,
    subset_selection,
)

ADD = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE = NeighboringRelation.REPLACE_ONE


def claim(notion=Notion.RECORD, relation=REPLACE, guarantees=((1.0, 1e-5),)):
    return AuditedClaim(
        notion=notion, relation=relation, delta=1e-5, guarantees=guarantees
    )


@pytest.fixture
def simulated():
    return gaussian_mechanism(np.random.default_rng(0), mu=3.0, num=50)


def bounds(simulated, *claims, **changes):
    found = audit_canaries(simulated.report, claims, **changes)
    return {(a.notion, a.relation, a.method): a for a in found}


def test_every_claim_is_audited_by_every_method_that_can(simulated):
    found = bounds(
        simulated,
        claim(),
        claim(relation=ADD),
        claim(notion=Notion.SELECTIVE, guarantees=((math.inf, 1e-5),)),
        claim(notion=Notion.LOCAL),
    )
    assert set(found) == {
        ("record", REPLACE, "one_run"),
        ("record", REPLACE, "f_dp"),
        ("record", REPLACE, "exposure"),
        ("record", ADD, "one_run"),
        ("record", ADD, "f_dp"),
        ("record", ADD, "exposure"),
        ("selective", REPLACE, "one_run"),
        ("selective", REPLACE, "exposure"),
    }
    for audit in found.values():
        assert 0.0 <= audit.epsilon_lower_bound <= audit.capacity < 100.0
        assert (audit.confidence, audit.delta) == (0.99, 1e-5)
        assert audit.detail


def test_leaky_mechanism_is_bounded_from_below_and_more_canaries_say_more():
    lower, capacity = [], []
    for num in (50, 200):
        made = randomized_response(np.random.default_rng(1), epsilon=4.0, num=num)
        audit = bounds(made, claim())["record", REPLACE, "one_run"]
        lower.append(audit.epsilon_lower_bound)
        capacity.append(audit.capacity)
    assert 0.3 < lower[0] < lower[1] < 8.0
    assert capacity[0] < capacity[1]


def test_exposure_reconstructs_secrets_of_a_large_space():
    made = subset_selection(np.random.default_rng(2), epsilon=12.0, top=10, num=50)
    audit = bounds(made, claim())["record", REPLACE, "exposure"]
    assert 8.0 < audit.epsilon_lower_bound < 12.0


def test_several_insertions_weaken_the_bound_of_one_unit(simulated):
    many = tuple(
        c.model_copy(update={"insertions": 4 * c.insertions})
        for c in simulated.report.canaries
    )
    report = simulated.report.model_copy(update={"canaries": many})
    (once, *_) = audit_canaries(simulated.report, [claim()])
    (four, *_) = audit_canaries(report, [claim()])
    assert 0.0 < four.epsilon_lower_bound <= once.epsilon_lower_bound / 4


@pytest.mark.parametrize(("relation", "less"), [(ADD, True), (REPLACE, False)])
def test_canaries_in_records_of_others_can_refute_less_under_add_or_remove(
    relation, less
):
    """Few candidates, so that exposure shows less than coins do."""
    own, appended = (
        planned_capacity(
            claim(relation=relation),
            num_planted=200,
            num_held_out=200,
            space_size=500,
            appended=where,
        )
        for where in (False, True)
    )
    assert (appended < 0.6 * own) if less else (appended == own)


@pytest.mark.parametrize(
    ("detected", "setting", "violated"),
    [
        (50, "as_detected", False),
        (50, "not_missed", False),
        (49, "as_detected", True),
        (None, "as_detected", True),
        (50, "missed", True),
        (50, "partly_missed", True),
    ],
)
def test_selective_bound_says_when_the_detector_missed_a_secret(
    simulated, detected, setting, violated
):
    report = simulated.report.model_copy(update={"setting": setting})
    found = audit_canaries(
        report, [claim(), claim(notion=Notion.SELECTIVE)], num_detected=detected
    )
    told = {a.notion: a.assumption_violated for a in found}
    assert told == {Notion.RECORD: False, Notion.SELECTIVE: violated}


def test_without_controls_exposure_alone_is_left_and_without_canaries_nothing(
    simulated,
):
    planted = simulated.report.planted()
    alone = simulated.report.model_copy(update={"canaries": planted})
    assert [a.method for a in audit_canaries(alone, [claim()])] == ["exposure"]
    none = simulated.report.model_copy(update={"canaries": ()})
    assert audit_canaries(none, [claim()]) == ()


def trained_on(report, num):
    """The same report, of whose planted canaries so many were trained on."""
    numbers = iter(range(len(report.canaries)))
    canaries = tuple(
        c.model_copy(update={"trained": int(next(numbers) < num)}) if c.planted else c
        for c in report.canaries
    )
    return report.model_copy(update={"canaries": canaries})


def test_canaries_that_were_not_trained_on_give_no_capacity(simulated):
    """The twin says what so many could have shown, had they been trained on."""
    claims = (claim(), claim(relation=ADD))
    every = audit_canaries(simulated.report, claims)
    assert audit_canaries(trained_on(simulated.report, 50), claims) == every
    assert audit_canaries(trained_on(simulated.report, 0), claims) == ()
    few = audit_canaries(trained_on(simulated.report, 10), claims)
    for one, whole in zip(few, every, strict=True):
        assert one.epsilon_lower_bound == whole.epsilon_lower_bound
        assert one.epsilon_lower_bound <= one.capacity <= whole.capacity
    assert sum(one.capacity for one in few) < sum(one.capacity for one in every)
