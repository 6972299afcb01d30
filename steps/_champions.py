"""Who is the champion of a model, who was it, and the aliases: in MLflow's registry.

The trail is a tag for each promotion and rollback, never overwritten; aliases
follow it.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dptune.errors import ArtifactError

CHAMPION, CHALLENGER = "champion", "challenger"
_HISTORY = "dptune.champion."
LONGEST = 5000
"""Characters of a model's tag, and of a description, in a SQL server of MLflow."""


def alias(model_name: str, name: str) -> str | None:
    """Return the version that an alias points to, or None."""
    try:
        return str(MlflowClient().get_model_version_by_alias(model_name, name).version)
    except MlflowException:
        return None


def champion(model_name: str) -> str | None:
    """Return the version that was promoted last, or None.

    The trail decides, which nothing overwrites; the alias `champion` follows it, and is
    one click away from pointing elsewhere.
    """
    trail = history(model_name)
    return str(trail[-1]["version"]) if trail else None


def misplaced_champion(model_name: str) -> str:
    """Say where the alias and the trail name different champions; else nothing."""
    at, promoted = alias(model_name, CHAMPION), champion(model_name)
    if at == promoted:
        return ""
    named = f"version {at}" if at else "no version"
    last = f"version {promoted} was promoted last" if promoted else "none was promoted"
    return (
        f"The alias champion of {model_name} points at {named}, but by the trail "
        f"{last}."
    )


def set_alias(model_name: str, name: str, version: str) -> None:
    """Point an alias at a version."""
    MlflowClient().set_registered_model_alias(model_name, name, version)


def drop_alias(model_name: str, name: str) -> None:
    """Remove an alias, if it is there."""
    if alias(model_name, name) is not None:
        MlflowClient().delete_registered_model_alias(model_name, name)


def history(model_name: str) -> list[dict[str, Any]]:
    """Return the promotions and rollbacks of a model, oldest first."""
    try:
        tags = MlflowClient().get_registered_model(model_name).tags
    except MlflowException:
        return []  # there is no such model
    entries = [_entry(k, v) for k, v in tags.items() if k.startswith(_HISTORY)]
    return sorted(entries, key=lambda entry: datetime.fromisoformat(entry["at"]))


def _entry(key: str, text: str) -> dict[str, Any]:
    """Read one line of a trail.

    Raises:
        ArtifactError: it is not what a promotion wrote.
    """
    try:
        entry: dict[str, Any] = json.loads(text)
        whole = datetime.fromisoformat(entry["at"]).tzinfo and str(entry["version"])
    except (ValueError, TypeError, LookupError, RecursionError):
        whole = None
    if not whole:
        raise ArtifactError(
            "the trail of promotions must be what promotions wrote, but its tag "
            f"{key[:60]!a} is not. Somebody edited it: delete that tag in MLflow."
        )
    return entry


def _fitting(entry: Mapping[str, str]) -> str:
    """Write an entry, its reason cut: JSON makes six characters of a letter."""
    for length in (4000, 2000, 1000, 500):
        text = json.dumps({**entry, "reason": entry["reason"][:length]})
        if len(text) <= LONGEST:
            break
    return text


def append_history(model_name: str, entry: Mapping[str, str]) -> None:
    """Add a line to the end of a model's trail: a tag of its own, never overwritten.

    It stays the last one whatever clocks said before.
    """
    now, trail = datetime.now(tz=UTC), history(model_name)
    if trail:
        last = datetime.fromisoformat(trail[-1]["at"])
        now = max(now, last + timedelta(microseconds=1))
    at = now.astimezone(UTC).isoformat(timespec="microseconds")
    key = f"{_HISTORY}{at[:26].replace(':', '-')}.{entry['version']}"
    text = _fitting({"at": at, **entry})
    MlflowClient().set_registered_model_tag(model_name, key, text)
