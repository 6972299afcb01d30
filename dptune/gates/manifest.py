"""Every file of a registered version, byte for byte.

Loaders take what lies in a folder: an adapter beside the weights, or another
`generation_config.json`, makes another model of the same weights. So a decision is
about a list of files, and whoever relies on it compares the list with what lies there.

**Formal guarantee.** `read_manifest(folder)` has the digest of a manifest only if the
folder holds those regular files with those bytes and nothing else (up to a collision of
SHA-256): no other file, no empty folder, no link.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self

import yaml
from pydantic import Field

from dptune.errors import ArtifactError
from dptune.gates.criterion import canonical_digest
from dptune.results import Report

MODEL_FOLDER: Final = "model"
TOKENIZER_FOLDER: Final = "components/tokenizer"
_MLMODEL: Final = "MLmodel"
_DOWNLOAD_NOTE: Final = "registered_model_meta"
_NAMES_SHOWN: Final = 3
_SURROGATES: Final = re.compile("[\ud800-\udfff]")  # no manifest can hold them


class StoredFile(Report):
    """One file of a version.

    Args:
        path: below the version's folder, with `/`.
        size: bytes.
        sha256: of the bytes, in hexadecimal.
    """

    path: str
    size: int = Field(ge=0)
    sha256: str


class Manifest(Report):
    """The files of a version, sorted by path."""

    files: tuple[StoredFile, ...] = ()

    @property
    def digest(self: Self) -> str:
        """SHA-256 of the manifest's canonical JSON."""
        return canonical_digest(self)

    def in_one_folder(self: Self) -> "Manifest":
        """Return what a plain model folder made of MLflow's layout holds.

        Files of the tokenizer win over those of the model, as they do where the digest
        of the weights is made.
        """
        flat: dict[str, StoredFile] = {}
        for folder in (MODEL_FOLDER, TOKENIZER_FOLDER):
            for file in self.files:
                place, _, name = file.path.rpartition("/")
                if place == folder:
                    flat[name] = file.model_copy(update={"path": name})
        return Manifest(files=tuple(flat[name] for name in sorted(flat)))

    def without_download_note(
        self: Self, *, model_name: str, version: str
    ) -> "Manifest":
        """Leave out the one file that MLflow adds where it downloads a version.

        Only its very bytes are left out: anything else of that name stays, and is a
        file too many.
        """
        notes = {
            hashlib.sha256(_note(*names)).hexdigest()
            for names in ((None, None), (model_name, version))
        }
        kept = (
            file
            for file in self.files
            if file.path != _DOWNLOAD_NOTE or file.sha256 not in notes
        )
        return Manifest(files=tuple(kept))


def read_manifest(folder: Path) -> Manifest:
    """List every file of a folder with its digest.

    Raises:
        ArtifactError: it is no folder, or holds something that is no regular file:
            a link, a device, an empty folder, a name that is no text.
    """
    if not folder.is_dir():
        raise ArtifactError(f"{folder.name} must be a folder of files, but is none.")
    paths = sorted(_walk(folder, ""))
    return Manifest(files=tuple(_read(folder, path) for path in paths))


def is_mlflow_layout(folder: Path) -> bool:
    """Whether a folder is a version as MLflow keeps it."""
    return os.path.lexists(folder / _MLMODEL)


def difference(expected: Manifest, found: Manifest) -> str:
    """Say in a clause in which files two manifests differ; empty if in none.

    A file that was renamed is both missing and too many.
    """
    return _differs(
        {file.path: file for file in expected.files},
        {file.path: file for file in found.files},
    )


def differs_in_size(expected: Manifest, sizes: Mapping[str, int]) -> str:
    """Say the same of names and sizes alone, without reading any file."""
    return _differs(
        {file.path: file.size for file in expected.files},
        {path: size for path, size in sizes.items() if path != _DOWNLOAD_NOTE},
    )


def _differs(wanted: Mapping[str, object], there: Mapping[str, object]) -> str:
    """Name what is too many, missing or not the same."""
    both = wanted.keys() & there.keys()
    kinds = {
        "too many": sorted(there.keys() - wanted.keys()),
        "missing": sorted(wanted.keys() - there.keys()),
        "changed": sorted(path for path in both if wanted[path] != there[path]),
    }
    return "; ".join(f"{kind}: {_few(paths)}" for kind, paths in kinds.items() if paths)


def _few(paths: list[str]) -> str:
    """Name some files, in characters that a terminal shows as they are."""
    named = ", ".join(_shown(path) for path in paths[:_NAMES_SHOWN])
    more = len(paths) - _NAMES_SHOWN
    return f"{named} and {more} more" if more > 0 else named


def _shown(path: str) -> str:
    """Write a name that might deceive, such as one with a line break, in ASCII."""
    return path if path.isascii() and path.isprintable() else ascii(path)


def _walk(folder: Path, below: str) -> Iterator[str]:
    """List the regular files below a folder.

    Raises:
        ArtifactError: something else lies there.
    """
    empty = True
    with os.scandir(folder / below) as entries:
        for entry in entries:
            empty = False
            path = f"{below}/{entry.name}" if below else entry.name
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(folder, path)
            elif entry.is_file(follow_symlinks=False) and not _SURROGATES.search(path):
                yield path
            else:
                raise _strange(path)
    if empty and below:
        raise _strange(below)


def _read(folder: Path, path: str) -> StoredFile:
    """Digest one file; a link that has taken its place since is not followed."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with os.fdopen(os.open(folder / path, flags), "rb") as source:
        sha256 = hashlib.file_digest(source, "sha256").hexdigest()
        return StoredFile(path=path, size=source.tell(), sha256=sha256)


def _strange(path: str) -> ArtifactError:
    return ArtifactError(
        f"{_shown(path)} must be a regular file with a name that is text, but is a "
        "link, an empty folder, a device or the like. A version holds none."
    )


def _note(model_name: str | None, version: str | None) -> bytes:
    """Write the file that MLflow adds, as it writes it."""
    values = {"model_name": model_name, "model_version": version}
    return str(yaml.safe_dump(values, allow_unicode=True)).encode()
