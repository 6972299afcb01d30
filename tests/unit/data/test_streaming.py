"""Corpora that lie on disk while they are made, and what is left of that."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from dptune.data import building, engine
from dptune.data.building import build_corpus
from dptune.data.duplicates import Duplicates
from dptune.data.engine import count, open_engine
from dptune.data.records import ProblemLog
from dptune.data.source import JsonlSource
from dptune.data.textfile import open_text
from dptune.errors import DataError
from dptune.files import private_folder
from dptune.privacy import PrivacyUnit


@pytest.fixture
def source(write_jsonl, rows):
    more = [row | {"id": f"c{i}"} for i, row in enumerate(rows[:5])]
    more += [
        row | {"id": f"n{i}", "text": f"{row['text']} x"} for i, row in enumerate(rows)
    ]
    return JsonlSource(path=write_jsonl([*rows, *more]), id_column="id")


@pytest.fixture
def open_umask():
    """Let everybody read what is written, as far as a process's mask goes."""
    before = os.umask(0)
    yield
    os.umask(before)


def build(source, **arguments):
    defaults = {"privacy_unit": PrivacyUnit.RECORD, "validate": False}
    return build_corpus(source, **(defaults | arguments))


def test_corpus_from_disk_is_that_from_memory(source, tmp_path):
    arguments = {"duplicates": Duplicates.NEAR, "near_duplicate_threshold": 0.5}
    plain = build(source, **arguments)
    found = build(source, **arguments, folder=tmp_path / "work")
    assert found == plain
    assert found.dataset.to_dict() == plain.dataset.to_dict()
    assert found.dataset.features == plain.dataset.features
    assert plain.report.num_near_duplicates > 0


def test_files_of_a_corpus_are_private_and_go(
    source, tmp_path, monkeypatch, open_umask
):
    work, seen = tmp_path / "work", {}

    def watched(*arguments, **settings):
        for path in (work, *work.rglob("*")):
            seen[path.suffix or path.name.split("-")[0]] = path.stat().st_mode
        return plain(*arguments, **settings)

    plain = building.corpus_fingerprint
    monkeypatch.setattr(building, "corpus_fingerprint", watched)
    before = set(Path(tempfile.gettempdir()).iterdir())
    corpus = build(source, folder=work)
    assert {".arrow", "corpus"} <= seen.keys()
    for name, mode in seen.items():
        others = stat.S_IRWXG | stat.S_IRWXO
        assert not mode & others, name
    assert not list(work.iterdir())
    assert {p.name for p in before} >= {
        p.name for p in Path(tempfile.gettempdir()).iterdir() if "corpus" in p.name
    }
    assert corpus.dataset[0]["text"]  # it is read from a file that has no name
    assert os.umask(0) == 0


def test_files_of_a_corpus_that_is_refused_go(source, tmp_path):
    with pytest.raises(DataError):
        build(source, folder=tmp_path / "work", min_records=1000)
    assert not list((tmp_path / "work").iterdir())


_KILLED = """
import os, signal, sys
from pathlib import Path
from dptune.files import private_folder
with private_folder(Path(sys.argv[1]), purpose="corpus") as folder:
    (folder / "records.arrow").write_text("private")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_folder_of_a_killed_process_goes_and_that_of_another_stays(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path)], check=False, cwd=Path.cwd()
    )
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("corpus-*")
    with private_folder(tmp_path, purpose="corpus") as first:
        assert not left.exists()
        with private_folder(tmp_path, purpose="corpus"):
            assert first.is_dir()
    assert not list(tmp_path.glob("corpus-*"))


def test_engine_spills_to_its_folder_for_its_owner_alone(
    tmp_path, monkeypatch, open_umask
):
    monkeypatch.setattr(engine, "_MEMORY_LIMIT", "24MiB")
    with engine.scratch_folder(tmp_path) as folder, open_engine(folder) as database:
        database.execute(
            "CREATE TABLE many AS SELECT hash(range) AS a, hash(range + 1) AS b, "
            "hash(range + 2) AS c FROM range(3000000)"
        )
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert sum(file.stat().st_size for file in files) > 1 << 20
        assert not [f for f in files if f.stat().st_mode & 0o077]
        assert count(database, "SELECT count(*) FROM many") == 3_000_000
    assert not list(tmp_path.glob("corpus-*"))


@pytest.mark.parametrize(
    "query",
    [
        "FROM read_csv('/etc/passwd')",
        "COPY (SELECT 1) TO 'out.csv'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH 'other.db'",
        "SET enable_external_access = true",
        "SET autoinstall_known_extensions = true",
    ],
)
def test_engine_reaches_no_file_and_no_network(query):
    with open_engine(None) as database, pytest.raises(engine.EngineError):
        database.execute(query)


def test_file_that_changes_while_it_is_read_is_reported(tmp_path):
    path, log = tmp_path / "a.txt", ProblemLog()
    path.write_bytes(b"first\n" * 10_000)
    text = open_text(path, name="a", encoding="utf-8", max_bytes=1 << 20, log=log)
    lines = text.lines()
    assert next(lines) == "first\n"
    path.write_bytes(b"first\n" * 4000 + b"\xff\n" * 10_000)
    list(lines)
    with pytest.raises(DataError, match="must not change while it is read"):
        log.raise_if_any()


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "cp1252", "utf-16"])
def test_undecodable_bytes_are_those_that_decoding_at_once_finds(
    encoding, tmp_path, monkeypatch
):
    monkeypatch.setattr("dptune.data.textfile._PIECE", 7)
    parts = [
        b"a\n",
        "é日😀".encode(),
        b"\xff",
        b"\xe2\x82",
        b"\x81",
        b"\n",
        b"\xf0\x9f",
    ]
    for number in range(60):
        data = b"".join(parts[(number * k) % 7] for k in range(1, 12))
        (tmp_path / "a").write_bytes(data)
        log = ProblemLog()
        open_text(
            tmp_path / "a", name="a", encoding=encoding, max_bytes=1 << 20, log=log
        )
        (message,) = [p.message for p in log.problems()] or [""]
        assert ";".join(_places(data, encoding)) in message.replace("; ", ";")
        assert bool(message) == bool(_places(data, encoding))


def _places(data, encoding):
    """Decode all at once, and name the first five places."""
    found, start = [], 0
    while start < len(data) and len(found) < 5:
        try:
            data[start:].decode(encoding)
        except UnicodeDecodeError as error:
            offset = start + error.start
            row = data.count(b"\n", 0, offset) + 1
            found.append(f"row {row} (byte {offset})")
            start += max(error.end, 1) if encoding == "utf-8" else len(data)
        else:
            break
    return found
