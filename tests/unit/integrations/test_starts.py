"""Starts of one training: one at a time, after a kill, with a clock set back."""

import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext

import pytest
from datasets import Dataset
from transformers import TrainerCallback

from dptune.accounting.assumptions import Assumption
from dptune.accounting.certificates import Certificate
from dptune.errors import ArtifactError, PrivacyError
from dptune.integrations.script_run import ScriptRun
from dptune.models.digest import weights_digest
from dptune.privacy import CertificateStatus
from infra.workspace import REPOSITORY
from tests.unit.integrations.conftest import asked, make_rows

ONE = "output_dir must be trained in by one process at a time"
HOLD = """
import sys, time
from pathlib import Path
from dptune.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def another(folder):
    """Another process that trains in a folder, as far as its lock can tell."""
    place = folder / "privacy"
    place.mkdir(parents=True)
    command = [sys.executable, "-c", HOLD, str(place / "running.lock")]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_second_process_is_refused_before_it_pays_and_a_kill_lets_it_in(
    script, paid, tmp_path
):
    with another(tmp_path / "out") as first:
        with pytest.raises(PrivacyError, match=ONE):
            script().train()
        left = {path.name for path in (tmp_path / "out" / "privacy").iterdir()}
        assert left == {"running.lock"}
        assert script(folder="elsewhere").train().global_step == 15
        first.send_signal(signal.SIGKILL)
        first.wait()
        script().train()
    assert paid() == [4, 4, 4, 3]


class StopAt(TrainerCallback):
    """Ends a training behind a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KeyboardInterrupt


def test_clock_that_was_set_back_drops_no_new_checkpoint(script, paid, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        script(parts={"callbacks": [StopAt(7)]}).train()
    later = time.time() + 3600
    os.utime(tmp_path / "out" / "checkpoint-5", (later, later))
    resumed = script(parts={"callbacks": [StopAt(12)]}, save_total_limit=1)
    with pytest.raises(KeyboardInterrupt):
        resumed.train(resume_from_checkpoint=True)
    left = [path.name for path in (tmp_path / "out").glob("checkpoint-*")]
    assert left == ["checkpoint-10"]
    script().train(resume_from_checkpoint=True)
    assert paid() == [4, 4, 4, 4, 4, 1]


class TrainHere(TrainerCallback):
    """Trains in the same folder while a training is at its sixth step."""

    def __init__(self, script, resume):
        self.script, self.resume = script, resume

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 6:
            self.script().train(resume_from_checkpoint=self.resume)


@pytest.mark.parametrize("resume", [None, True])
def test_training_beside_one_under_way_is_refused_and_pays_nothing(
    script, paid, resume
):
    with pytest.raises(PrivacyError, match=ONE):
        script(parts={"callbacks": [TrainHere(script, resume)]}).train()
    assert paid() == [4, 4]
    script().train(resume_from_checkpoint=True)  # an error lets go, too
    assert paid() == [4, 4, 4, 4, 2]


def test_training_without_the_lock_would_be_seen(script, paid, monkeypatch):
    monkeypatch.setattr(ScriptRun, "alone", lambda self: nullcontext())
    with pytest.raises(ArtifactError, match="ended with"):  # and with other weights
        script(parts={"callbacks": [TrainHere(script, None)]}).train()
    assert paid() == [4, 4, 4, 4, 4, 3, 4, 3]


class EndAt(TrainerCallback):
    """Ends a training in good order, as one does whose time is up."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step >= self.step:
            control.should_training_stop = True


def test_training_that_was_stopped_goes_on_and_ends(script, paid, tmp_path):
    stopped = script(parts={"callbacks": [EndAt(5)]})
    assert stopped.train().global_step == 5
    assert paid() == [4, 4]
    resumed = script()
    assert resumed.train(resume_from_checkpoint=True).global_step == 15
    assert paid() == [4, 4, 4, 4, 2]
    stored = tmp_path / "out" / "privacy" / "certificate.json"
    assert Certificate.model_validate_json(stored.read_bytes()) == resumed.certificate
    again = script()
    assert again.train(resume_from_checkpoint=True).global_step == 15
    assert weights_digest(again.model) == again.script_run.weights
    assert sum(paid()) == 18


class EndByLoss(TrainerCallback):
    """Ends a training where a batch has a large loss, which one record may give it."""

    def on_log(self, args, state, control, logs, **kwargs):
        is_large = logs.get("loss", 0.0) > 0.0
        control.should_training_stop |= is_large and state.global_step >= 5


def test_claim_of_a_training_that_was_cut_short_rests_on_what_ended_it(
    script, tmp_path
):
    """Callbacks are told the loss: who stops by one record's tells whether it is there.

    It is drawn in some of 60 steps at rate .1 with probability .998: that is then the
    chance of an early end, which never comes without it, whatever epsilon is.
    """
    privacy = asked(num_units=40)
    stopped = script(privacy=privacy, parts={"callbacks": [EndByLoss()]})
    assert stopped.train().global_step == 5
    stored = Certificate.model_validate_json(
        (tmp_path / "out" / "privacy" / "certificate.json").read_bytes()
    )
    for claim in (stored, stopped.certificate):
        assert Assumption.END_IS_PUBLIC in claim.assumptions
        assert claim.status is CertificateStatus.CONDITIONAL
    resumed = script(privacy=privacy)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.certificate.status is CertificateStatus.CERTIFIED


def test_certificate_of_a_stopped_training_is_gone_once_more_is_paid(
    script, paid, tmp_path
):
    script(parts={"callbacks": [EndAt(5)]}).train()
    stored = tmp_path / "out" / "privacy" / "certificate.json"
    assert stored.exists()
    with pytest.raises(KeyboardInterrupt):
        script(parts={"callbacks": [StopAt(7)]}).train(resume_from_checkpoint=True)
    assert sum(paid()) == 12
    assert not stored.exists()


def test_training_that_has_ended_goes_on_from_no_earlier_checkpoint(
    script, paid, tmp_path
):
    script().train()
    before = paid()
    with pytest.raises(PrivacyError, match="going on from checkpoint-10 would draw"):
        script().train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-10"))
    assert paid() == before


def test_resumed_training_that_took_its_best_model_returns_that(script, tmp_path):
    changes = {
        "privacy": asked(evaluation_is_public=True),
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": 5,
        "metric_for_best_model": "later",
        "greater_is_better": False,
    }
    counted = itertools.count()
    parts = {
        "eval_dataset": Dataset.from_list(make_rows(8, seed=5)),
        "compute_metrics": lambda _: {"later": next(counted)},
    }
    first = script(parts=parts, **changes)
    first.train()
    assert first.state.best_model_checkpoint.endswith("checkpoint-5")
    again = script(parts=parts, **changes)
    assert again.train(resume_from_checkpoint=True).global_step == 15
    assert weights_digest(again.model) == first.script_run.weights
