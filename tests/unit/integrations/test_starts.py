"""Starts of one training: one at a time, after a kill, with a clock set back."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext

import pytest
from transformers import TrainerCallback

from dptune.errors import ArtifactError, PrivacyError
from dptune.integrations.script_run import ScriptRun
from infra.workspace import REPOSITORY

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
