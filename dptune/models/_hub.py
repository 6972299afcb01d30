"""Fetch a repository of the Hugging Face hub, data files only."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from dptune.errors import DependencyError, ModelError
from dptune.models.source import HubSource

_DATA_FILES = ("*.json", "*.txt", "*.jinja", "tokenizer.model")
_WEIGHTS = ("model.safetensors", "model-*.safetensors")


def fetch(source: HubSource, *, cache_dir: Path | None, weights: bool) -> Path:
    """Return the local directory of a hub repository, from the cache where possible.

    Code and pickled weights are never fetched.

    Raises:
        DependencyError: the hub cannot be reached and the cache does not have it.
        ModelError: the hub has no such repository or revision, or refuses access.
    """
    name = f"{source.id} at revision {source.revision}"
    try:
        folder = snapshot_download(
            source.id,
            revision=source.revision,
            cache_dir=cache_dir,
            allow_patterns=[*_DATA_FILES, *(_WEIGHTS if weights else ())],
        )
    except GatedRepoError:
        raise ModelError(
            f"the hub refuses access to {name}. Accept its licence on the hub and log "
            "in with `hf auth login`."
        ) from None
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError):
        raise ModelError(
            f"the hub has no model {name}. Check id and revision; a private one needs "
            "`hf auth login`."
        ) from None
    except (HfHubHTTPError, OSError):
        raise DependencyError(
            f"model {name} is not in the local cache and the hub cannot be reached. "
            f"Run `hf download {source.id} --revision {source.revision}` where there "
            "is a network, or copy the model here and use `kind: path`."
        ) from None
    return Path(folder)
