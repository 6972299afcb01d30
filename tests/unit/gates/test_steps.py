"""The gate knows whether somebody looked at the steps, and what was seen."""

import pytest

from dptune.gates.decision import GateOutcome, decide
from dptune.gates.steps import step_audit


@pytest.mark.parametrize(
    ("audits", "asked", "verdict"),
    [
        ([{}], True, "PASS"),
        ([{}, {"is_private": False, "num_checks": 1, "num_passed": 1}], True, "PASS"),
        (
            [{"is_private": False, "num_checks": 1, "num_passed": 1}],
            True,
            "NOT_APPLICABLE",
        ),
        ([], True, "INCONCLUSIVE"),
        ([], False, "NOT_APPLICABLE"),
        ([{}, {"stage": "b", "num_checks": 0, "num_passed": 0}], True, "INCONCLUSIVE"),
        ([{"num_recorded": 39}], True, "INCONCLUSIVE"),
        ([{"num_recorded": None}], True, "INCONCLUSIVE"),
        ([{"num_recorded": None, "unrecorded": "Sharded."}], True, "PASS"),
        ([{"num_passed": 19, "failed": ("run_noise_variance",)}], True, "BLOCK"),
        ([{"num_passed": 19, "failed": ("run_noise_variance",)}], False, "BLOCK"),
        (
            [{"is_private": False, "num_passed": 19, "failed": ("event",)}],
            True,
            "BLOCK",
        ),
    ],
)
def test_step_audit_says_what_was_looked_at(audits, asked, verdict, make):
    evidence = make.evidence(step_audits=tuple(make.step_audit(**a) for a in audits))
    found = step_audit(evidence, make.policy(require_step_audit=asked))
    assert found.verdict == verdict
    outcome = decide(evidence, make.policy(require_step_audit=asked)).outcome
    wanted = GateOutcome.PASS if verdict in ("PASS", "NOT_APPLICABLE") else verdict
    assert outcome == wanted


def test_evidence_from_before_step_audits_is_inconclusive(make):
    old = make.evidence().model_dump(exclude={"step_audits"})
    read = type(make.evidence()).model_validate(old)
    assert decide(read, make.policy()).outcome is GateOutcome.INCONCLUSIVE
