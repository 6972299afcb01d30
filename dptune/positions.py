"""Where the positions of a model begin to depend on more than the row itself."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


def limits_of_company(config: "PreTrainedConfig") -> Iterator[tuple[str, int]]:
    """Yield kinds of rotary frequencies that go by the longest row of a batch.

    As soon as it exceeds the length of the first training, it decides the frequencies
    of all rows: one record then moves the gradients of the rest, which no clip of
    single units bounds. `longrope` forgets a batch, `dynamic` does not.

    Args:
        config: of the part of a model that has the frequencies.

    Yields:
        `longrope` or `dynamic`, and the longest row that moves no other.
    """
    ropes = getattr(config, "rope_parameters", None) or {}
    by_layer = [value for value in ropes.values() if isinstance(value, dict)]
    for rope in by_layer or [ropes]:
        kind = str(rope.get("rope_type"))
        if kind != "longrope" and "dynamic" not in kind:
            continue
        limits = (
            rope.get("original_max_position_embeddings"),
            getattr(config, "max_position_embeddings", None),
        )
        yield kind, min((limit for limit in limits if limit), default=0)
