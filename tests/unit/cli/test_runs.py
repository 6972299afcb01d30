"""What a run on a cluster says to who started it."""

from cli.runs import _failed_elsewhere


def test_failure_in_pods_is_named_by_kind_and_its_trace_kept_here(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("DPTUNE_HOME", str(tmp_path))
    said = str(_failed_elsewhere(RuntimeError("Maria Huber")))
    assert "RuntimeError" in said
    assert "Maria" not in said
    (trace,) = (tmp_path / "logs").iterdir()
    assert trace.name in said
