"""Full disks, signals, garbage: one message, a code of the table, no record text."""

import contextlib
import errno
import io
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
import torch
from mlflow.store.db.utils import _get_managed_session_maker
from rich.console import Console
from safetensors.torch import save_file
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import sessionmaker
from zenml.exceptions import RunInterruptedException

from cli import main as entry
from cli.faults import Stopped, fault_of, signals_raised
from dptune.accounting.store.store import BudgetStore
from dptune.errors import ArtifactError, ConfigError, GateFailedError
from tests.full_disk import files_of_at_most

REPOSITORY = Path(__file__).resolve().parents[3]


def full_device(folder):
    with Path("/dev/full").open("w") as sink:
        sink.write("x")


def full_weights(folder):
    with files_of_at_most(4096):
        save_file({"a": torch.zeros(100_000)}, folder / "a.safetensors")


def full_database(folder):
    connection = sqlite3.connect(folder / "a.db")
    connection.execute("PRAGMA max_page_count = 2")
    connection.execute("CREATE TABLE t (x)")
    connection.execute("INSERT INTO t VALUES (zeroblob(100000))")


def garbage(folder):
    (folder / "a.db").write_bytes(b"garbage " * 1000)
    return folder / "a.db"


def garbage_database(folder):
    sqlite3.connect(garbage(folder)).execute("SELECT * FROM sqlite_master")


def garbage_through_sqlalchemy(folder):
    with create_engine(f"sqlite:///{garbage(folder)}").connect() as connection:
        connection.execute(text("SELECT 1 FROM t"))


def garbage_budget(folder):
    BudgetStore.open(f"sqlite:///{garbage(folder)}")


def emptied_registry(folder):
    """MLflow's session, on a file that went away and was made anew by SQLite."""
    engine = create_engine(f"sqlite:///{folder / 'mlflow.db'}")
    session = _get_managed_session_maker(sessionmaker(engine), "sqlite")
    with session() as opened:
        opened.execute(text("SELECT * FROM experiments"))


def read_only_database(folder):
    sqlite3.connect(folder / "a.db").execute("CREATE TABLE t (x)").connection.close()
    connection = sqlite3.connect(f"file:{folder}/a.db?mode=ro", uri=True)
    connection.execute("INSERT INTO t VALUES (1)")


def no_memory(folder):
    torch.empty(2**60, dtype=torch.uint8)


def no_server(folder):
    requests.get("http://127.0.0.1:9/", timeout=1)


def too_many_files(folder):
    raise OSError(errno.EMFILE, "Zebediah")


def no_locks(folder):
    raise OSError(errno.ENOLCK, "Zebediah")


def wrapped(folder):
    try:
        full_device(folder)
    except OSError as error:
        raise RuntimeError("Zebediah") from error


FAULTS = {
    full_device: "the disk is full",
    full_weights: "the disk is full",
    full_database: "the disk is full",
    wrapped: "the disk is full",
    garbage_database: "a database is damaged",
    garbage_through_sqlalchemy: "a database is damaged",
    garbage_budget: "budget store must answer",
    emptied_registry: "a database does not answer",
    read_only_database: "read-only",
    no_memory: "not enough memory",
    no_server: "a server cannot be reached",
    too_many_files: "too many files",
    no_locks: "such as to lock files",
}


def raising(error):
    """A command line that ends in an error, or in what a function raises."""

    def command():
        if isinstance(error, BaseException):
            raise error
        error()

    return lambda: command


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_one_message_and_code_4(fault, run_cli, monkeypatch, tmp_path):
    monkeypatch.setattr(entry, "build_app", raising(lambda: fault(tmp_path)))
    outcome = run_cli()
    assert outcome.code == 4, outcome.err
    assert FAULTS[fault] in outcome.err
    assert "no budget was spent" in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.out + outcome.err
    assert "Zebediah" not in outcome.err


def test_twin_that_lets_mlflow_speak_prints_a_trace(run_cli, monkeypatch, tmp_path):
    monkeypatch.setattr(entry, "build_app", raising(lambda: emptied_registry(tmp_path)))
    monkeypatch.setattr(
        entry, "_be_quiet", lambda: logging.getLogger("mlflow").setLevel(logging.ERROR)
    )
    assert "Traceback" in run_cli().err


def test_twin_that_knows_no_faults_calls_a_full_disk_a_crash(run_cli, monkeypatch):
    monkeypatch.setattr(entry, "build_app", raising(lambda: full_device(None)))
    monkeypatch.setattr(entry, "fault_of", lambda error: None)
    assert run_cli().code == 3


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("shape [4, 5] is not 6"),
        ValueError("Zebediah"),
        KeyError("x"),
        OSError("disk"),
        ArtifactError("weights must have a digest"),
    ],
)
def test_mistakes_of_ours_are_no_faults(error):
    assert fault_of(error) is None


