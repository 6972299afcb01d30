"""A run whose artifacts are in S3, by the production stack's own artifact store."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from infra.stacks.checks import _check_bucket
from infra.stacks.findings import State
from infra.stacks.settings import STACKS, read_stack
from tests.s3 import REGION, running_s3
from tests.tracking_servers import running_servers

REPOSITORY = Path(__file__).resolve().parents[2]
TINY = REPOSITORY / "tests" / "configs" / "tiny.yaml"
BUCKET, KEY = "dptune-artifacts", "AKIATHEPODSKEY"
STEPS = {"ingest", "detect", "train_private_finetune", "register", "gate"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def s3():
    with running_s3(BUCKET) as server:
        yield server


@pytest.fixture(scope="module")
def stack_file(s3, tmp_path_factory):
    """The repository's production stack, but for where its bucket is."""
    stack = yaml.safe_load((STACKS / "production.yaml").read_text())
    place = {"endpoint_url": s3.url, "region": REGION, "secret": "dptune-s3"}
    stack["artifact_store"] |= place
    file = tmp_path_factory.mktemp("stack") / "stack.yaml"
    file.write_text(yaml.safe_dump(stack))
    return file


@pytest.fixture(scope="module")
def finished(s3, stack_file, tmp_path_factory):
    """Exit code and output of a run, and the folder of everything it left here."""
    folder = tmp_path_factory.mktemp("s3")
    database = f"sqlite:///{folder}/mlflow.db"
    with running_servers(folder, mlflow_database=database) as servers:
        environment = servers.environment(folder / "home")
        environment |= {"PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
            environment.pop(name, None)
        setup = ("-m", "tests.servers.bucket", stack_file, KEY)
        train = ("run.py", "train", TINY, "--set", "registry.model_name=in-a-bucket")
        for words in (setup, train):
            done = subprocess.run(
                [sys.executable, *map(str, words)],
                cwd=REPOSITORY,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                break
    return done.returncode, done.stdout + done.stderr, folder


def test_run_passes(finished):
    code, said, _ = finished
    assert code == 0, said[-3000:]


def test_artifacts_of_every_step_are_in_the_bucket_and_nowhere_else(finished, s3):
    *_, folder = finished
    files = s3.files(BUCKET)
    assert {name.partition("/")[0] for name in files} >= STEPS
    assert all(files[name] for name in files if name.endswith((".json", ".arrow")))
    assert not (folder / "artifacts").exists()


def test_every_request_was_signed_with_the_key_of_the_secret(finished, s3):
    assert finished[0] == 0
    s3.keys.discard("operator")  # this test's own
    assert s3.keys == {KEY}


def test_stack_check_looks_for_the_bucket(s3, stack_file, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "operator")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "for-tests")
    store = read_stack(str(stack_file)).artifact_store
    assert _check_bucket(store).state is State.OK
    other = store.model_copy(update={"path": "s3://absent"})
    assert _check_bucket(other).state is State.MISSING
