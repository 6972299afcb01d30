"""Whether a model can be loaded, and takes records of the configured length."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dptune.errors import ModelError
from dptune.models.source import ArchitectureSource, ModelSource, TrainedTokenizer
from dptune.positions import limits_of_company

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def check_source(
    source: ModelSource,
    *,
    data_root: Path | None,
    max_tokens: int | None = None,
    class_names: Sequence[str] = (),
) -> None:
    """Load what can be loaded without cost; an architecture is only looked at.

    Args:
        source: where the weights come from.
        data_root: folder that relative paths start from.
        max_tokens: longest sequence that training will use.
        class_names: what a sequence classifier tells apart; none for a language model.

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
    # transformers takes seconds to import, and nothing was loaded above
    from dptune.models.loading import load_source  # noqa: PLC0415

    model = load_source(
        source, data_root=data_root, class_names=class_names, dtype=None
    ).model
    if max_tokens is not None:
        check_positions(model.config, max_tokens=max_tokens)


def check_positions(config: "PreTrainedConfig", *, max_tokens: int) -> None:
    """Refuse sequences beyond the positions of a model.

    Raises:
        ModelError: the model has fewer than `max_tokens`.
    """
    positions = most_positions(config)
    if positions is not None and max_tokens > positions:
        raise ModelError(
            f"model.max_tokens must be at most {positions}, the positions of the "
            f"model that do not depend on other records, got {max_tokens}. Longer "
            "records are split."
        )


def most_positions(config: "PreTrainedConfig") -> int | None:
    """Return how long a sequence may be, None if there is no limit.

    Models for text and pictures say so in the part that is for text.
    """
    texts = {id(part): part for part in (config, config.get_text_config())}.values()
    limits = [getattr(part, "max_position_embeddings", None) for part in texts]
    limits += [limit for part in texts for _, limit in limits_of_company(part)]
    return min((limit for limit in limits if limit and limit > 0), default=None)


def _check_files(tokenizer: TrainedTokenizer, data_root: Path) -> None:
    """Name the public texts that are not there."""
    absent = [n for n in tokenizer.public_text if not (data_root / n).is_file()]
    if absent:
        raise ModelError(
            "model.source.tokenizer.public_text must name existing files, but "
            f"{', '.join(absent)} is not there. Paths are relative to the data root."
        )
