"""Save models: one ordinary directory of safetensors and JSON, whatever was trained."""

import copy
import json
from pathlib import Path

from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from dptune.errors import ArtifactError, ModelError
from dptune.models._context import silent_progress
from dptune.models.digest import model_digest, read_json

ADAPTER_FOLDER = "adapter"


def save_model(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerFast,
    directory: Path,
    *,
    adapter: bool = False,
) -> str:
    """Write one ordinary model and its tokenizer; return the digest of the directory.

    Adapters are merged into a copy of the model, so that attacks and registries see
    the same kind of model whatever was trained.

    Args:
        model: with or without LoRA adapters; it is not changed.
        tokenizer: its tokenizer.
        directory: absent or empty.
        adapter: also keep the adapter by itself, in `adapter/` below.

    Raises:
        ArtifactError: the directory has files already.
        ModelError: `adapter` without adapters, or weights that are not finite.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ArtifactError(f"{directory} must be absent or empty. Use a new one.")
    if adapter and not isinstance(model, PeftModel):
        raise ModelError("adapter=True needs a model with adapters, got one without.")
    directory.mkdir(parents=True, exist_ok=True)
    with silent_progress():
        _merged(model).save_pretrained(directory)
        if adapter and isinstance(model, PeftModel):
            _save_adapter(model, directory / ADAPTER_FOLDER)
    _save_tokenizer(tokenizer, directory)
    return model_digest(directory)


def _merged(model: PreTrainedModel | PeftModel) -> PreTrainedModel:
    """The model itself, or a copy with its adapters merged."""
    if not isinstance(model, PeftModel):
        return model
    try:
        merged: PreTrainedModel = copy.deepcopy(model).merge_and_unload(safe_merge=True)
    except ValueError as error:
        raise ModelError("the adapters must be finite to be merged.") from error
    return merged


def _save_adapter(model: PeftModel, folder: Path) -> None:
    """Write the adapter without the path of its base model and without a hub lookup."""
    model.save_pretrained(
        str(folder), safe_serialization=True, save_embedding_layers=False
    )
    (folder / "README.md").unlink(missing_ok=True)
    path = folder / "adapter_config.json"
    config = read_json(path) | {"base_model_name_or_path": None}
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write a copy that remembers no padding or truncation of the last call."""
    clean = copy.deepcopy(tokenizer)
    clean.backend_tokenizer.no_padding()
    clean.backend_tokenizer.no_truncation()
    clean.save_pretrained(directory)
