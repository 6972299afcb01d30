"""Fetch repositories of the Hugging Face hub, data files only.

For machines that reach no hub: a folder that is filled once, and checked.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
from dptune.models.digest import model_digest
from dptune.models.source import ArchitectureSource, HubSource, ModelSource

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


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """One repository of the hub that lies in the folder.

    Args:
        source: what was asked for.
        commit: that the revision meant.
        digest: of weights, configuration and tokenizer; None for a tokenizer alone.
    """

    source: HubSource
    commit: str
    digest: str | None


def fetch_models(sources: Sequence[ModelSource], *, folder: Path) -> list[Fetched]:
    """Put everything that some models need from a hub into a folder, safetensors only.

    The folder is a cache as `HF_HUB_CACHE` names it: pods mount it read-only and find
    the same ids. What lies there already is not fetched again, so that without a
    network this checks that all of it is there.

    Args:
        sources: of models; those that need no hub are passed over.
        folder: the cache; made if absent.

    Raises:
        DependencyError: one is not there and the hub cannot be reached.
        ModelError: the hub has no such model, or refuses access.
        ArtifactError: a file is not what its name says.
    """
    found = []
    for source, weights in dict.fromkeys(_needed(sources)):
        place = fetch(source, cache_dir=folder, weights=weights)
        digest = model_digest(place) if weights else None
        found.append(Fetched(source=source, commit=place.name, digest=digest))
    return found


def _needed(sources: Sequence[ModelSource]) -> Iterator[tuple[HubSource, bool]]:
    """List repositories, and whether their weights are needed."""
    for source in sources:
        if isinstance(source, HubSource):
            yield source, True
        elif isinstance(source, ArchitectureSource) and isinstance(
            source.tokenizer, HubSource
        ):
            yield source.tokenizer, False
