"""A journal survives kills, and shows every edit."""

import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import dp_accounting as dpa
import pytest

from dptune.accounting import chain as chain_module
from dptune.accounting.chain import LedgerJournal
from dptune.accounting.ledger import LedgerEntry, PrivacyLedger
from dptune.errors import ArtifactError
from dptune.privacy import Notion
from tests.support.events import poisson_gaussian_event


def entry(number=0, count=5):
    return LedgerEntry(
        stage=f"stage_{number}",
        recipe="dp_sgd",
        data_fingerprint="abc",
        privacy_unit="record",
        view="original",
        dp_event=poisson_gaussian_event(
            sample_rate=0.05, noise_multiplier=1.1, num_steps=count
        ),
        num_steps=count,
    )


def charged(path, count):
    journal = LedgerJournal(path)
    for number in range(count):
        journal.charge(entry(number))
    return journal


def head(path):
    return path.with_name(path.name + ".head")


def test_read_before_the_first_charge_is_empty(tmp_path):
    assert LedgerJournal(tmp_path / "none" / "ledger.jsonl").read() == PrivacyLedger()
    assert not (tmp_path / "none").exists()


def test_charge_is_there_for_every_later_reader(tmp_path):
    path = tmp_path / "deep" / "ledger.jsonl"
    journal = charged(path, 3)
    expected = PrivacyLedger(entries=tuple(entry(n) for n in range(3)))
    assert journal.read() == expected
    assert LedgerJournal(path).read() == expected
    LedgerJournal(path).charge(entry(3))
    journal.charge(entry(4))
    assert [e.stage for e in journal.read().entries] == [f"stage_{n}" for n in range(5)]
    assert journal.path == path


def test_charge_is_on_disk_before_it_returns(tmp_path, monkeypatch):
    """The broken twin skips fsync: it must be seen to."""
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda h: (synced.append(size(h)), real(h))[1])
    path = tmp_path / "ledger.jsonl"
    charged(path, 1)
    assert path.stat().st_size in synced


def size(handle):
    return os.fstat(handle).st_size


@pytest.mark.parametrize("cut", [1, 2, 30, 200])
def test_torn_last_line_is_dropped_and_cut_off(tmp_path, cut):
    path = tmp_path / "ledger.jsonl"
    charged(path, 2)
    whole = path.read_bytes()
    before = head(path).read_bytes()
    charged_line = charged_third_line(path)
    path.write_bytes(whole + charged_line[:-cut])
    head(path).write_bytes(before)
    assert len(LedgerJournal(path).read().entries) == 2
    LedgerJournal(path).charge(entry(7))
    assert [e.stage for e in LedgerJournal(path).read().entries] == [
        "stage_0",
        "stage_1",
        "stage_7",
    ]


def charged_third_line(path):
    start = path.stat().st_size
    LedgerJournal(path).charge(entry(2))
    return path.read_bytes()[start:]


def test_line_that_is_complete_counts_although_the_head_lags(tmp_path):
    path = tmp_path / "ledger.jsonl"
    charged(path, 2)
    before = head(path).read_bytes()
    LedgerJournal(path).charge(entry(2))
    head(path).write_bytes(before)
    assert len(LedgerJournal(path).read().entries) == 3
    LedgerJournal(path).charge(entry(3))
    assert len(LedgerJournal(path).read().entries) == 4


def test_first_line_counts_without_a_head(tmp_path):
    path = tmp_path / "ledger.jsonl"
    charged(path, 1)
    head(path).unlink()
    assert len(LedgerJournal(path).read().entries) == 1


def test_failed_head_does_not_lock_the_journal_out(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    journal = charged(path, 1)
    real = chain_module._write_head

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(chain_module, "_write_head", full)
    with pytest.raises(OSError, match="disk full"):
        journal.charge(entry(1))
    monkeypatch.setattr(chain_module, "_write_head", real)
    journal.charge(entry(2))
    assert len(journal.read().entries) == 3


def test_head_of_which_the_disk_takes_a_part_at_a_time_is_whole(tmp_path, monkeypatch):
    path, write = tmp_path / "ledger.jsonl", os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:10]))
    charged(path, 2)
    assert len(LedgerJournal(path).read().entries) == 2


