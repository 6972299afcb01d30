"""What is kept to be read again is whole: a full disk poisons no later run."""

import contextlib

import pytest

from dptune.attacks.canaries import CanarySpec, draw_canaries
from dptune.attacks.exposure import Measured
from dptune.audits.step_report import StepAudit
from dptune.config import AttackSettings, PerformanceSettings
from dptune.models.loading import load_saved
from dptune.results import TracePoint
from dptune.workflow import canary_ranking, device, whitebox
from dptune.workflow.canary_ranking import CanaryRanking
from dptune.workflow.tracing import Tracer
from tests.full_disk import files_of_at_most

from .conftest import PERFORMANCE

SPEC = CanarySpec(length=2, alphabet="digits", num_planted=1, num_held_out=1)


def peak(bundle, folder, monkeypatch):
    """The most memory that a stage took."""
    with device.remembered_peak(folder / "peak", PerformanceSettings(device="cpu")):
        pass
    return device, folder / "peak"


def audit(bundle, folder, monkeypatch):
    """The audit of a stage."""
    found = StepAudit(stage="private", recipe="r", data_fingerprint="f", checks=())
    monkeypatch.setattr(whitebox, "audit_stage", lambda *_, **__: found)
    whitebox.kept_audit(None, None, performance=PERFORMANCE, num_steps=1, home=folder)
    return whitebox, folder / "audit.json"


def ranks(bundle, folder, monkeypatch):
    """The ranks of canaries under the base model."""
    nothing = Measured(canaries=(), num_token_forwards=0)
    monkeypatch.setattr(CanaryRanking, "measure", lambda *_: nothing)
    ranking = CanaryRanking(
        canaries=draw_canaries(SPEC, seed=1),
        attacks=AttackSettings(),
        device="cpu",
        cache=folder,
    )
    ranking.measure_once(bundle, load_saved(bundle.path))
    return canary_ranking, next(folder.glob("base-exposure-*"), None)


KEPT = (peak, audit, ranks)


def meet_a_full_disk(kept, bundle, folder, monkeypatch):
    with files_of_at_most(0), pytest.raises(Exception, match=r"(?i)file too large"):
        kept(bundle, folder, monkeypatch)


@pytest.mark.parametrize("kept", KEPT)
def test_full_disk_leaves_nothing_that_stops_the_next_run(
    kept, bundle, tmp_path, monkeypatch
):
    meet_a_full_disk(kept, bundle, tmp_path, monkeypatch)
    assert list(tmp_path.iterdir()) == []
    _, file = kept(bundle, tmp_path, monkeypatch)
    assert list(tmp_path.iterdir()) == [file]
    kept(bundle, tmp_path, monkeypatch)


@pytest.mark.parametrize("kept", [peak, audit])  # ranks are measured anew
def test_twin_that_writes_in_place_is_stopped_for_ever(
    kept, bundle, tmp_path, monkeypatch
):
    room, _ = kept(bundle, tmp_path / "elsewhere", monkeypatch)
    monkeypatch.setattr(room, "replacing", contextlib.nullcontext)
    meet_a_full_disk(kept, bundle, tmp_path, monkeypatch)
    for _ in range(2):
        with pytest.raises(Exception, match=r"int\(\)|Invalid JSON|Expecting"):
            kept(bundle, tmp_path, monkeypatch)


def test_line_of_a_trace_that_was_cut_off_is_no_point(tmp_path):
    traced = Tracer(
        plan=None,
        corpus=None,
        canaries=None,
        attacks=None,
        max_tokens=24,
        performance=PERFORMANCE,
        file=tmp_path / "trace.jsonl",
        cache=tmp_path,
        enter=int,
    )
    first, second = (TracePoint(stage="private", step=step) for step in (3, 5))
    traced.keep(first)
    with traced.file.open("ab") as sink:
        sink.write(b"\n" + second.model_dump_json().encode()[:20])
    assert traced.points() == (first,)
    traced.keep(second)
    assert traced.points() == (first, second)
