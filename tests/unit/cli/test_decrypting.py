"""`run.py decrypt`: what was encrypted comes back, to a private file."""

import pytest

from dptune.redaction.operators import Operator
from dptune.redaction.pseudonyms import Pseudonyms
from dptune.text import Span

KEY = "ab" * 32


@pytest.fixture
def written(tmp_path):
    keys = Pseudonyms(key=bytes(16), encryption_key=bytes.fromhex(KEY))
    span = Span(start=0, end=7, entity_type="PERSON")
    sealed = keys.replacement("u", operator=Operator.ENCRYPT)(span, "Ann Lee")
    file = tmp_path / "letter.txt"
    file.write_text(f"Dear {sealed}, dear {sealed}.")
    return file


def test_decrypt_writes_a_private_file(written, run_cli, monkeypatch, tmp_path):
    monkeypatch.setenv("DPTUNE_REDACTION_KEY", KEY)
    target = tmp_path / "plain.txt"
    outcome = run_cli("decrypt", written, "--output", target)
    assert outcome.code == 0, outcome.err
    assert target.read_text() == "Dear Ann Lee, dear Ann Lee."
    assert target.stat().st_mode & 0o777 == 0o600
    assert "Ann" not in outcome.out + outcome.err
    assert not outcome.home.exists()


def test_decrypt_reads_the_key_from_a_file_of_its_owner(
    written, run_cli, monkeypatch, tmp_path
):
    file, target = tmp_path / "key", tmp_path / "plain.txt"
    file.write_text(KEY)
    file.chmod(0o644)
    monkeypatch.setenv("DPTUNE_REDACTION_KEY_A_FILE", str(file))
    choice = ("--output", target, "--key", "DPTUNE_REDACTION_KEY_A")
    run_cli("decrypt", written, *choice).assert_refused("readable by its owner")
    file.chmod(0o600)
    assert run_cli("decrypt", written, *choice).code == 0


def test_decrypt_with_another_key_writes_nothing(
    written, run_cli, monkeypatch, tmp_path
):
    monkeypatch.setenv("DPTUNE_REDACTION_KEY", "cd" * 32)
    target = tmp_path / "plain.txt"
    run_cli("decrypt", written, "--output", target).assert_refused("2 values")
    assert not target.exists()


def test_decrypt_tells_all_that_is_wrong_at_once(run_cli, tmp_path):
    outcome = run_cli("decrypt", tmp_path / "none", "--output", tmp_path)
    outcome.assert_refused("--output", "FILE", "DPTUNE_REDACTION_KEY")
    outcome = run_cli(
        "decrypt", tmp_path / "none", "--output", tmp_path, "--key", "HOME"
    )
    outcome.assert_refused("--key", "--output", "FILE")
