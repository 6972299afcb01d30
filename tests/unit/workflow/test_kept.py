"""The preflight reads once; the step takes over what it made if nothing changed."""

import json
import os
from pathlib import Path

import pytest

from dptune.config import DataSettings
from dptune.data.synthetic import iter_dialogues
from dptune.errors import DataError
from dptune.parts import replaced
from dptune.workflow import ingest, kept
from dptune.workflow.ingest import read_corpus
from dptune.workflow.kept import Source, drop_corpus, is_kept


@pytest.fixture
def file(tmp_path):
    found = tmp_path / "a.jsonl"
    rows = iter_dialogues(num_records=120, private=True, seed=1)
    lines = [
        json.dumps({"id": r.id, "user": r.unit_id, "text": r.text, "name": "Li Wei"})
        for r in rows
    ]
    found.write_text("\n".join([*lines, lines[0].replace('"id": "', '"id": "x')]))
    return found


def settings(file, **changes):
    source = {"kind": "jsonl", "path": str(file), "id_column": "id"}
    source |= {"unit_column": "user", "known_columns": {"name": "PERSON"}}
    given = {"source": source, "privacy_unit": "user", "min_records": 10}
    return DataSettings.model_validate(given | changes)


@pytest.fixture
def built(monkeypatch):
    """One entry for each corpus that was made from its source."""
    made = []

    def counted(*args, **more):
        made.append(args)
        return real(*args, **more)

    real = ingest.build_corpus
    monkeypatch.setattr(ingest, "build_corpus", counted)
    return made


def read(data, tmp_path, **more):
    given = {"data_root": tmp_path, "folder": tmp_path, "validate": False}
    return read_corpus(data, **given | more)


def test_corpus_that_was_kept_is_taken_over_whole(file, tmp_path, built):
    data = settings(file)
    made = read(data, tmp_path, keep=True)
    found = read(data, tmp_path, expected=made.source_fingerprint)
    assert len(built) == 1
    assert found.dataset.to_list() == made.dataset.to_list()
    assert found.dataset.features == made.dataset.features
    assert (found.report, found.dropped_units) == (made.report, made.dropped_units)
    assert not set(found.dataset.data.table.schema.metadata or {}) & {b"dptune"}
    assert (tmp_path / "read.arrow").stat().st_mode & 0o777 == 0o600
    drop_corpus(tmp_path)
    assert not is_kept(tmp_path)
    assert read(data, tmp_path).fingerprint == made.fingerprint
    assert len(built) == 2


def test_generated_corpus_is_taken_over_with_its_gold(tmp_path, built):
    data = DataSettings.model_validate(
        {"source": {"kind": "synthetic", "num_records": 120}, "privacy_unit": "user"}
        | {"min_records": 10}
    )
    made = read(data, tmp_path, keep=True)
    assert read(data, tmp_path).dataset.to_list() == made.dataset.to_list()
    assert len(built) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 1},
        {"duplicates": "keep"},
        {"max_records": 100},
        {"privacy_unit": "record"},
    ],
)
def test_other_settings_are_read_anew(file, tmp_path, built, changes):
    read(settings(file), tmp_path, keep=True)
    read(settings(file, **changes), tmp_path)
    read(settings(file), tmp_path, validate=True)
    assert len(built) == 3


def test_folder_with_a_name_that_is_no_text_is_read_and_kept(tmp_path, built):
    """File systems take any bytes."""
    folder = tmp_path / "d"
    folder.mkdir()
    lines = "".join(f"line {number}\n" for number in range(40))
    Path(os.fsdecode(os.fsencode(folder) + b"/a\xff.txt")).write_text(lines)
    source = {"kind": "folder", "path": "d", "record": "line"}
    data = DataSettings.model_validate(
        {"source": source, "privacy_unit": "record", "min_records": 10}
        | {"allow_content_hash_ids": True}
    )
    made = read(data, tmp_path, keep=True)
    assert read(data, tmp_path).fingerprint == made.fingerprint
    assert len(built) == 1


