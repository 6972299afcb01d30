"""`verify-decision` as a deploy job calls it: exit codes, offline, nothing created."""

import pytest

from dptune.gates.signing import seal
from tests.unit.gates.test_signing import DIGEST, PEM, PUBLIC, statement


@pytest.fixture
def files(tmp_path):
    decision, key = tmp_path / "decision.signed.json", tmp_path / "signing.pub.pem"
    decision.write_text(seal(statement(), private_key=PEM))
    key.write_bytes(PUBLIC)
    return decision, key


def test_genuine_pass_exits_0_and_creates_nothing(run_cli, files):
    decision, key = files
    outcome = run_cli("verify-decision", decision, "--key", key, "--digest", DIGEST)
    assert outcome.code == 0, outcome.err
    assert "version 7 of m: PASS" in outcome.out
    assert not outcome.home.exists()


def test_changed_file_exits_1(run_cli, files):
    decision, key = files
    decision.write_text(decision.read_text().replace('"sig": "', '"sig": "A'))
    outcome = run_cli("verify-decision", decision, "--key", key, "--digest", DIGEST)
    assert outcome.code == 1
    assert "do not deploy" in outcome.err


def test_signed_refusal_exits_1(run_cli, files):
    decision, key = files
    refused = statement(outcome="INCONCLUSIVE", criteria=())
    decision.write_text(seal(refused, private_key=PEM))
    outcome = run_cli("verify-decision", decision, "--key", key, "--digest", DIGEST)
    assert outcome.code == 1


def test_other_weights_exit_1(run_cli, files):
    decision, key = files
    outcome = run_cli("verify-decision", decision, "--key", key, "--digest", "0" * 64)
    assert outcome.code == 1
    assert "about these weights" in outcome.err


@pytest.mark.parametrize("missing", ["decision", "key", "digest"])
def test_what_cannot_be_read_exits_2(run_cli, files, missing):
    decision, key = files
    arguments = ["verify-decision", decision, "--key", key]
    if missing != "digest":
        arguments += ["--digest", DIGEST]
        {"decision": decision, "key": key}[missing].unlink()
    outcome = run_cli(*arguments)
    assert outcome.code == 2
    assert not outcome.home.exists()