def test_input_that_cannot_be_opened_stays_bad_input(tmp_path):
    """`raise ... from None` says that the system's error was answered."""

    def read():
        try:
            full_device(tmp_path)
        except OSError:
            raise ConfigError("path must be readable.") from None

    with pytest.raises(ConfigError) as refusal:
        read()
    assert fault_of(refusal.value) is None


def test_error_that_refers_to_itself_ends(tmp_path):
    error = RuntimeError("a")
    error.__cause__ = ValueError("b")
    error.__cause__.__context__ = error
    assert fault_of(error) is None


def test_error_that_names_nothing_on_a_full_disk_is_a_fault(run_cli, monkeypatch):
    """ZenML wraps what it meets, and drops it."""
    monkeypatch.setattr(entry, "build_app", raising(RuntimeError("Zebediah")))
    monkeypatch.setattr(
        "shutil.disk_usage", lambda folder: SimpleNamespace(free=0, total=1, used=1)
    )
    outcome = run_cli()
    assert outcome.code == 4
    assert "the disk is full" in outcome.err


def test_installation_that_cannot_be_imported_is_no_verdict(tmp_path):
    (tmp_path / "run.py").write_text((REPOSITORY / "run.py").read_text())
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "__init__.py").touch()
    (tmp_path / "cli" / "main.py").write_text("import no_such_package\n")
    command = [sys.executable, "run.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 3
    assert b"Traceback" not in done.stderr


def test_bytecode_is_nobody_elses_to_write(tmp_path):
    (tmp_path / "run.py").write_text((REPOSITORY / "run.py").read_text())
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "__init__.py").touch()
    (tmp_path / "cli" / "main.py").write_text("def main(): return 0\n")
    command = [sys.executable, "run.py"]
    environment = {k: v for k, v in os.environ.items() if k[:9] != "PYTHONDON"}
    subprocess.run(command, cwd=tmp_path, check=True, umask=0, env=environment)
    made = tmp_path / "cli" / "__pycache__"
    assert [p for p in (made, *made.iterdir()) if p.stat().st_mode & 0o077] == []


def test_crash_whose_trace_has_no_room_is_still_one_message(
    run_cli, monkeypatch, tmp_path
):
    monkeypatch.setattr(entry, "build_app", raising(RuntimeError("Zebediah")))

    def full(folder, error):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(entry, "write_trace", full)
    outcome = run_cli()
    assert outcome.code == 3
    assert "could not be written" in outcome.err
    assert "Zebediah" not in outcome.err


SLEEPING = """
import sys, time
from cli import main as entry
def command():
    print("ready", flush=True)
    time.sleep(60)
entry.build_app = lambda: command
sys.exit(entry.main())
"""


def test_signal_from_outside_says_what_was_spent():
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "COLUMNS": "200"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, "-c", SLEEPING]
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in err
    assert "no budget was spent" in err
    assert "Traceback" not in err


EARLY = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs have none
class Early:
    def find_spec(self, name, *_):
        if name == "cli.main":
            os.kill(os.getpid(), getattr(signal, sys.argv[1]))
sys.meta_path.insert(0, Early())
runpy.run_path("run.py", run_name="__main__")
"""


def stopped_early(number):
    """Send a signal while the program is being loaded."""
    command = [sys.executable, "-c", EARLY, number]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.returncode, " ".join(done.stderr.split())


@pytest.mark.parametrize(("number", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_while_the_program_is_loaded_is_answered(number, code):
    found, said = stopped_early(number)
    assert found == code
    assert f"stopped by {number}. Nothing was created and no budget was spent." in said
    assert "Traceback" not in said


LATE = """
import os, runpy, signal, sys
from cli import main as entry
signal.signal(signal.SIGINT, signal.default_int_handler)
number, times = sys.argv[1:]
sys.argv[1:] = ["configs"]
def last():
    for _ in range(int(times)):
        os.kill(os.getpid(), getattr(signal, number))
entry.drop_temporary_files = last
runpy.run_path("run.py", run_name="__main__")
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("times", [1, 2])
def test_signal_after_the_last_word_changes_no_answer_but_two_end(number, times):
    command = [sys.executable, "-c", LATE, number, str(times)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if times == 1 else -getattr(signal, number))
    assert done.stderr == ""
    assert "quickstart" in done.stdout


