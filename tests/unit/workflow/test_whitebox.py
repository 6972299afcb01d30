"""A recorded stage is measured again: by its own data, plan and ledger."""

import pytest

from dptune.accounting.ledger import PrivacyLedger
from dptune.dpsgd import noise
from dptune.workflow.charging import stage_entry
from dptune.workflow.whitebox import audit_stage

from .conftest import PERFORMANCE


@pytest.fixture
def recorded(make_inputs):
    inputs = make_inputs()
    entry = stage_entry(
        inputs.corpus.report,
        inputs.plan,
        recipe=inputs.recipe,
        first_step=0,
        num_steps=inputs.plan.num_steps,
        fixed_seed=False,
    )
    return inputs, PrivacyLedger(entries=(entry,))


def failed(inputs, ledger):
    audit = audit_stage(inputs, ledger, performance=PERFORMANCE)
    assert audit.passed == all(c.passed for c in audit.checks)
    return {check.name for check in audit.checks if not check.passed}


def test_recorded_stage_passes(recorded):
    assert failed(*recorded) == set()


def test_ledger_of_another_run_or_with_too_few_steps_fails(recorded):
    inputs, ledger = recorded
    (entry,) = ledger.entries
    short = stage_entry(
        inputs.corpus.report,
        inputs.plan,
        recipe=inputs.recipe,
        first_step=0,
        num_steps=1,
        fixed_seed=False,
    )
    for twin in (
        PrivacyLedger(),
        PrivacyLedger(entries=(short,)),
        PrivacyLedger(entries=(entry.model_copy(update={"data_fingerprint": "x"}),)),
    ):
        assert failed(inputs, twin) == {"event"}


def test_engine_without_noise_fails_on_a_recorded_stage(recorded, monkeypatch):
    monkeypatch.setattr(noise, "add_gaussian_noise", lambda *_, **__: None)
    assert "noise_variance" in failed(*recorded)
