"""`verify-decision` as a deploy job calls it: exit codes, offline, nothing created."""

import os

import pytest
import yaml

from cli.runs import CONFIGS
from dptune.configfile import load_policy
from dptune.gates.manifest import read_manifest
from dptune.gates.signing import seal
from tests.unit.gates.test_manifest import LAYOUT, write
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


@pytest.fixture
def version(tmp_path, files):
    """The files of a version, and a decision on them under a policy of the program."""
    decision, key = files
    folder = write(tmp_path / "weights", LAYOUT)
    policy = load_policy("default", configs=CONFIGS, key="--policy")
    about = statement(
        manifest=read_manifest(folder),
        policy_version=policy.version,
        policy_digest=policy.digest,
    )
    decision.write_text(seal(about, private_key=PEM))
    return ("verify-decision", decision, "--key", key), folder


def test_files_and_policy_that_were_decided_on_pass(run_cli, version):
    verify, folder = version
    outcome = run_cli(*verify, "--model", folder, "--policy", "default")
    assert outcome.code == 0, outcome.err
    assert "sha256:" in outcome.out
    assert "not checked" not in outcome.out
    assert not outcome.home.exists()


def test_what_a_digest_and_a_name_do_not_prove_is_said(run_cli, version):
    verify, _ = version
    outcome = run_cli(*verify, "--digest", DIGEST)
    assert outcome.code == 0, outcome.err
    said = " ".join(outcome.out.split())
    assert "not checked: which files" in said
    assert "not checked: which policy" in said


@pytest.mark.parametrize(
    "name", ["adapter_config.json", "model/adapter_model.safetensors", "code.py"]
)
def test_file_beside_the_version_exits_1_and_is_named(run_cli, version, name):
    verify, folder = version
    write(folder, {name: b"{}"})
    outcome = run_cli(*verify, "--model", folder)
    assert outcome.code == 1
    assert name in outcome.err


def test_other_policy_exits_1_and_both_are_named(run_cli, version, tmp_path):
    verify, folder = version
    outcome = run_cli(*verify, "--model", folder, "--policy", "selective")
    assert outcome.code == 1
    assert outcome.err.count("sha256:") == 2
    lax = yaml.safe_load((CONFIGS / "gates" / "default.yaml").read_text())
    file = tmp_path / "lax.yaml"
    file.write_text(yaml.safe_dump({**lax, "name": "lax", "max_epsilon": 1e9}))
    assert run_cli(*verify, "--model", folder, "--policy", file).code == 1
    file.write_text(yaml.safe_dump({**lax, "max_epsilon": 1e9}))
    outcome = run_cli(*verify, "--model", folder, "--policy", file)
    assert outcome.code == 2, "a file under the name of another policy"
    assert "sha256:" in outcome.err


def huge(file):
    with file.open("wb") as sink:
        sink.truncate(1 << 32)


def folder_in_its_place(file):
    file.unlink()
    file.mkdir()


def pipe_in_its_place(file):
    file.unlink()
    os.mkfifo(file)


def link_to_nothing(file):
    file.unlink()
    file.symlink_to("nowhere")


def link_to_itself(file):
    file.unlink()
    file.symlink_to(file.name)


def device_in_its_place(file):
    file.unlink()
    file.symlink_to("/dev/zero")


@pytest.mark.parametrize("which", [1, 3], ids=["decision", "key"])
@pytest.mark.parametrize(
    "spoil",
    [
        huge,
        folder_in_its_place,
        pipe_in_its_place,
        link_to_nothing,
        link_to_itself,
        device_in_its_place,
    ],
)
def test_what_is_no_small_file_exits_2_and_is_not_waited_for(
    run_cli, version, spoil, which
):
    verify, folder = version
    spoil(verify[which])
    outcome = run_cli(*verify, "--model", folder)
    assert outcome.code == 2, outcome.err
    assert verify[which].name in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    "body", [b"", b"\xff\xfe\x00", bytes(range(256)) * 999, b"[" * 99999]
)
def test_garbage_for_a_decision_exits_1_and_for_a_key_2(run_cli, version, body):
    verify, folder = version
    good = verify[1].read_bytes()
    verify[1].write_bytes(body)
    outcome = run_cli(*verify, "--model", folder)
    assert outcome.code == 1, outcome.err
    verify[1].write_bytes(good)
    verify[3].write_bytes(body)
    assert run_cli(*verify, "--model", folder).code == 2


@pytest.mark.parametrize("name", ["decision.signed.json", "nothing"])
def test_model_that_is_no_directory_exits_2(run_cli, version, tmp_path, name):
    verify, _ = version
    assert run_cli(*verify, "--model", tmp_path / name).code == 2


def test_link_that_names_the_decision_is_followed(run_cli, version, tmp_path):
    """Mounted secrets and configuration are links."""
    verify, folder = version
    link = tmp_path / "link.json"
    link.symlink_to(verify[1])
    assert run_cli("verify-decision", link, *verify[2:], "--model", folder).code == 0
