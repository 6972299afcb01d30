"""The project folder: everything a run leaves on this machine, in one place.

The folder is `.dptune/` in the repository, or wherever `DPTUNE_HOME` points (a volume,
in a container). Deleting it forgets every run, including the record of spent budget.
"""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """Folders of one project.

    Args:
        root: absolute path of the project folder.
    """

    root: Path

    @property
    def zenml(self) -> Path:
        """ZenML's configuration and database."""
        return self.root / "zenml"

    @property
    def stores(self) -> Path:
        """Local artifact store, and MLflow's database inside it."""
        return self.root / "stores"

    @property
    def runs(self) -> Path:
        """Checkpoints and ledger journals, one folder per training run."""
        return self.root / "runs"

    @property
    def cache(self) -> Path:
        """What can be made again: pre-trained models, candidate tries."""
        return self.root / "cache"

    @property
    def reports(self) -> Path:
        """Self-contained HTML reports and privacy cards."""
        return self.root / "reports"


def current_workspace() -> Workspace:
    """Return the workspace of this process; nothing is created."""
    return Workspace(
        root=Path(os.environ.get("DPTUNE_HOME") or REPOSITORY / ".dptune").resolve()
    )


def data_root() -> Path:
    """Return the folder that relative data paths start from (`DPTUNE_DATA_ROOT`)."""
    return Path(os.environ.get("DPTUNE_DATA_ROOT") or REPOSITORY).resolve()
