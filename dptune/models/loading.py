"""Load and save models: safetensors only, no code from outside, fast tokenizers.

What is saved is one ordinary directory of safetensors and JSON, whatever was trained.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from peft import PeftModel
from safetensors import SafetensorError
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging as hf_logging

from dptune.errors import ArtifactError, ModelError
from dptune.models.build import build_gpt2, input_weight, seeded
from dptune.models.digest import model_digest, read_json
from dptune.models.fit import Reading, causal_reader, check_finite, check_fit
from dptune.models.folder import check_folder, folder_of, required_root
from dptune.models.frozen import read_only
from dptune.models.merging import save_merged
from dptune.models.source import (
    ArchitectureSource,
    HubSource,
    ModelSource,
    PackageSource,
    PathSource,
    TrainedTokenizer,
)
from dptune.models.tokenizer import read_public_text, train_tokenizer

_CLASSIFIER = "ForSequenceClassification"


@contextmanager
def silent_progress() -> Iterator[None]:
    """Switch the progress bars of transformers off inside."""
    was_enabled = hf_logging.is_progress_bar_enabled()
    if was_enabled:
        hf_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_enabled:
            hf_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model in evaluation mode and the tokenizer that belongs to it."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast

    @property
    def class_names(self) -> tuple[str, ...]:
        """What a sequence classifier tells apart; empty for a language model."""
        if not type(self.model).__name__.endswith(_CLASSIFIER):
            return ()
        names = dict(self.model.config.id2label or {})
        return tuple(str(name) for _, name in sorted(names.items()))

    def read_only(self) -> "LoadedModel":
        """Return one to measure over the same memory, see `frozen.read_only`."""
        return replace(self, model=cast("PreTrainedModel", read_only(self.model)))


def load_model(
    source_or_path: ModelSource | Path | str,
    *,
    data_root: Path | None = None,
    dtype: torch.dtype | None = torch.float32,
    cache_dir: Path | None = None,
) -> LoadedModel:
    """Load or build a causal language model on the CPU, in evaluation mode.

    No code from outside runs, nothing is unpickled, and every weight must be in the
    files. A tokenizer without padding token pads with its end-of-text token; no token
    is added.

    Args:
        source_or_path: a source of the configuration, or a directory that `save_model`
            wrote.
        data_root: folder that the paths of a source are relative to.
        dtype: of the weights; None leaves them as they are stored.
        cache_dir: cache of the hub; its usual place by default.

    Raises:
        ModelError: the directory is absent, holds pickled weights, an adapter or code,
            lacks weights, has no fast tokenizer, does not fit its, or takes two texts.
        DependencyError: the hub cannot be reached and the cache lacks the model.
    """
    if isinstance(source_or_path, ArchitectureSource):
        built = _build(source_or_path, data_root=data_root, cache=cache_dir)
        torch.nn.Module.to(built.model, dtype or torch.float32)
        return built
    folder = folder_of(source_or_path, data_root=data_root, cache=cache_dir)
    check_folder(folder)
    if read_json(folder / "config.json").get("is_encoder_decoder"):  # half would load
        raise ModelError(
            f"{folder} reads one text and writes another, but a record is one text. "
            "Use a decoder (GPT-2, Llama) or, to tell classes apart, an encoder (BERT)."
        )
    reader = causal_reader(folder)
    model, missing = _read(reader, folder, dtype=dtype or "auto")
    if missing:
        raise ModelError(
            f"{folder} lacks {len(missing)} weights of its architecture. "
            "Use a causal language model with its output layer."
        )
    return _pair(model, load_tokenizer(folder))


def load_saved(
    folder: Path, *, dtype: torch.dtype | None = torch.float32
) -> LoadedModel:
    """Load what `save_model` wrote, a language model or a sequence classifier.

    Args:
        folder: that it was written to.
        dtype: of the weights; None leaves them as they were stored.

    Raises:
        ModelError: as `load_model`.
    """
    check_folder(folder)
    names = read_json(folder / "config.json").get("architectures") or [""]
    if not str(names[0]).endswith(_CLASSIFIER):
        return load_model(folder, dtype=dtype)
    reader = AutoModelForSequenceClassification.from_pretrained
    model, missing = _read(reader, folder, dtype=dtype or "auto")
    if missing:
        raise ModelError(f"{folder} lacks {len(missing)} weights. Store it again.")
    return _pair(model, load_tokenizer(folder))


def load_measured(folder: Path) -> LoadedModel:
    """Load what `save_model` wrote to measure it: held as stored, computed in float32.

    Raises:
        ModelError: as `load_model`.
    """
    return load_saved(folder, dtype=None).read_only()


def load_classifier(
    source_or_path: HubSource | PathSource | PackageSource | Path | str,
    *,
    num_labels: int,
    class_names: Sequence[str] = (),
    data_root: Path | None = None,
    dtype: torch.dtype | None = torch.float32,
    seed: int = 0,
    cache_dir: Path | None = None,
) -> LoadedModel:
    """Load a sequence classifier; as `load_model`, but its head may be new.

    Args:
        source_or_path: as for `load_model`, without architectures.
        num_labels: classes, at least 2.
        class_names: of the classes, kept with the model; numbers by default.
        data_root: as for `load_model`.
        dtype: as for `load_model`.
        seed: of a head that the files do not have; public.
        cache_dir: as for `load_model`.

    Raises:
        ModelError: as for `load_model`, or weights besides the head are missing.
        DependencyError: as for `load_model`.
    """
    if num_labels < 2:
        raise ModelError(f"num_labels must be at least 2, got num_labels={num_labels}.")
    folder = folder_of(source_or_path, data_root=data_root, cache=cache_dir)
    check_folder(folder)
    reader = AutoModelForSequenceClassification.from_pretrained
    with seeded(seed):
        model, missing = _read(
            reader, folder, dtype=dtype or "auto", num_labels=num_labels
        )
    inner = [name for name in missing if _is_encoder_weight(model, name)]
    if inner:
        raise ModelError(
            f"{folder} lacks {len(inner)} weights besides the classifier's head. "
            "Use a complete checkpoint."
        )
    loaded = _pair(model, load_tokenizer(folder))
    config, names = loaded.model.config, class_names or range(num_labels)
    config.pad_token_id = loaded.tokenizer.pad_token_id
    config.id2label = {index: str(name) for index, name in enumerate(names)}
    config.label2id = {name: index for index, name in config.id2label.items()}
    return loaded


def load_source(
    source: ModelSource,
    *,
    data_root: Path | None,
    class_names: Sequence[str],
    dtype: torch.dtype | None,
) -> LoadedModel:
    """Load a language model, or a classifier where there are classes.

    Args:
        source: where the weights come from.
        data_root: folder that relative paths start from.
        class_names: what a classifier tells apart; none for a language model.
        dtype: of the weights; None leaves them as they are stored.

    Raises:
        ModelError: as `load_model`, or weights are not finite.
    """
    if class_names and not isinstance(source, ArchitectureSource):
        loaded = load_classifier(
            source,
            num_labels=len(class_names),
            class_names=class_names,
            data_root=data_root,
            dtype=dtype,
        )
    else:
        loaded = load_model(source, data_root=data_root, dtype=dtype)
    check_finite(loaded.model)
    return loaded


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Load the fast tokenizer of a directory, with a padding token.

    Raises:
        ModelError: there is none, it is slow, empty, or has no token to pad with.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, use_fast=True
        )
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        raise ModelError(
            f"{folder} must hold a tokenizer that transformers can load without code "
            f"from outside ({type(error).__name__}). Add its tokenizer.json."
        ) from error
    return _usable(tokenizer, where=str(folder))


def _read(
    reader: Callable[..., Any], folder: Path, **options: torch.dtype | int | str
) -> tuple[PreTrainedModel, list[str]]:
    """Read a checked directory; also return the names of weights it lacks.

    Raises:
        ModelError: it cannot be read, or says another model than its configuration.
    """
    try:
        with silent_progress():
            model, info = reader(
                folder,
                trust_remote_code=False,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # told below, by name
                **options,
            )
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        SafetensorError,
        StrictDataclassError,
    ) as error:
        raise ModelError(
            f"{folder} must hold a model that transformers can load "
            f"({type(error).__name__}). Check config.json and the weights."
        ) from error
    except ImportError as error:
        raise ModelError(
            f"{folder} holds a model that needs a package which is not installed, as "
            "quantised weights do. Use the model as it was before it was quantised: "
            "model.quantization holds it in 4 or 8 bits."
        ) from error
    reading = Reading.of(info)
    check_fit(model, reading, folder=folder)
    return model.eval(), list(reading.missing)


def _is_encoder_weight(model: PreTrainedModel, name: str) -> bool:
    """Whether a weight belongs to the body, except a pooler, which heads may renew."""
    body = name.startswith(f"{model.base_model_prefix}.")
    return body and ".pooler." not in name


def _pair(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> LoadedModel:
    """Model and tokenizer, if every token has a row in the model."""
    rows = input_weight(model).shape[0]
    needed = max(tokenizer.get_vocab().values()) + 1
    if needed > rows:
        raise ModelError(
            f"the tokenizer must fit the model, got {needed} tokens for {rows} rows. "
            "Use the tokenizer that the model was trained with."
        )
    return LoadedModel(model=model, tokenizer=tokenizer)


def _build(
    source: ArchitectureSource,
    *,
    data_root: Path | None,
    cache: Path | None,
) -> LoadedModel:
    """Build the model of an architecture source."""
    tokenizer = _tokenizer_of(source, data_root=data_root, cache=cache)
    tokenizer.model_max_length = source.max_tokens
    model = build_gpt2(
        tokenizer,
        num_layers=source.num_layers,
        num_heads=source.num_heads,
        hidden_size=source.hidden_size,
        max_tokens=source.max_tokens,
        seed=source.seed,
    )
    return _pair(model, tokenizer)


def _tokenizer_of(
    source: ArchitectureSource, *, data_root: Path | None, cache: Path | None
) -> PreTrainedTokenizerFast:
    """Train the tokenizer of an architecture, or load it."""
    wanted = source.tokenizer
    if not isinstance(wanted, TrainedTokenizer):
        folder = folder_of(wanted, data_root=data_root, cache=cache, weights=False)
        return load_tokenizer(folder)
    if source.vocab_size is None:
        raise ModelError("vocab_size must be given with a trained tokenizer, got none.")
    files = [required_root(data_root) / name for name in wanted.public_text]
    return train_tokenizer(read_public_text(files), vocab_size=source.vocab_size)


def _usable(tokenizer: object, *, where: str) -> PreTrainedTokenizerFast:
    """A fast tokenizer with a padding token that it had already."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ModelError(
            f"the tokenizer of {where} must be a fast one, because sensitive spans are "
            "mapped to tokens by its offsets. Add its tokenizer.json."
        )
    if set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise ModelError(
            f"the tokenizer of {where} must have tokens for text, got none: where its "
            "files are missing, an empty one is made up. Add its tokenizer.json."
        )
    if tokenizer.pad_token is None:
        known = (tokenizer.eos_token, tokenizer.bos_token, tokenizer.unk_token)
        tokenizer.pad_token = next((token for token in known if token), None)
    if tokenizer.pad_token is None:
        raise ModelError(
            f"the tokenizer of {where} has no token to pad with. Name a pad_token in "
            "its tokenizer_config.json."
        )
    return tokenizer