def changed(file):
    """Change one byte, and neither size nor time."""
    before = file.stat()
    file.write_bytes(file.read_bytes().replace(b"SYS", b"SYT", 1))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_changed_source_is_read_anew_and_twin_that_looks_at_sizes_is_caught(
    file, tmp_path, built, monkeypatch
):
    data = settings(file)
    made = read(data, tmp_path, keep=True)
    changed(file)
    assert read(data, tmp_path).fingerprint != made.fingerprint
    with pytest.raises(DataError, match="must not change while a run starts"):
        read(data, tmp_path, expected=made.source_fingerprint)
    monkeypatch.setattr(
        Source, "of", lambda *_, **__: Source(key=f"{file.stat().st_size}", num_lines=0)
    )
    twin = read(data, tmp_path, keep=True)
    changed(file)
    assert read(data, tmp_path).fingerprint == twin.fingerprint


def test_copies_under_new_ids_are_another_source_of_the_same_corpus(tmp_path):
    """The step that reads was answered from the cache, and they were not charged."""
    source = {"kind": "jsonl", "path": "rows.jsonl", "id_column": "id"}
    data = DataSettings.model_validate(
        {"source": source, "privacy_unit": "record", "min_records": 10}
        | {"splits": {"validation": 0.0, "test": 0.3}}
    )
    rows = [{"id": f"r{n}", "text": f"text {n}"} for n in range(20)]

    def write(*more):
        lines = map(json.dumps, (*rows, *more))
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
        return read(data, tmp_path)

    made = write()
    text = made.split("train")[0]["text"]  # no copy takes its place
    grown, renamed = write({"id": "a", "text": text}), write({"id": "b", "text": text})
    assert made.fingerprint == grown.fingerprint == renamed.fingerprint
    assert made.source_fingerprint == made.fingerprint
    assert len({c.source_fingerprint for c in (made, grown, renamed)}) == 3
    with pytest.raises(DataError, match="must not change while a run starts"):
        read(data, tmp_path, expected=grown.source_fingerprint)


def test_file_that_holds_other_records_is_read_anew_and_twin_that_trusts_it_is_caught(
    file, tmp_path, built, monkeypatch
):
    data = settings(file)
    made = read(data, tmp_path, keep=True)
    source = Source.of(data, data_root=tmp_path, validate=False)
    other = replaced(made.dataset, "text", {0: "another text"})
    kept.keep_corpus(made.with_dataset(other), source, tmp_path)
    assert read(data, tmp_path).dataset["text"][0] != "another text"
    monkeypatch.setattr(kept, "corpus_fingerprint", lambda _: made.fingerprint)
    assert read(data, tmp_path).dataset["text"][0] == "another text"


@pytest.mark.parametrize("content", [b"", b"ARROW1", None])
def test_broken_file_is_read_anew(file, tmp_path, built, content):
    data = settings(file)
    read(data, tmp_path, keep=True)
    place = tmp_path / "read.arrow"
    place.write_bytes(place.read_bytes()[:-20] if content is None else content)
    read(data, tmp_path)
    assert len(built) == 2


def test_faults_are_those_of_a_source_that_nobody_kept(file, tmp_path):
    file.write_text("no json\n")
    with pytest.raises(DataError) as plain:
        read(settings(file), tmp_path)
    with pytest.raises(DataError) as keeping:
        read(settings(file), tmp_path, keep=True, on_progress=lambda *_: None)
    assert str(plain.value) == str(keeping.value)
    assert not is_kept(tmp_path)


def test_progress_tells_what_is_done_and_about_how_much(file, tmp_path, monkeypatch):
    monkeypatch.setattr("dptune.data.building._ROWS_BETWEEN_TELLING", 50)
    told = []
    read(settings(file), tmp_path, on_progress=lambda *now: told.append(now))
    assert [now for now in told if now[0] == "read"] == [
        *(("read", done, 120) for done in (0, 50, 100)),
    ]
    assert ("look for copies", 0, 121) in told
