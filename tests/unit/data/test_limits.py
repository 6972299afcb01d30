"""A source reads no more than it may: files in the data root, of a known size."""

import gzip
import json
import resource

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dptune.data import textfile as files
from dptune.errors import DataError
from tests.support.sources import parse_source, read_source

LIMIT = 1 << 20


def bomb(folder, size):
    """A small file of very long, equal lines."""
    line = json.dumps({"text": "a" * 1000}) + "\n"
    with gzip.open(folder / "a.jsonl.gz", "wt") as sink:
        for _ in range(size // len(line)):
            sink.write(line)
    return {"kind": "jsonl", "path": "a.jsonl.gz"}


def parquet_bomb(folder, size):
    table = pa.table({"text": ["a" * 1000] * (size // 1000)})
    pq.write_table(table, folder / "a.parquet")
    return {"kind": "parquet", "path": "a.parquet"}


def plain(folder, size):
    (folder / "a.txt").write_text("a\n" * (size // 2))
    return {"kind": "text", "path": "a.txt"}


def folder_of_one(folder, size):
    (folder / "d").mkdir()
    (folder / "d" / "a.txt").write_text("a\n" * (size // 2))
    return {"kind": "folder", "path": "d"}


def read(source, folder):
    return read_source(parse_source(source), data_root=folder)


@pytest.mark.parametrize("make", [bomb, parquet_bomb, plain, folder_of_one])
def test_file_that_unpacks_beyond_its_limit_is_refused(make, tmp_path):
    source = make(tmp_path, 8 * LIMIT) | {"max_bytes": LIMIT}
    with pytest.raises(DataError, match=r"must hold at most max_bytes \(1,048,576\)"):
        read(source, tmp_path)


@pytest.mark.parametrize("make", [bomb, parquet_bomb, plain, folder_of_one])
def test_file_within_its_limit_is_read(make, tmp_path):
    source = make(tmp_path, LIMIT // 2) | {"max_bytes": LIMIT}
    assert read(source, tmp_path).num_rows > 0


def test_gzip_bomb_is_refused_without_unpacking_it(tmp_path):
    source = bomb(tmp_path, 64 << 20)
    assert (tmp_path / "a.jsonl.gz").stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match="max_bytes"):
        read(source | {"max_bytes": 4 << 20}, tmp_path)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 32 << 10  # kilobytes
    assert parse_source(source).max_bytes == 1 << 30


def test_twin_that_unpacks_all_of_a_file_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "pieces", lambda stream, _: iter([stream.read()]))
    source = bomb(tmp_path, 8 * LIMIT) | {"max_bytes": LIMIT}
    assert read(source, tmp_path).num_rows > 0  # and nobody refused it


@pytest.fixture
def root(tmp_path):
    """A data root, and a secret file beside it that is no data."""
    (tmp_path / "secret.txt").write_text("root:x:0:0\n")
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


def by_dots(root):
    return {"kind": "text", "path": "../secret.txt"}


def by_absolute_path(root):
    return {"kind": "text", "path": str(root.parent / "secret.txt")}


def by_link(root):
    (root / "a.txt").symlink_to(root.parent / "secret.txt")
    return {"kind": "text", "path": "a.txt"}


def by_linked_folder(root):
    (root / "d").symlink_to(root.parent)
    return {"kind": "text", "path": "d/secret.txt"}


def by_folder(root):
    return {"kind": "folder", "path": ".."}


def by_link_in_a_folder(root):
    (root / "d").mkdir()
    (root / "d" / "a.txt").symlink_to(root.parent / "secret.txt")
    return {"kind": "folder", "path": "d"}


def by_split(root):
    (root / "a.txt").write_text("a\n")
    return {"kind": "text", "train": "a.txt", "test": "../secret.txt"}


def by_hub_name(root):
    return {"kind": "hub", "name": "..", "split": "train"}


def by_link_in_a_hub_folder(root):
    (root / "d").mkdir()
    (root / "d" / "train.txt").symlink_to(root.parent / "secret.txt")
    return {"kind": "hub", "name": "d", "split": "train"}


def by_readme_of_a_hub_folder(root, path="../../secret.txt"):
    (root / "d").mkdir()
    named = f"configs:\n- config_name: default\n  data_files: '{path}'"
    (root / "d" / "README.md").write_text(f"---\n{named}\n---\n")
    return {"kind": "hub", "name": "d", "split": "train"}


def by_absolute_path_of_a_readme(root):
    return by_readme_of_a_hub_folder(root, root.parent / "secret.txt")


def by_address_of_a_readme(root):
    return by_readme_of_a_hub_folder(root, f"file://{root.parent / 'secret.txt'}")


def by_loop(root):
    (root / "a.txt").symlink_to(root / "a.txt")
    return {"kind": "text", "path": "a.txt"}


WAYS = [
    *(by_dots, by_absolute_path, by_link, by_linked_folder, by_folder),
    *(by_link_in_a_folder, by_split, by_hub_name, by_loop),
]
HUB_WAYS = [
    *(by_link_in_a_hub_folder, by_readme_of_a_hub_folder),
    *(by_absolute_path_of_a_readme, by_address_of_a_readme),
]


@pytest.mark.parametrize("way", [*WAYS, *HUB_WAYS])
def test_path_that_leaves_the_data_root_is_refused(way, root):
    with pytest.raises(DataError, match=r"inside the data root|must exist") as refusal:
        read(way(root), root)
    assert "root:x" not in str(refusal.value)
    assert str(root) not in str(refusal.value)


def test_twin_that_anchors_a_path_and_looks_no_further_is_caught(root, monkeypatch):
    monkeypatch.setattr(
        "dptune.data.readers.locate", lambda path, data_root, **_: data_root / path
    )
    assert read(by_link(root), root)["text"] == ["root:x:0:0"]


@pytest.mark.parametrize("way", HUB_WAYS)
def test_twin_that_looks_at_a_hub_folder_alone_is_caught(
    way, root, tmp_path, monkeypatch
):
    """What was the rule before: the files in it may be links, or named by a README."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("dptune.data.parsers.locate", lambda path, *_, **__: path)
    assert read(way(root), root)["text"] == ["root:x:0:0"]


def test_link_of_a_hub_folder_that_stays_inside_is_read(root, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (root / "a.txt").write_text("a\n")
    (root / "d").mkdir()
    (root / "d" / "train.txt").symlink_to("../a.txt")
    source = {"kind": "hub", "name": "d", "split": "train"}
    assert read(source, root)["text"] == ["a"]


def test_paths_that_stay_inside_are_read(root):
    (root / "a.txt").write_text("a\n")
    (root / "b.txt").symlink_to("a.txt")
    for path in ("a.txt", "b.txt", "./a.txt", "../root/a.txt", str(root / "a.txt")):
        assert read({"kind": "text", "path": path}, root)["text"] == ["a"]
