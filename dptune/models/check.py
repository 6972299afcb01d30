"""Can this model be loaded? Answered before anything is created."""

from pathlib import Path

from dptune.errors import ModelError
from dptune.models.loading import load_model
from dptune.models.source import ArchitectureSource, ModelSource, TrainedTokenizer


def check_source(
    source: ModelSource, *, data_root: Path | None, max_tokens: int | None = None
) -> None:
    """Load what can be loaded without cost; an architecture is only looked at.

    Args:
        source: where the weights come from.
        data_root: folder that relative paths start from.
        max_tokens: longest sequence that training will use.

    Raises:
        ModelError: as `load_model`; or a text of the tokenizer is absent, or the model
            has fewer positions than `max_tokens`.
        DependencyError: as `load_model`.
    """
    if isinstance(source, ArchitectureSource) and isinstance(
        source.tokenizer, TrainedTokenizer
    ):
        _check_files(source.tokenizer, data_root or Path())
        return
    model = load_model(source, data_root=data_root).model
    positions = getattr(model.config, "max_position_embeddings", None)
    if max_tokens is not None and positions is not None and max_tokens > positions:
        raise ModelError(
            f"model.max_tokens must be at most {positions}, the positions of the "
            f"model, got {max_tokens}. Longer records are split."
        )


def _check_files(tokenizer: TrainedTokenizer, data_root: Path) -> None:
    """Name the public texts that are not there."""
    absent = [n for n in tokenizer.public_text if not (data_root / n).is_file()]
    if absent:
        raise ModelError(
            "model.source.tokenizer.public_text must name existing files, but "
            f"{', '.join(absent)} is not there. Paths are relative to the data root."
        )
