"""What a run says to who started it, and what it holds meanwhile."""

from contextlib import ExitStack

import pytest

from cli import account, runs
from cli.runs import CONFIGS, _failed_elsewhere, holding, read_config
from dptune import files
from dptune.errors import PrivacyError
from dptune.files import locked
from dptune.workflow import budget
from infra.profiles import read_profile


def test_failure_in_pods_is_named_by_kind_and_its_trace_kept_here(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("DPTUNE_HOME", str(tmp_path))
    said = str(_failed_elsewhere(RuntimeError("Maria Huber")))
    assert "RuntimeError" in said
    assert "Maria" not in said
    (trace,) = (tmp_path / "logs").iterdir()
    assert trace.name in said


def test_second_of_equal_runs_is_refused_and_gives_nothing_back(monkeypatch, tmp_path):
    """It gave back what the first held, by the name of their computation."""
    monkeypatch.setenv("DPTUNE_HOME", str(tmp_path))
    config, local = (
        read_config(CONFIGS / "train" / "own_text.yaml"),
        read_profile("local"),
    )
    given_back = []
    monkeypatch.setattr(budget, "release_budget", lambda *a: given_back.append(a[2]))

    def held(fingerprint):
        return holding(config, fingerprint, local, url="sqlite:///")

    monkeypatch.setattr(runs, "_MOMENT", 0)
    with held("one"):
        with pytest.raises(PrivacyError, match="another process"), held("one"):
            pytest.fail("two are under way")
        with pytest.raises(RuntimeError), held("other"):
            raise RuntimeError
    assert given_back == ["other"]
    with held("one"):
        pass
    account.forget()


def test_run_waits_a_moment_for_workers_of_one_that_was_killed(monkeypatch, tmp_path):
    """They hold its lock until they see that it is gone."""
    file, held = tmp_path / "run.lock", ExitStack()
    worker = held.enter_context(ExitStack())
    worker.enter_context(locked(file))
    monkeypatch.setattr(files.time, "sleep", lambda _: worker.close())
    with held:
        runs._lock(held, file)