def save_model(
    model: PreTrainedModel | PeftModel,
    tokenizer: PreTrainedTokenizerFast,
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
) -> str:
    """Write one ordinary model and its tokenizer; return the digest of the directory.

    Adapters are merged on the way, so that attacks and registries see the same kind of
    model whatever was trained. No second copy of the weights is made.

    Args:
        model: with or without LoRA adapters; it is not changed.
        tokenizer: its tokenizer.
        directory: absent or empty.
        dtype: of weights that adapters are merged into, and of all beside them.

    Raises:
        ArtifactError: the directory has files already.
        ModelError: merged weights are not finite.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ArtifactError(f"{directory} must be absent or empty. Use a new one.")
    directory.mkdir(parents=True, exist_ok=True)
    if isinstance(model, PeftModel):
        save_merged(model, directory, dtype=dtype)
    else:
        with silent_progress():
            model.save_pretrained(directory)
    save_tokenizer(tokenizer, directory)
    return model_digest(directory)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write a copy that remembers no padding or truncation of the last call.

    Of several chat templates it has the one that conversations are written by.

    Args:
        tokenizer: not changed.
        directory: that the model is written to.
    """
    clean = copy.deepcopy(tokenizer)
    if isinstance(clean.chat_template, dict):
        clean.chat_template = clean.chat_template.get("default")
    clean.backend_tokenizer.no_padding()
    clean.backend_tokenizer.no_truncation()
    clean.save_pretrained(directory)
