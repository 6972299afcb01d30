"""Can this model be loaded? Answered before anything is created."""

from pathlib import Path

from dptune.models.loading import load_model
from dptune.models.source import ArchitectureSource, ModelSource


def check_source(source: ModelSource, *, data_root: Path | None) -> None:
    """Load what can be loaded without cost; an architecture needs nothing.

    Raises:
        ModelError, DependencyError: as `load_model`.
    """
    if not isinstance(source, ArchitectureSource):
        load_model(source, data_root=data_root)
