"""Adapters of LoRA kept by themselves, and merged into their base on demand."""

import json
from pathlib import Path

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerFast

from dptune.errors import ArtifactError, ModelError
from dptune.models.build import without_peft_warning
from dptune.models.digest import read_json
from dptune.models.frozen import bits_of, freeze_base
from dptune.models.loading import load_saved, load_tokenizer, save_model, save_tokenizer
from dptune.models.tokens import add_mask_token

_BASE = "base.json"


def save_adapter(
    model: PeftModel, tokenizer: PreTrainedTokenizerFast, directory: Path
) -> None:
    """Write adapters by themselves, without the path of their base.

    `base.json` beside them says how many bits its weights had: `merge_adapter` needs it
    for the model that was trained, and not another one.

    Args:
        model: with LoRA adapters.
        tokenizer: its tokenizer.
        directory: absent or empty.
    """
    model.save_pretrained(
        str(directory), safe_serialization=True, save_embedding_layers=False
    )
    (directory / "README.md").unlink(missing_ok=True)
    path = directory / "adapter_config.json"
    config = read_json(path) | {"base_model_name_or_path": None}
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    base = {"quantization": bits_of(model)}
    (directory / _BASE).write_text(json.dumps(base), encoding="utf-8")
    save_tokenizer(tokenizer, directory)


def merge_adapter(
    base: Path,
    adapter: Path,
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
) -> str:
    """Write the model that a base and adapters of `save_adapter` make together.

    Args:
        base: directory of the model that the adapters were trained over.
        adapter: directory that `save_adapter` wrote.
        directory: absent or empty.
        dtype: see `save_model`.

    Returns:
        The digest of the directory.

    Raises:
        ModelError: as `load_model`; or the adapters do not fit.
        ArtifactError: as `save_model`; or what lies beside the adapters is not theirs.
        DependencyError: the base had 4 or 8 bits, and bitsandbytes is not installed.
    """
    bits = read_json(adapter / _BASE).get("quantization")
    if bits not in (None, 4, 8):
        raise ArtifactError(f"{adapter / _BASE} must name 4, 8 or no bits, got {bits}.")
    start = load_saved(base, dtype=None)
    tokenizer = load_tokenizer(adapter)
    if len(tokenizer) > len(start.tokenizer):
        add_mask_token(start.model, start.tokenizer)
    try:
        with without_peft_warning():
            model = PeftModel.from_pretrained(start.model, str(adapter))
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        raise ModelError(
            f"{adapter} must hold adapters of {base.name} ({type(error).__name__}). "
            "Name the model that they were trained over."
        ) from error
    freeze_base(model, bits=bits)
    return save_model(model, tokenizer, directory, dtype=dtype)
