"""The model before fine-tuning: loaded, or pre-trained once on public text."""

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch

from dptune.attacks.canaries import CanarySpec
from dptune.attacks.inference import check_causal
from dptune.config import ModelSettings, PerformanceSettings, PretrainingSettings
from dptune.data.readers import source_files
from dptune.data.records import Corpus
from dptune.data.source import DataSource
from dptune.dpsgd.dataset import UnitDataset
from dptune.dpsgd.optimizer import OptimizerSettings
from dptune.dpsgd.plan import PlainPlan
from dptune.dpsgd.trainer import StepProgress, train_stage
from dptune.errors import ConfigError, DependencyError, ModelError, Problem
from dptune.files import contents_digest, private_folder
from dptune.models.build import build_gpt2
from dptune.models.digest import model_digest
from dptune.models.encode import encode_corpus
from dptune.models.folder import folder_of
from dptune.models.loading import (
    LoadedModel,
    load_model,
    load_source,
    save_model,
)
from dptune.models.source import (
    ArchitectureSource,
    ModelBundle,
    ModelSource,
    TrainedTokenizer,
    reads_files,
)
from dptune.models.tokenizer import train_tokenizer
from dptune.models.tokens import add_new_tokens
from dptune.workflow.device import pick_device
from dptune.workflow.ingest import read_public

_PRETRAINING_VERSION = 1


def prepare_base(
    settings: ModelSettings,
    performance: PerformanceSettings,
    *,
    data_root: Path,
    folder: Path,
    work: Path | None = None,
    on_step: Callable[[StepProgress], None] | None = None,
) -> ModelBundle:
    """Load the base model, or pre-train it; either is done once.

    Args:
        settings: where the weights come from, and the public text to pre-train on.
        performance: memory and speed.
        data_root: folder that relative paths start from.
        folder: where finished models are kept.
        work: private folder for work files while the text is read, see `build_corpus`.
        on_step: called after every pre-training step.
    """
    if settings.pretraining is None or settings.source.kind != "architecture":
        return load_base(
            settings.source,
            data_root=data_root,
            folder=folder,
            class_names=settings.class_names,
        )
    public = read_public(settings.pretraining, data_root=data_root, folder=work)
    return pretrain(
        settings.source,
        public,
        settings.pretraining,
        performance,
        max_tokens=settings.max_tokens,
        data_root=data_root,
        folder=folder,
        on_step=on_step,
    )


def with_canary_tokens(
    base: ModelBundle, canaries: CanarySpec, *, folder: Path
) -> ModelBundle:
    """Give a base model the new tokens that its canaries are made of, once.

    Args:
        base: the model before fine-tuning.
        canaries: their law; any other alphabet leaves the model alone.
        folder: where finished models are kept.
    """
    if canaries.num_symbols is None:
        return base
    key = _key([base.digest, canaries.symbols])
    target = folder / f"canary-tokens-{key}"
    if not target.is_dir():
        loaded = load_model(base.path, dtype=None)
        add_new_tokens(loaded.model, loaded.tokenizer, canaries.symbols)
        _store(loaded, target)
    return ModelBundle(path=target, digest=model_digest(target))


def load_base(
    source: ModelSource,
    *,
    data_root: Path | None,
    folder: Path,
    class_names: Sequence[str] = (),
) -> ModelBundle:
    """Load a model from the hub, a directory or an architecture, and store it once.

    A classifier's head is drawn from a public seed where the weights have none.

    Args:
        source: where the weights come from.
        data_root: folder that relative paths start from.
        folder: where the bundle is kept; an existing one is used again, if it was made
            of the same files.
        class_names: what a classifier tells apart; none for a language model.

    Raises:
        ModelError: it cannot be loaded, or a language model looks ahead.
    """
    known: object = source.model_dump(mode="json")
    found = _files_digest(source, data_root=data_root)
    more = [*class_names, *([found] if found else [])]
    target = folder / f"base-{_key([known, *more] if more else known)}"
    if not target.is_dir():
        loaded = load_source(
            source, data_root=data_root, class_names=class_names, dtype=None
        )
        if not class_names:
            with torch.inference_mode():
                check_causal(loaded.model, torch.tensor([[0, 1, 2, 3]]))
        _store(loaded, target)
    return ModelBundle(path=target, digest=model_digest(target))


