"""A recorded stage is measured again: by its own data, plan and ledger."""

import dataclasses

import pytest
import torch

from dptune.accounting.ledger import PrivacyLedger
from dptune.dpsgd import noise, randomness
from dptune.models.loading import load_model, save_model
from dptune.models.source import Base, ModelBundle
from dptune.workflow import whitebox
from dptune.workflow.charging import stage_entry
from dptune.workflow.train_stage import run_stage
from dptune.workflow.whitebox import audit_stage, kept_audit
from tests.unit.models.test_frozen import BITS

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


def test_ledger_of_another_run_or_with_too_few_steps_fails(recorded, monkeypatch):
    monkeypatch.setattr(whitebox, "_steps_again", lambda *_, **__: [])
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


def audited(inputs, folder):
    done = run_stage(inputs, PrivacyLedger(), folder=folder, performance=PERFORMANCE)
    home = folder / inputs.key()
    kept = kept_audit(
        inputs, done.ledger, performance=PERFORMANCE, num_steps=1, home=home
    )
    assert (home / "audit.json").is_file()
    return kept


def test_run_is_audited_by_what_was_seen_while_it_trained(
    make_inputs, tmp_path, monkeypatch
):
    """The engine was broken while the stage trained, and is mended when it is asked."""
    monkeypatch.setattr(whitebox, "_steps_again", lambda *_, **__: [])
    sound = audited(make_inputs(), tmp_path / "sound")
    assert (sound.failed, sound.num_recorded) == ((), 5)
    real = randomness.GaussianStream.add_to

    def smaller(self, *sums, stddev):
        real(self, *sums, stddev=stddev)
        for values in sums:
            values.mul_(0.7)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(randomness.GaussianStream, "add_to", smaller)
        done = run_stage(
            make_inputs(),
            PrivacyLedger(),
            folder=tmp_path / "broken",
            performance=PERFORMANCE,
        )
    assert done.report.num_steps == 5
    assert "run_noise_variance" in audited(make_inputs(), tmp_path / "broken").failed


def test_block_charged_from_the_wrong_step_is_caught(make_inputs, monkeypatch):
    monkeypatch.setattr(whitebox, "_steps_again", lambda *_, **__: [])
    inputs = make_inputs()
    levels = inputs.plan.model_copy(update={"noise_levels": (1.0, 1.5, 2.0, 2.5, 3.0)})
    inputs = dataclasses.replace(inputs, plan=levels)

    def entry(first_step, num_steps):
        return stage_entry(
            inputs.corpus.report,
            levels,
            recipe=inputs.recipe,
            first_step=first_step,
            num_steps=num_steps,
            fixed_seed=False,
        )

    right = (entry(0, 2), entry(2, 2), entry(4, 1))
    killed = (entry(0, 2), entry(2, 2), entry(2, 2), entry(4, 1))
    wrong = (entry(0, 2), entry(0, 2), entry(4, 1))
    late = (entry(0, 2), entry(3, 2), entry(4, 1))
    for entries, fails in (
        (right, False),
        (killed, False),
        (wrong, True),
        (late, True),
    ):
        found = failed(inputs, PrivacyLedger(entries=entries))
        assert found == ({"event"} if fails else set())


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning")
@pytest.mark.parametrize("bits", BITS[::2])
def test_stage_over_a_base_in_few_bits_is_sound_and_leaves_a_whole_model(
    make_inputs, bundle, tmp_path, bits
):
    """Adapters, bfloat16 and gradient checkpointing together."""
    wide = load_model(bundle.path, dtype=torch.bfloat16)
    low = tmp_path / "low"
    digest = save_model(wide.model, wide.tokenizer, low)
    inputs = dataclasses.replace(
        make_inputs(
            trains="lora",
            lora={"rank": 2, "alpha": 4},
            loss={"normalizer": "record"},
        ),
        model=ModelBundle(path=low, digest=digest),
        base=Base(quantization=bits, merged="stored"),
    )
    performance = PERFORMANCE.model_copy(
        update={"dtype": "bfloat16", "gradient_checkpointing": True}
    )
    done = run_stage(inputs, PrivacyLedger(), folder=tmp_path, performance=performance)
    found = audit_stage(
        inputs, done.ledger, performance=performance, home=tmp_path / inputs.key()
    )
    assert [check for check in found.checks if not check.passed] == []
    after = load_model(done.bundle.path, dtype=None).model
    assert after.dtype == torch.bfloat16
