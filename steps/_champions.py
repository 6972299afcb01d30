"""Who is the champion of a model, who was it, and the aliases: in MLflow's registry.

The trail is a tag for each promotion and rollback, never overwritten; aliases
follow it.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from dptune.errors import ArtifactError

FoundT = TypeVar("FoundT")
CHAMPION, CHALLENGER = "champion", "challenger"
_HISTORY = "dptune.champion."
_ABSENT = frozenset({"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"})
"""How MLflow says that there is no such model, version or alias."""
LONGEST = 5000
"""Characters of a model's tag, and of a description, in a SQL server of MLflow."""


def none_if_absent(ask: Callable[[], FoundT]) -> FoundT | None:
    """Return what MLflow answers; None where it says that there is no such thing.

    A registry that is locked or away has not said so: a champion that cannot be read
    is still the champion.
    """
    try:
        return ask()
    except MlflowException as error:
        if error.error_code not in _ABSENT:
            raise
        return None


def alias(model_name: str, name: str) -> str | None:
    """Return the version that an alias points to, or None."""
    client = MlflowClient()
    found = none_if_absent(lambda: client.get_model_version_by_alias(model_name, name))
    return str(found.version) if found else None


def champion(model_name: str) -> str | None:
    """Return the version that was promoted last, or None.

    The trail decides, which nothing overwrites; the alias `champion` follows it, and is
    one click away from pointing elsewhere.
    """
    trail = history(model_name)
    return str(trail[-1]["version"]) if trail else None


def is_there(model_name: str, version: str) -> bool:
    """Whether the registry still has a version that the trail names."""
    client = MlflowClient()
    found = none_if_absent(lambda: client.get_model_version(model_name, version))
    return found is not None


def misplaced_champion(model_name: str) -> str:
    """Say where the alias and the trail name different champions; else nothing."""
    at, promoted = alias(model_name, CHAMPION), champion(model_name)
    if at == promoted:
        return ""
    named = f"version {at}" if at else "no version"
    last = f"version {promoted} was promoted last" if promoted else "none was promoted"
    if promoted and not is_there(model_name, promoted):
        last += ", which was deleted from the registry"
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
    found = none_if_absent(lambda: MlflowClient().get_registered_model(model_name))
    tags = found.tags if found else {}
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