def pretrain(
    source: ArchitectureSource,
    public: Corpus,
    settings: PretrainingSettings,
    performance: PerformanceSettings,
    *,
    max_tokens: int,
    data_root: Path | None,
    folder: Path,
    on_step: Callable[[StepProgress], None] | None = None,
) -> ModelBundle:
    """Train an architecture from scratch on public text; never twice.

    **Privacy**: nothing here is protected. `public` must hold no personal data.

    Args:
        source: shape and tokenizer; a tokenizer to be trained learns from `public`.
        public: public text; its training split is used.
        settings: epochs, batch size and rate of AdamW with a cosine schedule.
        performance: memory and speed.
        max_tokens: longest sequence.
        data_root: folder that relative paths start from.
        folder: where finished models are kept, by what they were made from.
        on_step: called after every step.

    Returns:
        The finished model; from the folder when it was made before.
    """
    recipe = {
        "version": _PRETRAINING_VERSION,
        "source": source.model_dump(mode="json"),
        "corpus": public.fingerprint,
        "numbers": [max_tokens, settings.epochs, settings.batch_size],
        "learning_rate": settings.learning_rate,
    }
    if found := _files_digest(source, data_root=data_root):
        recipe["files"] = found
    target = folder / f"pretrained-{_key(recipe)}"
    if target.is_dir():
        return ModelBundle(path=target, digest=model_digest(target))
    rows = public.split("train")
    loaded = _fresh_model(source, list(rows["text"]), data_root=data_root)
    folder.mkdir(parents=True, exist_ok=True)
    encoded = encode_corpus(
        rows, loaded.tokenizer, max_tokens=max_tokens, folder=folder
    )
    data = UnitDataset.from_encoded(
        encoded, max_sequences_per_unit=len(encoded), folder=folder
    )
    steps = max(1, round(settings.epochs * len(data.units) / settings.batch_size))
    train_stage(
        loaded.model,
        data,
        plan=PlainPlan(batch_size=settings.batch_size),
        num_steps=steps,
        optimizer=OptimizerSettings(
            name="adamw",
            learning_rate=settings.learning_rate,
            weight_decay=0.01,
            warmup_steps=steps // 20,
            schedule="cosine",
        ),
        physical_batch_size=performance.physical_batch_size,
        pad_token_id=int(loaded.tokenizer.pad_token_id),
        loss_normalizer=float(max_tokens),
        checkpoint_dir=None,
        block_size=steps,
        charge=_public_text_costs_nothing,
        on_step=on_step,
        seed=source.seed,
        device=pick_device(performance.device),
    )
    _store(loaded, target)
    return ModelBundle(path=target, digest=model_digest(target))


def _fresh_model(
    source: ArchitectureSource, texts: list[str], *, data_root: Path | None
) -> LoadedModel:
    """Build the architecture, with a tokenizer of its own if it asks for one."""
    if not isinstance(source.tokenizer, TrainedTokenizer):
        return load_model(source, data_root=data_root)
    if source.vocab_size is None:
        raise ConfigError(
            [Problem(path="model.source.vocab_size", message="must be set.")]
        )
    tokenizer = train_tokenizer(texts, vocab_size=source.vocab_size)
    model = build_gpt2(
        tokenizer,
        num_layers=source.num_layers,
        num_heads=source.num_heads,
        hidden_size=source.hidden_size,
        max_tokens=source.max_tokens,
        seed=source.seed,
    )
    return LoadedModel(model=model, tokenizer=tokenizer)


def _store(loaded: LoadedModel, target: Path) -> None:
    """Write a model so that a killed process leaves no half of one.

    Another run may make the same one meanwhile: the first to end is the one.
    """
    with private_folder(target.parent, purpose="half") as folder:
        whole = folder / target.name
        save_model(loaded.model, loaded.tokenizer, whole)
        try:
            whole.rename(target)
        except OSError:
            if not target.is_dir():
                raise


def base_files_digest(settings: ModelSettings, *, data_root: Path) -> str:
    """Hash the files that the base model and its public texts are read from.

    A model that is not here, but in the cluster, is none: who loads it says so.

    Args:
        settings: where they are.
        data_root: folder that relative paths start from.

    Returns:
        A name of what these files hold now; the same for all models without files.
    """
    found = ""
    with suppress(ModelError, DependencyError):
        found = _files_digest(settings.source, data_root=data_root)
    shown = settings.pretraining
    texts = [] if shown is None else [shown.source]
    if settings.public_text is not None:
        texts.append(settings.public_text)
    if not texts:
        return found
    return _key([found, *(public_digest(text, data_root=data_root) for text in texts)])


def public_digest(source: DataSource, *, data_root: Path) -> str:
    """Hash the files of a public text; the same for all texts without files here."""
    return contents_digest(source_files(source, data_root=data_root) or [])


def _files_digest(source: ModelSource, *, data_root: Path | None) -> str:
    """Hash the files that a model follows from by their names; "" if there are none.

    Another model may be saved under the name of the first.
    """
    if not reads_files(source):
        return ""
    return contents_digest(_files(source, data_root=data_root))


def _files(source: ModelSource, *, data_root: Path | None) -> list[Path]:
    """List the files that a model, or its tokenizer, is read from."""
    if isinstance(source, ArchitectureSource):
        tokenizer = source.tokenizer
        if not isinstance(tokenizer, TrainedTokenizer):
            return _files(tokenizer, data_root=data_root)
        return [(data_root or Path()) / name for name in tokenizer.public_text]
    folder = folder_of(source, data_root=data_root)
    return sorted(file for file in folder.rglob("*") if file.is_file())


def _key(values: object) -> str:
    """Hash JSON values into a short name."""
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _public_text_costs_nothing(first_step: int, num_steps: int) -> None:
    """Charge nothing: the text is public."""
