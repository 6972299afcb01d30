"""What the files of a model say of it, before its weights are read."""

import math
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from dptune.errors import ArtifactError, ModelError
from dptune.models.check import most_positions
from dptune.models.digest import read_json, weight_files
from dptune.models.folder import check_folder, folder_of
from dptune.models.source import HubSource, PackageSource, PathSource, Task

_NO_WEIGHTS = {"I64", "I32", "BOOL"}  # positions and masks
_TYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What the files of a model say of it.

    Args:
        family: of the architecture, as transformers calls it.
        task: that it was made for.
        num_weights: in all.
        num_bytes: that they take as they are stored.
        types: that they are stored in.
        num_classes: of its head; 2 where a head is still to come.
        positions: how long a sequence may be, None if there is no limit.
    """

    family: str
    task: Task
    num_weights: int
    num_bytes: int
    types: tuple[str, ...]
    num_classes: int
    positions: int | None = None


def read_metadata(
    source: HubSource | PathSource | PackageSource, *, data_root: Path
) -> ModelMetadata:
    """Read what the files of a model say, without its weights.

    Args:
        source: where it comes from.
        data_root: folder that relative paths start from.

    Raises:
        ModelError: there is no such model, or its files are damaged.
        DependencyError: as `load_model`.
    """
    folder = folder_of(source, data_root=data_root)
    check_folder(folder)
    kinds, num_weights = set(), 0
    try:
        config = read_json(folder / "config.json")
        for file in weight_files(folder):
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    part = opened.get_slice(name)
                    if part.get_dtype() not in _NO_WEIGHTS:
                        kinds.add(part.get_dtype())
                        num_weights += math.prod(part.get_shape())
    except (ArtifactError, FileNotFoundError, SafetensorError) as error:
        raise ModelError(
            f"{folder} must hold weights that can be read ({type(error).__name__}). "
            "Copy or download them again."
        ) from error
    names, family = str(config.get("architectures")), str(config.get("model_type", ""))
    encodes = family in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    encodes |= "ForSequenceClassification" in names
    is_causal = "CausalLM" in names or "LMHead" in names or not encodes
    return ModelMetadata(
        family=family,
        task="causal_lm" if is_causal else "sequence_classification",
        num_weights=num_weights,
        num_bytes=sum(file.stat().st_size for file in weight_files(folder)),
        types=tuple(sorted(_TYPES.get(kind, kind) for kind in kinds)),
        num_classes=max(2, len(config.get("id2label") or ())),
        positions=_positions(folder),
    )


def _positions(folder: Path) -> int | None:
    """Read how long a sequence may be; whoever loads the model says what is wrong."""
    try:
        return most_positions(AutoConfig.from_pretrained(folder, local_files_only=True))
    except (OSError, ValueError, KeyError, TypeError, StrictDataclassError):
        return None
