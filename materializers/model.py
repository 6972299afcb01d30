"""A model directory (safetensors, JSON, tokenizer files) as an artifact."""

from pathlib import Path
from typing import Any, ClassVar

from zenml.enums import ArtifactType
from zenml.io import fileio
from zenml.materializers.base_materializer import BaseMaterializer

from dptune.errors import ArtifactError
from dptune.gates.manifest import Manifest, read_manifest
from dptune.models.digest import model_digest
from dptune.models.source import ModelBundle
from materializers._place import file_of, name_of, refused

_ALLOWED = (".safetensors", ".json", ".txt", ".model", ".jinja")


class ModelBundleMaterializer(BaseMaterializer):
    """Copies the files of a model directory; refuses anything that could be pickle."""

    ASSOCIATED_TYPES: ClassVar[tuple[type[Any], ...]] = (ModelBundle,)
    ASSOCIATED_ARTIFACT_TYPE: ClassVar[ArtifactType] = ArtifactType.MODEL

    def save(self, data: ModelBundle) -> None:
        """Copy every file of the directory.

        Raises:
            ArtifactError: a file has a suffix that is not on the list.
        """
        for file in _files(data.path):
            with (
                file.open("rb") as source,
                self.artifact_store.open(file_of(self.uri, file.name), "wb") as sink,
            ):
                while block := source.read(1 << 24):
                    sink.write(block)

    def load(self, data_type: type[Any]) -> ModelBundle:
        """Copy the files, unless they are on this machine, to a folder of the step.

        ZenML hands over the digest that its database holds since they were saved: who
        can write to the artifact store need not be able to write there.

        Raises:
            ArtifactError: the files are not the ones that were saved.
        """
        if data_type is not ModelBundle:
            raise ArtifactError(f"artifact type must be ModelBundle, got {data_type}.")
        if (local := Path(self.uri)).is_dir():
            return self._checked(local)
        with self.get_temporary_directory(delete_at_exit=False) as folder:
            for name in fileio.listdir(self.uri):
                fileio.copy(file_of(self.uri, str(name)), str(Path(folder) / str(name)))
            return self._checked(Path(folder))

    def _checked(self, folder: Path) -> ModelBundle:
        """Return a bundle of the files that were saved, if it is known which they were.

        Artifacts from before every file was listed are known by their weights alone.

        Raises:
            ArtifactError: other files lie there.
        """
        saved = self.expected_content_hash
        try:
            found, listed = model_digest(folder), read_manifest(folder).digest
        except ArtifactError as error:
            raise refused(f"artifact {name_of(self.uri)}: {error}") from None
        if saved is not None and saved not in {listed, found}:
            raise refused(
                f"the model of artifact {name_of(self.uri)} must be of the files "
                f"that were saved, {saved[:16]}, but has others, with weights "
                f"{found[:16]}. Restore them, or train again with --retrain."
            )
        return ModelBundle(path=folder, digest=found)

    def extract_metadata(self, data: ModelBundle) -> dict[str, Any]:
        """Digest and size."""
        return {
            "digest": data.digest,
            "bytes": sum(file.stat().st_size for file in _files(data.path)),
        }

    def compute_content_hash(self, data: ModelBundle) -> str:
        """Return the digest of the files that are saved, all of them."""
        files = {file.name for file in _files(data.path)}
        listed = read_manifest(data.path).files
        return Manifest(files=tuple(f for f in listed if f.path in files)).digest


def _files(folder: Path) -> list[Path]:
    """List the files of a model directory, all of allowed kinds."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    strange = [file.name for file in files if file.suffix not in _ALLOWED]
    if strange:
        raise ArtifactError(
            f"model files must end in one of {', '.join(_ALLOWED)}, got "
            f"{', '.join(strange)}. Convert the weights to safetensors."
        )
    return files
