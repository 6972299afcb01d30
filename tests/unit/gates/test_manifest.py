"""A folder holds the files of a version and nothing else, or it is refused by name."""

import os
import random
import shutil
import socket

import pytest

from dptune.errors import ArtifactError
from dptune.gates.manifest import (
    Manifest,
    StoredFile,
    difference,
    differs_in_size,
    read_manifest,
)
from dptune.gates.signing import refuse_other_files
from tests.unit.gates.test_signing import statement

LAYOUT = {
    "MLmodel": b"flavors: {}\n",
    "LICENSE.txt": b"Apache\n",
    "requirements.txt": b"torch\n",
    "model/config.json": b"{}",
    "model/generation_config.json": b'{"do_sample": false}',
    "model/model.safetensors": bytes(range(256)) * 4,
    "components/tokenizer/tokenizer.json": b'{"version": "1.0"}',
    "components/tokenizer/tokenizer_config.json": b"{}",
}


def write(folder, files):
    for path, body in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(body)
    return folder


@pytest.fixture
def stored(tmp_path):
    """A version as MLflow lays it out."""
    return write(tmp_path / "stored", LAYOUT)


@pytest.fixture
def plain(tmp_path, stored):
    """A model folder made of it."""
    folder = tmp_path / "plain"
    for part in ("model", "components/tokenizer"):
        shutil.copytree(stored / part, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture
def signed(stored):
    return statement(manifest=read_manifest(stored))


def test_every_file_is_listed_by_path_size_and_bytes(stored):
    listed = read_manifest(stored)
    assert [file.path for file in listed.files] == sorted(LAYOUT)
    assert [file.size for file in listed.files] == [
        len(LAYOUT[path]) for path in sorted(LAYOUT)
    ]
    assert difference(listed, read_manifest(stored)) == ""
    assert Manifest.model_validate_json(listed.model_dump_json()) == listed


def test_both_layouts_of_the_version_are_taken(signed, stored, plain):
    refuse_other_files(signed, stored)
    refuse_other_files(signed, plain)


def test_tokenizer_files_win_in_a_plain_folder_as_they_do_for_the_digest(tmp_path):
    both = {"model/a.json": b"model", "components/tokenizer/a.json": b"tokenizer"}
    flat = read_manifest(write(tmp_path / "both", both)).in_one_folder()
    assert flat == read_manifest(write(tmp_path / "one", {"a.json": b"tokenizer"}))


def add(name, body=b"x"):
    return lambda folder: write(folder, {name: body})


def move(name, to):
    def change(folder):
        (folder / to).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).rename(folder / to)

    return change


def swap(name, other):
    def change(folder):
        body = (folder / name).read_bytes()
        (folder / name).write_bytes((folder / other).read_bytes())
        (folder / other).write_bytes(body)

    return change


def link(name, to):
    return lambda folder: (folder / name).symlink_to(to)


def link_in_place(name):
    """The same bytes, from elsewhere: they may change after the look."""

    def change(folder):
        other = folder.parent / "elsewhere"
        (folder / name).rename(other)
        (folder / name).symlink_to(other)

    return change