AT_ITS_END = """
import os, runpy, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)
number = getattr(signal, sys.argv[1])
class Last:
    def __del__(self, kill=os.kill, who=os.getpid(), number=number):
        kill(who, number)
sys.modules["last"] = types.ModuleType("last")
sys.modules["last"].one = Last()  # goes when Python has taken its handlers away
sys.argv[1:] = ["configs"]
runpy.run_path("run.py", run_name="__main__")
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_signal_while_the_interpreter_ends_changes_no_answer(number):
    command = [sys.executable, "-c", AT_ITS_END, number]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr == ""
    assert "quickstart" in done.stdout


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
)
def test_every_signal_has_its_own_code(number, code, run_cli, monkeypatch):
    monkeypatch.setattr(
        entry, "build_app", raising(lambda: os.kill(os.getpid(), number))
    )
    # tests that run in the background, or under nohup, inherit ignored signals
    before = signal.signal(number, signal.default_int_handler)
    try:
        outcome = run_cli()
    finally:
        signal.signal(number, before)
    assert outcome.code == code
    assert f"stopped by {signal.Signals(number).name}" in outcome.err


def test_signal_passes_through_zenml_and_broad_handlers(run_cli, monkeypatch):
    """What is told to end must not be taken for a step that failed."""

    def command():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except Exception:  # noqa: BLE001 - what libraries write
            return

    monkeypatch.setattr(entry, "build_app", lambda: command)
    assert run_cli().code == 143


def test_signal_in_a_destructor_is_asked_again(run_cli, monkeypatch):
    """Python drops what a destructor raises, prints a trace, and goes on."""

    class Dropped:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def listing():
        del_me = Dropped()
        del del_me
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            time.sleep(0.01)

    monkeypatch.setattr("cli.projects.speaker", listing)
    outcome = run_cli("configs")
    assert outcome.code == 143
    assert "stopped by SIGTERM" in outcome.err
    assert "Exception ignored" not in outcome.err


def test_failure_that_a_signal_brought_about_is_the_signals(run_cli, monkeypatch):
    """A library cleans up after the signal, meets its own lock, and raises that."""

    def listing():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(30)
        except BaseException:  # noqa: BLE001 - as libraries do
            raise sqlite3.OperationalError("database is locked") from None

    monkeypatch.setattr("cli.projects.speaker", listing)
    outcome = run_cli("configs")
    assert outcome.code == 143
    assert "stopped by SIGTERM" in outcome.err


def test_signal_that_zenml_alone_answers_is_a_stop(run_cli, monkeypatch):
    """`run.py train &` in a script ignores SIGINT, and ZenML's steps do not."""

    def listing():
        raise RunInterruptedException("The execution was interrupted.")

    monkeypatch.setattr("cli.projects.speaker", listing)
    outcome = run_cli("configs")
    assert outcome.code == 130
    assert "stopped by SIGINT" in outcome.err


def test_other_errors_in_a_destructor_are_told_as_before(monkeypatch):
    told = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)

    class Broken:
        def __del__(self):
            raise ValueError("told")

    with signals_raised():
        broken = Broken()
        del broken
    assert [type(one.exc_value) for one in told] == [ValueError]


def test_command_in_a_thread_sets_no_signals(run_cli, monkeypatch):
    monkeypatch.setattr(entry, "build_app", raising(GateFailedError("no")))
    codes = []
    thread = threading.Thread(target=lambda: codes.append(run_cli().code))
    thread.start()
    thread.join()
    assert codes == [1]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_output_to_a_full_device_is_a_fault(run_cli, monkeypatch):
    full = Path("/dev/full").open("w")  # noqa: SIM115 - it cannot be closed in peace
    monkeypatch.setattr(sys, "stdout", full)
    outcome = run_cli("configs")
    with contextlib.suppress(OSError):
        full.close()
    assert outcome.code == 4
    assert "the disk is full" in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_a_terminal_cannot_write_ends_no_command(run_cli, monkeypatch, encoding):
    """A gate that had passed ended in exit code 3, of an `ε`."""
    written = io.BytesIO()
    out = io.TextIOWrapper(written, encoding=encoding, write_through=True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(
        entry, "build_app", lambda: partial(out.write, "spent ε \udcff\n")
    )
    assert run_cli("status").code == 0
    said = written.getvalue().decode(encoding)
    assert said in {"spent ε \\udcff\n", "spent \\u03b5 \\udcff\n"}


@pytest.mark.parametrize("command", [["budget", "history"], ["budget", "release"]])
def test_argument_that_is_no_text_is_bad_input(run_cli, command):
    outcome = run_cli(*command, os.fsdecode(b"c\xff"))
    outcome.assert_refused("argument 3", "must be text")


def test_output_that_nobody_reads_is_no_verdict(run_cli, monkeypatch):
    def listing():
        raise BrokenPipeError(errno.EPIPE, "closed")

    monkeypatch.setattr("cli.projects.speaker", listing)
    out, err = sys.stdout, sys.stderr
    try:
        assert run_cli("configs").code == 141
    finally:
        sys.stdout, sys.stderr = out, err


def test_stopped_is_no_exception():
    assert not issubclass(Stopped, Exception)
    assert issubclass(DBAPIError, Exception)


def test_what_a_terminal_would_obey_is_escaped():
    def refuse():
        raise GateFailedError("by \u202ehand \x1b[31m[bold]")

    errors = Console(file=io.StringIO())
    assert entry._answered(refuse, errors) == entry.REFUSED
    assert errors.file.getvalue() == "refused by \\u202ehand \\x1b[31m[bold]\n"
