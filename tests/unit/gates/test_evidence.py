"""What evidence says where a run left something out."""

import pytest
from pydantic import ValidationError

from dptune.gates.evidence import (
    AttemptsEvidence,
    AuditEvidence,
    ClaimEvidence,
    Evidence,
    FileEvidence,
)


def test_evidence_left_out_is_none_or_empty_and_nothing_else(make):
    """Readers tell by `is None`; 0 or "" would be a figure or a name."""
    claim = make.claim().model_dump(exclude_defaults=True)
    defaults = ClaimEvidence.model_validate(claim)
    assert defaults.assumptions == ()
    assert defaults.missing_rate is defaults.missing_rate_upper is None
    assert defaults.nominal_epsilon is defaults.tier is None
    assert defaults.accountant == ""
    audit = AuditEvidence.model_validate(make.audit().model_dump(exclude_defaults=True))
    assert audit.assumes_independent_canaries is audit.assumption_violated is False
    assert audit.detail == ""
    nothing = Evidence(model_digest="m")
    empty = {"schema_version": 1, "model_digest": "m"}
    empty |= {"claims": [], "audits": [], "step_audits": []}
    assert {
        name: value
        for name, value in nothing.model_dump(mode="json").items()
        if value is not None
    } == empty
    files = FileEvidence()
    assert files.registered is None
    assert files.stored.files == ()
    digests = (files.model_digest, files.registry_digest, files.registry_manifest)
    assert (*digests, files.fault) == ("",) * 4
    assert make.origin().remarks == ()
    assert make.origin().run == ""


@pytest.mark.parametrize("confidence", [0.0, 1.0])
def test_confidence_of_an_audit_is_a_chance_that_is_not_sure(confidence, make):
    with pytest.raises(ValidationError, match="confidence"):
        make.audit(confidence=confidence)


@pytest.mark.parametrize("kind", ["trainings", "evaluations", "decisions"])
def test_attempts_are_counted_from_zero(kind, make):
    counts = make.attempts().model_dump() | {kind: 0}
    assert getattr(AttemptsEvidence.model_validate(counts), kind) == 0
    with pytest.raises(ValidationError, match=kind):
        AttemptsEvidence.model_validate(counts | {kind: -1})


def test_looks_are_evaluations_and_at_least_this_one(make):
    assert Evidence(model_digest="m").num_looks == 1
    for evaluations, looks in ((0, 1), (1, 1), (2, 2), (7, 7)):
        found = make.evidence(attempts=make.attempts(evaluations))
        assert found.num_looks == looks
