"""One fingerprint of a stored model, the same however often it is loaded and saved."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from dptune.errors import ArtifactError

WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
)
OTHER_TEMPLATES = "additional_chat_templates"

_VOLATILE = frozenset(
    {
        "_name_or_path",
        "name_or_path",
        "transformers_version",
        "is_local",
        "local_files_only",
        "truncation",
        "padding",
    }
)
"""Keys that say where and how a model was loaded or last used, not what it is."""


def model_digest(directory: Path) -> str:
    """Compute the SHA-256 over weights, configuration and tokenizer of a directory.

    Weights count tensor by tensor (name, type, shape, bytes), so that splitting them
    over files changes nothing. JSON counts by content, without the keys that say where
    or how the model was last loaded. One changed bit of one weight changes the digest.

    Raises:
        ArtifactError: the directory holds no readable safetensors model.
    """
    digest = hashlib.sha256()
    _add_json(digest, directory / CONFIG)
    for name in TOKENIZER_FILES:
        path = directory / name
        if not path.is_file():
            continue
        if path.suffix == ".json":
            _add_json(digest, path)
        else:
            _add(digest, path.name.encode(), path.read_bytes())
    for path in sorted((directory / OTHER_TEMPLATES).glob("*.jinja")):
        name = f"{OTHER_TEMPLATES}/{path.name}"  # one may be named default
        _add(digest, name.encode(), path.read_bytes())
    for name, shard in sorted(_tensors(directory).items()):
        _add_tensor(digest, name=name, shard=shard)
    return digest.hexdigest()


def weights_digest(model: nn.Module) -> str:
    """Compute the SHA-256 of a loaded model's tensors, buffers too.

    It tells models apart where no directory names them; it is not `model_digest`.
    """
    return tensors_digest(model.state_dict())


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """Compute the `weights_digest` of a model whose tensors are these, by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        header = json.dumps([name, str(tensor.dtype), list(tensor.shape)])
        body = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        _add(digest, header.encode(), body.cpu().numpy().data)
    return digest.hexdigest()


def weight_files(directory: Path) -> tuple[Path, ...]:
    """Safetensors files of a model, sorted; empty if there are none.

    Raises:
        ArtifactError: the index of a sharded model cannot be read.
    """
    single = directory / WEIGHTS
    if single.is_file():
        return (single,)
    index = directory / WEIGHTS_INDEX
    if not index.is_file():
        return ()
    places = read_json(index).get("weight_map", {})
    given = list(places.values()) if isinstance(places, dict) else [places]
    names = {name for name in given if isinstance(name, str)}
    are_names = all(isinstance(name, str) for name in given)
    if not are_names or any(Path(name).name != name for name in names):
        raise ArtifactError(f"{index} must name files beside it. Export it again.")
    return tuple(directory / name for name in sorted(names))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ArtifactError: it is absent or no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        content = None
    if not isinstance(content, dict):
        raise ArtifactError(f"{path} must be a JSON object that can be read.")
    return content


def _tensors(directory: Path) -> dict[str, Path]:
    """File of every tensor."""
    files = weight_files(directory)
    if not files:
        raise ArtifactError(
            f"{directory} must hold {WEIGHTS} or {WEIGHTS_INDEX}, got neither. "
            "Save the model with save_model."
        )
    found = {}
    for shard in files:
        try:
            with safe_open(shard, framework="pt") as tensors:
                found.update(dict.fromkeys(tensors.keys(), shard))
        except (OSError, SafetensorError) as error:
            raise ArtifactError(
                f"{shard} must be a complete safetensors file. Save the model again."
            ) from error
    return found


def _add_tensor(digest: "hashlib._Hash", *, name: str, shard: Path) -> None:
    """Add one tensor, read alone so that memory holds no second model."""
    with safe_open(shard, framework="pt") as tensors:
        tensor = tensors.get_tensor(name).contiguous()
    header = json.dumps([name, str(tensor.dtype), list(tensor.shape)])
    _add(digest, header.encode(), tensor.reshape(-1).view(torch.uint8).numpy().data)


def _add_json(digest: "hashlib._Hash", path: Path) -> None:
    """Add a JSON object by content."""
    kept = {k: v for k, v in read_json(path).items() if k not in _VOLATILE}
    body = json.dumps(kept, sort_keys=True, ensure_ascii=True)
    _add(digest, path.name.encode(), body.encode())


def _add(digest: "hashlib._Hash", name: bytes, body: bytes | memoryview) -> None:
    """Add a named part with its length, so that parts cannot run into each other."""
    digest.update(b"%d:%d:" % (len(name), memoryview(body).nbytes))
    digest.update(name)
    digest.update(body)
