"""The files of a registered version, as they lie in MLflow's store."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from dptune.errors import ArtifactError
from dptune.gates.evidence import FileEvidence
from dptune.gates.manifest import (
    MODEL_FOLDER,
    TOKENIZER_FOLDER,
    Manifest,
    difference,
    read_manifest,
)
from dptune.models.digest import model_digest
from dptune.models.source import ModelBundle
from dptune.results import RegisteredVersion
from steps import _tracking

_PARTS = (MODEL_FOLDER, TOKENIZER_FOLDER)
_MLMODEL = "MLmodel"
_NAMES_PLACES = frozenset({_MLMODEL, "LICENSE.txt"})  # a note on the model's hub page
_OF_ONE_WRITING = frozenset(
    {
        *("artifact_path", "model_id", "model_uuid", "run_id", "utc_time_created"),
        *("model_size_bytes", "prompts", "source_model_name"),
    }
)


def look_at_files(version: RegisteredVersion) -> FileEvidence:
    """Read every file of a version; what cannot be read is said, and never raised."""
    known = _tracking.get_version(version.model_name, version.version)
    found = FileEvidence(
        registry_digest=version.model_digest,
        registry_manifest=_tracking.files_of(known),
    )
    with _tracking.version_folder(version.model_name, version.version) as folder:
        try:
            stored = manifest_of(version, folder)
        except ArtifactError as error:
            return found.model_copy(update={"fault": str(error)})
        found = found.model_copy(update={"stored": stored})
        if not stored.files:
            return found.model_copy(update={"fault": "there are none."})
        try:
            return found.model_copy(update={"model_digest": _digest_of(folder)})
        except ArtifactError:  # its message holds the place of the store
            fault = "they are no complete model of safetensors."
            return found.model_copy(update={"fault": fault})


def manifest_of(version: RegisteredVersion, folder: Path) -> Manifest:
    """List the files of a version, but for the one that MLflow adds to downloads.

    Raises:
        ArtifactError: something in it is no regular file.
    """
    return read_manifest(folder).without_download_note(
        model_name=version.model_name, version=version.version
    )


def register_files(
    version: RegisteredVersion, folder: Path, *, known: Manifest | None
) -> Manifest:
    """List the files of a version that is being registered.

    Args:
        version: whose weights are in the store now.
        folder: the model directory that was trained.
        known: its files when it was registered before, as the budget store noted;
            None if it noted nothing of them. Then they must be what MLflow writes of
            the folder: whatever else lies there, nobody measured.

    Raises:
        ArtifactError: the store holds other weights, or other files.
    """
    files = look_at_files(version)
    found = [difference(known, files.stored)] if known else []
    if not files.fault and known is None:
        found.append(_unlike_written(version, folder))
    if files.registry_manifest not in {"", files.stored.digest}:
        found.append("the registry knows another list of files")
    differs = "; ".join(filter(None, found))
    if files.fault or files.model_digest != version.model_digest or differs:
        what = differs or files.fault or f"weights {files.model_digest[:16]}"
        raise ArtifactError(
            f"version {version.version} of {version.model_name} must hold the weights "
            f"{version.model_digest[:16]} that are registered, got {what}. Restore its "
            "files in MLflow's store, or delete the version."
        )
    return files.stored


def _unlike_written(version: RegisteredVersion, folder: Path) -> str:
    """Say where the files of a version are not what MLflow writes of a directory."""
    with (
        _tracking.written_anew(folder) as fresh,
        _tracking.version_folder(version.model_name, version.version) as there,
    ):
        stored = manifest_of(version, there)
        written, found = map(_without_places, (read_manifest(fresh), stored))
        if differs := difference(written, found):
            return differs
        same = _settings(fresh / _MLMODEL) == _settings(there / _MLMODEL)
        return "" if same else f"changed: {_MLMODEL}"


def _without_places(files: Manifest) -> Manifest:
    """Forget the bytes of files that name the directory that was written."""
    blank = {"size": 0, "sha256": ""}
    return Manifest(
        files=tuple(
            file.model_copy(update=blank) if file.path in _NAMES_PLACES else file
            for file in files.files
        )
    )


def _settings(file: Path) -> object:
    """Read what MLflow loads a model by, without what names one time of writing."""
    try:
        values = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return _without_names(values)


def _without_names(values: object) -> object:
    """Leave out keys that name one time of writing, at any depth."""
    if not isinstance(values, dict):
        return values
    return {
        key: _without_names(value)
        for key, value in values.items()
        if key not in _OF_ONE_WRITING
    }


@contextmanager
def fetched_bundle(model_name: str, version: str) -> Iterator[ModelBundle]:
    """Hold a copy of a version's weights and tokenizer in one directory, then drop it.

    Raises:
        ArtifactError: there is no such version, or its weights are not what was
            registered.
    """
    known = _tracking.describe(model_name, version)
    with TemporaryDirectory(prefix="dptune-version-") as home:
        folder = Path(home, "bundle")
        with _tracking.version_folder(model_name, version) as source:
            manifest_of(known, source)  # refuses links
            for part in _PARTS:
                shutil.copytree(source / part, folder, dirs_exist_ok=True)
        bundle = ModelBundle(path=folder, digest=model_digest(folder))
        if bundle.digest != known.model_digest:
            raise ArtifactError(
                f"weights of version {version} of {model_name} must have digest "
                f"{known.model_digest[:16]}, got {bundle.digest[:16]}. Restore them."
            )
        yield bundle


def _digest_of(folder: Path) -> str:
    """Digest the weights of a version as MLflow lays them out.

    Raises:
        ArtifactError: there is no model that can be read.
    """
    with TemporaryDirectory(prefix="dptune-version-") as home:
        for part in _PARTS:
            for source in sorted((folder / part).glob("*")):
                link = Path(home) / source.name
                link.unlink(missing_ok=True)  # the tokenizer's files win
                link.symlink_to(source.resolve())
        return model_digest(Path(home))