def test_twin_that_writes_once_loses_the_head(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    charged(path, 1)
    whole = head(path).read_bytes()
    monkeypatch.setattr(
        chain_module, "_write", lambda handle, data: os.write(handle, data[:10])
    )
    chain_module._write_head(path, chain_module._Tip(count=1))
    assert head(path).read_bytes() != whole
    with pytest.raises(ArtifactError, match="head of a chain"):
        LedgerJournal(path).read()


def edited(lines):
    lines[1] = lines[1].replace(b'"num_steps":5', b'"num_steps":4')
    return lines, 2


def edited_noise(lines):
    lines[2] = lines[2].replace(b"1.1", b"1.2")
    return lines, 3


def deleted(lines):
    return [*lines[:1], *lines[2:]], 2


def swapped(lines):
    return [lines[0], lines[2], lines[1], lines[3]], 2


def doubled(lines):
    return [*lines[:2], *lines[1:]], 3


def cut_at_the_end(lines):
    return lines[:3], 4


def all_gone(_):
    return [], 1


def reformatted(lines):
    lines[0] = lines[0].replace(b",", b", ", 1)
    return lines, 1


def not_json(lines):
    lines[3] = b"hello\n"
    return lines, 4


def not_a_number(lines):
    lines[0] = lines[0].replace(b'"num_steps":5', b'"num_steps":NaN')
    return lines, 1


def test_journal_that_loses_what_a_process_saw_is_refused(tmp_path):
    path, other = tmp_path / "ledger.jsonl", tmp_path / "other.jsonl"
    for number in range(3):
        LedgerJournal(other).charge(entry(number + 5))
    for act in ("read", "charge"):
        journal = LedgerJournal(path)
        journal.charge(entry(1))
        LedgerJournal(path).charge(entry(2))  # another process goes on
        assert len(journal.read().entries) == 2
        for name in ("", ".head"):
            path.with_name(path.name + name).unlink()
        with pytest.raises(ArtifactError, match="go on from the 2 lines"):
            journal.read() if act == "read" else journal.charge(entry(3))
        for name in ("", ".head"):
            shutil.copy(
                other.with_name(other.name + name), path.with_name(path.name + name)
            )
        with pytest.raises(ArtifactError, match="go on from the 2 lines"):
            journal.read() if act == "read" else journal.charge(entry(3))
        assert len(LedgerJournal(path).read().entries) == 3  # which saw nothing before
        for name in ("", ".head"):
            path.with_name(path.name + name).unlink()


@pytest.mark.parametrize(
    "tamper",
    [
        edited,
        edited_noise,
        deleted,
        swapped,
        doubled,
        cut_at_the_end,
        all_gone,
        reformatted,
        not_json,
        not_a_number,
    ],
)
def test_tampering_names_the_first_bad_line(tmp_path, tamper):
    path = tmp_path / "ledger.jsonl"
    charged(path, 4)
    lines, number = tamper(path.read_bytes().splitlines(keepends=True))
    path.write_bytes(b"".join(lines))
    with pytest.raises(ArtifactError, match=rf"line {number} of ledger\.jsonl"):
        LedgerJournal(path).read()
    with pytest.raises(ArtifactError):
        LedgerJournal(path).charge(entry())


def test_consistent_forgery_of_the_end_does_not_match_the_head(tmp_path):
    path, other = tmp_path / "ledger.jsonl", tmp_path / "other.jsonl"
    charged(path, 2)
    LedgerJournal(other).charge(entry(0))
    LedgerJournal(other).charge(entry(9))
    path.write_bytes(other.read_bytes())
    with pytest.raises(ArtifactError, match=r"line 2 of ledger\.jsonl"):
        LedgerJournal(path).read()


@pytest.mark.parametrize("text", [b"", b"[]", b'{"count":"x","hash":""}', b"{}"])
def test_broken_head_is_refused(tmp_path, text):
    path = tmp_path / "ledger.jsonl"
    charged(path, 2)
    head(path).write_bytes(text)
    with pytest.raises(ArtifactError, match="head"):
        LedgerJournal(path).read()


def test_missing_head_of_a_long_journal_is_refused(tmp_path):
    path = tmp_path / "ledger.jsonl"
    charged(path, 3)
    head(path).unlink()
    with pytest.raises(ArtifactError, match="head"):
        LedgerJournal(path).read()


def test_entry_of_a_later_version_is_refused_but_not_called_tampered(tmp_path):
    path = tmp_path / "ledger.jsonl"
    data = {**entry().model_dump(mode="json"), "invented_later": 1}
    line, digest = chain_module._line(chain_module._Tip(), data)
    path.write_bytes(line)
    assert digest
    with pytest.raises(ArtifactError, match=r"line 1 of ledger\.jsonl .* Upgrade"):
        LedgerJournal(path).read()


def test_field_added_later_with_a_default_does_not_break_old_journals(tmp_path):
    path = tmp_path / "ledger.jsonl"
    data = entry().model_dump(mode="json")
    del data["nominal_reference"]
    line, _ = chain_module._line(chain_module._Tip(), data)
    path.write_bytes(line)
    assert LedgerJournal(path).read().entries == (entry(),)


def test_journal_holds_plain_lines_of_json(tmp_path):
    path = tmp_path / "ledger.jsonl"
    charged(path, 2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["sequence"] for line in lines] == [0, 1]
    assert lines[1]["previous"] == lines[0]["hash"]
    assert path.stat().st_mode & 0o077 == 0


def charge_until_killed(path, drawn):
    journal = LedgerJournal(path)
    for _ in range(100_000):
        journal.charge(entry())
        with drawn.get_lock():
            drawn.value += 1


def test_killed_charges_are_never_under_counted(tmp_path):
    """What was drawn was charged; at most one more was."""
    context = multiprocessing.get_context("fork")
    path = tmp_path / "ledger.jsonl"
    drawn = context.Value("i", 0)
    for _ in range(5):
        before = len(LedgerJournal(path).read().entries) if path.exists() else 0
        drawn.value = 0
        process = context.Process(target=charge_until_killed, args=(path, drawn))
        process.start()
        while drawn.value < 3:
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        counted = len(LedgerJournal(path).read().entries) - before
        assert drawn.value <= counted <= drawn.value + 1


def charge_some(path, count):
    journal = LedgerJournal(path)
    for _ in range(count):
        journal.charge(entry())


def test_charges_of_many_processes_are_all_kept(tmp_path):
    context = multiprocessing.get_context("fork")
    path = tmp_path / "ledger.jsonl"
    processes = [context.Process(target=charge_some, args=(path, 5)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    history = LedgerJournal(path).read()
    assert len(history.entries) == 20
    step = dpa.PoissonSampledDpEvent(0.05, dpa.GaussianDpEvent(1.1))
    assert history.event(Notion.RECORD) == dpa.SelfComposedDpEvent(step, 100)


def test_path_may_be_text(tmp_path):
    journal = LedgerJournal(Path(str(tmp_path)) / "ledger.jsonl")
    journal.charge(entry())
    assert len(journal.read().entries) == 1