def listening(folder):
    """A socket in the folder."""
    here = os.open(folder, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{here}/socket")
    finally:
        os.close(here)


NAMES = {  # what lies beside the weights, and some loader takes
    "adapter weights": add("adapter_model.safetensors"),
    "adapter": add("adapter_config.json", b'{"peft_type": "LORA"}'),
    "pickle": add("pytorch_model.bin"),
    "index": add("model.safetensors.index.json", b"{}"),
    "code": add("modeling_gpt2.py"),
    "hidden": add(".config.json"),
    "nested": add("adapter/adapter_config.json"),
    "deep": add("a/b/c/d.txt"),
    "empty": add("empty.json", b""),
    "case": add("Config.json"),
    "look-alike": add("config\u200b.json"),
    "line break": add("x\nconfig.json"),
    "empty folder": lambda folder: (folder / "extra").mkdir(),
    "folder by a file's name": lambda folder: (folder / "adapter_config.json").mkdir(),
    "no text": lambda folder: (folder / "\udcff.json").touch(),
    "pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "socket": listening,
    "link to a folder": link("more", "/"),
    "link to nothing": link("adapter_model.safetensors", "nowhere"),
}
PLAIN = {
    "changed setting": add("generation_config.json", b'{"do_sample": true}'),
    "changed weights": add("model.safetensors", b"others"),
    "truncated": lambda folder: os.truncate(folder / "model.safetensors", 1023),
    "longer": lambda folder: os.truncate(folder / "model.safetensors", 1025),
    "missing setting": lambda folder: (folder / "generation_config.json").unlink(),
    "missing weights": lambda folder: (folder / "model.safetensors").unlink(),
    "renamed": move("model.safetensors", "Model.safetensors"),
    "moved below": move("config.json", "model/config.json"),
    "tokenizer swapped": swap("tokenizer.json", "tokenizer_config.json"),
    "link in place": link_in_place("model.safetensors"),
}
STORED = {
    "changed note": add("registered_model_meta", b"model_name: m\nextra: 1\n"),
    "another version's note": add(
        "registered_model_meta", b"model_name: m\nmodel_version: '8'\n"
    ),
    "note elsewhere": add(
        "model/registered_model_meta", b"model_name: null\nmodel_version: null\n"
    ),
    "changed MLmodel": add("MLmodel", b"flavors: {python_function: {}}\n"),
    "changed requirements": add("requirements.txt", b"torch @ https://evil\n"),
    "adapter in the model's folder": add("model/adapter_config.json", b"{}"),
    "other components": add("components/feature_extractor/a.json"),
    "MLmodel as a folder": lambda folder: (
        (folder / "MLmodel").unlink(),
        (folder / "MLmodel").mkdir(),
    ),
    "link in place": link_in_place("components/tokenizer/tokenizer.json"),
    "parts linked": lambda folder: (
        (folder / "model").rename(folder.parent / "model"),
        (folder / "model").symlink_to(folder.parent / "model"),
    ),
}


@pytest.mark.parametrize("name", [*NAMES, *PLAIN])
def test_plain_folder_that_is_not_the_version_is_refused(name, signed, plain):
    (NAMES | PLAIN)[name](plain)
    with pytest.raises(
        ArtifactError, match=r"json|safetensors|bin|py|txt|extra|more|pipe|socket"
    ):
        refuse_other_files(signed, plain)


@pytest.mark.parametrize("name", [*NAMES, *STORED])
def test_stored_folder_that_is_not_the_version_is_refused(name, signed, stored):
    (NAMES | STORED)[name](stored)
    with pytest.raises(ArtifactError):
        refuse_other_files(signed, stored)


@pytest.mark.parametrize(
    "note",
    [
        b"model_name: null\nmodel_version: null\n",
        b"model_name: m\nmodel_version: '7'\n",
    ],
)
def test_note_that_mlflow_adds_to_a_download_is_let_through(note, signed, stored):
    write(stored, {"registered_model_meta": note})
    refuse_other_files(signed, stored)


def test_every_changed_byte_of_a_version_is_found(signed, stored):
    draw = random.Random(3)  # noqa: S311 - places, no secret
    places = [(path, i) for path, body in LAYOUT.items() for i in range(len(body))]
    for path, place in draw.sample(places, 200):
        body = bytearray(LAYOUT[path])
        body[place] ^= 1 << draw.randrange(8)
        (stored / path).write_bytes(body)
        with pytest.raises(ArtifactError, match="changed"):
            refuse_other_files(signed, stored)
        (stored / path).write_bytes(LAYOUT[path])


def test_twin_that_looks_at_known_names_only_lets_an_adapter_through(
    signed, plain, monkeypatch
):
    """What `verify-decision` did: a fixed list of names, hashed."""
    add("adapter_config.json", b"{}")(plain)

    def known_names(folder):
        found = read_manifest(folder)
        expected = signed.manifest.in_one_folder()
        names = {file.path for file in expected.files}
        return Manifest(files=tuple(f for f in found.files if f.path in names))

    monkeypatch.setattr("dptune.gates.signing.read_manifest", known_names)
    refuse_other_files(signed, plain)


def test_names_and_sizes_alone_tell_what_they_can(stored):
    listed = read_manifest(stored)
    sizes = {path: len(body) for path, body in LAYOUT.items()}
    assert differs_in_size(listed, sizes | {"registered_model_meta": 40}) == ""
    assert "too many: a.py" in differs_in_size(listed, sizes | {"a.py": 1})
    assert "changed: MLmodel" in differs_in_size(listed, sizes | {"MLmodel": 1})
    del sizes["model/config.json"]
    assert "missing: model/config.json" in differs_in_size(listed, sizes)


def test_what_is_no_folder_is_refused(tmp_path):
    for name in ("file", "nothing"):
        with pytest.raises(ArtifactError, match="folder"):
            read_manifest(tmp_path / name)
        (tmp_path / "file").touch()


def test_names_are_written_so_that_no_terminal_is_deceived(signed, plain):
    add("x\n\x1b[31mconfig.json")(plain)
    with pytest.raises(ArtifactError) as refusal:
        refuse_other_files(signed, plain)
    assert "\x1b" not in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_difference_names_three_files_and_counts_the_others():
    def named(count):
        files = tuple(StoredFile(path=f"f{i}", size=0, sha256="") for i in range(count))
        return difference(Manifest(files=files), Manifest())

    assert named(0) == ""
    assert named(3) == "missing: f0, f1, f2"
    assert named(5) == "missing: f0, f1, f2 and 2 more"
