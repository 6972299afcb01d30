"""Whatever was charged in a project folder is added up, per corpus."""

import math

import pytest

from dptune.accounting.journal import LedgerJournal
from dptune.accounting.ledger import PrivacyLedger
from dptune.errors import ArtifactError
from dptune.privacy import Notion
from dptune.workflow.charging import stage_entry
from dptune.workflow.spending import spending

from .conftest import run_plan, stage


@pytest.fixture
def charge(corpus, tmp_path):
    def write(folder, *, fingerprint="a", **changes):
        report = corpus.report.model_copy(update={"fingerprint": fingerprint})
        plan = run_plan(stage(**changes), num_units=32).stages[0]
        entry = stage_entry(report, plan, recipe="r", num_steps=5, fixed_seed=False)
        LedgerJournal(tmp_path / folder / "ledger.jsonl").charge(entry)
        return entry

    return write


def test_nothing_was_spent_where_nothing_ran(tmp_path):
    assert spending(tmp_path / "none") == []
    (tmp_path / "killed-before-a-charge").mkdir()
    assert spending(tmp_path) == []


def test_runs_on_one_corpus_are_composed(charge, tmp_path):
    entries = (charge("x"), charge("y"), charge("x"))
    (row,) = spending(tmp_path, delta=1e-3)
    ledger = PrivacyLedger(entries=entries)
    expected = ledger.certificate(Notion.RECORD, delta=1e-3).epsilon
    assert row.record_epsilon == pytest.approx(expected, rel=1e-9)
    assert (row.num_stages, row.num_steps) == (2, 15)


def test_spending_grows_with_every_run(charge, tmp_path):
    seen = []
    for number in range(3):
        charge(f"run-{number}")
        (row,) = spending(tmp_path, delta=1e-3)
        seen.append((row.record_epsilon, row.selective_epsilon))
    assert seen == sorted(seen)
    assert len(set(seen)) == 3


def test_corpora_are_kept_apart(charge, tmp_path):
    charge("x", fingerprint="a")
    charge("y", fingerprint="b")
    charge("z", fingerprint="b", clipping=None, noise=None)
    rows = {row.corpus: row for row in spending(tmp_path, delta=1e-3)}
    assert math.isfinite(rows["a"].record_epsilon)
    assert rows["b"].record_epsilon == math.inf


def test_edited_journal_is_refused(charge, tmp_path):
    charge("x")
    charge("x")
    path = tmp_path / "x" / "ledger.jsonl"
    path.write_text(path.read_text().replace('"num_steps":5', '"num_steps":4'))
    with pytest.raises(ArtifactError):
        spending(tmp_path)
