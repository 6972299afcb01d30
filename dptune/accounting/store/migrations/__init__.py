"""Bring a store's tables to the version of this program, with Alembic."""

from pathlib import Path
from typing import Any, Final

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

_FOLDER: Final = Path(__file__).parent


def migrate(connection: Connection) -> None:
    """Apply every migration that the store lacks, in the open transaction.

    The caller holds the store's write lock, so that two processes never migrate at
    once.
    """
    config = _config()
    scripts = ScriptDirectory.from_config(config)

    def steps(revision: Any, _: Any) -> Any:  # noqa: ANN401 - Alembic's own types
        return scripts._upgrade_revs("head", revision)

    with EnvironmentContext(config, scripts, fn=steps) as environment:
        environment.configure(connection=connection, transaction_per_migration=False)
        environment.run_migrations()


def knows(version: str) -> bool:
    """Whether a version is one of this program's migrations."""
    scripts = ScriptDirectory.from_config(_config())
    return version in {script.revision for script in scripts.walk_revisions()}


def _config() -> Config:
    """Point Alembic at this folder."""
    config = Config()
    config.set_main_option("script_location", str(_FOLDER))
    return config
